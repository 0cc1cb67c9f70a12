"""``batchclient map``: a file of rows in, the same rows with completions out.

Rules:
- A wrong command is refused before anything is sent and before the output is touched.
- The fault of a row is written into the row; the exit status says that there was such a row.
- The server, the model and the key may come from the environment, which the library reads. A
  complaint about a value from there names the variable.
- No message holds the key or the text of a row.
"""

from __future__ import annotations

import asyncio
import math
import os
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import Annotated, Any, NoReturn

import typer

from batchclient._client.connections import shown
from batchclient.cli._dry_run import DryRun
from batchclient.cli._job import Job
from batchclient.cli._progress import ProgressBar, ProgressLines, say
from batchclient.cli._prompts import Prompts, check_columns, template_from
from batchclient.cli._refusal import (
    BACKENDS,
    PRESETS,
    RENAMED,
    Call,
    Refusal,
    call_from,
    concurrency_from,
    headers_from,
    in_options,
    one_of,
    output_from,
    packed_from,
    params_from,
    refusal_of,
    refusal_of_file,
)
from batchclient.cli._repeats import Repeats
from batchclient.cli._rows import added_by, blame
from batchclient.cli._servers import KEY_HINT, ServerOptions, server_options
from batchclient.client import InnerClient
from batchclient.errors import AuthenticationFailed, BatchClientError, ConfigError, ConnectFailed, DeadlineExceeded
from batchclient.jobs import Row
from batchclient.jobs.output import Output, reason_of
from batchclient.jobs.readers import columns_from, form_from
from batchclient.jobs.rows import Format
from batchclient.jobs.shards import Shard, sample_from, shard_from
from batchclient.jobs.source import Source, open_source
from batchclient.jobs.statuses import Status, of_signal
from batchclient.options import Batching, Http
from batchclient_script import CLOSED

__all__ = ["MapOptions", "map_rows", "run_map"]

_WITHOUT_SERVER = {ConnectFailed.__name__, DeadlineExceeded.__name__}
"""How every row fails where no server is there."""
_SOON_S = 0.2
"""A file whose lines are counted within this time has a total from the first, seconds."""


def _refuse(parameter: typer.CallbackParam, value: str | None) -> None:
    """Refuse an option of another name."""
    if value is not None:
        option = parameter.opts[0]
        say(f"Error: {option}: {RENAMED[option]}")
        raise typer.Exit(Status.USAGE)


