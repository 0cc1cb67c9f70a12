"""What a limit is told and what it answers.

Fed with samples, a limit answers with a number and its reason. The unit is a sequence (prompts × n): that is what every server
schedules, never an HTTP request.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

__all__ = ["NEWEST_SHARE", "USED_RATIO", "FixedLimit", "Limit", "LimitChange", "Outcome", "Sample", "ServerLoad"]


NEWEST_SHARE = 0.1
"""How much the newest of some values counts in their running mean."""
USED_RATIO = 0.8
"""A limit is used where so much of it is in flight at times: permits are refilled in lots, of a quarter of the limit at most."""


class Outcome(Enum):
    """What finished sequences say about the server.

    ``SUCCESS``: they were answered. ``WASTED``: their callers left while the server worked on them: time was spent and nothing
    came of it. ``LATE``: the same, because their deadlines passed, or because a gateway cut them off after a long silence.
    ``DROPPED``: the server refused work. ``IGNORED``: it says nothing (a caller's fault, a broken connection).
    """

    SUCCESS = "success"
    WASTED = "wasted"
    LATE = "late"
    IGNORED = "ignored"
    DROPPED = "dropped"


@dataclass(slots=True, eq=False)
class Sample:
    """One observation: some sequences of one batch have ended.

    Made once per reply event, so it is slotted but not frozen.

    Args:
        now: when they ended, seconds.
        sent_at: when their batch was granted.
        in_flight: the endpoint's sequences in flight just before they ended.
        mean_in_flight: its time-average from ``sent_at`` to ``now``: the load under which they were served.
        in_flight_at_sent: sequences in flight just after their batch was granted: the queue they joined.
        sequences: how many ended.
        prompt_tokens: of their prompts, as the server counted them; 0 if it did not.
        completion_tokens: what they generated; 0 if unknown.
        first_tokens_s: the sum of their times to first token, counted from ``sent_at``; 0 if unknown (plain replies).
        outcome: what it says.
        admitted_at: the limit in force when the batch was granted.
        shared_tokens: of the prompts' tokens, those of prefixes that the server had been sent before, at least; about.
        weight: sequences of one call (``n``), which are granted together.
        priority: their priority class.
        retry_after_s: how long the server that refused them wishes to be left alone; 0 if it does not say.
        cut_off: whether a gateway gave them up after a long silence.
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


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """One report of a server's metrics page. ``None``: it does not say.

    Args:
        running: sequences it works on.
        waiting: sequences in its queue.
        kv_usage_ratio: how much of its KV cache is in use, 0 to 1.
        preemptions: sequences thrown out of it so far.
        generation_tokens: generated so far.
        prefix_hit_tokens: prompt tokens found in the prefix cache so far.
        prefix_query_tokens: prompt tokens looked up in it.
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
    """How many sequences may be in flight. Pure: no clock, no randomness.

    Each method that is told something returns the change it caused, if any. What a limit does not listen to changes nothing.
    """

    __slots__ = ("limit", "reason")

    def __init__(self, limit: int, reason: str) -> None:
        self.limit = limit
        """Sequences that may be in flight, at least 1."""
        self.reason = reason
        """Why it is that number."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.limit}: {self.reason}>"

    @property
    def opening(self) -> bool:
        """Whether it is to be told when batches have begun (``on_begun``)."""
        return False

    def on_sample(self, sample: Sample) -> LimitChange | None:
        """Take in one observation."""
        return None

    def on_begun(self, running: int, now: float) -> LimitChange | None:
        """All prompts of a batch have their first token: ``running`` sequences were served at once."""
        return None

    def on_load(self, load: ServerLoad, in_flight: int, now: float) -> LimitChange | None:
        """The server's metrics page says how busy it is; ``in_flight`` of its sequences are ours."""
        return None

    def on_known(self, slots: int | None, now: float, *, engine: bool) -> LimitChange | None:
        """It was found out which server it is: an engine batches hundreds of sequences and queues the rest.

        It takes ``slots`` sequences at once, if it says so.
        """
        return None

    def on_restart(self, now: float, guess: int | None = None) -> LimitChange | None:
        """The server was started anew: what was learnt of it is void, but for a guess of what it may have in flight."""
        return None

    def on_resume(self, now: float) -> LimitChange | None:
        """Calls are about to be sent, and nothing was in flight."""
        return None

    def interrupt(self, now: float) -> LimitChange | None:
        """What is being tried is judged no further: the limit is pinned, or its server is left."""
        return None

    def on_bound(self, now: float) -> LimitChange | None:
        """Refusals or late answers have bounded what is in flight."""
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
    """A number that a person has set. Refusals bound it (``LimitControl``)."""

    __slots__ = ()

    def __init__(self, limit: int) -> None:
        if limit < 1:
            raise ValueError("a limit is at least 1")
        super().__init__(limit, "fixed")
