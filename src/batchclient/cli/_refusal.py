"""Wrong usage: said in one line, before anything is sent."""

from __future__ import annotations

import os
import re
from collections.abc import Collection
from pathlib import Path

from batchclient.errors import ConfigError
from batchclient.jobs.statuses import Status

__all__ = ["Refusal", "in_options", "named", "option_of", "refusal_of"]

_BY_RULE = {
    "base_url", "endpoints_shard", "api_key", "dialect", "p95_latency_s", "time_to_first_token_s", "wait_for_server_s",
    "model", "prompt", "rows", "row_params", "priority", "timeout_s", "max_tokens", "temperature", "runaway", "fail_if",
    "columns", "delimiter", "encoding", "escape", "format", "guest", "media-root", "order", "session_header", "shard",
    "thinking_tokens",
    "labels", "probabilities",
}  # fmt: skip
"""Arguments of the library's whose options have their names, without the unit."""
_OTHERS = {
    "headers": "header",
    "limit": "concurrency",
    "batching.max_size": "max-batch-size",
    "response_model": "schema",
    "repair.invalid": "retry-invalid",
    "repair.truncated": "retry-truncated",
    "repair.max_tokens": "max-tokens-at-most",
}
_VARIABLES = ("base_url", "api_key", "model")
"""These have an environment variable, too."""
_EXTRA_BODY = re.compile(r"extra_body=\{'([^']*)': …\}")
_CHOSEN = re.compile(r"\b(rows|row_params|call)='(\w+)'")
_NUMBER = re.compile(r"\blimit=(\d+)")
_IN_WORDS = re.compile(
    r"(?<![\w'-])(?:base_url|api_key|timeout_s|thinking_tokens(?! is )|batching\.max_size|response_model"
    r"|repair\.(?:invalid|truncated|max_tokens))\b"
)
"""Arguments that the library's own messages name; no server's message has such names. A column's
name stands in quotes, and that "thinking_tokens is" no budget is said of a row's own."""


class Refusal(Exception):
    """The command cannot begin or go on. The message is one line and names the thing.

    Args:
        message: the line.
        status: of the command.
    """

    def __init__(self, message: str, status: int = Status.USAGE) -> None:
        super().__init__(message)
        self.status: int = status


def refusal_of(error: ConfigError, params: Collection[str] = ()) -> Refusal:
    """Put a library error into the command line's words.

    Args:
        error: the library's.
        params: the names given with ``--param``.
    """
    field = error.field or ""
    option = option_of(field) or (f"--param {field}" if field in params else "")
    if field in _VARIABLES:
        option += f" (BATCHCLIENT_{field.upper()})"
    message = error.message.removesuffix(": BatchClient(…, model=…)")
    for start in (f"{error.field}: ", f"{error.field} is "):
        message = message.removeprefix(start)
    message = in_options(message)
    return Refusal(f"{option}: {message}" if option and not message.startswith(option) else message)


def option_of(argument: str) -> str:
    """Return the option that stands for an argument of the library's; empty: none does."""
    name = argument.removeprefix("limit.")
    option = _OTHERS.get(name) or (name.removesuffix("_s").replace("_", "-") if name in _BY_RULE else "")
    return f"--{option}" if option else ""


def in_options(message: str) -> str:
    """Replace the library's names of arguments with the options' names."""
    message = message.replace("api_key or headers", "--api-key or --header")
    message = message.replace('chat(), or call="chat" of a map,', "--call chat")
    message = _EXTRA_BODY.sub("--param extra_body='{\"\\1\": …}'", message)
    message = _NUMBER.sub(r"--concurrency \1", message)
    message = _CHOSEN.sub(lambda found: f"--{found[1].replace('_', '-')} {found[2]}", message)
    return _IN_WORDS.sub(lambda name: option_of(name[0]), message)


def named(path: str, argument: str) -> str:
    """Return a path for a complaint: without its folder or an ending it may be a key."""
    is_there = any(map(os.path.exists, (path, os.path.dirname(path))))  # noqa: PTH120
    return path if is_there or re.fullmatch(r"\.\w{1,8}", Path(path).suffix) else argument
