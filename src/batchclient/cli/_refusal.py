"""Wrong usage: said in one line, before anything is sent."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Any, Literal, TypeVar

from batchclient._client.parts import Shard
from batchclient.errors import ConfigError

__all__ = [
    "BACKENDS",
    "CALLS",
    "NOT_FIELDS",
    "PRESETS",
    "Call",
    "Refusal",
    "call_from",
    "concurrency_from",
    "headers_from",
    "in_options",
    "named",
    "one_of",
    "output_from",
    "packed_from",
    "params_from",
    "refusal_of",
    "refusal_of_file",
    "variable_of",
]

Call = Literal["complete", "chat", "embed", "classify"]
CALLS: tuple[Call, ...] = ("complete", "chat", "embed", "classify")
PRESETS: tuple[Literal["latency", "balanced", "throughput"], ...] = ("latency", "balanced", "throughput")
BACKENDS: tuple[Literal["httpx", "httpx2", "aiohttp"], ...] = ("httpx", "httpx2", "aiohttp")

_OPTIONS = {
    "base_url": "--base-url",
    "endpoints_shard": "--endpoints-shard",
    "api_key": "--api-key",
    "headers": "--header",
    "http.backend": "--http-backend",
    "limit": "--concurrency",
    "batching.max_size": "--max-batch-size",
    "model": "--model",
    "preset": "--preset",
    "prompt": "--prompt",
    "timeout_s": "--timeout",
    "max_tokens": "--max-tokens",
    "temperature": "--temperature",
    "response_model": "--schema",
    "retry_invalid": "--retry-invalid",
}
"""The arguments of the library, and their names on the command line."""
_FLAGS = {
    "BatchClient(limit=…)": "--concurrency",
}
"""What the library's messages advise, and the same on the command line."""
_OF_FILES = frozenset({"columns", "delimiter", "encoding", "escape", "format", "shard"})
"""Names with which an error's message about the input begins; the options have the same names."""
_LIBRARY_NAMES = re.compile(
    r"(?<![\w-])(?:base_url|api_key|timeout_s|http\.backend|batching\.max_size|response_model|retry_invalid)\b"
)
"""Arguments named in the library's own messages; no server's message has such names."""
_EXTRA_BODY = re.compile(r"extra_body=\{'([^']*)': …\}")
_MAP = re.compile(r'stream_map\((?:call="(\w+)")?\)')
"""The method that the command calls; a message names the call of a row."""
_OTHER_CALL = 'chat(), or call="chat" of a map,'
"""Of a refusal of a field that the library does not know."""

NOT_FIELDS = {
    "model": "give --model",
    "prompt": "give --prompt",
    "timeout_s": "give --timeout",
    "timeout": "give --timeout",
    "n": "a row holds one completion; write the row n times",
    "ordered": "no field of the server's; give --unordered",
    "call": "give --call",
    "response_model": "give --schema",
    "retry_invalid": "give --retry-invalid",
    "priority": "priorities order the calls of one client, and a job's calls are alike",
    **dict.fromkeys(("self", "docs", "tenant", "look_ahead", "journal", "progress"), "no field of the server's"),
}
"""Names of arguments of ``stream_map``, and names without a place in a row."""

_GENERATING = ("complete", "chat")
_SHARD = "{shard}"
_LONGEST_NUMBER = 10
"""Digits. Python refuses to read some thousand of them, with an error of its own."""

_T = TypeVar("_T", bound=str)


class Refusal(Exception):
    """The command cannot begin. The message is one line and names the thing."""


def refusal_of(error: ConfigError, params: Collection[str] = (), variables: Collection[str] = ()) -> Refusal:
    """Put a library error into the command line's words.

    Args:
        error: the library's.
        params: the names given with ``--param``.
        variables: the arguments taken from the environment, by their names in the library.
    """
    option = _OPTIONS.get(error.field or "")
    if error.field is not None and error.field in variables:
        option = variable_of(error.field)
    if error.field in params and " is an argument of BatchClient, " in error.message:
        instead = f"give {option}" if option else "no field of the server's"
        return Refusal(f"--param {error.field}: {instead}")
    message = error.message.removesuffix(": BatchClient(…, model=…)")
    for start in (f"{error.field}: ", f"{error.field} is "):
        message = message.removeprefix(start)
    message = _MAP.sub(lambda method: f"{method[1] or 'complete'}()", message)
    message = in_options(message.replace("api_key or headers", "--api-key or --header"))
    message = _EXTRA_BODY.sub("--param extra_body='{\"\\1\": …}'", message.replace(_OTHER_CALL, "--call chat"))
    if option is None and error.field is not None and error.field in params:
        option = f"--param {error.field}"
    return Refusal(f"{option}: {message}" if option and not message.startswith(option) else message)


