"""All endpoints of one scheduler, by their ids.

Rules:
- An id is given once and never again: what was said of an endpoint that has gone is never taken to be about another.
- ``serving`` holds those that may be granted on; an endpoint that is leaving is in ``by_id`` until it has nothing in flight.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from batchclient._core.requests import Shape
from batchclient._core.servers.denials import subject_of
from batchclient._core.servers.endpoint import Endpoint
from batchclient._core.servers.health import HealthState, Sign
from batchclient._core.spent import ServerOutage

__all__ = ["Endpoints"]


class Endpoints:
    """The endpoints of one scheduler, in the order they came.

    Args:
        endpoints: the first of them.
    """

    __slots__ = ("by_id", "serving")

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self.by_id = {endpoint.id: endpoint for endpoint in endpoints}
        self.serving = list(self.by_id.values())

    def __iter__(self) -> Iterator[Endpoint]:
        return iter(self.by_id.values())

    def __len__(self) -> int:
        return len(self.by_id)

    def others_in_use(self, endpoint: Endpoint) -> bool:
        """Whether another endpoint is given calls as they come."""
        return any(other is not endpoint and other.health.in_use for other in self.serving)

    @property
    def known(self) -> bool:
        """Whether any that serves has ever answered."""
        return any(endpoint.health.answered_once for endpoint in self.serving)

    @property
    def total_limit(self) -> int:
        """Sequences that may be in flight at all of them together, as their limits are now."""
        return sum(endpoint.limit.limit for endpoint in self.serving)

    def described(self, now: float) -> str:
        """What is in flight, and the outage if all have one."""
        in_flight = sum(endpoint.in_flight for endpoint in self)
        return f"{in_flight} in flight" + "".join(f"; {outage.sentence(now)}" for outage in self.outages_after(now))

    def outages_after(self, since: float) -> list[ServerOutage]:
        """The outages that a call made then has waited for: none if a server was in use all the time."""
        latest = [endpoint.outage for endpoint in self.serving]
        outages = [outage for outage in latest if outage is not None and outage.fell_after(since)]
        return outages if len(outages) == len(latest) else []

    def others_take(self, shape: Shape, endpoint: Endpoint, now: float) -> bool:
        """Whether another endpoint is in use that has not refused such calls."""
        subject = subject_of(shape)
        return any(
            other is not endpoint
            and other.health.in_use
            and subject not in other.denials.models
            and not other.denials.lacks(shape, now)
            for other in self.serving
        )

    def leaves(self, shape: Shape, endpoint: Endpoint, now: float) -> bool:
        """Whether an endpoint takes no calls of this shape, and another one may."""
        return endpoint.denials.lacks(shape, now) and self.others_take(shape, endpoint, now)

    def takers(self, choices: list[Endpoint], shape: Shape, now: float) -> list[Endpoint]:
        """Of some endpoints those that may take a call of this shape; all, if none may."""
        if not any(endpoint.denials.shapes for endpoint in choices):
            return choices
        return [endpoint for endpoint in choices if not self.leaves(shape, endpoint, now)] or choices

    def fail(self, endpoint: Endpoint, sign: Sign, batch: int, now: float, sent_at: float | None = None) -> None:
        """One of an endpoint's batches has failed for a reason that is the endpoint's."""
        if endpoint.health.fail(sign, batch, now, others=self.others_in_use(endpoint), sent_at=sent_at):
            self._keep_one_in_use()

    def add(self, endpoint: Endpoint) -> None:
        """Serve another endpoint."""
        assert endpoint.id not in self.by_id, "an endpoint's id is given once"
        self.by_id[endpoint.id] = endpoint
        self.serving.append(endpoint)

    def remove(self, endpoint: Endpoint) -> None:
        """Serve it no more; it stays until ``forget``."""
        if not endpoint.leaving:
            assert len(self.serving) > 1, "the last endpoint stays"
            endpoint.leaving = True
            self.serving.remove(endpoint)
            self._keep_one_in_use()

    def forget(self, endpoint: Endpoint) -> None:
        """Nothing of ours is left there."""
        del self.by_id[endpoint.id]

    def _keep_one_in_use(self) -> None:
        """The panic rule: where none is in use, those that were ejected but have not vanished may be probed."""
        if not any(endpoint.health.in_use for endpoint in self.serving):
            for endpoint in self.serving:
                if endpoint.health.state is HealthState.EJECTED and not endpoint.health.vanished:
                    endpoint.health.open_now()

    def __repr__(self) -> str:
        return f"<Endpoints {list(self.by_id)}>"
