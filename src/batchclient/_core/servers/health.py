"""Whether an endpoint is fit to be sent calls: it is ejected when it fails, probed by one call, and comes back by and by.

    HEALTHY ──failures in a row──▶ EJECTED ──pause over, one call sent──▶ PROBING ──it answers──▶ RECOVERING ──▶ HEALTHY
                                      ▲──────────it fails: longer pause──────┘  (each answer allows one more sequence)

Rules:
- One refused connection ejects; so do 3 breaks or silences in a row, or 5 failures in a row of any kind (5xx). Any answer,
  a 4xx included, starts the count anew. A 429 is an answer.
- The last endpoint in use is never ejected for what it answers, nor for single silences: a poor server is better than none. It is
  ejected when it has vanished: it refuses connections, or its engine stands still, or 8 requests in a row broke that were all sent after
  the first break. (What was in flight when one of several servers behind a load balancer died breaks together, and says little of
  the others.) When the last one in use is ejected, those that were ejected but had not vanished are probed at once.
- What a gateway cuts off after a long silence (``Failure.cut_off``) is a server error, not a break: the server is there, and slow.
- The pause doubles with each failed probe: from 0.5 s to 8 s after refusals, which are found out at once and cost no caller
  anything; from 1 s to 30 s after other failures, since a caller pays for the probe with its time. An endpoint that
  was healthy for a minute starts at the shortest pause again.
- The probe is one real call by itself, not a list, and not a call that failed there before if another endpoint is in use. Where none
  is, a call that has not failed there goes first, unless connections are refused, which costs a call nothing.
- An endpoint that answers again after refused or broken connections is taken to have been started anew.
- Slow start: an endpoint that comes back is given an eighth of its limit, and one sequence more for each that it answers; where
  answers take long, twice as much every 5 s without a failure.

Sources: Envoy's outlier detection (``consecutive_5xx`` 5, ``base_ejection_time`` times the number of ejections, and the panic
threshold, under which Envoy balances over all hosts however ill); the half-open state is M. Nygard's circuit breaker (Release It!,
2007). Envoy returns a host without a probe after 30 s; here the pauses are shorter because only one call finds out.
"""

from __future__ import annotations

from enum import Enum

from batchclient._core.failures import Failure, FailureKind
from batchclient.errors import CertificateRefused, ReadTimedOut, RemoteError

__all__ = ["Health", "HealthState", "Sign", "sign_of"]

_FIRST_REFUSAL_PAUSE_S = 0.5
_LONGEST_REFUSAL_PAUSE_S = 8.0
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0
_REFUSALS_OF_A_STRANGER = 3
"""An endpoint that never answered fails its calls after this many refused connections."""
_WELL_AFTER_S = 60.0
_START_RATIO = 0.125
_DOUBLES_AFTER_S = 5.0
_BREAKS_OF_THE_LAST = 8


class HealthState(Enum):
    """What may be sent to an endpoint."""

    HEALTHY = "healthy"
    EJECTED = "ejected"
    """Nothing for a while, then one call."""
    PROBING = "probing"
    """One call is under way to find out; nothing else."""
    RECOVERING = "recovering"
    """A growing share of its limit."""


class Sign(Enum):
    """What the end of a batch says of its endpoint. The value is how it reads in a reason."""

    ALIVE = "an answer"
    REFUSED = "a refused connection"
    BROKEN = "a broken connection"
    SILENT = "silence"
    STILL = "an engine that stands still"
    FAULTY = "a server error"
    NOTHING = "nothing"


_EJECTS_AFTER = {Sign.REFUSED: 1, Sign.STILL: 1, Sign.BROKEN: 3, Sign.SILENT: 3, Sign.FAULTY: 5}
_MAY_BE_A_RESTART = (Sign.REFUSED, Sign.BROKEN)


