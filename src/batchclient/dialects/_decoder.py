"""The base of the decoders of completions: an answer from its choices, and the faults of a reply.

Rules:
- Choices are numbered prompt by prompt: ``index = prompt * n + k``. Every index is ticked off once.
- ``finish_reason: "abort"`` comes with status 200 and a truncated text when the server shuts down:
  a failure.
- Servers' error messages are shown without the prompts and keys quoted in them.
- A usage is believed only with two whole numbers. The choices of a prompt count the prompt once.
- An unreadable choice fails its own call, and is not asked for again. If no choice can be read, the
  reply is at fault.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from batchclient._core.messages import Batch, Failure, FailureKind
from batchclient.dialects._demux import Demux, OnlyOne
from batchclient.dialects._reader import OpenAIReader, Reader
from batchclient.dialects._redaction import redact, words_and_shown
from batchclient.dialects._replies import told_in
from batchclient.dialects._shares import TOO_MANY
from batchclient.dialects._status import failure_of
from batchclient.errors import DemuxError, DialectError, ServerFault
from batchclient.types import Choice, Completion, Usage

__all__ = [
    "ABORTED",
    "ReplyDecoder",
    "about_reply",
    "error_of",
    "is_aborted",
    "join_fields",
    "join_logprobs",
    "malformed",
    "reason_of",
    "spoilt",
    "text_of",
    "usage_in",
    "usage_together",
]

_HANDED_OUT = frozenset({"index", "text", "finish_reason", "logprobs", "token_ids"})
_COUNTED_ONLY = _HANDED_OUT | {"prompt_token_ids"}
ABORTED = frozenset({"abort", "error"})
"""Reasons to finish that mean a failure."""


_ANSWERS = frozenset({"data", "results", "content", "text", "meta_info", "tokens", "embedding"})
"""Fields that hold answers beside ``choices``."""
_JOINED = frozenset({"reasoning", "reasoning_content"})
"""Other fields of a choice whose texts come in pieces (LiteLLM's completions). Every event has the
whole of any other field.
"""


class ReplyDecoder:
    """The state of a reply while it is read."""

    other: type[ReplyDecoder] | None = None
    """Reads a reply of the other form, streamed or plain, if the first bytes show such a form."""

    complete = False
    """Whether all answers are complete; a reply that is one JSON value never is before its end."""

    def __init__(
        self, batch: Batch, secrets: tuple[str, ...], content_type: str = "", reader: Reader | None = None
    ) -> None:
        self._batch = batch
        self._reader = reader or OpenAIReader(batch)
        self._content_type = content_type.partition(";")[0][:60]
        self._n = batch.shape.weight
        self._size = len(batch.requests) * self._n
        self._demux = Demux(len(batch.requests), self._n)
        self._secrets = secrets
        self._keep_ids = batch.shape.wants_token_ids
        self._own_fields = _HANDED_OUT if self._keep_ids else _COUNTED_ONLY
        self._extra: dict[str, Any] = {}
        self.events = 0
        self.failed = False
        self.cut = False
        """Whether the answer ends here, whatever the server still says: it has run into a loop."""

    def feed(self, chunk: bytes, now: float) -> list[tuple[int, Completion]]:
        """Take in bytes; return the answers that are now complete, by position."""
        raise NotImplementedError

    def end(self, now: float) -> tuple[list[tuple[int, Completion]], Failure | None]:
        """End the reply; return the last answers, and why the unanswered requests have none."""
        raise NotImplementedError

    def lost_tokens(self) -> int:
        """Return how many tokens came of answers that were not handed out, after a failure."""
        raise NotImplementedError

    def _choice(self, pieces: list[dict[str, Any]], index: int) -> Choice:
        """Join one choice's events."""
        last = pieces[-1]
        keep_ids = self._keep_ids
        if len(pieces) == 1:
            text, logprobs, ids = last.get("text"), last.get("logprobs"), last.get("token_ids")
        else:
            try:
                text = "".join([piece["text"] for piece in pieces])
            except (KeyError, TypeError):
                texts = [text for piece in pieces if (text := text_of(piece)) is not None]
                text = "".join(texts) if texts else None
            logprobs = join_logprobs(pieces)
            ids = [i for piece in pieces for i in piece.get("token_ids") or ()] if keep_ids else None
        if type(text) is not str:
            if text is not None or not self._may_be_empty(pieces):
                raise TypeError("a choice's text is no string")
            text = ""
        own = self._own_fields
        extra = {name: v for piece in pieces for name, v in piece.items() if v is not None and name not in own}
        if extra and len(pieces) > 1:
            extra = join_fields(pieces, own)
        token_ids = tuple(ids) if keep_ids and ids is not None else None
        reason = last.get("finish_reason")
        if type(reason) is not str and reason is not None:
            raise TypeError("a reason to finish is no string")
        return Choice(index, text, reason, logprobs, token_ids, extra)

    def _may_be_empty(self, pieces: list[dict[str, Any]]) -> bool:
        """Whether a choice without any text has an empty text."""
        return False

    def _clean(self, message: str) -> str:
        return redact(message, self._prompts(), self._secrets)

    def _judged(self, message: str) -> tuple[str, str]:
        return words_and_shown(message, self._prompts(), self._secrets)

    def _prompts(self) -> list[bytes]:
        return [request.prompt for request in self._batch.requests]

    def _aborted_by(self, piece: Mapping[str, Any]) -> Failure:
        """Return why the server gave a choice up; some servers tell by a status."""
        status = piece.get("status_code")
        if type(status) is not int or not 400 <= status < 600:
            return _ABORT
        message = str(piece.get("abort_message") or "the server aborted the generation")
        words, shown = self._judged(message)
        return failure_of(status, words, None, shown=shown, streamed=False, retry_after_s=None)

    def _mismatch(self, error: DemuxError) -> Failure:
        """Return the failure of a reply with other choices than were asked for.

        A server that ignores ``n`` does so every time: after two such replies no call with an ``n``
        is sent for a while.
        """
        if self._size == self._n > 1 and isinstance(error, OnlyOne):
            learnt = self._batch.wire.learnt
            learnt.ignored_n += 1
            if learnt.ignored_n > 1:
                return Failure(FailureKind.UNSUPPORTED, DemuxError, f"{error.message}: the server ignores n")
            return Failure(FailureKind.MISMATCH, DemuxError, error.message, once=True)
        return Failure(FailureKind.MISMATCH, DemuxError, error.message)

    def _error_reply(self, error: object) -> Failure:
        """Return the failure told by an error object; its code decides as a status would."""
        message, code, status = told_in(error)
        clean = None if code is None else self._clean(code)
        words, shown = self._judged(message or "no message")
        listed = len(self._batch.requests) > 1
        return failure_of(status or 500, words, clean, shown=shown, streamed=False, retry_after_s=None, listed=listed)


def is_aborted(piece: Mapping[str, Any]) -> bool:
    """Whether the server gave a choice up."""
    reason = piece.get("finish_reason")
    return type(reason) is str and reason in ABORTED


def text_of(piece: Mapping[str, Any]) -> str | None:
    """Return the text of a choice's event, or raise ``TypeError``.

    A text may be missing (``None``) from the last event, since LiteLLM leaves out empty values, and
    from an event with reasoning.
    """
    text = piece.get("text")
    if type(text) is str:
        return text
    if text is not None or not (piece.get("finish_reason") or any(piece.get(name) for name in _JOINED)):
        raise TypeError("a choice's text is no string")
    return None


def reason_of(piece: Mapping[str, Any]) -> str | None:
    """Return why a choice ended; raise ``TypeError`` if the reason is no string."""
    reason = piece.get("finish_reason")
    if reason is not None and type(reason) is not str:
        raise TypeError("a reason to finish is no string")
    return reason


def join_fields(pieces: Sequence[dict[str, Any]], but: Collection[str]) -> dict[str, Any]:
    """Join the other fields of a choice's events, without nulls.

    The last value but ``""`` counts; the texts of ``_JOINED`` are appended.
    """
    joined: dict[str, Any] = {}
    for piece in pieces:
        for name, value in piece.items():
            if value is None or name in but:
                continue
            before = joined.get(name)
            if before is None or (value != "" and name not in _JOINED):
                joined[name] = value
            elif isinstance(value, str) and isinstance(before, str) and name in _JOINED:
                joined[name] = before + value
    return joined


def join_logprobs(pieces: list[dict[str, Any]]) -> dict[str, Any] | None:
    """Join logprobs objects: every member is a list with one entry per token."""
    joined: dict[str, Any] | None = None
    for piece in pieces:
        logprobs = piece.get("logprobs")
        if not logprobs:
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


def malformed(what: str, cause: BaseException | None = None, *, once: bool = False) -> Failure:
    return Failure(FailureKind.MAYBE_PROCESSED, DialectError, what, cause=cause, once=once)


def error_of(reply: Any) -> object:
    """Return a reply or event that tells an error; ``None``: none, or an empty one by an answer."""
    if isinstance(reply, list):
        return reply if reply and all(isinstance(each, dict) and error_of(each) for each in reply) else None
    error = reply.get("error")
    if error is not None and (error or not reply.get("choices")):
        return reply
    if reply.get("choices") is not None or reply.keys() & _ANSWERS:
        return None
    is_error = "error" in (reply.get("object"), reply.get("type"))
    told = reply.get("detail") or reply.get("errors") or (reply.get("msg") and told_in(reply)[2])
    return reply if is_error or told else None


def spoilt(cause: BaseException) -> Failure:
    """Return the failure of an unreadable choice in a readable reply."""
    message = "what the server sent for this call cannot be read; what it sent for others with it can"
    return Failure(FailureKind.REFUSED, DialectError, message, cause=cause)


_ABORT = Failure(FailureKind.MAYBE_PROCESSED, ServerFault, "the server aborted the generation (finish_reason: abort)")


def usage_together(usages: list[Usage | None]) -> Usage | None:
    """Return the usage of a prompt's choices together: the prompt is counted once."""
    known = [usage for usage in usages if usage is not None]
    if len(known) < len(usages):
        return None
    first = next((usage for usage in known if not usage.prompt_tokens_estimated), known[0])
    completion_tokens = sum([usage.completion_tokens for usage in known])
    return Usage(
        first.prompt_tokens,
        completion_tokens,
        first.prompt_tokens_estimated,
        any(usage.completion_tokens_estimated for usage in known),
    )


def usage_in(usage: object) -> Usage | None:
    if not isinstance(usage, dict):
        return None
    prompt, completion = usage.get("prompt_tokens"), usage.get("completion_tokens")
    if type(prompt) is int and type(completion) is int and 0 <= prompt < TOO_MANY and 0 <= completion < TOO_MANY:
        return Usage(prompt, completion)
    return None
