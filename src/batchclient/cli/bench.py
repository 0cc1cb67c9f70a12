"""``batchclient bench``: the limit, the batch size and the client for this server and this load.

Rules:
- The answer goes to stdout, and each cell's line to stderr when the cell is done.
- A wrong command is refused before a call is sent, and before a file is touched.
- Ctrl-C ends the measurement: finished cells are written in a report that is marked incomplete.
- No output has a prompt, an answer or a key.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Annotated, Any

import typer
from rich.console import Console

from batchclient.bench.answer import lines_of_search, lines_of_sweep
from batchclient.bench.arrivals import Poisson
from batchclient.bench.calls import Calls
from batchclient.bench.cell import Cell, Setting
from batchclient.bench.compare import Bound, differences, workload_differences
from batchclient.bench.find import Recommendation, find_in
from batchclient.bench.generator import Times, Window, generate
from batchclient.bench.report import Report, read_report, report_of, write_report
from batchclient.bench.session import BenchFailed, Session, begin
from batchclient.bench.slo import shown_s
from batchclient.bench.summary import summaries_of
from batchclient.bench.sweep import cells
from batchclient.bench.workload import Workload
from batchclient.cli._bench_options import (
    Question,
    is_hosted,
    question_from,
    seconds_from,
    times_from,
    workload_from,
)
from batchclient.cli._bench_table import table_of
from batchclient.cli._refusal import Refusal, headers_from, in_options, refusal_of
from batchclient.cli._servers import KEY_HINT, ServerOptions, server_options
from batchclient.cli._signals import stopped_by_signals
from batchclient.client import InnerClient
from batchclient.errors import AuthenticationFailed, BatchClientError, ConfigError, ConnectFailed
from batchclient.jobs.output import reason_of
from batchclient.jobs.statuses import Status, of_signal

__all__ = ["make_bench_app"]

_QUICK_BUDGET = "60"
_SELF_TEST_ABOVE = 400.0
_SELF_TEST = Times(0.5, 1.5, 1.0)
_LATE_S = 0.005


def make_bench_app() -> typer.Typer:
    """Make the group of commands."""
    app = typer.Typer(
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
    output_tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer.")] = 128,
    spread: Annotated[
        float, typer.Option(min=0.0, help="Sigma of the prompts' lognormal lengths; 0: all alike.")
    ] = 0.0,
    corpus: Annotated[bool, typer.Option("--corpus", help="Prompts: docstrings of Python's library.")] = False,
    prefix_reuse: Annotated[
        str, typer.Option(metavar="none|SHARE", help="The share of each prompt that is the same for all.")
    ] = "none",
    seed: Annotated[int, typer.Option(help="Of prompts, arrivals and the order of cells.")] = 0,
    concurrency: Annotated[
        str | None, typer.Option(metavar="N,N,…", help="Calls in flight, of closed loads (default 8,32,128).")
    ] = None,
    sizes: Annotated[str | None, typer.Option(metavar="N,N,…", help="Prompts per request, of lists.")] = None,
    strategies: Annotated[
        str | None,
        typer.Option(
            metavar="NAME,…", help="adaptive, fixed, lists, streamed, singles, async-openai (default: three of them)."
        ),
    ] = None,
    load: Annotated[str | None, typer.Option(metavar="closed|poisson", help="poisson goes with --rate.")] = None,
    rate: Annotated[str | None, typer.Option(metavar="R,R,…", help="Arrivals per second, of open loads.")] = None,
    burstiness: Annotated[
        float, typer.Option(help="Of the arrivals: 1 is Poisson, below 1 in bursts, above 1 even.")
    ] = 1.0,
    slo: Annotated[
        list[str] | None,
        typer.Option(metavar="OBJECTIVE", help="Such as 'p95<400ms', 'ttft p99<1s', 'tpot p95<50ms'; repeatable."),
    ] = None,
    find: Annotated[
        str | None, typer.Option(metavar="limit|rate", help="Search for the best one instead of a sweep.")
    ] = None,
    window: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="The length of a measurement (default 30).")
    ] = None,
    warm_up: Annotated[
        str | None, typer.Option(metavar="TIME", help="Before each one, not counted (default 5).")
    ] = None,
    grace: Annotated[
        str | None, typer.Option(metavar="TIME", help="After each one, for answers to come (default 60).")
    ] = None,
    repeat: Annotated[int | None, typer.Option(min=1, help="Repetitions of each cell (default 3).")] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="TIME", help="No measurement is begun that would end later, such as 15m.")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="A first look, in a minute.")] = False,
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
    gpus: Annotated[int, typer.Option(min=1, help="GPUs of the server, for --gpu-price.")] = 1,
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
            slo=slo or [],
            find=find,
            repeat=repeat,
            quick=quick,
            call=call,
        )
        if not 0 < burstiness < math.inf:
            raise Refusal("--burstiness: a number above 0")
        times = times_from(window, warm_up, grace, quick=quick)
        limit_s = budget or (_QUICK_BUDGET if quick else None)
        budget_s = None if limit_s is None else seconds_from("--budget", limit_s)
        _check_hosted(server, question, times, yes=yes)
        outputs = _Outputs(report_file, json_file, calls, gpu_price, gpus)
        outputs.check()
        status = _measure(server, workload, question, times, budget_s, burstiness, outputs)
    raise typer.Exit(status)


def report(
    file: Annotated[str, typer.Argument(metavar="R.json", help="A report that bench wrote with --json.")],
    output: Annotated[str, typer.Option("--output", "-o", metavar="R.html", help="Where the page goes.")],
) -> None:
    """Write a report for people from one for programs."""
    from batchclient.bench.html import html_of

    with _told():
        page = html_of(_read(file))
        with _writing(output):
            Path(output).write_text(page, encoding="utf-8")


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
        found = differences(before, after)
        if not found:
            raise Refusal("the reports have no setting in common")
    for line in unlike:
        typer.echo(f"different: {line}")
    is_broken = False
    for each in found:
        broken = [bound.text for bound in bounds if bound.is_broken(each)]
        is_broken = is_broken or bool(broken)
        told = f"  beyond {', '.join(broken)}" if broken else ""
        typer.echo(f"{each.setting}: {each.figure} {each.comparison}{told}")
    raise typer.Exit(Status.FAILED if is_broken else Status.OK)


# The measurement -------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Outputs:
    """Where the report goes, and what it tells beside the figures."""

    html: str | None
    json: str | None
    calls: str | None
    gpu_price: float | None
    gpus: int
    _file: IO[str] | None = None

    def check(self) -> None:
        """Refuse a place that cannot be written, before hours are spent."""
        for path in (self.html, self.json, self.calls):
            if path is not None:
                with _writing(path):
                    Path(path).open("a", encoding="utf-8").close()

    def note(self, setting: Setting, repetition: int, window: Window) -> None:
        """Write the calls of a cell."""
        if self.calls is None:
            return
        if self._file is None:
            self._file = Path(self.calls).open("w", encoding="utf-8")  # noqa: SIM115  # closed at the end
        for row in _rows(setting, repetition, window):
            self._file.write(json.dumps(row, allow_nan=False) + "\n")

    def write(self, told: Report) -> None:
        """Write the reports."""
        if self._file is not None:
            self._file.close()
        if self.json is not None:
            with _writing(self.json):
                write_report(told, Path(self.json))
        if self.html is not None:
            from batchclient.bench.html import html_of

            with _writing(self.html):
                Path(self.html).write_text(html_of(told), encoding="utf-8")

    def price_of(self, cell: Cell) -> str | None:
        """Return the price of a million tokens at a cell's speed, in words."""
        if self.gpu_price is None or not cell.tokens_per_s:
            return None
        per_million = self.gpu_price * self.gpus / (cell.tokens_per_s * 3600) * 1e6
        return f"a million tokens, in and out, costs {per_million:.3g} there"


