"""A run of ``batchclient map``, from its settings to its exit status.

Rules:
- Everything is checked, as far as no server is needed, before the output is touched.
- A dry run opens the same input, makes the same prompts and is refused for the same reasons.
"""

from __future__ import annotations

import asyncio
import errno
import sys
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from functools import partial
from typing import Any

from batchclient import BatchClient
from batchclient._maps.finish_by import FinishBy
from batchclient._maps.row_calls import RowCall, parameter_types
from batchclient._metrics.job import attach
from batchclient.cli._audit import Audit
from batchclient.cli._dry_run import LONGEST, RANDOM, DryRun, Reading, thinking_room
from batchclient.cli._finish_by import next_time
from batchclient.cli._job import Job
from batchclient.cli._kept import Kept, kept_by, place_of, seconds_in
from batchclient.cli._map_options import MapOptions
from batchclient.cli._metrics import serve_metrics
from batchclient.cli._output import added_to_rows, named, output_of, writer_of
from batchclient.cli._pilot import Pilot
from batchclient.cli._progress import JobProgress
from batchclient.cli._prompts import Prompts, check_columns
from batchclient.cli._refusal import Refusal, in_options, refusal_of
from batchclient.cli._refusal import named as named_by
from batchclient.cli._report import report
from batchclient.cli._rows import Ids, blame
from batchclient.cli._signals import on_signals
from batchclient.cli._words import put, say
from batchclient.errors import AuthenticationFailed, BatchClientError, ConfigError, JournalFailed, NoServerAnswered
from batchclient.jobs import BadRow, Row
from batchclient.jobs.forms import form_of
from batchclient.jobs.inputs import shown
from batchclient.jobs.output import Output, reason_of
from batchclient.jobs.source import Source
from batchclient.jobs.statuses import Status, of_signal
from batchclient.maps import map_of
from batchclient.templates import fields_of
from batchclient_script import CLOSED

__all__ = ["run_map"]

_OF_THE_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
_OF_REQUESTS = (
    "messages", "conversations", "system", "prompt", "input", "url", "method", "body", "custom_id",
)  # fmt: skip
"""The fields of rows that are requests themselves."""
_MOST_TOLD = 3
"""Rows with an id of an earlier row that are said one by one."""
_SOON_S = 0.2
"""A file whose lines are counted within this time has a total from the first, seconds."""


def run_map(options: MapOptions) -> int:
    """Run a map job; return the exit status.

    Raises:
        Refusal: the job cannot begin. Nothing was sent, and the output is as it was.
    """
    if options.source == "-" and 0 in CLOSED:
        raise Refusal("stdin is closed; give a path as IN")
    if options.output == "-" and 1 in CLOSED:
        raise Refusal("stdout is closed; give -o OUT")
    try:
        with _open(options) as source:
            return (_dry_run if options.dry_run else _run)(options, source)
    except ConfigError as error:
        raise refusal_of(error, options.params) from None
    except JournalFailed as error:
        raise Refusal(f"{error}; once there is room, the same command goes on", Status.DISK_FULL) from None
    except BatchClientError as error:
        # A row's error is in the row. Here servers were waited for, or asked for their model.
        message = str(error).partition(" (asked for its model")[0]
        was_asked = not (options.client["model"] or isinstance(error, NoServerAnswered))
        start = "the server was asked for its model (--model names one): " if was_asked else ""
        refused = isinstance(error, AuthenticationFailed)
        raise Refusal(f"{start}{in_options(message)}", Status.USAGE if refused else Status.NO_SERVER) from None
    except OSError as error:
        status = Status.DISK_FULL if error.errno in _OF_THE_DISK else Status.USAGE
        raise Refusal(f"{error.filename or options.output}: {reason_of(error)}", status) from None


def _run(options: MapOptions, source: Source) -> int:
    """Run a job; return the exit status.

    Raises:
        Refusal, ConfigError, BatchClientError: the job cannot begin.
    """
    try:
        with on_signals(_end):
            return _job(options, source)
    except _Ended as ended:
        return of_signal(ended.number)


