"""The command line ``batchclient``: a module for each command, and those they share.

Rules:
- A command parses, calls the façade and prints. The work is done by modules without typer.
- Results go to stdout; progress, summaries and complaints go to stderr.
- Exit statuses are those of ``batchclient.jobs.statuses``, and 130 for Ctrl-C
  (``batchclient_script``).
- A command is imported when it is called. ``batchclient_script`` answers ``--version``, ``--help``
  and an empty command line.
- typer and rich come with an extra. This module imports neither, and names the missing package.
"""

from __future__ import annotations

import sys

__all__ = ["main"]

_EXTRA_MODULES = frozenset({"click", "rich", "typer"})


def main() -> None:
    """Run the command named by the process's first argument."""
    try:
        from batchclient.cli.app import make_app

        app = make_app(sys.argv[1:2])
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _EXTRA_MODULES:
            raise
        message = f"Error: the command line needs {missing}, of the extra batchclient[cli]\n"
        sys.stderr.write(message)
        sys.exit(2)
    app()
