"""The language of a scripted server: vLLM's, by the embedded server's own parsers and writers.

Rules:
- Completions, chats, lists of chats and embeddings are read leniently: any model, tools, images and
  ``dimensions`` are taken. A malformed body is refused in vLLM's words, as by the embedded
  server.
- The other routes of vLLM's pooling runner (score, rerank, classify) are the embedded server's,
  with the embedded server's own figures.
- A stream sends a choice's pieces as ``stream_interval`` says, as the real server: the first alone.
- A reply is decided whole, before its first byte: nothing here knows time.
"""

from __future__ import annotations

from array import array
from base64 import b64encode
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import pydantic_core

from batchclient.simulator.chat import ChatCall, ChatWriter, _message_problems
from batchclient.simulator.exchange import _STATUS_TEXTS, JSON_HEADERS
from batchclient.simulator.guise import Route, Writer
from batchclient.simulator.pooling import EmbeddingWriter, PoolingCall, check_inputs
from batchclient.simulator.structured import WrittenGeneration, demanded_text
from batchclient.simulator.text import END_OF_TEXT, Generation, Prompt, count_tokens, generate, prompt_digest
from batchclient.simulator.validation import (
    CompletionCall,
    Limits,
    bad_request,
    check_sampling,
    error_body,
    invalid,
    parse_completion,
    parse_json,
    problem,
)
from batchclient.simulator.vectors import DIMENSIONS, vector_of
from batchclient.simulator.vllm import VLLM
from batchclient.simulator.wire import ReplyWriter
from batchclient.testing._answers import Answer, Fault

__all__ = ["Reply", "Spoken", "error_reply", "fault_reply", "read", "unscripted", "write"]

_LONGEST_TOKENS = 100_000_000
"""No prompt is too long for a test's server, and no answer."""
_SSE_HEADERS = (("content-type", "text/event-stream; charset=utf-8"),)
_KINDS = {"embeddings": "embedding", "score": "score", "rerank": "rerank", "classify": "classify"}


@dataclass(slots=True)
class Reply:
    """The reply to one request.

    Args:
        status: HTTP status; 0: no reply at all.
        headers: of the reply.
        pieces: of the body.
        delay_s: before the first byte, seconds; infinity: for ever.
        fault: ``""``, ``"time_out"``, ``"disconnect"``, ``"refuse"``, or ``"cut"``: broken off
            after the pieces.
    """

    status: int = 0
    headers: tuple[tuple[str, str], ...] = ()
    pieces: list[bytes] = field(default_factory=list)
    delay_s: float = 0.0
    fault: str = ""


@dataclass(slots=True)
class Spoken:
    """One request as it was understood.

    Args:
        kind: of the request's calls.
        body: the request's fields.
        prompts: as rules see them, one per call.
        conversations: of chats, one per call.
        call: as the writers see the request.
        route: the route whose writer answers; ``None``: a writer of this module answers.
    """

    kind: str
    body: dict[str, Any]
    prompts: list[Prompt]
    conversations: list[list[dict[str, Any]]]
    call: CompletionCall
    route: Route | None = None


# Requests ------------------------------------------------------------------------------------------------------------


def read(path: str, raw: bytes, model: str) -> Spoken | None:
    """Read a request; ``None``: the path takes no prompts.

    Args:
        path: from ``/v1`` on, or from the root.
        raw: the body.
        model: the served name where a request names none.

    Raises:
        HttpError: the body is no request; the error carries vLLM's answer.
    """
    reader = _READERS.get(path)
    if reader is not None:
        return reader(parse_json(raw), model)
    route = VLLM.routes.get(path)
    if route is None:
        return None
    fields = parse_json(raw)
    call = route.parse(raw, Limits(fields.get("model") or model, _LONGEST_TOKENS))
    return Spoken(_KINDS[path.rpartition("/")[2]], fields, call.prompts, [], call, route)


def _read_completion(fields: dict[str, Any], model: str) -> Spoken:
    call = parse_completion(pydantic_core.to_json(fields), Limits(fields.get("model") or model, _LONGEST_TOKENS, 10**6))
    call.form_is_free = False  # so that texts are escaped
    return Spoken("completion", fields, call.prompts, [], call)


def _read_chat(fields: dict[str, Any], model: str) -> Spoken:
    del model
    messages = fields.get("messages")
    if "messages" not in fields:
        raise invalid([problem("missing", "body.messages", "Field required", fields)])
    return _chats(fields, [messages])


