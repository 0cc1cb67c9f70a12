"""The log: its events, their levels and fields, and the one way to write a record.

Rules:
- A record's message is a sentence. The same facts are attributes of the record: ``event`` and the
  fields of ``EVENTS``, so that a formatter of the user's has them.
- No field holds a prompt, an answer, a key or a header.
- Of an event that repeats, an endpoint has a record in ten seconds at most. The next record has the
  number of those before that were left out.
- A log handler that raises changes nothing here: its record is lost.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

__all__ = ["EVENTS", "LEFT_OUT", "Event", "Recent", "is_written", "log"]

LEFT_OUT = "left_out"
"""The field with the number of records left out."""
_log = logging.getLogger("batchclient")
_EVERY_S = 10.0
_MOST_KEYS = 1024
_ERROR, _WARNING, _INFO, _DEBUG = logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG


@dataclass(frozen=True, slots=True)
class Event:
    """A sort of record.

    Args:
        name: the value of the record's ``event``.
        level: of ``logging``.
        fields: the names of its further attributes.
        says: when it is logged, in a few words.
        repeats: whether records of one endpoint within ten seconds are left out.
    """

    name: str
    level: int
    fields: tuple[str, ...]
    says: str
    repeats: bool = False


_ALL = (
    Event("internal_error", _ERROR, ("batch",), "batchclient itself failed; its calls have an error"),
    Event("retry_policy_failed", _ERROR, (), "your retry policy failed; the calls are not tried again"),
    Event("progress_failed", _ERROR, (), "your `progress` failed; said once"),
    Event("close_failed", _ERROR, (), "the client of a `SyncBatchClient` failed to close"),
    Event("outage_began", _WARNING, ("endpoint", "reason"), "a server is away, or refuses a model that it served"),
    Event("outage_ended", _WARNING, ("endpoint", "reason"), "the server is in use again"),
    Event("server_awaited", _WARNING, ("endpoint", "reason"), "a server has not answered yet; said once a minute"),
    Event("server_arrived", _WARNING, ("endpoint", "reason"), "a server waited for has answered"),
    Event("silence_began", _WARNING, ("endpoint", "reason"), "a server takes calls, and nothing comes"),
    Event("silence_ended", _WARNING, ("endpoint", "reason"), "something has come again"),
    Event("models_in_turn", _WARNING, ("endpoint", "reason"), "a server holds one model at a time: calls go by model"),
    Event("models_at_once", _WARNING, ("endpoint", "reason"), "a server holds several models: calls go as they come"),
    Event(
        "open_files_bound", _WARNING, ("limit", "wanted", "open_files"),
        "the bound on open files lowers the limit; at `INFO` if 256 or more are left, and you gave no number",
    ),
    Event("max_size_failed", _WARNING, (), "your `Batching(max_size=…)` failed, or gave no number; said once"),
    Event("httptools_missing", _WARNING, (), "httptools cannot be imported: requests go over httpx; said once"),
    Event("event_per_token", _WARNING, ("endpoint",), "the server sends an event per token; said once"),
    Event(
        "journal_damaged", _WARNING, ("path", "lines", "first"),
        "damaged lines of a journal; a row without another record runs again",
    ),
    Event("journal_waited_for", _WARNING, ("path", "holder"), "a journal whose holder may be dead on another machine"),
    Event("nothing_shared", _WARNING, ("calls", "reason"), "none of the drop-in's first 100 calls shared a request"),
    Event("shares_nothing", _WARNING, ("reason",), "no call of this drop-in will share a request"),
    Event("statistics_unreadable", _WARNING, ("error",), "the page of metrics has its last numbers", repeats=True),
    Event("page_failed", _WARNING, ("page", "error"), "a page of metrics could not be made", repeats=True),
    Event("own_numbers_failed", _WARNING, ("reason",), "the pages of metrics lack the numbers of `more=`; said once"),
    Event("redis_away", _WARNING, ("reason",), "a worker's Redis is away, full, read-only or busy; nothing is read"),
    Event("redis_back", _WARNING, (), "the worker reads again"),
    Event("redis_advice", _WARNING, ("reason",), "a setting of Redis may lose messages; said at the beginning"),
    Event("group_made_again", _WARNING, (), "a worker's consumer group was gone"),
    Event("messages_left", _WARNING, (), "a worker ends without Redis; other workers get its messages later"),
    Event("servers_ill", _WARNING, ("reason",), "a worker's calls fail in a row; one message at a time is tried"),
    Event("map_late", _WARNING, ("late_s",), "a map will end, or has ended, later than its `finish_by_s`"),
    Event(
        "thinking_ignored", _WARNING, ("endpoint", "tokens", "allowed"),
        "a server's model thinks longer than `thinking_tokens` allows; said once, with what helps there",
    ),
    Event("labels_unlikely", _WARNING, ("other",), "a prompt does not ask for one of its labels; said once"),
    Event("no_guest", _WARNING, ("reason",), "a server shows no load: `finish_by_s` goes as usual; said once"),
    Event("telemetry_failed", _WARNING, ("error",), "a tracer, a span processor or a propagator failed"),
    Event("endpoint_state", _INFO, ("endpoint", "state", "reason"), "where a server stands, once per change"),
    Event(
        "calls_held", _INFO, ("endpoint", "reason"), "calls wait, since a server refused others; said once a minute"
    ),
    Event("manner_changed", _INFO, ("guest",), "a map with `finish_by_s` goes on as a guest, or as usual"),
    Event("server_known", _INFO, ("endpoint", "server"), "which server an endpoint is"),
    Event("no_lists", _INFO, ("endpoint", "reason"), "a server takes no lists, and gets calls singly; said once"),
    Event("metrics_page_absent", _INFO, ("endpoint", "reason"), "a server's load is not watched; said once"),
    Event(
        "attempt_failed", _DEBUG, ("endpoint", "batch", "size", "reason", "error", "status", "retry_in_s"),
        "a request failed; `retry_in_s` is `None` without a further attempt", repeats=True,
    ),
    Event(
        "adjusted", _DEBUG, ("endpoint", "setting", "old", "new", "reason"), "a limit or a batch size has changed"
    ),
    Event("server_unknown", _DEBUG, ("endpoint",), "an endpoint does not say which server it is"),
    Event("question_failed", _DEBUG, ("endpoint", "page", "error"), "asking for a server's page failed", repeats=True),
    Event("connection_close_failed", _DEBUG, ("endpoint", "error"), "a connection failed to close", repeats=True),
    Event("reply_end_failed", _DEBUG, ("endpoint", "error"), "a whole reply had no proper end", repeats=True),
    Event("error_body_broken", _DEBUG, ("endpoint", "error"), "the body of an error broke off", repeats=True),
    Event("page_reader_left", _DEBUG, (), "a reader of a page of metrics went away"),
)  # fmt: skip
EVENTS = {event.name: event for event in _ALL}
"""All events, by name."""


def log(
    name: str, message: str, *args: object, exc_info: bool = False, level: int | None = None, **fields: Any
) -> None:
    """Write a record.

    Args:
        name: of the event.
        message, args: the sentence, as for ``logging``.
        exc_info: whether the traceback of the present exception is added.
        level: where it is not the event's.
        fields: of the event.
    """
    event = EVENTS[name]
    level = event.level if level is None else level
    if _log.isEnabledFor(level):
        # A handler may raise whatever it likes, and may not end the work of whoever logs.
        with suppress(Exception):
            _log.log(level, message, *args, exc_info=exc_info, extra={"event": name, **fields}, stacklevel=2)


def is_written(name: str) -> bool:
    """Whether a record of an event would be written now."""
    return _log.isEnabledFor(EVENTS[name].level)


class Recent:
    """Which events had a record lately."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, object], tuple[float, int]] = {}
        """By event and endpoint: the time of the last record, and how many were left out since."""

    def left_out(self, name: str, endpoint: object, now: float) -> int | None:
        """Take in an event; return how many were left out before it, or ``None``: leave it out.

        Args:
            name: of the event.
            endpoint: where; any value that is equal for the same endpoint.
            now: seconds, on any clock that never goes back.
        """
        key = (name, endpoint)
        last = self._known.get(key)
        if last is not None and now - last[0] < _EVERY_S:
            self._known[key] = last[0], last[1] + 1
            return None
        if len(self._known) >= _MOST_KEYS:
            self._known = {key: each for key, each in self._known.items() if now - each[0] < _EVERY_S}
        self._known[key] = now, 0
        return 0 if last is None else last[1]
