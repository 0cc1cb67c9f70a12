"""llama-server (llama.cpp): its own ``/completion`` with lists, and OpenAI's ``/v1/completions``.

Rules (``tools/server/README.md``, ``server-context.cpp``; seen on a running server):
- As many sequences run as there are slots; the rest wait, without any bound.
- ``/completion``: a list's answers are an array, each with its own counts; ``n_predict`` is endless
  unless given; ``temperature`` is 0.8.
- ``/v1/completions``: the usage is the first prompt's; ``echo`` is ignored; ``logprobs`` have
  chat's shape.
- No model name is checked. A stream's first event is ``data: null``; ``/completion`` ends a stream
  without ``[DONE]``.
- A body that is no JSON is a 500, though the client is at fault.
"""

from __future__ import annotations

from typing import Any

import pydantic_core

from batchclient.simulator.chat import ChatWriter
from batchclient.simulator.exchange import JSON_HEADERS
from batchclient.simulator.guise import Guise, Route, Served
from batchclient.simulator.guise_parts import (
    OpenAIWriter,
    any_chat,
    check_prompts,
    json_page,
    metrics_page,
    openai_models,
    read_object,
    restated,
    texts_of,
    to_json,
    token_ids,
)
from tests.guises.parts import any_embedding, any_model, any_rerank
from batchclient.simulator.pooling import EmbeddingWriter, RankWriter
from batchclient.simulator.text import Generation, Prompt, token_id
from batchclient.simulator.validation import CompletionCall, HttpError, Limits, is_ids

__all__ = ["LLAMACPP"]

_SLOTS = 4
_BUILD = "b1-0c1e570"
_DEFAULT_TEMPERATURE = 0.8
_NAMES = {"n_predict": "max_tokens", "repeat_penalty": "repetition_penalty"}
"""By llama.cpp's name: OpenAI's or vLLM's name of the field."""
_LOGPROB = -0.5


def _refusal(status: int, message: str, kind: str = "invalid_request_error", **more: int) -> HttpError:
    return HttpError(
        status, pydantic_core.to_json({"error": {"code": status, "message": message, "type": kind} | more})
    )


def _words(_status: int, message: str) -> HttpError:
    if message == "the body is not JSON":
        return _refusal(500, "[json.exception.parse_error.101] parse error", "server_error")
    return _refusal(400, message)


class _CompletionCall(CompletionCall):
    __slots__ = ("is_list", "wanted_probs")

    def __init__(self, fields: dict[str, Any], prompts: list[Prompt], *, is_list: bool) -> None:
        super().__init__(fields, prompts)
        self.is_list = is_list
        self.wanted_probs = int(fields.get("n_probs") or 0)


def _prompts(prompt: object) -> tuple[list[Prompt], bool]:
    """Return a body's prompts, and whether they are a list: ``[12, 34]`` is a single prompt."""
    if isinstance(prompt, str):
        return [prompt], False
    if not isinstance(prompt, list):
        raise _refusal(
            400, '"prompt" must be a string, an list of tokens, a list of mixed strings & tokens, or a list of prompts'
        )
    if not prompt:
        raise _refusal(400, '"prompt" must not be empty')
    if all(type(each) is int for each in prompt):
        return [prompt], False
    if not all(isinstance(each, str) or is_ids(each) for each in prompt):
        raise _refusal(400, "a prompt is a text or token ids; mixed ones are not simulated")
    return prompt, True


def _parse_native(body: bytes, limits: Limits) -> CompletionCall:
    fields = read_object(body, _words)
    prompts, is_list = _prompts(fields.get("prompt"))
    named = {_NAMES.get(name, name): value for name, value in fields.items()}
    named.setdefault("temperature", _DEFAULT_TEMPERATURE)
    if named.get("seed") == -1:
        del named["seed"]
    call = _CompletionCall(named, prompts, is_list=is_list)
    _check_lengths(call, fields.get("n_predict"), limits)
    return call


