"""The options that commands share, and the arguments of a client that are made of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, Literal

import typer

from batchclient.cli._refusal import Refusal, option_of
from batchclient.client import BATCH_CLIENT_ARGUMENTS
from batchclient.options import AdaptiveLimit, Batching, Queue
from batchclient.partition import endpoints_shard

__all__ = [
    "AnswerField",
    "ApiKey",
    "BaseUrl",
    "CallOption",
    "Concurrency",
    "Delimiter",
    "DialectName",
    "Encoding",
    "EndpointsShard",
    "Escape",
    "FileFormat",
    "GpuPrice",
    "Headers",
    "LogFormat",
    "MaxBatchSize",
    "MaxTokens",
    "MetricsPort",
    "Model",
    "OutputFormOption",
    "P95Latency",
    "Params",
    "Priority",
    "Prompt",
    "PromptFile",
    "Quiet",
    "RetryInvalid",
    "RowParams",
    "Rows",
    "Schema",
    "System",
    "Temperature",
    "TimeToFirstToken",
    "Timeout",
    "WaitForServer",
    "client_arguments",
    "headers_from",
    "params_from",
    "server_arguments",
]

REQUEST, SERVER, FILES, PACE, JOB = "The request", "The server", "Files", "Pace", "The job"
"""The groups of options in a command's help."""

Prompt = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="The template: {name} is a field, {} a text line.", rich_help_panel=REQUEST),
]
PromptFile = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="A file with the template instead.", rich_help_panel=REQUEST),
]
Rows = Annotated[
    Literal["batch", "messages", "prompt", "conversations", "template"] | None,
    typer.Option(metavar="FORM", help="What a row is (default: the first row tells).", rich_help_panel=REQUEST),
]
RowParams = Annotated[
    Literal["take", "ignore"] | None,
    typer.Option(metavar="take|ignore", help="Fields named as parameters: sent, or data.", rich_help_panel=REQUEST),
]
System = Annotated[
    str | None,
    typer.Option(metavar="TEXT", help="A system message before each chat.", rich_help_panel=REQUEST),
]
CallOption = Annotated[
    Literal["complete", "chat", "embed", "classify"],
    typer.Option(
        show_default=False,
        metavar="CALL",
        help="complete (the default), chat, embed or classify.",
        rich_help_panel=REQUEST,
    ),
]
Schema = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="A JSON schema that each answer has to fit.", rich_help_panel=REQUEST),
]
RetryInvalid = Annotated[
    int,
    typer.Option(
        min=0,
        show_default=False,
        metavar="N",
        help="Ask again, at most N times, to fit --schema.",
        rich_help_panel=REQUEST,
    ),
]
Params = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME=JSON", help="Another field of the request; repeatable.", rich_help_panel=REQUEST),
]
MaxTokens = Annotated[
    int | None,
    typer.Option(metavar="N", help="Tokens to generate per row, at most.", rich_help_panel=REQUEST),
]
Temperature = Annotated[
    float | None,
    typer.Option(metavar="T", help="Sampling temperature.", rich_help_panel=REQUEST),
]

BaseUrl = Annotated[
    list[str] | None,
    typer.Option(
        envvar="BATCHCLIENT_BASE_URL",
        show_envvar=False,
        metavar="URL",
        help="With its /v1; repeatable; or BATCHCLIENT_BASE_URL.",
        rich_help_panel=SERVER,
    ),
]
Model = Annotated[
    str | None,
    typer.Option(
        envvar="BATCHCLIENT_MODEL",
        show_envvar=False,
        metavar="NAME",
        help="Where it has several; or BATCHCLIENT_MODEL.",
        rich_help_panel=SERVER,
    ),
]
# The variable is read by the client: it does not replace an Authorization header.
ApiKey = Annotated[
    str | None,
    typer.Option(metavar="KEY", help="Better: BATCHCLIENT_API_KEY, which ps does not show.", rich_help_panel=SERVER),
]
Headers = Annotated[
    list[str] | None,
    typer.Option(metavar="'NAME: VALUE'", help="Sent with every request; repeatable.", rich_help_panel=SERVER),
]
DialectName = Annotated[
    Literal["vllm", "sglang", "tgi", "llamacpp", "trtllm", "tei", "openai"] | None,
    typer.Option(metavar="NAME", help="vllm, sglang, … (default: the server is asked).", rich_help_panel=SERVER),
]
EndpointsShard = Annotated[
    str | None,
    typer.Option(metavar="I/N", help="Use part I of N of the servers, from 0/N on.", rich_help_panel=SERVER),
]

FileFormat = Annotated[
    Literal["jsonl", "text", "csv", "parquet", "arrow"] | None,
    typer.Option(metavar="FORM", help="jsonl, text, csv, parquet or arrow.", rich_help_panel=FILES),
]
Delimiter = Annotated[
    str | None,
    typer.Option(metavar="C", help="Between fields of CSV: one character, or \\t.", rich_help_panel=FILES),
]
Escape = Annotated[
    str | None,
    typer.Option(metavar="C", help="Before a quote in quotes, where not doubled.", rich_help_panel=FILES),
]
Encoding = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Such as latin-1 (default: UTF-8, or by its mark).", rich_help_panel=FILES),
]
OutputFormOption = Annotated[
    Literal["jsonl", "csv", "parquet", "batch", "npy"] | None,
    typer.Option(
        metavar="FORM", help="jsonl, csv, parquet, batch or npy (default: OUT's ending).", rich_help_panel=FILES
    ),
]
AnswerField = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Of the answer in OUT; begins the other added names.", rich_help_panel=FILES),
]

