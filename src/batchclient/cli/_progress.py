"""The progress bar of a map: on stderr, and only on a terminal.

The job's own tick draws the bar: a thread of rich's would compete with the event loop.
"""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
from rich.text import Text

__all__ = ["ProgressBar"]


class _Rate(ProgressColumn):
    """Rows per second, over the last 30 seconds."""

    def render(self, task: Any) -> Text:
        """Show the rate."""
        speed = task.finished_speed or task.speed
        return Text("– rows/s" if speed is None else f"{speed:,.0f} rows/s")


class ProgressBar:
    """A line with rows done, rate, time left, calls in flight and failures.

    Args:
        shown: whether there is a bar at all.
        total: rows expected, if known.
    """

    def __init__(self, *, shown: bool, total: int | None) -> None:
        self._progress: Progress | None = None
        if not shown:
            return
        self._progress = Progress(
            BarColumn(),
            TaskProgressColumn(show_speed=False),
            TextColumn("{task.completed:,.0f}/{task.fields[of]}"),
            _Rate(),
            TextColumn("ETA"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[in_flight]} in flight"),
            TextColumn("{task.fields[failed]:,} failed"),
            console=Console(stderr=True),
            auto_refresh=False,
            transient=True,
        )
        of = "?" if total is None else f"{total:,}"
        self._task = self._progress.add_task("", total=total, of=of, in_flight=0, failed=0)
        self._progress.start()

    def update(self, *, done: int, in_flight: int, failed: int) -> None:
        """Draw the line again."""
        if self._progress is not None:
            self._progress.update(self._task, completed=done, in_flight=in_flight, failed=failed)
            self._progress.refresh()

    def close(self) -> None:
        """Remove the line and give the terminal its cursor back. Safe to call twice."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