def sign_of(failure: Failure) -> Sign:
    """Say what a failure says of the endpoint, whosever fault it is."""
    if failure.kind is FailureKind.NOT_SENT:
        return Sign.REFUSED
    if failure.cut_off:
        return Sign.FAULTY
    if failure.status is not None:
        return Sign.FAULTY if failure.status >= 500 and failure.status != 501 else Sign.ALIVE
    if issubclass(failure.error, RemoteError):
        # It came whole: no connection is to blame.
        return Sign.FAULTY if failure.kind is FailureKind.MAYBE_PROCESSED else Sign.NOTHING
    if failure.kind is FailureKind.MAYBE_PROCESSED:
        return Sign.SILENT if issubclass(failure.error, ReadTimedOut) else Sign.BROKEN
    if issubclass(failure.error, CertificateRefused):
        # No call is sent there again, but the next ones go elsewhere if there is an elsewhere.
        return Sign.BROKEN
    return Sign.NOTHING


class Health:
    """The health of one endpoint."""

    __slots__ = (
        "_breaks",
        "_broken_since",
        "_doubled_at",
        "_ejections",
        "_failures",
        "_healthy_since",
        "_may_be_restarted",
        "_refusals",
        "ailing",
        "allowed",
        "answered_once",
        "closed_until",
        "failing_since",
        "probe",
        "reason",
        "state",
        "vanished",
    )

    def __init__(self) -> None:
        self.state = HealthState.HEALTHY
        self.reason = ""
        """Why it is in this state; empty while nothing ever happened."""
        self.ailing = False
        """Whether there is anything an answer would change."""
        self.closed_until: float | None = None
        """Until when an ejected endpoint is left alone."""
        self.probe: int | None = None
        """The batch that probes it."""
        self.allowed: int | None = None
        """Sequences in flight at most, below the limit, while it recovers."""
        self.answered_once = False
        self.failing_since = 0.0
        """When its first failure after its last answer was."""
        self.vanished = False
        """Whether it was ejected last because it had vanished: to be probed after its pause, never at once."""
        self._refusals = 0
        self._failures = 0
        self._ejections = 0
        self._healthy_since = 0.0
        self._may_be_restarted = False
        self._broken_since: float | None = None
        """When the first of the breaks in a row was."""
        self._breaks = 0
        """Of those, requests that were sent after it."""
        self._doubled_at = 0.0

    def __repr__(self) -> str:
        return f"<Health {self.state.value}: {self.reason}>"

    @property
    def in_use(self) -> bool:
        """Whether it is given calls as they come."""
        return self.state is HealthState.HEALTHY or self.state is HealthState.RECOVERING

    @property
    def refuses(self) -> bool:
        """Whether its last connection was refused."""
        return self._refusals > 0

    @property
    def is_wrong_address(self) -> bool:
        """Whether it refused every connection and never answered."""
        return not self.answered_once and self._refusals >= _REFUSALS_OF_A_STRANGER

    def is_closed(self, now: float) -> bool:
        """Whether it is ejected and its pause is not over."""
        if self.closed_until is not None and now >= self.closed_until:
            self.closed_until = None
        return self.closed_until is not None

    def begin_probe(self, batch: int) -> None:
        """One call is sent to find out."""
        self.state = HealthState.PROBING
        self.probe = batch

    def end_probe(self, batch: int) -> None:
        """A batch is over; if it was the probe and said nothing, another may be sent."""
        if self.probe == batch:
            self.probe = None
            if self.state is HealthState.PROBING:
                self.state = HealthState.EJECTED

    def open_now(self) -> None:
        """Probe an ejected endpoint without waiting for the end of its pause."""
        self.closed_until = None

    @property
    def grows_at(self) -> float | None:
        """When a recovering endpoint is next given more, though nothing is answered."""
        return self._doubled_at + _DOUBLES_AFTER_S if self.state is HealthState.RECOVERING else None

    def grow(self, limit: int, now: float) -> None:
        """Slow start where answers take long."""
        if self.state is not HealthState.RECOVERING or self.allowed is None:
            return
        if self._failures:
            self._doubled_at = now
        elif now >= self._doubled_at + _DOUBLES_AFTER_S:
            self._doubled_at = now
            self.allowed *= 2
            if self.allowed >= limit:
                self._recover(now)

    def fail(self, sign: Sign, batch: int, now: float, *, others: bool, sent_at: float | None = None) -> bool:
        """A batch has failed; call ``end_probe`` after it.

        Args:
            sign: any but ``ALIVE`` and ``NOTHING``.
            batch: its id.
            now: the time.
            others: whether another endpoint is in use.
            sent_at: when the batch was sent; now, if not given.

        Returns:
            Whether it is ejected now and was not before, or again after a probe.
        """
        self.ailing = True
        if not self._failures:
            self.failing_since = now
        self._failures += 1
        if sign is Sign.REFUSED:
            self._refusals += 1
        if sign in _MAY_BE_A_RESTART:
            self._may_be_restarted = True
        if sign is Sign.BROKEN:
            if self._broken_since is None:
                self._broken_since = now
            elif sent_at is None or sent_at >= self._broken_since:
                self._breaks += 1
        if self.state is HealthState.EJECTED or (self.state is HealthState.PROBING and batch != self.probe):
            # What was in flight when it was ejected says nothing new.
            return False
        if self.state is not HealthState.PROBING and self._failures < _EJECTS_AFTER[sign]:
            return False
        times = "" if self._failures == 1 else f"{self._failures} failures in a row, the last: "
        vanished = self._has_vanished(sign)
        if not others and not vanished:
            self.reason = f"in use because no other is: {times}{sign.value}"
            if self.state is HealthState.PROBING:
                self._return(HealthState.HEALTHY)
            return False
        if self.state is HealthState.HEALTHY and now - self._healthy_since > _WELL_AFTER_S:
            self._ejections = 0
        self._ejections += 1
        self.state, self.allowed, self.probe, self.vanished = HealthState.EJECTED, None, None, vanished
        self.reason = f"{times}{sign.value}"
        first, longest = _FIRST_PAUSE_S, _LONGEST_PAUSE_S
        if sign is Sign.REFUSED:
            first, longest = _FIRST_REFUSAL_PAUSE_S, _LONGEST_REFUSAL_PAUSE_S
        self.closed_until = now + min(longest, first * 2.0 ** min(self._ejections - 1, 10))
        return True

    def answer(self, sequences: int, limit: int, now: float) -> bool:
        """An ailing endpoint has answered.

        Args:
            sequences: how many; 0 for an error that shows it lives.
            limit: the endpoint's.
            now: the time.

        Returns:
            Whether it is to be taken to have been started anew.
        """
        self._failures = self._refusals = self._breaks = 0
        self._broken_since = None
        restarted = False
        if self.state is HealthState.RECOVERING:
            assert self.allowed is not None
            self.allowed += sequences
            if self.allowed >= limit:
                self._recover(now)
        elif self.state is not HealthState.HEALTHY:
            restarted = self._may_be_restarted and self.answered_once
            self._return(HealthState.RECOVERING)
            self.allowed = max(1, int(limit * _START_RATIO))
            self._doubled_at = now
            self.reason = "it answers again"
        else:
            self.reason = ""
        self._may_be_restarted = False
        self.ailing = self.state is not HealthState.HEALTHY
        return restarted

    def _has_vanished(self, sign: Sign) -> bool:
        if sign is Sign.BROKEN:
            # A probe of one that had vanished before is no second opinion.
            return self.state is HealthState.PROBING or self._breaks >= _BREAKS_OF_THE_LAST
        return sign is Sign.REFUSED or sign is Sign.STILL

    def _recover(self, now: float) -> None:
        self._return(HealthState.HEALTHY)
        self.reason = "it has recovered"
        self._healthy_since = now

    def _return(self, state: HealthState) -> None:
        self.state = state
        self.closed_until = self.probe = self.allowed = None
