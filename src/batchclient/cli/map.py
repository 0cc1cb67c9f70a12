"""``batchclient map``: a file of rows in, the same rows with completions out.

Rules:
- Whatever is wrong with the command is refused before anything is sent and before the output is touched.
- Whatever is wrong with one row is written into that row; the exit status says that there was such a row.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from string import Formatter
from typing import Annotated, Any

import typer

from batchclient._client.connections import shown
from batchclient.cli._files import Source, check_output, count_lines, open_output, open_source
from batchclient.cli._job import Job
from batchclient.cli._progress import ProgressBar
from batchclient.cli._refusal import (
    Call,
    Refusal,
    call_from,
    format_from,
    headers_from,
    in_options,
    limit_from,
    packed_from,
    params_from,
    refusal_of,
)
from batchclient.cli._rows import ADDED_BY, Format, Row, blame, describe
from batchclient.client import BatchClient
from batchclient.errors import AuthenticationFailed, BatchClientError, ConfigError
from batchclient.options import Batching, Http
from batchclient.templates import Prompt, make_prompt

__all__ = ["MapOptions", "map_rows", "run_map"]

_KEY_HINT = "; no key was given: set BATCHCLIENT_API_KEY or give --api-key"


def map_rows(
    *,
    source: Annotated[
        str, typer.Argument(metavar="IN", help="JSONL, or plain text with a document per line; - is stdin.")
    ],
    base_url: Annotated[list[str], typer.Option(help="The server's root with its /v1; repeatable.")],
    prompt: Annotated[str, typer.Option(help="Template; {name} is a row's field, {text} or {} a text line.")],
    model: Annotated[
        str | None, typer.Option(help="The server's name of the model; needed where it has several.")
    ] = None,
    call: Annotated[
        str, typer.Option(metavar="CALL", help="What each row asks for: complete, chat, embed or classify.")
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
            help="What a line of IN is (default: its ending .jsonl or .txt, else its first line, decides).",
        ),
    ] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Tokens to generate, at most.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Sampling temperature.")] = None,
    param: Annotated[
        list[str] | None, typer.Option(metavar="NAME=JSON", help="Any other field of the server's; repeatable.")
    ] = None,
    preset: Annotated[str, typer.Option(help="latency, balanced or throughput.")] = "throughput",
    limit: Annotated[
        str | None, typer.Option(metavar="N|auto", help="Sequences in flight, at most (default: auto, which finds it).")
    ] = None,
    max_list: Annotated[int | None, typer.Option(help="Prompts in a request, at most.")] = None,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds for a row, from when it is read; rows are read 1,024 ahead.")
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="BATCHCLIENT_API_KEY", show_default=False, help="Better given by the environment."),
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="'NAME: VALUE'", help="Sent with every request; repeatable.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace OUT if it is there already.")] = False,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Go on although rows are refused alike and none succeeds.")
    ] = False,
    unordered: Annotated[bool, typer.Option("--unordered", help="Write rows as they finish.")] = False,
    http_backend: Annotated[
        str | None, typer.Option(help="httpx, or httpx2 or aiohttp with the extra of that name.")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no summary.")] = False,
) -> None:
    """Complete one prompt per row of IN and write each row with its completion.

    A row of OUT has the fields of its row of IN, an id, and completion, finish_reason and usage, or error; embed adds embedding
    and usage instead, classify label, probabilities and usage. A line that is no row becomes {"line": N, "error": …}. Exit status:
    0 all rows succeeded, 1 some failed, 2 wrong usage, 130 Ctrl-C.
    """
    client_options = {
        "model": model,
        "api_key": api_key or None,
        "preset": preset,
        "limit": limit_from(limit),
        "batching": Batching(max_size=max_list),
        "http": Http(backend=http_backend),
    }
    try:
        asked = call_from(call)
        options = MapOptions(
            source=source,
            output=output,
            prompt=prompt,
            form=format_from(format),
            base_url=base_url,
            client=client_options | {"headers": headers_from(header or [])},
            params=params_from(param or [], max_tokens=max_tokens, temperature=temperature, call=asked),
            timeout_s=timeout,
            ordered=not unordered,
            quiet=quiet,
            overwrite=overwrite,
            keep_going=keep_going,
            call=asked,
            packed=packed_from(vectors, asked),
        )
        status = run_map(options)
    except Refusal as refusal:
        typer.echo(f"Error: {refusal}", err=True)
        raise typer.Exit(2) from None
    raise typer.Exit(status)


@dataclass(frozen=True, slots=True)
class MapOptions:
    """What a map job is asked to do.

    Args:
        source, output: paths, or ``-``.
        prompt: the template.
        form: what a line is, if it was said.
        base_url: of the servers.
        client: further arguments of ``BatchClient``.
        params: of the server.
        timeout_s: of a row.
        ordered: whether rows keep their order.
        quiet: neither progress nor summary.
        overwrite: whether an output that is there already may be replaced.
        keep_going: whether rows that all fail alike do not stop it.
        call: what is asked for each row, in ``stream_map``'s words.
        packed: whether vectors are written as base64.
    """

    source: str
    output: str
    prompt: str
    form: Format | None
    base_url: list[str]
    client: dict[str, Any] = field(repr=False)
    params: dict[str, Any]
    timeout_s: float | None
    ordered: bool
    quiet: bool
    overwrite: bool = False
    keep_going: bool = False
    call: Call = "complete"
    packed: bool = False


def run_map(options: MapOptions) -> int:
    """Run a map job; return the exit status.

    Raises:
        Refusal: the job cannot begin. Nothing was sent, and the output is as it was.
    """
    try:
        with open_source(options.source, options.form, ADDED_BY[options.call]) as source:
            job = _make_job(options, source)
            asyncio.run(job.run())
            left = source.count() - job.written if job.stopped_by else 0
    except ConfigError as error:
        raise refusal_of(error, options.params) from None
    except BatchClientError as error:
        # A row's error is in its row. This one is that of the question which model there is.
        message = str(error).removesuffix(" (asked for its model; with model=… nothing is asked)")
        refused = isinstance(error, AuthenticationFailed)
        hint = "" if refused else " (--model names one)"
        key = _KEY_HINT if refused and options.client["api_key"] is None else ""
        typer.echo(f"Error: the server was asked for its model{hint}: {in_options(message)}{key}", err=True)
        return 1
    return _report(job, options, left)


def _make_job(options: MapOptions, source: Source) -> Job:
    """Check everything that can be checked beforehand, and make a job of it."""
    check_output(options.output, source, overwrite=options.overwrite)
    client = BatchClient(options.base_url, **options.client)
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
    shown = not options.quiet and sys.stderr.isatty() and not (options.output == "-" and sys.stdout.isatty())
    total = count_lines(options.source) if shown and source.is_regular and options.source != "-" else None
    return Job(
        client,
        results,
        partial(open_output, options.output),
        ProgressBar(shown=shown, total=total),
        on_unreachable=None if options.quiet or sys.stderr.isatty() else partial(_say_unreachable, options.base_url),
        on_asking=None if options.quiet else _say_asking,
        keep_going=options.keep_going,
        packed=options.packed,
    )


def _say_unreachable(base_urls: list[str]) -> None:
    typer.echo(f"no connection to {' or '.join(map(shown, base_urls))}; rows fail until it is back", err=True)


def _say_asking() -> None:
    typer.echo("waiting for the server to say which model it has (--model names one)", err=True)


def _names(template: str) -> list[str]:
    """The fields of a template that ``make_prompt`` has checked."""
    return [name for _, name, _, _ in Formatter().parse(template) if name is not None]


def _takes_list(template: str, call: str) -> bool:
    """Whether the template is one field alone, which may be a whole conversation."""
    return call == "chat" and template == f"{{{_names(template)[0]}}}"


def _prompt_function(template: str, render: Callable[[Any], Prompt], call: str) -> Callable[[Row], Any]:
    names = _names(template)
    if "" in names:
        # Text lines are rows with a field ``text``; ``{}`` is the line itself.
        return lambda row: render(row["text"])
    if _takes_list(template, call):
        # A field that is a conversation is one; a text is a message of the user's.
        return lambda row: row[names[0]] if isinstance(row.get(names[0]), list) else render(row)
    return render


def _check_first(first: Row, names: list[str], source: Source, *, takes_list: bool) -> None:
    """Refuse a template that does not fit: it would fail a million times over."""
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
    """Say on stderr what became of the job; return the exit status."""
    failed = job.failures.total()
    rate = job.written / job.seconds if job.seconds else 0.0
    where = "stdout" if options.output == "-" else options.output
    summary = f"{job.written:,} {'row' if job.written == 1 else 'rows'} to {where} in {job.seconds:.1f} s, {rate:,.0f} rows/s, requests sent: {job.requests:,}"
    if failed:
        summary += "; " + in_options(describe(job.failures, job.first_failure))
        if AuthenticationFailed.__name__ in job.failures and options.client["api_key"] is None:
            summary += _KEY_HINT
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
