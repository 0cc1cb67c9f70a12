"""Chat as vLLM 0.32 speaks it: ``/v1/chat/completions``, and the list form
``/v1/chat/completions/batch``.

Rules:
- A conversation is rendered by a plain template: ``role: content`` per line, and ``assistant:`` at
  the end. The engine gets the text, so lengths, answers, faults and prefix cache equal those of a
  completion with the same text (``render_messages``).
- Without ``max_tokens`` an answer may fill the rest of the context; ``max_completion_tokens`` goes
  before ``max_tokens``.
- The list form has a usage for all, and no prompt token ids. It drops ``tools``. With ``stream`` it
  answers plainly with each answer's last token: a fault of the real server's (seen), which clients
  must not run into.
- A stream begins with an event per choice, with the role and no text, before the first token.
- A strict server refuses tools and pictures, as one without tool parser and with a text model does.
  Another one calls a tool once: the named or the first one, with the smallest arguments that fit.
  To the result of the tool it answers with a text. Pictures count as one word.
"""

from __future__ import annotations

from typing import Any

import pydantic_core

from batchclient.simulator.text import Generation, Prompt, pieces, token_id
from batchclient.simulator.validation import (
    CompletionCall,
    Limits,
    bad_request,
    check_fields,
    check_lengths,
    check_sampling,
    invalid,
    parse_json,
    problem,
)
from batchclient.simulator.wire import FINGERPRINT

__all__ = [
    "ChatBatchWriter",
    "ChatCall",
    "ChatWriter",
    "parse_chat",
    "parse_chat_batch",
    "render_messages",
]

_LOGPROB = -0.5
_ROLE_KINDS = (
    "ChatCompletionDeveloperMessageParam.role",
    "ChatCompletionSystemMessageParam.role",
    "ChatCompletionUserMessageParam.role",
    "ChatCompletionAssistantMessageParam.role",
    "ChatCompletionToolMessageParam.role",
    "ChatCompletionToolMessageParam.tool_call_id",
    "ChatCompletionFunctionMessageParam.name",
    "ChatCompletionFunctionMessageParam.role",
    "CustomChatCompletionMessageParam.role",
    "Message.author",
)
"""The fields that the possible forms of a message miss in a message without a role."""
_INTEGERS = ("max_completion_tokens", "top_logprobs")


def render_messages(messages: list[dict[str, Any]], *, generation_prompt: bool = True) -> str:
    """Return the prompt made of a conversation; for tests to compare with."""
    lines = [f"{message['role']}: {_content(message)}\n" for message in messages]
    return "".join(lines) + ("assistant:" if generation_prompt else "")


