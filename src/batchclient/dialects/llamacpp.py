"""llama-server (llama.cpp): its own ``/completion``, where each answer of a list has its own
counts; else ``/v1/completions``.

Facts (``tools/server/README.md``, ``server-context.cpp``; commit 0c1e570, seen running):
- ``/completion`` takes lists of texts or ids of any length. It answers with an array of results,
  each with ``index``, ``tokens_evaluated`` and ``tokens_predicted``. A single prompt's reply is an
  object, unless it has several choices.
- Sequences without a slot wait. ``n`` counts prompt by prompt, and a seed still varies the choices.
- ``n_predict`` is endless unless given. It is always given: 16 where a call says nothing, as in
  OpenAI's API.
- Other defaults are the server's own (temperature 0.8, top_k 40, …), as on ``/v1/completions``: the
  operator may have set them.
- Probabilities come per token, in the form of neither OpenAI API. They are written as
  ``/v1/completions`` has them.
- Fields without a translation go to ``/v1/completions``. The usage there is the first prompt's
  first choice's, so only a lone call with a single choice gets a usage. The logprobs there have
  chat's form.
- A stream's first event is ``data: null``; an event comes per token. ``/completion`` ends without
  ``[DONE]``.
- ``echo`` is ignored: such calls are refused here. Names of models are ignored, too.
- An unreadable body, or an input longer than the physical batch, is a 500, though the call is at
  fault. While the server starts, it answers 503 "Loading model".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from batchclient._core.kinds import Kind
from batchclient._core.messages import Batch, Failure, FailureKind
from batchclient.dialects._bodies import Bodies, refuse
from batchclient.dialects._chat import Chat
from batchclient.dialects._dialect import Decoder
from batchclient.dialects._embeddings import Embeddings
from batchclient.dialects._fields import canonical
from batchclient.dialects._readers import BAD_FORM, index_of, legacy_logprobs, unreadable
from batchclient.dialects._scores import RerankScores
from batchclient.dialects._server import Form, ServerDialect
from batchclient.dialects._stream_decoder import decoder_of
from batchclient.dialects._tokens import LlamaCppTokens
from batchclient.dialects.completions import Completions
from batchclient.dialects.openai import VLLM_ONLY
from batchclient.errors import BadRequest
from batchclient.transport import WireRequest

__all__ = ["LlamacppDialect"]

_PATH = "/completion"
_SAME_NAME = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "typical_p",
        "presence_penalty",
        "frequency_penalty",
        "repeat_penalty",
        "repeat_last_n",
        "stop",
        "seed",
        "ignore_eos",
        "grammar",
        "json_schema",
        "cache_prompt",
        "id_slot",
        "mirostat",
        "samplers",
        "n_predict",
        "n",
    }
)
_RENAMED = {"max_tokens": "n_predict", "repetition_penalty": "repeat_penalty"}
_AROUND = frozenset({"model", "logprobs", "return_token_ids", "echo"})
_DEFAULT_MAX_TOKENS = 16
_REASONS = {"limit": "length", "eos": "stop", "word": "stop"}
_CALLS_FAULT = re.compile(r"too large to process|parse_error|parse error|type_error|json\.exception", re.IGNORECASE)
"""Words in a 500 about a call that would fail again in the same way."""


def _native(fields: dict[str, Any]) -> bytes | None:
    """Return the fields in llama.cpp's own names; ``None``: a field has no translation."""
    if not fields.keys() <= (_SAME_NAME | _RENAMED.keys() | _AROUND):
        return None
    body = {_RENAMED.get(name, name): value for name, value in fields.items() if name not in _AROUND}
    if len(body) < sum(name not in _AROUND for name in fields):
        # The same parameter by both of its names.
        return None
    body.setdefault("n_predict", _DEFAULT_MAX_TOKENS)
    if fields.get("logprobs") is not None:
        # 0 asks for none at all there, and for the chosen token's alone in OpenAI's API.
        body["n_probs"] = max(1, fields["logprobs"])
    if fields.get("return_token_ids"):
        body["return_tokens"] = True
    return canonical(body)


def _openai_body(fields: dict[str, Any]) -> bytes | Failure:
    """Return the fields for ``/v1/completions``, whose default is endless as well."""
    return canonical({"max_tokens": _DEFAULT_MAX_TOKENS} | fields if "n_predict" not in fields else fields)


_LOGPROBS: Bodies[int | None] = Bodies(lambda fields: fields.get("logprobs"))


class _Completion:
    """The form of completions: ``/completion`` where all fields have a translation."""

    def __init__(self) -> None:
        self._bodies = Bodies(_native)
        self._openai = Completions(priority_sign=0, reader=_OpenAIReader, bodies=Bodies(_openai_body))

    def encode(self, batch: Batch) -> WireRequest | Failure:
        """Write the batch's request."""
        if batch.shape.echo:
            return refuse("llamacpp", "does not echo prompts")
        body = self._body_of(batch)
        if body is None:
            return self._openai.encode(batch)
        prompts = [request.prompt for request in batch.requests]
        prompt = prompts[0] if len(prompts) == 1 else b"[" + b",".join(prompts) + b"]"
        streamed = b"true" if batch.streamed else b"false"
        return WireRequest(
            "POST", _PATH, body=b'{"prompt":%b,"stream":%b,%b' % (prompt, streamed, body[1:]), from_root=True
        )

    def decoder(self, batch: Batch, secrets: tuple[str, ...], content_type: str) -> Decoder:
        """Return a fresh decoder for the batch's reply."""
        if self._body_of(batch) is None:
            return self._openai.decoder(batch, secrets, content_type)
        return decoder_of(batch, secrets, content_type, _NativeReader(batch))

    def _body_of(self, batch: Batch) -> bytes | None:
        """Return the shared body for ``/completion``, or ``None`` for ``/v1/completions``, which
        also takes a lone call's labels.
        """
        if len(batch.requests) == 1 and batch.requests[0].solo_fields:
            return None
        return self._bodies.of(batch.shape)


