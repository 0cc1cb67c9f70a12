"""The options that commands share, and the arguments of a client that are made of them."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, fields
from functools import wraps
from typing import Annotated, Any, Literal, TypeVar, get_type_hints

import typer

from batchclient._maps.row_calls import RowForm
from batchclient._maps.row_calls import RowParams as OfRowParams
from batchclient.cli._refusal import Refusal, in_options, option_of
from batchclient.client import BATCH_CLIENT_ARGUMENTS
from batchclient.errors import ConfigError
from batchclient.jobs.rows import Format
from batchclient.options import AdaptiveLimit, Batching, Queue, Server
from batchclient.partition import endpoints_shard
from batchclient.price import Price

__all__ = [
    "ApiKey",
    "BaseUrl",
    "CallOption",
    "Concurrency",
    "Delimiter",
    "Encoding",
    "EndpointsShard",
    "Escape",
    "FileFormat",
    "Guest",
    "Headers",
    "LogFormat",
    "MaxTokens",
    "MetricsPort",
    "Model",
    "Params",
    "Prompt",
    "PromptFile",
    "Quiet",
    "RowParams",
    "Rows",
    "System",
    "Temperature",
    "client_arguments",
    "command_of",
    "headers_from",
    "of_files",
    "of_job",
    "of_pace",
    "of_request",
    "of_server",
    "params_from",
    "server_arguments",
    "server_from",
]

T = TypeVar("T")


def _group(title: str) -> Callable[..., Any]:
    """Return what declares an option in a group of a command's help."""

    def option(text: str, metavar: str | None = None, *names: str, **more: Any) -> Any:
        """Declare an option: its line of help, what its value is called, and names that no rule makes."""
        return typer.Option(
            *names, metavar=metavar, help=text, rich_help_panel=title, show_default=False, show_envvar=False, **more
        )

    return option


of_request, of_server, of_files, of_pace, of_job = map(
    _group, ("The request", "The server", "Files", "Pace", "The job")
)

Prompt = Annotated[str | None, of_request("The template: {name} is a field, {} a text line.", "TEXT")]
PromptFile = Annotated[str | None, of_request("A file with the template instead.", "FILE")]
Rows = Annotated[RowForm | None, of_request("The form of a row (default: the first row tells).", "FORM")]
RowParams = Annotated[OfRowParams | None, of_request("Fields with a parameter's name: sent, or data.", "take|ignore")]
System = Annotated[str | None, of_request("A system message before each chat.", "TEXT")]
CallOption = Annotated[
    Literal["complete", "chat", "embed", "classify"],
    of_request("complete (the default), chat, embed or classify.", "CALL"),
]
Params = Annotated[list[str] | None, of_request("Another field of the request; repeatable.", "NAME=JSON")]
MaxTokens = Annotated[int | None, of_request("Tokens to generate per row, at most.", "N")]
Temperature = Annotated[float | None, of_request("Sampling temperature.", "T")]

BaseUrl = Annotated[
    list[str] | None,
    of_server("The address with its /v1; repeatable; or BATCHCLIENT_BASE_URL.", "URL", envvar="BATCHCLIENT_BASE_URL"),
]
Model = Annotated[
    str | None,
    of_server("The model, where the server has several; or BATCHCLIENT_MODEL.", "NAME", envvar="BATCHCLIENT_MODEL"),
]
# The variable is read by the client: it does not replace an Authorization header.
ApiKey = Annotated[str | None, of_server("The key; better in BATCHCLIENT_API_KEY, which ps does not show.", "KEY")]
Headers = Annotated[list[str] | None, of_server("A header of every request; repeatable.", "'NAME: VALUE'")]
EndpointsShard = Annotated[str | None, of_server("Use part I of N of the servers, from 0/N on.", "I/N")]

