"""Servers with OpenAI's API and nothing else: a lenient server, a strict server, and
``transformers serve``.

Rules:
- ``openai`` takes lists and ignores unknown fields: no usage per choice, no ids, no
  ``stream_interval``.
- ``strict`` also refuses every field that is not OpenAI's, one at a time, as OpenAI does.
- ``transformers`` (5.23, seen running) takes a single text, refuses unknown fields with 422,
  ignores ``n``, ``logprobs`` and ``echo``, and ends streams without ``[DONE]``. A text ends with
  the stop string that ended it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import pydantic_core

from batchclient.simulator.chat import ChatWriter, parse_chat
from batchclient.simulator.guise import Guise, Route
from batchclient.simulator.guise_parts import (
    OpenAIWriter,
    Parse,
    empty_page,
    openai_models,
    read_object,
    restated,
    to_json,
)
from tests.guises.parts import OPENAI_FIELDS, any_model
from batchclient.simulator.pooling import EmbeddingWriter, parse_embedding
from batchclient.simulator.text import Generation
from batchclient.simulator.validation import CompletionCall, HttpError, Limits, parse_completion

__all__ = ["OPENAI", "STRICT", "TRANSFORMERS"]

_STREAM_OPTIONS = frozenset(("include_usage", "include_obfuscation"))
_CHAT_FIELDS = frozenset(
    ("messages", "max_completion_tokens", "top_logprobs", "response_format", "tools", "tool_choice", "metadata")
)
_IGNORED = ("stream_interval", "return_token_ids", "prompt_logprobs", "priority")


def _refusal(status: int, message: str) -> HttpError:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    return HttpError(status, pydantic_core.to_json({"error": error}))


def _detail(status: int, message: str) -> HttpError:
    return HttpError(status, pydantic_core.to_json({"detail": message}))


def _only_openai(call: CompletionCall) -> CompletionCall:
    call.stream_interval = 1
    call.continuous_usage = False
    call.prompt_logprobs = None
    return call


def _without(body: bytes, names: tuple[str, ...]) -> bytes:
    fields = read_object(body, _refusal)
    return pydantic_core.to_json({name: value for name, value in fields.items() if name not in names})


def _parse_lenient(body: bytes, limits: Limits) -> CompletionCall:
    return _only_openai(restated(parse_completion, _refusal)(_without(body, _IGNORED), limits))


def _parse_lenient_chat(body: bytes, limits: Limits) -> CompletionCall:
    return _only_openai(restated(parse_chat, _refusal)(_without(body, _IGNORED), limits))


def _parse_strict(body: bytes, limits: Limits, parse: Parse = parse_completion) -> CompletionCall:
    fields = read_object(body, _refusal)
    for name in fields:
        if name not in OPENAI_FIELDS | _CHAT_FIELDS:
            raise _refusal(400, f"Unrecognized request argument supplied: {name}")
    for name in fields.get("stream_options") or ():
        if name not in _STREAM_OPTIONS:
            raise _refusal(400, f"Unknown parameter: 'stream_options.{name}'.")
    return _only_openai(restated(parse, _refusal)(body, limits))


_TRANSFORMERS_FIELDS = OPENAI_FIELDS | {"generation_config"}


def _parse_transformers(body: bytes, limits: Limits) -> CompletionCall:
    fields = read_object(body, lambda _status, message: _detail(422, message))
    unknown = set(fields) - _TRANSFORMERS_FIELDS
    if unknown:
        raise _detail(422, f"Unexpected fields in the request: {unknown}")
    if not isinstance(fields.get("prompt"), str):
        raise _detail(400, "prompt must be a string.")
    model = fields.get("model")
    if model != limits.model:
        raise _detail(400, f"Server is pinned to '{limits.model}'; requested '{model}'.")
    kept: dict[str, Any] = {k: v for k, v in fields.items() if k not in ("n", "logprobs", "echo", "best_of")}
    if kept.get("max_tokens") == 0:
        # Seen; also below 0.
        raise HttpError(500, b"Internal Server Error", (("content-type", "text/plain"),))
    return _only_openai(restated(any_model, _detail)(pydantic_core.to_json(kept), limits))


class _TransformersWriter(OpenAIWriter):
    """Writes without nulls; the usage stands beside the last event, the stop string in the text."""

    def piece(self, index: int, generation: Generation, before: int, after: int) -> dict[str, Any]:
        made = {
            name: value for name, value in super().piece(index, generation, before, after).items() if value is not None
        }
        if "finish_reason" in made and generation.stop_reason is not None:
            made["text"] += generation.stop_reason
        return made

    def event_tail(self, index: int, generation: Generation, after: int) -> str:
        if after < generation.tokens:
            return ""
        return f',"usage":{to_json(self.usage(self._call.prompt_tokens[index], generation.tokens))}'

    def usage_event(self, completion_tokens: int) -> bytes:
        return b""


OPENAI = Guise(
    "openai",
    {
        "/v1/completions": Route(_parse_lenient, OpenAIWriter),
        "/v1/chat/completions": Route(_parse_lenient_chat, ChatWriter, "chatcmpl-"),
        "/v1/embeddings": Route(restated(parse_embedding, _refusal), EmbeddingWriter, "embd-"),
    },
    {("GET", "/v1/models"): openai_models("organization-owner"), ("GET", "/health"): empty_page},
    owned_by=None,
    not_found=(404, b'{"detail":"Not Found"}'),
)
STRICT = Guise(
    "strict",
    {
        "/v1/completions": Route(_parse_strict, OpenAIWriter),
        "/v1/chat/completions": Route(partial(_parse_strict, parse=parse_chat), ChatWriter, "chatcmpl-"),
    },
    OPENAI.pages,
    owned_by=None,
    not_found=OPENAI.not_found,
)
TRANSFORMERS = Guise(
    "transformers",
    {"/v1/completions": Route(_parse_transformers, _TransformersWriter, done=b"")},
    {
        # Seen: without a cache of models on the disk the server cannot list them.
        ("GET", "/v1/models"): lambda _server, _body: (
            500,
            (("content-type", "text/plain"),),
            b"Internal Server Error",
        ),
        ("GET", "/health"): empty_page,
    },
    owned_by=None,
    not_found=OPENAI.not_found,
)