class _NativeReader:
    """Reads a reply of ``/completion``."""

    counts_each = True
    tells_sums = False

    def __init__(self, batch: Batch) -> None:
        self._logprobs = _LOGPROBS.of(batch.shape)
        self._size = len(batch.requests) * batch.shape.weight
        self._length: dict[int, int] = {}
        """Characters of each prompt's answer so far, where logprobs tell the places of tokens."""

    def reply(self, reply: Any) -> Any:
        """Read an object for a single prompt, an array for several."""
        items = reply if isinstance(reply, list) else [reply]
        return {
            "choices": [self._of_item(item) for item in items],
            "model": next((item.get("model") for item in items if isinstance(item, dict)), None),
        }

    def event(self, event: Any) -> Any:
        """Read a prompt's event; the last has no text."""
        if "content" not in event:
            return event
        choice = self._of_item(event)
        return {"choices": [choice], "usage": choice.pop("usage", None)}

    def _of_item(self, item: Mapping[str, Any]) -> dict[str, Any]:
        index = index_of(item.get("index"), self._size)
        try:
            return self._choice(index, item) | {"usage": _usage_in(item)}
        except BAD_FORM:
            return unreadable(index)

    def _choice(self, index: Any, item: Mapping[str, Any]) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index, "text": item["content"], "finish_reason": None}
        choice["token_ids"] = item.get("tokens")
        if item["stop"]:
            # Neither the limit, nor the end, nor a stop string: the generation was interrupted.
            choice["finish_reason"] = _REASONS.get(item["stop_type"], "abort")
            choice["stop_reason"] = item.get("stopping_word") or None
        choice["logprobs"] = self._legacy(index, item.get("completion_probabilities"))
        return choice

    def _legacy(self, index: Any, entries: Any) -> dict[str, Any] | None:
        wanted = self._logprobs
        if wanted is None or not entries:
            return None
        tokens = [(entry["token"], entry["logprob"], _likeliest(entry["top_logprobs"], wanted)) for entry in entries]
        start = self._length.get(index, 0)
        self._length[index] = start + sum(len(text) for text, _, _ in tokens)
        return legacy_logprobs(tokens, start)


def _likeliest(entries: list[dict[str, Any]], wanted: int) -> dict[str, float]:
    return {entry["token"]: entry["logprob"] for entry in entries[:wanted]}


def _usage_in(item: Mapping[str, Any]) -> dict[str, Any]:
    return {"prompt_tokens": item.get("tokens_evaluated"), "completion_tokens": item.get("tokens_predicted")}


class _OpenAIReader:
    """Reads a reply of ``/v1/completions``."""

    counts_each = False
    tells_sums = False

    def __init__(self, batch: Batch) -> None:
        self._logprobs = _LOGPROBS.of(batch.shape)
        self._usage_is_whole = len(batch.requests) * batch.shape.weight == 1
        self._length: dict[Any, int] = {}

    def reply(self, reply: Any) -> Any:
        """Read a plain reply."""
        return self.event(reply)

    def event(self, event: Any) -> Any:
        """Read an event, or a whole reply."""
        for choice in event.get("choices") or ():
            logprobs = choice.get("logprobs")
            if self._logprobs is not None and isinstance(logprobs, dict) and "content" in logprobs:
                try:
                    choice["logprobs"] = self._legacy(choice.get("index"), logprobs["content"] or [])
                except BAD_FORM:
                    choice.update(unreadable(choice.get("index")))
        if not self._usage_is_whole:
            event["usage"] = None
        return event

    def _legacy(self, index: Any, entries: list[dict[str, Any]]) -> dict[str, Any]:
        wanted = self._logprobs or 0
        tokens = [
            (entry["token"], entry["logprob"], _likeliest(entry.get("top_logprobs") or [], wanted)) for entry in entries
        ]
        start = self._length.get(index, 0)
        self._length[index] = start + sum(len(text) for text, _, _ in tokens)
        return legacy_logprobs(tokens, start)


class LlamacppDialect(ServerDialect):
    """The dialect described at the top of the file."""

    name = "llamacpp"
    without = VLLM_ONLY
    caps: Mapping[Kind, int] = {Kind.CHAT: 1, Kind.TOKENS: 1}
    forms: Mapping[Kind, Form] = {
        Kind.COMPLETION: _Completion(),
        Kind.CHAT: Chat(priority_sign=0),
        Kind.EMBEDDING: Embeddings(),
        Kind.SCORE: RerankScores(),
        Kind.RERANK: RerankScores(),
        Kind.TOKENS: LlamaCppTokens(),
    }

    def _judged(self, failure: Failure, words: str, batch: Batch) -> Failure:
        is_fault = failure.status == 500 and failure.kind is FailureKind.MAYBE_PROCESSED
        if is_fault and _CALLS_FAULT.search(words):
            return replace(failure, kind=FailureKind.BAD_CALL, error=BadRequest)
        return failure
