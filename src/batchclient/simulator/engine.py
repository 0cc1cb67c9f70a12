"""Continuous batching as vLLM does it, without a clock: the engine behind the embedded server.

Rules:
- Time is an argument and the next deadline a result. ``now`` never goes back.
- A step is scheduled as a whole: an arrival during a step waits for the next step.
- Running sequences come first (a token each), then prefills begun earlier, then waiting sequences
  by arrival, until ``step_tokens``, ``max_num_seqs`` or the KV cache is exhausted.
- KV is given per chunk, not for the whole answer to come, so the cache can fill up. Then the
  youngest running sequence gives up its KV and goes back to the front of the queue. Its prompt and
  generated tokens are prefilled again.
- The engine knows lengths, not text.

Cost: a step takes time in proportion to its reports and prefills, not to the number of decoding
sequences. A decoding sequence is a line (``generated = generated_at_join + steps since``). Only the
steps at which a sequence has a report are kept, in a heap.
"""

from __future__ import annotations

import heapq
import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from batchclient.simulator.profiles import Profile

__all__ = ["Engine", "Progress", "Sequence"]

_WAITING, _PREFILL, _DECODE, _GONE = range(4)


@dataclass(slots=True, eq=False, repr=False)
class Sequence:
    """A choice of a prompt on its way through the engine.

    Args:
        sequence_id: unique among those in the engine.
        prompt_tokens: at least 1.
        output_tokens: the sequence finishes after so many, at least 1.
        report_every: report the first token, and then each time so many more are there; 0 reports
            only the end.
        owner: any object of the caller's, found again as ``Progress.sequence.owner``.
    """

    sequence_id: int
    prompt_tokens: int
    output_tokens: int
    report_every: int = 0
    owner: object = None
    state: int = field(default=_WAITING, init=False)
    to_prefill: int = field(default=0, init=False)
    # For a decoding sequence the next three are as of ``joined_step``.
    generated: int = field(default=0, init=False)
    kv: int = field(default=0, init=False)
    joined_step: int = field(default=0, init=False)
    generation: int = field(default=0, init=False)
    """How often the sequence was taken off its line: an older entry in the heap is void."""

    @property
    def decodes(self) -> bool:
        """Whether the whole prompt is prefilled, so that every step brings a token."""
        return self.state == _DECODE

    def __repr__(self) -> str:
        state = ("waiting", "prefill", "decode", "gone")[self.state]
        return f"<Sequence {self.sequence_id} {state} {self.prompt_tokens}+{self.output_tokens}>"


_Due = tuple[int, int, int, Sequence]
"""A report to come: the step, the sequence's id and ``generation``, the sequence."""


class Progress(NamedTuple):
    """A step's result for a sequence.

    Args:
        at: when the step ended, seconds.
        generated: output tokens so far.
        finished: whether nothing more will come.
    """

    at: float
    sequence: Sequence
    generated: int
    finished: bool


