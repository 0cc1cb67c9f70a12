"""What the core has changed by itself, as it is told to the log and to the user's ``on_adjustment``."""

from __future__ import annotations

import logging
from collections.abc import Callable

from batchclient._core.messages import Adjustment, HealthChanged

__all__ = ["Announcer"]

_log = logging.getLogger("batchclient")


class Announcer:
    """That of one runner.

    Args:
        on_adjustment: told of each change of a limit or list cap; the user's.
    """

    def __init__(self, on_adjustment: Callable[[Adjustment], object] | None) -> None:
        self._on_adjustment = on_adjustment
        self._has_failed = False

    def adjusted(self, adjustment: Adjustment) -> None:
        """A limit or a list cap is another."""
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
        """An endpoint was ejected, or is back."""
        _log.info("endpoint %d (%s) is %s: %s", change.endpoint, change.name, change.state, change.reason)
        if change.outage:
            _log.warning("%s", change.outage)