Concurrency = Annotated[
    str | None,
    typer.Option(metavar="N|auto", help="Sequences in flight per server (default: auto).", rich_help_panel=PACE),
]
MaxBatchSize = Annotated[
    int | None,
    typer.Option(metavar="N", help="Prompts in a request, at most.", rich_help_panel=PACE),
]
Priority = Annotated[
    int,
    typer.Option(
        show_default=False, metavar="N", help="Of vLLM's queue; a colleague's calls have 0.", rich_help_panel=PACE
    ),
]
P95Latency = Annotated[
    float | None,
    typer.Option(metavar="S", help="Send less, until 95 % of answers take S at most.", rich_help_panel=PACE),
]
TimeToFirstToken = Annotated[
    float | None,
    typer.Option(metavar="S", help="The same for the first token of an answer.", rich_help_panel=PACE),
]
Timeout = Annotated[
    float | None,
    typer.Option(metavar="S", help="Of a row's call, from its first request.", rich_help_panel=PACE),
]
WaitForServer = Annotated[
    float | None,
    typer.Option(metavar="S", help="For one that is not there yet (600; terminal: 0).", rich_help_panel=PACE),
]

GpuPrice = Annotated[
    float | None,
    typer.Option(metavar="P", help="Of an hour of all GPUs together.", rich_help_panel=JOB),
]
MetricsPort = Annotated[
    str | None,
    typer.Option(metavar="P", help="Serve /metrics at port P, or at HOST:P.", rich_help_panel=JOB),
]
LogFormat = Annotated[
    Literal["text", "json"] | None,
    typer.Option(metavar="FORM", help="text or json on stderr, with time and fields.", rich_help_panel=JOB),
]
Quiet = Annotated[
    bool,
    typer.Option("--quiet", "-q", help="Say complaints and failures alone.", rich_help_panel=JOB),
]

_LONGEST_NUMBER = 10
"""Digits. Python refuses to read some thousand of them, with an error of its own."""
_NOT_FIELDS = {
    "ordered": "no field of the server's; give --unordered",
    "call": "give --call",
    "timeout": "give --timeout",
    "encoding_format": "the client finds out how vectors travel",
}
"""Fields without a place in a row, and other names for an option."""
_ARGUMENTS = BATCH_CLIENT_ARGUMENTS | {
    "self", "docs", "prompt", "priority", "tenant", "look_ahead", "journal", "progress", "response_model",
    "repair", "runaway", "fail_if", "rows", "row_params",
}  # fmt: skip
"""Arguments of ``BatchClient`` and of ``stream_map``: no field of a server has such a name."""


def server_arguments(
    base_url: Sequence[str] | None,
    model: str | None,
    api_key: str | None,
    header: Iterable[str] | None,
    shard: str | None = None,
    dialect: Any = None,
) -> dict[str, Any]:
    """Return the arguments of ``BatchClient`` about the servers.

    Args:
        base_url, model, api_key, header, shard, dialect: the options.

    Raises:
        Refusal: no server is named, or a header is wrong.
        ConfigError: there is no such part of the servers.
    """
    if not base_url:
        raise Refusal("no server: give --base-url, such as http://localhost:8000/v1, or set BATCHCLIENT_BASE_URL")
    return {
        "base_url": list(base_url) if shard is None else endpoints_shard(list(base_url), shard),
        "model": model or None,
        "api_key": api_key or None,
        "headers": headers_from(header or ()),
        "dialect": dialect,
    }


def client_arguments(
    concurrency: str | None,
    max_batch_size: int | None,
    p95_latency: float | None = None,
    time_to_first_token: float | None = None,
    *,
    linger_s: float | None = None,
    tell_server: bool = False,
) -> dict[str, Any]:
    """Return the arguments of ``BatchClient`` about the pace of bulk work.

    Args:
        concurrency, max_batch_size, p95_latency, time_to_first_token: the options.
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
    if p95_latency is not None or time_to_first_token is not None:
        if limit is not None:
            raise Refusal("--concurrency: a number leaves nothing to find for --p95-latency or --time-to-first-token")
        limit = AdaptiveLimit(p95_latency_s=p95_latency, time_to_first_token_s=time_to_first_token)
    return {
        "preset": "throughput",
        "limit": limit,
        "batching": Batching(max_size=max_batch_size, linger_s=linger_s),
        "queue": Queue(tell_server=True) if tell_server else None,
    }


def params_from(
    texts: Iterable[str], *, max_tokens: int | None = None, temperature: float | None = None, call: str = "complete"
) -> dict[str, Any]:
    """Read ``name=JSON`` texts into a server's fields.

    Raises:
        Refusal: a text has another form, a name comes twice, or a name is no field of the server's.
    """
    given = {"max_tokens": max_tokens, "temperature": temperature}
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
