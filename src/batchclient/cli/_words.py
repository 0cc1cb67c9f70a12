r"""What a command says on stderr, and how words of others are shown: of a server, a row, a file.

Rules:
- What a terminal would obey is shown as JSON writes it, ``\u001b``: escapes and other control
  characters, line breaks, half surrogate pairs, marks that turn the direction of writing.
- All other letters stay as they are.
- A JSON text stays one, with the same content.
- A stderr that is closed or full ends nothing, and is not written to again.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import typer

__all__ = ["Line", "printable", "said_with", "say", "write"]

_OBEYED = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ud800-\udfff]")


def printable(words: object) -> str:
    """Return words in one line that steers nothing."""
    return _OBEYED.sub(lambda found: json.dumps(found[0])[1:-1], str(words))


Line = Callable[[str, str, Mapping[str, Any]], str]
"""Makes a line of a text, the name of its event, and the event's fields."""
_line_of: Line | None = None


def say(*lines: str, event: str = "notice", **fields: Any) -> None:
    """Write a text to stderr, if stderr takes one.

    Args:
        lines: of the text; a line break in one of them is shown as words of others are.
        event, fields: the same for a program, where lines are written for one.
    """
    write("\n".join(map(printable, lines)) if _line_of is None else _line_of("\n".join(lines), event, fields))


def write(line: str, *, err: bool = True) -> None:
    """Write a line to stderr, or to stdout, as it is, if the stream takes one."""
    try:
        typer.echo(line, err=err)
    except OSError:
        # A stream that has failed once fails again at the end of the process, with a traceback.
        setattr(sys, "stderr" if err else "stdout", open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123


@contextmanager
def said_with(line_of: Line | None) -> Iterator[None]:
    """Write all that is said as lines made so; ``None``: as it is."""
    global _line_of  # what a process says goes to one stream
    before, _line_of = _line_of, line_of
    try:
        yield
    finally:
        _line_of = before
