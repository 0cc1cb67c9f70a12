"""Servers' errors: bodies in all their shapes, errors in a reply's place, and ``Retry-After``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

from pydantic_core import from_json

from batchclient._core.messages import Failure, FailureKind
from batchclient.dialects._redaction import mark, unmarked
from batchclient.errors import DialectError

__all__ = ["HTML_PAGE", "error_in", "error_of", "malformed", "read_retry_after", "told_in"]

HTML_PAGE = "an HTML page"
"""The message of an error whose body is HTML."""
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+")
_LONGEST_WISH_S = 86_400.0
"""A server that wants to be left alone for more than a day has a wrong clock, or none."""
_DATE = re.compile(r"[A-Za-z]{3,9},? [0-9A-Za-z: +-]{1,40}")
"""All three forms of HTTP's dates begin with a weekday. ``parsedate_to_datetime`` alone would take
digits of any script, and underscores.
"""
_STATUS = re.compile(r"[45][0-9]{2}")
_NAMES = ("error", "errors", "detail", "message", "msg", "title")
"""Where servers put an error, or its words, the first that holds any; ``title`` is RFC 9457's."""
_ANSWERS = frozenset({"data", "results", "content", "text", "meta_info", "tokens", "embedding"})
"""Fields that hold answers beside ``choices``."""
_LONGEST_TEXT = 8192
"""Bytes of a body that is no JSON. The message is shortened once it is free of keys."""


def error_in(body: bytes) -> tuple[str, str | None]:
    """Return (message, code) of an error body.

    Seen on real servers: ``{"error": {"message", "type", "code"}}`` (vLLM, llama.cpp),
    ``{"error": "…"}`` (vLLM's 401, TGI), ``{"detail": "…" | [{"loc", "msg"}]}`` (FastAPI), a flat
    ``{"message", "type"}`` (SGLang), plain text and HTML. Gateways nest these, and list several.
    """
    try:
        reply = from_json(body)
    except ValueError:
        text = unmarked(body[:_LONGEST_TEXT].decode("utf-8", "replace").strip())
        return (HTML_PAGE if text[:1] == "<" else text) or "no message", None
    message, code, _ = told_in(reply)
    if not message and not isinstance(reply, dict):
        message = f"a JSON {type(reply).__name__} where an object was expected"
    return message or "no message", code


def error_of(reply: Any) -> object:
    """Return a reply or event that tells an error; ``None``: none, or an empty one by an answer."""
    if isinstance(reply, list):
        return reply if reply and all(isinstance(each, dict) and error_of(each) for each in reply) else None
    error = reply.get("error")
    if error is not None and (error or not reply.get("choices")):
        return reply
    if reply.get("choices") is not None or reply.keys() & _ANSWERS:
        return None
    is_error = "error" in (reply.get("object"), reply.get("type"))
    told = reply.get("detail") or reply.get("errors") or (reply.get("msg") and told_in(reply)[2])
    return reply if is_error or told else None


def malformed(what: str, cause: BaseException | None = None, *, once: bool = False) -> Failure:
    """Return the failure of a reply that is none; ``once``: one more attempt is enough."""
    return Failure(FailureKind.MAYBE_PROCESSED, DialectError, what, cause=cause, once=once)


def told_in(said: Any, depth: int = 8) -> tuple[str, str | None, int | None]:
    """Return (message, code, status) of an error, wherever they stand; empty: no message.

    The places in the message, such as ``messages.0.content``, are marked (``_redaction``).
    """
    if isinstance(said, str) or not depth:
        return unmarked(said) if isinstance(said, str) else "", None, None
    if isinstance(said, list):
        told = [each for each in (told_in(item, depth - 1) for item in said) if each[0]]
        messages, codes, statuses = zip(*told, strict=True) if told else ((), (), ())
        return "; ".join(messages), next(filter(None, codes), None), next(filter(None, statuses), None)
    if not isinstance(said, dict):
        return "", None, None
    inner = (told_in(said.get(name), depth - 1) for name in _NAMES)
    message, code, status = next((told for told in inner if told[0]), ("", None, None))
    values = (str(said.get(name)) for name in ("code", "status", "status_code", "http_status_code"))
    status = status or next((int(value) for value in values if _STATUS.fullmatch(value)), None)
    # FastAPI echoes the input, prompts included: take only the place and the message.
    loc = said.get("loc") or ""
    place = ".".join(map(str, loc)) if isinstance(loc, list) else str(loc)
    return f"{mark(place)}: {message}" if message and place else message, code or _code(said), status


def _code(error: Mapping[str, Any]) -> str | None:
    for name in ("type", "error_type", "code"):
        value = error.get(name)
        if isinstance(value, str) and value:
            return value[:80]
    return None


def read_retry_after(headers: Mapping[str, str], wall_time: float) -> float | None:
    """Return how long a server wants to be left alone, seconds; ``None``: no wish that makes sense.

    Source: RFC 9110, section 10.2.3 (seconds or a date); ``retry-after-ms`` is openai's. A number
    is digits with at most one point among or before them. Zero, the past, nonsense and more than a
    day are no wish.
    """
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name, "").strip(" \t")
        seconds = None
        if _NUMBER.fullmatch(value):
            seconds = float(value) * scale
        elif name == "retry-after":
            seconds = _date(value, wall_time)
        if seconds is not None and 0 < seconds <= _LONGEST_WISH_S:
            return seconds
    return None


def _date(value: str, wall_time: float) -> float | None:
    if not _DATE.fullmatch(value):
        return None
    try:
        date = parsedate_to_datetime(value)
        # HTTP knows no zone but GMT, and one of its three forms names none.
        return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp() - wall_time
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
