"""A measurement of the command line: its run, its lines, its end."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from rich.console import Console

from batchclient._shell.descriptors import within_descriptors
from batchclient.bench.answer import lines_of_search, lines_of_sweep, measurements
from batchclient.bench.cell import Cell
from batchclient.bench.find import Recommendation, find_in
from batchclient.bench.report import report_of
from batchclient.bench.session import BenchFailed, Session, begin
from batchclient.bench.slo import Slo, shown_s
from batchclient.bench.strategies import Target
from batchclient.bench.summary import summaries_of
from batchclient.bench.sweep import cells
from batchclient.bench.workload import Workload
from batchclient.cli._bench_options import Question
from batchclient.cli._bench_outputs import Outputs
from batchclient.cli._bench_table import table_of
from batchclient.cli._refusal import Refusal, in_options
from batchclient.cli._signals import until_signal
from batchclient.cli._words import put, say
from batchclient.errors import AuthenticationFailed, BatchClientError, ConfigError, ConnectFailed
from batchclient.jobs.statuses import Status, of_signal

__all__ = ["measure"]

_FIRST_CALL_S = 10.0
_MOST_LIMIT = 1024
_FILE_WIDTH = 200
_KEY_HINT = "; no key was given: set BATCHCLIENT_API_KEY or give --api-key (OPENAI_API_KEY is not read)"


@dataclass(slots=True)
class _Measured:
    """What a run has so far."""

    cells: list[Cell] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    recommendation: Recommendation | None = None
    session: Session | None = None
    complete: bool = False


def measure(target: Target, workload: Workload, question: Question, outputs: Outputs, *, has_key: bool) -> int:
    """Measure, say what was found, write the reports; return the exit status.

    Args:
        target: the server.
        workload: the calls.
        question: what is measured.
        outputs: where the reports go.
        has_key: whether a key is sent.

    Raises:
        Refusal: a package is missing.
        ConfigError: an argument is wrong.
    """
    started, done, failure = datetime.now(UTC), _Measured(), ""
    fault: Exception | None = None
    stopped = 0
    try:
        stopped = until_signal(_work(target, workload, question, done))
    except ConfigError:
        raise
    except ImportError as error:
        raise Refusal(f"--strategies: {error}") from None
    except BatchClientError as error:
        failure = in_options(str(error))
        if not isinstance(error, BenchFailed):
            failure = f"{type(error).__name__}: {failure}"
        if done.session is None and not isinstance(error, BenchFailed):
            hint = _KEY_HINT if isinstance(error, AuthenticationFailed) and not has_key else ""
            status = Status.NO_SERVER if isinstance(error, ConnectFailed) else Status.FAILED
            raise Refusal(f"the first call failed: {failure}{hint}", status) from None
    except Exception as error:
        # A fault of the measurement itself: what is finished is written all the same.
        failure, fault = f"{type(error).__name__}, a fault of the measurement itself", error
    is_written = True
    if done.session is not None and done.cells:
        is_written = _tell(done.session, done, question, outputs, started, failure)
    elif stopped:
        say("stopped before the first measurement was done; nothing is written")
    if fault is not None:
        raise fault
    if failure or (not stopped and (failure := _nothing_in(done.cells))):
        raise Refusal(failure, Status.FAILED)
    if stopped:
        return of_signal(stopped)
    return Status.OK if is_written else Status.DISK_FULL


def _tell(
    session: Session, done: _Measured, question: Question, outputs: Outputs, started: datetime, failure: str
) -> bool:
    """Say what was found, and write the reports; return whether these are written."""
    if not done.complete and not done.lines:
        done.lines = [f"incomplete: ended after {measurements(len(done.cells))}{failure and f': {failure}'}"]
        done.lines += lines_of_sweep(done.cells, question.slos) if question.find is None else []
    if question.find is None:
        console = Console(stderr=True)
        if not console.is_terminal:
            # A file has room for all columns.
            console.width = max(console.width, _FILE_WIDTH)
        # A terminal that has gone ends nothing.
        with suppress(OSError):
            console.print(table_of(summaries_of(done.cells, question.slos), question.slos))
    report = report_of(
        session, done.cells, started, recommendation=done.recommendation, lines=done.lines, complete=done.complete
    )
    is_written = outputs.write(report)
    # After the reports: a reader that has gone away ends the command here.
    put(*done.lines)
    return is_written


def _nothing_in(cells: Sequence[Cell]) -> str:
    """Return why the cells measured nothing; empty: a call was answered."""
    if any(cell.answered for cell in cells):
        return ""
    if any(cell.scheduled for cell in cells):
        return "no call was answered in any measurement"
    return "no call was scheduled in any measurement; a longer --for or a higher --rate has calls"


async def _work(target: Target, workload: Workload, question: Question, done: _Measured) -> None:
    times, budget_s = question.times, question.budget_s
    # A silent server would leave the terminal empty.
    silence = asyncio.get_running_loop().call_later(_FIRST_CALL_S, say, "the first call has no answer yet")
    try:
        done.session = session = await begin(
            target.base_url,
            workload,
            times,
            question.slos,
            model=target.model or None,
            api_key=target.api_key,
            headers=target.headers,
            seed=workload.seed,
            budget_s=budget_s,
        )
    finally:
        silence.cancel()
    planned = len(question.settings) * question.repeat
    say(f"{session.server or 'an unknown server'}, model {session.target.model}")
    if not session.target.fields and workload.call != "embed":
        say("the server takes no ignore_eos: answers may end before --output-tokens")
    if question.left_out:
        say(question.left_out)
    if planned:
        seconds = planned * (times.warm_up_s + times.window_s)
        within = "" if budget_s is None or budget_s > seconds else f", within {budget_s:,.0f} s"
        say(f"{measurements(planned)}, {seconds:,.0f} s at least{within}")

    def note(cell: Cell) -> None:
        done.cells.append(cell)
        of = f"/{planned}" if planned else ""
        so_far = "" if question.find is None else _so_far(done.cells, question.slos)
        say(f"[{len(done.cells)}{of}] {_line(cell)}{so_far}", event="measured")

    if question.find is not None:
        most = None if question.find == "rate" else _most_limit()
        result = await find_in(session, question.find, most=most, budget_s=budget_s, on_cell=note)
        done.recommendation, done.complete = result.recommended, result.complete
        done.lines = lines_of_search(result, question.slos, question.find)
        return
    async for cell in cells(session, question.settings, repeat=question.repeat, budget_s=budget_s):
        note(cell)
    done.complete = len(done.cells) == planned
    done.lines = lines_of_sweep(done.cells, question.slos)
    if not done.complete:
        ended = f"the budget ended the sweep after {len(done.cells)} of {measurements(planned)}"
        done.lines.insert(0, f"incomplete: {ended}")


def _most_limit() -> float:
    """Return the greatest limit of a search: each call in flight may need a connection."""
    most = within_descriptors(_MOST_LIMIT, 1, warn_below=0)
    if most < _MOST_LIMIT:
        say(f"limits up to {most} are tried: more calls in flight need more open files (`ulimit -n`)")
    return float(most)


def _so_far(cells: Sequence[Cell], slos: Sequence[Slo]) -> str:
    """Return the number of a search's last window, and whether the objectives are kept."""
    windows = [cell for cell in cells if cell.setting == cells[-1].setting]
    calls = sum(cell.scheduled for cell in windows)
    told = f"; window {len(windows)}"
    for place, slo in enumerate(slos if calls else ()):
        kept = sum(cell.slo_hits[place] for cell in windows) >= slo.share * calls
        told += f", {slo} {'kept' if kept else 'not kept'} so far"
    return told


def _line(cell: Cell) -> str:
    failed = sum(cell.failed.values())
    silent = "no call was answered" if cell.scheduled or cell.setting.rate is None else "no call was scheduled"
    told = [f"{cell.calls_per_s:,.3g} calls/s" if cell.answered else silent]
    if "latency" in cell.times:
        told.append(f"p95 {shown_s(cell.times['latency'].percentiles[0.95])}")
    if failed:
        told.append(f"{failed:,} failed ({', '.join(sorted(cell.failed))})")
    if cell.unanswered:
        told.append(f"{cell.unanswered:,} not answered in time")
    told += cell.marks
    return f"{cell.setting}: {', '.join(told)}"