FileFormat = Annotated[Format | None, of_files("The form of IN: jsonl, text, csv, parquet or arrow.", "FORM")]
Delimiter = Annotated[str | None, of_files("What stands between fields of CSV: one character, or \\t.", "C")]
Escape = Annotated[
    str | None, of_files("A character that takes the meaning of the next one, such as \\ before a quote.", "C")
]
Encoding = Annotated[str | None, of_files("The encoding, such as latin-1 (default: UTF-8, or by its mark).", "NAME")]

Concurrency = Annotated[str | None, of_pace("Sequences in flight per server (default: auto).", "N|auto")]

Guest = Annotated[bool, of_pace("Leave places to others on the server, by its page /metrics.", None, "--guest")]

MetricsPort = Annotated[str | None, of_job("Serve /metrics at port P, or at HOST:P.", "P")]
LogFormat = Annotated[Literal["text", "json"] | None, of_job("Say it as text or json, with time and fields.", "FORM")]
Quiet = Annotated[bool, of_job("Say only complaints and failures.", None, "--quiet", "-q")]

_OF_SERVER = frozenset({"model", "input", "output", "key"})
_PRICED = "http://host/v1,input=0.15,output=0.6"
_LONGEST_NUMBER = 10
"""Digits. Python refuses to read some thousand of them, with an error of its own."""
_NOT_FIELDS = {
    "ordered": "no field of the server's; give --unordered",
    "call": "give --call",
    "timeout": "give --timeout",
    "session": "a row's own, in its field params",
    "encoding_format": "the client finds out how vectors travel",
}
"""Fields without a place in a row, and other names for an option."""
_ARGUMENTS = BATCH_CLIENT_ARGUMENTS | {
    "self", "docs", "prompt", "priority", "tenant", "look_ahead", "journal", "progress", "response_model",
    "labels", "probabilities", "repair", "runaway", "fail_if", "max_cost", "rows", "row_params", "finish_by_s", "order",
}  # fmt: skip
"""Arguments of ``BatchClient`` and of ``stream_map``: no field of a server has such a name."""


def command_of(options: type[T]) -> Callable[[Callable[[T], int]], Callable[..., int]]:
    """Make a command of a function of one dataclass: each field that is given is an option."""
    hints = get_type_hints(options, include_extras=True)
    parameters = [
        inspect.Parameter(
            each.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if each.default is MISSING else each.default,
            annotation=hints[each.name],
        )
        for each in fields(options)  # type: ignore[arg-type]
        if each.init
    ]

    def made(function: Callable[[T], int]) -> Callable[..., int]:
        @wraps(function)
        def command(**given: Any) -> int:
            return function(options(**given))

        vars(command)["__signature__"] = inspect.Signature(parameters)
        command.__annotations__ = {each.name: each.annotation for each in parameters}
        return command

    return made


def server_arguments(
    base_url: Sequence[str] | None,
    model: str | None,
    api_key: str | None,
    header: Iterable[str] | None,
    shard: str | None = None,
    dialect: Any = None,
    servers: Sequence[Server] = (),
) -> dict[str, Any]:
    """Return the arguments of ``BatchClient`` about the servers.

    Args:
        base_url, model, api_key, header, shard, dialect: the options.
        servers: beside those of ``base_url``; no shard is made of them.

    Raises:
        Refusal: no server is named, or a header is wrong.
        ConfigError: there is no such part of the servers.
    """
    if not base_url and not servers:
        raise Refusal("no server: give --base-url, such as http://localhost:8000/v1, or set BATCHCLIENT_BASE_URL")
    urls = list(base_url or ())
    return {
        "base_url": [*(urls if shard is None or not urls else endpoints_shard(urls, shard)), *servers],
        "model": model or None,
        "api_key": api_key or None,
        "headers": headers_from(header or ()),
        "dialect": dialect,
    }


