"""All endpoints of one scheduler, by their ids.

Rules:
- An id is given once: a fact about a removed endpoint is never taken to be about another.
- ``serving`` holds the endpoints that may be granted on. A leaving endpoint stays in ``by_id``
  until nothing is in flight there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from batchclient._core.learnt.proof import Proof
from batchclient._core.requests import Shape
from batchclient._core.servers.endpoint import Endpoint
from batchclient._core.spent import ServerOutage

__all__ = ["Endpoints"]


class Endpoints:
    """The endpoints of one scheduler, in order of arrival."""

    __slots__ = ("by_id", "serving")

    def __init__(self, endpoints: Iterable[Endpoint]) -> None:
        self.by_id = {endpoint.id: endpoint for endpoint in endpoints}
        self.serving = list(self.by_id.values())

    def __iter__(self) -> Iterator[Endpoint]:
        return iter(self.by_id.values())

    def __len__(self) -> int:
        return len(self.by_id)

    def others_in_use(self, endpoint: Endpoint) -> bool:
        """Whether calls go to another endpoint as they come."""
        return any(other is not endpoint and other.health.in_use for other in self.serving)

    @property
    def any_in_use(self) -> bool:
        """Whether calls go to any endpoint as they come."""
        return any(endpoint.health.in_use for endpoint in self.serving)

    @property
    def known(self) -> bool:
        """Whether any serving endpoint has ever answered."""
        return any(endpoint.health.answered_once for endpoint in self.serving)

    @property
    def proofs(self) -> list[Proof]:
        """The proofs of lists under way."""
        return [endpoint.abilities.proof for endpoint in self.serving if endpoint.abilities.proof is not None]

    @property
    def total_limit(self) -> int:
        """The sum of the serving endpoints' present limits, in sequences."""
        return sum(endpoint.limit.limit for endpoint in self.serving)

    def described(self, now: float) -> str:
        """Describe the sequences in flight, silent servers, and the outages if every one has one."""
        in_flight = sum(endpoint.in_flight for endpoint in self)
        silences = [endpoint.nothing_came(now) for endpoint in self if endpoint.life.silent_since is not None]
        told = [*silences, *(outage.sentence(now) for outage in self.outages_after(now))]
        return f"{in_flight} in flight" + "".join(f"; {one}" for one in told)

    def outages_after(self, since: float) -> list[ServerOutage]:
        """Outages that a call made then has waited for: none, if a server was always in use."""
        latest = [endpoint.outage for endpoint in self.serving]
        outages = [outage for outage in latest if outage is not None and outage.fell_after(since)]
        return outages if len(outages) == len(latest) else []

    def others_take(self, shape: Shape, endpoint: Endpoint, now: float) -> bool:
        """Whether another endpoint is in use and has not refused such calls."""
        subject = shape.subject
        return any(
            other is not endpoint
            and other.health.in_use
            and subject not in other.abilities.models.refused
            and other.abilities.lacks(shape, now) is None
            for other in self.serving
        )

    def leaves(self, shape: Shape, endpoint: Endpoint, now: float) -> bool:
        """Whether an endpoint takes no calls of this shape, and another endpoint may."""
        return endpoint.abilities.lacks(shape, now) is not None and self.others_take(shape, endpoint, now)

    def take_now(self, shape: Shape, endpoint: Endpoint, now: float) -> bool:
        """Whether another endpoint takes such calls, and may be sent any number of them now."""
        others = (other for other in self.serving if other is not endpoint and other.health.in_use)
        return self.others_take(shape, endpoint, now) and any(other.pace(shape).is_open for other in others)

    def takers(self, choices: list[Endpoint], shape: Shape, now: float) -> list[Endpoint]:
        """The ``choices`` that may take a call of this shape; all, if none may."""
        free = [endpoint for endpoint in choices if endpoint.pace(shape).sendable(now) is None] or choices
        if not any(endpoint.abilities.shapes for endpoint in free):
            return free
        return [endpoint for endpoint in free if not self.leaves(shape, endpoint, now)] or free

    def __repr__(self) -> str:
        return f"<Endpoints {list(self.by_id)}>"
