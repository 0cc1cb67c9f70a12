"""The driver: real schedulers against a server of the laboratory, in virtual time.

Rules:
- Time jumps from event to event: a reply, a deadline of the client or of its callers, a change of
  the server, a look at its load.
- The client reads a reply at the moment it leaves the server, and acts in the same moment: the
  network costs nothing.
- A run ends at the scenario's end, or when nothing is left to be asked or answered.
- The same scenario, setup and seed give the same trace.
"""

from __future__ import annotations

import math

from benchmarks.lab.asker import Client, Setup, limit_setup
from benchmarks.lab.gateway import Gateway
from benchmarks.lab.padding import PaddingServer
from benchmarks.lab.profiles import Scenario
from benchmarks.lab.server import ContinuousServer, LabServer
from benchmarks.lab.trace import Trace
from tests.core import Limit

__all__ = ["Run", "Trace", "simulate"]

_SAMPLE_S = 1.0


def simulate(scenario: Scenario, limit: Limit, seed: int = 0) -> Trace:
    """Run one scenario under one limit.

    Args:
        scenario: the server and its callers.
        limit: a new one.
        seed: of lengths, noise and retry delays.
    """
    return Run(scenario, limit_setup(scenario, limit), seed).run()[0]


class Run:
    """One server and its clients, all of one setup.

    Args:
        scenario: the server and its callers.
        setup: the parts of each client.
        seed: of lengths, noise and retry delays.
    """

    def __init__(self, scenario: Scenario, setup: Setup, seed: int) -> None:
        self.scenario = scenario
        self.seed = seed
        self.server: LabServer = (PaddingServer if scenario.padding else ContinuousServer)(scenario, seed)
        self.front: LabServer | Gateway = self.server
        """The gateway, or the server where there is none: clients are connected to it."""
        if scenario.gateway_s is not None:
            self.front = Gateway(self.server, scenario.gateway_s)
        self._setup = setup
        self._changes = list(scenario.changes)
        self.clients = [Client(self, setup, 0, 0.0)]

    def run(self) -> list[Trace]:
        """Run to the end; one trace per client, in the order in which they joined."""
        front, clients, changes = self.front, self.clients, self._changes
        end, now, sample_at = self.scenario.duration_s, 0.0, 0.0
        join_at = self._next_join()
        clients[0].step(now)
        while True:
            until = min(end, sample_at, join_at, changes[0].at_s if changes else math.inf)
            for client in clients:
                if client.next_at < until:
                    until = client.next_at
            replies = front.advance(until)
            if replies:
                now = replies[0].at
                for reply in replies:
                    reply.batch.requests[0].waiter.client.read(reply, now)
                if clients[0].over and len(clients) == self.scenario.clients:
                    break
                continue
            now = max(now, until)
            if now >= end:
                break
            while changes and changes[0].at_s <= now:
                self.server.apply(changes.pop(0), now)
            if sample_at <= now:
                self._sample(now)
                sample_at += _SAMPLE_S
            if join_at <= now:
                self._join(now)
                join_at = self._next_join()
            for client in clients:
                if client.next_at <= now:
                    client.wake(now)
        self._sample(now)
        clients[0].trace.rejected = self.server.rejected
        clients[0].trace.generated_tokens = self.server.generated_tokens
        return [client.close(now) for client in clients]

    def _next_join(self) -> float:
        scenario, count = self.scenario, len(self.clients)
        return count * scenario.join_every_s if count < scenario.clients else math.inf

    def _join(self, now: float) -> None:
        client = Client(self, self._setup, len(self.clients), now)
        # Before it came it did nothing.
        nothing = [0] * len(self.clients[0].trace.useful)
        client.trace.useful += nothing
        client.trace.in_flight += nothing
        self.clients.append(client)
        client.step(now)

    def _sample(self, now: float) -> None:
        for client in self.clients:
            client.sample(now, alone=len(self.clients) == 1)
