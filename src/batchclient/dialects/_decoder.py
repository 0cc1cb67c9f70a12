"""What the decoders of completions share: one prompt's answer from its choices' pieces, and what is wrong with a reply.

Rules:
- Choices are numbered prompt by prompt: ``index = prompt * n + k``. Every index is ticked off once.
- ``finish_reason: "abort"`` comes with status 200 when the server shuts down: a failure, with truncated text.
- What a server says in its errors is shown without the prompts and the keys that it quotes.
- A usage is believed only if it is one: two whole numbers. A prompt's choices count their prompt once.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchclient._core.demux import Demux
from batchclient._core.messages import Batch, Failure, FailureKind
from batchclient.dialects._reader import OpenAIReader, Reader
from batchclient.dialects._replies import redact
from batchclient.dialects._status import failure_of
from batchclient.errors import DemuxError, DialectError, ServerFault
from batchclient.types import Choice, Usage

__all__ = [
    "ABORTED",
    "ReplyDecoder",
    "about_reply",
    "join_logprobs",
    "malformed",
    "mismatch",
    "usage_in",
    "usage_together",
]

_HANDED_OUT = frozenset({"index", "text", "finish_reason", "logprobs", "token_ids"})
_COUNTED_ONLY = _HANDED_OUT | {"prompt_token_ids"}
ABORTED = frozenset({"abort", "error"})
"""Reasons to finish that are none."""


class ReplyDecoder:
    """What is known of a reply while it is read; each decoder has its own ``feed`` and ``end``."""

    def __init__(
        self, batch: Batch, secrets: tuple[str, ...], content_type: str = "", reader: Reader | None = None
    ) -> None:
        self._batch = batch
        self._reader = reader or OpenAIReader(batch)
        self._content_type = content_type.partition(";")[0][:60]
        self._n = batch.shape.weight
        self._demux = Demux(len(batch.requests), self._n)
        self._secrets = secrets
        self._keep_ids = batch.shape.wants_token_ids
        self._own_fields = _HANDED_OUT if self._keep_ids else _COUNTED_ONLY
        self._extra: dict[str, Any] = {}
        self.events = 0
        self.begun = False
        self.failed = False

    def _choice(self, pieces: list[dict[str, Any]], index: int) -> Choice:
        """Join one choice's events."""
        last = pieces[-1]
        keep_ids = self._keep_ids
        if len(pieces) == 1:
            text, logprobs, ids = last["text"], last.get("logprobs"), last.get("token_ids")
            if type(text) is not str:
                raise TypeError("a choice's text is no string")
        else:
            text = "".join([piece["text"] for piece in pieces])
            logprobs = join_logprobs(pieces)
            ids = [i for piece in pieces for i in piece.get("token_ids") or ()] if keep_ids else None
        own = self._own_fields
        extra = {name: v for piece in pieces for name, v in piece.items() if v is not None and name not in own}
        token_ids = tuple(ids) if keep_ids and ids is not None else None
        return Choice(index, text, last.get("finish_reason"), logprobs, token_ids, extra)

    def _clean(self, message: str) -> str:
        return redact(message, (request.prompt for request in self._batch.requests), self._secrets)

    def _aborted_by(self, piece: Mapping[str, Any]) -> Failure:
        """Why the server gave a choice up; some say it with a status."""
        status = piece.get("status_code")
        if type(status) is not int or not 400 <= status < 600:
            return _ABORT
        message = self._clean(str(piece.get("abort_message") or "the server aborted the generation"))
        return failure_of(status, message, None, streamed=False, retry_after_s=None)

    def _error_reply(self, error: object) -> Failure:
        """An error object where an answer was expected; its code decides, as a status would."""
        fields = error if isinstance(error, dict) else {"message": str(error)}
        status = fields.get("code")
        if type(status) is not int or not 400 <= status < 600:
            status = 500
        code = fields.get("type")
        message = self._clean(str(fields.get("message", "no message")))
        clean = self._clean(code) if isinstance(code, str) else None
        return failure_of(status, message, clean, streamed=False, retry_after_s=None)


def join_logprobs(pieces: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Join logprobs objects: every member is a list with one entry per token."""
    joined: dict[str, Any] | None = None
    for piece in pieces:
        logprobs = piece.get("logprobs")
        if logprobs is None:
            continue
        if joined is None:
            joined = {name: list(value) if isinstance(value, list) else value for name, value in logprobs.items()}
            continue
        for name, value in logprobs.items():
            if isinstance(value, list) and isinstance(joined.get(name), list):
                joined[name] += value
            elif joined.get(name) is None:
                joined[name] = value
    return joined


def about_reply(reply: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in reply.items() if value is not None and name not in ("choices", "usage")}


def mismatch(error: DemuxError) -> Failure:
    return Failure(FailureKind.MISMATCH, DemuxError, error.message)


def malformed(what: str, cause: BaseException | None = None, *, once: bool = False) -> Failure:
    return Failure(FailureKind.MAYBE_PROCESSED, DialectError, what, cause=cause, once=once)


_ABORT = Failure(FailureKind.MAYBE_PROCESSED, ServerFault, "the server aborted the generation (finish_reason: abort)")


def usage_together(usages: list[Usage | None]) -> Usage | None:
    """The usage of one prompt's choices: the prompt is counted once."""
    known = [usage for usage in usages if usage is not None]
    if len(known) < len(usages):
        return None
    return Usage(known[0].prompt_tokens, sum(usage.completion_tokens for usage in known))


def usage_in(usage: object) -> Usage | None:
    if not isinstance(usage, dict):
        return None
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if type(prompt) is int and type(completion) is int and prompt >= 0 and completion >= 0:
        return Usage(prompt, completion)
    return None
