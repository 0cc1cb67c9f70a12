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
from collections.abc import Callable
from typing import Any

import typer

from batchclient._metrics.job import attach
from batchclient.cli._dry_run import DryRun
from batchclient.cli._job import Job
from batchclient.cli._kept import Kept, kept_by, place_of
from batchclient.cli._map_options import MapOptions
from batchclient.cli._metrics import serve_metrics
from batchclient.cli._progress import ProgressBar, ProgressLines
from batchclient.cli._prompts import Prompts, check_columns
from batchclient.cli._refusal import Refusal, in_options, named, refusal_of, refusal_of_file
from batchclient.cli._repeats import Repeats
from batchclient.cli._report import report, status_of
from batchclient.cli._rows import added_by, blame
from batchclient.cli._servers import KEY_HINT
from batchclient.cli._words import say
from batchclient.client import InnerClient
from batchclient.errors import AuthenticationFailed, BatchClientError, ConfigError, JournalFailed
from batchclient.jobs import Row
from batchclient.jobs.output import Output, reason_of
from batchclient.jobs.source import Source, open_source
from batchclient.jobs.statuses import Status
from batchclient_script import CLOSED

__all__ = ["run_map"]

_OF_THE_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
_SOON_S = 0.2
"""A file whose lines are counted within this time has a total from the first, seconds."""


def run_map(options: MapOptions) -> int:
    """Run a map job; return the exit status.

    Raises:
        Refusal: the job cannot begin. Nothing was sent, and the output is as it was.
    """
    server = options.server
    if options.source == "-" and 0 in CLOSED:
        raise Refusal("stdin is closed; give a path as IN")
    if options.output == "-" and 1 in CLOSED:
        raise Refusal("stdout is closed; give -o OUT")
    try:
        with _open(options) as source:
            if options.dry_run:
                return _dry_run(options, source)
            return _run(options, source)
    except ConfigError as error:
        raise refusal_of(error, options.params, server.variables) from None
    except JournalFailed as error:
        say(f"Error: {in_options(str(error))}; once there is room, the same command goes on")
        return Status.DISK_FULL
    except BatchClientError as error:
        # The error of a row is in the row. Here the question for the model has failed.
        message = str(error).partition(" (asked for its model")[0]
        refused = isinstance(error, AuthenticationFailed)
        hint = "" if refused else " (--model names one)"
        key = KEY_HINT if refused and not server.has_key else ""
        say(f"Error: the server was asked for its model{hint}: {in_options(message)}{key}")
        return Status.USAGE if refused else Status.NO_SERVER
    except OSError as error:
        say(f"Error: {error.filename or options.output}: {reason_of(error)}")
        return Status.DISK_FULL if error.errno in _OF_THE_DISK else Status.USAGE


def _run(options: MapOptions, source: Source) -> int:
    """Run a job; return the exit status.

    Raises:
        Refusal, ConfigError, BatchClientError: the job cannot begin.
    """
    output = Output(options.output, source=source.status)
    client, prompt_of = _begin(options, source)
    tell = None if options.quiet else say
    with kept_by(options, output, source.status) as kept:
        if kept is not None and (status := kept.status) is not None:
            if tell is not None:
                tell(f"{output.name} is finished, with these settings and this input: nothing to do{kept.failed}")
            return status
        serve_metrics(client, options.metrics, tell)
        job = _make_job(options, source, output, client, prompt_of, kept)
        asyncio.run(job.run())
        report(job, options, output, _left(job, source), kept)
    return status_of(job)


def _left(job: Job, source: Source) -> int:
    """Return the rows that a job has left out."""
    if not job.leaves_rows:
        return 0
    try:
        return source.count() - job.taken
    except OSError as error:
        job.fault = f"the input cannot be read to its end: {reason_of(error)}"
        return 0


