"""A server that does not batch continuously.

Rules:
- One batch runs at a time, to its longest member. Calls that come meanwhile wait for the next one.
- The API server is that of ``server``: the same queue before and after.
"""

from __future__ import annotations

import math
from collections import deque
from typing import TYPE_CHECKING

from benchmarks.lab.server import Exchange, LabServer
from benchmarks.lab.workloads import Call
from tests.core import RequestState

if TYPE_CHECKING:
    from benchmarks.lab.asker import Client
    from benchmarks.lab.profiles import Change, Scenario


class PaddingServer(LabServer):
    """A static batcher that pads.

    It takes the waiting calls, up to ``max_num_seqs``, pads all of them, and runs until the longest
    is done.

    A batch of ``n`` sequences whose longest prompt is ``p`` and longest output ``o`` takes::

        n * p * prefill_token_s + o * max(step_s, n * compute_s)

    The time is the engine's cost (``simulator.profiles``) for n sequences as long as the longest.
    Answers come when the batch is done.
    """

    def __init__(self, scenario: Scenario, seed: int) -> None:
        super().__init__(scenario, seed)
        self._slowdown = 1.0
        self._waiting: deque[tuple[Exchange, int, int, int]] = deque()
        self._batch: list[tuple[Exchange, int, int, int]] = []
        self._began_at = 0.0
        self._ends_at = math.inf
        self._generated = 0

    def apply(self, change: Change, now: float) -> None:
        super().apply(change, now)
        if change.slowdown is not None:
            self._slowdown = change.slowdown

    @property
    def generated_tokens(self) -> int:
        return self._generated

    def _speaks(self, exchange: Exchange) -> bool:
        """Its answers come when the batch is done."""
        return False

    def _running_tokens(self, now: float, client: Client | None) -> float:
        tokens = sum(
            taken[3]
            for taken in self._batch
            if not taken[0].gone and taken[0].batch.requests[taken[1]].state is RequestState.IN_FLIGHT
        )
        return tokens * (now - self._began_at) / (self._ends_at - self._began_at) if tokens else 0.0

    def _engine_at(self) -> float:
        return self._ends_at

    def _enter(self, exchange: Exchange, position: int, now: float) -> None:
        call: Call = exchange.batch.requests[position].waiter
        for tokens in self._outputs(call):
            self._waiting.append((exchange, position, call.prompt_tokens, tokens))
        # A list enters as a whole: its prompts are tokenised one by one, but no batch starts with
        # half of the list.
        if not self._batch and position + 1 == len(exchange.batch.requests):
            self._begin(now)

    def _begin(self, now: float) -> None:
        profile = self.profile
        while self._waiting and len(self._batch) < profile.max_num_seqs:
            taken = self._waiting.popleft()
            if not taken[0].gone:
                self._batch.append(taken)
        count = len(self._batch)
        if not count:
            self._ends_at = math.inf
            return
        prompt_tokens = max(taken[2] for taken in self._batch)
        output_tokens = max(taken[3] for taken in self._batch)
        seconds = count * prompt_tokens * profile.prefill_token_s
        seconds += output_tokens * max(profile.step_s, count * profile.compute_s)
        self._generated += sum(taken[3] for taken in self._batch)
        self._began_at = now
        self._ends_at = now + seconds * self._slowdown

    def _step(self, now: float) -> None:
        done, self._batch = self._batch, []
        for exchange, position, _, tokens in done:
            if not exchange.gone:
                # Its end comes with it, in one read.
                self._first_token(exchange, position, now)
                self._finish(exchange, position, tokens, now)
        self._begin(now)

    def _forget(self, exchange: Exchange, now: float) -> None:
        """A static batch runs on to its end."""
