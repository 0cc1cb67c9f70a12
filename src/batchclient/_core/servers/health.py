"""The health of an endpoint: ejected by failures, probed by one call, brought back step by step.

    state       what happens                                      then
    HEALTHY     a row of failures (``_RULES``), others in use     EJECTED, for a pause
                or the server vanished
    EJECTED     the pause is over, and one call is sent           PROBING
    PROBING     the call fails                                    EJECTED, for a longer pause;
                                                                  HEALTHY if no other is in use
                the call says nothing of the server               EJECTED, the pause is over
                the endpoint answers, or has taken the call on    RECOVERING
    RECOVERING  answers have brought its share up to the limit    HEALTHY
                a row of failures, as HEALTHY                     EJECTED
    AWAITED     its question is answered (``asking``)             HEALTHY

Rules:
- One connection that cannot be made (here a refused connection, whatever the cause) ejects; so do 3
  breaks or silences in a row, or 5 failures in a row of any kind (5xx). Any answer starts the count
  anew: also a 4xx, a 429 among them.
- The last endpoint in use is never ejected for its answers, nor for single silences: a poor server
  is better than none. The last endpoint is ejected when its server has vanished:
  - its server refuses connections, or its engine stands still;
  - or 8 requests in a row broke, all sent after the first break. (When one of several servers
    behind a load balancer dies, its requests in flight break together, and say little of the rest.)
  - or so 16 were told 502, 503 or 504 at once (``Failure.unserved``), by a server that has served
    calls, and it holds none of the row. (Where one of several replicas is dead, others hold some.)
- An answer to a request sent before the row brings nothing back: a server that goes may still
  answer what it has.
- A probe that is under way for 0.25 s, and for ten times as long as the last failure took, is taken
  on: the server is back, though its answer may take minutes.
- When the last endpoint in use is ejected, all endpoints ejected before for another reason than
  vanishing are probed at once.
- A request cut off by a gateway after a long silence (``Failure.cut_off``) is a server error, not a
  break: the server is there, and slow.
- The pause doubles with each failed probe. After refusals, also by a gateway, which are found out
  at once and cost no caller anything, the pause is 0.5 s to 8 s, and to 1 s where no other endpoint
  is in use. After other failures, whose probe costs a caller time, the pause is 1 s to 30 s. An
  endpoint healthy for a minute starts at the shortest pause again.
- The probe is one real call in a batch of its own. If another endpoint is in use, the probe is not
  a call that failed here before. Otherwise calls which have not failed here go first, unless
  connections are refused: a refusal costs a call nothing.
- An endpoint that answers again after such failures as end the last one counts as restarted.
- Slow start: an endpoint that comes back gets an eighth of its limit, and one sequence more for
  each answered sequence. Where answers take long, its share doubles every 1.5 s without a failure.

Sources: Envoy's outlier detection (``consecutive_5xx`` 5, ``base_ejection_time`` times the number
of ejections, and the panic threshold, under which Envoy balances over all hosts however ill). The
half-open state is M. Nygard's circuit breaker (Release It!, 2007). Envoy returns a host without a
probe after 30 s; here the pauses are shorter because only one call finds out.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import NamedTuple

from batchclient._core.failures import Sign
from batchclient._core.servers.hold import AWAITED, OUTAGE, Hold
from batchclient._core.servers.pace import HELD_RATIO
from batchclient._core.servers.pause import Pause

__all__ = ["Health", "HealthState"]

_FIRST_REFUSAL_PAUSE_S = 0.5
_LONGEST_REFUSAL_PAUSE_S = 8.0
_LONGEST_OF_THE_LAST_S = 1.0
_FIRST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 30.0
_REFUSALS_OF_A_STRANGER = 3
"""An endpoint without any answer so far fails its calls after this many refused connections."""
_WELL_AFTER_S = 60.0
_START_RATIO = 0.125
_DOUBLES_AFTER_S = 1.5
_TAKEN_ON_S = 0.25


class HealthState(Enum):
    """The calls that may be sent to an endpoint."""

    HEALTHY = "healthy"
    EJECTED = "ejected"
    """None for a while, then one call."""
    PROBING = "probing"
    """One call is under way to find out; no others."""
    RECOVERING = "recovering"
    """A growing share of the limit."""
    AWAITED = "awaited"
    """None before its first answer, to a question beside the calls (see ``asking``)."""


class _Rule(NamedTuple):
    """What failures of a sign do. ``is_cheap``: a probe costs no caller time, as they come at once."""

    ejects_after: int
    """Failures in a row, of any sign."""
    vanishes_after: int | None = None
    """Failures in a row, beside the first; ``None``: they do not show that the server has vanished."""
    is_cheap: bool = False


_RULES = {
    Sign.REFUSED: _Rule(1, 0, is_cheap=True),
    Sign.STILL: _Rule(1, 0),
    Sign.BROKEN: _Rule(3, 8),
    Sign.SILENT: _Rule(3),
    Sign.FAULTY: _Rule(5),
    # Where every second request meets a dead replica, 16 in a row are one in 65,536.
    Sign.UNSERVED: _Rule(5, 16, is_cheap=True),
}


class Health:
    """The health of an endpoint."""

    def __init__(self) -> None:
        self.state = HealthState.HEALTHY
        self.reason = ""
        """The reason of the state; empty at first."""
        self.ailing = False
        """Whether an answer would change anything."""
        self.closed_until: float | None = None
        """The end of an ejected endpoint's pause."""
        self.probe: int | None = None
        """The id of the batch that probes the endpoint."""
        self.taken_on_at: float | None = None
        """When the probe will have been under way so long that the server has taken it on."""
        self.allowed: int | None = None
        """Most sequences in flight during a recovery, below the limit."""
        self.answered_once = False
        self.failed_in_s = 0.0
        """How long the last failed request was under way."""
        self.failing_since = 0.0
        """When its first failure after its last answer was."""
        self.vanished = False
        """Whether the last ejection was for vanishing: the probe then waits for the pause."""
        self.row_since: float | None = None
        """The time of the first in a row of failures of a server that may have vanished."""
        self._row = 0
        """Those in the row whose requests were sent after the first."""
        self._refusals = self._failures = 0
        self._pause = Pause(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        self._pause_if_cheap = Pause(_FIRST_REFUSAL_PAUSE_S, _LONGEST_REFUSAL_PAUSE_S)
        self._healthy_since = self._doubled_at = 0.0

    def __repr__(self) -> str:
        return f"<Health {self.state.value}: {self.reason}>"

    @property
    def in_use(self) -> bool:
        """Whether calls go to the endpoint as they come."""
        return self.state is HealthState.HEALTHY or self.state is HealthState.RECOVERING

    @property
    def refuses(self) -> bool:
        """Whether its last connection was refused."""
        return self._refusals > 0

    @property
    def is_wrong_address(self) -> bool:
        """Whether the endpoint refused at least three connections and never answered."""
        return not self.answered_once and self._refusals >= _REFUSALS_OF_A_STRANGER

    def hold(self, now: float) -> Hold | None:
        """What holds calls back; ``None``: nothing, though fewer than the limit may be allowed."""
        if self.in_use:
            return None
        if self.state is HealthState.AWAITED:
            return Hold(math.inf, AWAITED, math.inf)
        at = self.closed_until if self.state is HealthState.EJECTED else self.taken_on_at
        if at is not None and now < at:
            return Hold(at, OUTAGE, at)
        # The pause is over: one call may find out, and more not before its end.
        return Hold(math.inf, OUTAGE, now)

    def wait(self) -> None:
        """Wait for the first answer, to a question beside the calls."""
        self.state, self.ailing, self.reason = HealthState.AWAITED, True, "it has not answered yet"

    def end_wait(self, reason: str) -> None:
        """It has come, or is waited for no longer."""
        self.state, self.ailing, self.reason = HealthState.HEALTHY, False, reason

    def begin_probe(self, batch: int, now: float) -> float:
        """Note that one call is sent to find out; return when it will have been taken on."""
        self.state = HealthState.PROBING
        self.probe = batch
        self.taken_on_at = now + max(_TAKEN_ON_S, HELD_RATIO * self.failed_in_s)
        return self.taken_on_at

    def end_probe(self, batch: int) -> None:
        """Note the end of a batch; after a probe which said nothing, another may be sent."""
        if self.probe == batch:
            self.probe = self.taken_on_at = None
            if self.state is HealthState.PROBING:
                self.state = HealthState.EJECTED

    def open_now(self) -> None:
        """End the pause of an ejected endpoint at once."""
        self.closed_until = None

    @property
    def grows_at(self) -> float | None:
        """The time when a recovering endpoint next gets more, even without answers."""
        return self._doubled_at + _DOUBLES_AFTER_S if self.state is HealthState.RECOVERING else None

    def grow(self, limit: int, now: float) -> None:
        """Double the share of a recovering endpoint whose answers take long."""
        if self.state is not HealthState.RECOVERING or self.allowed is None:
            return
        if self._failures:
            self._doubled_at = now
        elif now >= self._doubled_at + _DOUBLES_AFTER_S:
            self._doubled_at = now
            self.allowed *= 2
            if self.allowed >= limit:
                self._recover(now)

    def fail(
        self,
        sign: Sign,
        batch: int,
        now: float,
        *,
        others: bool,
        sent_at: float | None = None,
        seen: str = "",
        there: bool = False,
    ) -> bool:
        """Take in a failure; return whether the endpoint is now ejected, also again after a probe.

        Call ``end_probe`` afterwards.

        Args:
            sign: any but ``ALIVE`` and ``NOTHING``.
            others: whether another endpoint is in use.
            sent_at: when the batch was sent; now, if not given.
            seen: the failure in a few words; the sign's words, if not given.
            there: whether something else shows that the server is there.
        """
        rule = _RULES[sign]
        self._count(sign, rule, now if sent_at is None else sent_at, now)
        is_probe = self.state is HealthState.PROBING and batch == self.probe
        if not (self.in_use or is_probe):
            # A batch in flight at the ejection says nothing new.
            return False
        if not is_probe and self._failures < rule.ejects_after:
            return False
        times = "" if self._failures == 1 else f"{self._failures} failures in a row, the last: "
        reason = f"{times}{seen or sign.value}"
        # A probe after an earlier vanishing is no second opinion.
        vanished = rule.vanishes_after is not None and (is_probe or self._row >= rule.vanishes_after) and not there
        if not others and not vanished:
            self.reason = f"in use because no other is: {reason}"
            if is_probe:
                self._return(HealthState.HEALTHY)
            return False
        if self.state is HealthState.HEALTHY and now - self._healthy_since > _WELL_AFTER_S:
            self._pause.forget()
            self._pause_if_cheap.forget()
        pause_s, if_cheap_s = self._pause.take(), self._pause_if_cheap.take()
        if rule.is_cheap:
            pause_s = if_cheap_s if others else min(if_cheap_s, _LONGEST_OF_THE_LAST_S)
        self._return(HealthState.EJECTED)
        self.reason, self.vanished, self.closed_until = reason, vanished, now + pause_s
        return True

    def _count(self, sign: Sign, rule: _Rule, sent_at: float, now: float) -> None:
        self.ailing = True
        if not self._failures:
            self.failing_since = now
        self._failures += 1
        self._refusals += sign is Sign.REFUSED
        self.failed_in_s = now - sent_at
        if rule.vanishes_after is not None:
            if self.row_since is None:
                self.row_since = now
            elif sent_at >= self.row_since:
                self._row += 1

    def answer(self, sequences: int, limit: int, now: float, sent_at: float | None = None) -> bool:
        """Take in an ailing endpoint's answer; return whether the server counts as restarted.

        ``sequences`` is 0 for an error that shows life; ``limit`` is the endpoint's; ``sent_at`` is
        when the batch was sent.
        """
        if not self.in_use and self.row_since is not None and sent_at is not None and sent_at < self.row_since:
            return False
        self._failures = self._refusals = self._row = 0
        was_in_a_row, self.row_since = self.row_since is not None, None
        restarted = False
        if self.state is HealthState.RECOVERING:
            assert self.allowed is not None
            self.allowed += sequences
            if self.allowed >= limit:
                self._recover(now)
        elif self.state is not HealthState.HEALTHY:
            restarted = was_in_a_row and self.answered_once
            self._return(HealthState.RECOVERING)
            self.allowed = max(1, int(limit * _START_RATIO))
            self._doubled_at = now
            self.reason = "it answers again"
        else:
            self.reason = ""
        self.ailing = self.state is not HealthState.HEALTHY
        return restarted

    def _recover(self, now: float) -> None:
        self._return(HealthState.HEALTHY)
        self.reason = "it has recovered"
        self._healthy_since = now

    def _return(self, state: HealthState) -> None:
        self.state = state
        self.closed_until = self.probe = self.taken_on_at = self.allowed = None
