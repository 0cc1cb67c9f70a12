"""The inputs and outputs of a limit: samples in, a number and its reason out.

The unit is a sequence (prompts × n), never an HTTP request: every server schedules sequences.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["NEWEST_SHARE", "USED_RATIO", "FixedLimit", "Limit", "LimitChange", "Outcome", "Sample", "ServerLoad"]


NEWEST_SHARE = 0.1
"""The weight of the newest value in a running mean."""
USED_RATIO = 0.8
"""At times a used limit has so much in flight: permits refill in lots of at most a quarter."""


class Outcome(Enum):
    """The meaning of finished sequences for the server.

    ``SUCCESS``: answered. ``WASTED``: their callers left while the server worked: time was wasted.
    ``LATE``: wasted by a passed deadline, or by a gateway's cut after a long silence. ``DROPPED``:
    the server refused work. ``IGNORED``: no meaning (a caller's fault, a broken connection).
    """

    SUCCESS = "success"
    WASTED = "wasted"
    LATE = "late"
    IGNORED = "ignored"
    DROPPED = "dropped"


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
        cut_off: whether a gateway cut the sequences off after a long silence.
        out_of_memory: whether the server had no memory for the sequences.
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
    cut_off: bool = False
    out_of_memory: bool = False


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


@dataclass(frozen=True, slots=True)
class LimitChange:
    """A new limit and why."""

    limit: int
    reason: str


class Limit:
    """The number of sequences allowed in flight. Pure: no clock, no randomness.

    Each ``on_…`` method returns the resulting change, if any. By default nothing changes.
    """

    __slots__ = ("limit", "reason")

    def __init__(self, limit: int, reason: str) -> None:
        self.limit: int = limit
        """Sequences that may be in flight, at least 1."""
        self.reason: str = reason
        """The reason of the number."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.limit}: {self.reason}>"

    def on_sample(self, sample: Sample) -> LimitChange | None:
        """Take in one observation."""
        return None

    def on_load(self, load: ServerLoad, in_flight: int, now: float, took_s: float = 0.0) -> LimitChange | None:
        """Take in a metrics page's report, asked for ``took_s`` ago.

        ``in_flight`` of its sequences are this client's.
        """
        return None

    def on_known(self, slots: int | None, now: float) -> LimitChange | None:
        """Take in that a server was found, and its sequences at once (``slots``) if stated."""
        return None

    def on_restart(self, now: float, guess: int | None = None) -> LimitChange | None:
        """The server was restarted: forget all but a guess of the load."""
        return None

    def on_resume(self, now: float) -> LimitChange | None:
        """Calls are about to be sent, and nothing was in flight."""
        return None

    def interrupt(self, now: float) -> LimitChange | None:
        """End a trial without a verdict: the limit is pinned, or its server is left."""
        return None

    def on_bound(self, now: float) -> LimitChange | None:
        """Refusals or late answers have bounded the sequences in flight."""
        return None

    def pin(self, limit: int | None, now: float) -> LimitChange | None:
        """Hold the limit at a number; ``None`` lets go."""
        return None

    def _set(self, limit: int, reason: str) -> LimitChange | None:
        if limit == self.limit:
            return None
        self.limit, self.reason = limit, reason
        return LimitChange(limit, reason)


class FixedLimit(Limit):
    """A number set by a person. Refusals bound the number (``LimitControl``)."""

    __slots__ = ()

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError("a limit is at least 1")
        super().__init__(limit, "fixed")
