"""Tells the log, the client's story and the user's ``on_adjustment`` of the core's decisions."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

from batchclient._core.messages import Adjusted, Adjustment, HealthChanged
from batchclient._shell.log import EndpointLog, log, notice_of

__all__ = ["Announcer", "Decision"]

_MOST_TOLD = 512


class Decision(NamedTuple):
    """Something that the client decided by itself about a server.

    Args:
        at_s: seconds since the client's first call.
        server: its base URL, without a query.
        what: such as ``"limit 256 → 128"``, ``"batch_size_cap 64 → 32"`` or the server's new state.
        why: in the client's own words and numbers; nothing that a server or a prompt says.
    """

    at_s: float
    server: str
    what: str
    why: str


class Announcer:
    """The announcer of a runner.

    Args:
        on_adjustment: the user's; told of each change of a limit or list cap.
        endpoint_log: logs events of endpoints.
        now: the time, seconds.
    """

    def __init__(
        self,
        on_adjustment: Callable[[Adjustment], object] | None,
        endpoint_log: EndpointLog,
        now: Callable[[], float],
    ) -> None:
        self._now = now
        self._began_at = now()
        self.story: deque[Decision] = deque(maxlen=_MOST_TOLD)
        """The last decisions, oldest first."""
        self._log = endpoint_log
        self._on_adjustment = on_adjustment
        self._has_failed = False

    def _tell(self, server: str, what: str, why: str) -> None:
        self.story.append(Decision(self._now() - self._began_at, server, what, why))

    def adjusted(self, change: Adjusted) -> None:
        """Announce the change of a limit or list cap."""
        adjustment = change.adjustment
        self._tell(change.name, f"{adjustment.setting} {adjustment.old} → {adjustment.new}", adjustment.reason)
        at, setting, old, new = adjustment.endpoint, adjustment.setting, adjustment.old, adjustment.new
        message, facts = "endpoint %d: %s %d -> %d: %s", {"setting": setting, "old": old, "new": new}
        reason = adjustment.reason
        self._log("adjusted", at, message, at, setting, old, new, reason, **facts, reason=reason)
        if self._on_adjustment is not None:
            try:
                self._on_adjustment(adjustment)
            except Exception:  # the hook is the user's code
                if not self._has_failed:
                    self._has_failed = True
                    log("on_adjustment_failed", "on_adjustment failed; this is said once", exc_info=True)

    def health_changed(self, change: HealthChanged) -> None:
        """Announce an endpoint's ejection or return, or that it holds calls back."""
        at, name, state, reason = change.endpoint, change.name, change.state, change.reason
        self._tell(name, state, reason)
        if state == "held":
            self._log(
                "calls_held", at, "endpoint %d (%s) is sent less, and calls wait: %s", at, name, reason, reason=reason
            )
            return
        message = "endpoint %d (%s) is %s: %s"
        self._log("endpoint_state", at, message, at, name, state, reason, state=state, reason=reason)
        if change.outage:
            self._log(notice_of(change.outage), at, "%s", change.outage, reason=reason)
