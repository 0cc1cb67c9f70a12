"""The command line: ``batchclient map · simulate · demo``.

Rules:
- A command parses, calls the façade and prints; what it does lives in modules that know no typer.
- Results go to stdout; progress, summaries and complaints go to stderr.
- Exit status: 0 all went well, 1 something failed, 2 wrong usage (nothing was sent), 130 Ctrl-C (``batchclient_script``).
- typer and rich come with an extra, so that this module imports neither: it says what is missing.
"""

from __future__ import annotations

import sys

__all__ = ["main"]

_EXTRA_MODULES = frozenset({"click", "rich", "typer"})


def main() -> None:
    """Run the command line, for ``batchclient_script`` and ``python -m batchclient``."""
    try:
        from batchclient.cli.app import app
    except ModuleNotFoundError as error:
        missing = (error.name or "").partition(".")[0]
        if missing not in _EXTRA_MODULES:
            raise
        message = f"Error: the command line needs {missing}, which is not installed: pip install 'batchclient[cli]'\n"
        sys.stderr.write(message)
        sys.exit(2)
    app()