def map_rows(
    *,
    source: Annotated[
        str,
        typer.Argument(
            metavar="IN", help="JSONL, CSV with a header, or text with a document per line; also gzipped. - is stdin."
        ),
    ],
    prompt: Annotated[
        str | None, typer.Option(help="Template; {name} is a row's field, {text} or {} a text line.")
    ] = None,
    prompt_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="A file with the template, instead of --prompt.")
    ] = None,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="With --call chat: a system message before each conversation.")
    ] = None,
    base_url: Annotated[
        list[str] | None,
        typer.Option(
            help="The server's root with its /v1; repeatable. Default: BATCHCLIENT_BASE_URL, URLs separated by spaces."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="The model's name, needed where the server has several models. Default: BATCHCLIENT_MODEL."),
    ] = None,
    call: Annotated[
        str, typer.Option(metavar="CALL", help="The call made for each row: complete, chat, embed or classify.")
    ] = "complete",
    vectors: Annotated[
        str | None,
        typer.Option(metavar="numbers|base64", help="How --call embed writes a vector (default: numbers)."),
    ] = None,
    output: Annotated[
        str,
        typer.Option(
            "--output", "-o", metavar="OUT", help="Where rows go; - is stdout. {shard} in it is the number of --shard."
        ),
    ] = "-",
    format: Annotated[  # noqa: A002  # the option's name
        str | None,
        typer.Option(
            metavar="jsonl|text|csv",
            help="The form of IN (default: its ending .jsonl, .txt or .csv, else its first line, decides).",
        ),
    ] = None,
    first: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Map the first N rows of IN and read no further.")
    ] = None,
    sample: Annotated[
        str | None,
        typer.Option(metavar="P%", help="Map a share of the rows, such as 1%; a larger share contains a smaller one."),
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(metavar="I/N", help="Map one of N parts of IN, 0/N to N-1/N; OUT has {shard} in its name."),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="The fields of IN that OUT has beside id; a row without one of them fails."),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Read all rows, make their prompts, report rows, faults and tokens; generate nothing."
        ),
    ] = False,
    dedupe: Annotated[
        bool, typer.Option("--dedupe", help="Ask rows with equal prompts once; each gets the answer. Reads IN twice.")
    ] = False,
    max_tokens: Annotated[int | None, typer.Option(help="Tokens to generate per row, at most.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Sampling temperature.")] = None,
    param: Annotated[
        list[str] | None, typer.Option(metavar="NAME=JSON", help="Any other field of the server's; repeatable.")
    ] = None,
    preset: Annotated[
        str, typer.Option(help="latency, balanced or throughput: how long rows may wait for a larger batch.")
    ] = "throughput",
    concurrency: Annotated[
        str | None,
        typer.Option(
            metavar="N|auto",
            help="Sequences in flight per server, at most (default: auto, which finds the number).",
        ),
    ] = None,
    max_batch_size: Annotated[
        int | None, typer.Option(metavar="N", help="Prompts in a request, at most (default: the preset's).")
    ] = None,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds for a row, from its reading; rows are read 1,024 ahead.")
    ] = None,
    outage_patience: Annotated[
        float | None,
        typer.Option(metavar="S", help="Give up when every server has been away for S seconds (default: never)."),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(
            help="Sent as a bearer token. Default: BATCHCLIENT_API_KEY, which no list of processes shows.",
        ),
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="'NAME: VALUE'", help="Sent with every request; repeatable.")
    ] = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace OUT where it exists, once all rows are written.")
    ] = False,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Go on although rows are refused alike and none succeeds.")
    ] = False,
    unordered: Annotated[bool, typer.Option("--unordered", help="Write rows as they finish.")] = False,
    http_backend: Annotated[
        str | None,
        typer.Option(help="httpx, or httpx2 or aiohttp with the extra of the same name."),
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no summary.")] = False,
    limit: Annotated[  # noqa: ARG001  # refused while it is read
        str | None, typer.Option("--limit", hidden=True, is_eager=True, callback=_refuse)
    ] = None,
    max_list: Annotated[  # noqa: ARG001
        str | None, typer.Option("--max-list", hidden=True, is_eager=True, callback=_refuse)
    ] = None,
) -> None:
    """Complete one prompt per row of IN and write each row with its completion.

    A row of OUT has the fields of its row of IN, an id, and completion, finish_reason and usage, or
    error. With --call embed it has embedding and usage instead, with --call classify label,
    probabilities and usage. An unusable line becomes {"line": N, "error": …}. Exit status: 0 all
    rows succeeded, 1 some failed, 2 wrong usage, 4 disk full, 5 no server, 129 hangup, 130 Ctrl-C,
    143 SIGTERM.
    """
    try:
        asked = call_from(call)
        preset = one_of("--preset", preset, PRESETS)
        backend = None if http_backend is None else one_of("--http-backend", http_backend, BACKENDS)
        client_options = {
            "preset": preset,
            "limit": concurrency_from(concurrency),
            "batching": Batching(max_size=max_batch_size),
            "http": Http(backend=backend),
        }
        try:
            rows = RowOptions(
                form=None if format is None else form_from(format, source),
                columns=None if columns is None else columns_from([name.strip() for name in columns.split(",")]),
                shard=None if shard is None else shard_from(shard),
                sample=None if sample is None else sample_from(sample),
                first=first,
            )
        except ConfigError as error:
            raise refusal_of_file(error) from None
        options = MapOptions(
            source=source,
            output=output_from(output, rows.shard),
            prompt=template_from(prompt, prompt_file),
            rows=rows,
            server=server_options(base_url, model, api_key, headers_from(header or [])),
            client=client_options,
            params=params_from(param or [], max_tokens=max_tokens, temperature=temperature, call=asked),
            timeout_s=timeout,
            outage_patience_s=_seconds("--outage-patience", outage_patience),
            ordered=not unordered,
            quiet=quiet,
            overwrite=overwrite,
            keep_going=keep_going,
            call=asked,
            packed=packed_from(vectors, asked),
            system=system,
            dry_run=dry_run,
            dedupe=dedupe,
        )
        status = run_map(options)
    except ConfigError as error:
        _complain(refusal_of(error))
    except Refusal as refusal:
        _complain(refusal)
    raise typer.Exit(status)


def _complain(refusal: Refusal) -> NoReturn:
    say(f"Error: {refusal}")
    raise typer.Exit(Status.USAGE)


def _seconds(option: str, value: float | None) -> float | None:
    if value is not None and not 0 < value < math.inf:
        raise Refusal(f"{option}: a number of seconds above 0, not {value:g}")
    return value


@dataclass(frozen=True, slots=True)
class RowOptions:
    """Which rows of the input are mapped, and what is kept of them.

    Args:
        form: the form of the input, if given.
        columns: the fields to write beside ``id``; ``None``: all.
        shard: the part of the input.
        sample: the share of the rows.
        first: rows to map from the beginning, of the part and the share; ``None`` for all.
    """

    form: Format | None = None
    columns: Sequence[str] | None = None
    shard: Shard | None = None
    sample: Fraction | None = None
    first: int | None = None


