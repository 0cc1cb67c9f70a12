"""Outages: no endpoint is in use, and one has answered before. Dispatch pauses, callers wait.

    SERVED ──the last endpoint in use vanishes──▶ AWAY
    AWAY ──a probe is answered or taken on, or another endpoint comes──▶ SERVED

Rules:
- During an outage, endpoints are probed with one call each at growing pauses (see ``health``). An
  unsent call uses up no attempt: a retry policy is for failures of calls, not for absent servers.
- A call waits until its deadline, and no longer than the patience. Patience runs from the beginning
  of the outage, or from the making of the call if later. Calls of maps have no such bound. A call
  out of patience fails with the servers' last failure.
- A probe which has begun to answer shows that the outage may be over: patience then lasts until the
  probe has ended.
- Patience is checked when the next call may have lost it, at most four times a second. A probe
  longer than somebody's patience suspends the checks: the next check is at the end of the probe.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from batchclient._core.failures import Failure, FailureKind
from batchclient._core.messages import Request
from batchclient._core.servers.endpoint import Endpoint
from batchclient._core.spent import ServerOutage, time_spent
from batchclient.errors import BatchClientError, ConnectFailed

__all__ = ["Outage"]

_LOOK_AGAIN_S = 0.25
_ROUNDING = 1e-6
_UNKNOWN = Failure(FailureKind.NOT_SENT, ConnectFailed, "no server is in use")


class Outage:
    """Whether there is an outage, and which calls have lost their patience.

    Args:
        endpoints: all endpoints, by id.
        serving: those that may be granted on.
        patience_s: how long a call waits in an outage.
    """

    def __init__(self, endpoints: Mapping[int, Endpoint], serving: Sequence[Endpoint], patience_s: float) -> None:
        self._endpoints = endpoints
        self._serving = serving
        self._patience_s = patience_s
        self._failure = _UNKNOWN
        self._looked_at = -math.inf
        self._outlasted = False
        """Whether a probe has outlasted somebody's patience; its end is then waited for."""
        self.began_at: float | None = None
        """``None``: no outage."""
        self.due: float | None = None
        """When to check the waiting calls next; ``inf``: once the probe has ended."""

    def __repr__(self) -> str:
        return "<Outage: none>" if self.began_at is None else f"<Outage since {self.began_at:.3f} s>"

    def watch(self, now: float, failure: Failure | None = None) -> None:
        """Note that endpoints came, went or changed state, perhaps by an endpoint's ``failure``."""
        if any(endpoint.health.in_use for endpoint in self._serving):
            self.began_at = self.due = None
            return
        if self.began_at is None and not self.is_any_known:
            return
        if failure is not None:
            self._failure = failure.of_the_server
        if self.began_at is None:
            self.began_at, self.due = now, now + self._patience_s
        elif self._outlasted and self.due is not None:
            # The ended probe was the servers' last chance.
            self.due = min(self.due, max(now, self._looked_at + _LOOK_AGAIN_S))

    @property
    def is_any_known(self) -> bool:
        """Whether any serving endpoint has ever answered."""
        return any(endpoint.health.answered_once for endpoint in self._serving)

    def all_after(self, since: float) -> list[ServerOutage]:
        """Outages that a call made then has waited for: none, if a server was always in use."""
        latest = [endpoint.outage or endpoint.past_outage for endpoint in self._serving]
        outages = [outage for outage in latest if outage is not None and outage.fell_after(since)]
        return outages if len(outages) == len(latest) else []

    def impatient(self, waiting: Callable[[], list[Request]], now: float) -> list[Request]:
        """Return the calls of ``waiting()`` which have lost their patience. For an outage only."""
        if self.due is not None and now < self.due:
            return []
        if any(endpoint.probe_is_answering for endpoint in self._serving):
            self._outlasted, self.due = True, math.inf
            return []
        self._looked_at = now
        ends = [(self._patience_of(request), request) for request in waiting()]
        # A probe's calls may come back.
        probes = [batch for endpoint in self._endpoints.values() for batch in endpoint.open.values()]
        of_probes = [self._patience_of(request) for batch in probes for request in batch.requests]
        soon = now + _ROUNDING
        self._outlasted = any(until <= soon for until in of_probes)
        # A call made after this check has all its patience left.
        later = [until for until in (*of_probes, *(end[0] for end in ends)) if until > soon]
        self.due = max(now + _LOOK_AGAIN_S, min([now + self._patience_s, *later]))
        return [request for until, request in ends if until <= soon]

    def _patience_of(self, request: Request) -> float:
        assert self.began_at is not None, "patience is asked for in an outage"
        return math.inf if request.patient else max(self.began_at, request.queued_at) + self._patience_s

    def error(self, request: Request, now: float) -> BatchClientError:
        """Return the error of a call which has lost its patience."""
        spent = time_spent(request, self.all_after(request.queued_at), now)
        told = f": {spent}" if spent else ""
        message = f"{self._failure.message} (no server came back within outage_patience_s{told})"
        return replace(self._failure, message=message).to_error(request.attempts)
