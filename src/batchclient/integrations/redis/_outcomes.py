"""How messages end: from answers and errors to results, dead letters, or neither. No Redis here.

Rules:
- An answer is a result. An error that the same message would meet again is a dead letter.
- An error that may pass, such as a server that broke off, is neither: the message is left to its
  lease, is delivered again, and becomes a dead letter once it was delivered too often.
- A refused key, an unknown model and a certificate may be the worker's fault. Before the worker's
  first answer, and where twenty come in a row, the worker stops; else they are the message's fault.
"""

from __future__ import annotations

import errno
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from batchclient._maps.fields import asked_for, encode, fields_of
from batchclient.errors import (
    AuthenticationFailed,
    BatchClientError,
    CertificateRefused,
    ClientClosed,
    DeadlineExceeded,
    NotFound,
)
from batchclient.integrations.redis._broker import Outcome
from batchclient.integrations.redis._messages import Message
from batchclient.types import Completion

__all__ = ["Judge", "ResultForm", "TooManyDeliveries", "Verdict", "body_of"]

_MOST_ALIKE = 20
_MAY_BE_THE_WORKERS = (AuthenticationFailed, NotFound, CertificateRefused)
_OF_THE_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS})


class TooManyDeliveries(Exception):
    """A message that was delivered again and again, and never had an outcome."""


class Verdict(Enum):
    """What becomes of a message after an error."""

    DEAD = "dead"
    LEFT = "left"
    STOP = "stop"


class Judge:
    """Judges errors, in the light of the outcomes before."""

    def __init__(self) -> None:
        self._has_succeeded = False
        self._alike = 0

    def __repr__(self) -> str:
        return f"<Judge, {self._alike} refused alike>"

    def succeed(self) -> None:
        """Note an answer: neither the key nor the model is wrong."""
        self._has_succeeded = True
        self._alike = 0

    def verdict(self, error: BaseException, message: Message, now: float) -> Verdict:
        """Judge an error.

        Args:
            error: the message's.
            message: the message.
            now: Unix seconds.
        """
        if isinstance(error, ClientClosed):
            return Verdict.STOP
        if isinstance(error, _MAY_BE_THE_WORKERS):
            if isinstance(error, NotFound) and message.model is not None:
                return Verdict.DEAD
            self._alike += 1
            return Verdict.DEAD if self._has_succeeded and self._alike < _MOST_ALIKE else Verdict.STOP
        if isinstance(error, DeadlineExceeded) and message.deadline is not None:
            # By the worker's clock the deadline passed a little earlier, or later.
            return Verdict.DEAD if message.deadline <= now + 1.0 else Verdict.LEFT
        if isinstance(error, BatchClientError):
            return Verdict.LEFT if error.retryable else Verdict.DEAD
        if isinstance(error, OSError) and error.errno in _OF_THE_DISK:
            return Verdict.LEFT
        return Verdict.DEAD


def body_of(answer: Any) -> dict[str, Any]:
    """Return the body of a result: the fields that a map would add to a row."""
    body = fields_of(answer)
    if isinstance(answer, Completion):
        body |= asked_for(answer)
    return body


@dataclass(frozen=True, slots=True)
class ResultForm:
    """Where results and dead letters go, and what they say.

    Args:
        form: ``key``, ``stream`` or ``none``, as of an ``Outcome``.
        prefix: the beginning of a key.
        worker: the consumer's name.
    """

    form: str
    prefix: str
    worker: str

    def result(
        self, message: Message, body: Mapping[str, Any], *, attempts: int, deliveries: int, seconds: float
    ) -> Outcome:
        """Return the outcome of a message with an answer."""
        if self.form == "none":
            return Outcome(message.entry, "none")
        fields: dict[str, Any] = {
            "id": message.id,
            "message": message.entry,
            "status": "ok",
            "body": body,
            "attempts": attempts,
            "deliveries": deliveries,
            "worker": self.worker,
            "seconds": round(seconds, 6),
        }
        if self.form == "key":
            return Outcome(message.entry, "key", (encode(fields),), self.prefix + message.id)
        texts = {name: encode(value) if name == "body" else str(value) for name, value in fields.items()}
        return Outcome(message.entry, "stream", tuple(text for pair in texts.items() for text in pair))

    def dead(self, entry: str, error: BaseException, *, deliveries: int, at: float) -> Outcome:
        """Return the outcome of a message that becomes a dead letter."""
        told = {"type": type(error).__name__, "message": str(error)}
        texts = (
            *("message", entry, "error", json.dumps(told, ensure_ascii=False).encode(errors="replace")),
            *("deliveries", str(deliveries), "worker", self.worker, "at", f"{at:.3f}"),
        )
        return Outcome(entry, "dead", texts)