def _read_chats(fields: dict[str, Any], model: str) -> Spoken:
    del model
    conversations = fields.get("messages")
    if not isinstance(conversations, list) or not conversations:
        raise invalid([problem("list_type", "body.messages", "Input should be a valid list", conversations)])
    spoken = _chats(fields, conversations)
    # vLLM's list form does not stream.
    spoken.call.stream = False
    return spoken


def _chats(fields: dict[str, Any], conversations: list[Any]) -> Spoken:
    problems = [each for messages in conversations for each in _message_problems(messages, "body.messages")]
    if problems:
        raise invalid(problems)
    if not all(conversations):
        raise bad_request("Cannot apply chat template to an empty conversation. Provide at least one message.")
    call = ChatCall(fields, conversations)
    check_sampling(call, call.asked_tokens)
    call.prompt_tokens = [count_tokens(prompt) for prompt in call.prompts]
    prompts: list[Prompt] = [_last_text(messages) for messages in conversations]
    return Spoken("chat", fields, prompts, conversations, call)


def _last_text(messages: list[dict[str, Any]]) -> str:
    content = messages[-1].get("content")
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content if isinstance(part, dict) and "text" in part)
    return content if isinstance(content, str) else ""


def _read_embedding(fields: dict[str, Any], model: str) -> Spoken:
    prompts = check_inputs(fields)
    if not prompts:
        raise bad_request("You must pass at least one prompt")
    call = PoolingCall(fields, prompts, Limits(fields.get("model") or model, _LONGEST_TOKENS))
    return Spoken("embedding", fields, prompts, [], call)


_READERS: dict[str, Callable[[dict[str, Any], str], Spoken]] = {
    "/v1/completions": _read_completion,
    "/v1/chat/completions": _read_chat,
    "/v1/chat/completions/batch": _read_chats,
    "/v1/embeddings": _read_embedding,
}


# Replies -------------------------------------------------------------------------------------------------------------


def unscripted(prompt: Prompt, fields: dict[str, Any]) -> Answer:
    """The answer to a prompt without a rule.

    The answer repeats the prompt, or is the smallest JSON that fits the demanded form.
    """
    demanded = demanded_text(fields, prompt_digest(prompt))
    if demanded is not None:
        return Answer(demanded)
    return Answer(f"mock answer to: {prompt if isinstance(prompt, str) else ' '.join(map(str, prompt))}")


def write(spoken: Spoken, answers: Sequence[Answer], reply_id: int, created_s: int, model: str) -> Reply:
    """Write the reply with the answers, one per call."""
    model = spoken.body.get("model") or model
    call = spoken.call
    generations = [
        _ScriptedGeneration(answer, f"call_{reply_id}_{place}")
        for place, answer in enumerate(answers)
        for _ in range(call.n)
    ]
    writer: Writer
    if spoken.route is not None:
        writer = spoken.route.writer(call, f"mock-{reply_id}", created_s, model)
        generations = [generate("", 1) for _ in call.prompts]  # type: ignore[misc]  # such a writer looks at none
    elif spoken.kind == "chat":
        writer = _ChatWriter(call, f"chatcmpl-{reply_id}", created_s, model)
    elif spoken.kind == "embedding":
        writer = _VectorWriter(call, f"embd-{reply_id}", created_s, model)
        writer.vectors = [answer.vector for answer in answers]
    else:
        writer = ReplyWriter(call, f"cmpl-{reply_id}", created_s, model)
    delay_s = max((answer.delay_s for answer in answers), default=0.0)
    tokens = sum(each.tokens for each in generations)
    if not call.stream:
        body = writer.body([writer.choice(index, each) for index, each in enumerate(generations)], tokens)
        return Reply(200, JSON_HEADERS, [body], delay_s)
    events = _events(writer, generations, call.stream_interval)
    if call.include_usage:
        events.append(writer.usage_event(tokens))
    return Reply(200, _SSE_HEADERS, [*events, b"data: [DONE]\n\n"], delay_s)


def _events(writer: Writer, generations: Sequence[Generation], interval: int) -> list[bytes]:
    """The choices' events in turns, as from a server that generates the choices together."""
    events = []
    sent = [0] * len(generations)
    while any(before < each.tokens for before, each in zip(sent, generations, strict=True)):
        for index, each in enumerate(generations):
            before = sent[index]
            if before < each.tokens:
                sent[index] = min(each.tokens, before + interval if before else 1)
                events.append(writer.event(index, each, before, sent[index]))
    return events


