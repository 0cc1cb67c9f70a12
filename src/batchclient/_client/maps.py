"""The maps of a client: one call per document, results as they come or all at once.

Rules:
- A wrong argument is refused here, once, and not once per document. Documents are read lazily.
- A document goes the way of every call (``engine``), and gets the answer that its call gets;
  ``call`` says which call.
- The maps hand requests to the core without a task per document (``maps``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from json import loads
from typing import TYPE_CHECKING, Any

import anyio.lowlevel

from batchclient._calls.call import PLAIN, Call, Manner
from batchclient._calls.inputs import is_conversation
from batchclient._calls.labels import field_of
from batchclient._calls.make import LABELS
from batchclient._checks import check_number, refused
from batchclient._client.engine import Engine, structured
from batchclient._core.kinds import Kind
from batchclient._core.messages import Request, Shape
from batchclient._core.requests import Budget
from batchclient._maps.arrow import documents_of
from batchclient._maps.progress import Ticker
from batchclient._maps.repair import Repair, answers_alike
from batchclient._maps.repairs import Repairs
from batchclient._maps.results import Results, check_documents
from batchclient._maps.row_calls import KINDS, RowCall, RowCalls, RowForm, RowParams, known_names, merged
from batchclient._shell.callbacks import call_back
from batchclient._shell.runner import Runner
from batchclient.errors import ConfigError, TooManyBadRows
from batchclient.maps import Finish, Map, Row
from batchclient.types import NOT_GIVEN, MapProgress, MapResults, NotGiven

if TYPE_CHECKING:
    from pydantic import BaseModel

    from batchclient._maps.finish_by import FinishBy
    from batchclient.journal import HeldJournal, Journal

__all__ = ["LEAST_LOOK_AHEAD", "MapJob", "count_of", "gather", "make_map"]

_MAPPED = ("complete", "chat", "embed", "classify")
"""The calls that a map makes where its documents do not name their own."""


LEAST_LOOK_AHEAD = 1024
"""Open rows, at least."""
_LIMITS_AHEAD = 4
"""Open rows per row in flight.

Some rows wait for company, and some, in a map in order, for an earlier row.
"""


_TIMES_AHEAD = 4
"""So many times as many are open where the longest go first, to find the longest among more."""

_RENAMED = {
    "retry_invalid": "repair=Repair(invalid=…)",
    "retry_truncated": "repair=Repair(truncated=…)",
    "max_tokens_at_most": "repair=Repair(max_tokens=…)",
}
"""Arguments of before, and what stands for them."""


_MANNERS = {
    (own_label, tells_priority): Manner(own_label=own_label, tells_priority=tells_priority)
    for own_label in (False, True)
    for tells_priority in (False, True)
} | {(False, False): PLAIN}
"""Of rows: whether a label is a row's own, and so is the priority."""