def _check_lengths(call: CompletionCall, asked: int | None, limits: Limits) -> None:
    longest = limits.max_model_len_tokens
    check_prompts(
        call,
        [-1 if asked is None else asked] * len(call.prompts),
        longest,
        lambda tokens: _refusal(
            400,
            f"request ({tokens} tokens) exceeds the available context size ({longest} tokens), try increasing it",
            "exceed_context_size_error",
            n_prompt_tokens=tokens,
            n_ctx=longest,
        ),
    )


def _parse_openai(body: bytes, limits: Limits) -> CompletionCall:
    fields = read_object(body, _words)
    prompts, _ = _prompts(fields.get("prompt"))
    # Only heeded fields are checked; unknown fields are ignored, and so is echo.
    heeded = {
        name: value for name, value in fields.items() if name not in ("echo", "return_token_ids", "prompt_logprobs")
    }
    heeded.setdefault("temperature", _DEFAULT_TEMPERATURE)
    heeded.pop("stream_interval", None)
    # The server takes negative values, and sequences beside each other for greedy calls.
    checked = heeded | {"max_tokens": max(1, heeded.get("max_tokens") or 16), "prompt": prompts, "n": 1}
    if all(prompts):
        restated(any_model, _words)(pydantic_core.to_json(checked), Limits("", 1 << 40))
    call = CompletionCall(heeded, prompts)
    _check_lengths(call, heeded.get("max_tokens"), limits)
    return call