@dataclass(slots=True)
class _Measured:
    """What a run has so far."""

    cells: list[Cell] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    recommendation: Recommendation | None = None
    session: Session | None = None
    complete: bool = False


def _measure(
    server: ServerOptions,
    workload: Workload,
    question: Question,
    times: Times,
    budget_s: float | None,
    burstiness: float,
    outputs: _Outputs,
) -> int:
    started, done = datetime.now(UTC), _Measured()
    work = _work(server, workload, question, times, budget_s, burstiness, outputs, done)
    try:
        with stopped_by_signals() as stopped:
            asyncio.run(stopped.run(work))
    except BenchFailed as error:
        typer.echo(f"Error: {in_options(error.message)}", err=True)
        return Status.FAILED
    except ConfigError as error:
        raise refusal_of(error, variables=server.variables) from None
    except ImportError as error:
        raise Refusal(f"--strategies: {error}") from None
    except BatchClientError as error:
        hint = KEY_HINT if isinstance(error, AuthenticationFailed) and not server.has_key else ""
        typer.echo(f"Error: the first call failed: {type(error).__name__}: {in_options(str(error))}{hint}", err=True)
        return Status.NO_SERVER if isinstance(error, ConnectFailed) else Status.FAILED
    if done.session is None or not done.cells:
        return of_signal(stopped.signal) if stopped.signal else Status.FAILED
    if not done.complete and not done.lines:
        done.lines = [f"incomplete: ended after {len(done.cells)} measurements"]
        done.lines += lines_of_sweep(done.cells, question.slos) if question.find is None else []
    if question.find is None:
        Console(stderr=True).print(table_of(summaries_of(done.cells, question.slos), question.slos))
    for line in done.lines:
        typer.echo(line)
    outputs.write(
        report_of(
            done.session,
            done.cells,
            started,
            recommendation=done.recommendation,
            lines=done.lines,
            complete=done.complete,
        )
    )
    return of_signal(stopped.signal) if stopped.signal else Status.OK


