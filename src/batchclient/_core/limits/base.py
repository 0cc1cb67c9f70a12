"""The inputs and outputs of a limit: samples in, a number and its reason out.

The unit is a sequence (prompts × n), never an HTTP request: every server schedules sequences.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

__all__ = [
    "LATE", "PAUSE_S", "REFUSALS", "USED_RATIO", "Answers", "Cooldown", "Outcome", "Sample",
    "ServerLoad",
]  # fmt: skip


USED_RATIO = 0.8
"""At times a used limit has so much in flight: permits refill in lots of at most a quarter."""
PAUSE_S = 3.0
"""So long without an answer, beyond the time of answers, ends a job."""
_NEWEST_SHARE = 0.1
"""The weight of the newest value in a running mean."""
_FIRST_S = 60.0
_LONGEST_S = 900.0
"""How long nothing is tried that did not pay: at first, and at most."""


class Outcome(Enum):
    """The meaning of finished sequences for the server.

    ``SUCCESS``: answered. ``WASTED``: their callers left while the server worked: time was wasted.
    ``LATE``: wasted by a passed deadline. ``CUT_OFF``: late as well, by a gateway's cut after a
    long silence. ``DROPPED``: the server refused work. ``OUT_OF_MEMORY``: it did, for want of
    memory. ``IGNORED``: no meaning (a caller's fault, a broken connection).
    """

    SUCCESS = "success"
    WASTED = "wasted"
    LATE = "late"
    CUT_OFF = "cut off"
    IGNORED = "ignored"
    DROPPED = "dropped"
    OUT_OF_MEMORY = "out of memory"


LATE = (Outcome.LATE, Outcome.CUT_OFF)
REFUSALS = (Outcome.DROPPED, Outcome.OUT_OF_MEMORY)


@dataclass(slots=True, eq=False)
class Sample:
    """One observation: some sequences of one batch have ended.

    Made once per reply event, so slotted but not frozen.

    Args:
        now: when the sequences ended, seconds.
        sent_at: when their batch was granted.
        in_flight: the endpoint's sequences in flight just before the end.
        mean_in_flight: its time-average from ``sent_at`` to ``now``: the load during service.
        in_flight_at_sent: sequences in flight just after the grant: the queue joined.
        sequences: how many ended.
        prompt_tokens: of their prompts, by the server's count; 0 without a count.
        completion_tokens: generated tokens; 0 if unknown.
        first_tokens_s: the sum of times from ``sent_at`` to first token; 0: a plain reply.
        outcome: the meaning for the server.
        admitted_at: the limit in force at the grant.
        shared_tokens: prompt tokens in prefixes sent to the server before: about, at least.
        weight: sequences of one call (``n``), granted together.
        priority: their priority class.
        retry_after_s: the rest wished for by a refusing server, seconds; 0: none stated.
    """

    now: float
    sent_at: float
    in_flight: int
    mean_in_flight: float
    in_flight_at_sent: int
    sequences: int
    prompt_tokens: int
    completion_tokens: int
    first_tokens_s: float
    outcome: Outcome
    admitted_at: int
    shared_tokens: float = 0.0
    weight: int = 1
    priority: int = 0
    retry_after_s: float = 0.0


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """One report of a server's metrics page; ``None``: not on the page.

    Args:
        running: sequences worked on.
        waiting: sequences in the server's queue.
        kv_usage_ratio: the used share of the KV cache, 0 to 1.
        preemptions: sequences thrown out of the cache so far.
        generation_tokens: generated so far.
        prefix_hit_tokens: prompt tokens found in the prefix cache so far.
        prefix_query_tokens: prompt tokens looked up there so far.
    """

    running: float | None = None
    waiting: float | None = None
    kv_usage_ratio: float | None = None
    preemptions: float | None = None
    generation_tokens: float | None = None
    prefix_hit_tokens: float | None = None
    prefix_query_tokens: float | None = None


class Answers:
    """What the last answers of one server tell of its work, and since when they come."""

    def __init__(self) -> None:
        self.latency_s: float = 0.0
        """Running mean of the seconds to an answer's end."""
        self.first_s: float = 0.0
        """Running mean of the seconds to its first token."""
        self.tokens: float = 0.0
        """Running mean of its output tokens."""
        self.tokens_at: float = -math.inf
        """When the last answer with tokens ended."""
        self.ended_at: float = -math.inf
        """When the last answer ended."""
        self.began: float = math.inf
        """When the job began: since then answers come without a pause."""

    def add(self, sample: Sample) -> bool:
        """Take in one observation; return whether a job began with it."""
        outcome = sample.outcome
        if outcome is Outcome.IGNORED or outcome in REFUSALS:
            return False
        begins = sample.sent_at - self.ended_at > PAUSE_S + self.latency_s
        if begins:
            self.began = sample.sent_at
        self.ended_at = sample.now
        if outcome is Outcome.WASTED:
            # Who leaves says nothing of the server's time.
            return begins
        self.latency_s = _mean(self.latency_s, sample.now - sample.sent_at)
        if outcome is Outcome.SUCCESS:
            self.first_s = _mean(self.first_s, sample.first_tokens_s / sample.sequences)
            if sample.completion_tokens > 0:
                self.tokens = _mean(self.tokens, sample.completion_tokens / sample.sequences)
                self.tokens_at = sample.now
        return begins


def _mean(mean: float, newest: float) -> float:
    return mean + _NEWEST_SHARE * (newest - mean) if mean else newest


class Cooldown:
    """A time in which something that did not pay is not tried again, longer each time."""

    def __init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """The work or the server has changed: what did not pay may pay now."""
        self._until, self._next_s = -math.inf, _FIRST_S

    def lasts(self, now: float) -> bool:
        return now < self._until

    def begin(self, now: float) -> None:
        """It did not pay."""
        self._until = now + self._next_s
        self._next_s = min(_LONGEST_S, 2 * self._next_s)

    def rest(self, now: float) -> None:
        """Nothing speaks against it, but it waits for the shortest time; the next length stays."""
        self._until = max(self._until, now + _FIRST_S)
