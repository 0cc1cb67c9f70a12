"""``map --finish-by 06:00``: the time of day by which a job has to end.

Rules:
- It is the next such time of the local zone when the job first began. The journal keeps it.
- A time that the clocks leave out in spring is the moment at which they leave it out. Of one that
  comes twice in autumn the next one counts.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

from batchclient._maps.finish_by import Pace
from batchclient.cli._progress import written_time
from batchclient.cli._refusal import Refusal

__all__ = ["manner_in_words", "next_time", "time_from"]

_DAY = 24 * 60
_FORM = re.compile(r"([01]?[0-9]|2[0-3]):([0-5][0-9])")


def time_from(text: str | None) -> str | None:
    """Read a time of day.

    Raises:
        Refusal: it is none.
    """
    if text is None or (found := _FORM.fullmatch(text)) is None:
        if text is not None:
            raise Refusal(f"--finish-by: a time of day such as 06:00, not {text!r:.40}")
        return None
    return f"{int(found[1]):02}:{found[2]}"


def next_time(text: str, now: float, local: Callable[[float], Any] = time.localtime) -> float:
    """Return when a time of day comes next, seconds since 1970.

    Args:
        text: such as ``06:00``.
        now: seconds since 1970.
        local: from such seconds to an object with ``tm_hour`` and ``tm_min``.
    """
    hour, minute = map(int, text.split(":"))
    goal, at = 60 * hour + minute, now // 60 * 60

    def shown() -> int:
        clock = local(at)
        return int(60 * clock.tm_hour + clock.tm_min)

    before = shown()
    while True:
        at += 60
        after = shown()
        step = (after - before) % _DAY
        # The clocks go on by a minute, or over a gap; a large step is one back.
        if after == goal or 0 < (goal - before) % _DAY <= step < _DAY // 2:
            return at
        before = after


def manner_in_words(pace: Pace | None, text: str | None) -> str:
    """Return how a job goes on, and whether it keeps its time, as far as that is known."""
    if pace is None:
        return ""
    manner = "guest" if pace.is_guest else "as usual"
    if pace.late_s:
        return f"{manner} · will be late by {written_time(pace.late_s)}"
    return f"{manner} · finishes by {text}" if pace.is_kept else manner
