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
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from string import Formatter
from typing import Annotated, Any, NoReturn

import typer

from batchclient._client.connections import shown
from batchclient.cli._files import Source, check_output, count_lines, open_output, open_source
from batchclient.cli._job import Job
from batchclient.cli._progress import ProgressBar
from batchclient.cli._refusal import (
    BACKENDS,
    PRESETS,
    RENAMED,
    Call,
    Refusal,
    call_from,
    concurrency_from,
    format_from,
    headers_from,
    in_options,
    one_of,
    packed_from,
    params_from,
    refusal_of,
)
from batchclient.cli._rows import ADDED_BY, Format, Row, blame, describe
from batchclient.cli._servers import KEY_HINT, ServerOptions, server_options
from batchclient.client import InnerClient
from batchclient.errors import AuthenticationFailed, BatchClientError, ConfigError
from batchclient.options import Batching, Http
from batchclient.templates import Prompt, make_prompt

__all__ = ["MapOptions", "map_rows", "run_map"]


def _refuse(parameter: typer.CallbackParam, value: str | None) -> None:
    """Refuse an option of another name."""
    if value is not None:
        option = parameter.opts[0]
        typer.echo(f"Error: {option}: {RENAMED[option]}", err=True)
        raise typer.Exit(2)


def map_rows(
    *,
    source: Annotated[
        str, typer.Argument(metavar="IN", help="JSONL, or plain text with a document per line; - is stdin.")
    ],
    prompt: Annotated[str, typer.Option(help="Template; {name} is a row's field, {text} or {} a text line.")],
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
    output: Annotated[str, typer.Option("--output", "-o", metavar="OUT", help="Where rows go; - is stdout.")] = "-",
    format: Annotated[  # noqa: A002  # the option's name
        str | None,
        typer.Option(
            metavar="jsonl|text",
            help="The form of a line of IN (default: its ending .jsonl or .txt, else its first line, decides).",
        ),
    ] = None,
    first: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Map the first N rows of IN and read no further.")
    ] = None,
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
    api_key: Annotated[
        str | None,
        typer.Option(
            help="Sent as a bearer token. Default: BATCHCLIENT_API_KEY, which no list of processes shows.",
        ),
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="'NAME: VALUE'", help="Sent with every request; repeatable.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT where it exists.")] = False,
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
    rows succeeded, 1 some failed, 2 wrong usage, 130 Ctrl-C.
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
        options = MapOptions(
            source=source,
            output=output,
            prompt=prompt,
            form=format_from(format),
            server=server_options(base_url, model, api_key, headers_from(header or [])),
            client=client_options,
            params=params_from(param or [], max_tokens=max_tokens, temperature=temperature, call=asked),
            timeout_s=timeout,
            ordered=not unordered,
            quiet=quiet,
            first=first,
            overwrite=overwrite,
            keep_going=keep_going,
            call=asked,
            packed=packed_from(vectors, asked),
        )
        status = run_map(options)
    except ConfigError as error:
        _complain(refusal_of(error))
    except Refusal as refusal:
        _complain(refusal)
    raise typer.Exit(status)


def _complain(refusal: Refusal) -> NoReturn:
    typer.echo(f"Error: {refusal}", err=True)
    raise typer.Exit(2)


@dataclass(frozen=True, slots=True)
class MapOptions:
    """The settings of a map job.

    Args:
        source, output: paths, or ``-``.
        prompt: the template.
        form: the form of a line, if given.
        server: where the servers are, with the model and the key.
        client: further arguments of ``BatchClient``.
        params: of the server.
        timeout_s: of a row.
        ordered: whether rows keep their order.
        quiet: neither progress nor summary.
        first: rows to map from the beginning of the input; ``None`` for all.
        overwrite: whether an existing output may be replaced.
        keep_going: whether the job goes on when all rows fail alike.
        call: the call made for each row, in ``stream_map``'s words.
        packed: whether vectors are written as base64.
    """

    source: str
    output: str
    prompt: str
    form: Format | None
    server: ServerOptions
    client: dict[str, Any]
    params: dict[str, Any]
    timeout_s: float | None
    ordered: bool
    quiet: bool
    first: int | None = None
    overwrite: bool = False
    keep_going: bool = False
    call: Call = "complete"
    packed: bool = False


def run_map(options: MapOptions) -> int:
    """Run a map job; return the exit status.

    Raises:
        Refusal: the job cannot begin. Nothing was sent, and the output is as it was.
    """
    server = options.server
    try:
        with open_source(options.source, options.form, ADDED_BY[options.call], options.first) as source:
            job = _make_job(options, source)
            asyncio.run(job.run())
            left = source.count() - job.written if job.stopped_by else 0
    except ConfigError as error:
        raise refusal_of(error, options.params, server.variables) from None
    except BatchClientError as error:
        # The error of a row is in the row. Here the question for the model has failed.
        message = str(error).removesuffix(" (asked for its model; with model=… nothing is asked)")
        refused = isinstance(error, AuthenticationFailed)
        hint = "" if refused else " (--model names one)"
        key = KEY_HINT if refused and not server.has_key else ""
        typer.echo(f"Error: the server was asked for its model{hint}: {in_options(message)}{key}", err=True)
        return 1
    return _report(job, options, left)


