"""The vocabulary of the core: what it is told (events) and what it answers (commands); what it moves is in ``requests``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from batchclient._core.failures import Failure, FailureKind
from batchclient._core.kinds import Kind
from batchclient._core.limits import Limit, ServerLoad
from batchclient._core.requests import Batch, Isolation, Request, RequestState, Shape
from batchclient._core.settings import SchedulerSettings
from batchclient.errors import BatchClientError
from batchclient.types import Completion

__all__ = [
    "AbortBatch",
    "AbortRequested",
    "Adjusted",
    "Adjustment",
    "Answered",
    "Ask",
    "AskOutcome",
    "Asked",
    "Batch",
    "Begun",
    "Cancelled",
    "CloseRequested",
    "Command",
    "DrainRequested",
    "Drained",
    "DropAsk",
    "EndpointAdded",
    "EndpointGone",
    "EndpointRemoved",
    "Event",
    "Failed",
    "Failure",
    "FailureKind",
    "HealthChanged",
    "Isolation",
    "LoadReported",
    "Page",
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
    "Woke",
]

# Events and commands are made once per call or per reply, so they are slotted but not frozen: freezing costs 0.4 µs each.

# Events ------------------------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Submitted:
    """A call was made. It is granted at the next ``Woke`` or other event, so that calls of one turn travel together.

    Args:
        request: the call.
        may_wait: wait outside a full queue even where others are refused (maps read no further ahead than they may), and in an outage
            as long as the deadline allows.
    """

    request: Request
    may_wait: bool = False


@dataclass(slots=True, eq=False)
class Cancelled:
    """The caller has gone; nobody waits for the answer."""

    request: Request


@dataclass(slots=True, eq=False)
class Begun:
    """Every prompt of a streamed batch has its first token, and none its whole answer. Told of a batch that asks for it (``tell_begun``)."""

    batch: Batch


@dataclass(slots=True, eq=False)
class Answered:
    """Some requests of a batch have their whole answer.

    Args:
        answers: (position in the batch, answer).
        ended: the response is complete; of its body only the end may still be to come.
    """

    batch: Batch
    answers: list[tuple[int, Completion]]
    ended: bool = False


@dataclass(slots=True, eq=False)
class Failed:
    """The response is over and its connection released; the unanswered requests have failed.

    Args:
        retry_delay_s: when to try again, as the retry policy decided; ``None``: do not.
    """

    batch: Batch
    failure: Failure
    retry_delay_s: float | None = None


@dataclass(slots=True, eq=False)
class Woke:
    """Time has passed."""


@dataclass(slots=True, eq=False)
class Paused:
    """Hold dispatch; what is in flight goes on."""


@dataclass(slots=True, eq=False)
class Resumed:
    """Dispatch again."""


@dataclass(slots=True, eq=False)
class DrainRequested:
    """Take no more calls; ``Drained`` follows once all have ended."""


@dataclass(slots=True, eq=False)
class Retuned:
    """Go on with other numbers.

    Args:
        settings: the batching rule's, or ``None`` to keep them.
        limits: a new algorithm per endpoint, or ``None`` to keep them.
        pin: hold every endpoint's limit at this number; ``UNPIN`` lets go; ``None`` leaves it.
    """

    settings: SchedulerSettings | None = None
    limits: Sequence[Limit] | None = None
    pin: int | None = None


UNPIN = 0


@dataclass(slots=True, eq=False)
class LoadReported:
    """An endpoint's server has said how busy it is.

    Args:
        endpoint: its place in the list of base URLs.
        load: what it said.
    """

    endpoint: int
    load: ServerLoad


@dataclass(slots=True, eq=False)
class ServerKnown:
    """It was found out which server an endpoint is.

    Args:
        endpoint: its id.
        caps: prompts per request that it takes, by kind of call; a kind that is missing has no known cap.
        slots: sequences that it takes at once, if it says so; more would only queue there, or be refused.
        server: its name and version as they may be shown; ``None``: none of those that are known.
    """

    endpoint: int
    caps: Mapping[Kind, int]
    slots: int | None = None
    server: str | None = None
    engine: bool = False
    """Whether it is one that batches hundreds of sequences and queues the rest."""


@dataclass(frozen=True, slots=True)
class RateWindow:
    """What a gateway says is left of one of its limits.

    Args:
        remaining: requests or tokens, at least 0.
        reset_s: seconds until there is more; at least 0.
    """

    remaining: int
    reset_s: float


class Page(Enum):
    """What servers are asked beside the calls."""

    LOAD = "how busy it is"
    SERVER = "which server it is"


class AskOutcome(Enum):
    """How a question went."""

    ANSWERED = "answered"
    NOTHING = "nothing"
    """There is no such page, or nothing on it that is known."""
    SILENCE = "silence"
    """Nothing came; something may come another time."""


@dataclass(slots=True, eq=False)
class Asked:
    """A question has ended; or nothing is left to ask of a page that was read for another reason. What the page said is told before.

    Args:
        endpoint: whose page.
        page: which.
        outcome: how it went.
    """

    endpoint: int
    page: Page
    outcome: AskOutcome


@dataclass(slots=True, eq=False)
class RatesReported:
    """A reply says what is left of a gateway's limits; told before what the reply itself means.

    Args:
        endpoint: whose reply.
        windows: at least one.
    """

    endpoint: int
    windows: tuple[RateWindow, ...]


@dataclass(slots=True, eq=False)
class EndpointAdded:
    """Another server is there.

    Args:
        endpoint: its id; no endpoint of the scheduler ever had it.
        limit: its algorithm.
        name: its base URL as it may be shown.
    """

    endpoint: int
    limit: Limit
    name: str = ""


@dataclass(slots=True, eq=False)
class EndpointRemoved:
    """Send nothing more to an endpoint; ``EndpointGone`` follows once nothing of ours is left there. Not the last one.

    Args:
        endpoint: its id; one that is leaving already may be told to leave at once.
        drain: let what is in flight finish; else it is ended and sent elsewhere.
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
    | Begun
    | Answered
    | Failed
    | Woke
    | Paused
    | Resumed
    | Retuned
    | LoadReported
    | Asked
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
    """Send it. The permits are already taken. Exactly one ``Answered(ended=True)`` or ``Failed`` must follow."""

    batch: Batch


