"""The core as the runner sees it: the scheduler, or a front with the same methods."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Protocol

from batchclient._core.messages import Batch, Command, Event, Request, Submitted
from batchclient._core.statistics import EndpointStatistics, Statistics
from batchclient.errors import BatchClientError

__all__ = ["Core", "Tracing"]


class Core(Protocol):
    """Decides; see ``batchclient._core.scheduler``."""

    @property
    def statistics(self) -> Callable[[], Statistics]:
        """Return a snapshot."""
        ...

    @property
    def next_deadline(self) -> Callable[[], float | None]:
        """When to call ``handle(Woke(), …)`` next; ``None``: not before another event."""
        ...

    @property
    def idle(self) -> bool:
        """Whether no call and no batch is left."""
        ...

    @property
    def total_limit(self) -> int:
        """Sequences that may be in flight at all endpoints together."""
        ...

    @property
    def expected_tokens(self) -> Callable[[Request], float]:
        """Return the output tokens that are expected of a request."""
        ...

    @property
    def held_back(self) -> int:
        """Calls that wait for a refused model, while others are answered."""
        ...

    @property
    def no_guest(self) -> str:
        """Why no guest can be at the servers, where one goes as usual then; else empty."""
        ...

    @property
    def endpoint(self) -> Callable[[int], EndpointStatistics | None]:
        """Return a snapshot of one endpoint."""
        ...

    @property
    def heeds_load(self) -> Callable[[int], bool]:
        """Whether an endpoint's load could change anything now."""
        ...

    def handle(self, event: Event, now: float) -> None:
        """Take in an event."""
        ...

    def commands(self) -> list[Command]:
        """Return the pending commands, in order, and forget them."""
        ...


class Tracing(Protocol):
    """A front that makes spans; beside the core's methods it has these."""

    def around(self, send: Callable[[Batch], Awaitable[None]]) -> Callable[[Batch], Awaitable[None]]:
        """Return the sending of a batch, in a task of its own, under the request's span."""
        ...

    def begin(self, event: Submitted, now: float) -> None:
        """Begin the span of a call that may share another's generation."""
        ...

    def end_alone(self, request: Request, error: BatchClientError | None, now: float) -> None:
        """End it before the generation: with an error, or because the caller has gone."""
        ...

    async def aclose(self) -> None:
        """End the spans that are left."""
        ...
