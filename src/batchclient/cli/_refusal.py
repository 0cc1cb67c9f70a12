"""Wrong usage: said in one line, before anything is sent."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from typing import Any, Literal, cast

from batchclient.cli._rows import ADDED_BY, Format
from batchclient.errors import ConfigError

__all__ = [
    "Call",
    "Refusal",
    "call_from",
    "format_from",
    "headers_from",
    "in_options",
    "limit_from",
    "packed_from",
    "params_from",
    "refusal_of",
]

_OPTIONS = {
    "base_url": "--base-url",
    "api_key": "--api-key",
    "headers": "--header",
    "http.backend": "--http-backend",
    "limit": "--limit",
    "batching.max_size": "--max-batch-size",
    "model": "--model",
    "preset": "--preset",
    "prompt": "--prompt",
    "timeout_s": "--timeout",
    "max_tokens": "--max-tokens",
    "temperature": "--temperature",
}
"""An argument of the library, and what it is called on the command line."""
_LIBRARY_NAMES = re.compile(r"(?<![\w-])(?:base_url|api_key|timeout_s|http\.backend)\b")
"""Those that stand in the library's own messages and mean nothing in a server's."""
_EXTRA_BODY = re.compile(r"extra_body=\{'([^']*)': …\}")
_OTHER_CALL = 'chat(), or call="chat" of a map,'
"""Of a refusal of a field that the library does not know."""

_NOT_FIELDS = {
    "model": "give --model",
    "prompt": "give --prompt",
    "timeout_s": "give --timeout",
    "timeout": "give --timeout",
    "n": "a row holds one completion; write the row n times",
    "docs": "it is no field of the server's",
    "ordered": "it is no field of the server's; give --unordered",
    "call": "give --call",
    "look_ahead": "it is no field of the server's",
    "response_model": "it is no field of the server's",
    "priority": "it orders the calls of one client, and a job's calls are alike",
    "tenant": "it is no field of the server's",
}
"""Names that would be taken for arguments of ``stream_map``, or that a row has no place for."""


_GENERATING = ("complete", "chat")
Call = Literal["complete", "chat", "embed", "classify"]


class Refusal(Exception):
    """The command cannot begin. The message is one line and names the thing."""


def refusal_of(error: ConfigError, params: Iterable[str] = ()) -> Refusal:
    """Put a library error into the command line's words; ``params`` are the names given with ``--param``."""
    option = _OPTIONS.get(error.field or "")
    message = error.message.removesuffix(": BatchClient(…, model=…)")
    for start in (f"{error.field}: ", f"{error.field} is "):
        message = message.removeprefix(start)
    message = in_options(message.replace("api_key or headers", "--api-key or --header"))
    message = _EXTRA_BODY.sub("--param extra_body='{\"\\1\": …}'", message.replace(_OTHER_CALL, "--call chat"))
    if option is None and error.field is not None and error.field in params:
        option = f"--param {error.field}"
    return Refusal(f"{option}: {message}" if option else message)


def in_options(message: str) -> str:
    """Put the library's names for what was given on the command line into the options' names."""
    return _LIBRARY_NAMES.sub(lambda name: _OPTIONS[name[0]], message)


def format_from(text: str | None) -> Format | None:
    """Read the name of a format.

    Raises:
        Refusal: there is no such format.
    """
    formats: dict[str | None, Format | None] = {None: None, "jsonl": "jsonl", "text": "text"}
    if text not in formats:
        raise Refusal(f"--format: jsonl or text, not {text!r:.40}")
    return formats[text]


def call_from(text: str) -> Call:
    """Read what is asked for each row.

    Raises:
        Refusal: there is no such call.
    """
    if text not in ADDED_BY:
        raise Refusal(f"--call: {', '.join(ADDED_BY)}, not {text!r:.40}")
    return cast("Call", text)


def limit_from(text: str | None) -> int | str | None:
    """Read a limit. What is no whole number is left as it is, for the library to take or refuse."""
    return int(text) if text is not None and text.isascii() and text.isdigit() else text


def packed_from(text: str | None, call: str) -> bool:
    """Read whether vectors are written as base64.

    Raises:
        Refusal: there is no such way, or no vector.
    """
    if text is not None and call != "embed":
        raise Refusal("--vectors is for --call embed")
    if text not in (None, "numbers", "base64"):
        raise Refusal(f"--vectors: numbers or base64, not {text!r:.40}")
    return text == "base64"


def params_from(
    texts: Iterable[str], *, max_tokens: int | None = None, temperature: float | None = None, call: str = "complete"
) -> dict[str, Any]:
    """Read ``name=JSON`` texts into a server's fields.

    Raises:
        Refusal: one of them is no such text, comes twice, or is not the server's.
    """
    params: dict[str, Any] = {}
    if call not in _GENERATING:
        for option, given in (("--max-tokens", max_tokens), ("--temperature", temperature)):
            if given is not None:
                raise Refusal(f"{option}: --call {call:.40} generates nothing")
    if max_tokens is not None:
        params["max_tokens"] = max_tokens
    if temperature is not None:
        params["temperature"] = temperature
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise Refusal(f"--param {text!r:.60}: write name=JSON, as in --param top_p=0.9")
        if name in _NOT_FIELDS:
            raise Refusal(f"--param {name}: {_NOT_FIELDS[name]}")
        if name == "encoding_format" and call == "embed":
            raise Refusal(
                "--param encoding_format: how vectors travel is found out; give --vectors for how they are written"
            )
        if name in params:
            raise Refusal(f"--param {name}: it is given twice")
        try:
            params[name] = json.loads(value)
        except ValueError:
            hint = f"; for a text write --param '{name}=\"…\"'"
            raise Refusal(f"--param {name}: its value is not JSON{hint}") from None
    return params


def headers_from(texts: Iterable[str]) -> dict[str, str]:
    """Read ``Name: value`` texts. A complaint shows no value: it may be a secret.

    Raises:
        Refusal: one of them is no such text.
    """
    headers: dict[str, str] = {}
    for number, text in enumerate(texts, 1):
        name, colon, value = text.partition(":")
        if not colon or not name.strip():
            raise Refusal(f"--header number {number}: write 'Name: value'")
        headers[name.strip()] = value.strip()
    return headers
