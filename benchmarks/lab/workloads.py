"""Callers and their calls.

Lengths and arrivals are drawn from a seeded ``Random``; the same seed gives the same calls.

Rules:
- A ``Workload`` is data. ``start`` makes the running workload, which is told of time, of answers
  and of the state of the client.
- ``Closed`` keeps the queue deep, as a map over a large file does.
- ``Once`` asks everything at the start.
- ``Every`` has regular arrivals.
- ``Conversations`` keeps a fixed number of conversations open.
- ``Callers`` keeps a fixed number of callers with one call each.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.core import (
    BatchingNumbers,
    Request,
    Scheduler,
    Shape,
)

if TYPE_CHECKING:
    from benchmarks.lab.asker import Client

PROMPT = b'"p"'


@dataclass(frozen=True, slots=True)
class Lengths:
    """Lognormal lengths in tokens; with ``sigma`` 0 always the mean.

    Args:
        mean_tokens: the mean before it is cut.
        sigma: standard deviation of the logarithm.
        most_tokens: longer ones are cut to this.
    """

    mean_tokens: float
    sigma: float = 0.0
    most_tokens: int = 8192

    def draw(self, rng: random.Random) -> int:
        if not self.sigma:
            return min(self.most_tokens, max(1, round(self.mean_tokens)))
        drawn = self.mean_tokens * math.exp(rng.gauss(-(self.sigma**2) / 2, self.sigma))
        return min(self.most_tokens, max(1, round(drawn)))


class Call:
    """The laboratory's data of a request; a ``Call`` is the request's waiter."""

    __slots__ = (
        "asked_at", "asker", "client", "conversation", "ended", "failed", "outputs", "prompt_tokens", "sent_at", "turn",
    )  # fmt: skip

    def __init__(self, prompt_tokens: int, outputs: tuple[int, ...], conversation: int = -1, turn: int = 0) -> None:
        self.prompt_tokens = prompt_tokens
        self.outputs = outputs
        self.conversation = conversation
        self.turn = turn
        self.asked_at = 0.0
        self.sent_at = 0.0
        self.ended = self.failed = False
        self.client: Client | None = None
        """The client of the call."""
        self.asker = 0
        """The place of the workload that asked, among the client's workloads."""


@dataclass(frozen=True, slots=True)
class Calls:
    """Parameters of one kind of call.

    Args:
        prompts: prompt lengths.
        outputs: output lengths, of each choice.
        max_tokens: the caller's ``max_tokens``; above 4 replies are streamed.
        n: choices per call.
        timeout_s: the caller's patience, from the call on.
        priority: the calls' priority class.
        alone_reason: why the calls never share a request; ``None``: they may.
        numbers: how the calls of a view become batches; ``None``: as the client's.
    """

    prompts: Lengths
    outputs: Lengths
    max_tokens: int = 2048
    n: int = 1
    timeout_s: float | None = None
    priority: int = 0
    alone_reason: str | None = None
    numbers: BatchingNumbers | None = None