@dataclass(slots=True, repr=False)
class MapJob:
    """The arguments of one map; see ``BatchClient.batch_map``. ``method`` names it in errors."""

    method: str
    docs: Any
    prompt: str | Callable[[Any], Any] | None
    call: str
    rows: RowForm | None
    row_params: RowParams | None
    ordered: bool
    model: str | None
    timeout_s: float | NotGiven | None
    priority: int
    tenant: str | None
    session: str | None
    look_ahead: int | None
    order: str | None
    response_model: type[BaseModel] | None
    repair: Repair
    fail_if: Sequence[str]
    journal: str | os.PathLike[str] | Journal | HeldJournal | None
    progress: Callable[[MapProgress], object] | None
    finish_by_s: float | None
    params: Mapping[str, Any]
    count: int | None = None
    """The documents, where ``docs`` itself has no ``len()`` any more."""
    max_cost: float | None = None
    budget: Budget | None = field(init=False, default=None)

    def __repr__(self) -> str:
        # Tracebacks with values show it: no prompt, and no field of the caller's.
        return f"<MapJob of {self.method}>"

    @property
    def is_function(self) -> bool:
        """Whether a function makes each call, and all fields of its documents are data."""
        return callable(self.prompt) and self.rows is None and self.row_params is None

    def check(self) -> Kind:
        """Check what needs no client; return the kind of the calls, where documents name no other.

        Raises:
            ConfigError: an argument is wrong.
        """
        for old, new in _RENAMED.items():
            if old in self.params:
                raise ConfigError(f"{old} is now {new}", field=old)
        if self.look_ahead is not None and (type(self.look_ahead) is not int or self.look_ahead < 1):
            raise ConfigError("look_ahead is a whole number of at least 1", field="look_ahead")
        if self.order not in (None, "longest_first"):
            message = f"order is 'longest_first', not {self.order!r:.40}; that of the client's queue is Queue(order=…)"
            raise ConfigError(message, field="order")
        if self.order is not None and self.ordered and self.journal is None:
            message = f"order={self.order!r} may end the first row last: give ordered=False, or a journal"
            raise ConfigError(message, field="order")
        if self.max_cost is not None:
            check_number("max_cost", self.max_cost, above=0)
            self.budget = Budget(self.max_cost)
        if self.progress is not None and not callable(self.progress):
            raise ConfigError(f"progress is a function, not a {type(self.progress).__name__}", field="progress")
        if not isinstance(self.repair, Repair):
            raise ConfigError(f"repair is a Repair, not a {type(self.repair).__name__}", field="repair")
        kind = KINDS.get(self.call) if self.call in _MAPPED or self.is_function else None
        if kind is None:
            raise ConfigError(f"call is one of {', '.join(_MAPPED)}, not {self.call!r:.40}", field="call")
        truncated = {"repair.truncated": self.repair.truncated}
        _check_generates(kind, self.call, response_model=self.response_model, order=self.order, **truncated)
        return kind

    def reader(self, *, is_table: bool) -> Callable[[Any], RowCall]:
        """Return the function from a document to its call.

        Raises:
            ConfigError: prompt, form and ``row_params`` do not go together.
        """
        prompt = self.prompt
        template: Any = (lambda document: call_back("prompt", prompt, document)) if callable(prompt) else prompt
        if self.is_function:
            return lambda document: self._call_of(template(document))
        # A table's columns are data beside a template, as for ``batchclient map``.
        own = self.row_params or ("ignore" if is_table and isinstance(prompt, str) else None)
        return RowCalls(self.rows, call=self.call, template=template, row_params=own, is_table=is_table).read

    def _call_of(self, item: Any) -> RowCall:
        """Return the call that a function has made, or whose input it has made."""
        if isinstance(item, RowCall):
            return item
        if self.call == "chat" and isinstance(item, str):
            return RowCall("chat", [{"role": "user", "content": item}], {})
        return RowCall("chat" if self.call == "complete" and is_conversation(item) else self.call, item, {})

    def of(self, kind: Kind, item: Any, params: Mapping[str, Any], own: RowCall | None = None) -> Call:
        """Return the call of a row: what the row says of its own stands before the job's."""
        manner = PLAIN
        if own is not None:
            manner = _MANNERS[not LABELS.isdisjoint(own.params), own.priority is not None]
        if self.budget is not None:
            manner = manner._replace(budget=self.budget)
        if own is None:
            return Call(
                kind, item, params, self.model, self.timeout_s, self.priority, self.tenant, self.session, manner=manner
            )
        return Call(
            kind,
            item,
            params,
            self.model if own.model is None else own.model,
            self.timeout_s if own.timeout_s is NOT_GIVEN else own.timeout_s,
            self.priority if own.priority is None else own.priority,
            self.tenant,
            self.session if own.session is None else own.session,
            manner=manner,
        )

    def described(self, shape: Shape, models: list[str]) -> dict[str, Any]:
        """Return what decides the answers, by name; ``models``: what a call that names none may have."""
        parameters = loads(shape.body)
        template = self.prompt if isinstance(self.prompt, str) else None
        model = parameters.pop("model")
        if shape.any_model:
            model = " | ".join(models)
        return {"call": self.call, "model": model, "template": template, "parameters": parameters}


async def gather(engine: Engine, job: MapJob, *, return_exceptions: bool) -> MapResults[Any]:
    """Make all calls of a map, and return their answers in the order of the documents.

    Raises:
        ConfigError, BatchMapFailed, TooManyBadRows, JournalFailed: see ``BatchClient.batch_map``.
    """
    answered = make_map(engine, job)
    if isinstance(job.docs, (list, tuple)) and not callable(job.prompt) and not return_exceptions:
        for _ in check_documents(job.docs, job.prompt, job.rows, job.row_params, job.call):
            await anyio.lowlevel.checkpoint()
    results = Results(job.docs, job.call, job.params, return_exceptions=return_exceptions)
    try:
        async for row in answered:
            results.add(row)
    except TooManyBadRows as error:
        raise results.into(error, answered.health) from None
    except Exception as error:
        if error is not answered.source_error:
            raise
    finally:
        await answered.aclose()
    return results.all(answered.health, answered.source_error)


