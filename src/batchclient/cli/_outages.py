"""Outages that last: told again and again, and the end of the job once they outlast its patience.

The log tells of an outage's beginning and end.
"""

from __future__ import annotations

from collections.abc import Callable

from batchclient import Statistics

__all__ = ["Outages"]


class Outages:
    """Watches the servers of a job.

    Args:
        tell: writes a line.
        patience_s: how long every server may be away, seconds; ``None``: for ever.
        repeat_s: seconds from one line about an outage to the next; ``None``: none is told again.
    """

    def __init__(self, tell: Callable[[str], None], *, patience_s: float | None, repeat_s: float | None) -> None:
        self._tell = tell
        self._patience_s = patience_s
        self._repeat_s = repeat_s
        self._tell_again_at: dict[int, float] = {}
        self._away_since: float | None = None

    def __repr__(self) -> str:
        return f"<Outages: {len(self._tell_again_at)} servers away>"

    def look(self, statistics: Statistics, now: float) -> str:
        """Look at the servers; return the outages that have outlasted the patience, in a sentence.

        Args:
            statistics: of the client.
            now: seconds, on any clock that never goes back.
        """
        endpoints = [each for each in statistics.endpoints if each.state != "leaving"]
        away = {each.id: each.outage for each in endpoints if each.outage}
        if self._repeat_s is not None:
            self._tell_again_at = {id_: self._tell_again_at.get(id_, now + self._repeat_s) for id_ in away}
            for id_, at in self._tell_again_at.items():
                if now >= at:
                    self._tell_again_at[id_] = now + self._repeat_s
                    self._tell(away[id_])
        if len(away) < len(endpoints):
            self._away_since = None
            return ""
        if self._away_since is None:
            self._away_since = now
        if self._patience_s is None or now - self._away_since < self._patience_s:
            return ""
        return "; ".join(away.values())
