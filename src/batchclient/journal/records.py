"""From a row's outcome to its record, and back.

Rules:
- A body is an answer's JSON, compressed with zlib where that saves a quarter. JSON begins with
  ``{``, a compressed body never does.
- Only large bodies are tried: compression takes some 10 µs a KB, and an answer of 2 KB took a
  server longer than a thousand times that.
- An error's record has the words that the library itself makes, which hold no key and no prompt. Of
  other errors only the class is kept.
- The checksum is over all that is used of a record.
"""

from __future__ import annotations

import json
import zlib
from array import array
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any, NamedTuple

from pydantic_core import from_json, to_json

from batchclient import errors
from batchclient.errors import (
    AuthenticationFailed,
    BatchClientError,
    CallAborted,
    CertificateRefused,
    ClientClosed,
    NotFound,
)
from batchclient.types import Choice, Classification, Completion, Embedding, Usage

__all__ = [
    "ANSWERED",
    "FAILED",
    "MAY_BE_TRIED",
    "Damaged",
    "Record",
    "answer_in",
    "error_in",
    "fields_in",
    "is_kept",
    "record_of",
]

ANSWERED = 1
FAILED = 2
"""The row failed for good: the same call would fail again."""
MAY_BE_TRIED = 3
"""The row failed, and may succeed later."""
FILTERED = 4
"""The row was left out. Maps leave none out; the number is kept for the command line."""

_LEAST_COMPRESSED = 2048
_OF_THE_PLACE = (AuthenticationFailed, NotFound, CertificateRefused)
"""These errors are about key, model or server, not about the row."""
_NOT_KEPT = (ClientClosed, CallAborted)
"""The caller ended the call: nothing is known of the row."""
_PARTS = ("logprobs", "token_ids", "message")


class Damaged(ValueError):
    """A record is not as it was written."""


class Record(NamedTuple):
    """A line of the table, in the order of its columns.

    Args:
        key: what the row is, 16 bytes.
        n: how many rows with this key came before.
        id: the document's own ``id``, if it has one.
        state: ``ANSWERED`` and so on.
        attempts: requests sent that contained the row.
        crc: checksum of the others, but for ``id``.
        error: JSON; ``None`` for an answer.
        body: the answer; ``None`` for an error.
    """

    key: bytes
    n: int
    id: str | None
    state: int
    attempts: int
    crc: int
    error: str | None
    body: bytes | None


def is_kept(error: Exception | None) -> bool:
    """Whether a row that ended so is written down."""
    return not isinstance(error, _NOT_KEPT)


def record_of(
    key: bytes,
    n: int,
    own_id: str | None,
    answer: Any,
    error: Exception | None,
    attempts: int,
    *,
    unusable: str | None = None,
) -> Record:
    """Return the record of a row that has ended.

    Args:
        key, n, own_id, answer, error, attempts: of the row.
        unusable: why the row makes no request, if so. Such a row has failed for good.
    """
    if own_id is not None and not own_id.isascii():
        # SQLite's text is UTF-8, which has no half of a surrogate pair.
        own_id = own_id.encode("utf-8", "replace").decode()
    if error is not None:
        text = _error_text(error, unusable)
        state = FAILED if unusable is not None or _is_final(error) else MAY_BE_TRIED
        return Record(key, n, own_id, state, attempts, _checksum(key, n, state, attempts, text, None), text, None)
    body = _body(answer)
    return Record(key, n, own_id, ANSWERED, attempts, _checksum(key, n, ANSWERED, attempts, None, body), None, body)


def check(key: bytes, n: int, state: int, attempts: int, crc: int, error: str | None, body: bytes | None) -> None:
    """Compare a record that was read with its checksum.

    Raises:
        Damaged: they differ.
    """
    try:
        found = _checksum(key, n, state, attempts, error, body)
    except (AttributeError, TypeError, ValueError) as fault:  # a flipped bit may change a value's type
        raise Damaged from fault
    if found != crc:
        raise Damaged


def _checksum(key: bytes, n: int, state: int, attempts: int, error: str | None, body: bytes | None) -> int:
    head = b"%b%d,%d,%d" % (key, n, state, attempts)
    return zlib.crc32(body if body is not None else (error or "").encode("utf-8", "surrogatepass"), zlib.crc32(head))


# Answers -------------------------------------------------------------------------------------------------------------

_write_odd = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), default=dict).encode


def _write(fields: Mapping[str, Any]) -> bytes:
    try:
        # A third of the time of Python's own.
        return to_json(fields)
    except ValueError:  # half of a surrogate pair, which JSON's escapes let a server send
        return _write_odd(fields).encode("utf-8", "surrogatepass")


def _read(body: bytes) -> Any:
    try:
        return from_json(body)
    except ValueError:
        return json.loads(body.decode("utf-8", "surrogatepass"))