class _NativeWriter:
    """Writes replies of ``/completion``."""

    def __init__(self, call: CompletionCall, reply_id: str, created_s: int, model: str) -> None:
        assert isinstance(call, _CompletionCall)
        self._call = call
        self._model = model
        self.reply_id = reply_id

    def choice(self, index: int, generation: Generation) -> str:
        return to_json(self._end(index, generation) | {"content": generation.text, **self._tokens(generation, 0)})

    def body(self, choices: list[str], completion_tokens: int) -> bytes:
        if self._call.is_list or len(choices) != 1:
            return f"[{','.join(choices)}]".encode()
        return choices[0].encode()

    def event(self, index: int, generation: Generation, before: int, after: int) -> bytes:
        text = generation.text_after(after)[len(generation.text_after(before)) if before else 0 :]
        item: dict[str, Any] = {
            "index": index,
            "content": text,
            "stop": False,
            "id_slot": index % _SLOTS,
            "tokens_predicted": after,
            "tokens_evaluated": self._call.prompt_tokens[index // self._call.n],
            **self._tokens(generation, before, after),
        }
        events = f"data: {to_json(item)}\n\n"
        if after >= generation.tokens:
            # The end is an event of its own, without text.
            events += f"data: {to_json(self._end(index, generation) | {'content': '', 'tokens': []})}\n\n"
        return events.encode()

    def usage_event(self, completion_tokens: int) -> bytes:
        return b""

    def _tokens(self, generation: Generation, before: int, after: int | None = None) -> dict[str, Any]:
        call = self._call
        own = generation.pieces()[before:after]
        made: dict[str, Any] = {
            "tokens": [token_id(piece) for piece in own] if call.fields.get("return_tokens") else []
        }
        if call.wanted_probs:
            made["completion_probabilities"] = [
                {
                    "id": token_id(piece),
                    "token": piece,
                    "bytes": list(piece.encode()),
                    "logprob": _LOGPROB,
                    "top_logprobs": [
                        {"id": token_id(other), "token": other, "bytes": list(other.encode()), "logprob": _LOGPROB - k}
                        for k, other in enumerate([piece, *(f" alt{k}" for k in range(1, call.wanted_probs))])
                    ],
                }
                for piece in own
            ]
        return made

    def _end(self, index: int, generation: Generation) -> dict[str, Any]:
        kind = {"length": "limit", "abort": "none"}.get(generation.finish_reason, "eos")
        return {
            "index": index,
            "id_slot": index % _SLOTS,
            "stop": True,
            "model": self._model,
            "tokens_predicted": generation.tokens,
            "tokens_evaluated": self._call.prompt_tokens[index // self._call.n],
            "generation_settings": {},
            "prompt": "",
            "truncated": False,
            "stop_type": "word" if generation.stop_reason is not None else kind,
            "stopping_word": generation.stop_reason or "",
            "tokens_cached": 0,
        }


class _OpenAIWriter(OpenAIWriter):
    """Writes ``/v1/completions``: chat's logprobs, and usage of the first prompt's first choice."""

    def __init__(self, call: CompletionCall, reply_id: str, created_s: int, model: str) -> None:
        super().__init__(call, reply_id, created_s, model)
        self._first_tokens = 0

    __slots__ = ("_first_tokens",)

    def piece(self, index: int, generation: Generation, before: int, after: int) -> dict[str, Any]:
        if index == 0 and after >= generation.tokens:
            self._first_tokens = generation.tokens
        made = super().piece(index, generation, before, after)
        legacy = made["logprobs"]
        if legacy is not None:
            made["logprobs"] = {
                "content": [
                    {
                        "token": token,
                        "logprob": logprob,
                        "top_logprobs": [{"token": t, "logprob": v} for t, v in top.items()],
                    }
                    for token, logprob, top in zip(
                        legacy["tokens"], legacy["token_logprobs"], legacy["top_logprobs"], strict=True
                    )
                ]
            }
        return made

    def body(self, choices: list[str], completion_tokens: int) -> bytes:
        usage = self.usage(self._call.prompt_tokens[0], self._first_tokens)
        return f'{self._head}{",".join(choices)}],"usage":{to_json(usage)}}}'.encode()

    def event_tail(self, index: int, generation: Generation, after: int) -> str:
        if after < generation.tokens:
            return ""
        return f',"usage":{to_json(self.usage(self._call.prompt_tokens[index // self._call.n], generation.tokens))}'

    def usage_event(self, completion_tokens: int) -> bytes:
        return b""


def _tokenize(_server: Served, body: bytes) -> tuple[int, tuple[tuple[str, str], ...], bytes]:
    (text, *_), _ = texts_of(body, "content", _words)
    return 200, JSON_HEADERS, pydantic_core.to_json({"tokens": token_ids(text)})


def _props(server: Served) -> dict[str, object]:
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


def _metrics(server: Served) -> dict[str, float]:
    engine = server.engine
    return {
        "llamacpp:prompt_tokens_total": engine.prompt_tokens,
        "llamacpp:tokens_predicted_total": engine.generation_tokens,
        "llamacpp:requests_processing": engine.running,
        "llamacpp:requests_deferred": engine.waiting,
        "llamacpp:n_busy_slots_per_decode": engine.running,
    }


LLAMACPP = Guise(
    "llamacpp",
    {
        "/completion": Route(_parse_native, _NativeWriter, id_prefix="", done=b"", opening=b"data: null\n\n"),
        "/v1/completions": Route(_parse_openai, _OpenAIWriter, id_prefix="chatcmpl-", opening=b"data: null\n\n"),
        "/v1/chat/completions": Route(restated(any_chat, _words), ChatWriter, id_prefix="chatcmpl-"),
        "/v1/embeddings": Route(restated(any_embedding, _words), EmbeddingWriter, id_prefix=""),
        "/v1/rerank": Route(restated(any_rerank, _words), RankWriter, id_prefix=""),
        "/rerank": Route(restated(any_rerank, _words), RankWriter, id_prefix=""),
    },
    {
        ("GET", "/health"): json_page(lambda _: {"status": "ok"}),
        ("POST", "/tokenize"): _tokenize,
        ("GET", "/v1/health"): json_page(lambda _: {"status": "ok"}),
        ("GET", "/v1/models"): openai_models(
            "llamacpp", meta=lambda server: {"n_ctx": server.limits.max_model_len_tokens, "n_ctx_train": 131_072}
        ),
        ("GET", "/props"): json_page(_props),
        ("GET", "/slots"): json_page(
            lambda server: [
                {"id": slot, "n_ctx": server.limits.max_model_len_tokens, "is_processing": slot < server.engine.running}
                for slot in range(server.profile.max_num_seqs)
            ]
        ),
        ("GET", "/metrics"): metrics_page(_metrics),
    },
    unauthorized=_refusal(401, "Invalid API Key", "authentication_error").body,
    version=_BUILD,
    owned_by=None,
    slots=_SLOTS,
    not_found=(404, _refusal(404, "File Not Found", "not_found_error").body),
)
