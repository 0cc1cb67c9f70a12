"""How a map is getting on, on stderr: a bar on a terminal, elsewhere a line a minute.

Rules:
- The job's own tick draws the bar: a thread of rich's would compete with the event loop.
- Bar and line have the same words. Rates are those of the last half minute, or of the last minute.
- Rates and the time left are of the rows that this run sends. Reused rows are told apart.
- A part that is zero or unknown is left out. On a narrow terminal further parts are.
- Nothing here ends a job.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from batchclient.cli._cost import written_cost
from batchclient.cli._words import printable, say

__all__ = ["Meter", "ProgressBar", "ProgressLines", "Snapshot"]

_EVERY_S = 60.0
_BAR_WINDOW_S = 30.0
_BAR_WIDTH = 12
_THOUSANDS = 10_000
"""From here on a rate is told in thousands."""
_FIRST_TO_GO = ("tokens", "in flight", "reused", "cost")
"""Parts that are left out, in this order, where the line is too long."""
_WIDE = 120
"""Columns of a terminal with room for the bar beside the words."""


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
    """

    done: int
    failed: int
    in_flight: int
    limit: int
    prompt_tokens: int
    completion_tokens: int
    reused: int = 0
    cost: float | None = None


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

    def describe(self, now: Snapshot, total: int | None, width: int | None = None) -> str:
        """Take in a snapshot and describe it in a line.

        Args:
            now: the snapshot.
            total: rows expected, if known.
            width: columns of the terminal, if there is one.
        """
        at = self._clock()
        self._seen.append((at, now))
        # The oldest one kept is at least a window old: a rate is never over less than the window.
        while len(self._seen) > 1 and at - self._seen[1][0] >= self._window_s:
            self._seen.popleft()
        began_at, before = self._seen[0]
        seconds = max(at - began_at, 1e-3)
        rows_per_s = (now.done - now.reused - before.done + before.reused) / seconds
        tokens_in_per_s = (now.prompt_tokens - before.prompt_tokens) / seconds
        tokens_out_per_s = (now.completion_tokens - before.completion_tokens) / seconds
        left = _left(now.done, total, rows_per_s)
        tokens = [
            f"{_number(rate)} {where}" for rate, where in ((tokens_in_per_s, "in"), (tokens_out_per_s, "out")) if rate
        ]
        parts: dict[str, object] = {
            "done": _share(now.done, total),
            "rate": f"{_number(rows_per_s)} {'new ' if now.reused else ''}rows/s",
            "left": left and f"ETA {left}",
            "tokens": tokens and f"tokens/s {' '.join(tokens)}",
            "cost": now.cost and f"cost {written_cost(now.cost)}",
            "failed": now.failed and f"{now.failed:,} failed",
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


def _share(done: int, total: int | None) -> str:
    return f"{done:,}/? rows" if total is None else f"{done / max(total, 1):.0%} {done:,}/{total:,} rows"


def _left(done: int, total: int | None, rows_per_s: float) -> str:
    if total is None or not rows_per_s:
        return ""
    minutes, seconds = divmod(round(max(total - done, 0) / rows_per_s), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{seconds:02}"


class ProgressLines:
    """A line on stderr every minute; none in the first one.

    Args:
        shown: whether there are lines at all.
        total: tells the rows expected, once they are known.
        every_s: seconds from line to line.
    """

    def __init__(self, *, shown: bool, total: Callable[[], int | None], every_s: float = _EVERY_S) -> None:
        self._shown = shown
        self._total = total
        self._every_s = every_s
        self._meter = Meter(every_s)
        self._due = time.monotonic() + every_s

    def update(self, snapshot: Snapshot) -> None:
        """Write the line, if a minute has passed."""
        if self._shown and time.monotonic() >= self._due:
            # Not from the time before: after a long stop one line is due.
            self._due = time.monotonic() + self._every_s
            total = self._total()
            facts = {"done": snapshot.done, "total": total, "failed": snapshot.failed, "reused": snapshot.reused}
            facts |= {"in_flight": snapshot.in_flight, "limit": snapshot.limit}
            say(self._meter.describe(snapshot, total), event="progress", **facts)

    def say(self, *lines: str) -> None:
        """Write lines of their own."""
        say(*lines)

    def close(self) -> None:
        """Do nothing: there is nothing to remove."""


class ProgressBar:
    """A line on a terminal, drawn again and again.

    Args:
        total: tells the rows expected, once they are known.
    """

    def __init__(self, *, total: Callable[[], int | None]) -> None:
        self._total = total
        self._meter = Meter(_BAR_WINDOW_S)
        console = Console(stderr=True)
        bar = [BarColumn(_BAR_WIDTH)] if console.width >= _WIDE else []
        self._taken = _BAR_WIDTH + 1 if bar else 0
        """Columns of the bar."""
        self._progress: Progress | None = Progress(
            *bar,
            TextColumn("{task.description}", markup=False),
            console=console,
            auto_refresh=False,
            transient=True,
        )
        self._task = self._progress.add_task("", total=total())
        self._progress.start()

    def update(self, snapshot: Snapshot) -> None:
        """Draw the line again."""
        if self._progress is not None:
            total = self._total()
            text = self._meter.describe(snapshot, total, self._progress.console.width - self._taken)
            try:
                self._progress.update(self._task, completed=snapshot.done, total=total, description=text)
                self._progress.refresh()
            except OSError:  # the terminal has gone
                self._progress = None

    def say(self, *lines: str) -> None:
        """Write lines above the bar."""
        if self._progress is None:
            say(*lines)
            return
        text = "\n".join(map(printable, lines))
        try:
            self._progress.console.print(text, markup=False, emoji=False, highlight=False, soft_wrap=True)
        except OSError:  # the terminal has gone
            self._progress = None

    def close(self) -> None:
        """Remove the line and give the terminal its cursor back. Safe to call twice."""
        if self._progress is not None:
            progress, self._progress = self._progress, None
            try:
                progress.stop()
            except OSError:  # the terminal has gone
                return
