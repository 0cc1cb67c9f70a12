"""``batchclient bench``: the limit, the batch size and the client for this server and this load.

Rules:
- The answer goes to stdout, and each cell's line to stderr when the cell is done.
- A wrong command is refused before a call is sent, and before a file is touched.
- Ctrl-C ends the measurement: finished cells are written in a report that is marked incomplete.
- No output has a prompt, an answer or a key.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from batchclient.bench.compare import Bound, workload_differences
from batchclient.bench.report import Report, read_report
from batchclient.bench.workload import Workload
from batchclient.cli._bench_compare import compare_reports
from batchclient.cli._bench_options import (
    Question,
    is_hosted,
    question_from,
    seconds_from,
    times_from,
    workload_from,
)
from batchclient.cli._bench_outputs import Outputs, are_one_file, writing
from batchclient.cli._bench_run import measure
from batchclient.cli._refusal import Refusal, headers_from, named, refusal_of
from batchclient.cli._servers import ServerOptions, server_options
from batchclient.cli._shown import complain, show
from batchclient.client import InnerClient
from batchclient.errors import ConfigError
from batchclient.jobs.output import reason_of
from batchclient.jobs.statuses import Status

__all__ = ["make_bench_app"]

_QUICK_BUDGET = "60"


class _Group(TyperGroup):
    """The group of commands, which knows a server that is given without its option."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the command that the arguments name."""
        # The URL may have a key in it, and is not repeated.
        if args and "://" in args[0]:
            complain("Error: a server is given with --base-url URL")
            raise typer.Exit(Status.USAGE)
        return super().resolve_command(ctx, args)


def make_bench_app() -> typer.Typer:
    """Make the group of commands."""
    app = typer.Typer(
        cls=_Group,
        add_completion=False,
        rich_markup_mode=None,
        help="Measure a server: which limit, which batch size, which client, for a load and an objective.",
        context_settings={"help_option_names": ["-h", "--help"]},
        invoke_without_command=True,
    )
    app.callback(invoke_without_command=True)(bench)
    app.command("report")(report)
    app.command("compare")(compare)
    return app


def bench(
    context: typer.Context,
    *,
    base_url: Annotated[
        str | None, typer.Option(help="The server's root with its /v1. Default: BATCHCLIENT_BASE_URL.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="The model's name, needed where the server has several models. Default: BATCHCLIENT_MODEL."),
    ] = None,
    api_key: Annotated[str | None, typer.Option(help="Sent as a bearer token. Default: BATCHCLIENT_API_KEY.")] = None,
    header: Annotated[
        list[str] | None, typer.Option(help="'Name: value', sent with every request; repeatable.")
    ] = None,
    call: Annotated[str, typer.Option(metavar="CALL", help="complete, chat or embed.")] = "complete",
    prompts: Annotated[
        str | None, typer.Option(metavar="FILE", help="Prompts from the rows of a file, as map reads it.")
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(metavar="TEMPLATE", help="With --prompts: the template (default {text}).")
    ] = None,
    prompt_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens of a drawn prompt, on the mean (default 256).")
    ] = None,
    output_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens of an answer (default 128).")] = None,
    spread: Annotated[
        float | None, typer.Option(min=0.0, help="Sigma of drawn prompts' lognormal lengths (default 0: all alike).")
    ] = None,
    corpus: Annotated[bool, typer.Option("--corpus", help="Prompts: docstrings of Python's library.")] = False,
    prefix_reuse: Annotated[
        str, typer.Option(metavar="none|SHARE", help="The share of each prompt that is the same for all.")
    ] = "none",
    seed: Annotated[
        int | None,
        typer.Option(help="Of prompts, arrivals and the order of cells (default: drawn; a report tells it)."),
    ] = None,
    concurrency: Annotated[
        str | None, typer.Option(metavar="N,N,…", help="Calls in flight, of closed loads (default 8,32,128).")
    ] = None,
    sizes: Annotated[
        str | None, typer.Option(metavar="N,N,…", help="Prompts per request, of lists and streamed (default 32).")
    ] = None,
    strategies: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,…",
            help="adaptive, fixed, lists, streamed, singles, async-openai (default adaptive,lists,async-openai).",
        ),
    ] = None,
    load: Annotated[str | None, typer.Option(metavar="closed|poisson", help="poisson goes with --rate.")] = None,
    rate: Annotated[str | None, typer.Option(metavar="R,R,…", help="Arrivals per second, of open loads.")] = None,
    burstiness: Annotated[
        float | None, typer.Option(help="Of the arrivals: 1 is Poisson (the default), below 1 in bursts, above 1 even.")
    ] = None,
    slo: Annotated[
        list[str] | None,
        typer.Option(metavar="OBJECTIVE", help="Such as 'p95<400ms', 'ttft p99<1s', 'tpot p95<50ms'; repeatable."),
    ] = None,
    find: Annotated[
        str | None, typer.Option(metavar="limit|rate", help="Search for the best one instead of a sweep.")
    ] = None,
    window: Annotated[
        str | None,
        typer.Option("--for", metavar="TIME", help="The length of a measurement: 30, 90s, 15m (default 30 s)."),
    ] = None,
    warm_up: Annotated[
        str | None, typer.Option(metavar="TIME", help="Before each one, not counted (default 5 s).")
    ] = None,
    grace: Annotated[
        str | None, typer.Option(metavar="TIME", help="After each one, for answers to come (default 60 s).")
    ] = None,
    repeat: Annotated[int | None, typer.Option(min=1, help="Repetitions of each cell (default 3).")] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="No measurement is begun that would end later, such as 15m.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A first look, in a minute: adaptive and async-openai, 5 s each.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Measure a hosted service, too.")] = False,
    report_file: Annotated[
        str | None, typer.Option("--report", metavar="FILE.html", help="Write the report for people.")
    ] = None,
    json_file: Annotated[
        str | None, typer.Option("--json", metavar="FILE.json", help="Write the report for programs.")
    ] = None,
    calls: Annotated[
        str | None, typer.Option(metavar="FILE.jsonl", help="Write each call's times, without texts.")
    ] = None,
    gpu_price: Annotated[
        float | None, typer.Option(min=0.0, help="Of a GPU's hour: tells the price of tokens.")
    ] = None,
    gpus: Annotated[int | None, typer.Option(min=1, help="GPUs of the server, for --gpu-price (default 1).")] = None,
) -> None:
    """Measure a server: which limit, which batch size, which client, for a load and an objective."""
    if context.invoked_subcommand is not None:
        return
    with _told():
        server = _server(base_url, model, api_key, headers_from(header or []))
        workload = workload_from(
            prompts=prompts,
            prompt=prompt,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            spread=spread,
            corpus=corpus,
            prefix_reuse=prefix_reuse,
            call=call,
            seed=seed,
        )
        question = question_from(
            concurrency=concurrency,
            sizes=sizes,
            strategies=strategies,
            load=load,
            rate=rate,
            burstiness=burstiness,
            slo=slo or [],
            find=find,
            repeat=repeat,
            quick=quick,
            call=call,
        )
        times = times_from(window, warm_up, grace, quick=quick)
        limit_s = _QUICK_BUDGET if quick and budget is None else budget
        budget_s = None if limit_s is None else seconds_from("--budget", limit_s)
        if budget_s == 0:
            raise Refusal("--budget: more than 0 seconds")
        if gpu_price is not None and not math.isfinite(gpu_price):
            raise Refusal("--gpu-price: a number, 0 or more")
        if gpus is not None and gpu_price is None:
            raise Refusal("--gpus: of --gpu-price, which is not given")
        question = replace(question, times=times, budget_s=budget_s)
        _check_hosted(server, question, workload, yes=yes)
        outputs = Outputs(report_file, json_file, calls, prompts, gpu_price, gpus or 1)
        outputs.check()
        status = measure(server, workload, question, outputs)
    raise typer.Exit(status)


