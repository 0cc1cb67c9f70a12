"""The core's things: shapes, requests, batches.

A *request* is a caller's. A *batch* is ours: the requests in one HTTP request. An *attempt* is a
batch which contained the request, counted from 1. A *shape* stands for a coalescing key: two
requests share a batch only if their shapes are equal.

Prompts are opaque here: JSON bytes, made when the call was given. So bad text is refused there, and
no prompt can reach a log or a repr of the core.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from typing import Any

from batchclient._core.failures import Failure
from batchclient._core.kinds import Kind
from batchclient._core.lane import Account, Lane
from batchclient._core.settings import BatchingNumbers

__all__ = [
    "NO_REFUSAL", "Batch", "Budget", "Endured", "Isolation", "Learnt", "Refusal", "Request",
    "RequestState", "Shape", "WireNotes",
]  # fmt: skip


@dataclass(slots=True, eq=False)
class Budget:
    """What a job may spend at servers with a price.

    Args:
        most: so much at most.
        spent: so far, with what calls under way may cost.
        under_way: how many calls.
    """

    most: float
    spent: float = 0.0
    under_way: int = 0

    def charge(self, calls: int, cost: float) -> None:
        """Calls are sent that may cost so much each."""
        self.spent += calls * cost
        self.under_way += calls

    def settle(self, calls: int, charged: float, cost: float) -> None:
        """Calls that were charged so much each have ended, and have cost so much together."""
        self.spent += cost - calls * charged
        self.under_way -= calls

    def pays(self, costs: Iterable[float]) -> int:
        """How many more calls may go to such a server, the first of those that may cost so much."""
        left, cost, count = self.most - self.spent, 0.0, 0
        for each in costs:
            cost += each
            if cost > left:
                break
            count += 1
        return count


@dataclass(frozen=True, slots=True, eq=False)
class Shape:
    """Everything that must be equal for two calls to share a request.

    Args:
        key: the coalescing key, canonical bytes; begins with the kind.
        body: the shared part of the request's JSON body, an object without the prompt.
        model: the model's name.
        weight: sequences per prompt (``n``, or the beam width).
        max_output_tokens: output tokens per prompt, at most; ``None``: the server decides.
        alone_reason: why the calls never share a request; ``None``: sharing is allowed.
        plain_only: the request cannot be streamed (``prompt_logprobs``, beam search).
        wants_token_ids: the caller asked for token ids, so the answer keeps them.
        echo: the answer begins with the prompt.
        priority: the class; higher classes go earlier. Part of the key.
        tenant: whom the calls are for. Part of the key.
        answer_key: ``key`` without tenant and priority: it shapes the answer; default ``key``.
        kind: the kind of answer asked for.
        lists_plain: lists of such calls are not streamed, a lone call may be (vLLM's chat lists).
        tells_priority: the server is told the priority.
        counted: the prompts are token ids, so their number is no estimate.
        to_caller: the caller gets the answer in pieces; always streamed, token by token.
        packable: numbers are asked for as base64 where possible: vectors without a chosen format.
        greedy: the calls ask for ``temperature=0`` themselves, so equal calls want equal answers.
        verbatim: answers keep the server's reply; a lone call goes as written, never streamed.
        max_attempts: requests per call, at most; ``None``: the retry policy alone decides.
        session: the conversation that the server is told of. Part of the key.
        home: the endpoint that the calls go to while it is in use. Part of the key.
        fixed_length: so few tokens are asked for, or exactly so many, that an end at the bound is
            no truncation.
        guarded: an answer that runs into a loop is to end there.
        any_model: the calls name no model, and each server is asked for its own. Part of the key.
        budget: bounds what the calls' job spends at servers with a price. Part of the key.
        numbers: how the calls become batches, where a view says it. Part of the key.
        thinking_tokens: of reasoning, at most, within ``max_output_tokens``; ``None``: no bound is
            asked for. The body has the caller's own fields, until the server is known.
        opened: the tag by which the prompts have begun to think; empty: none. Part of the key.
        labels: what the answer is one of; also in ``body``. Each server is asked in its words.
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
    session: str | None = None
    home: int | None = None
    fixed_length: bool = False
    guarded: bool = False
    any_model: bool = False
    budget: Budget | None = None
    numbers: BatchingNumbers | None = None
    thinking_tokens: int | None = None
    opened: str = ""
    labels: tuple[str, ...] = ()
    subject: tuple[str, Kind] = field(init=False, default=("", Kind.COMPLETION))
    """The model and kind: what a server may refuse to all such calls."""

    def __post_init__(self) -> None:
        if not self.answer_key:
            object.__setattr__(self, "answer_key", self.key)
        object.__setattr__(self, "subject", (self.model, self.kind))


class RequestState(Enum):
    """Where a request is.

    ``ABANDONED``: the caller has gone but the server still works on the request. ``JOINED``: the
    request shares another's generation (``single_flight``).
    """

    NEW = "new"
    QUEUED = "queued"
    BACKING_OFF = "backing off"
    IN_FLIGHT = "in flight"
    JOINED = "joined"
    ABANDONED = "abandoned"
    DONE = "done"


@dataclass(slots=True, eq=False)
class Endured:
    """A call's past; made with its first failed attempt.

    Args:
        in_attempts_s, in_pauses_s: seconds in attempts and between attempts.
        paused_since: when the last attempt ended, or the last counted pause.
        failure: the last failure that concerns the caller; ``None``: none so far.
        refusals: how often a server refused the call for load.
        refused_first: the id of the batch that was refused first.
        is_refused_alone: whether the server took other calls meanwhile (see ``pace``).
        met_before: whether a failure came which allows one more try at most (``Failure.once``).
    """

    in_attempts_s: float = 0.0
    in_pauses_s: float = 0.0
    paused_since: float = 0.0
    failure: Failure | None = None
    refusals: int = 0
    refused_first: int = 0
    is_refused_alone: bool = False
    met_before: bool = False


@dataclass(slots=True, eq=False, repr=False)
class Request:
    """One caller's call. The scheduler owns and changes it from ``Submitted`` on.

    Args:
        shape: decides which calls may share its batch.
        prompt: the prompt as JSON bytes.
        prompt_tokens: the prompt's length, or an estimate, to be improved (``Lengths``).
        deadline: absolute time, or ``None``.
        timeout_s: seconds from the first grant that a server takes on, which sets the deadline.
        expected_tokens: output tokens of each answer, by the caller's word; ``None``: none was
            given.
        solo_fields: JSON members sent only when the call goes alone (``user``, request ids).
        waiter: the shell's way back to the caller; opaque here.
    """

    shape: Shape
    prompt: bytes
    _: KW_ONLY
    prompt_tokens: int = 1
    deadline: float | None = None
    timeout_s: float | None = None
    expected_tokens: int | None = None
    solo_fields: bytes = b""
    waiter: Any = None
    watched: bool = field(init=False, default=False)
    """Whether ``Deadlines`` has an entry of the request, perhaps of an earlier deadline."""
    seq: int = field(init=False, default=-1)
    queued_at: float = field(init=False, default=0.0)
    attempts: int = field(init=False, default=0)
    bucket: int = field(init=False, default=0)
    family: int = field(init=False, default=0)
    """The prefix family of prompts which begin alike; 0: none, as under 256 bytes."""
    stem: int = field(init=False, default=0)
    """The longest prefix which later prompts can be matched with; 0 for a short prompt."""
    shared: int = field(init=False, default=0)
    """Bytes of the prompt, at least, which its server has seen in an answered call before."""
    in_flight: int = field(init=False, default=0)
    """What its server had in flight once the answering batch was sent: ``LoadAtSend.in_flight``."""
    failed_on: int = field(init=False, default=-1)
    """Id of the endpoint of the last failure; -1: none."""
    denied_at: float = field(init=False, default=math.inf)
    """When the call was first sent to be refused for its key or model."""
    patient: bool = field(init=False, default=False)
    """Whether only the deadline bounds the wait in an outage."""
    endured: Endured | None = field(init=False, default=None)
    """The call's past; ``None``: no failed attempt."""
    begun: bool = field(init=False, default=False)
    """Whether the caller has a part of the answer: no resend. Set by the shell."""
    carries: bool = field(init=False, default=False)
    """Whether the request is made for several callers: its maker counts their ends."""
    batch: Batch | None = field(init=False, default=None)
    group: object = field(init=False, default=None)
    """The queue's own: the group in which the request waits."""
    state: RequestState = field(init=False, default=RequestState.NEW)

    def __repr__(self) -> str:
        return f"<Request {self.seq} {self.state.value}, attempts {self.attempts}>"

    @property
    def most_prompt_tokens(self) -> int:
        """The prompt's tokens at most: as counted, or one for each byte, or as many as learnt."""
        return self.prompt_tokens if self.shape.counted else max(self.prompt_tokens, len(self.prompt))

    def anew(self) -> Request:
        """Return a request for another answer to the same call, not submitted yet."""
        return Request(
            self.shape,
            self.prompt,
            prompt_tokens=self.prompt_tokens,
            deadline=self.deadline,
            timeout_s=self.timeout_s,
            expected_tokens=self.expected_tokens,
            solo_fields=self.solo_fields,
            waiter=self.waiter,
        )


_NO_LANE = Lane(0, Account(None))
"""The lane of batches which no scheduler made."""


@dataclass(slots=True, eq=False)
class Isolation:
    """The search for the guilty prompts of a failed list, shared by all its parts.

    If each prompt is good alone, the list itself was refused.
    """

    size: int
    good: int = 0
    bad: int = 0
    refused: int = 0
    """Parts of the list that were refused as lists."""
    trials: int = 0
    """Members sent alone to see whether the server lives."""
    blind: bool = False
    """Whether the server named no culprit: the list is taken apart on suspicion."""
    listed: bool = False
    """Whether any part with more than one prompt was answered."""


@dataclass(slots=True, eq=False)
class Learnt:
    """A dialect's own knowledge of its server; batches carry it to the readers of replies."""

    usage_is_own: bool = True
    """Whether the usage beside a choice of a list is known to be the choice's own, not a sum."""
    takes_lists: bool | None = None
    """Whether the last embedding that was answered came as a list; ``None``: none was answered."""
    lone_as_list: bool = False
    ignored_n: int = 0
    """Replies in a row with one answer where several were asked for, before any had several."""
    heeds_n: bool = False


@dataclass(slots=True, eq=False)
class LoadAtSend:
    """An endpoint's permits when a batch was granted there; the limit gets its load from them.

    Args:
        area: the endpoint's sequence-seconds by then (``Endpoint.area``).
        admitted_at: the endpoint's limit.
        in_flight: the endpoint's sequences in flight, the batch's own among them.
    """

    area: float = 0.0
    admitted_at: int = 0
    in_flight: int = 0


@dataclass(slots=True, eq=False)
class WireNotes:
    """Notes of the shell and the dialect about a batch on its way.

    Args:
        replied: whether the reply's head has come.
        heard: whether any of the reply's body has come.
        read_at: when bytes of the reply last came; before any: when the request was sent.
        events: events of the streamed reply, once all has been read.
        lost_tokens: tokens that came of answers which a failed attempt did not hand out.
        without: fields which the server refuses and we would have added.
        learnt: the dialect's knowledge of the server.
        to_list_route: whether the batch is a list on a route which not all servers have.
        lone_as_list: whether the batch is a lone call written as a list of one.
    """

    replied: bool = False
    heard: bool = False
    read_at: float = 0.0
    events: int = 0
    lost_tokens: int = 0
    without: frozenset[str] = frozenset()
    learnt: Learnt = field(default_factory=Learnt)
    to_list_route: bool = False
    lone_as_list: bool = False


@dataclass(frozen=True, slots=True)
class Refusal:
    """What the refusal of a batch for load says (see ``pace``).

    Args:
        seconds: how long it took, if it is free should the server take other work.
        is_free: whether the server takes other work.
        is_alone: whether other calls of the kind and model are not refused.
        is_of_load: whether it tells the limit that less at once may be taken.
    """

    seconds: float | None = None
    is_free: bool = False
    is_alone: bool = False
    is_of_load: bool = True


NO_REFUSAL = Refusal()


@dataclass(slots=True, eq=False)
class Batch:
    """Requests that share one HTTP request.

    Args:
        id: unique within a scheduler.
        endpoint: id of the endpoint which granted the permits.
        shape: the requests' common shape.
        requests: in the order of the prompts on the wire.
        streamed: whether the reply is asked for as a stream.
        failures: failed attempts of these requests before (splits not counted).
        sent_at: when the batch was granted.
    """

    id: int
    endpoint: int
    shape: Shape
    requests: list[Request]
    streamed: bool
    failures: int
    sent_at: float
    isolation: Isolation | None = None
    unanswered: int = 0
    """Requests without an answer yet, abandoned requests too."""
    callers: int = 0
    """Requests whose caller still waits."""
    aborting: bool = False
    charged_tokens: int = 0
    """Tokens charged, by estimate, where tokens per minute are limited."""
    charged_cost: float = 0.0
    """Of each request, by estimate, what was charged to the job's budget."""
    alone: str = ""
    """Why the only request has no company; empty for a list."""
    moving: bool = False
    """Whether open requests are to go another way: to another endpoint, or singly."""
    expired: bool = False
    """Whether a caller's deadline passed while the server worked on the batch."""
    refusal: Refusal = NO_REFUSAL
    """What the refusal of the batch says, if it was refused for load."""
    has_families: bool = False
    """Whether requests with a prefix family (long prompts) may be in the batch."""
    answered: bytearray = field(default_factory=bytearray)
    """One byte per request: 1 once answered."""
    made_tokens: int = 0
    """Output tokens of the answers so far."""
    load: LoadAtSend = field(default_factory=LoadAtSend)
    wire: WireNotes = field(default_factory=WireNotes)
    pace: Any = field(init=False)
    """What its endpoint may be sent of such calls: a ``Pace``, opaque here."""
    lane: Lane = field(default_factory=lambda: _NO_LANE)
    """Whom the batch is for."""
    expected_tokens: int = 0
    """Output tokens expected of each request at the grant, if the tenant was charged for them."""
    tokens_at_risk: int = 0
    """Estimated prompt and output tokens of all requests: the cost of sending the batch again."""
    ended_for: Failure | None = None
    """Why the batch of a given-up endpoint is ended; the shell reports it as the failure."""

    packed: bool = False
    """Whether numbers are asked for as base64."""
    bare: bool = False
    """Whether the batch goes plain, without fields of ours: those may be why such calls fail."""

    @property
    def oldest_at(self) -> float:
        """When the oldest of the requests was submitted."""
        return min(request.queued_at for request in self.requests)

    def __repr__(self) -> str:
        mode = "streamed" if self.streamed else "plain"
        return f"<Batch {self.id} on {self.endpoint}, {mode}, {len(self.requests)} requests, {self.unanswered} open>"
