"""What servers say when they do not answer: error bodies in all their shapes, and ``Retry-After`` in all its forms."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from pydantic_core import from_json

__all__ = ["error_in", "read_retry_after", "redact"]

_LONGEST_MESSAGE = 400
_SHORTEST_SECRET = 4


def error_in(body: bytes) -> tuple[str, str | None]:
    """Return (message, code) of an error body.

    Seen on real servers: ``{"error": {"message", "type", "code"}}`` (vLLM, llama.cpp), ``{"error": "…"}`` (vLLM's 401, TGI),
    ``{"detail": "…" | [{"loc", "msg"}]}`` (FastAPI), a flat ``{"message", "type"}`` (SGLang), plain text and HTML.
    """
    try:
        reply = from_json(body)
    except ValueError:
        text = body[:_LONGEST_MESSAGE].decode("utf-8", "replace").strip()
        return ("an HTML page" if text[:1] == "<" else text) or "no message", None
    if not isinstance(reply, dict):
        return f"a JSON {type(reply).__name__} where an object was expected", None
    error: Any = reply.get("error", reply.get("detail", reply))
    if isinstance(error, str):
        return error, _code(reply)
    if isinstance(error, list):
        # FastAPI echoes the input, prompts and all: take the place and the message only.
        parts = [
            f"{'.'.join(map(str, item.get('loc', ())))}: {item.get('msg', '')}"
            for item in error
            if isinstance(item, dict)
        ]
        return "; ".join(parts) or "no message", None
    if isinstance(error, dict):
        return str(error.get("message", "no message")), _code(error)
    return "no message", None


def _code(error: Mapping[str, Any]) -> str | None:
    for name in ("type", "error_type", "code"):
        value = error.get(name)
        if isinstance(value, str) and value:
            return value[:80]
    return None


def redact(message: str, prompts: Iterable[bytes], secrets: Iterable[str]) -> str:
    """Cut prompts and keys out of a server's message and shorten it.

    Args:
        message: the server's words.
        prompts: the batch's prompts as JSON.
        secrets: keys.
    """
    for secret in secrets:
        if len(secret) >= _SHORTEST_SECRET:
            message = message.replace(secret, "[key]")
    for prompt in prompts:
        text = json.loads(prompt)
        if isinstance(text, str):
            forms: tuple[str, ...] = (text, prompt[1:-1].decode(), repr(text)[1:-1])
        else:
            forms = (prompt.decode(), str(text))
        for form in forms:
            if len(form) >= _SHORTEST_SECRET:
                message = message.replace(form, "[prompt]")
                # A server that shortens its echo still shows the beginning.
                message = _cut_beginning(message, form)
    message = " ".join(message.split())
    return message if len(message) <= _LONGEST_MESSAGE else message[: _LONGEST_MESSAGE - 1] + "…"


def _cut_beginning(message: str, prompt: str) -> str:
    head = prompt[:32]
    if len(head) < 32 or (start := message.find(head)) < 0:
        return message
    end = start + len(head)
    while end < len(message) and end - start < len(prompt) and message[end] == prompt[end - start]:
        end += 1
    return message[:start] + "[prompt]" + message[end:]


def read_retry_after(headers: Mapping[str, str], wall_time: float) -> float | None:
    """Return the server's wish to be left alone, in seconds, or ``None`` if it has none that makes sense.

    Source: RFC 9110, section 10.2.3 (seconds or a date); ``retry-after-ms`` is openai's. Zero, the past and nonsense count
    as no wish.
    """
    for name, scale in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        value = headers.get(name)
        if value is None:
            continue
        seconds = _number(value, scale)
        if seconds is None and name == "retry-after":
            seconds = _date(value, wall_time)
        if seconds is not None and math.isfinite(seconds) and seconds > 0:
            return seconds
    return None


def _number(value: str, scale: float) -> float | None:
    try:
        return float(value) * scale
    except ValueError:
        return None


def _date(value: str, wall_time: float) -> float | None:
    try:
        return parsedate_to_datetime(value).timestamp() - wall_time
    except (ValueError, TypeError, OverflowError, IndexError):
        return None
