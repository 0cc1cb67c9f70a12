"""The core's vocabulary: events in, commands out. Shapes, requests, batches: ``requests``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from batchclient._core.failures import Failure, FailureKind
from batchclient._core.kinds import Kind
from batchclient._core.limits import ServerLoad
from batchclient._core.requests import Batch, Isolation, Request, RequestState, Shape
from batchclient._core.settings import SchedulerSettings
from batchclient.errors import BatchClientError
from batchclient.types import Completion

if TYPE_CHECKING:
    from batchclient._core.limits.control import Limit

__all__ = [
    "AbortBatch",
    "AbortRequested",
    "Adjusted",
    "Adjustment",
    "Answered",
    "Ask",
    "Asked",
    "Batch",
    "Cancelled",
    "CloseRequested",
    "Command",
    "DrainRequested",
    "Drained",
    "EndpointAdded",
    "EndpointGone",
    "EndpointRemoved",
    "Event",
    "Failed",
    "Failure",
    "FailureKind",
    "GuestChanged",
    "HealthChanged",
    "Isolation",
    "LoadHidden",
    "LoadReported",
    "ModelWanted",
    "Notice",
    "Paused",
    "RateWindow",
    "RatesReported",
    "Reject",
    "Request",
    "RequestState",
    "Resolve",
    "Resumed",
    "Retuned",
    "SendBatch",
    "ServerKnown",
    "Shape",
    "Submitted",
    "WaitOver",
    "Woke",
]

# Made once per call or reply, events and commands are not frozen: freezing costs 0.4 µs each.

# Events ------------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Submitted:
    """A call was made. ``Woke`` or another event grants it, so calls of one turn travel together.

    ``may_wait``: wait outside a full queue where other calls are refused, and in an outage as long
    as the deadline allows. (Maps read no further ahead than allowed.)
    """

    request: Request
    may_wait: bool = False


@dataclass(slots=True, eq=False)
class Cancelled:
    """The caller has gone; nobody waits for the answer."""

    request: Request


@dataclass(slots=True, eq=False)
class Answered:
    """Some requests, named by position in the batch, have their whole answer.

    ``ended``: the response is complete, except perhaps for the end of its body.
    """

    batch: Batch
    answers: list[tuple[int, Completion]]
    ended: bool = False


@dataclass(slots=True, eq=False)
class Failed:
    """The response is over and its connection released; the unanswered requests have failed.

    ``retry_delay_s`` is the retry policy's pause before the next attempt; ``None``: do not retry.
    ``jitter`` is random, from 0 to 1: pauses of the scheduler's own are shortened by it.
    """

    batch: Batch
    failure: Failure
    retry_delay_s: float | None = None
    jitter: float = 0.0


@dataclass(slots=True, eq=False)
class Woke:
    """Time has passed."""


@dataclass(slots=True, eq=False)
class Paused:
    """Send nothing more; requests in flight go on."""


@dataclass(slots=True, eq=False)
class Resumed:
    """Send again."""


@dataclass(slots=True, eq=False)
class DrainRequested:
    """Take no more calls; ``Drained`` follows once all have ended."""


@dataclass(slots=True, eq=False)
class Retuned:
    """Go on with other numbers.

    Args:
        settings: the batching rule's; ``None`` keeps them.
        limits: a new algorithm per endpoint; ``None`` keeps them.
    """

    settings: SchedulerSettings | None = None
    limits: Sequence[Limit] | None = None


@dataclass(slots=True, eq=False)
class LoadReported:
    """A server has reported how busy it is, asked ``took_s`` ago."""

    endpoint: int
    load: ServerLoad
    took_s: float = 0.0


@dataclass(slots=True, eq=False)
class LoadHidden:
    """A server shows no load, and will not for a while; ``why``: in words that follow its name."""

    endpoint: int
    why: str


@dataclass(slots=True, eq=False)
class GuestChanged:
    """Be a guest at all servers from now on, also at those added later, or as each limit was made.

    ``or_usual``: where a server shows no load, be none, instead of ending the calls there.
    """

    on: bool
    or_usual: bool = False


@dataclass(slots=True, eq=False)
class ServerKnown:
    """An endpoint's server was identified.

    Args:
        caps: prompts per request, at most, by kind of call; a missing kind has no known cap.
        slots: sequences at once, if known; more would queue at the server or be refused.
        server: name and version as they may be shown; ``None``: no known server.
    """

    endpoint: int
    caps: Mapping[Kind, int]
    slots: int | None = None
    server: str | None = None
    event_per_token: bool | None = None
    """Whether its streams send an event per token in any case; ``None``: a stream will tell."""


@dataclass(frozen=True, slots=True)
class RateWindow:
    """The rest of one of a gateway's rate limits, as the gateway states it.

    Args:
        remaining: requests or tokens, at least 0.
        reset_s: seconds until there is more; at least 0.
    """

    remaining: int
    reset_s: float


@dataclass(slots=True, eq=False)
class Asked:
    """The question which server an endpoint is has ended; ``ServerKnown`` is told before.

    Args:
        answered: whether nothing is left to ask, also since the pages were read for another reason.
        failure: why the server does not seem to be there.
    """

    endpoint: int
    answered: bool
    failure: Failure | None = None


@dataclass(slots=True, eq=False)
class ModelWanted:
    """Calls wait for the servers to name their model, and so for a first server; or none does more."""

    wanted: bool = True


@dataclass(slots=True, eq=False)
class RatesReported:
    """A reply states the rest of a gateway's limits (at least one); told before its own event."""

    endpoint: int
    windows: tuple[RateWindow, ...]