@dataclass(frozen=True, slots=True)
class MapOptions:
    """The settings of a map job.

    Args:
        source, output: paths, or ``-``.
        prompt: the template.
        rows: which rows are mapped.
        server: where the servers are, with the model and the key.
        client: further arguments of ``BatchClient``.
        params: of the server.
        timeout_s: of a row.
        outage_patience_s: how long every server may be away, if there is a bound.
        ordered: whether rows keep their order.
        quiet: neither progress nor summary.
        overwrite: whether an existing output may be replaced.
        keep_going: whether the job goes on when all rows fail alike.
        call: the call made for each row, in ``stream_map``'s words.
        packed: whether vectors are written as base64.
        system: the text of a chat's system message, if there is one.
        dry_run: generate nothing, and report.
        dedupe: whether rows with equal prompts are asked once.
    """

    source: str
    output: str
    prompt: str
    rows: RowOptions
    server: ServerOptions
    client: dict[str, Any]
    params: dict[str, Any]
    timeout_s: float | None
    ordered: bool
    quiet: bool
    overwrite: bool = False
    keep_going: bool = False
    call: Call = "complete"
    packed: bool = False
    outage_patience_s: float | None = None
    system: str | None = None
    dry_run: bool = False
    dedupe: bool = False


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
            with _output(options, source) as output:
                job = _make_job(options, source, output)
                asyncio.run(job.run())
            left = source.count() - job.written if job.stopped_by or job.no_server else 0
    except ConfigError as error:
        raise refusal_of(error, options.params, server.variables) from None
    except BatchClientError as error:
        # The error of a row is in the row. Here the question for the model has failed.
        message = str(error).partition(" (asked for its model")[0]
        refused = isinstance(error, AuthenticationFailed)
        hint = "" if refused else " (--model names one)"
        key = KEY_HINT if refused and not server.has_key else ""
        say(f"Error: the server was asked for its model{hint}: {in_options(message)}{key}")
        return Status.USAGE if refused else Status.NO_SERVER
    _report(job, options, output, left)
    return _status(job)


def _output(options: MapOptions, source: Source) -> Output:
    """Check the output.

    Raises:
        ConfigError: the output cannot be, or another command is writing it.
    """
    output = Output(options.output, source=os.fstat(source.file.fileno()), overwrite=options.overwrite)
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
        raise Refusal(f"{options.source}: {reason_of(error)}") from None
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


def _make_job(options: MapOptions, source: Source, output: Output) -> Job:
    client, prompt_of = _begin(options, source)
    repeats = _repeats(options, source, prompt_of) if options.dedupe else None
    results = client.stream_map(
        source.rows(),
        prompt_of if repeats is None else repeats.prompt_of,
        call=options.call,
        ordered=options.ordered,
        timeout_s=options.timeout_s,
        **options.params,
    )
    # A bar and rows on one terminal would write over each other.
    writes_to_terminal = options.output == "-" and sys.stdout.isatty()
    total: Callable[[], int | None] = lambda: None  # noqa: E731
    if not options.quiet:
        total = _InThread(source.expected)
    progress: ProgressBar | ProgressLines
    if sys.stderr.isatty() and not options.quiet and not writes_to_terminal:
        progress = ProgressBar(total=total)
    else:
        progress = ProgressLines(shown=not options.quiet and not writes_to_terminal, total=total)
    return Job(
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
        repeats=not options.quiet,
    )


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
        with _output(options, source):
            pass
    options.client.update(detect=True, server_metrics=False)
    client, prompt_of = _begin(options, source)
    # Wrong parameters are refused as by the job itself.
    client.stream_map((), prompt_of, call=options.call, timeout_s=options.timeout_s, **options.params)
    dry_run = DryRun(client, source, prompt_of, call=options.call, max_tokens=options.params.get("max_tokens"))
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


def _report(job: Job, options: MapOptions, output: Output, left: int) -> None:
    """Report on stderr how the job ended."""
    rate = job.written / job.seconds if job.seconds else 0.0
    rows = f"{job.written:,} {'row' if job.written == 1 else 'rows'}"
    summary = f"{rows} to {output.where} in {job.seconds:.1f} s, {rate:,.0f} rows/s, requests sent: {job.requests:,}"
    if any(job.tokens):
        summary += f", tokens: {job.tokens[0]:,} in, {job.tokens[1]:,} out"
    if job.failures.total:
        summary += f"; failed: {job.failures.total:,}"
    if job.out_of_use:
        summary += f"; in the end {' and '.join(job.out_of_use)}"
    for line in job.failures.lines():
        without_key = AuthenticationFailed.__name__ in line and not options.server.has_key
        summary += f"\n{in_options(line)}{KEY_HINT if without_key else ''}"
    if job.fault:
        say(f"Error: {job.fault}")
    if job.output_error is not None and not job.reader_is_gone:
        say(f"Error: {output.name}: the output cannot be written: {reason_of(job.output_error)}")
    if job.no_server:
        say(f"Error: gave up: {job.no_server}; rows left out: {left:,}")
    elif left:
        say(
            f"Error: stopped: no row succeeded, and {job.refusals} failed alike with {job.stopped_by}; rows left out: "
            f"{left:,} (--keep-going tries them all)"
        )
    if job.signal is not None:
        summary = f"Interrupted: {summary}"
    if not options.quiet and not job.reader_is_gone:
        say(summary)


def _status(job: Job) -> int:
    """Return the exit status of a job that has ended."""
    if job.signal is not None:
        return of_signal(job.signal)
    if job.output_error is not None and not job.reader_is_gone:
        return Status.DISK_FULL
    kinds = job.failures.by_type.keys()
    if job.no_server or (kinds and kinds <= _WITHOUT_SERVER and job.is_cut_off and not job.succeeded):
        return Status.NO_SERVER
    return Status.FAILED if kinds or job.fault or job.reader_is_gone else Status.OK