def refusal_of_file(error: ConfigError) -> Refusal:
    """Put an error about the input, or about its rows, into the command line's words."""
    message = error.message
    return Refusal(f"--{message}" if error.field in _OF_FILES else message)


def named(path: str, argument: str) -> str:
    """Return a path for a complaint: without its folder or an ending it may be a key."""
    is_there = any(map(os.path.exists, (path, os.path.dirname(path))))  # noqa: PTH120
    return path if is_there or re.fullmatch(r"\.\w{1,8}", Path(path).suffix) else argument


def variable_of(argument: str) -> str:
    """The environment variable of an argument of the library."""
    return f"BATCHCLIENT_{argument.upper()}"


def in_options(message: str) -> str:
    """Replace the library's names of arguments with the options' names."""
    for argument, option in _FLAGS.items():
        message = message.replace(argument, option)
    return _LIBRARY_NAMES.sub(lambda name: _OPTIONS[name[0]], message)


def one_of(option: str, text: str, choices: Collection[_T]) -> _T:
    """Read one of several names.

    Raises:
        Refusal: the text is another one.
    """
    for choice in choices:
        if text == choice:
            return choice
    raise Refusal(f"{option}: one of {', '.join(choices)}, not {text!r:.40}")


def output_from(path: str, shard: Shard | None) -> str:
    """Read the path of an output: the number of the shard goes in place of ``{shard}``.

    Raises:
        Refusal: several shards would write one file; or there is ``{shard}``, and no shard.
    """
    if shard is None:
        if _SHARD in path:
            raise Refusal(f"{path}: {_SHARD} stands for the number of --shard, which is not given")
        return path
    if _SHARD not in path and shard[1] > 1 and path != "-" and (not Path(path).exists() or Path(path).is_file()):
        raise Refusal(
            f"{path}: {shard[1]} shards would write one file; put {_SHARD} into its name, as in out-{_SHARD}.jsonl"
        )
    return path.replace(_SHARD, str(shard[0]))


def call_from(text: str) -> Call:
    """Read the call made for each row.

    Raises:
        Refusal: there is no such call.
    """
    return one_of("--call", text, CALLS)


def concurrency_from(text: str | None) -> int | Literal["auto"] | None:
    """Read the limit on the sequences in flight.

    Raises:
        Refusal: the text is neither a positive whole number nor ``auto``.
    """
    if text is None:
        return None
    if text == "auto":
        return "auto"
    if text.isascii() and text.isdigit() and len(text) < _LONGEST_NUMBER and int(text) >= 1:
        return int(text)
    raise Refusal(f"--concurrency: a whole number of at least 1, or auto, not {text!r:.40}")


def packed_from(text: str | None, call: str) -> bool:
    """Read whether vectors are written as base64.

    Raises:
        Refusal: there is no such form, or no vector.
    """
    if text is None:
        return False
    if call != "embed":
        raise Refusal("--vectors is for --call embed")
    return one_of("--vectors", text, ("numbers", "base64")) == "base64"


def params_from(
    texts: Iterable[str], *, max_tokens: int | None = None, temperature: float | None = None, call: str = "complete"
) -> dict[str, Any]:
    """Read ``name=JSON`` texts into a server's fields.

    Raises:
        Refusal: a text has another form, a name comes twice, or a name is no field of the server's.
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
        if name in NOT_FIELDS:
            raise Refusal(f"--param {name}: {NOT_FIELDS[name]}")
        if name == "encoding_format" and call == "embed":
            raise Refusal(
                "--param encoding_format: the client finds out how vectors travel; give --vectors for the form in OUT"
            )
        if name in params:
            raise Refusal(f"--param {name}: given twice")
        try:
            params[name] = json.loads(value)
        except ValueError:
            hint = f"; for a text write --param '{name}=\"…\"'"
            raise Refusal(f"--param {name}: the value is not JSON{hint}") from None
    return params


def headers_from(texts: Iterable[str]) -> dict[str, str]:
    """Read ``Name: value`` texts. A complaint shows no value, which may be a secret.

    Raises:
        Refusal: a text has another form.
    """
    headers: dict[str, str] = {}
    for number, text in enumerate(texts, 1):
        name, colon, value = text.partition(":")
        if not colon or not name.strip():
            raise Refusal(f"--header number {number}: write 'Name: value'")
        headers[name.strip()] = value.strip()
    return headers
