"""Lines for people: whole for a program, broken at words for a terminal.

Rules:
- A line goes to a file or a pipe as it is, so that a program finds the line by its words.
- On a terminal a line is broken between words, and its rest is indented. A word is never cut.
- A stream that takes nothing more ends nothing.
"""

from __future__ import annotations

import os
import sys
import textwrap
from typing import TextIO

from batchclient.cli._words import printable, write

__all__ = ["columns_of", "complain", "show", "wrapped"]

_INDENT = "  "
_NARROWEST = 20


def show(line: str) -> None:
    """Write a line to stdout, if stdout takes one."""
    write(wrapped(printable(line), columns_of(sys.stdout)), err=False)


def complain(line: str) -> None:
    """Write a line to stderr, if stderr takes one."""
    write(wrapped(printable(line), columns_of(sys.stderr)))


def wrapped(line: str, width: int | None) -> str:
    """Return a line in as many as a width needs.

    Args:
        line: without a line break. The indent at its begin is kept.
        width: in columns; ``None``: there is no bound.
    """
    if width is None or len(line) <= width:
        return line
    text = line.lstrip()
    indent = line[: len(line) - len(text)]
    return "\n".join(
        textwrap.wrap(
            text,
            max(_NARROWEST, width),
            initial_indent=indent,
            subsequent_indent=indent + _INDENT,
            break_long_words=False,
            break_on_hyphens=False,
        )
    )


def columns_of(stream: TextIO) -> int | None:
    """Return the columns of a terminal; ``None``: the stream is none, or has no width."""
    try:
        if not stream.isatty():
            return None
        columns = os.environ.get("COLUMNS", "")
        if columns.isascii() and columns.isdigit():
            return int(columns) or None
        return os.get_terminal_size(stream.fileno()).columns or None
    except (OSError, ValueError):
        return None
