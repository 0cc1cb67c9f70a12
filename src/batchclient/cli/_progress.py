"""How a map is getting on, on stderr: a bar on a terminal, elsewhere a line a minute.

Rules:
- The job's own tick draws the bar: a thread of rich's would compete with the event loop.
- Bar and line have the same words. Rates are those of the last half minute, or of the last minute,
  and sink where nothing comes; rich's own speed keeps the last one.
- Rates and the time left are of the rows that this run sends. Reused rows are told apart.
- A part that is zero or unknown is left out. On a narrow terminal further parts are.
- Nothing here ends a job.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from batchclient.cli._cost import written_cost
from batchclient.cli._log import passed_through
from batchclient.cli._words import say

__all__ = ["JobProgress", "Meter", "Snapshot", "written_time"]

_Total = Callable[[], int | None]
_LINE_S = 60.0
_BAR_S = 30.0
_BAR_WIDTH = 12
_WIDE = 120
"""Columns of a terminal with room for the bar beside the words."""
_THOUSANDS = 10_000
"""From here on a rate is told in thousands."""
_FIRST_TO_GO = ("tokens", "in flight", "reused", "cost")
"""Parts that are left out, in this order, where the line is too long."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A job, now.

    Args:
        done: rows written, failed and reused rows included.
        failed: rows that failed.
        in_flight: sequences on which the servers work.
        limit: sequences that may be in flight, of all servers together.
        prompt_tokens, completion_tokens: as the servers counted them, so far.
        reused: rows written that were taken from a journal.
        cost: so far; ``None`` without a price.
        bad: the bad answers, in words.
        spread: the bounds of the time that is left, relative to what the rate says; empty: unknown.
        manner: whether the job is a guest, and keeps its time, in words.
    """

    done: int
    failed: int
    in_flight: int
    limit: int
    prompt_tokens: int
    completion_tokens: int
    reused: int = 0
    cost: float | None = None
    bad: str = ""
    spread: tuple[float, ...] = (1.0,)
    manner: str = ""


class Meter:
    """Rates over a window of time.

    Args:
        window_s: its length.
        clock: seconds.
    """

    def __init__(self, window_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._window_s = window_s
        self._clock = clock
        self._seen: deque[tuple[float, Snapshot]] = deque([(clock(), Snapshot(0, 0, 0, 0, 0, 0))])

    def describe(self, now: Snapshot, total: int | None, width: int | None = None, about: str = "") -> str:
        """Take in a snapshot and describe it in a line.

        Args:
            now: the snapshot.
            total: rows expected, if known.
            width: columns of the terminal, if there is one.
            about: the sign before a total that is an estimate.
        """
        at = self._clock()
        self._seen.append((at, now))
        # The oldest one kept is at least a window old: a rate is never over less than the window.
        while len(self._seen) > 1 and at - self._seen[1][0] >= self._window_s:
            self._seen.popleft()
        began_at, before = self._seen[0]
        seconds = max(at - began_at, 1e-3)
        # Reused rows may wait for rows before them, and are not written yet.
        rows_per_s = max(now.done - now.reused - before.done + before.reused, 0) / seconds
        tokens_in_per_s = (now.prompt_tokens - before.prompt_tokens) / seconds
        tokens_out_per_s = (now.completion_tokens - before.completion_tokens) / seconds
        left = _left(now.done, total, rows_per_s, now.spread)
        tokens = [
            f"{_number(rate)} {where}" for rate, where in ((tokens_in_per_s, "in"), (tokens_out_per_s, "out")) if rate
        ]
        parts: dict[str, object] = {
            "done": _share(now.done, total, about),
            "rate": f"{_number(rows_per_s)} {'new ' if now.reused else ''}rows/s",
            "left": left and f"ETA {left}",
            "manner": now.manner,
            "tokens": tokens and f"tokens/s {' '.join(tokens)}",
            "cost": now.cost and f"cost {written_cost(now.cost)}",
            "failed": now.failed and f"{now.failed:,} failed",
            "bad": now.bad,
            "reused": now.reused and f"{now.reused:,} reused",
            "in flight": now.limit and f"{now.in_flight:,}/{now.limit:,} in flight",
        }
        told = {name: str(part) for name, part in parts.items() if part}
        for name in _FIRST_TO_GO:
            if width is not None and len(" · ".join(told.values())) > width:
                told.pop(name, None)
        return " · ".join(told.values())


def _number(value: float) -> str:
    if value >= _THOUSANDS:
        return f"{value / 1000:,.0f}k"
    return f"{value:,.0f}" if value >= 10 or value == 0 else f"{value:.2g}"


def _share(done: int, total: int | None, about: str) -> str:
    return f"{done:,}/? rows" if total is None else f"{done / max(total, 1):.0%} {done:,}/{about}{total:,} rows"


def _left(done: int, total: int | None, rows_per_s: float, spread: tuple[float, ...]) -> str:
    if total is None or not rows_per_s:
        return ""
    seconds = max(total - done, 0) / rows_per_s
    return " to ".join(dict.fromkeys(written_time(seconds * each) for each in spread))


def written_time(seconds: float) -> str:
    """Write hours, minutes and seconds."""
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


class JobProgress:
    """The line of a job.

    Args:
        shown: whether there is a line at all.
        draws: whether a terminal has it as a bar, redrawn with each update.
        total: tells the rows expected, once they are known.
        about: tells the sign before them: of an estimate.
        every_s: seconds from line to line, elsewhere.
    """

    def __init__(
        self, *, shown: bool, draws: bool, total: _Total, about: Callable[[], str] = str, every_s: float = _LINE_S
    ) -> None:
        self._shown = shown
        self._draws = shown and draws
        self._total, self._about = total, about
        self._every_s = every_s
        self._meter = Meter(_BAR_S if draws else every_s)
        self._due = time.monotonic() + every_s
        self._bar: Progress | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """Draw the bar meanwhile. What is said stands above it; in the end the cursor is back."""
        if not self._draws:
            yield
            return
        console = Console(stderr=True)
        columns = [TextColumn("{task.description}", markup=False)]
        if console.width >= _WIDE:
            columns.insert(0, BarColumn(_BAR_WIDTH))  # type: ignore[arg-type]
        self._bar = Progress(*columns, console=console, auto_refresh=False, transient=True)
        self._bar.add_task("", total=self._total())
        try:
            with suppress(OSError):  # the terminal has gone
                self._bar.start()
            with passed_through(self._above):
                yield
        finally:
            with suppress(OSError):
                self._bar.stop()
            self._bar = None

    def update(self, snapshot: Snapshot) -> None:
        """Draw the line again; without a bar, write it once a minute has passed."""
        if self._bar is not None:
            total, width = self._total(), self._bar.console.width
            width -= _BAR_WIDTH + 1 if width >= _WIDE else 0
            text = self._meter.describe(snapshot, total, width, self._about())
            with suppress(OSError):
                self._bar.update(self._bar.task_ids[0], completed=snapshot.done, total=total, description=text)
                self._bar.refresh()
        elif self._shown and time.monotonic() >= self._due:
            # Not from the time before: after a long stop one line is due.
            self._due = time.monotonic() + self._every_s
            total = self._total()
            facts: dict[str, object] = {
                "done": snapshot.done,
                "total": total,
                "failed": snapshot.failed,
                "reused": snapshot.reused,
            }
            facts |= {"in_flight": snapshot.in_flight, "limit": snapshot.limit}
            facts |= {"manner": snapshot.manner} if snapshot.manner else {}
            say(self._meter.describe(snapshot, total, about=self._about()), event="progress", **facts)

    def _above(self, *lines: str) -> None:
        assert self._bar is not None
        with suppress(OSError):
            self._bar.console.print("\n".join(lines), markup=False, emoji=False, highlight=False, soft_wrap=True)
