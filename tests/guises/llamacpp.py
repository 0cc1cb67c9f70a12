"""llama-server (llama.cpp): its own ``/completion`` with lists, and OpenAI's ``/v1/completions``.

Rules (``tools/server/README.md``, ``server-context.cpp``; seen on a running server):
- As many sequences run as there are slots; the rest wait, without any bound.
- ``/completion``: a list's answers are an array, each with its own counts; ``n_predict`` is endless
  unless given; ``temperature`` is 0.8.
- ``/v1/completions``: the usage is the first prompt's; ``echo`` is ignored; ``logprobs`` have
  chat's shape.
- Thinking is held to ``thinking_budget_tokens`` in chats. The other routes have to be told the tags, and
  count from a ``<think>`` that the model writes, or that stands in ``generation_prompt``.
- The likeliest tokens are told with their ids, as many as are asked for. Here those that were tokenized before are a
  vocabulary, if 64 or more are asked for.
- ``/apply-template`` writes a conversation as a text, and goes on with an answer that is the last.
- No model name is checked. A stream's first event is ``data: null``; ``/completion`` ends a stream
  without ``[DONE]``.
- A body that is no JSON is a 500, though the client is at fault.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from batchclient.simulator.guise import Guise, Reply, Route, ServerView, json_reply
from batchclient.simulator.replies import ChatWriter, EmbeddingWriter, OpenAIWriter, RankWriter, Writer, usage
from batchclient.simulator.requests import (
    Body,
    Call,
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    HttpError,
    Limits,
    RankRequest,
    Sampling,
    read,
    render_messages,
)
from batchclient.simulator.text import Generation, Prompt, pieces, token_id, token_ids
from batchclient.simulator.vectors import logprobs_of
from tests.guises.parts import fitted, json_handler, metrics_handler, openai_models

__all__ = ["LLAMACPP"]

_SLOTS = 4
_BUILD = "b1-0c1e570"
_DEFAULT_TEMPERATURE = 0.8
_LOGPROB = -0.5
_MANY = 64
_VOCABULARY: dict[int, str] = {}
"""What was tokenized here, by id."""
_TOO_LONG = "exceed_context_size_error"
_KINDS = {401: "authentication_error", 404: "not_found_error", 500: "server_error", 503: "unavailable_error"}


def _error(status: int, message: str, kind: str = "", **more: int) -> dict[str, object]:
    kind = kind or _KINDS.get(status, "invalid_request_error")
    return {"error": {"code": status, "message": message, "type": kind} | more}


def _words(error: HttpError) -> Reply:
    if error.kind == "Bad Request" and error.param == "body":
        return json_reply(_error(500, "[json.exception.parse_error.101] parse error"), 500)
    message = error.message or "The request failed by order."
    if error.kind == _TOO_LONG:
        tokens, longest = map(int, (error.param or "").split("/"))
        return json_reply(_error(400, message, _TOO_LONG, n_prompt_tokens=tokens, n_ctx=longest), 400)
    return json_reply(_error(error.status, message), error.status)


def _prompts(prompt: object) -> tuple[list[Prompt], bool]:
    """Return a body's prompts, and whether they are a list: ``[12, 34]`` is a single prompt."""
    if isinstance(prompt, str):
        return [prompt], False
    if not isinstance(prompt, list):
        message = '"prompt" must be a string, an list of tokens, a list of mixed strings & tokens, or a list of prompts'
        raise HttpError(400, message)
    if not prompt:
        raise HttpError(400, '"prompt" must not be empty')
    if _are_ids(prompt):
        return [prompt], False
    if not all(isinstance(each, str) or (isinstance(each, list) and _are_ids(each)) for each in prompt):
        raise HttpError(400, "a prompt is a text or token ids; mixed ones are not simulated")
    return prompt, True


def _are_ids(given: list[Any]) -> bool:
    return all(type(each) is int for each in given)


def _fitted(sampling: Sampling, prompts: list[Prompt], limits: Limits) -> Call:
    if sampling.temperature is None:
        sampling.temperature = _DEFAULT_TEMPERATURE
    asked, longest = sampling.max_tokens, limits.max_model_len_tokens

    def words(tokens: int) -> str:
        return f"request ({tokens} tokens) exceeds the available context size ({longest} tokens), try increasing it"

    return fitted(sampling, prompts, [-1 if asked is None else asked] * len(prompts), longest, words, sampling)


class _Budgeted(Sampling):
    reasoning_budget_tokens: Annotated[int, Field(ge=-1)] = -1
    reasoning_budget_start_tag: str | None = None
    reasoning_budget_end_tags: list[str] | None = None
    reasoning_budget_message: str | None = None
    generation_prompt: str = ""

    def thinking_budget(self, limits: Limits) -> int | None:
        """Hold a budget, unless something is missing, or the prompt alone begins the thinking."""
        told = (self.reasoning_budget_start_tag, self.reasoning_budget_end_tags, self.reasoning_budget_message)
        begun = any(str(prompt).rfind("<think>") > str(prompt).rfind("</think>") for prompt in _prompts(self.prompt)[0])
        is_held = None not in told and (not begun or "<think>" in self.generation_prompt)
        return self.reasoning_budget_tokens if is_held and self.reasoning_budget_tokens >= 0 else None

    prompt: Any = None


