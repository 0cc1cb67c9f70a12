"""``--log-format``: what a command writes to stderr, and how.

Rules:
- Without the option records are sentences. ``text`` puts the time, the level, the event and its
  fields before the sentence, ``json`` makes an object a line. Both hold for everything: warnings of
  the library, progress, summary, complaints, wrong usage.
- A record is one line, with its traceback.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

from batchclient._common.log import EVENTS, LEFT_OUT
from batchclient.cli._words import printable, write_stderr

__all__ = ["JsonLines", "TextLines", "form_in", "log_to_stderr", "passed_through", "unwritten"]

_OPTION = "--log-format"
_pass: Callable[..., None] = write_stderr
"""Takes the lines of a record."""


class _Sentences(logging.Formatter):
    """The message as it is, and the lines of a traceback."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # the base's name
        """Return a record's first lines."""
        start = "Error: " if getattr(record, "event", "") == "error" else ""
        lines, _ = getattr(record, "said", ([record.message], {}))
        return start + "\n".join(map(printable, lines))


class TextLines(logging.Formatter):
    """``2026-01-31T12:00:00.000Z WARNING event=… field=… message=…``; values with blanks are quoted."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record's line."""
        facts = _facts_of(record, self)
        head = [facts.pop("time"), facts.pop("level")]
        # The sentence is the longest part.
        message = facts.pop("message")
        return " ".join([*head, *[f"{name}={_shown(value)}" for name, value in (*facts.items(), ("message", message))]])


class JsonLines(logging.Formatter):
    """An object with ``time``, ``level``, ``event``, ``message`` and the fields of the event."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a record's line."""
        return printable(json.dumps(_facts_of(record, self), ensure_ascii=False, default=str))


_FORMATTERS: Mapping[str, type[logging.Formatter]] = {"text": TextLines, "json": JsonLines}


def form_in(arguments: Sequence[str]) -> str:
    """Return the form that a command line asks for, be it right or wrong; empty: none."""
    for argument, following in zip(arguments, [*arguments[1:], ""], strict=True):
        name, equals, value = argument.partition("=")
        if name == _OPTION:
            return value if equals else following
    return ""


@contextmanager
def log_to_stderr(form: str) -> Iterator[None]:
    """Write what the library logs, from warnings on, and what the command says to stderr.

    Args:
        form: ``"text"``, ``"json"``, or any other: sentences.
    """
    formatter = _FORMATTERS.get(form)

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if formatter is None:
                _pass(*self.format(record).split("\n"))
            else:
                write_stderr(self.format(record), may_wrap=False)

    handler = Handler()
    handler.setFormatter((formatter or _Sentences)())
    library, command = (logging.getLogger(name) for name in ("batchclient", "batchclient.cli"))
    before = library.level, library.handlers, command.level
    library.setLevel(logging.WARNING)
    library.handlers = [handler]
    command.setLevel(logging.INFO)
    try:
        yield
    finally:
        library.setLevel(before[0])
        library.handlers = before[1]
        command.setLevel(before[2])


@contextmanager
def unwritten() -> Iterator[None]:
    """Write no record of the library: the command itself says what is wrong."""
    library = logging.getLogger("batchclient")
    before, library.handlers = library.handlers, [logging.NullHandler()]
    try:
        yield
    finally:
        library.handlers = before


@contextmanager
def passed_through(write: Callable[..., None]) -> Iterator[None]:
    """Hand the lines of the log to whoever draws on the terminal.

    Args:
        write: takes lines.
    """
    global _pass  # what a process says goes to one stream
    before, _pass = _pass, write
    try:
        yield
    finally:
        _pass = before


def _facts_of(record: logging.LogRecord, formatter: logging.Formatter) -> dict[str, Any]:
    name = getattr(record, "event", "")
    said: dict[str, Any] = getattr(record, "said", ((), {}))[1]
    facts: dict[str, Any] = {
        "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "level": record.levelname,
        "event": name,
        "message": record.getMessage(),
        **said,
    }
    event = EVENTS.get(name)
    for field in () if event is None else (*event.fields, LEFT_OUT):
        if hasattr(record, field):
            facts[field] = getattr(record, field)
    if record.exc_info:
        facts["traceback"] = formatter.formatException(record.exc_info)
    return facts


def _shown(value: object) -> str:
    text = "" if value is None else str(value)
    is_word = text.isprintable() and not any(each in ' "=' for each in text)
    return text if text and is_word else printable(json.dumps(text, ensure_ascii=False))
