"""Scheduler stories that read as scripts: an event in, the commands out, at literal times.

    play = Playbook(limit=4)
    a, b = calls("a b")
    play >> Submitted(a) << []
    play >> Submitted(b) << []
    play.at(0.5) >> Woke() << ["send a b"]
    play.at(0.7) >> answered(b) << ["resolve b"]
    play.at(0.9) >> failed(a, FailureKind.REFUSED) << ["reject a: BadRequest"]

Commands are written as ``send a b``, ``abort a b``, ``resolve a``, ``reject a b: QueueFull``, ``ask``, ``wait over: …`` and ``drained``;
with several endpoints ``send a b @1``. Calls are named by their waiter, and an answer's text is its call's name, so that every ``resolve``
also checks that nobody got another's answer. What must hold after every step is checked after every step.
"""

from collections import Counter
from itertools import count

from tests.core import (
    RatesPerMinute,
    AbortBatch,
    Adjusted,
    Answered,
    Ask,
    Drained,
    EndpointGone,
    Failed,
    Failure,
    FailureKind,
    FixedLimit,
    HealthChanged,
    Reject,
    Request,
    RequestState,
    Resolve,
    Scheduler,
    SchedulerSettings,
    SendBatch,
    Shape,
    Submitted,
    WaitOver,
)
from batchclient.errors import BadRequest, ConnectFailed, ConnectionLost, DemuxError, RateLimited
from batchclient.types import Choice, Completion, Usage

__all__ = ["Playbook", "answered", "calls", "failed", "shape"]

_ERRORS = {
    FailureKind.NOT_SENT: ConnectFailed,
    FailureKind.MAYBE_PROCESSED: ConnectionLost,
    FailureKind.REJECTED: RateLimited,
    FailureKind.MISMATCH: DemuxError,
}


_keys = count()


def shape(*, max_output_tokens=16, **fields):
    """A shape like no other: calls share a batch only if they were given the same."""
    return Shape(b"key %d" % next(_keys), b"{}", max_output_tokens=max_output_tokens, **fields)


_COMMON = shape()


def calls(names, of=_COMMON, *, tokens=1, deadline=None, timeout_s=None):
    """One call per name; ``names`` is a text, or a number for ``c0 c1 …``."""
    names = [f"c{i}" for i in range(names)] if isinstance(names, int) else names.split()
    times = {"deadline": deadline, "timeout_s": timeout_s}
    return [Request(of, f'"{name}"'.encode(), prompt_tokens=tokens, waiter=name, **times) for name in names]


def counted(*requests, tokens):
    """As ``answered``, of a server that tells output tokens and no usage."""
    event = answered(*requests, tokens=tokens)
    for _, completion in event.answers:
        completion.usage, completion.counted_tokens = None, tokens
    return event


def answered(*requests, tokens=1, ended=None):
    """These calls of one batch have their answers; the reply has ended if no other call of it is open."""
    batch = requests[0].batch
    assert all(request.batch is batch for request in requests), "an answer comes within one batch"
    positions = [batch.requests.index(request) for request in requests]
    answers = [
        (position, Completion((Choice(0, str(request.waiter), "stop"),), Usage(1, tokens), request.attempts))
        for position, request in zip(positions, requests, strict=True)
    ]
    return Answered(batch, answers, batch.unanswered == len(answers) if ended is None else ended)


def failed(request, kind, *, delay=None, error=None, jitter=0.0, **fields):
    """The batch of this call failed; ``delay`` is what the retry policy said, ``jitter`` what the shell drew.

    What has no form was not sent.
    """
    fields.setdefault("begun", kind is not FailureKind.UNSUPPORTED)
    return Failed(request.batch, Failure(kind, error or _ERRORS.get(kind, BadRequest), "no", **fields), delay, jitter)


def _names(requests):
    return " ".join(request.waiter for request in requests)