class _Ended(BaseException):
    """A signal before the first row or after the last: files are closed, a lease is given back."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


def _end(number: int) -> None:
    raise _Ended(number)


def _job(options: MapOptions, source: Source) -> int:
    options, client, prompts = _begin(options, source)
    call_of, sketch_of = (
        blame(read, options.kept_columns or (), options.id) for read in (prompts.read, prompts.sketch)
    )
    options, output = output_of(options, source)
    with kept_by(options, output, source, partial(_media_in, options)) as kept:
        if kept is not None and (status := kept.status) is not None:
            if not options.quiet:
                say(f"{output.name} is finished, with these settings and this input: nothing to do{kept.failed}")
            kept.done()
            return status
        if kept is not None:
            options = options.but(names=kept.names(options.names))
        if options.names.taken and not options.quiet:
            taken = ", ".join(f"{name!r}: the added one is 'answer_{name}'" for name in sorted(options.names.taken))
            say(f"{source.name} has {taken}")
        source.reserved = _reserved(options)
        serve_metrics(client, options.metrics, None if options.quiet else say)
        pilot = finish_by = None
        if options.pilot is not None or options.finish_by is not None:
            with _open(options) as again:
                again.reserved = source.reserved
                read = _read(again, sketch_of, random_rows=options.pilot or 0)
                source.count = again.count
            finish_by = _finish_by(options, read, kept)
            if options.pilot is not None and kept is not None:
                pilot = Pilot(client, read, call_of, options, kept, finish_by)
        job = _make_job(options, source, output, client, call_of, sketch_of, kept, pilot, finish_by)
        asyncio.run(job.run())
        report(job, options, output, kept)
        if job.audit is not None and job.is_whole and (job.audit.differing or not options.quiet):
            say(*job.audit.lines(), event="audit", asked=job.audit.asked, differ=len(job.audit.differing))
        if kept is not None and job.is_done:
            kept.done()
    return job.status


def _finish_by(options: MapOptions, read: Reading, kept: Kept | None) -> FinishBy | None:
    """Return what keeps the time by which a job has to end, if there is one."""
    text = options.finish_by
    if text is None:
        return None
    by = next_time(text, time.time()) if kept is None else kept.finish_by(text)
    if by <= time.time() and not options.quiet:
        when = time.strftime("%Y-%m-%d %H:%M", time.localtime(by))
        say(f"--finish-by {text}: that time, {when}, has passed; the job goes as usual")
    return FinishBy(lambda: by - time.time(), read.rows, read.bytes)


def _media_in(options: MapOptions, *, reads: bool = False) -> str | None:
    """Return what changes with the files that the rows name; ``reads``: they are opened."""
    if options.media is None:
        return None
    told, told_of = 0, options.media.checksum_of if reads else options.media.stamp_of
    with _open(options) as again:
        for row in again.read():
            told ^= told_of(row)
            row.media = None
    return f"{told:016x}"


def _open(options: MapOptions) -> Source:
    """Open the input.

    Raises:
        Refusal: the input cannot be read, or the output adds two fields of one name.
        ConfigError: an option about it is wrong.
    """
    if options.answer_field in ("", "id"):
        raise Refusal("--answer-field: a name that is neither empty nor id")
    # Rows that are requests are chats most often.
    is_chat = options.prompt is None and options.call == "complete"
    assumed = options.but(call="chat") if is_chat else options
    added = added_to_rows(assumed, form_of(options.output, options.output_form))
    twice = next((name for place, name in enumerate(added) if name in ("id", *added[:place])), None)
    if twice is not None:
        way = "give --answer-field" if options.answer_field is None else "give another --answer-field"
        raise Refusal(f"--answer-columns: OUT has a field {twice!r} of its own; {way}")
    if not options.source:
        raise Refusal("IN is empty; give a path, or - for stdin")
    columns = options.kept_columns
    media = () if options.media is None else options.media.fields
    own = () if options.row_params == "ignore" else parameter_types()
    names = _OF_REQUESTS if options.prompt is None else fields_of(options.prompt)
    used = {"id", *media, *names, *own, *filter(None, [options.documents, options.id])}
    wanted = None if columns is None or options.prompt is None else {*used, *columns}
    try:
        return Source(
            options.source,
            **options.file,
            wanted=wanted,
            used=used,
            most=options.first,
        )
    except OSError as error:
        raise Refusal(f"{named_by(shown(options.source), 'IN')}: {reason_of(error)}") from None


def _begin(options: MapOptions, source: Source) -> tuple[MapOptions, BatchClient, Prompts]:
    """Check the options as far as possible without sending.

    Returns:
        The options, with the call that the first row makes; the client; what makes the calls.
    """
    is_kept = options.journal is not None or (options.output != "-" and Output(options.output).is_file)
    for name, is_given in (("--dedupe", options.dedupe), ("--pilot", options.pilot)):
        if is_given and not is_kept:
            raise Refusal(f"{name} needs a journal, which has the answers: give -o FILE or --journal FILE")
    if options.order is not None and not (is_kept or options.unordered):
        raise Refusal("--order may end the first row last: give --unordered, -o FILE or --journal FILE")
    reads = "--pilot" if options.pilot else "--finish-by" if options.finish_by else ""
    if reads and (options.source == "-" or not (source.is_regular or "://" in options.source)):
        raise Refusal(f"{reads} reads all rows beforehand, and a pipe is read once: put them into a file")
    client = BatchClient(**options.client)
    prompts = Prompts(
        options.prompt,
        options.call,
        options.system,
        form=options.rows,
        row_params=options.row_params,
        has_model=bool(options.client["model"]),
        media=options.media,
        documents=options.documents,
        top_n=options.top_n,
        data=() if options.id is None else (options.id,),
    )
    # Wrong parameters are refused while nothing is made.
    made = {"rows": options.rows} if options.prompt is None else {"prompt": prompts.read}
    client.stream_map((), **made, **options.arguments)
    try:
        first = source.first()
    except OSError as error:
        raise Refusal(f"{source.name}: {reason_of(error)}") from None
    call_of = blame(prompts.read, options.kept_columns or (), options.id)
    if first is not None:
        told = prompts.check_first(first, source)
        check_columns(options.kept_columns or (), first, source)
        check_columns(() if options.id is None else (options.id,), first, source, "--id")
        if told and not options.quiet:
            say(told)
        with suppress(BadRow, ConfigError):  # its own fault
            options = options.but(call=call_of(first).call)
        if prompts.model is not None:
            options = options.but(client=options.client | {"model": prompts.model})
            client = BatchClient(**options.client)
        client.stream_map((), prompt=call_of, **options.arguments, fail_if=options.fail_if or ())
    return named(options, source), client, prompts


def _reserved(options: MapOptions) -> Collection[str]:
    """Return the names that no row may have. Fields that are not written may have any."""
    return (
        () if options.kept_columns is not None else added_to_rows(options, form_of(options.output, options.output_form))
    )


def _make_job(
    options: MapOptions,
    source: Source,
    output: Output,
    client: BatchClient,
    call_of: Callable[[Row], RowCall],
    sketch_of: Callable[[Row], RowCall],
    kept: Kept | None,
    pilot: Pilot | None,
    finish_by: FinishBy | None,
) -> Job:
    ids = Ids(column=options.id)
    told = 0

    def call_said(row: Row) -> RowCall:
        nonlocal told
        repeated = ids.repeated(row)
        if repeated is not None and options.id is not None and row.fault is None:
            raise BadRow(repeated)
        if repeated is not None and not options.quiet and told <= _MOST_TOLD:
            told += 1
            say(f"{repeated}: both are sent" if told <= _MOST_TOLD else "further rows have ids of earlier ones, too")
        return call_of(row)

    writer = writer_of(options, source)
    if options.media is not None:
        source.load(options.media.read_ahead)
    rows = client.stream_map(
        source.rows(),
        prompt=call_said,
        ordered=not options.unordered,
        **options.arguments,
        **options.bounds,
        fail_if=options.fail_if or (),
        journal=None if kept is None else kept.journal,
    )
    results = map_of(rows, options.id)
    results.finish_by = finish_by
    if options.media is not None:
        results.on_finished = options.media.leave
    # A bar and rows on one terminal would write over each other.
    shown = not options.quiet and not (options.output == "-" and sys.stdout.isatty())
    known: Callable[[], int | None] = lambda: None  # noqa: E731
    total = known
    if shown or options.metrics is not None:
        counted = _InThread(source.expected)
        known = lambda: source.count or counted()  # noqa: E731
        total = lambda: known() or source.estimated()  # noqa: E731
    draws, about = options.draws and sys.stderr.isatty(), lambda: "" if known() else "~"
    progress = JobProgress(shown=shown, draws=draws, total=total, about=about)
    audit = None if options.audited is None else Audit(client, options.audited, call_of, sketch_of, options.arguments)
    job = Job(client, results, output, progress, options, writer, kept=kept, total=total, pilot=pilot, audit=audit)
    attach(client, job.numbers)
    return job


class _InThread:
    """A number that takes time to find; calling gives ``None`` until the number is found."""

    def __init__(self, find: Callable[[], int | None]) -> None:
        self._found: int | None = None

        def run() -> None:
            try:
                self._found = find()
            except OSError:  # the job meets the same error, and tells it
                return

        thread = threading.Thread(target=run, daemon=True, name="batchclient-counter")
        thread.start()
        thread.join(_SOON_S)

    def __call__(self) -> int | None:
        return self._found


def _dry_run(options: MapOptions, source: Source) -> int:
    place = None
    if options.output != "-":
        # The report may go anywhere, and rows go where the job's may.
        place = place_of(*output_of(options, source))
    options, client, prompts = _begin(options, source)
    source.reserved = _reserved(options)
    call_of = blame(prompts.read, options.kept_columns or (), options.id)
    dry_run = DryRun(
        client,
        _read(
            source, call_of, random_rows=RANDOM, longest_rows=LONGEST, params=options.params, retries=options.retries
        ),
        max_tokens=options.params.get("max_tokens", 0) + thinking_room(options.params) or None,
        price=None if options.cost is None else options.cost.price,
        kept=(0, 0.0, 0.0) if place is None else seconds_in(place, options),
    )
    asyncio.run(dry_run.run())
    put(*dry_run.report().split("\n"))
    return Status.FAILED if dry_run.read.unusable or dry_run.failed else Status.OK


def _read(source: Source, call_of: Callable[[Row], RowCall], **options: Any) -> Reading:
    try:
        return Reading(source.read(), call_of, **options)
    except OSError as error:
        raise Refusal(f"the input cannot be read any further: {reason_of(error)}", Status.FAILED) from None