def _make_job(options: MapOptions, source: Source) -> Job:
    """Check the options as far as possible without sending, and make a job of them."""
    check_output(options.output, source, overwrite=options.overwrite)
    client = InnerClient(**options.server.arguments, **options.client)
    render = make_prompt(options.prompt)
    first = source.first()
    if first is not None:
        takes_list = _takes_list(options.prompt, options.call)
        _check_first(first, _names(options.prompt), source, takes_list=takes_list)
    results = client.stream_map(
        source.rows(),
        blame(_prompt_function(options.prompt, render, options.call)),
        call=options.call,
        ordered=options.ordered,
        timeout_s=options.timeout_s,
        **options.params,
    )
    # A bar and rows on one terminal would write over each other.
    writes_to_terminal = options.output == "-" and sys.stdout.isatty()
    shown_bar = not options.quiet and sys.stderr.isatty() and not writes_to_terminal
    total = options.first
    if shown_bar and source.is_regular and options.source != "-":
        total = count_lines(options.source, options.first)
    return Job(
        client,
        results,
        partial(open_output, options.output),
        ProgressBar(shown=shown_bar, total=total),
        on_unreachable=None if options.quiet or sys.stderr.isatty() else partial(_say_unreachable, options.server.urls),
        on_asking=None if options.quiet else _say_asking,
        keep_going=options.keep_going,
        packed=options.packed,
    )


def _say_unreachable(base_urls: Sequence[str]) -> None:
    typer.echo(f"no connection to {' or '.join(map(shown, base_urls))}; rows fail until it is back", err=True)


def _say_asking() -> None:
    typer.echo("waiting for the server to say which model it has (--model names one)", err=True)


def _names(template: str) -> list[str]:
    """Return the fields of a template checked by ``make_prompt``."""
    return [name for _, name, _, _ in Formatter().parse(template) if name is not None]


def _takes_list(template: str, call: str) -> bool:
    """Whether the template is a single field of a chat, which may be a whole conversation."""
    return call == "chat" and template == f"{{{_names(template)[0]}}}"


def _prompt_function(template: str, render: Callable[[Any], Prompt], call: str) -> Callable[[Row], Any]:
    names = _names(template)
    if "" in names:
        # Text lines are rows with a field ``text``; ``{}`` is the line itself.
        return lambda row: render(row["text"])
    if _takes_list(template, call):
        # A list is a whole conversation; a text is a message of the user's.
        return lambda row: row[names[0]] if isinstance(row.get(names[0]), list) else render(row)
    return render


def _check_first(first: Row, names: list[str], source: Source, *, takes_list: bool) -> None:
    """Refuse a template that does not fit the first row: it would fail a million times over."""
    if first.fault is not None:
        raise Refusal(f"{source.name}: {first.fault}")
    if "" in names:
        if source.form == "jsonl":
            columns = _columns(first)
            raise Refusal(f"--prompt: {{}} stands for a text line, and {source.name} is JSONL; it has {columns}")
        return
    where = f"{source.name}, line {first.line}"
    for name in names:
        if name not in first:
            raise Refusal(
                f"--prompt names {{{name}}}, and the first row ({where}) has no such field; it has {_columns(first)}"
            )
        value = first[name]
        is_list = isinstance(value, list)
        if isinstance(value, dict) or (is_list and not takes_list):
            hint = "; a conversation goes with --call chat and a template of that field alone" if is_list else ""
            kind = "a list" if is_list else "an object"
            raise Refusal(f"--prompt names {{{name}}}, and in the first row ({where}) it is {kind}, not a text{hint}")


def _columns(row: Row) -> str:
    return ", ".join(f"{{{name}}}" for name in row)[:200] or "no field at all"


def _report(job: Job, options: MapOptions, left: int) -> int:
    """Report on stderr how the job ended; return the exit status."""
    failed = job.failures.total()
    rate = job.written / job.seconds if job.seconds else 0.0
    where = "stdout" if options.output == "-" else options.output
    rows = f"{job.written:,} {'row' if job.written == 1 else 'rows'}"
    summary = f"{rows} to {where} in {job.seconds:.1f} s, {rate:,.0f} rows/s, requests sent: {job.requests:,}"
    if failed:
        summary += "; " + in_options(describe(job.failures, job.first_failure))
        if AuthenticationFailed.__name__ in job.failures and not options.server.has_key:
            summary += KEY_HINT
        if job.out_of_use:
            summary += f"; in the end {' and '.join(job.out_of_use)}"
    if job.fault:
        typer.echo(f"Error: {job.fault}", err=True)
    if left:
        typer.echo(
            f"Error: stopped: no row succeeded, and {job.refusals} failed alike with {job.stopped_by}; rows left out: "
            f"{left:,} (--keep-going tries them all)",
            err=True,
        )
    if job.signal is not None:
        summary = f"Interrupted: {summary}"
    if not options.quiet and job.fault != "":
        typer.echo(summary, err=True)
    if job.signal is not None:
        return 128 + job.signal
    return 1 if failed or job.fault is not None else 0