class Playbook:
    """A scheduler with a memory of what it commanded.

    Args:
        limit: sequences in flight, or an algorithm; a list of them makes as many endpoints.
        asks_first: whether servers may be asked which they are before their first list; ``None``: never.
        trusts_lists: whether servers get lists though they do not say which they are; ``False``: they are
            strangers, and prove their lists first.
        requests_per_minute, tokens_per_minute: of each endpoint.
        offers: what each endpoint serves, and at which price; none: anything, for nothing.
        settings: fields of ``SchedulerSettings``.
    """

    def __init__(
        self,
        limit=4,
        *,
        asks_first=None,
        trusts_lists=True,
        requests_per_minute=None,
        tokens_per_minute=None,
        offers=(),
        **settings,
    ):
        limits = limit if isinstance(limit, list) else [limit]
        self.scheduler = Scheduler(
            SchedulerSettings(trusts_lists=lambda: trusts_lists, **settings),
            [FixedLimit(n) if isinstance(n, int) else n for n in limits],
            asks_first=None if asks_first is None else lambda: asks_first,
            rates=[RatesPerMinute(requests_per_minute, tokens_per_minute)] * len(limits),
            offers=offers,
        )
        self.now = 0.0
        self.sent = []
        self.seen = []
        self.adjusted = []
        self.notices = []
        self.ends = Counter()
        self.errors = {}
        self._limits = limits

    def at(self, now):
        """Go on at this time."""
        assert now >= self.now, "time never goes back"
        self.now = now
        return self

    def submit(self, *requests):
        """Make these calls in one turn; none is sent before the next event."""
        for request in requests:
            self >> Submitted(request) << []
        return self

    def __rshift__(self, event):
        sent_before = len(self.sent)
        self.scheduler.handle(event, self.now)
        commands = self.scheduler.commands()
        # Nothing is to be done for these; who wants to see them looks here.
        self.adjusted = [
            f"{one.setting} {one.old} -> {one.new}: {one.reason}"
            for one in (command.adjustment for command in commands if isinstance(command, Adjusted))
        ]
        told = (command.notice for command in commands if isinstance(command, HealthChanged))
        self.notices += [notice for notice in told if notice is not None]
        self.seen = [self._word(command) for command in commands if not isinstance(command, Adjusted | HealthChanged)]
        self._check({batch.endpoint for batch in self.sent[sent_before:]})
        return self

    def __lshift__(self, expected):
        assert self.seen == expected, f"at {self.now}: {self.seen}, not {expected}"
        return self

    def __getattr__(self, name):
        return getattr(self.scheduler.statistics(), name)

    @property
    def last(self):
        """The batch sent last."""
        return self.sent[-1]

    @property
    def wakes_at(self):
        """When the scheduler wants to be woken."""
        return self.scheduler.next_deadline()

    def _word(self, command):
        match command:
            case SendBatch(batch):
                self.sent.append(batch)
                assert {request.shape for request in batch.requests} == {batch.shape}, "one shape per batch"
                return f"send {_names(batch.requests)}{self._place(batch.endpoint)}"
            case Ask(endpoint, anew):
                return f"ask{' anew' if anew else ''}{self._place(endpoint)}"
            case AbortBatch(batch):
                return f"abort {_names(batch.requests)}"
            case Resolve(answers):
                for request, completion in answers:
                    assert completion.text == request.waiter, "nobody gets another's answer"
                return f"resolve {self._end([request for request, _ in answers])}"
            case Reject(errors):
                assert len({id(error) for _, error in errors}) == len(errors), "callers never share an exception"
                self.errors.update((request.waiter, error) for request, error in errors)
                kinds = {type(error).__name__ for _, error in errors}
                return f"reject {self._end([request for request, _ in errors])}: {' '.join(sorted(kinds))}"
            case WaitOver(error):
                return f"wait over: {error.message}"
            case Drained():
                return "drained"
            case EndpointGone(endpoint):
                return f"gone @{endpoint}"

    def _place(self, endpoint):
        return f" @{endpoint}" if len(self._limits) > 1 else ""

    def _end(self, requests):
        self.ends.update(request.waiter for request in requests)
        assert max(self.ends.values()) == 1, "every call ends once"
        assert all(request.state in (RequestState.DONE, RequestState.ABANDONED) for request in requests)
        return _names(requests)

    def _check(self, sent_to):
        statistics = self.scheduler.statistics()
        for index, endpoint in enumerate(statistics.endpoints):
            heaviest = max((batch.shape.weight for batch in self.sent), default=1)
            # What was granted before a limit was lowered stays in flight; nothing is added to it.
            assert index not in sent_to or endpoint.in_flight <= max(endpoint.limit, heaviest)
            assert 0 <= endpoint.abandoned <= endpoint.in_flight
        deadline = self.scheduler.next_deadline()
        assert deadline is None or deadline >= self.now, "the scheduler never asks for the past"
