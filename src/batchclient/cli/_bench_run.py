"""A measurement of the command line: its run, its lines, its reports, its end.

Rules:
- A place that cannot be written is refused before a call is sent; so is a file that another option
  names, too.
- A report that fails at the end costs the measurement nothing: the other one is written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from batchclient import AuthenticationFailed, BatchClientError, ConfigError, ConnectFailed
from batchclient.bench import BenchFailed, Measurement, Recommendation, Setting, Slo, Times, Workload
from batchclient.bench.answer import count_of, lines_of_search, lines_of_sweep
from batchclient.bench.find import find_in
from batchclient.bench.html import write_page
from batchclient.bench.report import report_of, write_report
from batchclient.bench.session import Run, Session, begin
from batchclient.bench.slo import shown_s
from batchclient.bench.strategies import Target
from batchclient.bench.summary import Summary, percentile, summaries_of
from batchclient.bench.sweep import sweep_in
from batchclient.bench.words import UNKNOWN, number, share, unit_of
from batchclient.cli._refusal import Refusal, in_options
from batchclient.cli._signals import until_signal
from batchclient.cli._words import put, say
from batchclient.jobs.output import reason_of
from batchclient.jobs.statuses import Status, of_signal

__all__ = ["Outputs", "Question", "are_one_file", "measure", "table_of", "writing"]

_FIRST_CALL_S = 10.0
_FILE_WIDTH = 200
_KEY_HINT = "; no key was given: set BATCHCLIENT_API_KEY or give --api-key (OPENAI_API_KEY is not read)"


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked of the measurement.

    Args:
        settings: of a sweep; empty where something is searched.
        slos: the objectives.
        times: the parts of a measurement.
        find: what is searched; ``None``: a sweep.
        repeat: repetitions of a sweep.
        budget_s: no measurement is begun that would end later, seconds; ``None``: no bound.
        left_out: the lists that no load has room for, in words; empty: none.
    """

    settings: Sequence[Setting]
    slos: tuple[Slo, ...]
    times: Times
    find: Literal["limit", "rate"] | None = None
    repeat: int = 1
    budget_s: float | None = None
    left_out: str = ""


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where the reports go.

    Args:
        html, json: the files of ``--report`` and ``--json``.
        prompts: the file of ``--prompts``, which is no output.
    """

    html: str | None = None
    json: str | None = None
    prompts: str | None = None

    def check(self) -> None:
        """Refuse a place that cannot be written, before hours are spent.

        Raises:
            Refusal: names the option.
        """
        taken = {"--prompts": self.prompts}
        for option, path in (("--report", self.html), ("--json", self.json)):
            if path == "-":
                raise Refusal(f"{option} -: the name of a file; the standard output has the answer")
            for other, of_other in taken.items():
                if path is not None and of_other is not None and are_one_file(path, of_other):
                    raise Refusal(f"{option} {path}: the file of {other}; give another name")
            taken[option] = path
            if path is not None:
                file = Path(path)
                is_new = not file.exists()
                with writing(path):
                    file.open("a", encoding="utf-8").close()
                    # Stopped early, a measurement leaves no empty file, and a link as it was.
                    if is_new:
                        file.resolve().unlink()


def are_one_file(path: str, other: str) -> bool:
    """Whether two paths lead to one file, which need not be there; a device takes several outputs."""
    one, two = Path(path), Path(other)
    try:
        return one.samefile(two) and one.is_file()
    except OSError:
        return one.resolve() == two.resolve()


@contextmanager
def writing(path: str) -> Iterator[None]:
    """Refuse a file that cannot be written.

    Raises:
        Refusal: with the reason.
    """
    try:
        yield
    except OSError as error:
        raise Refusal(f"{path}: {reason_of(error)}") from None


@dataclass(slots=True)
class _Measured:
    """What a run has so far."""

    measurements: list[Measurement] = field(default_factory=list)
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
        Refusal: the first call failed, or nothing was answered.
        ConfigError: an argument is wrong.
    """
    started, done, failure, stopped = datetime.now(UTC), _Measured(), "", 0
    fault: Exception | None = None
    try:
        stopped = until_signal(_work(target, workload, question, done))
    except ConfigError:
        raise
    except BatchClientError as error:
        failure = in_options(str(error))
        if not isinstance(error, BenchFailed):
            failure = f"{type(error).__name__}: {failure}"
            if done.session is None:
                hint = _KEY_HINT if isinstance(error, AuthenticationFailed) and not has_key else ""
                status = Status.NO_SERVER if isinstance(error, ConnectFailed) else Status.FAILED
                raise Refusal(f"the first call failed: {failure}{hint}", status) from None
    except Exception as error:
        # A fault of the measurement itself: what is finished is written all the same.
        failure, fault = f"{type(error).__name__}, a fault of the measurement itself", error
    is_written = True
    if done.session is not None and done.measurements:
        is_written = _say_and_write(done.session, done, question, outputs, started, failure)
    elif stopped:
        say("stopped before the first measurement was done; nothing is written")
    if fault is not None:
        raise fault
    if not failure and not stopped and not any(each.answered for each in done.measurements):
        failure = "no call was scheduled in any measurement; a longer --for or a higher --rate has calls"
        if any(each.scheduled for each in done.measurements):
            failure = "no call was answered in any measurement"
    if failure:
        raise Refusal(failure, Status.FAILED)
    return of_signal(stopped) if stopped else Status.OK if is_written else Status.DISK_FULL


