"""Callers' inputs as JSON bytes: texts, token ids, conversations, pairs.

An input that cannot be sent is refused, with the argument's name. Errors show where the fault is
and never the input.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from json.encoder import encode_basestring
from typing import Any

from batchclient._calls.tables import kind_of
from batchclient._calls.unsendable import lone_surrogate, unsendable
from batchclient._core.kinds import Kind
from batchclient.dialects._kinds import KINDS
from batchclient.errors import ConfigError

__all__ = [
    "BYTES_PER_TOKEN",
    "HIGHEST_PRIORITY",
    "INPUTS",
    "check_ids",
    "has_media",
    "is_conversation",
    "write_messages",
    "write_pair",
    "write_text",
]

BYTES_PER_TOKEN = 4
"""A rough mean for English text; only length groups rest on the number."""
HIGHEST_PRIORITY = 100
"""And below 0 the lowest. Classes are few: each has its own bound in the queue."""
_write_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def write_text(text: str, field: str) -> bytes:
    """Write a text.

    Raises:
        ConfigError: the text holds a lone surrogate.
    """
    try:
        return encode_basestring(text).encode()
    except UnicodeEncodeError:
        pass  # ``suppress`` costs a third of a microsecond, and this runs for each call
    # Not raised while that error is handled, which holds the prompt and counts JSON's escapes: the
    # error would be the context of ours.
    raise ConfigError(f"the {field} {lone_surrogate(text)}", field=field)


def check_ids(prompt: Any, kind: Kind = Kind.COMPLETION) -> list[int]:
    """Return token ids as a list.

    Raises:
        ConfigError: the argument is no sequence of token ids.
    """
    method, field = KINDS[kind].method, KINDS[kind].arguments[0]
    if kind is Kind.TOKENS:
        raise ConfigError(f"{field} is a text, not {kind_of(prompt)}", field=field)
    if isinstance(prompt, (bytes, bytearray, memoryview, Mapping)) or not isinstance(prompt, (Sequence, array)):
        raise ConfigError(f"a {field} is a text or a sequence of token ids, not {kind_of(prompt)}", field=field)
    if not prompt:
        raise ConfigError(f"the {field} is an empty sequence of token ids", field=field)
    kinds = set(map(type, prompt))
    if kinds == {dict} and method == "complete":
        raise ConfigError("complete() takes one prompt; a conversation goes to chat()", field=field)
    if not kinds.isdisjoint((str, list, tuple, dict)):
        message = f"{method}() takes one {field}; for several, call it several times at once or use batch_map"
        raise ConfigError(message, field=field)
    try:
        if bool in kinds:
            raise TypeError("a bool is none")
        return array("Q", prompt).tolist()
    except (TypeError, OverflowError) as error:
        raise ConfigError(f"token ids are whole numbers of at least 0: {error}", field=field) from None


def write_messages(messages: Any) -> tuple[bytes, int]:
    """Write a conversation; return the JSON with an estimate of the conversation's tokens.

    Raises:
        ConfigError: the argument is no list of messages with a role each, or not JSON.
    """
    if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, Sequence):
        kind = type(messages).__name__
        raise ConfigError(
            f"messages is a list of messages such as {{'role': 'user', 'content': …}}, not a {kind}", field="messages"
        )
    if not messages:
        raise ConfigError("messages is an empty list", field="messages")
    for place, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise ConfigError(f"message {place} is {kind_of(message)}, not a mapping", field="messages")
        if not isinstance(message.get("role"), str) or not message["role"]:
            raise ConfigError(f"message {place} has no role", field="messages")
    wire: bytes | None = None
    with suppress(TypeError, ValueError, RecursionError):
        wire = _write_json([dict(message) for message in messages]).encode()
    if wire is None:
        why = unsendable(messages, "messages") or "messages cannot be sent as JSON"
        raise ConfigError(why, field="messages")
    return wire, len(wire) // BYTES_PER_TOKEN + 1


def is_conversation(item: object) -> bool:
    """Whether a map's callable returned a conversation rather than a prompt."""
    # ``dict`` first: the test for an abstract class costs half a microsecond.
    return isinstance(item, (list, tuple)) and bool(item) and isinstance(item[0], (dict, Mapping))


def has_media(messages: Sequence[Mapping[str, Any]]) -> bool:
    """Whether a conversation has parts other than text: images, audio, files."""
    contents = [message.get("content") for message in messages]
    return any(
        not (isinstance(part, Mapping) and part.get("type") == "text")
        for content in contents
        if isinstance(content, (list, tuple))
        for part in content
    )


def write_pair(pair: Any) -> tuple[bytes, int]:
    """Write a query and a document as a JSON array of two texts; return JSON and estimated tokens.

    Raises:
        ConfigError: query or document is no text.
    """
    for text, field in zip(pair, ("query", "document"), strict=True):
        if not isinstance(text, str):
            raise ConfigError(f"{field} is a text, not {kind_of(text)}", field=field)
    query, document = (write_text(text, field) for text, field in zip(pair, ("query", "document"), strict=True))
    return b"[%b,%b]" % (query, document), (len(query) + len(document)) // BYTES_PER_TOKEN + 1


INPUTS: dict[Kind, Callable[[Any], tuple[bytes, int]]] = {
    Kind.CHAT: write_messages,
    Kind.SCORE: write_pair,
    Kind.RERANK: write_pair,
}
"""How the inputs of a kind are written, where they are neither texts nor token ids.

A writer returns the JSON and the number of tokens by estimate.
"""
