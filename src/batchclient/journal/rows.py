"""From a row's outcome to its record, and back.

Rules:
- A record's answer is JSON, as readable as the server's own.
- An error's record has the words that the library itself makes, which hold no key and no prompt. Of
  other errors only the class is kept.
- JSON of another form than this module writes is a damaged record, whatever its checksum says.
"""

from __future__ import annotations

from array import array
from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any

from pydantic_core import to_json

from batchclient import errors
from batchclient.errors import (
    AuthenticationFailed,
    BatchClientError,
    CallAborted,
    CertificateRefused,
    ClientClosed,
    NotFound,
)
from batchclient.journal.held import line_of, sealed
from batchclient.types import Choice, Classification, Completion, Embedding, Usage

__all__ = ["ANSWERED", "FAILED", "MAY_BE_TRIED", "is_kept", "record_of", "row_in"]

ANSWERED = "answered"
FAILED = "failed"
"""The row failed for good: the same call would fail again."""
MAY_BE_TRIED = "failed for now"
"""The row failed, and may succeed later."""

_OF_THE_PLACE = (AuthenticationFailed, NotFound, CertificateRefused)
"""These errors are about key, model or server, not about the row."""
_NOT_KEPT = (ClientClosed, CallAborted)
"""The caller ended the call: nothing is known of the row."""
_USAGE = ("prompt_tokens", "completion_tokens", "prompt_tokens_estimated", "completion_tokens_estimated")
_OF_ERRORS = ("status", "code", "retry_after_s", "field")


def is_kept(error: Exception | None) -> bool:
    """Whether a row that ended so is written down."""
    return not isinstance(error, _NOT_KEPT)


def record_of(key: bytes, n: int, own_id: str | None, answer: Any, error: Exception | None, attempts: int) -> bytes:
    """Return the line of a row that has ended.

    Args:
        key, n: what the row is, 16 bytes, and how many rows with that key came before.
        own_id: the document's own ``id``, if it has one.
        answer, error: one of them is ``None``.
        attempts: requests sent that contained the row.
    """
    state = ANSWERED if error is None else FAILED if _is_final(error) else MAY_BE_TRIED
    fields: dict[str, Any] = {"key": key.hex(), "n": n, "state": state, "attempts": attempts}
    if own_id is not None:
        fields["id"] = own_id
    if error is None:
        fields["answer"] = _answer_fields(answer)
    else:
        fields["error"] = _error_fields(error)
    try:
        # A third of the time of Python's own.
        return sealed(to_json(fields))
    except ValueError:  # half of a surrogate pair, which JSON's escapes let a server send
        return line_of(fields)


def row_in(fields: Mapping[str, Any]) -> tuple[str, int, Any, BatchClientError | None] | None:
    """Return the state, attempts, answer and error of a record; ``None``: it is of another form."""
    try:
        state, attempts = fields["state"], fields["attempts"]
        if type(attempts) is not int or state not in (ANSWERED, FAILED, MAY_BE_TRIED):
            return None
        if state == ANSWERED:
            return state, attempts, _answer_in(fields["answer"]), None
        return state, attempts, None, _error_in(fields["error"], attempts)
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


# Answers -------------------------------------------------------------------------------------------------------------


def _answer_fields(answer: Any) -> dict[str, Any]:
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
        fields = {"label": answer.label, "probabilities": list(answer.probabilities)}
    usage = answer.usage
    if usage is not None:
        fields["usage"] = {name: value for name in _USAGE if (value := getattr(usage, name)) is not False}
    if answer.attempts != 1:
        fields["attempts"] = answer.attempts
    if answer.extra:
        fields["extra"] = answer.extra
    return fields


def _choice_fields(choice: Choice) -> dict[str, Any]:
    fields: dict[str, Any] = {"text": choice.text, "finish_reason": choice.finish_reason}
    if choice.index:
        fields["index"] = choice.index
    for name in ("logprobs", "token_ids", "message"):
        if (value := getattr(choice, name)) is not None:
            fields[name] = value
    if choice.extra:
        fields["extra"] = choice.extra
    return fields


def _of(kind: type | tuple[type, ...], value: Any) -> Any:
    if not isinstance(value, kind):
        raise TypeError
    return value


def _answer_in(fields: Mapping[str, Any]) -> Completion | Embedding | Classification:
    usage = fields.get("usage")
    if usage is not None:
        usage = Usage(**{name: _of(int, value) for name, value in usage.items()})
    attempts, extra = _of(int, fields.get("attempts", 1)), _of(dict, fields.get("extra", {}))
    if "choices" in fields:
        choices = tuple(map(_choice_in, fields["choices"]))
        if not choices:
            raise ValueError
        first_s = _of((int, float, type(None)), fields.get("time_to_first_token_s"))
        return Completion(
            choices, usage, attempts, first_s, extra, _of((int, type(None)), fields.get("counted_tokens"))
        )
    if "vector" in fields:
        return Embedding(array("f", b64decode(fields["vector"], validate=True)), usage, attempts, extra)
    probabilities = tuple(_of((int, float), each) for each in fields["probabilities"])
    return Classification(_of((str, type(None)), fields["label"]), probabilities, usage, attempts, extra)


def _choice_in(fields: Mapping[str, Any]) -> Choice:
    ids = fields.get("token_ids")
    return Choice(
        _of(int, fields.get("index", 0)),
        _of(str, fields["text"]),
        _of((str, type(None)), fields["finish_reason"]),
        _of((dict, type(None)), fields.get("logprobs")),
        None if ids is None else tuple(_of(int, each) for each in ids),
        _of(dict, fields.get("extra", {})),
        _of((dict, type(None)), fields.get("message")),
    )


# Errors --------------------------------------------------------------------------------------------------------------


def _is_final(error: Exception) -> bool:
    return isinstance(error, BatchClientError) and not error.retryable and not isinstance(error, _OF_THE_PLACE)


def _error_fields(error: Exception) -> dict[str, Any]:
    fields: dict[str, Any] = {"kind": type(error).__name__}
    if isinstance(error, BatchClientError):
        fields["message"] = error.message
        for name in _OF_ERRORS:
            value = getattr(error, name, None)
            if isinstance(value, (str, int, float)):
                fields[name] = value
    return fields


def _error_in(fields: Mapping[str, Any], attempts: int) -> BatchClientError:
    """Return the error of a record: of the class that it had, if that is one of this library."""
    name, message = _of(str, fields["kind"]), _of(str, fields.get("message", ""))
    kind = getattr(errors, name, None) if name in errors.__all__ else None
    made: BatchClientError = kind(message) if kind else BatchClientError(f"{name}: {message}" if message else name)
    made.attempt = attempts
    for field in _OF_ERRORS:
        if field in fields:
            setattr(made, field, _of((str, int, float), fields[field]))
    return made
