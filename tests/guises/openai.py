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

import re
from typing import Any

from pydantic import BaseModel, ConfigDict

from batchclient.simulator.guise import Guise, Reply, Route, json_reply
from batchclient.simulator.replies import ChatWriter, EmbeddingWriter, OpenAIWriter
from batchclient.simulator.requests import (
    Body,
    Call,
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    HttpError,
    Limits,
)
from batchclient.simulator.text import Generation
from tests.guises.parts import OPENAI_FIELDS, empty, openai_models, plainly, unknown_fields

__all__ = ["OPENAI", "STRICT", "TRANSFORMERS"]

_STREAM_OPTIONS = frozenset(("include_usage", "include_obfuscation"))
_CHAT_FIELDS = frozenset(
    ("messages", "max_completion_tokens", "top_logprobs", "response_format", "tools", "tool_choice", "metadata")
)


def _words(error: HttpError) -> Reply:
    message = error.message or "The request failed by order."
    shown = {"message": message, "type": "invalid_request_error", "param": None, "code": None}
    return json_reply({"error": shown}, error.status)


class _Completion(CompletionRequest):
    def thinking_budget(self, limits: Limits) -> None:
        """No budget is known."""

    def call(self, limits: Limits) -> Call:
        self.prompt_logprobs = None
        return plainly(super().call(limits))


class _Chat(ChatRequest):
    def thinking_budget(self, limits: Limits) -> None:
        """No budget is known."""

    def call(self, limits: Limits) -> Call:
        self.prompt_logprobs = None
        return plainly(super().call(limits))


def _refuse_unknown(body: Body, options: BaseModel | None) -> None:
    for name in unknown_fields(body, OPENAI_FIELDS | _CHAT_FIELDS):
        raise HttpError(400, f"Unrecognized request argument supplied: {name}")
    for name in sorted(options.model_fields_set - _STREAM_OPTIONS if options else ()):
        raise HttpError(400, f"Unknown parameter: 'stream_options.{name}'.")


class _StrictCompletion(_Completion):
    model_config = ConfigDict(extra="allow")

    def call(self, limits: Limits) -> Call:
        _refuse_unknown(self, self.stream_options)
        return super().call(limits)


class _StrictChat(_Chat):
    model_config = ConfigDict(extra="allow")

    def call(self, limits: Limits) -> Call:
        _refuse_unknown(self, self.stream_options)
        return super().call(limits)


def _detail(error: HttpError) -> Reply:
    """Write a refusal as ``transformers serve`` does."""
    if error.status == 500:
        # Seen.
        return Reply(500, (("content-type", "text/plain"),), b"Internal Server Error")
    if error.status == 404 and error.param == "model":
        return json_reply(
            {"detail": re.sub(r".*`(.*)`.*: (.*)\.", r"Server is pinned to '\2'; requested '\1'.", error.message)}, 400
        )
    status = 422 if error.kind == "Bad Request" else error.status
    return json_reply({"detail": error.message or "The request failed by order."}, status)


class _Transformers(CompletionRequest):
    model_config = ConfigDict(extra="allow")

    prompt: Any = None

    def call(self, limits: Limits) -> Call:
        unknown = unknown_fields(self, OPENAI_FIELDS | {"generation_config"})
        if unknown:
            raise HttpError(422, f"Unexpected fields in the request: {set(unknown)}")
        if not isinstance(self.prompt, str):
            raise HttpError(400, "prompt must be a string.")
        if not self.model:
            raise HttpError(400, f"Server is pinned to '{limits.model}'; requested '{self.model}'.")
        if self.max_tokens == 0:
            # Seen; also below 0.
            raise HttpError(500)
        heeded = self.model_copy(update={"prompt": [self.prompt], "n": None, "logprobs": None, "echo": None})
        return plainly(CompletionRequest.call(heeded, limits))


class _TransformersWriter(OpenAIWriter):
    """Writes without nulls; the usage stands beside the last event, the stop string in the text."""

    def piece(self, index: int, generation: Generation, before: int, after: int) -> dict[str, Any]:
        made = super().piece(index, generation, before, after)
        made = {name: value for name, value in made.items() if value is not None}
        if "finish_reason" in made and generation.stop_reason is not None:
            made["text"] += generation.stop_reason
        return made

    def events(self, index: int, generation: Generation, before: int, after: int) -> list[dict[str, Any]]:
        (event,) = super().events(index, generation, before, after)
        return [event | {"usage": self.own_usage(index, after)} if after >= generation.tokens else event]

    def usage_events(self, completion_tokens: int) -> list[dict[str, Any]]:
        return []


OPENAI = Guise(
    "openai",
    {
        "/v1/completions": Route(_Completion, OpenAIWriter),
        "/v1/chat/completions": Route(_Chat, ChatWriter, "chatcmpl-"),
        "/v1/embeddings": Route(EmbeddingRequest, EmbeddingWriter, "embd-"),
    },
    _words,
    {("GET", "/v1/models"): openai_models("organization-owner"), ("GET", "/health"): empty},
)
STRICT = Guise(
    "strict",
    {
        "/v1/completions": Route(_StrictCompletion, OpenAIWriter),
        "/v1/chat/completions": Route(_StrictChat, ChatWriter, "chatcmpl-"),
    },
    _words,
    OPENAI.handlers,
)
TRANSFORMERS = Guise(
    "transformers",
    {"/v1/completions": Route(_Transformers, _TransformersWriter, done=b"")},
    _detail,
    {
        # Seen: without a cache of models on the disk the server cannot list them.
        ("GET", "/v1/models"): lambda _server, _body: _detail(HttpError(500)),
        ("GET", "/health"): empty,
    },
)
