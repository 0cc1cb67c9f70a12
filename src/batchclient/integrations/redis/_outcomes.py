"""How messages end: from answers and errors to results, dead letters, or neither. No Redis here.

Rules:
- An answer is a result. An error that the same message would meet again is a dead letter.
- An error that may pass, such as a server that broke off, is neither: the message is left to its
  lease, is delivered again, and becomes a dead letter once it was delivered too often.
- A message that no server has worked on was delivered in vain, and is handed back uncounted: no
  connection could be made, nothing was sent, or servers refuse all work for now (429, 503, 529).
- Where errors that may pass come in a row, the servers are ill: one message is tried at a time, at
  growing pauses.
- Messages wait for a key or a model that was good before, and is refused. If that lasts for longer
  than calls wait, they are handed back, and for its key the worker stops.
- A refused key, an unknown model and a certificate may be the worker's fault. Before the worker's
  first answer, and where twenty come in a row, the worker stops; else they are the message's fault.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from batchclient._maps.fields import encode
from batchclient.errors import (
    AuthenticationFailed,
    BadRequest,
    BatchClientError,
    CertificateRefused,
    ClientClosed,
    ConfigError,
    ConnectFailed,
    DeadlineExceeded,
    NotFound,
    RateLimited,
    RemoteError,
)
from batchclient.integrations.redis._broker import Outcome
from batchclient.integrations.redis._messages import Message

__all__ = ["Judge", "ResultForm", "TooManyDeliveries", "Verdict"]

_MOST_ALIKE = 20
_ILL_AFTER = 8
"""Errors that may pass, in a row, which are no longer the messages' own."""
_FIRST_REST_S = 0.5
_LONGEST_REST_S = 8.0
_UNAVAILABLE = (503, 529)
_MAY_BE_THE_WORKERS = (AuthenticationFailed, NotFound, CertificateRefused)


class TooManyDeliveries(Exception):
    """A message that was delivered again and again, and never had an outcome."""


class Verdict(Enum):
    """What becomes of a message after an error."""

    DEAD = "dead"
    LEFT = "left"
    BACK = "back"
    STOP = "stop"


class Judge:
    """Judges errors, in the light of the outcomes before."""

    def __init__(self) -> None:
        self._has_succeeded = False
        self._alike = 0
        self._passing = 0
        """Errors that may pass, in a row."""
        self._rest_s = 0.0
        self.rest_until: float = -math.inf
        """When the next message may be tried, where the servers are ill, on the worker's clock."""

    def __repr__(self) -> str:
        return f"<Judge, {self._alike} refused alike>"

    def succeed(self) -> None:
        """Note an answer: neither the key nor the model is wrong."""
        self._has_succeeded = True
        self._alike = self._passing = 0
        self._rest_s = 0.0

    @property
    def is_ill(self) -> bool:
        """Whether the servers have answered nothing for a row of errors that may pass."""
        return self._passing >= _ILL_AFTER

    def note_error(self, error: BaseException, verdict: Verdict, clock: float) -> None:
        """Note how an error was judged.

        Args:
            error: a message's.
            verdict: of the error.
            clock: the time on the worker's clock, seconds.
        """
        if verdict is Verdict.DEAD and isinstance(error, RemoteError):
            # The server has answered, and said no.
            self._passing = 0
            self._rest_s = 0.0
        elif verdict in (Verdict.LEFT, Verdict.BACK):
            self._passing += 1
            # Errors that come together cause one rest.
            if self.is_ill and clock >= self.rest_until:
                self._rest_s = min(_LONGEST_REST_S, max(_FIRST_REST_S, 2 * self._rest_s))
                self.rest_until = clock + self._rest_s

    def verdict(self, error: BaseException, message: Message, now: float) -> Verdict:
        """Judge an error.

        Args:
            error: the message's.
            message: the message.
            now: Unix seconds.
        """
        if isinstance(error, ClientClosed):
            return Verdict.STOP
        if isinstance(error, BadRequest) and error.retryable:
            # Key and model were good, and are refused for longer than calls wait.
            return Verdict.STOP if isinstance(error, AuthenticationFailed) else Verdict.BACK
        if isinstance(error, _MAY_BE_THE_WORKERS):
            if isinstance(error, NotFound) and message.model is not None:
                return Verdict.DEAD
            self._alike += 1
            return Verdict.DEAD if self._has_succeeded and self._alike < _MOST_ALIKE else Verdict.STOP
        # By the worker's clock the deadline passed a little earlier, or later.
        is_due = message.deadline is not None and message.deadline <= now + 1.0
        if isinstance(error, DeadlineExceeded) and is_due:
            return Verdict.DEAD
        if isinstance(error, BatchClientError):
            if not error.retryable or isinstance(error, ConfigError):
                return Verdict.DEAD
            return Verdict.BACK if self._in_vain(error) else Verdict.LEFT
        return Verdict.DEAD

    def _in_vain(self, error: BatchClientError) -> bool:
        """Whether no server has worked on the message."""
        if not isinstance(error, RemoteError):
            return isinstance(error, ConnectFailed) or error.attempt == 0
        # A single message that is always refused so must end all the same.
        return self.is_ill and (isinstance(error, RateLimited) or error.status in _UNAVAILABLE)


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
