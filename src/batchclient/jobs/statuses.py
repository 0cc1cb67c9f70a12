"""The exit statuses of every command, which the documentation's table repeats."""

from __future__ import annotations

from enum import IntEnum

__all__ = ["Status", "of_signal"]


class Status(IntEnum):
    """How a command ended. A signal that ended the command adds 128 to its number: 129, 130, 143."""

    OK = 0
    """Everything succeeded."""
    FAILED = 1
    """Some rows failed, or the reader of the output went away."""
    USAGE = 2
    """The command is wrong, or its key or model is refused for good; ``OUT`` is as it was."""
    STOPPED = 3
    """A bound of its own was reached, ``--max-cost`` or ``--fail-if``, or ``--pilot`` was the end."""
    DISK_FULL = 4
    """The output cannot be written, such as on a full disk."""
    NO_SERVER = 5
    """No server could be reached, or none came back in time."""


def of_signal(number: int) -> int:
    """Return the status of a command that a signal ended, as shells have it."""
    return 128 + number
