r"""The two verbs that print: ``put`` for results on stdout, ``say`` for all else on stderr.

Rules:
- What is said is a record of the log, as the library's own records are: ``_log`` writes all of them
  to stderr in one form.
- What a terminal would obey is shown as JSON writes it, ``\u001b``: escapes and other control
  characters, half surrogate pairs, marks that turn the direction of writing. All other letters stay
  as they are. A JSON text stays one, with the same content.
- On a terminal a line is broken between words. Elsewhere it stays whole: a program finds it.
- A stderr that is closed or full ends nothing. A stdout that is ends the command (``app``).
"""

from __future__ import annotations

import json
import logging
import os
import re
import shutil
import sys
import textwrap
from typing import Any, TextIO

__all__ = ["printable", "put", "say", "write_stderr"]

_OBEYED = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u206f\ud800-\udfff]")
_log = logging.getLogger("batchclient.cli")


def printable(words: object) -> str:
    """Return words in one line that steers nothing."""
    return _OBEYED.sub(lambda found: json.dumps(found[0])[1:-1], str(words))


def put(*lines: str) -> None:
    """Write lines to stdout.

    Raises:
        OSError: stdout takes nothing more.
    """
    _write(sys.stdout, "\n".join(_wrapped(printable(line), sys.stdout) for line in lines))


def say(*lines: str, event: str = "notice", **fields: Any) -> None:
    """Write a text to stderr, if stderr takes one.

    Args:
        lines: of the text; a line break in one of them is shown as words of others are.
        event, fields: the same for a program, with ``--log-format``. ``"error"`` is a complaint.
    """
    level = logging.ERROR if event == "error" else logging.INFO
    _log.log(level, "%s", "\n".join(lines), extra={"event": event, "said": (lines, fields)})


def write_stderr(*lines: str, may_wrap: bool = True) -> None:
    """Write lines to stderr, if stderr takes them.

    Args:
        lines: to be written as they are.
        may_wrap: whether a terminal may have them broken between words.
    """
    try:
        _write(sys.stderr, "\n".join(_wrapped(line, sys.stderr) if may_wrap else line for line in lines))
    except OSError:
        # A stream that has failed once fails again at the end of the process, with a traceback.
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123


def _write(stream: TextIO, text: str) -> None:
    stream.write(f"{text}\n")
    stream.flush()


def _wrapped(line: str, stream: TextIO) -> str:
    if not stream.isatty():
        return line
    indent = " " * (len(line) - len(line.lstrip()) + 2)
    width = max(20, shutil.get_terminal_size().columns)
    options = {"subsequent_indent": indent, "break_long_words": False, "break_on_hyphens": False}
    return "\n".join(textwrap.wrap(line, width, **options)) or line  # type: ignore[arg-type]
