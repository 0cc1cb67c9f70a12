"""From a row's outcome to its record, and back.

Rules:
- A record is written and read by pydantic, field by field: a line of another form is a damaged one,
  whatever its checksum says.
- An error's record has the words that the library itself makes, which hold no key and no prompt. Of
  other errors only the class is kept.
"""

from __future__ import annotations

import json
from array import array
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from pydantic import TypeAdapter
from pydantic_core import to_json

from batchclient import errors
from batchclient.errors import AnswerInvalid, AuthenticationFailed, BatchClientError, CertificateRefused, NotFound
from batchclient.health import Health
from batchclient.journal.lines import is_whole, sealed
from batchclient.types import Classification, Completion, Embedding, Ranking, Score, Usage

__all__ = [
    "ANSWERED", "ANSWERS", "FAILED", "MAY_BE_TRIED", "Record", "Sending", "is_final", "line_of_row", "record_in",
]  # fmt: skip

State = Literal["answered", "failed", "failed for now"]
ANSWERED: State = "answered"
FAILED: State = "failed"
"""The row failed for good: the same call would fail again."""
MAY_BE_TRIED: State = "failed for now"
"""The row failed, and may succeed later."""

ANSWERS = ("completion", "embedding", "classification", "score", "ranking")
"""The fields of a record that have an answer; one of them is given, or the error."""
_OF_THE_PLACE = (AuthenticationFailed, NotFound, CertificateRefused)
"""These errors are about key, model or server, not about the row."""
_OF_ERRORS = ("status", "code", "retry_after_s", "field", "health")
_LEFT_OUT: Any = {
    "completion": {"choices": {"__all__": {"parsed"}}, "queued_s": True},
    **{name: {"queued_s"} for name in ("score", "ranking", "classification")},
}
"""What was parsed is made of the text again, and an answer from a journal was not queued."""


@dataclass(slots=True)
class _Vector:
    vector: str
    usage: Usage | None = None
    attempts: int = 1
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class _Failure:
    kind: str
    message: str = ""
    status: int | None = None
    code: str | int | None = None
    retry_after_s: float | None = None
    field: str | None = None
    health: Health | None = None


class Sending(NamedTuple):
    """When and beside what a row was sent; its time to first token is the answer's.

    Args:
        sent: Unix time, seconds.
        seconds: until the answer.
        in_flight: sequences that its server then had of the client's, its own among them.
        prompt_bytes: of its prompt, as JSON.
    """

    sent: float
    seconds: float
    in_flight: int
    prompt_bytes: int


@dataclass(slots=True)
class Record:
    """A row as it is in the journal.

    Args:
        key: what the row is: 32 hexadecimal digits.
        n: how many rows with that key came before.
        state: ``ANSWERED`` and so on.
        attempts: requests sent that contained the row.
        id: the document's own, if it has one.
        completion, embedding, classification, score, ranking, error: one of them is given.
        sent, seconds, in_flight, prompt_bytes: see ``Sending``; ``None``: the journal does not say.
        crc: of the line.
    """

    key: str
    n: int
    state: State
    attempts: int
    id: str | None = None
    completion: Completion | None = None
    embedding: _Vector | None = None
    classification: Classification | None = None
    score: Score | None = None
    ranking: Ranking | None = None
    error: _Failure | None = None
    sent: float | None = None
    seconds: float | None = None
    in_flight: int | None = None
    prompt_bytes: int | None = None
    crc: str = ""

    @property
    def answer(self) -> Completion | Embedding | Classification | Score | Ranking | None:
        """The answer; ``None``: the row failed."""
        if (kept := self.embedding) is not None:
            return Embedding(array("f", b64decode(kept.vector, validate=True)), kept.usage, kept.attempts, kept.extra)
        return self.completion or self.classification or self.score or self.ranking

    @property
    def health(self) -> Health | None:
        """Of a generated answer, also of one that did not fit."""
        return getattr(self.completion or self.error, "health", None)

    @property
    def failure(self) -> BatchClientError | None:
        """The error of a row that failed, of the class that it had, if that is the library's."""
        kept = self.error
        if kept is None:
            return None
        kind = getattr(errors, kept.kind, None) if kept.kind in errors.__all__ else None
        words = f"{kept.kind}: {kept.message}" if kept.message else kept.kind
        made: BatchClientError = kind(kept.message) if kind else BatchClientError(words)
        made.attempt = self.attempts
        for name in _OF_ERRORS:
            if (value := getattr(kept, name)) is not None:
                setattr(made, name, value)
        return made


_records = TypeAdapter(Record)


def is_final(error: Exception) -> bool:
    """Whether the same call would fail again, or was answered, and the answer is paid."""
    if isinstance(error, AnswerInvalid):
        return True
    return isinstance(error, BatchClientError) and not error.retryable and not isinstance(error, _OF_THE_PLACE)


def line_of_row(
    key: bytes,
    n: int,
    own_id: str | None,
    answer: Any,
    error: Exception | None,
    attempts: int,
    sending: Sending | None = None,
) -> bytes:
    """Return the line of a row that has ended; the arguments are as in ``Record``."""
    record = Record(key.hex(), n, ANSWERED, attempts, own_id)
    if error is not None:
        record.state = FAILED if is_final(error) else MAY_BE_TRIED
        record.error = _Failure(type(error).__name__)
        if isinstance(error, BatchClientError):
            given = {name: getattr(error, name, None) for name in _OF_ERRORS}
            record.error = _Failure(type(error).__name__, error.message, **given)
    elif isinstance(answer, Completion):
        record.completion = answer
    elif isinstance(answer, Embedding):
        vector = b64encode(answer.vector.tobytes()).decode()
        record.embedding = _Vector(vector, answer.usage, answer.attempts, answer.extra)
    elif isinstance(answer, Score):
        record.score = answer
    elif isinstance(answer, Ranking):
        record.ranking = answer
    else:
        record.classification = answer
    if sending is not None:
        record.sent, record.seconds, record.in_flight, record.prompt_bytes = sending
    fields = _records.dump_python(record, exclude_defaults=True, exclude=_LEFT_OUT)
    try:
        return sealed(to_json(fields))
    except ValueError:  # half of a surrogate pair, which JSON's escapes let a server send, and no UTF-8 holds
        return sealed(json.dumps(fields, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace"))


def record_in(line: bytes) -> Record | None:
    """Return the record of a line; ``None``: it is damaged, or of another form."""
    try:
        record = _records.validate_json(line, strict=True) if is_whole(line) else None
        if record is None or (record.state == ANSWERED) != (record.error is None):
            return None
        kept = record.completion
        has_all = kept.choices if kept is not None else record.error is not None or record.answer is not None
    except ValueError:
        return None
    return record if has_all else None