def _say_and_write(
    session: Session, done: _Measured, question: Question, outputs: Outputs, started: datetime, failure: str
) -> bool:
    """Say what was found, and write the reports; return whether these are written."""
    if not done.complete and not done.lines:
        done.lines = [f"incomplete: ended after {count_of(len(done.measurements))}{failure and f': {failure}'}"]
        done.lines += lines_of_sweep(done.measurements, question.slos) if question.find is None else []
    if question.find is None:
        console = Console(stderr=True)
        if not console.is_terminal:
            # A file has room for all columns.
            console.width = max(console.width, _FILE_WIDTH)
        # A terminal that has gone ends nothing.
        with suppress(OSError):
            console.print(table_of(summaries_of(done.measurements, question.slos), question.slos))
    report = report_of(
        session,
        done.measurements,
        started,
        recommendation=done.recommendation,
        lines=done.lines,
        complete=done.complete,
    )
    is_written = True
    for path, write in ((outputs.json, write_report), (outputs.html, write_page)):
        try:
            if path is not None:
                write(report, Path(path))
        except OSError as error:
            is_written = False
            say(f"{path}: {reason_of(error)}", event="error")
    # After the reports: a reader that has gone away ends the command here.
    put(*done.lines)
    return is_written


async def _work(target: Target, workload: Workload, question: Question, done: _Measured) -> None:
    times, budget_s, slos = question.times, question.budget_s, question.slos
    # A silent server would leave the terminal empty.
    reminder = asyncio.get_running_loop().call_later(_FIRST_CALL_S, say, "the first call has no answer yet")
    try:
        done.session = session = await begin(
            target.base_url,
            workload,
            times,
            slos,
            model=target.model,
            api_key=target.api_key,
            headers=target.headers,
            seed=workload.seed,
            budget_s=budget_s,
        )
    finally:
        reminder.cancel()
    planned = len(question.settings) * question.repeat
    say(f"{session.server or 'an unknown server'}, model {session.model}")
    if not session.target.fields and workload.call != "embed":
        say("the server does not heed ignore_eos: answers may end before --output-tokens")
    if question.left_out:
        say(question.left_out)
    if planned:
        seconds = planned * (times.warm_up_s + times.window_s)
        within = "" if budget_s is None or budget_s > seconds else f", within {budget_s:,.0f} s"
        say(f"{count_of(planned)}, {seconds:,.0f} s at least{within}")

    def note(measured: Measurement) -> None:
        done.measurements.append(measured)
        of = f"/{planned}" if planned else ""
        so_far = "" if question.find is None else _so_far(done.measurements, slos)
        say(f"[{len(done.measurements)}{of}] {_line(measured)}{so_far}", event="measured")

    run = Run(session, budget_s, note)
    if question.find is not None:
        result = await find_in(run, question.find)
        done.recommendation, done.complete = result.recommended, result.complete
        done.lines = lines_of_search(result, slos, question.find)
        return
    await sweep_in(run, question.settings, question.repeat)
    done.complete = not run.is_over
    done.lines = lines_of_sweep(done.measurements, slos)
    if run.is_over:
        ended = f"the budget ended the sweep after {len(done.measurements)} of {count_of(planned)}"
        done.lines.insert(0, f"incomplete: {ended}")


def _so_far(measurements: Sequence[Measurement], slos: Sequence[Slo]) -> str:
    """Return the number of a search's last window, and whether the objectives are kept."""
    windows = [each for each in measurements if each.setting == measurements[-1].setting]
    calls = sum(each.scheduled for each in windows)
    words = f"; window {len(windows)}"
    for place, slo in enumerate(slos if calls else ()):
        kept = sum(each.slo_hits[place] for each in windows) >= slo.share * calls
        words += f", {slo} {'kept' if kept else 'not kept'} so far"
    return words


def _line(measured: Measurement) -> str:
    failed = sum(measured.failed.values())
    silent = "no call was answered" if measured.scheduled or measured.setting.rate is None else "no call was scheduled"
    parts = [f"{measured.calls_per_s:,.3g} calls/s" if measured.answered else silent]
    if "latency" in measured.times:
        parts.append(f"p95 {shown_s(measured.times['latency'].percentiles[0.95])}")
    if failed:
        parts.append(f"{failed:,} failed ({', '.join(sorted(measured.failed))})")
    if measured.unanswered:
        parts.append(f"{measured.unanswered:,} not answered in time")
    return f"{measured.setting}: {', '.join([*parts, *measured.marks])}"


def table_of(summaries: Sequence[Summary], slos: Sequence[Slo]) -> Group:
    """Return a table of settings, a row each, and below it their marks.

    Args:
        summaries: of the settings.
        slos: the objectives.
    """
    marks = list(dict.fromkeys(mark for summary in summaries for mark in summary.marks))
    times = [[percentile(summary, "latency", of) for of in (0.5, 0.95)] for summary in summaries]
    unit = unit_of(each.value for both in times for each in both if each is not None)
    without = [sum(each.without_answer for each in summary.measurements) for summary in summaries]
    within = [f"within {str(slo).rpartition('p')[0]}{shown_s(slo.bound_s)}" for slo in slos]
    heads = ["calls/s", "tokens/s", f"p50 {unit.name}", f"p95 {unit.name}", *within]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("setting", overflow="fold")
    for head in heads + ["failed"] * any(without):
        table.add_column(Text(head), justify="right", overflow="fold")
    for summary, both, failed in zip(summaries, times, without, strict=True):
        own = ", ".join(str(place) for place, mark in enumerate(marks, 1) if mark in summary.marks)
        row = [f"{summary.setting} ({own})" if own else str(summary.setting)]
        row += [number(summary.calls_per_s.value), number(summary.tokens_per_s.value)]
        row += [unit.shown(each.value) if each else UNKNOWN for each in both]
        row += [share(each.value) for each in summary.slo_shares]
        table.add_row(*map(Text, row + [f"{failed:,}"] * any(without)))
    return Group(table, *(Text(f"({place}) {mark}") for place, mark in enumerate(marks, 1)))
