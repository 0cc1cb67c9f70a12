"""A measurement of the command line: its run, its lines, its end."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime

from rich.console import Console

from batchclient._shell.descriptors import within_descriptors
from batchclient.bench.answer import lines_of_search, lines_of_sweep, measurements
from batchclient.bench.arrivals import Poisson
from batchclient.bench.calls import Calls
from batchclient.bench.cell import Cell, Setting
from batchclient.bench.find import Recommendation, find_in
from batchclient.bench.generator import Times, generate
from batchclient.bench.report import report_of
from batchclient.bench.session import BenchFailed, Session, begin
from batchclient.bench.slo import Slo, shown_s
from batchclient.bench.strategies import RIVAL
from batchclient.bench.summary import best_of, summaries_of
from batchclient.bench.sweep import cells
from batchclient.bench.workload import Workload
from batchclient.cli._bench_options import Question
from batchclient.cli._bench_outputs import Outputs
from batchclient.cli._bench_table import table_of
from batchclient.cli._refusal import Refusal, in_options, refusal_of
from batchclient.cli._servers import KEY_HINT, ServerOptions
from batchclient.cli._shown import complain, show
from batchclient.cli._signals import Stopped, stopped_by_signals
from batchclient.errors import AuthenticationFailed, BatchClientError, ConfigError, ConnectFailed
from batchclient.jobs.statuses import Status, of_signal

__all__ = ["measure"]

_SELF_TEST_ABOVE = 400.0
_SELF_TEST = Times(0.5, 1.5, 1.0)
_LATE_S = 0.005
_FIRST_CALL_S = 10.0
_MOST_LIMIT = 1024
_FILE_WIDTH = 200


@dataclass(slots=True)
class _Measured:
    """What a run has so far."""

    cells: list[Cell] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    recommendation: Recommendation | None = None
    session: Session | None = None
    complete: bool = False


def measure(server: ServerOptions, workload: Workload, question: Question, outputs: Outputs) -> int:
    """Measure, say what was found, write the reports; return the exit status.

    Args:
        server: its URL, model and key.
        workload: the calls.
        question: what is measured.
        outputs: where the reports go.

    Raises:
        Refusal: an argument is wrong, or a package is missing.
    """
    started, done = datetime.now(UTC), _Measured()
    stopped = Stopped()
    failure: str | None = None
    fault: Exception | None = None
    try:
        with stopped_by_signals() as stopped:
            asyncio.run(stopped.run(_work(server, workload, question, outputs, done)))
    except BenchFailed as error:
        failure = in_options(error.message)
    except ConfigError as error:
        raise refusal_of(error, variables=server.variables) from None
    except ImportError as error:
        raise Refusal(f"--strategies: {error}") from None
    except BatchClientError as error:
        failure = f"{type(error).__name__}: {in_options(str(error))}"
        if done.session is None:
            hint = KEY_HINT if isinstance(error, AuthenticationFailed) and not server.has_key else ""
            complain(f"Error: the first call failed: {failure}{hint}")
            return Status.NO_SERVER if isinstance(error, ConnectFailed) else Status.FAILED
    except Exception as error:
        # A fault of the measurement itself: what is finished is written all the same.
        failure, fault = f"{type(error).__name__}, a fault of the measurement itself", error
    finally:
        outputs.close()
    if done.session is not None and done.cells:
        _tell(done, question, outputs, started, failure)
    elif stopped.signal:
        complain("stopped before the first measurement was done; nothing is written")
    if fault is not None:
        raise fault
    if failure is None and not stopped.signal:
        failure = _nothing_in(done.cells)
    if failure is not None:
        complain(f"Error: {failure}")
        return Status.FAILED
    if stopped.signal:
        return of_signal(stopped.signal)
    return Status.DISK_FULL if outputs.failed else Status.OK


def _tell(done: _Measured, question: Question, outputs: Outputs, started: datetime, failure: str | None) -> None:
    """Say what was found, and write the reports."""
    assert done.session is not None
    if not done.complete and not done.lines:
        done.lines = [f"incomplete: ended after {measurements(len(done.cells))}"]
        if failure is not None:
            done.lines[0] += f": {failure}"
        done.lines += lines_of_sweep(done.cells, question.slos) if question.find is None else []
    if question.find is None:
        _draw_table(done.cells, question.slos)
    for line in done.lines:
        show(line)
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


def _draw_table(cells: Sequence[Cell], slos: Sequence[Slo]) -> None:
    console = Console(stderr=True)
    if not console.is_terminal:
        # A file has room for all columns.
        console.width = max(console.width, _FILE_WIDTH)
    # A terminal that has gone ends nothing.
    with suppress(OSError):
        console.print(table_of(summaries_of(cells, slos), slos))


def _nothing_in(cells: Sequence[Cell]) -> str | None:
    """Return why the cells measured nothing; ``None``: a call was answered."""
    if any(cell.answered for cell in cells):
        return None
    if any(cell.scheduled for cell in cells):
        return "no call was answered in any measurement"
    return "no call was scheduled in any measurement; a longer --for or a higher --rate has calls"


async def _work(
    server: ServerOptions, workload: Workload, question: Question, outputs: Outputs, done: _Measured
) -> None:
    arguments, times, budget_s = dict(server.arguments), question.times, question.budget_s
    await _test_self(question.settings)
    with _told_of_waiting():
        done.session = session = await begin(
            arguments.pop("base_url")[0],
            workload,
            times,
            question.slos,
            seed=workload.seed,
            burstiness=question.burstiness,
            budget_s=budget_s,
            **arguments,
        )
    session.on_window = outputs.note
    planned = len(question.settings) * question.repeat
    complain(f"{session.server or 'an unknown server'}, model {session.target.model}")
    if not session.target.fields and workload.call != "embed":
        complain("the server takes no ignore_eos: answers may end before --output-tokens")
    if question.left_out:
        complain(question.left_out)
    if planned:
        seconds = planned * (times.warm_up_s + times.window_s)
        within = "" if budget_s is None or budget_s > seconds else f", within {budget_s:,.0f} s"
        complain(f"{measurements(planned)}, {seconds:,.0f} s at least{within}")

    def note(cell: Cell) -> None:
        done.cells.append(cell)
        of = f"/{planned}" if planned else ""
        so_far = "" if question.find is None else _so_far(done.cells, question.slos)
        complain(f"[{len(done.cells)}{of}] {_line(cell)}{so_far}")

    if question.find is not None:
        most = None if question.find == "rate" else _most_limit()
        result = await find_in(session, question.find, most=most, budget_s=budget_s, on_cell=note)
        done.recommendation, done.complete = result.recommended, result.complete
        done.lines = lines_of_search(result, question.slos, question.find)
        value = None if result.recommended is None or result.found is None else result.found.value
        kept = [cell for cell in result.cells if _value(cell) == value]
        best = next(iter(summaries_of(kept, question.slos)), None)
    else:
        async for cell in cells(session, question.settings, repeat=question.repeat, budget_s=budget_s):
            note(cell)
        done.complete = len(done.cells) == planned
        done.lines = lines_of_sweep(done.cells, question.slos)
        if not done.complete:
            ended = f"the budget ended the sweep after {len(done.cells)} of {measurements(planned)}"
            done.lines.insert(0, f"incomplete: {ended}")
        ours = [each for each in summaries_of(done.cells, question.slos) if each.setting.strategy != RIVAL]
        best = best_of(ours, question.slos)
    if best is not None and (price := outputs.price_of(best.tokens_per_s.value)) is not None:
        done.lines.append(price)


@contextmanager
def _told_of_waiting() -> Iterator[None]:
    """Say that the first call has no answer yet: a silent server would leave the terminal empty."""
    loop = asyncio.get_running_loop()
    told = loop.call_later(_FIRST_CALL_S, complain, "the first call has no answer yet")
    try:
        yield
    finally:
        told.cancel()


def _most_limit() -> float:
    """Return the greatest limit of a search: each call in flight may need a connection."""
    most = within_descriptors(_MOST_LIMIT, 1, warn_below=0)
    if most < _MOST_LIMIT:
        complain(f"limits up to {most} are tried: more calls in flight need more open files (`ulimit -n`)")
    return float(most)


def _value(cell: Cell) -> float:
    return cell.setting.rate if cell.setting.rate is not None else float(cell.setting.concurrency or 0)


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
        complain(f"this machine makes {fastest:g} calls/s {shown_s(slow)} late (p99), without a client")
