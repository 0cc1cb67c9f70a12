"""The script ``batchclient``, up to the moment when the library is imported.

Rules:
- Ctrl-C ends the program at once and in silence, with status 130. A command that has something to finish, such as ``map``,
  takes the signal over while it runs.
- This is no module of ``batchclient``: that would be imported first, and Ctrl-C would show where in it.
  ``python -m batchclient`` imports it first in any case, so ``batchclient`` itself calls ``quit_on_interrupt`` then.
"""

from __future__ import annotations

import os
import signal

__all__ = ["main", "quit_on_interrupt"]


def main() -> None:
    """Run the command line."""
    quit_on_interrupt()
    from batchclient.cli import main

    main()


def quit_on_interrupt() -> None:
    """From now on Ctrl-C ends this process. What is registered to run at its end does not run."""
    signal.signal(signal.SIGINT, _quit)


def _quit(number: int, _frame: object) -> None:
    os._exit(128 + number)