def _body(answer: Any) -> bytes:
    if isinstance(answer, Completion):
        fields: dict[str, Any] = {"choices": [_choice_fields(choice) for choice in answer.choices]}
        if answer.time_to_first_token_s is not None:
            fields["time_to_first_token_s"] = answer.time_to_first_token_s
        if answer.counted_tokens is not None:
            fields["counted_tokens"] = answer.counted_tokens
    elif isinstance(answer, Embedding):
        fields = {"vector": b64encode(answer.vector.tobytes()).decode()}
    else:
        assert isinstance(answer, Classification)
        fields = {"label": answer.label, "probabilities": answer.probabilities}
    usage = answer.usage
    if usage is not None:
        fields["usage"] = told = {"prompt_tokens": usage.prompt_tokens, "completion_tokens": usage.completion_tokens}
        if usage.prompt_tokens_estimated:
            told["prompt_tokens_estimated"] = True
        if usage.completion_tokens_estimated:
            told["completion_tokens_estimated"] = True
    if answer.attempts != 1:
        fields["attempts"] = answer.attempts
    if answer.extra:
        fields["extra"] = answer.extra
    body = _write(fields)
    if len(body) < _LEAST_COMPRESSED or "vector" in fields:
        return body
    packed = zlib.compress(body, 1)
    return packed if len(packed) <= 0.75 * len(body) else body


def _choice_fields(choice: Choice) -> dict[str, Any]:
    fields: dict[str, Any] = {"text": choice.text, "finish_reason": choice.finish_reason}
    if choice.index:
        fields["index"] = choice.index
    if choice.logprobs is not None:
        fields["logprobs"] = choice.logprobs
    if choice.token_ids is not None:
        fields["token_ids"] = choice.token_ids
    if choice.message is not None:
        fields["message"] = choice.message
    if choice.extra:
        fields["extra"] = choice.extra
    return fields


def fields_in(body: bytes) -> Any:
    """Return an answer's JSON.

    Raises:
        Damaged: the body is none.
    """
    try:
        return _read(body if body[:1] == b"{" else zlib.decompress(body))
    except (AttributeError, TypeError, ValueError, zlib.error) as fault:
        raise Damaged from fault


def answer_in(body: bytes) -> Completion | Embedding | Classification:
    """Return the answer of a record.

    Raises:
        Damaged: the body is none that this version writes.
    """
    try:
        fields = fields_in(body)
        usage = fields.get("usage")
        told = None if usage is None else Usage(**usage)
        attempts, extra = fields.get("attempts", 1), fields.get("extra", {})
        if "choices" in fields:
            choices = tuple(map(_choice_in, fields["choices"]))
            first_s, counted = fields.get("time_to_first_token_s"), fields.get("counted_tokens")
            return Completion(choices, told, attempts, first_s, extra, counted)
        if "vector" in fields:
            return Embedding(array("f", b64decode(fields["vector"])), told, attempts, extra)
        return Classification(fields["label"], tuple(fields["probabilities"]), told, attempts, extra)
    except (AttributeError, KeyError, TypeError, ValueError, zlib.error) as fault:
        raise Damaged from fault


def _choice_in(fields: Mapping[str, Any]) -> Choice:
    ids = fields.get("token_ids")
    return Choice(
        fields.get("index", 0),
        fields["text"],
        fields["finish_reason"],
        fields.get("logprobs"),
        None if ids is None else tuple(ids),
        fields.get("extra", {}),
        fields.get("message"),
    )


# Errors --------------------------------------------------------------------------------------------------------------


def _is_final(error: Exception) -> bool:
    return isinstance(error, BatchClientError) and not error.retryable and not isinstance(error, _OF_THE_PLACE)


def _error_text(error: Exception, words: str | None) -> str:
    fields: dict[str, Any] = {"error": type(error).__name__}
    if words is not None:
        fields["message"] = words
    elif isinstance(error, BatchClientError):
        fields["message"] = error.message
        for name in ("status", "code", "retry_after_s", "field"):
            value = getattr(error, name, None)
            if isinstance(value, (str, int, float)):
                fields[name] = value
    # ASCII: SQLite's text is UTF-8, and a message may hold half of a surrogate pair.
    return json.dumps(fields, separators=(",", ":"))


def error_in(text: str, attempts: int) -> BatchClientError:
    """Return the error of a record: of the class that it had, if that is one of this library.

    Raises:
        Damaged: the text is none that this version writes.
    """
    try:
        fields = json.loads(text)
        name, message = fields["error"], fields.get("message", "")
        kind = getattr(errors, name, None) if name in errors.__all__ else None
        made: BatchClientError = kind(message) if kind else BatchClientError(f"{name}: {message}" if message else name)
        made.attempt = attempts
        for field in ("status", "code", "retry_after_s", "field"):
            if field in fields:
                setattr(made, field, fields[field])
    except (AttributeError, KeyError, TypeError, ValueError) as fault:
        raise Damaged from fault
    return made
