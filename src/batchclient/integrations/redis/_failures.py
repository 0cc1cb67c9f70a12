"""What becomes of a message after an error, in the light of the outcomes before. No Redis here.

Rules:
- An error that the same message would meet again is a dead letter.
- An error that may pass, such as a server that broke off, leaves the message to its lease: it is
  delivered again, and becomes a dead letter once it was delivered too often.
- A call that no server took (no connection, nothing sent, 429, 503, 529) costs no delivery. But a
  refusal is the message's own, and costs one, where other messages for the same model were answered
  meanwhile.
- After eight errors in a row that may pass, the servers are failing: one message at a time is
  tried, at growing pauses.
- A refused key, an unknown model and a certificate may be the worker's fault. Before the worker's
  first answer, and where twenty come in a row, the worker stops; else they are the message's fault.
- Messages wait for a model that was answered, and that the servers do not know now: 404, 401, or a
  400 with such words. Where twenty 401s come in a row, the worker stops.
"""

from __future__ import annotations

import math
import re
from enum import Enum

from batchclient.errors import (
    AuthenticationFailed,
    BadRequest,
    BatchClientError,
    CertificateRefused,
    ClientClosed,
    ConfigError,
    ConnectFailed,
    NotFound,
    RateLimited,
    RemoteError,
)

__all__ = ["Action", "Failures", "TooManyDeliveries"]

_MOST_ALIKE = 20
_FAILING_AFTER = 8
"""Errors that may pass, in a row, which are no longer the messages' own."""
_FIRST_REST_S = 0.5
_LONGEST_REST_S = 8.0
_UNAUTHORIZED = 401
_UNAVAILABLE = (503, 529)
_LOST_MODEL = re.compile(r"\bmodel\b[^.;]{0,256}(not found|does not exist|is sleeping)", re.IGNORECASE)
"""Words of routers whose worker has gone, with a 400."""
_MAY_BE_THE_WORKERS = (AuthenticationFailed, NotFound, CertificateRefused)
_MOST_MODELS = 1024


class TooManyDeliveries(Exception):
    """A message that was delivered again and again, and never had an outcome."""


class Action(Enum):
    """What becomes of a message after an error."""

    DEAD_LETTER = "dead"
    LEAVE = "left"
    """To its lease: the delivery counts."""
    RELEASE = "released"
    """As if it had not been delivered."""
    STOP = "stop"
    """The worker ends, and hands the message back."""


class Failures:
    """Knows the outcomes of a worker's calls.

    Attributes:
        rest_until: when the next message may be tried, where the servers are failing, on the
            worker's clock.
    """

    def __init__(self) -> None:
        self.rest_until: float = -math.inf
        self._has_succeeded = False
        self._alike = 0
        self._passing = 0
        """Errors that may pass, in a row."""
        self._rest_s = 0.0
        self._answered_at: dict[str | None, float] = {}
        """By model: when a message was last answered."""

    def __repr__(self) -> str:
        return f"<Failures: {self._passing} in a row>"

    @property
    def are_all(self) -> bool:
        """Whether nothing was answered in a row of errors that may pass: the servers are failing."""
        return self._passing >= _FAILING_AFTER

    def take_answer(self, model: str | None, now: float) -> None:
        """Note an answer: neither the key nor the model is wrong.

        Args:
            model: that the message named.
            now: on the worker's clock, seconds.
        """
        self._has_succeeded = True
        self._alike = self._passing = 0
        self._rest_s = 0.0
        if len(self._answered_at) >= _MOST_MODELS:
            self._answered_at.clear()
        self._answered_at[model] = now

    def take_error(self, error: BaseException, model: str | None, began_at: float, now: float) -> Action:
        """Note an error, and return what becomes of its message.

        Args:
            error: of the message's call.
            model: that the message named.
            began_at: when the call began, on the worker's clock, seconds.
            now: on the worker's clock, seconds.
        """
        action = self._action(error, model, began_at)
        if action is Action.DEAD_LETTER and isinstance(error, RemoteError):
            # The server has answered, and said no.
            self._passing = 0
            self._rest_s = 0.0
        elif action in (Action.LEAVE, Action.RELEASE):
            self._passing += 1
            # Errors that come together cause one rest.
            if self.are_all and now >= self.rest_until:
                self._rest_s = min(_LONGEST_REST_S, max(_FIRST_REST_S, 2 * self._rest_s))
                self.rest_until = now + self._rest_s
        return action

    def _action(self, error: BaseException, model: str | None, began_at: float) -> Action:
        if isinstance(error, ClientClosed):
            return Action.STOP
        if isinstance(error, ConfigError):
            # Message and client name none, and the servers were asked for theirs in vain;
            # or they show a guest no load.
            is_the_workers = (error.field == "model" and model is None) or error.field == "limit.guest"
            return Action.STOP if is_the_workers else Action.DEAD_LETTER
        if isinstance(error, BadRequest) and error.retryable:
            # Key and model were good, and are refused for longer than calls wait.
            return Action.STOP if isinstance(error, AuthenticationFailed) else Action.RELEASE
        if isinstance(error, BadRequest) and self._answered_at.get(model, math.inf) <= began_at and _is_lost(error):
            # The servers load another model, or the same one again; or the key was withdrawn.
            self._alike += error.status == _UNAUTHORIZED
            return Action.STOP if self._alike >= _MOST_ALIKE else Action.RELEASE
        if isinstance(error, _MAY_BE_THE_WORKERS):
            if isinstance(error, NotFound) and model is not None:
                return Action.DEAD_LETTER
            self._alike += 1
            return Action.DEAD_LETTER if self._has_succeeded and self._alike < _MOST_ALIKE else Action.STOP
        if not isinstance(error, BatchClientError) or not error.retryable:
            return Action.DEAD_LETTER
        if isinstance(error, RateLimited) or (isinstance(error, RemoteError) and error.status in _UNAVAILABLE):
            is_own = self._answered_at.get(model, -math.inf) > began_at
            return Action.LEAVE if is_own else Action.RELEASE
        was_not_sent = isinstance(error, ConnectFailed) or (error.attempt == 0 and not isinstance(error, RemoteError))
        return Action.RELEASE if was_not_sent else Action.LEAVE


def _is_lost(error: BadRequest) -> bool:
    """Whether an error says that the model, or the key for it, is not there any more."""
    if isinstance(error, NotFound):
        return "model" in error.message.lower()
    return error.status == _UNAUTHORIZED or bool(_LOST_MODEL.search(error.message))