class _Native(_Budgeted):
    """``/completion``."""

    max_tokens: Annotated[int | None, Field(alias="n_predict")] = None
    repetition_penalty: Annotated[float | None, Field(alias="repeat_penalty")] = None
    n_probs: int | None = None
    return_tokens: bool | None = None

    def call(self, limits: Limits) -> Call:
        prompts, _ = _prompts(self.prompt)
        self.seed = None if self.seed == -1 else self.seed
        return _fitted(self, prompts, limits)


class _Completion(_Budgeted, CompletionRequest):
    """``/v1/completions``: only heeded fields are checked, and ``echo`` is ignored."""

    def call(self, limits: Limits) -> Call:
        prompts, _ = _prompts(self.prompt)
        self.echo = None
        call = _fitted(self, prompts, limits)
        call.stream_interval = 1
        return call


class _Chat(ChatRequest):
    thinking_budget_tokens: int = -1
    reasoning_budget_tokens: int | None = None

    def generating(self, prompts: list[Prompt], limits: Limits, logprobs: int | None, asked: int | None) -> Call:
        """Take any number of logprobs."""
        return super().generating(prompts, limits, None, asked)

    def thinking_budget(self, limits: Limits) -> int | None:
        budgets = (self.reasoning_budget_tokens, self.thinking_budget_tokens)
        return next((each for each in budgets if each is not None and each >= 0), None)