def make_map(engine: Engine, job: MapJob) -> Map[Any]:
    """Check the arguments of a map, and make it.

    Raises:
        ConfigError: an argument is wrong.
    """
    kind = job.check()
    # Counted before they are read: a relation of DuckDB tells no number beside an open result.
    finish_by = None if job.finish_by_s is None else _finish_by(engine, job, job.finish_by_s)
    documents = documents_of(job.docs)
    bounds = None
    if job.fail_if:
        from batchclient._maps.fail_if import FailIf  # few maps have bounds

        bounds = FailIf(job.fail_if, job.call)
    fields = job.params
    if job.response_model is not None:
        fields = structured().demand(job.response_model, fields)
    job.repair.check(fields, job.response_model)
    words = ("labels", "thinking_tokens")
    needs_servers = bool(job.repair.truncated) or any(field_of(fields, word) is not None for word in words)
    is_table = documents is not job.docs or getattr(job.docs, "is_table", False)
    read = job.reader(is_table=is_table)
    check = partial(_check_calls, engine, job, kind, fields)
    # Wrong parameters are refused here, not once per document.
    check()
    make_request = _requests_of(engine, job, kind, fields, read)
    journaled = None
    if job.journal is not None:
        # Here, not above: most programs have no journal.
        from batchclient._maps.journaled import Journaled

        again = None if job.response_model is None else structured().parse(job.response_model)
        guarded = None if again is None else engine.callbacks.guard("response_model", again)
        kept_again = None if guarded is None else (lambda _, answer: guarded(answer))
        journaled = Journaled(
            job.journal, lambda: job.described(check(), engine.calls.models), kept_again, ordered=job.ordered
        )
    more_ahead, look_ahead = 0 if journaled is None else journaled.more_ahead, job.look_ahead
    times = 1 if job.order is None else _TIMES_AHEAD
    rows: Map[Any] = Map(
        documents,
        make_request,
        engine.start,
        (lambda: times * _look_ahead(engine) + more_ahead) if look_ahead is None else (lambda: look_ahead),
        ordered=job.ordered,
        prepare=partial(_prepare, engine, job, check) if needs_servers or job.model is None else None,
        journaled=journaled,
        repairs=Repairs(job.repair, partial(_make_again, engine)),
        fail_if=bounds,
        finish_by=finish_by,
        longest_first=job.order is not None,
        ticker=None if job.progress is None else Ticker(engine.callbacks.hook("progress", job.progress)),
    )
    rows.budget = job.budget
    return rows


def _finish_by(engine: Engine, job: MapJob, finish_by_s: float) -> FinishBy:
    """Return what keeps a map's time.

    Raises:
        ConfigError: the time is wrong, the client's limit leaves nothing to decide, or nobody knows
            how many documents there are.
    """
    from batchclient._maps.finish_by import FinishBy  # few maps have to end in time

    check_number("finish_by_s", finish_by_s, above=0)
    limit = engine.settings.limit
    if isinstance(limit, int):
        raise refused("finish_by_s", f"a guest's limit is found, and limit={limit} is fixed; leave limit out")
    if limit.guest:
        raise refused("finish_by_s", "the client is always a guest, by limit; leave AdaptiveLimit(guest=True) out")
    count = count_of(job.docs) if job.count is None else job.count
    if count is None:
        why = "it needs the number of documents, and this iterable does not tell it"
        raise refused("finish_by_s", f"{why}; give a list, a table, or an object with len()")
    return FinishBy(lambda: finish_by_s, count)


def count_of(docs: Any) -> int | None:
    """Return how many documents there are; ``None``: nobody knows."""
    try:
        return len(docs)
    except TypeError:
        return None


