"""The script ``batchclient``, up to the moment when the library is imported.

Rules:
- Ctrl-C ends the program at once and in silence, with status 130. A command with work to finish,
  such as ``map``, takes the signal over while it runs.
- The script is no module of ``batchclient``: the package would be imported first, and Ctrl-C would
  then show a traceback. ``python -m batchclient`` imports the package first in any case, so
  ``batchclient`` itself calls ``quit_on_interrupt`` then.
"""

from __future__ import annotations

import os
import signal
import sys

__all__ = ["is_program", "main", "quit_on_interrupt"]


def main() -> None:
    """Run the command line."""
    quit_on_interrupt()
    from batchclient.cli import main

    main()


def is_program(package: str) -> bool:
    """Whether ``python -m`` began the process with the package or with a module of the package.

    A program that imports the package does not count.
    """
    given = sys.orig_argv
    named = given[given.index("-m") + 1 :][:1] if "-m" in given else []
    return [name.partition(".")[0] for name in named] == [package]


def quit_on_interrupt() -> None:
    """End the process at Ctrl-C from now on; functions registered for its end do not run."""
    signal.signal(signal.SIGINT, _quit)


def _quit(number: int, _frame: object) -> None:
    os._exit(128 + number)
