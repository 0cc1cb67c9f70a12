"""Refusals for load by a server that takes other work, and what it is sent after one.

Rules:
- Such a refusal is *free*: no failed attempt, and nothing to the retry budget. The server takes
  other work if it answered a call in the last 10 s, has held a request of ours for ten times as
  long as the refusal took, or ran out of memory with others under way. A call that pauses after a
  refusal is judged once more after it: a job's first are refused before anything is answered.
- Not free are a 503 or 529 later than 5 s (the server may have worked), and each refusal from a
  call's twentieth on.
- A free refusal begins a *spell*, in which the endpoint is sent one request for each that ended
  with an answer. The spell ends when 32 were answered for each that was refused, or after a
  quarter of a second. It lasts twice as long each time that the next refusal comes soon, up to 8 s.
- A long list ends with its longest answer. So a request may also go while the sequences under way
  are less than three quarters of those which the server held when it refused.
- After a ``Retry-After`` the spell is ten times as long as the rest. So rests take a tenth of the
  time at most. One request is sent when the rest is over. Up to half of what was under way before
  the refusal, each answer brings two: a server that refused all of it is filled again.
- A request that its caller left, or that was to blame itself, gives its place back. One that was
  lost does not.
- With none under way one is sent after a pause of 0.1 s, doubled each time, up to 2 s. A random
  part of the pause, half at most, is left out: clients refused together come back apart.

Source: a request for each answer is the conservation of packets (V. Jacobson, "Congestion avoidance
and control", SIGCOMM 1988).
"""

from __future__ import annotations

import math

from batchclient._core.failures import FULL, Failure, FailureKind

__all__ = ["ANSWERED_S", "HELD_RATIO", "Pace", "may_be_free"]

ANSWERED_S = 10.0
HELD_RATIO = 10.0
_LATEST_S = 5.0
_MOST_FREE = 19
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0
_SHORTEST_SPELL_S = 0.25
_LONGEST_SPELL_S = 8.0
_SPELL_RESTS = 10.0
_ANSWERS = 32
_HELD_SHARE = 0.75


def may_be_free(failure: Failure, refusals: int, seconds: float) -> bool:
    """Whether a failure is a refusal for load which is free if the server takes other work.

    Args:
        failure: why the batch failed.
        refusals: how often its calls were refused, this time included.
        seconds: how long the refusal took.
    """
    if failure.kind is not FailureKind.REJECTED or failure.status is None or refusals > _MOST_FREE:
        return False
    return failure.status not in FULL or seconds <= _LATEST_S


class Pace:
    """What one endpoint may be sent, in spells that begin with a free refusal."""

    __slots__ = ("_half", "_held", "_owed", "_pause_s", "_paused_until", "_rest_until", "_spell_s", "_until", "left")

    def __init__(self) -> None:
        self.left: int | None = None
        """Requests that may be sent now, with none under way one more; ``None``: any number."""
        self._until = self._paused_until = -math.inf
        self._rest_until = math.inf
        self._half = 0
        """Half of the requests under way before a spell with a rest."""
        self._held = 0.0
        """Sequences which the server held beside those that it refused; without a rest only."""
        self._owed = 0.0
        """Answered requests which are due before the spell ends early."""
        self._spell_s = _SHORTEST_SPELL_S
        self._pause_s = _FIRST_PAUSE_S

    def __repr__(self) -> str:
        return f"<Pace: {self.left} until {self._until:.3f} s>"

    def refused(self, rest_s: float, under_way: int, in_flight: int, now: float) -> None:
        """A request was refused.

        Args:
            rest_s: the server's ``Retry-After``, 0 if there is none.
            under_way: requests that are still under way.
            in_flight: their sequences.
        """
        if self.left is None:
            soon = now < self._until + 2 * self._spell_s
            self._spell_s = min(_LONGEST_SPELL_S, 2 * self._spell_s) if soon else _SHORTEST_SPELL_S
            self._owed = 0.0
            self._half = under_way // 2 if rest_s else 0
            self._held = math.inf
        self.left = 0
        self._held = 0.0 if rest_s else min(self._held, in_flight)
        if rest_s:
            self._rest_until = now + rest_s
        self._owed += math.inf if rest_s else _ANSWERS
        self._until = max(self._until, now + max(self._spell_s, _SPELL_RESTS * rest_s))

    def pause(self, jitter: float, now: float) -> None:
        """Nothing is under way any more in a spell; ``jitter`` is random, from 0 to 1."""
        self._paused_until = now + (1 - jitter / 2) * self._pause_s
        self._until = max(self._until, self._paused_until + self._spell_s)
        self._pause_s = min(_LONGEST_PAUSE_S, 2 * self._pause_s)

    def holds(self, in_flight: int) -> bool:
        """Whether nothing more may be sent beside so many sequences."""
        return self.left == 0 and in_flight > 0 and in_flight >= _HELD_SHARE * self._held

    def sent(self) -> None:
        """A request is sent."""
        if self.left:
            self.left -= 1

    def answered(self, under_way: int) -> None:
        """A request has ended with an answer; so many others are under way."""
        if self.left is not None:
            self.left += 2 if under_way + self.left < self._half else 1
            self._owed -= 1
            self._pause_s = _FIRST_PAUSE_S

    def given_back(self) -> None:
        """A request has ended without an answer, and the server is not to blame."""
        if self.left is not None:
            self.left += 1

    def lost(self, sequences: int) -> None:
        """A request was lost, and the server may still hold it."""
        self._held -= sequences

    def is_paused(self, now: float) -> bool:
        """Whether a pause lasts in which nothing is sent. Ends a spell that is over."""
        if self.left is not None and (now >= self._until or self._owed <= 0) and now >= self._paused_until:
            self.left = None
        if self.left is not None and now >= self._rest_until:
            self.left, self._rest_until = max(1, self.left), math.inf
        return self.left is not None and now < self._paused_until

    def wakes_at(self, now: float) -> float:
        """When more may be sent in a spell though nothing is answered."""
        return self._paused_until if now < self._paused_until else self._until