def _open(options: MapOptions) -> Source:
    """Open the input.

    Raises:
        Refusal: the input cannot be read, or the output would have two fields of one name.
    """
    rows = options.rows
    added = added_by(options.call, options.params)
    taken = [name for name in rows.columns or () if name in added]
    if taken:
        raise Refusal(f"--columns: the output adds {taken[0]!r} itself")
    if not options.source:
        raise Refusal("IN is empty; give a path, or - for stdin")
    try:
        return open_source(
            options.source,
            rows.form,
            shard=rows.shard,
            # Fields that are not written may have any name.
            reserved=added if rows.columns is None else (),
            most=rows.first,
        )
    except OSError as error:
        # A directory cannot be opened either; its message says so.
        raise Refusal(f"{named(options.source, 'IN')}: {reason_of(error)}") from None
    except ConfigError as error:
        raise refusal_of_file(error) from None


def _begin(options: MapOptions, source: Source) -> tuple[InnerClient, Callable[[Row], Any]]:
    """Check the options as far as possible without sending; return the client and the prompts."""
    if options.dedupe:
        _check_dedupe(options, source)
    client = InnerClient(**options.server.arguments, **options.client)
    prompts = Prompts(options.prompt, options.call, options.system)
    columns = options.rows.columns or ()
    # Wrong parameters are refused while nothing is made.
    client.stream_map((), prompts.function(), **options.arguments)
    try:
        first = source.first()
    except OSError as error:
        raise Refusal(f"{source.name}: {reason_of(error)}") from None
    except ConfigError as error:
        raise refusal_of_file(error) from None
    if first is not None:
        prompts.check_first(first, source)
        check_columns(columns, first, source)
    return client, blame(prompts.function(), columns)


def _check_dedupe(options: MapOptions, source: Source) -> None:
    """Refuse what equal rows cannot share.

    Raises:
        Refusal: the input cannot be read twice, or rows are written as they finish.
    """
    if not options.ordered:
        raise Refusal("--dedupe: a row may wait for the answer of an equal row; leave --unordered out")
    if options.source == "-" or not source.is_regular:
        raise Refusal(f"--dedupe: IN is read twice, and {source.name} can be read once; give a file")


def _make_job(
    options: MapOptions,
    source: Source,
    output: Output,
    client: InnerClient,
    prompt_of: Callable[[Row], Any],
    kept: Kept | None,
) -> Job:
    repeats = _repeats(options, source, prompt_of) if options.dedupe else None
    results = client.stream_map(
        source.rows(),
        prompt_of if repeats is None else repeats.prompt_of,
        ordered=options.ordered,
        **options.arguments,
        journal=None if kept is None else kept.journal,
    )
    # A bar and rows on one terminal would write over each other.
    writes_to_terminal = options.output == "-" and sys.stdout.isatty()
    total: Callable[[], int | None] = lambda: None  # noqa: E731
    if not options.quiet or options.metrics is not None:
        total = _InThread(source.expected)
    progress: ProgressBar | ProgressLines
    may_draw = sys.stderr.isatty() and not options.log.is_json
    if may_draw and not options.quiet and not writes_to_terminal:
        progress = ProgressBar(total=total)
    else:
        progress = ProgressLines(shown=not options.quiet and not writes_to_terminal, total=total)
    job = Job(
        client,
        results,
        output,
        progress,
        options,
        kept=kept,
        resolve=None if repeats is None else repeats.resolve,
        total=total,
    )
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


def _repeats(options: MapOptions, source: Source, prompt_of: Callable[[Row], Any]) -> Repeats:
    """Read the input for the first time.

    Raises:
        Refusal: the input cannot be read.
    """
    try:
        with _open(options) as again:
            return Repeats(again.read(), prompt_of, chat=options.call == "chat")
    except OSError as error:
        raise Refusal(f"{source.name}: {reason_of(error)}") from None


def _dry_run(options: MapOptions, source: Source) -> int:
    if options.output != "-":
        # The report may go anywhere, and rows go where the job's may.
        place_of(options, Output(options.output, source=source.status))
    options.client.update(detect=True, server_metrics=False)
    client, prompt_of = _begin(options, source)
    dry_run = DryRun(
        client,
        source,
        prompt_of,
        call=options.call,
        max_tokens=options.params.get("max_tokens"),
        price=None if options.cost is None else options.cost.price,
    )
    try:
        asyncio.run(dry_run.run())
    except OSError as error:
        say(f"Error: the input cannot be read any further: {reason_of(error)}")
        return Status.FAILED
    typer.echo(dry_run.report())
    return Status.FAILED if dry_run.unusable or dry_run.failed else Status.OK