def fault_reply(fault: Fault, reply: Reply | None) -> Reply:
    """A fault's reply; the fault ``cut`` breaks ``reply`` off."""
    if fault.kind == "status":
        words, kind = _STATUS_TEXTS.get(fault.status, _other_words(fault.status))
        headers = JSON_HEADERS
        if fault.retry_after_s is not None:
            headers += (("retry-after", f"{fault.retry_after_s:g}"),)
        return error_reply(fault.status, fault.message or words, kind, headers, fault.delay_s)
    if fault.kind == "cut" and reply is not None:
        whole = b"".join(reply.pieces)
        return Reply(reply.status, reply.headers, [whole[: len(whole) // 2]], fault.delay_s, "cut")
    return Reply(delay_s=fault.delay_s, fault="time_out" if fault.kind == "hang" else fault.kind)


def _other_words(status: int) -> tuple[str, str]:
    return "The request failed by order of a test.", "BadRequestError" if status < 500 else "InternalServerError"


def error_reply(
    status: int, message: str, kind: str, headers: tuple[tuple[str, str], ...] = JSON_HEADERS, delay_s: float = 0.0
) -> Reply:
    """An error as vLLM writes it."""
    return Reply(status, headers, [error_body(message, kind, status)], delay_s)


class _ScriptedGeneration(WrittenGeneration):
    """An answer as it was scripted, tools and all."""

    __slots__ = ("call_id", "tool_calls")

    def __init__(self, answer: Answer, call_id: str) -> None:
        super().__init__(answer.text, _LONGEST_TOKENS)
        if answer.pieces:
            self._pieces = [*answer.pieces, END_OF_TEXT]
            self.tokens = len(self._pieces)
        if answer.finish_reason is not None or answer.tool_calls:
            self.finish_reason = answer.finish_reason or "tool_calls"
        self.tool_calls = answer.written_tool_calls
        self.call_id = call_id


def _json(value: object) -> str:
    return pydantic_core.to_json(value).decode()


class _ChatWriter(ChatWriter):
    """The embedded server's writer, extended by calls of tools."""

    __slots__ = ()

    def choice(self, index: int, generation: Generation) -> str:
        plain = super().choice(index, generation)
        calls = self._calls_of(generation)
        if not calls:
            return plain
        shown = pydantic_core.from_json(plain)
        shown["message"] |= {"content": generation.text or None, "tool_calls": calls}
        return _json(shown)

    def event(self, index: int, generation: Generation, before: int, after: int) -> bytes:
        calls = self._calls_of(generation)
        if not calls or after < generation.tokens:
            return super().event(index, generation, before, after)
        opening = b""
        if not self._is_begun:
            self._is_begun = True
            opening = b"".join(self._role_event(choice) for choice in range(self._call.n))
        return opening + b"".join(self._tool_events(index, calls)) + super().event(index, generation, before, after)

    @staticmethod
    def _calls_of(generation: Generation) -> list[dict[str, Any]]:
        assert isinstance(generation, _ScriptedGeneration)
        return [
            {"id": f"{generation.call_id}_{place}", "type": "function", "function": {"name": name, "arguments": text}}
            for place, (name, text) in enumerate(generation.tool_calls)
        ]

    def _tool_events(self, index: int, calls: list[dict[str, Any]]) -> list[bytes]:
        """Each call's name, then its arguments in two pieces."""
        events = []
        for place, call in enumerate(calls):
            text = call["function"]["arguments"]
            named = call | {"index": place, "function": {"name": call["function"]["name"], "arguments": ""}}
            halves = [text[: len(text) // 2], text[len(text) // 2 :]]
            for fragment in (named, *({"index": place, "function": {"arguments": half}} for half in halves)):
                choice = {"index": index, "delta": {"tool_calls": [fragment]}, "logprobs": None, "finish_reason": None}
                events.append(self._chunk(_json(choice), self._usage_so_far(0)))
        return events


class _VectorWriter(EmbeddingWriter):
    """The embedded server's writer, with the scripted vectors."""

    vectors: Sequence[tuple[float, ...]] = ()

    def _item(self, index: int) -> dict[str, Any]:
        # All vectors of a reply are equally long.
        longest = max(map(len, self.vectors)) or self._call.body.get("dimensions") or DIMENSIONS
        vector = list(self.vectors[index]) or vector_of(self._call.prompts[index], longest).tolist()
        packed = self._call.body.get("encoding_format") == "base64"
        shown: object = b64encode(array("f", vector).tobytes()).decode() if packed else vector
        return {"index": index, "object": "embedding", "embedding": shown}
