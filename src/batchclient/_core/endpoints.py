"""All endpoints of one scheduler, by their ids.

Rules:
- An id is given once and never again: what was said of an endpoint that has gone is never taken to be about another.
- ``serving`` holds those that may be granted on; an endpoint that is leaving is in ``by_id`` until it has nothing in flight.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from batchclient._core.endpoint import Endpoint
from batchclient._core.health import HealthState, Sign

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

    def fail(self, endpoint: Endpoint, sign: Sign, batch: int, now: float) -> None:
        """One of an endpoint's batches has failed for a reason that is the endpoint's."""
        others = self.others_in_use(endpoint)
        if endpoint.health.fail(sign, batch, now, others=others) and not others:
            for other in self.serving:
                if other.health.state is HealthState.EJECTED and not other.health.refuses:
                    other.health.open_now()

    def __repr__(self) -> str:
        return f"<Endpoints {list(self.by_id)}>"
