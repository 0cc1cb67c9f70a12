"""A run of ``batchclient map``, from its settings to its exit status.

Rules:
- Everything is checked, as far as no server is needed, before the output is touched.
- A dry run opens the same input, makes the same prompts and is refused for the same reasons.
"""

from __future__ import annotations

import asyncio
import os
import stat
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import typer

from batchclient._client.connections import shown
from batchclient._metrics.job import attach
from batchclient.cli._dry_run import DryRun
from batchclient.cli._durable import Durable, durable_of
from batchclient.cli._job import Job
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
from batchclient.journal.of_file import CoverChanged
from batchclient_script import CLOSED

__all__ = ["run_map"]

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
        if options.dry_run:
            with _open(options) as source:
                return _dry_run(options, source)
        durable = durable_of(options)
        if durable is None:
            with _open(options) as source, _output(options, source) as output:
                job = _make_job(options, source, output)
                asyncio.run(job.run())
                left = _left(job, source)
        else:
            with durable:
                job, output, left = _run_durable(options, durable)
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
    report(job, options, output, left, durable)
    return status_of(job)


def _run_durable(options: MapOptions, durable: Durable) -> tuple[Job, Output, int]:
    """Run a job whose rows are kept; return the job, its output and the rows left out.

    Raises:
        Refusal, ConfigError, BatchClientError: the job cannot begin.
    """
    if not _is_read_once(options.source):
        with _open(options) as source, _output(options, source, continues=durable.continues) as output:
            durable.place(output)
            # A job that cannot begin is refused while nothing is begun.
            _make_job(options, source, output, durable, is_trial=True)
            durable.begin()
            return _run_until_covered(durable, output)
    with _output(options, None, continues=durable.continues) as output:
        durable.place(output)
        durable.begin()
        try:
            durable.spool()
        except BaseException:
            durable.discard()
            raise
        return _run_until_covered(durable, output)


def _is_read_once(source: str) -> bool:
    """Whether an input is a pipe or a device. A folder, or what is not there, is refused elsewhere."""
    if source == "-":
        return True
    try:
        mode = Path(source).stat().st_mode
    except (OSError, ValueError):
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def _run_until_covered(durable: Durable, output: Output) -> tuple[Job, Output, int]:
    while True:
        options = durable.options
        try:
            with _open(options) as source:
                job = _make_job(options, source, output, durable)
                try:
                    asyncio.run(job.run())
                except CoverChanged:
                    if job.signal is None:
                        durable.rewrite()
                        continue
                left = _left(job, source)
        except BaseException:
            durable.discard()
            raise
        if job.refused.is_command:
            durable.discard(is_refused=True)
        else:
            try:
                durable.finish(is_whole=job.is_whole, wrote_all=job.wrote_all)
            except OSError as error:
                job.fail_to_end(error)
        return job, output, left


def _left(job: Job, source: Source) -> int:
    """Return the rows that a job has left out."""
    if not job.leaves_rows:
        return 0
    try:
        return source.count() - job.tally.read
    except OSError as error:
        job.fault = f"the input cannot be read to its end: {reason_of(error)}"
        return 0


def _output(options: MapOptions, source: Source | None, *, continues: bool = False) -> Output:
    """Check the output.

    Raises:
        ConfigError: the output cannot be, or another command is writing it.
    """
    status = None if source is None else os.fstat(source.file.fileno())
    output = Output(options.output, source=status, overwrite=options.overwrite, continues=continues)
    if output.warning and not options.quiet:
        say(output.warning)
    return output


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
            sample=rows.sample,
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
    options: MapOptions, source: Source, output: Output, durable: Durable | None = None, *, is_trial: bool = False
) -> Job:
    """Make a job; ``is_trial``: it is made to be refused, if at all, and does not run."""
    client, prompt_of = _begin(options, source)
    repeats = _repeats(options, source, prompt_of) if options.dedupe else None
    serve_metrics(client, options.metrics, None if options.quiet else say, is_trial=is_trial)
    results = client.stream_map(
        source.rows(),
        prompt_of if repeats is None else repeats.prompt_of,
        ordered=options.ordered,
        **options.arguments,
        **({} if durable is None else durable.arguments()),
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
        outage_patience_s=options.outage_patience_s,
        on_unreachable=None if options.quiet else partial(_say_unreachable, progress.say, options.server.urls),
        on_asking=None if options.quiet else partial(_say_asking, progress.say),
        keep_going=options.keep_going,
        packed=options.packed,
        columns=options.rows.columns,
        resolve=None if repeats is None else repeats.resolve,
        cost=options.cost,
        repeats=not options.quiet,
        durable=durable,
        patience_s=0.0 if durable is None else options.kept.disk_patience_s,
        total=total,
        log=options.log,
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
        with _output(options, source, continues=options.kept.resume):
            pass
    options.client.update(detect=True, server_metrics=False)
    client, prompt_of = _begin(options, source)
    # Wrong parameters are refused as by the job itself.
    client.stream_map((), prompt_of, **options.arguments)
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


def _say_unreachable(tell: Callable[[str], None], base_urls: Sequence[str]) -> None:
    tell(f"no connection to {' or '.join(map(shown, base_urls))}; rows fail until it is back")


def _say_asking(tell: Callable[[str], None]) -> None:
    tell("waiting for the server to say which model it has (--model names one)")