def server_from(text: str) -> Server:
    """Read ``URL,NAME=VALUE,…``: a server with a model, prices and a key of its own.

    Raises:
        Refusal: a part has another form, or the key's variable is not set.
    """
    url, *parts = text.split(",")
    given = dict(part.partition("=")[::2] for part in parts)
    if len(given) < len(parts) or not given.keys() <= _OF_SERVER or not all(given.values()):
        raise Refusal("--server: URL,model=NAME,input=PRICE,output=PRICE,key=VARIABLE: the names that apply, each once")
    try:
        prices = {name: float(given[name]) for name in ("input", "output") if name in given}
    except ValueError:
        raise Refusal(f"--server: input and output are prices of a million tokens, as in {_PRICED}") from None
    key = None if "key" not in given else os.environ.get(given["key"])
    if "key" in given and not key:
        # What was given may be the key itself.
        raise Refusal("--server: key=VARIABLE has to name a variable of the environment that has a key")
    try:
        return Server(url, model=given.get("model"), price=Price(**prices) if prices else None, api_key=key)
    except ConfigError as error:
        raise Refusal(f"--server: {in_options(str(error))}") from None


def client_arguments(
    concurrency: str | None,
    max_batch_size: int | None,
    p95_latency: float | None = None,
    time_to_first_token: float | None = None,
    *,
    guest: bool = False,
    linger_s: float | None = None,
    tell_server: bool = False,
) -> dict[str, Any]:
    """Return the arguments of ``BatchClient`` about the pace of bulk work.

    Args:
        concurrency, max_batch_size, p95_latency, time_to_first_token, guest: the options.
        linger_s: how long a call may wait for company, seconds; ``None``: the preset's.
        tell_server: whether the calls have a priority, which the server is told.

    Raises:
        Refusal: an option is wrong.
        ConfigError: an objective is.
    """
    limit: int | str | AdaptiveLimit | None = None
    if concurrency not in (None, "auto"):
        is_number = concurrency.isascii() and concurrency.isdigit() and len(concurrency) < _LONGEST_NUMBER
        if not is_number or int(concurrency) < 1:
            raise Refusal(f"--concurrency: a whole number of at least 1, or auto, not {concurrency!r:.40}")
        limit = int(concurrency)
    if p95_latency is not None or time_to_first_token is not None or guest:
        if limit is not None:
            options = "--guest" if guest else "--p95-latency or --time-to-first-token"
            raise Refusal(f"--concurrency: a number leaves nothing to find for {options}")
        limit = AdaptiveLimit(p95_latency_s=p95_latency, time_to_first_token_s=time_to_first_token, guest=guest)
    return {
        "preset": "throughput",
        "limit": limit,
        "batching": Batching(max_size=max_batch_size, linger_s=linger_s),
        "queue": Queue(tell_server=True) if tell_server else None,
    }


def params_from(
    texts: Iterable[str],
    *,
    max_tokens: int | None = None,
    thinking_tokens: int | None = None,
    temperature: float | None = None,
    call: str = "complete",
) -> dict[str, Any]:
    """Read ``name=JSON`` texts into a server's fields.

    Raises:
        Refusal: a text has another form, a name comes twice, or a name is no field of the server's.
    """
    given = {"max_tokens": max_tokens, "thinking_tokens": thinking_tokens, "temperature": temperature}
    params: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    if params and call not in ("complete", "chat"):
        option = next(iter(params)).replace("_", "-")
        raise Refusal(f"--{option}: --call {call} generates nothing")
    for text in texts:
        name, equals, value = text.partition("=")
        if not name or not equals:
            raise Refusal(f"--param {text!r:.60}: write name=JSON, as in --param top_p=0.9")
        if name in _ARGUMENTS:
            option = option_of(name)
            raise Refusal(f"--param {name}: " + (f"give {option}" if option else "no field of the server's"))
        if name in _NOT_FIELDS:
            raise Refusal(f"--param {name}: {_NOT_FIELDS[name]}")
        if name in params:
            raise Refusal(f"--param {name}: given twice")
        try:
            params[name] = json.loads(value)
        except (ValueError, RecursionError):
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
