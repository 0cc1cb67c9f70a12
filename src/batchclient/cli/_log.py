"""The options ``--log-format`` and ``--log-level``: what a command writes to stderr, and how.

Rules:
- Without an option the warnings are sentences. ``text`` puts the time, the level, the event and its
  fields before the sentence.
- ``json`` makes an object a line of everything that the command writes to stderr: events of the
  log, progress, summary and complaints. No bar is drawn then.
- A record is one line, with its traceback.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from batchclient._shell.log import EVENTS, LEFT_OUT
from batchclient.cli._refusal import one_of
from batchclient.cli._words import printable, said_with, write

__all__ = ["PLAIN", "JsonLines", "LogFormat", "LogLevel", "LogOptions", "TextLines", "log_options", "log_to", "said_by"]

LogFormat = Annotated[
    str | None,
    typer.Option(metavar="text|json", help="Events on stderr with time and fields (default: sentences alone)."),
]
LogLevel = Annotated[
    str, typer.Option(metavar="LEVEL", help="The least level of these events: debug, info, warning or error.")
]
_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_PLAIN = "plain"


class _Sentences(logging.Formatter):
    """The message in a line, and the lines of a traceback."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802  # the base's name
        """Return a record's first line."""
        return printable(record.message)


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
        return _json(_facts_of(record, self))


@dataclass(frozen=True, slots=True)
class LogOptions:
    """How a command logs.

    Args:
        form: ``"plain"``, ``"text"`` or ``"json"``.
        level: the least level.
    """

    form: str = _PLAIN
    level: int = logging.WARNING

    @property
    def is_json(self) -> bool:
        """Whether all of stderr is JSON."""
        return self.form == "json"


PLAIN = LogOptions()
"""Sentences, from warnings on."""


def log_options(form: str | None, level: str) -> LogOptions:
    """Read the options.

    Raises:
        Refusal: an option has another value.
    """
    form = _PLAIN if form is None else one_of("--log-format", form, ("text", "json"))
    return LogOptions(form, _LEVELS[one_of("--log-level", level, tuple(_LEVELS))])


@contextmanager
def log_to(tell: Callable[..., None], options: LogOptions) -> Iterator[None]:
    """Pass the library's records on, instead of to stderr past a bar.

    Args:
        tell: writes lines.
        options: the format and the level.
    """
    tell = write if options.is_json else tell

    class Told(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            tell(*self.format(record).split("\n"))

    handler = Told(options.level)
    handler.setFormatter({"text": TextLines, "json": JsonLines}.get(options.form, _Sentences)())
    logger = logging.getLogger("batchclient")
    before = logger.level, logger.handlers
    logger.setLevel(options.level)
    logger.handlers = [handler]
    try:
        yield
    finally:
        logger.setLevel(before[0])
        logger.handlers = before[1]


@contextmanager
def said_by(options: LogOptions) -> Iterator[None]:
    """Write what the command itself says in the format of the options."""
    with said_with(_said if options.is_json else None):
        yield


def _said(text: str, event: str, fields: Mapping[str, Any]) -> str:
    level, message = "INFO", text
    if text.startswith("Error: "):
        level, event, message = "ERROR", "error", text.removeprefix("Error: ")
    now = _time(datetime.now(UTC))
    return _json({"time": now, "level": level, "event": event, "message": message, **fields})


def _facts_of(record: logging.LogRecord, formatter: logging.Formatter) -> dict[str, Any]:
    name = getattr(record, "event", "")
    facts: dict[str, Any] = {
        "time": _time(datetime.fromtimestamp(record.created, UTC)),
        "level": record.levelname,
        "event": name,
        "message": record.getMessage(),
    }
    event = EVENTS.get(name)
    for field in () if event is None else (*event.fields, LEFT_OUT):
        if hasattr(record, field):
            facts[field] = getattr(record, field)
    if record.exc_info:
        facts["traceback"] = formatter.formatException(record.exc_info)
    return facts


def _time(at: datetime) -> str:
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _json(facts: Mapping[str, Any]) -> str:
    return printable(json.dumps(facts, ensure_ascii=False, default=str))


def _shown(value: object) -> str:
    text = "" if value is None else str(value)
    is_word = text.isprintable() and not any(each in ' "=' for each in text)
    return text if text and is_word else printable(json.dumps(text, ensure_ascii=False))
