"""What the core moves: shapes, requests, batches.

A *request* is a caller's. A *batch* is ours: the requests that share one HTTP request. An *attempt* is one batch that
contained the request, counted from 1. A *shape* is what a coalescing key means: two requests share a batch only if they
have the same shape, or the same *mixed* one where the server takes parameters per prompt.

Prompts are opaque here: JSON bytes made when the call was given, so that bad text is refused there, and so that no
prompt can reach a log or a repr of the core.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from batchclient._core.failures import Failure
from batchclient._core.kinds import Kind
from batchclient._core.lane import Account, Lane

__all__ = ["Batch", "Endured", "Isolation", "Learnt", "Request", "RequestState", "Shape", "WireNotes", "shape_of"]


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """Everything that must be equal for two calls to share a request.

    Args:
        key: the coalescing key, canonical bytes; it begins with the kind.
        body: the shared part of the request's JSON body, an object without the prompt.
        model: the model's name.
        weight: sequences per prompt (``n``, or the beam width).
        max_output_tokens: the most a prompt may generate; ``None`` if the server decides.
        alone_reason: why these calls never share a request; ``None`` if they may.
        plain_only: the request cannot be streamed (``prompt_logprobs``, beam search).
        wants_token_ids: the caller asked for token ids, so that they stay in the answer.
        echo: the answer begins with the prompt.
        priority: the class; the higher, the earlier. Part of the key.
        tenant: whom the calls are for; part of the key.
        answer_key: the part of the key that shapes the answer, without tenant and priority; the key itself if not given.
        kind: what the calls ask for.
        lists_plain: a list of these is not streamed, a lone call may be (vLLM's chat lists).
        tells_priority: the server is told the priority.
        counted: the prompts are token ids, so that their number is no estimate.
        to_caller: the answer is handed to its caller piece by piece; always streamed, token by token.
        packable: numbers are asked for as base64 where the server writes them so (vectors, unless the caller chose otherwise).
        greedy: the calls ask for ``temperature=0`` themselves, so that equal ones want equal answers.
        verbatim: the answers keep the server's own reply; a lone call is sent as its caller wrote it, never streamed.
        max_attempts: requests that may be sent for such a call, whatever the retry policy says; ``None``: the policy alone decides.
        mixed: the shape of a list in which each prompt has parameters of its own, where the servers take such lists: calls whose ``mixed`` has
            the same key share one. ``None``: they share requests with their like only.
        is_mixed: it is such a shape: what its requests do not share is in their own shapes.
    """

    key: bytes
    body: bytes
    model: str = ""
    weight: int = 1
    max_output_tokens: int | None = None
    alone_reason: str | None = None
    plain_only: bool = False
    wants_token_ids: bool = False
    echo: bool = False
    priority: int = 0
    tenant: str | None = None
    answer_key: bytes = b""
    greedy: bool = False
    kind: Kind = Kind.COMPLETION
    lists_plain: bool = False
    tells_priority: bool = False
    counted: bool = False
    to_caller: bool = False
    packable: bool = False
    verbatim: bool = False
    max_attempts: int | None = None
    mixed: Shape | None = None
    is_mixed: bool = False
    list_key: bytes = field(init=False, default=b"")
    """What calls that may share a list have in common: ``key``, or that of ``mixed``."""
    learnt_as: bytes = field(init=False, default=b"")
    """Under which key it is learnt how long answers are and take: ``answer_key``, or that of ``mixed``."""

    def __post_init__(self) -> None:
        if not self.answer_key:
            object.__setattr__(self, "answer_key", self.key)
        listed = self.mixed or self
        object.__setattr__(self, "list_key", listed.key)
        object.__setattr__(self, "learnt_as", listed.answer_key)


def shape_of(requests: list[Request]) -> Shape:
    """The shape of a list of requests that may share it: their own if it is one, else the mixed one."""
    shape = requests[0].shape
    mixed = shape.mixed
    if mixed is None or all(request.shape.key == shape.key for request in requests):
        return shape
    return mixed


class RequestState(Enum):
    """Where a request is.

    ``ABANDONED``: its caller has gone but the server still works on it. ``JOINED``: it shares another's (``single_flight``).
    """

    NEW = "new"
    WAITING = "waiting"
    QUEUED = "queued"
    BACKING_OFF = "backing off"
    IN_FLIGHT = "in flight"
    JOINED = "joined"
    ABANDONED = "abandoned"
    DONE = "done"


_NEW = RequestState.NEW


@dataclass(slots=True, eq=False)
class Endured:
    """What a call has behind it; made with its first failed attempt.

    Args:
        in_attempts_s, in_pauses_s: so long.
        paused_since: when its last attempt ended, or the last pause that was counted.
        failure: the last one that is anything to its caller; ``None``: there is none.
    """

    in_attempts_s: float = 0.0
    in_pauses_s: float = 0.0
    paused_since: float = 0.0
    failure: Failure | None = None


class Request:
    """One caller's call. The scheduler owns and changes it from ``Submitted`` on.

    Args:
        shape: what it may travel with.
        prompt: the prompt as JSON bytes.
        prompt_tokens: how many they are, or an estimate that the scheduler puts a better one in the place of (``PromptLengths``).
        deadline: absolute time, or ``None``.
        solo_fields: JSON members sent only when the call goes alone (``user``, request ids).
        waiter: the shell's way back to the caller; opaque here.
    """

    __slots__ = (
        "attempts",
        "batch",
        "begun",
        "bucket",
        "deadline",
        "endured",
        "failed_on",
        "family",
        "group",
        "met_before",
        "patient",
        "prompt",
        "prompt_tokens",
        "queued_at",
        "seq",
        "shape",
        "shared",
        "solo_fields",
        "state",
        "stem",
        "waiter",
    )

    def __init__(
        self,
        shape: Shape,
        prompt: bytes,
        *,
        prompt_tokens: int = 1,
        deadline: float | None = None,
        solo_fields: bytes = b"",
        waiter: Any = None,
    ) -> None:
        self.shape: Shape = shape
        self.prompt: bytes = prompt
        self.prompt_tokens: int = prompt_tokens
        self.deadline: float | None = deadline
        self.solo_fields: bytes = solo_fields
        self.waiter: Any = waiter
        self.seq: int = -1
        self.queued_at: float = 0.0
        self.attempts: int = 0
        self.bucket: int = 0
        self.family: int = 0
        """The prefix family, for prompts of at least 256 bytes; 0: none. The same for calls whose prompts begin alike."""
        self.stem: int = 0
        """The longest prefix of it that later prompts can be known by; 0 for a short prompt."""
        self.met_before: bool = False
        """Whether it has failed in a way that is tried once more at most (``Failure.once``)."""
        self.shared: int = 0
        """How many bytes of the prompt, at least, its server has answered a call with before."""
        self.failed_on: int = -1
        """Id of the endpoint where it failed last; -1: nowhere."""
        self.patient: bool = False
        """Whether only its deadline bounds its waiting in an outage."""
        self.endured: Endured | None = None
        """What it has behind it; ``None``: no failed attempt."""
        self.begun: bool = False
        """Whether its caller has a part of the answer, so that it cannot be sent again. The shell sets it."""
        self.batch: Batch | None = None
        self.group: object = None
        """The queue's own: the group it waits in."""
        self.state: RequestState = _NEW

    def __repr__(self) -> str:
        return f"<Request {self.seq} {self.state.value}, attempts {self.attempts}>"


_NO_LANE = Lane(0, Account(None))
"""Of batches that no scheduler made."""


@dataclass(slots=True, eq=False)
class Isolation:
    """The search for the guilty prompts of one failed list; shared by all its parts.

    If every prompt turns out well alone, the list itself was refused.
    """

    size: int
    good: int = 0
    bad: int = 0
    refused: int = 0
    """Lists of it that were refused."""
    trials: int = 0
    """Members that were sent alone to see whether the server lives."""
    blind: bool = False
    """Whether the server named no culprit: it is taken apart on a suspicion."""
    listed: bool = False
    """Whether any part of it with more than one prompt was answered."""


@dataclass(slots=True, eq=False)
class Learnt:
    """What an endpoint's dialect has learnt of its server. It is the dialect's own; batches carry it to whoever reads their replies."""

    usage_is_own: bool = True
    """Whether the usage beside a choice of a list is known to be that choice's, not a sum."""


@dataclass(slots=True, eq=False)
class LoadAtSend:
    """What an endpoint's permits were when a batch was granted there. Its limit is told of the batch by it.

    Args:
        returned: permits that the endpoint had been given back until then.
        area: its sequence-seconds until then (``Endpoint.area``).
        admitted_at: its limit.
        in_flight: its sequences in flight, the batch's own among them.
    """

    returned: int = 0
    area: float = 0.0
    admitted_at: int = 0
    in_flight: int = 0


@dataclass(slots=True, eq=False)
class WireNotes:
    """What the shell and the dialect note of a batch on its way.

    Args:
        heard: whether anything of the reply's body has come.
        read_at: when bytes of the reply last came; before the first of them when the request was sent.
        events: events of its streamed reply, once all has been read.
        without: fields that the server refuses and we would have added.
        learnt: what the dialect has learnt of the server.
        to_list_route: whether it is a list on a route that not all servers have.
    """

    heard: bool = False
    read_at: float = 0.0
    events: int = 0
    without: frozenset[str] = frozenset()
    learnt: Learnt = field(default_factory=Learnt)
    to_list_route: bool = False


@dataclass(slots=True, eq=False)
class Batch:
    """Requests that share one HTTP request.

    Args:
        id: unique within a scheduler.
        endpoint: id of the endpoint it was granted on.
        shape: the requests' common shape, which may be a mixed one.
        requests: in the order of the prompts on the wire.
        streamed: whether the reply is asked for as a stream.
        failures: failed attempts of these requests before this one (splits not counted).
        sent_at: when it was granted.
        oldest_at: when its oldest request was submitted.
    """

    id: int
    endpoint: int
    shape: Shape
    requests: list[Request]
    streamed: bool
    failures: int
    sent_at: float
    oldest_at: float
    isolation: Isolation | None = None
    unanswered: int = 0
    """Requests without an answer yet, abandoned ones too."""
    callers: int = 0
    """Requests whose caller still waits."""
    aborting: bool = False
    charged_tokens: int = 0
    """What it was charged where tokens per minute are limited, by estimate."""
    alone: str = ""
    """Why its only request has no company; empty where it has."""
    moving: bool = False
    """Whether its endpoint is being removed and its open requests are to be sent elsewhere."""
    expired: bool = False
    """Whether a caller's deadline passed while the server worked on it."""
    has_families: bool = False
    """Whether prompts long enough to have a prefix family may be among its requests."""
    answered: bytearray = field(default_factory=bytearray)
    """One byte per request: 1 once answered."""
    made_tokens: int = 0
    """Output tokens of the answers so far."""
    load: LoadAtSend = field(default_factory=LoadAtSend)
    wire: WireNotes = field(default_factory=WireNotes)
    lane: Lane = field(default_factory=lambda: _NO_LANE)
    """Whom it is for."""
    expected_tokens: int = 0
    """Output tokens expected of each request when it was granted, if its tenant was charged for them."""
    tokens_at_risk: int = 0
    """Prompt and expected output tokens of all its requests, by estimate: what sending it again costs."""
    tell_begun: bool = False
    """Whether ``Begun`` is to be told: first tokens may still raise the limit. The shell takes it back once it has looked."""
    verdict: Failure | None = None
    """Why it is being ended, if its endpoint has been given up; the shell reports it as the batch's failure."""

    packed: bool = False
    """Whether numbers are asked for as base64."""
    bare: bool = False
    """Whether it is sent plain and with its callers' own fields only: where ours may be the reason that such calls fail."""

    def __repr__(self) -> str:
        mode = "streamed" if self.streamed else "plain"
        return f"<Batch {self.id} on {self.endpoint}, {mode}, {len(self.requests)} requests, {self.unanswered} open>"
