"""The one door to the core: its events and commands, kinds, settings, limits and the scheduler itself."""

from batchclient import AdaptiveLimit
from batchclient._client.make_limit import make_limit
from batchclient._settings import make_settings
from batchclient._core.kinds import Kind
from batchclient._core.limits import Outcome, Sample, ServerLoad
from batchclient._core.limits.control import Limit
from batchclient._core.limits.objective import Objective
from batchclient._core.limits.search import Search
from batchclient._core.limits.trial import Turn
from batchclient._core.messages import (
    AbortBatch,
    AbortRequested,
    Adjusted,
    Adjustment,
    Answered,
    Ask,
    Asked,
    Batch,
    Cancelled,
    CloseRequested,
    DrainRequested,
    Drained,
    EndpointAdded,
    EndpointGone,
    EndpointRemoved,
    Event,
    Failed,
    Failure,
    FailureKind,
    GuestChanged,
    HealthChanged,
    Isolation,
    LoadHidden,
    LoadReported,
    ModelWanted,
    Notice,
    Offer,
    Paused,
    RatesPerMinute,
    RateWindow,
    RatesReported,
    Reject,
    Request,
    RequestState,
    Resolve,
    Resumed,
    Retuned,
    SendBatch,
    ServerKnown,
    Shape,
    Submitted,
    WaitOver,
    Woke,
)
from batchclient._core.requests import Budget
from batchclient._core.scheduler import Scheduler
from batchclient._core.settings import BatchingNumbers, SchedulerSettings


class FixedLimit(Limit):
    """A number that nothing moves."""

    __slots__ = ()

    def on_sample(self, sample):
        return None


def limit_with(limit, **objectives):
    """The limit of a client that promises these, and that has at most so many calls in flight."""
    adaptive = AdaptiveLimit(start=limit, max=limit, **objectives)
    return make_limit(make_settings("balanced", {"base_url": "http://localhost", "limit": adaptive}))


__all__ = [
    "AbortBatch",
    "AbortRequested",
    "Adjusted",
    "Adjustment",
    "Answered",
    "Ask",
    "Asked",
    "Batch",
    "BatchingNumbers",
    "Budget",
    "Cancelled",
    "CloseRequested",
    "DrainRequested",
    "Drained",
    "EndpointAdded",
    "EndpointGone",
    "EndpointRemoved",
    "Event",
    "Failed",
    "Failure",
    "FailureKind",
    "FixedLimit",
    "GuestChanged",
    "HealthChanged",
    "Isolation",
    "Kind",
    "Limit",
    "LoadHidden",
    "LoadReported",
    "ModelWanted",
    "Notice",
    "Objective",
    "Offer",
    "Outcome",
    "Paused",
    "RateWindow",
    "RatesPerMinute",
    "RatesReported",
    "Reject",
    "Request",
    "RequestState",
    "Resolve",
    "Resumed",
    "Retuned",
    "Sample",
    "Scheduler",
    "SchedulerSettings",
    "Search",
    "SendBatch",
    "ServerKnown",
    "ServerLoad",
    "Shape",
    "Submitted",
    "Turn",
    "WaitOver",
    "Woke",
    "limit_with",
]
