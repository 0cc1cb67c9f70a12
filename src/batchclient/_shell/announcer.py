"""Tells the log and the user's ``on_adjustment`` of changes made by the core itself."""

from __future__ import annotations

from collections.abc import Callable

from batchclient._core.messages import Adjustment, HealthChanged
from batchclient._shell.log import EndpointLog, log, notice_of

__all__ = ["Announcer"]


class Announcer:
    """The announcer of a runner.

    Args:
        on_adjustment: the user's; told of each change of a limit or list cap.
        endpoint_log: logs events of endpoints.
    """

    def __init__(self, on_adjustment: Callable[[Adjustment], object] | None, endpoint_log: EndpointLog) -> None:
        self._log = endpoint_log
        self._on_adjustment = on_adjustment
        self._has_failed = False

    def adjusted(self, adjustment: Adjustment) -> None:
        """Announce the change of a limit or list cap."""
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
        if state == "held":
            self._log(
                "calls_held", at, "endpoint %d (%s) is sent less, and calls wait: %s", at, name, reason, reason=reason
            )
            return
        message = "endpoint %d (%s) is %s: %s"
        self._log("endpoint_state", at, message, at, name, state, reason, state=state, reason=reason)
        if change.outage:
            self._log(notice_of(change.outage), at, "%s", change.outage, reason=reason)
