"""Tells the log and the user's ``on_adjustment`` of changes made by the core itself."""

from __future__ import annotations

import logging
from collections.abc import Callable

from batchclient._core.messages import Adjustment, HealthChanged

__all__ = ["Announcer"]

_log = logging.getLogger("batchclient")


class Announcer:
    """The announcer of a runner.

    Args:
        on_adjustment: the user's; told of each change of a limit or list cap.
    """

    def __init__(self, on_adjustment: Callable[[Adjustment], object] | None) -> None:
        self._on_adjustment = on_adjustment
        self._has_failed = False

    def adjusted(self, adjustment: Adjustment) -> None:
        """Announce the change of a limit or list cap."""
        _log.debug(
            "endpoint %d: %s %d -> %d: %s",
            adjustment.endpoint,
            adjustment.setting,
            adjustment.old,
            adjustment.new,
            adjustment.reason,
        )
        if self._on_adjustment is not None:
            try:
                self._on_adjustment(adjustment)
            except Exception:  # the hook is the user's code
                if not self._has_failed:
                    self._has_failed = True
                    _log.exception("on_adjustment failed; this is said once")

    def health_changed(self, change: HealthChanged) -> None:
        """Announce an endpoint's ejection or return."""
        _log.info("endpoint %d (%s) is %s: %s", change.endpoint, change.name, change.state, change.reason)
        if change.outage:
            _log.warning("%s", change.outage)