def report(
    file: Annotated[str, typer.Argument(metavar="R.json", help="A report that bench wrote with --json.")],
    output: Annotated[str, typer.Option("--output", "-o", metavar="R.html", help="Where the page goes.")],
) -> None:
    """Write a report for people from one for programs."""
    from batchclient.bench.html import html_of

    with _told():
        if output == "-":
            raise Refusal("--output -: the name of a file; a page is no text for a terminal")
        if are_one_file(file, output):
            raise Refusal(f"--output {output}: the report itself, which the page would replace; give another name")
        page = html_of(_read(file))
        with writing(output):
            Path(output).write_text(page, encoding="utf-8", errors="backslashreplace")


def compare(
    first: Annotated[str, typer.Argument(metavar="A.json", help="A report.")],
    second: Annotated[str, typer.Argument(metavar="B.json", help="A later report of the same workload.")],
    *,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(metavar="BOUND", help="End with status 1 if a ratio of B to A is beyond, such as 'goodput<0.95'."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Compare different workloads, too.")] = False,
) -> None:
    """Compare two reports: the ratio of B to A of every figure, with its interval."""
    with _told():
        try:
            bounds = [Bound(text) for text in fail_if or []]
        except ConfigError as error:
            raise Refusal(f"--fail-if: {error.message}") from None
        before, after = _read(first), _read(second)
        unlike = workload_differences(before, after)
        if unlike and not force:
            raise Refusal(f"the workloads differ; --force compares all the same: {'; '.join(unlike)}")
        found = compare_reports(before, after, bounds)
        if not found.has_common:
            raise Refusal("the reports have no setting in common")
    for line in unlike:
        show(f"different: {line}")
    for line in found.lines:
        show(line)
    raise typer.Exit(Status.FAILED if found.is_broken else Status.OK)


# Refusals --------------------------------------------------------------------------------------------------------


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except Refusal as refusal:
        complain(f"Error: {refusal}")
        raise typer.Exit(Status.USAGE) from None


def _read(path: str) -> Report:
    try:
        return read_report(Path(path))
    except OSError as error:
        raise Refusal(f"{named(path, 'the report')}: {reason_of(error)}") from None
    except ConfigError as error:
        raise Refusal(error.message) from None


def _server(base_url: str | None, model: str | None, api_key: str | None, headers: dict[str, str]) -> ServerOptions:
    server = server_options(None if base_url is None else [base_url], model, api_key, headers)
    if len(server.urls) > 1:
        raise Refusal("BATCHCLIENT_BASE_URL names several servers; a measurement is of one: give --base-url")
    try:
        InnerClient(**server.arguments)
    except ConfigError as error:
        raise refusal_of(error, variables=server.variables) from None
    return server


def _check_hosted(server: ServerOptions, question: Question, workload: Workload, *, yes: bool) -> None:
    if yes or not server.has_key or not is_hosted(server.urls[0]):
        return
    times, count = question.times, len(question.settings) * question.repeat
    seconds = count * (times.warm_up_s + times.window_s)
    if question.budget_s is not None:
        seconds = min(seconds or math.inf, question.budget_s)
    long = f"for {seconds:,.0f} s" if seconds else "until the search ends"
    prompt = "the tokens of its prompt" if workload.prompts else f"some {workload.prompt_tokens:,} tokens of prompt"
    answer = "" if workload.call == "embed" else f" and {workload.output_tokens:,} of answer"
    raise Refusal(
        f"this sends calls without a pause {long} to a host beyond this network, which may be paid by the"
        f" token; each call has {prompt}{answer}; --yes does it"
    )
