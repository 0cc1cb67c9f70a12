"""What ``batchclient top`` draws of a page ``/statistics``.

Rules:
- A number is the page's own. A rate is the difference of two pages by the time between them.
- Where columns are few, the server's name and version, and its batch size, are left out.
- A text of the page cannot steer the terminal.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from batchclient.cli._words import printable

__all__ = ["Page", "frame_of"]

_WIDE = 70
"""Columns from which on a table has all its columns."""
_THOUSANDS = 10_000
_MOST_ERRORS = 5


@dataclass(frozen=True, slots=True)
class Page:
    """A page ``/statistics``.

    Args:
        content: the page.
        at: when the page was read, on any clock of the reader that never goes back, seconds.

    Raises:
        KeyError, TypeError, AttributeError: something in the page has another form, when drawn.
    """

    content: Mapping[str, Any]
    at: float

    @property
    def statistics(self) -> Mapping[str, Any]:
        """The client's."""
        found: Mapping[str, Any] = self.content["statistics"]
        return found

    @property
    def taken_at(self) -> float:
        """When the numbers were taken, on the same clock."""
        return self.at - float(self.content["snapshot_age_seconds"])


def frame_of(page: Page, before: Page | None, name: str, width: int) -> RenderableType:
    """Draw a page.

    Args:
        page: the page.
        before: an earlier page, for rates; without one there are none.
        name: of the place that the page comes from.
        width: columns.
    """
    now = page.statistics
    parts: list[RenderableType] = [_heading(page, name, width), _calls(page, before, width)]
    if page.content["job"] is not None:
        parts.append(_job(page.content["job"], width))
    if page.content["worker"] is not None:
        parts.append(_worker(page.content["worker"], width))
    parts += [Text(), _servers(now["endpoints"], width), Text(), _classes(page), Text(), _batches(page, before, width)]
    if now["errors"]:
        parts.append(_errors(now["errors"], width))
    return Group(*parts)


def _heading(page: Page, name: str, width: int) -> Text:
    client = page.content["client"]
    named = "" if client is None else f" {client}"
    age_s, lag_s = page.content["snapshot_age_seconds"], page.content["event_loop_lag_seconds"]
    return _joined([f"{name}{named}", f"{age_s:.1f} s old", f"loop lag {lag_s:.2f} s"], width)


def _calls(page: Page, before: Page | None, width: int) -> Text:
    now = page.statistics
    limit = sum(each["limit"] for each in now["endpoints"])
    parts = [f"{now['in_flight']:,}/{limit:,} in flight", f"{now['queued']:,} queued"]
    parts += [f"{now[name]:,} {said}" for name, said in (("waiting", "waiting"), ("backing_off", "backing off"))]
    parts += [f"{now[name]:,} {name}" for name in ("succeeded", "failed", "cancelled", "retries")]
    parts += [f"{count:,} {kind}" for kind, count in now["health"].items() if count and kind != "ok"]
    rates = [
        (_rate(page, before, "succeeded"), "calls/s"),
        (_rate(page, before, "prompt_tokens"), "tokens/s in"),
        (_rate(page, before, "completion_tokens"), "tokens/s out"),
    ]
    parts += [f"{_number(rate)} {said}" for rate, said in rates if rate is not None]
    return _joined(parts, width)


def _job(job: Mapping[str, Any], width: int) -> Text:
    done = job["answered"] + job["failed"] + job["reused"]
    whole = "?" if job["expected"] is None else f"{job['expected']:,}"
    parts = [f"job {done:,}/{whole} rows", f"{job['failed']:,} failed", f"{job['reused']:,} reused"]
    return _joined(parts, width)


def _worker(worker: Mapping[str, Any], width: int) -> Text:
    lag = "?" if worker["lag"] is None else f"{worker['lag']:,}"
    parts = [f"worker {lag} messages wait", f"{worker['pending']:,} held"]
    return _joined(parts + [f"{count:,} {outcome}" for outcome, count in worker["messages"].items()], width)