class _ChatWriter(ChatWriter):
    REASONING = "reasoning_content"

    def reasoning_usage(self, tokens: int) -> dict[str, Any]:
        """Reasoning is not counted."""
        return {}

    def _logprobs(self, index: int, generation: Generation, before: int, after: int) -> dict[str, object] | None:
        made = super()._logprobs(index, generation, before, after)
        wanted = self._top_logprobs
        if made is not None and wanted is not None and wanted >= _MANY:
            tops = _likeliest(self.call.prompts[index // self.call.n], wanted)
            made["content"] = [
                _prob(piece, _LOGPROB) | {"top_logprobs": tops} for piece in generation.pieces[before:after]
            ]
        return made


class _Tokenize(Body):
    content: str = ""


class _Template(Body):
    messages: list[dict[str, Any]]


class _NativeWriter(Writer):
    """Writes replies of ``/completion``."""

    def choice(self, index: int, generation: Generation) -> dict[str, Any]:
        return self._end(index, generation) | {"content": generation.text, **self._tokens(index, generation, 0)}

    def body(self, choices: list[dict[str, Any]], completion_tokens: int) -> object:
        request = self.call.request
        assert isinstance(request, _Native)
        return choices if _prompts(request.prompt)[1] or len(choices) != 1 else choices[0]

    def events(self, index: int, generation: Generation, before: int, after: int) -> list[dict[str, Any]]:
        item: dict[str, Any] = {
            "index": index,
            "content": generation.text_between(before, after),
            "stop": False,
            "id_slot": index % _SLOTS,
            "tokens_predicted": after,
            "tokens_evaluated": self.call.prompt_tokens[index // self.call.n],
            **self._tokens(index, generation, before, after),
        }
        # The end is an event of its own, without text.
        end = {**self._end(index, generation), "content": "", "tokens": []}
        return [item, end] if after >= generation.tokens else [item]

    def _tokens(self, index: int, generation: Generation, before: int, after: int | None = None) -> dict[str, Any]:
        request = self.call.request
        assert isinstance(request, _Native)
        own = generation.pieces[before:after]
        made: dict[str, Any] = {"tokens": [token_id(piece) for piece in own] if request.return_tokens else []}
        if request.n_probs:
            others = [_prob(f" alt{k}", _LOGPROB - k) for k in range(1, request.n_probs)]
            probs = [_prob(piece, _LOGPROB) for piece in own]
            tops = (
                _likeliest(self.call.prompts[index // self.call.n], request.n_probs) if request.n_probs >= _MANY else []
            )
            made["completion_probabilities"] = [prob | {"top_logprobs": tops or [prob, *others]} for prob in probs]
        return made

    def _end(self, index: int, generation: Generation) -> dict[str, Any]:
        kind = {"length": "limit", "abort": "none"}.get(generation.finish_reason, "eos")
        return {
            "index": index,
            "id_slot": index % _SLOTS,
            "stop": True,
            "model": self.model,
            "tokens_predicted": generation.tokens,
            "tokens_evaluated": self.call.prompt_tokens[index // self.call.n],
            "generation_settings": {},
            "prompt": "",
            "truncated": False,
            "stop_type": "word" if generation.stop_reason is not None else kind,
            "stopping_word": generation.stop_reason or "",
            "tokens_cached": 0,
        }


def _prob(piece: str, value: float) -> dict[str, object]:
    return {"id": token_id(piece), "token": piece, "bytes": list(piece.encode()), "logprob": value}


def _likeliest(prompt: Prompt, most: int) -> list[dict[str, object]]:
    numbers = zip(logprobs_of(prompt, [*_VOCABULARY]), _VOCABULARY.values(), strict=True)
    return [_prob(piece, number) for number, piece in sorted(numbers, reverse=True)[:most]]


class _OpenAIWriter(OpenAIWriter):
    """Writes ``/v1/completions``: chat's logprobs, and usage of the first prompt's first choice."""

    first_tokens = 0

    def piece(self, index: int, generation: Generation, before: int, after: int) -> dict[str, Any]:
        if index == 0 and after >= generation.tokens:
            self.first_tokens = generation.tokens
        made = super().piece(index, generation, before, after)
        legacy = made["logprobs"]
        if legacy is not None:
            entries = zip(legacy["tokens"], legacy["token_logprobs"], legacy["top_logprobs"], strict=True)
            made["logprobs"] = {
                "content": [
                    {
                        "token": token,
                        "logprob": logprob,
                        "top_logprobs": [{"token": other, "logprob": value} for other, value in top.items()],
                    }
                    for token, logprob, top in entries
                ]
            }
        return made

    def body(self, choices: list[dict[str, Any]], completion_tokens: int) -> object:
        return {**self.head, "choices": choices, "usage": usage(self.call.prompt_tokens[0], self.first_tokens)}

    def events(self, index: int, generation: Generation, before: int, after: int) -> list[dict[str, Any]]:
        (event,) = super().events(index, generation, before, after)
        return [event | {"usage": self.own_usage(index, after)} if after >= generation.tokens else event]

    def usage_events(self, completion_tokens: int) -> list[dict[str, Any]]:
        return []


def _tokenize(server: ServerView, body: bytes) -> Reply:
    content = read(_Tokenize, body, server.limits).content
    _VOCABULARY.update(zip(token_ids(content), pieces(content), strict=True))
    return json_reply({"tokens": token_ids(content)})


def _apply_template(server: ServerView, body: bytes) -> Reply:
    messages = read(_Template, body, server.limits).messages
    begun = messages.pop()["content"] if messages[-1]["role"] == "assistant" else ""
    return json_reply({"prompt": render_messages(messages) + begun})


def _props(server: ServerView) -> dict[str, object]:
    return {
        "default_generation_settings": {
            "id": 0,
            "n_ctx": server.limits.max_model_len_tokens,
            "params": {"n_predict": -1},
        },
        "total_slots": server.profile.max_num_seqs,
        "model_alias": server.model,
        "model_path": f"{server.model}.gguf",
        "modalities": {"vision": False, "audio": False},
        "chat_template": "",
        "bos_token": "",
        "eos_token": "",
        "build_info": _BUILD,
        "is_sleeping": False,
    }


def _slots(server: ServerView) -> list[dict[str, object]]:
    longest, running = server.limits.max_model_len_tokens, server.engine.running
    slots = range(server.profile.max_num_seqs)
    return [{"id": slot, "n_ctx": longest, "is_processing": slot < running} for slot in slots]


def _metrics(server: ServerView) -> dict[str, float]:
    engine = server.engine
    return {
        "llamacpp:prompt_tokens_total": engine.prompt_tokens,
        "llamacpp:tokens_predicted_total": engine.generation_tokens,
        "llamacpp:requests_processing": engine.running,
        "llamacpp:requests_deferred": engine.waiting,
        "llamacpp:n_busy_slots_per_decode": engine.running,
    }


_OPENING = b"data: null\n\n"
LLAMACPP = Guise(
    "llamacpp",
    {
        "/completion": Route(_Native, _NativeWriter, id_prefix="", done=b"", opening=_OPENING),
        "/v1/completions": Route(_Completion, _OpenAIWriter, id_prefix="chatcmpl-", opening=_OPENING),
        "/v1/chat/completions": Route(_Chat, _ChatWriter, id_prefix="chatcmpl-"),
        "/v1/embeddings": Route(EmbeddingRequest, EmbeddingWriter, id_prefix=""),
        "/v1/rerank": Route(RankRequest, RankWriter, id_prefix=""),
        "/rerank": Route(RankRequest, RankWriter, id_prefix=""),
    },
    _words,
    {
        ("GET", "/health"): json_handler(lambda _: {"status": "ok"}),
        ("POST", "/tokenize"): _tokenize,
        ("POST", "/apply-template"): _apply_template,
        ("GET", "/v1/health"): json_handler(lambda _: {"status": "ok"}),
        ("GET", "/v1/models"): openai_models(
            "llamacpp", meta=lambda server: {"n_ctx": server.limits.max_model_len_tokens, "n_ctx_train": 131_072}
        ),
        ("GET", "/props"): json_handler(_props),
        ("GET", "/slots"): json_handler(_slots),
        ("GET", "/metrics"): metrics_handler(_metrics),
    },
    unauthorized=json_reply(_error(401, "Invalid API Key")).body,
    not_found=json_reply(_error(404, "File Not Found")).body,
    any_model=True,
    slots=_SLOTS,
)
