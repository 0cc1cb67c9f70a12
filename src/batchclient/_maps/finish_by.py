"""``finish_by_s``: a map is a guest of its servers while that keeps the map's time, else as usual.

Rules:
- Once a minute a pilot's forecast is made anew, of the last minute, or of the last 200 rows where
  those took longer. A map stays a guest while the upper bound of its end, at its pace as a guest,
  keeps the time.
- Else it is as usual in as many minutes as the bound asks for, all over its time: it is a guest in
  the others, in which the part of the work that is left, by the bound, is no more than the part of
  the time, and the map as usual would end with a quarter of the rest to spare.
- Until two rows are answered a map stays a guest, for half of its time at most. A map that has less
  than five minutes is no guest: the first forecast would come too late for it.
- Rows that are equal to others take no time, and those to come are as those of late. Of a journal's
  rows nothing is learnt.
- ``Pace`` decides, and knows no clock. ``FinishBy`` looks, and turns the client.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from batchclient._common.log import log
from batchclient._maps.forecast import Interval, Look, seconds, total

if TYPE_CHECKING:
    from batchclient._maps.progress import Counts
    from batchclient._maps.row import Row
    from batchclient._shell.backend import Cancellable
    from batchclient._shell.runner import Runner

__all__ = ["FinishBy", "Pace"]

_PERIOD_S = 60.0
_LOOKS = 60
"""In a period."""
_NEAR = 5
"""A map with a time of fewer periods is no guest."""
_ENOUGH, _MOST = 200, 2000
"""Rows that are a sample, and at most."""
_AIM = 31 / 32
"""The part of its time in which a map is to end: the last rows take longer, and others may come."""
_AT_EASE = 0.98
"""A map as usual becomes a guest once it needs no more than this part of what keeps the time."""
_SPARE = 0.75
"""A guest who is too slow would end, as usual, within this part of the time left."""


class _Seen:
    """What was seen of a map in one manner."""

    def __init__(self) -> None:
        self.looks: deque[Look] = deque()
        self.rows: deque[tuple[float, float, float]] = deque()
        """When each was answered, the size of its prompt, and the tokens of its answer."""

    def forget(self, before: float) -> None:
        """Forget what was before, but for the last rows."""
        if self.rows:
            before = min(before, self.rows[max(len(self.rows) - _ENOUGH, 0)][0])
        while len(self.looks) > 1 and self.looks[1].at <= before:
            self.looks.popleft()
        while self.rows and self.rows[0][0] < self.looks[0].at:
            self.rows.popleft()

    def left_s(self, limit: int, others: int, mean_size: float) -> Interval | None:
        """Forecast the seconds for other rows, whose prompts have this mean size; 0: as these."""
        count, rows = len(self.rows), self._sample
        if count < 2:
            return None
        # Rows that were begun meanwhile are half done, as a mean.
        begun = min((self.looks[-1].in_flight - self.looks[0].in_flight) / 2, count)
        told = seconds(self.looks, limit, rows, others, mean_size or _mean_size(rows), count + begun)
        return told if told.high else None

    def left_work(self, others: int, mean_size: float) -> float:
        """Return the upper bound of other rows' tokens."""
        rows = self._sample
        return total(rows, others, mean_size or _mean_size(rows)).high

    @property
    def _sample(self) -> list[tuple[float, float]]:
        return [row[1:] for row in self.rows][:: len(self.rows) // _MOST + 1]


def _mean_size(rows: Sequence[tuple[float, float]]) -> float:
    return sum(size for size, _ in rows) / len(rows)


class Pace:
    """Decides how a map goes on.

    Args:
        by_s: when it has to end, on the clock of the looks; it begins at 0.
        period_s: from forecast to forecast.

    Attributes:
        is_guest: whether it is a guest now.
        may_be_guest: whether the servers have guests, and there is time for one.
        ends: the 90 % interval of its end in the present manner; ``None`` while this is not known.
        is_kept: whether the bound of its end keeps the time, in one manner or the other.
    """

    def __init__(self, by_s: float, period_s: float = _PERIOD_S) -> None:
        self.by_s = by_s
        self.is_guest: bool = by_s > 0
        self.may_be_guest: bool = True
        self.ends: Interval | None = None
        self.is_kept: bool = False
        self._period_s = period_s
        self._done = 0.0
        """Tokens so far."""
        self._seen = {True: _Seen(), False: _Seen()}

    def look(self, look: Look) -> None:
        """Take in what the client has in flight."""
        self._seen[self.is_guest].looks.append(look)

    def add(self, at: float, size: float, tokens: float) -> None:
        """Take in a row that has its answer, and the size of its prompt."""
        self._seen[self.is_guest].rows.append((at, size, tokens))
        self._done += tokens

    def decide(self, now: float, limit: int, left: int, mean_size: float = 0.0) -> None:
        """Decide how the map goes on, and forecast its end.

        Args:
            now: the time, that of the last look.
            limit: sequences that may be in flight.
            left: rows without an answer.
            mean_size: of their prompts; 0: as those of late.
        """
        present, left = self._seen[self.is_guest], max(left, 1)
        present.forget(now - self._period_s)
        as_guest, as_usual = (self._seen[manner].left_s(limit, left, mean_size) for manner in (True, False))
        by_s = _AIM * self.by_s
        left_s = by_s - now
        at_ease = 1.0 if self.is_guest else _AT_EASE
        told = as_guest if self.is_guest else as_usual
        self.ends = told and Interval(now + told.low, now + told.high)
        self.is_kept = any(each is not None and now + each.high <= self.by_s for each in (as_guest, as_usual))
        if as_guest is None:
            is_guest = self.is_guest and now <= self.by_s / 2
        else:
            is_guest = as_guest.high <= at_ease * left_s
            if not is_guest and as_usual is not None and as_usual.high <= _SPARE * left_s and len(present.rows) > 1:
                work = present.left_work(left, mean_size)
                is_guest = work / (self._done + work) <= at_ease * left_s / by_s
        self.turn(is_guest=is_guest and self.may_be_guest)

    def turn(self, *, is_guest: bool) -> None:
        """Go on in this manner, of which what was seen before tells nothing any more."""
        if is_guest is not self.is_guest:
            seen, self._seen[is_guest] = self._seen[self.is_guest], _Seen()
            self.is_guest, self.ends = is_guest, None
            self.look(seen.looks[-1])

    @property
    def late_s(self) -> float:
        """How late the map will be, once it is known that it will be late; else 0, seconds."""
        if self.is_guest or self.ends is None or self.ends.low <= self.by_s:
            return 0.0
        return (self.ends.low + self.ends.high) / 2 - self.by_s


class FinishBy:
    """Keeps the time of a map: looks at its client, and turns it.

    Args:
        left_s: tells, when the map begins, the seconds in which it has to end.
        rows: of the map.
        size: bytes of all their prompts; 0: not known.
        period_s: from forecast to forecast.

    Attributes:
        owner: a weak reference to the map.
        pace: the decision of now; ``None`` before the map begins.
        pilot: the looks of a pilot, by the client's clock, and its rows.
    """

    owner: Callable[[], Any]

    def __init__(self, left_s: Callable[[], float], rows: int, size: int = 0, *, period_s: float = _PERIOD_S) -> None:
        self._left_s = left_s
        self._rows = rows
        self._size = size
        self._period_s = period_s
        self.pace: Pace | None = None
        self.pilot: tuple[Sequence[Look], Sequence[tuple[float, float]]] = ((), ())
        self._sizes: dict[int, int] = {}
        """Of the prompts of open rows."""
        self._runner: Runner | None = None
        self._timer: Cancellable | None = None
        self._began_at = self._due_at = 0.0
        self._was_guest: bool | None = None
        self._is_late = False

    def of_pilot(self, rows: int) -> FinishBy:
        """Return what makes a pilot of so many rows a guest, unless the time is near."""
        is_near = self._left_s() < _NEAR * self._period_s
        return FinishBy(lambda: 0.0 if is_near else math.inf, rows, period_s=self._period_s)

    def begin(self, row: Row) -> None:
        """Take in a row that is to be sent."""
        assert row.request is not None, "the row was prepared"
        self._sizes[row.index] = sum(len(each.prompt) for each in (row.request, *row.others))

    def end(self, index: int, row: Row, *, reused: bool) -> None:
        """Take in a row that can be taken.

        A journal's rows come before the others, which take as long as if there were none. Rows that
        are equal to this map's own come among them, and take no time.
        """
        size, runner = self._sizes.pop(index, 0), self._runner
        self._size = max(self._size - size, 0)
        is_of_journal = reused and row.index == index
        if self.pace is not None and runner is not None and not is_of_journal:
            answer = None if reused else row.answer
            self.pace.add(runner.backend.now() - self._began_at, size, getattr(answer, "output_tokens", None) or 0)

    def start(self, runner: Runner) -> None:
        """Begin to look."""
        self._runner, self._began_at = runner, runner.backend.now()
        self.pace = pace = Pace(self._left_s(), self._period_s)
        if pace.by_s < _NEAR * self._period_s:
            pace.is_guest = pace.may_be_guest = False
        looks, rows = self.pilot
        for look in looks:
            pace.look(look._replace(at=look.at - self._began_at))
        for row in rows:
            # As old as what tells of it.
            pace.add(looks[0].at - self._began_at, *row)
        self._look(pace, runner)
        if rows:
            self._decide(pace, runner)
        self._due_at = self._began_at + self._period_s
        self._go_on(pace, runner)

    def stop(self) -> None:
        """The map is over: the client is as before. If it has ended too late, that is said."""
        if self._timer is not None and self._runner is not None:
            self._timer.cancel()
            self._runner.wish(self, None)
            assert self.pace is not None, "it was started"
            late_s = self._runner.backend.now() - self._began_at - self.pace.by_s
            if late_s >= 1 and self.pace.by_s > 0 and (owner := self.owner()) is not None and owner.all_ended:
                log("map_late", "the map has ended %.0f s later than asked for", late_s, late_s=round(late_s))
        self._timer = self._runner = None

    def _tick(self) -> None:
        runner, pace = self._runner, self.pace
        if runner is None or pace is None:
            return
        if runner.ended or self.owner() is None:
            self.stop()
            return
        self._look(pace, runner)
        if runner.backend.now() >= self._due_at:
            self._due_at += self._period_s
            self._decide(pace, runner)
        self._go_on(pace, runner)

    def _look(self, pace: Pace, runner: Runner) -> None:
        now = runner.core.statistics()
        pace.look(Look(runner.backend.now() - self._began_at, now.in_flight, now.queued))

    def _decide(self, pace: Pace, runner: Runner) -> None:
        counts: Counts = self.owner().counts
        left = max(self._rows - counts.answered - counts.failed - counts.reused, 1)
        pace.decide(runner.backend.now() - self._began_at, runner.core.total_limit, left, self._size / left)
        if pace.late_s and not self._is_late and pace.by_s > 0:
            self._is_late = True
            log("map_late", "the map will end %.0f s later than asked for", pace.late_s, late_s=round(pace.late_s))

    def _go_on(self, pace: Pace, runner: Runner) -> None:
        """Turn the client, if the map goes on in another manner."""
        if pace.is_guest is not self._was_guest:
            if self._was_guest is not None:
                manner = "as a guest" if pace.is_guest else "as usual"
                log("manner_changed", "the map goes on %s", manner, guest=pace.is_guest)
            self._was_guest = pace.is_guest
            runner.wish(self, pace.is_guest)
        if pace.is_guest and runner.no_guest:
            log("no_guest", "the map goes as usual: %s", runner.no_guest, reason=runner.no_guest)
            pace.may_be_guest = self._was_guest = False
            pace.turn(is_guest=False)
            runner.wish(self, False)
        at = min(runner.backend.now() + self._period_s / _LOOKS, self._due_at)
        self._timer = runner.backend.call_at(at, self._tick)