def _check_calls(engine: Engine, job: MapJob, kind: Kind, fields: Mapping[str, Any]) -> Shape:
    """Check the arguments that all calls of a map share; return their shape."""
    method = f"{job.method}()" if kind is Kind.COMPLETION else f'{job.method}(call="{job.call}")'
    fault: ConfigError | None = None
    # While the documents' form is not known, parameters are those of some call.
    for each in (kind, *KINDS.values()) if job.prompt is None else (kind,):
        try:
            return engine.calls.check(job.of(each, None, fields), method)
        except ConfigError as error:
            fault = fault or error
    assert fault is not None, "there is a kind"
    raise fault


def _requests_of(
    engine: Engine, job: MapJob, kind: Kind, params: Mapping[str, Any], read: Callable[[Any], RowCall]
) -> Callable[[Any, Row, Runner], Request]:
    """Return the function that makes the request of a document."""
    repair = job.repair
    finish: Finish | None = None
    if job.response_model is not None:
        finish = engine.callbacks.guard("response_model", engine.reader_of(job.response_model))

    def make_request(document: Any, row: Row, runner: Runner) -> Request:
        made = read(document)
        own, fields = KINDS[made.call], params
        _check_generates(own, made.call, response_model=job.response_model)
        if own is not kind:
            known = known_names(made.call)
            fields = {name: value for name, value in params.items() if name in known or name == "extra_body"}
        if made.params:
            if job.response_model is not None:
                structured().refuse_other_forms(made.params)
            fields = merged(fields, made.params)
            if repair.invalid and answers_alike(fields):
                # Asked again it would answer the same.
                row.retries = repair.invalid
            repair.check_bound(fields)
        call, now = job.of(own, made.item, fields, made), runner.backend.now()
        row.finish = finish or engine.reader_of_labels(call)
        if own not in (Kind.SCORE, Kind.RERANK):
            request = engine.calls.make(call, row, now, from_grant=True)
            row.ask = engine.way_of_row(call)
            return request
        from batchclient._maps.ranking import requests_of  # few rows are such

        first, *others = requests_of(call, row, runner, partial(engine.calls.make, now=now, from_grant=True))
        if isinstance(made.item[1], (list, tuple)):
            row.identity = b"%b %r" % (own.value.encode(), str(made.item[2]).encode())
        row.others = tuple(others)
        return first

    return make_request


async def _prepare(engine: Engine, job: MapJob, check: Callable[[], Shape], runner: Runner) -> None:
    """Ask the servers what the first row needs to know.

    Raises:
        ConfigError: no row could be answered as the job says.
    """
    # A row's time runs from its grant. Before the first row the same time bounds the question.
    try:
        if job.model is None:
            await engine.find_model(runner, engine.calls.deadline(job.timeout_s, runner.backend.now()))
    except ConfigError:
        # The servers have several; rows may name their own. Those that do not, fail.
        if job.is_function:
            raise
    thinks, has_labels = (field_of(job.params, word) is not None for word in ("thinking_tokens", "labels"))
    if job.repair.truncated or has_labels or thinks:
        # A chat that was cut off goes on only where its server is known, also the first; and only
        # there labels are asked for in the server's words.
        await engine.know_servers(runner)
    if thinks:
        from batchclient._calls import thinking  # few maps have a budget

        thinking.check_servers(runner.servers, check())
    if has_labels and field_of(job.params, "probabilities"):
        from batchclient._client import probabilities  # few maps ask for them

        probabilities.check_servers(runner.servers)


def _make_again(engine: Engine, request: Request, item: Any, fields: dict[str, Any]) -> Request:
    """Make a row's request of another input and other fields."""
    runner = engine.runner
    assert runner is not None, "a row with a request has a runner"
    return engine.calls.make_again(request, item, fields, runner.backend.now())


def _look_ahead(engine: Engine) -> int:
    """Return how many rows of a map may be open, unless the caller says a number.

    The rows are enough to keep every server busy.
    """
    runner = engine.runner
    together = 0 if runner is None else runner.core.total_limit
    return max(LEAST_LOOK_AHEAD, _LIMITS_AHEAD * max(engine.settings.highest_limit, together))


def _check_generates(kind: Kind, call: str, **arguments: object) -> None:
    given = next((name for name, value in arguments.items() if value), None)
    if given is not None and kind not in (Kind.COMPLETION, Kind.CHAT):
        raise ConfigError(f"{given} is for texts that are generated, not for call={call!r}", field=given)