class Running:
    """A workload under way. ``submit`` is the driver's way into the scheduler."""

    latency_from_asked = False
    """Whether latency counts from when a call was asked, and not from when it was sent.

    True where the workload does not fill the client's queue on purpose.
    """

    def __init__(self, calls: Calls, rng: random.Random, submit: Callable[[Request, float], None]) -> None:
        self.calls = calls
        self.shape = Shape(
            key=b"lab %d" % calls.priority,
            body=b"{}",
            weight=calls.n,
            max_output_tokens=calls.max_tokens,
            priority=calls.priority,
            alone_reason=calls.alone_reason,
            numbers=calls.numbers,
        )
        self.rng = rng
        self.next_at = math.inf
        """The time of the workload's next action without an event from outside."""
        self.over = False
        """Whether the workload has asked its last call and has every answer."""
        self._submit = submit

    def ask(self, now: float, conversation: int = -1, turn: int = 0, prompt_tokens: int = 0) -> None:
        calls, rng = self.calls, self.rng
        prompt_tokens = prompt_tokens or calls.prompts.draw(rng)
        outputs = tuple(calls.outputs.draw(rng) for _ in range(calls.n))
        deadline = None if calls.timeout_s is None else now + calls.timeout_s
        call = Call(prompt_tokens, outputs, conversation, turn)
        call.asked_at = now
        prompt = PROMPT if conversation < 0 else self._prompt(conversation, prompt_tokens)
        self._submit(Request(self.shape, prompt, prompt_tokens=prompt_tokens, deadline=deadline, waiter=call), now)

    @staticmethod
    def _prompt(conversation: int, tokens: int) -> bytes:
        """Four bytes a token, as texts have; the same for every turn of a conversation."""
        word = f"{conversation:07d} ".encode()
        return b'"' + word * (tokens // 2) + b'"'

    def woke(self, now: float) -> None:
        """``next_at`` has come."""

    def ended(self, call: Call, now: float) -> None:
        """A call has its answer or its error."""

    def look(self, core: Scheduler, now: float) -> None:
        """After every step of the client."""


@dataclass(frozen=True, slots=True)
class Closed:
    """Keep at least half of ``depth`` calls queued."""

    calls: Calls
    depth: int = 2048

    def start(self, rng: random.Random, submit: Callable[[Request, float], None]) -> Running:
        return _Closed(self, rng, submit)


class _Closed(Running):
    def __init__(self, data: Closed, rng: random.Random, submit: Callable[[Request, float], None]) -> None:
        super().__init__(data.calls, rng, submit)
        self._depth = data.depth

    def look(self, core: Scheduler, now: float) -> None:
        queued = core.statistics().queued
        if 2 * queued < self._depth:
            for _ in range(self._depth - queued):
                self.ask(now)


@dataclass(frozen=True, slots=True)
class Once:
    """``count`` calls at once, and no more: a small map, a rollout, an evaluation."""

    calls: Calls
    count: int

    def start(self, rng: random.Random, submit: Callable[[Request, float], None]) -> Running:
        return _Once(self, rng, submit)


class _Once(Running):
    latency_from_asked = True

    def __init__(self, data: Once, rng: random.Random, submit: Callable[[Request, float], None]) -> None:
        super().__init__(data.calls, rng, submit)
        self._left = data.count
        self.next_at = 0.0

    def woke(self, now: float) -> None:
        self.next_at = math.inf
        for _ in range(self._left):
            self.ask(now)

    def ended(self, call: Call, now: float) -> None:
        self._left -= 1
        self.over = not self._left


@dataclass(frozen=True, slots=True)
class Every:
    """One call every so many seconds."""

    calls: Calls
    seconds: float

    def start(self, rng: random.Random, submit: Callable[[Request, float], None]) -> Running:
        return _Every(self, rng, submit)


class _Every(Running):
    latency_from_asked = True

    def __init__(self, data: Every, rng: random.Random, submit: Callable[[Request, float], None]) -> None:
        super().__init__(data.calls, rng, submit)
        self._seconds = self.next_at = data.seconds

    def woke(self, now: float) -> None:
        self.next_at += self._seconds
        self.ask(now)


class _InTurn(Running):
    """So many who ask one call at a time: the next one when the last has ended, after a pause."""

    def __init__(self, calls: Calls, count: int, rng: random.Random, submit: Callable[[Request, float], None]) -> None:
        super().__init__(calls, rng, submit)
        self._count = count
        self._pausing: list[tuple[float, int, int]] = []
        """(until when, conversation, turn)."""
        self._ready: list[tuple[int, int]] = []
        self.next_at = 0.0

    def first(self, place: int) -> tuple[int, int]:
        """The conversation and the turn that a caller begins with."""
        raise NotImplementedError

    def following(self, call: Call) -> tuple[float, int, int]:
        """The pause after a call, and the conversation and the turn after the pause."""
        raise NotImplementedError

    def woke(self, now: float) -> None:
        if self._count:
            # They come together, as a job's do.
            self._ready += map(self.first, range(self._count))
            self._count = 0
        while self._pausing and self._pausing[0][0] <= now:
            self._ready.append(heapq.heappop(self._pausing)[1:])
        self._look_ahead()
        self.look_now(now)

    def ended(self, call: Call, now: float) -> None:
        pause_s, conversation, turn = self.following(call)
        if pause_s:
            heapq.heappush(self._pausing, (now + pause_s, conversation, turn))
            self._look_ahead()
        else:
            self._ready.append((conversation, turn))

    def look(self, core: Scheduler, now: float) -> None:
        self.look_now(now)

    def look_now(self, now: float) -> None:
        """Ask the turns that are ready."""
        ready, self._ready = self._ready, []
        for conversation, turn in ready:
            self.ask(now, conversation, turn)

    def _look_ahead(self) -> None:
        self.next_at = self._pausing[0][0] if self._pausing else math.inf


@dataclass(frozen=True, slots=True)
class Conversations:
    """A fixed number of conversations at once, each of ``turns`` calls with the same prefix.

    A conversation that has ended is followed by another.

    Args:
        calls: the parameters of each turn.
        count: conversations at once.
        turns: calls of each.
        pause_s: between an answer and the next turn: spread evenly, by half of it up and down.
    """

    calls: Calls
    count: int
    turns: int
    pause_s: float = 0.0

    def start(self, rng: random.Random, submit: Callable[[Request, float], None]) -> Running:
        return _Conversations(self, rng, submit)


class _Conversations(_InTurn):
    def __init__(self, data: Conversations, rng: random.Random, submit: Callable[[Request, float], None]) -> None:
        super().__init__(data.calls, data.count, rng, submit)
        self._data = data
        self._begun = data.count

    def first(self, place: int) -> tuple[int, int]:
        # Each is somewhere in its middle: they do not all end together.
        return place, self.rng.randrange(self._data.turns)

    def following(self, call: Call) -> tuple[float, int, int]:
        pause_s = self._data.pause_s * self.rng.uniform(0.5, 1.5)
        if call.turn + 1 < self._data.turns:
            return pause_s, call.conversation, call.turn + 1
        self._begun += 1
        return pause_s, self._begun, 0


@dataclass(frozen=True, slots=True)
class Callers:
    """So many callers, each with one call at a time.

    A caller without an answer asks again after half of its patience.
    """

    calls: Calls
    count: int

    def start(self, rng: random.Random, submit: Callable[[Request, float], None]) -> Running:
        return _Callers(self, rng, submit)


class _Callers(_InTurn):
    latency_from_asked = True

    def __init__(self, data: Callers, rng: random.Random, submit: Callable[[Request, float], None]) -> None:
        super().__init__(data.calls, data.count, rng, submit)

    def first(self, place: int) -> tuple[int, int]:
        return -1, 0

    def following(self, call: Call) -> tuple[float, int, int]:
        patience_s = self.calls.timeout_s
        return (patience_s / 2 if call.failed and patience_s is not None else 0.0), -1, 0


Workload = Callers | Closed | Conversations | Every | Once