async def _work(
    server: ServerOptions,
    workload: Workload,
    question: Question,
    times: Times,
    budget_s: float | None,
    burstiness: float,
    outputs: _Outputs,
    done: _Measured,
) -> None:
    arguments = dict(server.arguments)
    await _test_self(question.settings)
    done.session = session = await begin(
        arguments.pop("base_url")[0], workload, times, question.slos, burstiness=burstiness, **arguments
    )
    session.on_window = outputs.note
    planned = len(question.settings) * question.repeat
    name = session.server or "an unknown server"
    typer.echo(f"{name}, model {session.target.model}", err=True)
    if not session.target.fields and workload.call != "embed":
        typer.echo("the server takes no ignore_eos: answers may end before --output-tokens", err=True)
    if planned:
        seconds = planned * (times.warm_up_s + times.window_s)
        within = "" if budget_s is None or budget_s > seconds else f", within {budget_s:,.0f} s"
        typer.echo(f"{planned} measurements, {seconds:,.0f} s at least{within}", err=True)

    def note(cell: Cell) -> None:
        done.cells.append(cell)
        of = f"/{planned}" if planned else ""
        typer.echo(f"[{len(done.cells)}{of}] {_line(cell)}", err=True)

    if question.find is not None:
        result = await find_in(session, question.find, budget_s=budget_s, on_cell=note)
        done.recommendation, done.complete = result.recommended, result.complete
        done.lines = lines_of_search(result, question.slos, question.find)
        best = [cell for cell in result.cells if result.found and _value(cell) == result.found.value]
    else:
        async for cell in cells(session, question.settings, repeat=question.repeat, budget_s=budget_s):
            note(cell)
        done.complete = len(done.cells) == planned
        done.lines = lines_of_sweep(done.cells, question.slos)
        best = sorted(done.cells, key=lambda cell: cell.goodput)[-1:]
    if best and (price := outputs.price_of(best[-1])) is not None:
        done.lines.append(price)


def _value(cell: Cell) -> float:
    return cell.setting.rate if cell.setting.rate is not None else float(cell.setting.concurrency or 0)


def _line(cell: Cell) -> str:
    failed = sum(cell.failed.values())
    told = [f"{cell.calls_per_s:,.3g} calls/s"]
    if "latency" in cell.times:
        told.append(f"p95 {shown_s(cell.times['latency'].percentiles[0.95])}")
    if failed:
        told.append(f"{failed:,} failed ({', '.join(sorted(cell.failed))})")
    if cell.unanswered:
        told.append(f"{cell.unanswered:,} not answered in time")
    told += cell.marks
    return f"{cell.setting}: {', '.join(told)}"


async def _test_self(settings: Sequence[Setting]) -> None:
    """Say which rates this machine cannot make, before they are measured."""
    fastest = max((setting.rate or 0.0 for setting in settings), default=0.0)
    if fastest <= _SELF_TEST_ABOVE:
        return
    loop = asyncio.get_running_loop()

    async def nothing(_prompt: str, calls: Calls, place: int) -> None:
        calls.answered(place, loop.time(), 0, 0)

    window = await generate(nothing, Poisson(fastest), iter(lambda: "", None), _SELF_TEST, 0)
    late = sorted(begun - due for begun, due in zip(window.calls.begun, window.calls.scheduled, strict=True))
    if late and (slow := late[int(len(late) * 0.99)]) > _LATE_S:
        typer.echo(f"this machine makes {fastest:g} calls/s {shown_s(slow)} late (p99), without a client", err=True)


def _rows(setting: Setting, repetition: int, window: Window) -> Iterator[dict[str, Any]]:
    calls, zero = window.calls, window.begins
    for place in range(len(calls)):
        times = {name: getattr(calls, name)[place] for name in ("scheduled", "begun", "sent", "first", "ended")}
        yield {
            "setting": str(setting),
            "repetition": repetition,
            **{name: None if math.isnan(at) else round(at - zero, 6) for name, at in times.items()},
            "counted": window.begins <= calls.scheduled[place] < window.ends,
            "prompt_tokens": calls.prompt_tokens[place],
            "output_tokens": calls.output_tokens[place],
            "error": calls.errors.get(place),
        }


# Refusals --------------------------------------------------------------------------------------------------------


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except Refusal as refusal:
        typer.echo(f"Error: {refusal}", err=True)
        raise typer.Exit(Status.USAGE) from None


@contextmanager
def _writing(path: str) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Refusal(f"{path}: {reason_of(error)}") from None


def _read(path: str) -> Report:
    try:
        return read_report(Path(path))
    except OSError as error:
        raise Refusal(f"{path}: {reason_of(error)}") from None
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


def _check_hosted(server: ServerOptions, question: Question, times: Times, *, yes: bool) -> None:
    if yes or not server.has_key or not is_hosted(server.urls[0]):
        return
    cells_told = len(question.settings) * question.repeat
    seconds = cells_told * (times.warm_up_s + times.window_s)
    long = f"for {seconds:,.0f} s" if cells_told else "until the search ends"
    raise Refusal(
        f"this sends calls without a pause {long} to a host beyond this network, which may be paid by the"
        " token; --yes does it"
    )