@dataclass(slots=True, eq=False)
class AbortBatch:
    """Nobody waits for it any more, or it is to be sent elsewhere: close its connection, then report ``Failed``."""

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
    """Ask a server for a page; one ``Asked`` follows unless ``DropAsk`` comes first.

    Args:
        endpoint: its id.
        page: which.
        anew: it may be another server than the one that was found out before.
    """

    endpoint: int
    page: Page
    anew: bool = False


@dataclass(slots=True, eq=False)
class DropAsk:
    """A question is wanted no more."""

    endpoint: int
    page: Page


@dataclass(slots=True, eq=False)
class Drained:
    """Nothing is queued or in flight and nothing more will be taken."""


@dataclass(slots=True, eq=False)
class EndpointGone:
    """Nothing of ours is left at a removed endpoint: its connections may be closed."""

    endpoint: int


@dataclass(slots=True, eq=False)
class HealthChanged:
    """An endpoint's state has changed: to be told to whoever wants to know; nothing is to be done.

    Args:
        endpoint: its id.
        name: its base URL as it may be shown.
        state: its new state, in a word.
        reason: why.
        outage: what is to be told as a warning, if an outage of the endpoint began or ended with it.
    """

    endpoint: int
    name: str
    state: str
    reason: str
    outage: str = ""


@dataclass(frozen=True, slots=True)
class Adjustment:
    """One change that the client made by itself, or was told to make, to how it uses an endpoint.

    Args:
        at: when, on the client's monotonic clock, seconds.
        endpoint: the endpoint's id; of the first endpoints, the place in the list of base URLs.
        setting: ``"limit"``, or ``"batch_size_cap"``; for other calls than completions ``"batch_size_cap of chat"`` and so on.
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
    """A limit or a list cap has changed: to be told to whoever wants to know; nothing is to be done."""

    adjustment: Adjustment


Command = SendBatch | AbortBatch | Resolve | Reject | Ask | DropAsk | Drained | EndpointGone | Adjusted | HealthChanged
