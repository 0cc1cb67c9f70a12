"""Servers' error replies: bodies in all their shapes, and ``Retry-After`` in all its forms."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Any

from pydantic_core import from_json

__all__ = ["HTML_PAGE", "error_in", "read_retry_after", "redact", "told_in"]

HTML_PAGE = "an HTML page"
"""The message of an error whose body is HTML."""
_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]*)?|\.[0-9]+")
_LONGEST_WISH_S = 1e9
_DATE = re.compile(r"[A-Za-z]{3,9},? [0-9A-Za-z: +-]{1,40}")
"""All three forms of HTTP's dates begin with a weekday. ``parsedate_to_datetime`` alone would take
digits of any script, and underscores.
"""
_STATUS = re.compile(r"[45][0-9]{2}")
_NAMES = ("error", "errors", "detail", "message", "msg", "title")
"""Where servers put an error, or its words, the first that holds any; ``title`` is RFC 9457's."""
_LONGEST_MESSAGE = 400
_SHORTEST_SECRET = 4
_WORDS = frozenset({"role", "type"})
_SHORTEST_PIECE = 12
"""The shortest piece of a prompt, in characters, that is looked for in a message."""


def error_in(body: bytes) -> tuple[str, str | None]:
    """Return (message, code) of an error body.

    Seen on real servers: ``{"error": {"message", "type", "code"}}`` (vLLM, llama.cpp),
    ``{"error": "…"}`` (vLLM's 401, TGI), ``{"detail": "…" | [{"loc", "msg"}]}`` (FastAPI), a flat
    ``{"message", "type"}`` (SGLang), plain text and HTML. Gateways nest these, and list several.
    """
    try:
        reply = from_json(body)
    except ValueError:
        text = body[:_LONGEST_MESSAGE].decode("utf-8", "replace").strip()
        return (HTML_PAGE if text[:1] == "<" else text) or "no message", None
    message, code, _ = told_in(reply)
    if not message and not isinstance(reply, dict):
        message = f"a JSON {type(reply).__name__} where an object was expected"
    return message or "no message", code


def told_in(said: Any, depth: int = 8) -> tuple[str, str | None, int | None]:
    """Return (message, code, status) of an error, wherever they stand; empty: no message."""
    if isinstance(said, str) or not depth:
        return said if isinstance(said, str) else "", None, None
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
    return f"{place}: {message}" if message and place else message, code or _code(said), status


def _code(error: Mapping[str, Any]) -> str | None:
    for name in ("type", "error_type", "code"):
        value = error.get(name)
        if isinstance(value, str) and value:
            return value[:80]
    return None


def redact(message: str, prompts: Iterable[bytes], secrets: Iterable[str]) -> str:
    """Cut prompts (written as JSON) and keys out of a server's message, and shorten the message."""
    # The rest is never shown: cutting it off first bounds the work.
    message = message[: 2 * _LONGEST_MESSAGE]
    labels = {form: "[prompt]" for prompt in prompts for form in _forms(prompt)}
    labels.update(dict.fromkeys(secrets, "[key]"))
    # The longest first: one prompt may begin with another, or hold the key.
    forms = sorted((form for form in labels if len(form) >= _SHORTEST_SECRET), key=len, reverse=True)
    for form in forms:
        message = message.replace(form, labels[form])
    long = [form for form in forms if len(form) > _SHORTEST_PIECE]
    for form in long:
        message = _cut_pieces(message, form, labels[form])
    # A list of conversations holds thousands of texts, and a server's message mostly none of them:
    # one look tells.
    everything = "\0".join(long)
    if any(message[at : at + _SHORTEST_PIECE] in everything for at in range(0, len(message), _SHORTEST_PIECE)):
        for form in long:
            message = _cut_runs(message, form, labels[form])
    message = " ".join(message.split())
    return message if len(message) <= _LONGEST_MESSAGE else message[: _LONGEST_MESSAGE - 1] + "…"


def _forms(prompt: bytes) -> tuple[str, ...]:
    """Return the ways to write a prompt: as is, as JSON, as ASCII-only JSON, as Python's ``repr``.

    Of a conversation, every text is written so.
    """
    value = json.loads(prompt)
    if isinstance(value, str):
        return value, prompt[1:-1].decode(), json.dumps(value)[1:-1], repr(value)[1:-1]
    texts = {
        form
        for text in _texts_in(value)
        for form in (text, _write(text)[1:-1], json.dumps(text)[1:-1], repr(text)[1:-1])
    }
    return prompt.decode(), str(value), *texts


_write = json.JSONEncoder(ensure_ascii=False).encode


def _texts_in(value: object) -> Iterator[str]:
    """Yield every text within a JSON value, except the protocol's words (``role``, ``type``)."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, list):
        for each in value:
            yield from _texts_in(each)
    elif isinstance(value, dict):
        for name, each in value.items():
            if name not in _WORDS:
                yield from _texts_in(each)


def _cut_pieces(message: str, form: str, label: str) -> str:
    # A server that shortens its echo shows the beginning, the end or both: pydantic shows 25 and 24
    # characters.
    head, tail = form[:_SHORTEST_PIECE], form[-_SHORTEST_PIECE:]
    while (start := message.find(head)) >= 0:
        end = start + len(head)
        while end < len(message) and end - start < len(form) and message[end] == form[end - start]:
            end += 1
        message = message[:start] + label + message[end:]
    while (start := message.find(tail)) >= 0:
        end = start + len(tail)
        while start and end - start < len(form) and message[start - 1] == form[start - end - 1]:
            start -= 1
        message = message[:start] + label + message[end:]
    return message


def _cut_runs(message: str, form: str, label: str) -> str:
    """Cut a prompt's middle: every common run of at least twice ``_SHORTEST_PIECE``, less one."""
    start = 0
    while start + _SHORTEST_PIECE <= len(message):
        # Every run that long covers one of the message's pieces whole.
        found = form.find(message[start : start + _SHORTEST_PIECE])
        if found < 0:
            start += _SHORTEST_PIECE
            continue
        left, right = start, start + _SHORTEST_PIECE
        place, end = found, found + _SHORTEST_PIECE
        while left and place and message[left - 1] == form[place - 1]:
            left, place = left - 1, place - 1
        while right < len(message) and end < len(form) and message[right] == form[end]:
            right, end = right + 1, end + 1
        message = message[:left] + label + message[right:]
        start = left + len(label)
    return message


def read_retry_after(headers: Mapping[str, str], wall_time: float) -> float | None:
    """Return how long a server wants to be left alone, seconds; ``None``: no wish that makes sense.

    Source: RFC 9110, section 10.2.3 (seconds or a date); ``retry-after-ms`` is openai's. A number
    is digits with at most one point among or before them. Zero, the past and nonsense are no wish.
    """
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name, "").strip(" \t")
        seconds = None
        if _NUMBER.fullmatch(value):
            seconds = min(float(value) * scale, _LONGEST_WISH_S)
        elif name == "retry-after":
            seconds = _date(value, wall_time)
        if seconds is not None and seconds > 0:
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
