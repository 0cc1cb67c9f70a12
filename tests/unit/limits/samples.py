"""Observations at literal times, and a server that a limit keeps busy."""

from tests.core import Outcome, Sample


def sample(now, seconds=1.0, load=8.0, *, in_flight=None, met=None, outcome=Outcome.SUCCESS, tokens=10, **more):
    """One sequence that ended at ``now`` and took ``seconds`` under ``load``."""
    fields = {"sequences": 1, "prompt_tokens": 5, "first_tokens_s": 0.0, "admitted_at": 1, **more}
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


class Server:
    """Answers of a closed loop at the limit's own load: each takes ``seconds(load)``."""

    def __init__(self, limit, seconds):
        self.limit, self.seconds, self.now = limit, seconds, 0.0

    def run(self, until):
        """The limit at that time."""
        while self.now < until:
            load = self.limit.limit
            took = self.seconds(load)
            self.now += took / load
            self.limit.on_sample(sample(self.now, took, load, admitted_at=load))
        return self.limit.limit

    def refuse(self):
        """One call too many; return the change, if there is one."""
        limit = self.limit.limit
        return self.limit.on_sample(sample(self.now, 0.1, limit + 1, outcome=Outcome.DROPPED, admitted_at=limit))
