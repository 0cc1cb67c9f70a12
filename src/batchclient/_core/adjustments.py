"""The memory of how limits and list caps changed; every change is a command, too.

For example a limit that was 64 and is 32 after refusals is announced once, with its reason. A list
cap which grows back with time is told with the next batch that ends.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable

from batchclient._core.kinds import Kind
from batchclient._core.messages import Adjusted, Adjustment, Command
from batchclient._core.servers.endpoint import Endpoint

__all__ = ["Adjustments"]

_REMEMBERED = 256


class Adjustments:
    """The adjustments of one scheduler; ``command`` takes a command, ``changes`` counts them."""

    def __init__(self, command: Callable[[Command], None], changes: Counter[tuple[str, ...]]) -> None:
        self._command = command
        self._changes = changes
        self.last: deque[Adjustment] = deque(maxlen=_REMEMBERED)
        """The last changes, oldest first."""

    def note_limit(self, endpoint: Endpoint, now: float) -> bool:
        """An endpoint's limit may have changed since it was last told; return whether it has."""
        before, after = endpoint.told_limit, endpoint.limit.limit
        if after == before:
            return False
        endpoint.told_limit = after
        self._tell(endpoint, "limit", before, after, endpoint.limit.reason, now)
        return True

    def note_list_cap(self, endpoint: Endpoint, kind: Kind, before: int, reason: str, now: float) -> None:
        """An endpoint's list cap may have changed; ``before`` is the old cap."""
        after = endpoint.abilities.list_cap(now, kind)
        if after != before:
            setting = "batch_size_cap" if kind is Kind.COMPLETION else f"batch_size_cap of {kind.value}"
            self._tell(endpoint, setting, before, after, reason, now)
            endpoint.abilities.of(kind).told_cap = after

    def _tell(self, endpoint: Endpoint, setting: str, old: int, new: int, reason: str, now: float) -> None:
        adjustment, name = Adjustment(now, endpoint.id, setting, old, new, reason), endpoint.shown_name
        self.last.append(adjustment)
        self._changes[name, setting, "up" if new > old else "down"] += 1
        self._command(Adjusted(adjustment, name))
