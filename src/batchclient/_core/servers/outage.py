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
- Where servers have models of their own, there is an outage for each model: a call that names one
  waits for the servers of that model, whatever other servers do.
- Patience is checked when the next call may have lost it, at most four times a second. A probe
  longer than somebody's patience suspends the checks: the next check is at the end of the probe.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from batchclient._core.failures import Failure, FailureKind
from batchclient._core.messages import Request, Shape
from batchclient._core.servers.endpoint import Endpoint
from batchclient._core.spent import ServerOutage, time_spent
from batchclient.errors import BatchClientError, ConnectFailed

__all__ = ["Outages"]

_LOOK_AGAIN_S = 0.25
_ROUNDING = 1e-6
_UNKNOWN = Failure(FailureKind.NOT_SENT, ConnectFailed, "no server is in use")


class Outages:
    """Which calls' servers are all away: an outage for each model, and one for calls that name none.

    Args:
        endpoints: all endpoints, by id.
        serving: those that may be granted on.
        patience_s: how long a call waits in an outage.
    """

    def __init__(self, endpoints: Mapping[int, Endpoint], serving: Sequence[Endpoint], patience_s: float) -> None:
        self._endpoints = endpoints
        self._serving = serving
        self._patience_s = patience_s
        self._of_all = _Outage(serving, patience_s)
        self._of_models: dict[str, _Outage] = {}
        """By the servers' own models, and that of all other models; empty: no server has one."""
        self._all = [self._of_all]
        self.due: float | None = None
        """When to check the waiting calls next; ``None``: there is no outage."""

    def __repr__(self) -> str:
        return f"<Outages: {self._all}>"

    def count(self) -> None:
        """Servers have come or gone."""
        models = {endpoint.offer.model for endpoint in self._serving} - {None}
        names = sorted(model or "" for model in {*models, None}) if models else []
        known = self._of_models
        self._of_models = {name: known.get(name) or _Outage(self._serving, self._patience_s, name) for name in names}
        self._all = [self._of_all, *self._of_models.values()]

    def watch(self, now: float, failure: Failure | None = None, of: Endpoint | None = None) -> None:
        """Note that endpoints came, went or changed state, perhaps by a ``failure`` ``of`` an endpoint."""
        for outage in self._all:
            outage.watch(now, failure if of is None or outage.concerns(of) else None)
        self._note()

    def is_known(self, shape: Shape) -> bool:
        """Whether any serving endpoint for such calls has ever answered."""
        return self._of(shape).is_any_known

    def all_after(self, since: float, shape: Shape | None = None) -> list[ServerOutage]:
        """Outages that a call made then has waited for: none, if a server was always in use."""
        return (self._of_all if shape is None else self._of(shape)).all_after(since)

    def impatient(self, waiting: Callable[[], list[Request]], now: float) -> list[Request]:
        """Return the calls of ``waiting()`` which have lost their patience. For an outage only."""
        found = []
        for outage in self._all:
            if outage.began_at is not None:
                found += outage.impatient(
                    self._sorted_out(waiting, outage), self._sorted_out(self._in_flight, outage), now
                )
        self._note()
        return found

    def error(self, request: Request, now: float) -> BatchClientError:
        """Return the error of a call which has lost its patience."""
        return self._of(request.shape).error(request, now)

    def _note(self) -> None:
        self.due = min((outage.due for outage in self._all if outage.due is not None), default=None)

    def _of(self, shape: Shape) -> _Outage:
        if not self._of_models or shape.any_model:
            return self._of_all
        return self._of_models.get(shape.model) or self._of_models[""]

    def _sorted_out(self, requests: Callable[[], list[Request]], outage: _Outage) -> Callable[[], list[Request]]:
        """Return what tells those of the requests that wait for the end of an outage."""
        if not self._of_models:
            return requests
        return lambda: [one for one in requests() if self._of(one.shape) is outage]

    def _in_flight(self) -> list[Request]:
        batches = (batch for endpoint in self._endpoints.values() for batch in endpoint.open.values())
        return [request for batch in batches for request in batch.requests]


class _Outage:
    """Whether there is an outage, and which calls have lost their patience.

    Args:
        all_serving: the endpoints that may be granted on.
        patience_s: how long a call waits in an outage.
        model: that of the calls; empty: one that no server has of its own; ``None``: any.
    """

    def __init__(self, all_serving: Sequence[Endpoint], patience_s: float, model: str | None = None) -> None:
        self._all_serving = all_serving
        self._patience_s = patience_s
        self._model = model
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

    def concerns(self, endpoint: Endpoint) -> bool:
        """Whether an endpoint serves these calls."""
        return self._model is None or endpoint.offer.model is None or endpoint.offer.model == self._model

    @property
    def _serving(self) -> Sequence[Endpoint]:
        return self._all_serving if self._model is None else [one for one in self._all_serving if self.concerns(one)]

    def watch(self, now: float, failure: Failure | None = None) -> None:
        """Note that endpoints came, went or changed state, perhaps by an endpoint's ``failure``."""
        serving = self._serving
        if not serving or any(endpoint.health.in_use for endpoint in serving):
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

    def impatient(
        self, waiting: Callable[[], list[Request]], in_flight: Callable[[], list[Request]], now: float
    ) -> list[Request]:
        """Return the calls of ``waiting()`` which have lost their patience. For an outage only."""
        if self.due is not None and now < self.due:
            return []
        if any(endpoint.probe_is_answering for endpoint in self._serving):
            self._outlasted, self.due = True, math.inf
            return []
        self._looked_at = now
        ends = [(self._patience_of(request), request) for request in waiting()]
        # A probe's calls may come back.
        of_probes = [self._patience_of(request) for request in in_flight()]
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