class Engine:
    """The scheduler of a simulated server: ``submit``, then ``step`` at each ``next_deadline``.

    Args:
        profile: the costs and limits.
        rng: for the noise of ``profile.noise_ratio``; ``None``: no noise.

    Attributes:
        slowdown: factor on every step's duration from the next step on; may be set at any time.
    """

    def __init__(self, profile: Profile, rng: random.Random | None = None) -> None:
        self.profile = profile
        self.slowdown: float = 1.0
        self.preemptions: int = 0
        self.prompt_tokens: int = 0
        self.generation_tokens: int = 0
        self._rng = rng if profile.noise_ratio else None
        self._is_free = profile.is_free
        self._all: dict[int, Sequence] = {}
        self._waiting: deque[Sequence] = deque()
        # Insertion order is order of admission; the last is preempted first.
        self._running: dict[int, Sequence] = {}
        self._prefilling: list[Sequence] = []
        self._decoding = 0
        self._kv_used = 0
        self._due: list[_Due] = []
        self._begun = 0
        self._ended = 0
        self._wake_at: float | None = None
        self._step_ends_at: float | None = None

    def __repr__(self) -> str:
        return f"<Engine {self.profile.name} running={self.running} waiting={self.waiting} kv={self._kv_used}>"

    @property
    def running(self) -> int:
        """Sequences that prefill or decode."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Sequences that wait for admission, preempted sequences included."""
        return len(self._waiting)

    @property
    def kv_usage_ratio(self) -> float:
        """The used share of the KV cache, 0 to 1."""
        return min(1.0, self._kv_used / self.profile.kv_tokens)

    @property
    def sequences(self) -> Mapping[int, Sequence]:
        """All sequences that wait or run, by id."""
        return self._all

    def generated(self, sequence: Sequence) -> int:
        """Return a sequence's output tokens, as of the last step that has ended."""
        return sequence.generated + (self._ended - sequence.joined_step if sequence.decodes else 0)

    def submit(self, sequence: Sequence, now: float) -> None:
        """Queue a sequence, which may join the step that begins at ``now``.

        Raises:
            ValueError: the sequence never fits the KV cache, or its id is taken; nothing changed.
        """
        if sequence.prompt_tokens + sequence.output_tokens > self.profile.kv_tokens:
            raise ValueError(f"{sequence!r} does not fit {self.profile.kv_tokens} tokens of KV")
        if sequence.sequence_id in self._all:
            raise ValueError(f"sequence id {sequence.sequence_id} is taken")
        sequence.to_prefill = sequence.prompt_tokens
        self._all[sequence.sequence_id] = sequence
        self._waiting.append(sequence)
        if self._step_ends_at is None and self._wake_at is None:
            self._wake_at = now

    def abort(self, sequence_id: int, now: float) -> bool:
        """Forget a sequence, whose KV is free at once; return whether it was there."""
        del now  # an abort costs nothing; the argument keeps the methods alike
        sequence = self._all.pop(sequence_id, None)
        if sequence is None:
            return False
        if sequence.state == _WAITING:
            self._waiting.remove(sequence)
        else:
            self._leave(sequence)
        sequence.state = _GONE
        return True

    def next_deadline(self) -> float | None:
        """Return when ``step`` has something to do; ``None``: the engine is empty."""
        if self._step_ends_at is not None:
            return self._step_ends_at
        return self._wake_at if self._waiting else None

    def step(self, now: float) -> list[Progress]:
        """End the steps over by ``now``, and begin the next; return the progress, in order."""
        progress: list[Progress] = []
        while True:
            if self._step_ends_at is None:
                if not self._waiting and not self._running:
                    self._wake_at = None
                    return progress
                begin_at = now if self._wake_at is None else self._wake_at
                if begin_at > now:
                    return progress
                self._wake_at = None
                self._step_ends_at = begin_at + self._begin()
            if self._step_ends_at > now:
                return progress
            ended_at = self._step_ends_at
            self._step_ends_at = None
            self._wake_at = ended_at
            self._end(ended_at, progress)

    # --- one step ---

    def _begin(self) -> float:
        """Schedule a step and return its duration, seconds."""
        preempted = self._make_room()
        budget = self.profile.step_tokens - self._decoding
        prefilled = self._prefill(budget, admit=not preempted)
        strides = self._stride() if self._is_free and not self._waiting and not self._prefilling else 1
        self._begun += strides
        self._kv_used += self._decoding * strides
        self.prompt_tokens += prefilled
        self.generation_tokens += self._decoding * strides
        return self._duration(prefilled)

    def _end(self, at: float, progress: list[Progress]) -> None:
        self._ended = self._begun
        due = self._due
        while due and due[0][0] <= self._ended:
            _, _, generation, sequence = due[0]
            following = None
            if generation == sequence.generation and sequence.state == _DECODE:
                generated = sequence.generated + self._ended - sequence.joined_step
                following = self._report(at, sequence, generated, progress)
            if following is None:
                heapq.heappop(due)
            else:
                heapq.heapreplace(due, following)
        if self._prefilling:
            done = [sequence for sequence in self._prefilling if sequence.to_prefill == 0]
            if done:
                self._prefilling = [sequence for sequence in self._prefilling if sequence.to_prefill]
                for sequence in done:
                    self._join_decoding(at, sequence, progress)

    def _duration(self, prefilled: int) -> float:
        if self._is_free:
            return 0.0
        profile = self.profile
        sequences = self._decoding + len(self._prefilling)
        memory_s = profile.step_s + self._kv_used * profile.kv_token_s
        seconds = max(memory_s, sequences * profile.compute_s) + sequences * profile.sequence_s
        seconds += prefilled * profile.prefill_token_s
        if self._rng is not None:
            seconds *= max(0.5, self._rng.gauss(1.0, profile.noise_ratio))
        return seconds * self.slowdown

    def _stride(self) -> int:
        """Return how many steps to take as one: a free step shows only where it has a report."""
        if not self._due:
            return 1
        room = (self.profile.kv_tokens - self._kv_used) // max(1, self._decoding)
        return max(1, min(self._due[0][0] - self._ended, room))

    def _make_room(self) -> bool:
        """Preempt until each decoding sequence has KV for a token; return whether any was."""
        preempted = False
        while self._kv_used + self._decoding > self.profile.kv_tokens and len(self._running) > 1:
            self._preempt()
            preempted = True
        return preempted

    def _prefill(self, budget: int, *, admit: bool) -> int:
        """Give the prefills their chunks, then admit waiting sequences; return the tokens given.

        At most one sequence is half prefilled at a time: none is admitted before the older
        sequences have all they can take. So prefills never block each other.
        """
        room = self.profile.kv_tokens - self._kv_used - self._decoding
        given = 0
        for sequence in self._prefilling:
            chunk = min(budget - given, room - given, sequence.to_prefill)
            if chunk > 0:
                given += chunk
                sequence.to_prefill -= chunk
                sequence.kv += chunk
        held = 0
        while admit and self._waiting and given < budget and len(self._running) < self.profile.max_num_seqs:
            sequence = self._waiting[0]
            found = self._found(sequence)
            chunk = min(budget - given, sequence.to_prefill - found)
            if found + chunk > room - given - held:
                break
            self._waiting.popleft()
            self._admit(sequence, found)
            sequence.to_prefill -= found + chunk
            sequence.kv = found + chunk
            given += chunk
            held += found
        self._kv_used += given + held
        return given

    # --- one sequence ---

    def _found(self, sequence: Sequence) -> int:
        """Return how many prompt tokens need no prefill: the place for a prefix cache."""
        return 0

    def _admit(self, sequence: Sequence, found: int) -> None:
        """Let a waiting sequence run from now on; ``found`` of its tokens were there."""
        sequence.state = _PREFILL
        self._running[sequence.sequence_id] = sequence
        self._prefilling.append(sequence)

    def _join_decoding(self, at: float, sequence: Sequence, progress: list[Progress]) -> None:
        # The step that prefills the last chunk also yields the next token.
        sequence.generated += 1
        sequence.joined_step = self._ended
        sequence.state = _DECODE
        self._decoding += 1
        self.generation_tokens += 1
        following: _Due | None
        if sequence.generated >= sequence.output_tokens or self._is_report(sequence):
            following = self._report(at, sequence, sequence.generated, progress)
        else:
            following = self._next_report(sequence, sequence.generated)
        if following is not None:
            heapq.heappush(self._due, following)

    @staticmethod
    def _is_report(sequence: Sequence) -> bool:
        return sequence.report_every > 0 and (sequence.generated - 1) % sequence.report_every == 0

    def _report(self, at: float, sequence: Sequence, generated: int, progress: list[Progress]) -> _Due | None:
        """Tell of a sequence; return its next report, if there is one."""
        finished = generated >= sequence.output_tokens
        progress.append(Progress(at, sequence, generated, finished))
        if not finished:
            return self._next_report(sequence, generated)
        del self._all[sequence.sequence_id]
        self._leave(sequence)
        sequence.state = _GONE
        return None

    @staticmethod
    def _next_report(sequence: Sequence, generated: int) -> _Due:
        """Return the step of the sequence's next report."""
        at_tokens = sequence.output_tokens
        every = sequence.report_every
        if every:
            at_tokens = min(at_tokens, generated + every - (generated - 1) % every)
        step = sequence.joined_step + at_tokens - sequence.generated
        return step, sequence.sequence_id, sequence.generation, sequence

    def _leave(self, sequence: Sequence) -> None:
        """Take a running sequence off the engine and free its KV."""
        del self._running[sequence.sequence_id]
        sequence.generation += 1
        if sequence.state == _DECODE:
            self._kv_used -= sequence.kv + self._begun - sequence.joined_step
            self._decoding -= 1
        else:
            self._kv_used -= sequence.kv
            self._prefilling.remove(sequence)

    def _preempt(self) -> None:
        _, sequence = next(reversed(self._running.items()))
        if sequence.state == _DECODE:
            sequence.generated += self._ended - sequence.joined_step
        self._leave(sequence)
        sequence.state = _WAITING
        sequence.kv = 0
        sequence.to_prefill = sequence.prompt_tokens + sequence.generated
        self._waiting.appendleft(sequence)
        self.preemptions += 1