def _servers(endpoints: Sequence[Mapping[str, Any]], width: int) -> Table:
    is_wide = width >= _WIDE
    table = _table()
    table.add_column("server", no_wrap=True, overflow="ellipsis", ratio=1)
    table.add_column("in flight", justify="right", no_wrap=True)
    table.add_column("state", no_wrap=True)
    if is_wide:
        table.add_column("batch", justify="right", no_wrap=True)
        table.add_column("is", no_wrap=True, overflow="ellipsis")
    for each in endpoints:
        url = printable(each["base_url"]).partition("://")
        cells = [url[2] or url[0], f"{each['in_flight']:,}/{each['limit']:,}", _state(each)]
        if is_wide:
            cells += [f"{each['batch_size_cap']:,}", "" if each["server"] is None else printable(each["server"])]
        table.add_row(*map(Text, cells))
    return table


def _state(endpoint: Mapping[str, Any]) -> str:
    return "silent" if endpoint["silent_since"] is not None else printable(endpoint["state"])


def _classes(page: Page) -> Table:
    table = _table()
    table.add_column("priority", justify="right", ratio=1, no_wrap=True)
    for name in ("queued", "oldest", "in flight"):
        table.add_column(name, justify="right", ratio=1, no_wrap=True)
    clock_s = page.content["clock_seconds"]
    for priority, lane in page.statistics["priorities"].items():
        since = lane["oldest_since"]
        oldest = "" if since is None or clock_s is None else f"{max(0.0, clock_s - since):.1f} s"
        table.add_row(printable(priority), f"{lane['queued']:,}", oldest, f"{lane['in_flight']:,}")
    return table


def _batches(page: Page, before: Page | None, width: int) -> Text:
    """How many requests had how many prompts, since the last page or since the beginning."""
    counts = _sizes(page)
    if before is not None:
        earlier = _sizes(before)
        lately = {size: count - earlier.get(size, 0) for size, count in counts.items()}
        # A client in a new event loop counts anew.
        counts = lately if any(lately.values()) and min(lately.values()) >= 0 else counts
    shown = [f"{size}: {count:,}" for size, count in counts.items() if count]
    return _joined(["requests by prompts", *(shown or ["none"])], width)


def _sizes(page: Page) -> dict[str, int]:
    """Return the number of requests by class of size, of all servers."""
    sizes: dict[str, int] = {}
    for each in page.statistics["histograms"]["batch_size"]:
        lower = 0
        for bound, count in zip([*each["bounds"], None], each["counts"], strict=True):
            name = f">{lower}" if bound is None else str(bound) if bound <= lower + 1 else f"{lower + 1}-{bound}"
            sizes[name] = sizes.get(name, 0) + count
            lower = lower if bound is None else bound
    return sizes


def _errors(errors: Mapping[str, int], width: int) -> Text:
    most = sorted(errors.items(), key=lambda each: -each[1])[:_MOST_ERRORS]
    return _joined(["errors", *(f"{name}: {count:,}" for name, count in most)], width)


def _rate(page: Page, before: Page | None, name: str) -> float | None:
    if before is None:
        return None
    seconds, more = page.taken_at - before.taken_at, page.statistics[name] - before.statistics[name]
    return float(more) / seconds if seconds > 0 and more >= 0 else None


def _number(value: float) -> str:
    return f"{value / 1000:,.0f}k" if value >= _THOUSANDS else f"{value:,.0f}"


def _joined(parts: Sequence[str], width: int) -> Text:
    """Parts with dots between, in lines that are broken between parts alone."""
    lines = [printable(parts[0])]
    for part in map(printable, parts[1:]):
        longer = f"{lines[-1]} · {part}"
        if len(longer) <= width:
            lines[-1] = longer
        else:
            lines.append(part)
    return Text("\n".join(lines))


def _table() -> Table:
    return Table(box=None, expand=True, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