class RatesPerMinute(NamedTuple):
    """What a server is sent in a minute, at most; ``None``: any number."""

    requests: float | None = None
    tokens: float | None = None


NO_RATES = RatesPerMinute()


class Offer(NamedTuple):
    """What a server serves, and what that costs.

    Args:
        model: the one model that it is asked for; ``None``: any.
        input, output: the price of a token of a prompt and of an answer.
        holds_one: whether it holds one of several models at a time; ``None``: to be found out.
        model_wait_s: how long calls for another model wait then, at most.
    """

    model: str | None = None
    input: float = 0.0
    output: float = 0.0
    holds_one: bool | None = None
    model_wait_s: float = 30.0

    @property
    def is_priced(self) -> bool:
        """Whether a call costs anything."""
        return self.input > 0 or self.output > 0

    def cost(self, prompt_tokens: float, output_tokens: float) -> float:
        """The cost of tokens."""
        return prompt_tokens * self.input + output_tokens * self.output


FREE = Offer()


@dataclass(slots=True, eq=False)
class EndpointAdded:
    """An endpoint was added, with an id never used before and a base URL as it may be shown."""

    endpoint: int
    limit: Limit
    name: str = ""
    rates: RatesPerMinute = NO_RATES
    offer: Offer = FREE


@dataclass(slots=True, eq=False)
class EndpointRemoved:
    """Send nothing more to an endpoint; ``EndpointGone`` follows once its batches are over.

    Never for the last endpoint. A leaving endpoint may be removed again, to leave at once. Without
    ``drain`` requests in flight are ended and sent elsewhere.
    """

    endpoint: int
    drain: bool = True


@dataclass(slots=True, eq=False)
class AbortRequested:
    """End every call now with ``CallAborted``; the client stays open."""


@dataclass(slots=True, eq=False)
class CloseRequested:
    """End every call now with ``ClientClosed`` and take no more."""


Event = (
    Submitted
    | Cancelled
    | Answered
    | Failed
    | Woke
    | Paused
    | Resumed
    | Retuned
    | GuestChanged
    | LoadHidden
    | LoadReported
    | Asked
    | ModelWanted
    | RatesReported
    | ServerKnown
    | EndpointAdded
    | EndpointRemoved
    | DrainRequested
    | AbortRequested
    | CloseRequested
)

# Commands ----------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class SendBatch:
    """Send a batch (permits taken). Exactly one ``Answered(ended=True)`` or ``Failed`` follows."""

    batch: Batch


@dataclass(slots=True, eq=False)
class AbortBatch:
    """Close a batch's connection, report ``Failed``: nobody waits, or the calls are to move."""

    batch: Batch


@dataclass(slots=True, eq=False)
class Resolve:
    """Hand out answers: one command per event."""

    answers: list[tuple[Request, Completion]]


@dataclass(slots=True, eq=False)
class Reject:
    """Hand out errors."""

    errors: list[tuple[Request, BatchClientError]]


@dataclass(slots=True, eq=False)
class Ask:
    """Ask an endpoint which server it is; one ``Asked`` follows, unless it is asked again before.

    ``anew``: another server may be there than the one identified before.
    """

    endpoint: int
    anew: bool = False


@dataclass(slots=True, eq=False)
class WaitOver:
    """No server gave a first answer in time: for those that wait for one outside the queue."""

    error: BatchClientError


@dataclass(slots=True, eq=False)
class Drained:
    """Nothing is queued or in flight and no more calls will be taken."""


@dataclass(slots=True, eq=False)
class EndpointGone:
    """No batch is left at a removed endpoint: its connections may be closed."""

    endpoint: int


Notice = Literal[
    "outage_began",
    "outage_ended",
    "server_awaited",
    "server_arrived",
    "silence_began",
    "silence_ended",
    "models_in_turn",
    "models_at_once",
]
"""What a warning is of; events of the log."""


@dataclass(slots=True, eq=False)
class HealthChanged:
    """An endpoint's state has changed: for observers only; nothing is to be done.

    Args:
        name: the base URL as it may be shown.
        state: the new state, in a word; ``"silent"``: the state is as it was, and nothing comes;
            ``"held"``: it is as it was, and calls wait for refusals.
        reason: why.
        outage: the warning to give, if an outage or a silence of the endpoint began or ended now.
        notice: what the warning is of.
    """

    endpoint: int
    name: str
    state: str
    reason: str
    outage: str = ""
    notice: Notice | None = None


@dataclass(frozen=True, slots=True)
class Adjustment:
    """A change to how the client uses an endpoint, made by itself or as told.

    Args:
        at: when, on the client's monotonic clock, seconds.
        endpoint: the endpoint's id; of the first endpoints, the place in the list of base URLs.
        setting: ``"limit"`` or ``"batch_size_cap"``; for other calls than completions
            ``"batch_size_cap of chat"`` and so on.
        old: the number before.
        new: the number from now on.
        reason: why, in words.
    """

    at: float
    endpoint: int
    setting: str
    old: int
    new: int
    reason: str


@dataclass(slots=True, eq=False)
class Adjusted:
    """A limit or a list cap has changed: for observers only; nothing is to be done.

    Args:
        name: the endpoint's base URL as it may be shown.
    """

    adjustment: Adjustment
    name: str = ""


Command = SendBatch | AbortBatch | Resolve | Reject | Ask | WaitOver | Drained | EndpointGone | Adjusted | HealthChanged
