"""Observations at literal times, and callers who keep a limit busy on a server that is a formula."""

import random

from tests.core import Limit, Outcome, Sample, Search, ServerLoad


def sample(now, seconds=1.0, load=8.0, *, in_flight=None, met=None, outcome=Outcome.SUCCESS, tokens=10, **more):
    """One sequence that ended at ``now`` and took ``seconds`` under ``load``."""
    fields = {"sequences": 1, "prompt_tokens": 100, "first_tokens_s": 0.0, "admitted_at": 1, **more}
    return Sample(
        now,
        now - seconds,
        in_flight=round(load) if in_flight is None else in_flight,
        mean_in_flight=float(load),
        in_flight_at_sent=round(load) if met is None else met,
        completion_tokens=tokens,
        outcome=outcome,
        **fields,
    )


def given(limit):
    """A number that a person has set, in force."""
    return Limit(limit)


def found(start, ceiling=1024, turn=None):
    """A number that is found, in force."""
    return Limit(Search(start, ceiling, turn))


def queue_above(slots):
    """The page of a server that runs so many at once."""
    return lambda load, now: ServerLoad(running=min(load, slots), waiting=max(0, load - slots))


class Loop:
    """Callers who keep as many calls in flight as the limit allows, on a server that is a formula.

    Args:
        limit: the limit, or the number where one that is found starts.
        seconds: how long an answer takes under a load.
        first: the share of that before its first token; 0: answers come in one piece.
        tokens: of an answer.
        page: what the server's page shows of a load at a time, each half second; ``None``: nothing.
        shared: the share of prompts that the server was sent before.
        at_most: calls that there are at most.
    """

    def __init__(self, limit, seconds, *, first=None, tokens=100, page=None, shared=0.0, at_most=10**6):
        self.limit = limit if isinstance(limit, Limit) else found(limit)
        self.seconds, self.first, self.tokens = seconds, first or (lambda load: 0.0), tokens
        self.page, self.page_every_s, self.shared, self.at_most = page, 0.5, shared, at_most
        self.now, self.page_at, self.changes, self.was = 0.0, 0.5, [], self.limit.limit
        self.noise, self.unsteadiness = random.Random(1), 0.0

    def run(self, until, **about):
        """The limit at that time."""
        while self.now < until:
            load = min(self.limit.limit, self.at_most)
            took = self.seconds(load) * self.noise.lognormvariate(0.0, self.unsteadiness)
            self.now += took / load
            usual = {"first_tokens_s": took * self.first(load), "shared_tokens": 100 * self.shared, "admitted_at": load}
            self.tell(sample(self.now, took, load, tokens=self.tokens, **{**usual, **about}))
            if self.page is not None and self.now >= self.page_at:
                self.page_at = self.now + self.page_every_s
                report = self.page(load, self.now)
                if report is not None:
                    self.limit.on_load(report, load, self.now)
                    self._note()
        return self.limit.limit

    def run_to_change(self):
        """Go on until the limit is another."""
        before = len(self.changes)
        while len(self.changes) == before:
            self.run(self.now + 0.01)
        return self

    def tell(self, sample):
        self.limit.on_sample(sample)
        self._note()

    def _note(self):
        if self.limit.limit != self.was:
            self.was = self.limit.limit
            self.changes.append((self.now, self.was, self.limit.reason))

    @property
    def limits(self):
        return [limit for _, limit, _ in self.changes]

    @property
    def whys(self):
        return [change[1:] for change in self.changes]


def full_at(room, seconds=1.0):
    """More load is free up to ``room``; beyond it everybody waits in proportion."""
    return lambda load: seconds * max(1.0, load / room)