def _content(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(part.get("text", f"<{part.get('type')}>") for part in content)
    return content if isinstance(content, str) else ""


class ChatCall(CompletionCall):
    """A checked chat request.

    Attributes:
        top_logprobs: the alternatives asked for per token; ``None``: no logprobs at all.
        is_last_token_only: whether the list form was asked to stream.
        messages: the conversations.
        tool: the name of the tool that the answer calls, if it does; the text is its arguments.
    """

    __slots__ = ("is_last_token_only", "messages", "tool", "top_logprobs")

    def __init__(self, fields: dict[str, Any], conversations: list[list[dict[str, Any]]]) -> None:
        wants_prompt = fields.get("add_generation_prompt") is not False
        prompts: list[Prompt] = [render_messages(each, generation_prompt=wants_prompt) for each in conversations]
        super().__init__(fields, prompts)
        self.messages: list[list[dict[str, Any]]] = conversations
        # Completions have other fields by these names.
        self.echo: bool = False
        self.logprobs: int | None = None
        self.top_logprobs: int | None = (fields.get("top_logprobs") or 0) if fields.get("logprobs") else None
        self.is_last_token_only: bool = False
        self.tool: str | None = None

    def call_a_tool(self) -> None:
        """Answer with a call of a tool, unless one has given its result."""
        functions = {each["function"]["name"]: each["function"] for each in self.fields["tools"]}
        choice = self.fields.get("tool_choice")
        if choice == "none" or self.messages[0][-1]["role"] == "tool":
            return
        named = choice["function"]["name"] if isinstance(choice, dict) else next(iter(functions))
        self.tool = named
        self.form_is_free: bool = False
        arguments = functions[named].get("parameters")
        self.fields["structured_outputs"] = {"json": arguments if isinstance(arguments, dict) else {"type": "object"}}

    @property
    def asked_tokens(self) -> int | None:
        """The most tokens of an answer; ``None``: the rest of the context."""
        asked: int | None = self.fields.get("max_completion_tokens")
        return self.fields.get("max_tokens") if asked is None else asked


def parse_chat(body: bytes, limits: Limits) -> ChatCall:
    """Read and check a body of ``/v1/chat/completions``; refuse with vLLM's ``HttpError``."""
    fields = parse_json(body)
    messages = fields.get("messages")
    if "messages" not in fields:
        raise invalid([problem("missing", "body.messages", "Field required", fields)])
    problems = _message_problems(messages, "body.messages")
    if problems:
        raise invalid(problems)
    _check_chat_fields(fields)
    limits.check_model(fields)
    if fields.get("tools") and limits.is_strict:
        # A server started without --enable-auto-tool-choice.
        raise bad_request('"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set')
    if not messages:
        raise bad_request("Cannot apply chat template to an empty conversation. Provide at least one message.")
    call = _checked(ChatCall(fields, [messages]), limits)
    if fields.get("tools"):
        try:
            call.call_a_tool()
        except (KeyError, TypeError):
            raise bad_request("tools or tool_choice name no function", "tools") from None
    return call


def parse_chat_batch(body: bytes, limits: Limits) -> ChatCall:
    """Read and check a body of ``/v1/chat/completions/batch``; refuse with vLLM's ``HttpError``."""
    fields = parse_json(body)
    conversations = fields.get("messages")
    if "messages" not in fields:
        raise invalid([problem("missing", "body.messages", "Field required", fields)])
    if not isinstance(conversations, list):
        raise invalid([problem("list_type", "body.messages", "Input should be a valid list", conversations)])
    problems = [_too_short("body.messages", conversations)] if not conversations else []
    for i, each in enumerate(conversations):
        loc = f"body.messages.{i}"
        if isinstance(each, list) and not each:
            problems.append(_too_short(loc, each))
        else:
            problems += _message_problems(each, loc)
    if problems:
        raise invalid(problems)
    _check_chat_fields(fields)
    if (fields.get("n") or 1) > 1:
        message = "Batch chat completions do not support `n > 1`. Please set `n` to 1."
        raise bad_request(f"{message} (parameter=n, value={fields['n']})", "n")
    if fields.get("use_beam_search"):
        message = (
            "Batch chat completions do not support beam search. Please set `use_beam_search` to False."
            " (parameter=use_beam_search)"
        )
        raise bad_request(message, "use_beam_search")
    limits.check_model(fields)
    call = ChatCall(fields, conversations)
    call.is_last_token_only, call.stream = call.stream, False
    return _checked(call, limits)


def _checked(call: ChatCall, limits: Limits) -> ChatCall:
    if limits.is_strict and any(isinstance(part, dict) and part.get("type") != "text" for part in _parts(call)):
        raise bad_request(f"{limits.model} is not a multimodal model")
    check_sampling(call, call.asked_tokens)
    check_lengths(call, limits, call.asked_tokens)
    return call


def _parts(call: ChatCall) -> list[object]:
    contents = [message.get("content") for each in call.messages for message in each]
    return [part for content in contents if isinstance(content, list) for part in content]


def _check_chat_fields(fields: dict[str, Any]) -> None:
    flag = fields.get("logprobs")
    # For completions ``logprobs`` is a number.
    check_fields({name: value for name, value in fields.items() if name != "logprobs"}, _INTEGERS)
    if flag is not None and type(flag) is not bool:
        message = "Input should be a valid boolean, unable to interpret input"
        raise invalid([problem("bool_parsing", "body.logprobs", message, flag)])
    if fields.get("top_logprobs") and not flag:
        message = "when using `top_logprobs`, `logprobs` must be set to true. (parameter=top_logprobs)"
        raise bad_request(message, "top_logprobs")


def _message_problems(messages: object, loc: str) -> list[tuple[str, str]]:
    if not isinstance(messages, list):
        return [problem("list_type", loc, "Input should be a valid list", messages)]
    problems: list[tuple[str, str]] = []
    for i, message in enumerate(messages):
        at = f"{loc}.{i}"
        if not isinstance(message, dict):
            problems.append(problem("model_attributes_type", at, "Input should be a valid dictionary", message))
        elif not isinstance(message.get("role"), str):
            problems += [problem("missing", f"{at}.{kind}", "Field required", message) for kind in _ROLE_KINDS]
            problems.append(problem("missing", f"{at}.Message.role", "Field required", message))
    return problems


def _too_short(loc: str, value: list[object]) -> tuple[str, str]:
    message = "List should have at least 1 item after validation, not 0"
    context = {"field_type": "List", "min_length": 1, "actual_length": 0}
    return problem("too_short", loc, message, value, context)


# Replies -----------------------------------------------------------------------------------------------------------


def _json(value: object) -> str:
    return pydantic_core.to_json(value).decode()


class ChatWriter:
    """Writes a chat request's reply; see ``wire.ReplyWriter``."""

    __slots__ = ("_call", "_chunk_head", "_head", "_is_begun", "reply_id")

    def __init__(self, call: CompletionCall, reply_id: str, created_s: int, model: str) -> None:
        assert isinstance(call, ChatCall), "a chat route parses chat calls"
        self._call = call
        self.reply_id: str = reply_id
        self._is_begun = False

        def head(kind: str) -> str:
            return (
                f'{{"id":{_json(reply_id)},"object":"{kind}","created":{created_s},"model":{_json(model)},"choices":['
            )

        self._head = head("chat.completion")
        self._chunk_head = head("chat.completion.chunk")

    # --- plain ---

    def choice(self, index: int, generation: Generation) -> str:
        """Return a finished choice of a plain reply."""
        call = self._call
        text = generation.text
        if call.is_last_token_only:
            text = generation.text[len(generation.text_after(generation.tokens - 1)) if generation.tokens > 1 else 0 :]
        logprobs = ids = "null"
        if call.top_logprobs is not None:
            logprobs = _json(self._logprobs(generation, 0, generation.tokens))
        if call.return_token_ids:
            ids = _json([token_id(each) for each in generation.pieces()])
        stop_reason = "null" if generation.stop_reason is None else _json(generation.stop_reason)
        content, calls = _json(text), ""
        if call.tool is not None:
            content, calls = "null", f'"tool_calls":{_json([self._tool_call(index, text)])},'
        return (
            f'{{"index":{index},"message":{{"role":"assistant","content":{content},{calls}"refusal":null,'
            '"annotations":null,"audio":null,"function_call":null,"reasoning":null},'
            f'"logprobs":{logprobs},"finish_reason":"{self._finish(generation)}","stop_reason":{stop_reason},'
            f'"token_ids":{ids},"routed_experts":null}}'
        )

    def body(self, choices: list[str], completion_tokens: int) -> bytes:
        """Return a whole plain reply."""
        call = self._call
        if call.is_last_token_only:
            completion_tokens = len(choices)
        usage = _usage(sum(call.prompt_tokens), completion_tokens)
        return (
            f'{self._head}{",".join(choices)}],"service_tier":null,"system_fingerprint":"{FINGERPRINT}",'
            f'"usage":{{{usage},"prompt_tokens_details":null,"completion_tokens_details":null}},'
            f'"prompt_logprobs":null,"prompt_token_ids":{self._prompt_ids()},"prompt_text":null,'
            '"kv_transfer_params":null,"ec_transfer_params":null,"metrics":null}'
        ).encode()

    def _prompt_ids(self) -> str:
        if not self._call.return_token_ids:
            return "null"
        prompt = self._call.prompts[0]
        assert isinstance(prompt, str), "a conversation is rendered to a text"
        return _json([token_id(each) for each in pieces(prompt)])

    # --- streamed ---

    def event(self, index: int, generation: Generation, before: int, after: int) -> bytes:
        """Return a choice's event for some tokens; the very first event begins with all roles."""
        call = self._call
        opening = b""
        if not self._is_begun:
            self._is_begun = True
            opening = b"".join(self._role_event(choice) for choice in range(call.n))
        text = generation.text_after(after)[len(generation.text_after(before)) if before else 0 :]
        finish, logprobs, ids, stop_reason = "null", "null", "null", ""
        if after >= generation.tokens:
            finish = f'"{self._finish(generation)}"'
            said = "null" if generation.stop_reason is None else _json(generation.stop_reason)
            stop_reason = f'"stop_reason":{said},'
        if call.top_logprobs is not None:
            logprobs = _json(self._logprobs(generation, before, after))
        if call.return_token_ids:
            ids = _json([token_id(each) for each in generation.pieces()[before:after]])
        delta: dict[str, object] = {"content": text}
        if call.tool is not None:
            # The name stands in the first event of the call alone.
            piece = {"function": {"arguments": text}} if before else self._tool_call(index, text)
            delta = {"tool_calls": [{"index": 0, **piece}]}
        choice = (
            f'{{"index":{index},"delta":{_json(delta)},"logprobs":{logprobs},"finish_reason":{finish},'
            f'{stop_reason}"token_ids":{ids}}}'
        )
        is_very_last = after >= generation.tokens and not call.include_usage
        fingerprint = f',"system_fingerprint":"{FINGERPRINT}"' if is_very_last else ""
        return opening + self._chunk(choice, fingerprint + self._usage_so_far(after))

    def _tool_call(self, index: int, arguments: str) -> dict[str, object]:
        function = {"name": self._call.tool, "arguments": arguments}
        return {"id": f"call_{self.reply_id}-{index}", "type": "function", "function": function}

    def _finish(self, generation: Generation) -> str:
        called = self._call.tool is not None and generation.finish_reason == "stop"
        return "tool_calls" if called else generation.finish_reason

    def usage_event(self, completion_tokens: int) -> bytes:
        """Return the chunk with the total usage, for ``include_usage``."""
        usage = _usage(sum(self._call.prompt_tokens), completion_tokens)
        return self._chunk("", f',"usage":{{{usage}}},"system_fingerprint":"{FINGERPRINT}"')

    def _role_event(self, index: int) -> bytes:
        choice = f'{{"index":{index},"delta":{{"role":"assistant","content":""}},"logprobs":null,"finish_reason":null}}'
        tail = f',"prompt_token_ids":{self._prompt_ids()},"prompt_text":null'
        return self._chunk(choice, self._usage_so_far(0) + tail)

    def _chunk(self, choice: str, tail: str) -> bytes:
        return f"data: {self._chunk_head}{choice}]{tail}}}\n\n".encode()

    def _usage_so_far(self, tokens: int) -> str:
        if not self._call.continuous_usage:
            return ""
        return f',"usage":{{{_usage(self._call.prompt_tokens[0], tokens)},"completion_tokens_details":null}}'

    def _logprobs(self, generation: Generation, before: int, after: int) -> dict[str, object]:
        """Return logprobs in chat's form, with made-up figures."""
        wanted = self._call.top_logprobs or 0
        entries = []
        for piece in generation.pieces()[before:after]:
            own = {"token": piece, "logprob": _LOGPROB, "bytes": list(piece.encode())}
            others = [
                {"token": f" alt{k}", "logprob": _LOGPROB - k, "bytes": list(f" alt{k}".encode())}
                for k in range(1, wanted)
            ]
            entries.append({**own, "top_logprobs": [own, *others][:wanted]})
        return {"content": entries}


class ChatBatchWriter(ChatWriter):
    """Writes the list form's reply: a choice per conversation, and nobody's prompt token ids."""

    __slots__ = ()

    def _prompt_ids(self) -> str:
        return "null"


def _usage(prompt_tokens: int, completion_tokens: int) -> str:
    return (
        f'"prompt_tokens":{prompt_tokens},"total_tokens":{prompt_tokens + completion_tokens},'
        f'"completion_tokens":{completion_tokens}'
    )
