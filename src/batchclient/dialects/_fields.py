"""The coalescing key, and the table that says for each field of a call how the field is treated.

Rules:
- The key is canonical JSON: fields sorted by name, values as the caller gave them. Nested objects
  keep their order: two JSON schemas that differ only in the order of their properties ask for
  different answers.
- The key is bytes, never Python equality: ``1 == True == 1.0``, but the three are three keys.
- A field that is not in the table joins the key and goes to the server as it is: each field of
  ``params``, and each field of ``extra_body``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from enum import Enum
from typing import Any

from batchclient._core.kinds import Kind
from batchclient.dialects._kinds import KINDS
from batchclient.errors import ConfigError

__all__ = [
    "FIELDS",
    "FIELDS_OF_KIND",
    "Role",
    "canonical",
    "check_embedding_fields",
    "sort_fields",
]


class Role(Enum):
    """How a field bears on the batching of its call."""

    JOINS = "joins the coalescing key"
    SOLO = "kept on our side inside a batch; sent when the call goes alone"
    ALONE = "sends the call alone"
    OURS = "set by batchclient"


FIELDS: dict[str, tuple[Role, str]] = {
    # Fields about the caller, not about the answer: a batch has many callers and one value.
    "user": (Role.SOLO, "a label for the server's log"),
    "request_id": (Role.SOLO, "one per caller; a batch is one request"),
    "metadata": (Role.SOLO, "labels of the caller's"),
    # Request-wide on the server: the reply carries the first prompt's only (vLLM 0.32,
    # completion/serving.py).
    "kv_transfer_params": (Role.ALONE, "answered for the first prompt only"),
    "ec_transfer_params": (Role.ALONE, "answered for the first prompt only"),
    "prompt_embeds": (Role.ALONE, "another kind of prompt"),
    # The batch decides how a reply travels.
    "stream": (
        Role.OURS,
        "complete() and chat() return the whole answer; stream() and stream_chat() hand it out piece by piece",
    ),
    "stream_options": (Role.OURS, "set where a reply is streamed inside"),
    "stream_interval": (Role.OURS, "set where a reply is streamed inside"),
    # A call's own argument, because the priority orders the client's queue as well.
    "priority": (
        Role.OURS,
        "give it to the call, priority=…; queue=Queue(tell_server=True) of the client passes it to the server",
    ),
    "tenant": (Role.OURS, "give it to the call, tenant=…"),
    # Arguments of other libraries, which would otherwise travel silently in the body.
    "prompt": (Role.OURS, "the prompt is the first argument"),
    "messages": (Role.OURS, "complete() takes a prompt"),
    "extra_headers": (Role.OURS, "give headers to the client: BatchClient(headers=…)"),
    "headers": (Role.OURS, "give headers to the client: BatchClient(headers=…)"),
    "api_key": (Role.OURS, "give the key to the client: BatchClient(api_key=…)"),
    "base_url": (Role.OURS, "give the server to the client: BatchClient(base_url)"),
    "extra_query": (Role.OURS, "put a query into the client's base_url"),
    "timeout": (Role.OURS, "the argument is timeout_s, in seconds"),
}
"""Every other field joins the key."""

_NO_TOOLS = (Role.ALONE, "lists of chats drop it silently (vLLM 0.32)")
_NOT_IN_LISTS = (Role.ALONE, "the reply to a list of chats has no place for it (vLLM 0.32)")
FIELDS_OF_KIND: dict[Kind, dict[str, tuple[Role, str]]] = {
    Kind.CHAT: {
        "messages": (Role.OURS, "the messages are the first argument"),
        "prompt": (Role.OURS, "chat() takes messages"),
        "tools": _NO_TOOLS,
        "tool_choice": _NO_TOOLS,
        "functions": _NO_TOOLS,
        "function_call": _NO_TOOLS,
        "use_beam_search": (Role.ALONE, "lists of chats refuse it (vLLM 0.32)"),
        "prompt_logprobs": _NOT_IN_LISTS,
        "return_token_ids": _NOT_IN_LISTS,
        "return_prompt_text": _NOT_IN_LISTS,
        "modalities": _NOT_IN_LISTS,
        "audio": _NOT_IN_LISTS,
    }
}
"""The entries that stand before ``FIELDS`` for one kind of call."""
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


def canonical(fields: Mapping[str, Any]) -> bytes:
    """Write fields as canonical JSON.

    Raises:
        ConfigError: a value is not JSON (NaN, bytes, a date, a lone surrogate, …); the error names
            the field.
    """
    with suppress(TypeError, ValueError, RecursionError):
        return _encode(dict(sorted(fields.items()))).encode()
    # Not raised while that error is handled: the error may hold the text that could not be written,
    # and would be the context of ours.
    raise _blame(fields)


def _blame(fields: Mapping[str, Any]) -> ConfigError:
    for name, value in fields.items():
        try:
            _encode({name: value}).encode()
        except UnicodeEncodeError:
            return ConfigError(f"{name} holds a lone surrogate, which no UTF-8 can carry", field=name)
        except (TypeError, ValueError, RecursionError) as error:
            reason = "NaN and infinity are not JSON" if "Out of range float" in str(error) else str(error)
            return ConfigError(f"{name} cannot be sent as JSON: {reason}", field=name)
    return ConfigError("the parameters cannot be sent as JSON")


def sort_fields(
    params: Mapping[str, Any], kind: Kind = Kind.COMPLETION, *, to_caller: bool = False, method: str | None = None
) -> tuple[dict[str, Any], dict[str, Any], str | None]:
    """Split a call's parameters by the table.

    ``extra_body`` is merged into the parameters, as with openai's client. A call that is streamed
    ``to_caller`` may say ``stream=True`` and its ``stream_interval``. ``method`` names the method
    that was called, where it is another than the call's own.

    Returns:
        The fields that join the key, the fields for a lone call, and why the call goes alone.

    Raises:
        ConfigError: a field is not the caller's to set.
    """
    joining: dict[str, Any] = {}
    solo: dict[str, Any] = {}
    alone: str | None = None
    extra: Any = None
    if "extra_body" in params:
        extra = params["extra_body"]
        if extra is not None and not isinstance(extra, Mapping):
            raise ConfigError(f"extra_body is a mapping, not {type(extra).__name__}", field="extra_body")
        params = {**{name: value for name, value in params.items() if name != "extra_body"}, **(extra or {})}
    of_kind = FIELDS_OF_KIND.get(kind, FIELDS)
    for name, value in params.items():
        entry = of_kind.get(name) or FIELDS.get(name)
        if entry is None:
            joining[name] = value
            continue
        role, why = entry
        if role is Role.SOLO:
            solo[name] = value
        elif role is Role.ALONE:
            joining[name] = value
            if value is not None and value is not False:
                alone = name
        elif name == "priority" and extra and name in extra:
            # The server's own, in the server's words; the client's orders its queue.
            joining[name] = value
        elif to_caller and name == "stream_interval":
            if value is not None and (type(value) is not int or value < 1):
                raise ConfigError("stream_interval is a whole number of tokens, at least 1", field=name)
            joining[name] = value
        elif not (name == "stream" and (value is None or value is to_caller)):
            called = method or f"{KINDS[kind].streaming if to_caller else KINDS[kind].method}()"
            raise ConfigError(f"{name} is not a parameter of {called}: {why}", field=name)
    return joining, solo, alone


def check_embedding_fields(fields: Mapping[str, Any]) -> None:
    """Refuse fields that would bring an answer other than a vector of 32-bit floats.

    Raises:
        ConfigError: naming the field.
    """
    if fields.get("encoding_format") not in (None, "float", "base64"):
        message = "encoding_format is 'float' or 'base64'; the answer holds 32-bit floats either way"
        raise ConfigError(message, field="encoding_format")
    for name, kept in (("embed_dtype", "float32"), ("endianness", "little")):
        if fields.get(name) not in (None, kept):
            raise ConfigError(f"{name} is {kept!r} here: the answer holds 32-bit floats", field=name)
    dimensions = fields.get("dimensions")
    if dimensions is not None and (type(dimensions) is not int or dimensions < 1):
        raise ConfigError(f"dimensions is a whole number of at least 1, not {dimensions!r:.40}", field="dimensions")
