"""``batchclient map``: a file of rows in, the same rows with completions out.

Rules:
- A wrong command is refused before anything is sent and before the output is touched.
- The fault of a row is written into the row; the exit status says that there was such a row.
- The server, the model and the key may come from the environment, which the library reads. A
  complaint about a value from there names the variable.
- No message holds the key or the text of a row.
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from typing import Annotated, NoReturn

import typer

from batchclient._client.parts import shard_from
from batchclient.cli._client_options import (
    ApiKey,
    BaseUrl,
    Concurrency,
    EndpointsShard,
    Headers,
    HttpBackend,
    MaxBatchSize,
    MetricsPort,
    Model,
    Preset,
    client_options,
)
from batchclient.cli._cost import cost_from
from batchclient.cli._log import LogFormat, LogLevel, log_options, said_by
from batchclient.cli._map_options import MapOptions, RowOptions
from batchclient.cli._metrics import address_from
from batchclient.cli._prompts import template_from
from batchclient.cli._refusal import (
    Refusal,
    call_from,
    headers_from,
    output_from,
    packed_from,
    params_from,
    refusal_of,
    refusal_of_file,
)
from batchclient.cli._run import run_map
from batchclient.cli._schema import schema_from
from batchclient.cli._servers import server_options
from batchclient.cli._words import say
from batchclient.errors import ConfigError
from batchclient.jobs.source import columns_from, form_from
from batchclient.jobs.statuses import Status

__all__ = ["map_rows"]


def map_rows(
    *,
    source: Annotated[
        str,
        typer.Argument(
            metavar="IN", help="JSONL, CSV with a header, or text with a document per line; also gzipped. - is stdin."
        ),
    ],
    prompt: Annotated[
        str | None, typer.Option(help="Template; {name} is a row's field, {text} or {} a text line.")
    ] = None,
    prompt_file: Annotated[
        str | None, typer.Option(metavar="FILE", help="A file with the template, instead of --prompt.")
    ] = None,
    system: Annotated[
        str | None, typer.Option(metavar="TEXT", help="With --call chat: a system message before each conversation.")
    ] = None,
    base_url: BaseUrl = None,
    endpoints_shard: EndpointsShard = None,
    model: Model = None,
    call: Annotated[
        str, typer.Option(metavar="CALL", help="The call made for each row: complete, chat, embed or classify.")
    ] = "complete",
    vectors: Annotated[
        str | None,
        typer.Option(metavar="numbers|base64", help="How --call embed writes a vector (default: numbers)."),
    ] = None,
    output: Annotated[
        str,
        typer.Option(
            "--output", "-o", metavar="OUT", help="Where rows go; - is stdout. {shard} in it is the number of --shard."
        ),
    ] = "-",
    format: Annotated[  # noqa: A002  # the option's name
        str | None,
        typer.Option(
            metavar="jsonl|text|csv|parquet|arrow",
            help="The form of IN (default: its first bytes, its ending or its first line decides).",
        ),
    ] = None,
    first: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Map the first N rows of IN and read no further.")
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(metavar="I/N", help="Map one of N parts of IN, 0/N to N-1/N; OUT has {shard} in its name."),
    ] = None,
    columns: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="The fields of IN that OUT has beside id; a row without one of them fails."),
    ] = None,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run", help="Read all rows, make their prompts, report rows, faults and tokens; generate nothing."
        ),
    ] = False,
    dedupe: Annotated[
        bool, typer.Option("--dedupe", help="Ask rows with equal prompts once; each gets the answer. Reads IN twice.")
    ] = False,
    max_tokens: Annotated[int | None, typer.Option(help="Tokens to generate per row, at most.")] = None,
    temperature: Annotated[float | None, typer.Option(help="Sampling temperature.")] = None,
    param: Annotated[
        list[str] | None, typer.Option(metavar="NAME=JSON", help="Any other field of the server's; repeatable.")
    ] = None,
    schema: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="A JSON schema, demanded of the server; a row without a fitting answer fails."
        ),
    ] = None,
    retry_invalid: Annotated[
        int, typer.Option(min=0, metavar="N", help="Ask a row up to N times more for an answer that fits --schema.")
    ] = 0,
    preset: Preset = "throughput",
    concurrency: Concurrency = None,
    max_batch_size: MaxBatchSize = None,
    timeout: Annotated[
        float | None, typer.Option(help="Seconds for a row's call, retries included, from its first request.")
    ] = None,
    outage_patience: Annotated[
        float | None,
        typer.Option(metavar="S", help="Give up when every server has been away for S seconds (default: never)."),
    ] = None,
    api_key: ApiKey = None,
    header: Headers = None,
    new: Annotated[
        bool, typer.Option("--new", help="Begin anew beside the job that is there; OUT is replaced once it is whole.")
    ] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Run rows again that failed for good, too.")
    ] = False,
    journal: Annotated[
        str | None, typer.Option(metavar="FILE", help="The job's answers, instead of OUT.journal.")
    ] = None,
    price: Annotated[
        str | None,
        typer.Option(metavar="IN/OUT", help="Of a million tokens of prompts and of answers, as in 0.15/0.60."),
    ] = None,
    gpu_price: Annotated[float | None, typer.Option(metavar="P", help="Of a GPU's hour.")] = None,
    gpus: Annotated[int | None, typer.Option(min=1, metavar="N", help="GPUs at --gpu-price (default: 1).")] = None,
    max_cost: Annotated[
        float | None, typer.Option(metavar="X", help="Stop, with status 3, once the job has cost X.")
    ] = None,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="Go on although rows are refused alike and none succeeds.")
    ] = False,
    unordered: Annotated[bool, typer.Option("--unordered", help="Write rows as they finish.")] = False,
    http_backend: HttpBackend = None,
    metrics_port: MetricsPort = None,
    log_format: LogFormat = None,
    log_level: LogLevel = "warning",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no summary.")] = False,
) -> None:
    """Complete one prompt per row of IN and write each row with its completion.

    A row of OUT has the fields of its row of IN, an id, and completion, finish_reason and usage, or
    error. With --call embed it has embedding and usage instead, with --call classify label,
    probabilities and usage. An unusable line becomes {"line": N, "error": …}. Exit status: 0 all
    rows succeeded, 1 some failed, 2 wrong usage, 3 --max-cost reached, 4 disk full, 5 no server,
    129 hangup, 130 Ctrl-C, 143 SIGTERM.
    """
    with ExitStack() as stderr:
        try:
            log = log_options(log_format, log_level)
            stderr.enter_context(said_by(log))
            asked = call_from(call)
            options_of_client = client_options(preset, concurrency, max_batch_size, http_backend)
            try:
                rows = RowOptions(
                    form=None if format is None else form_from(format),
                    columns=None if columns is None else columns_from([name.strip() for name in columns.split(",")]),
                    shard=None if shard is None else shard_from(shard),
                    first=first,
                )
            except ConfigError as error:
                raise refusal_of_file(error) from None
            options = MapOptions(
                source=source,
                output=output_from(output, rows.shard),
                prompt=template_from(prompt, prompt_file),
                rows=rows,
                server=server_options(base_url, model, api_key, headers_from(header or []), endpoints_shard),
                client=options_of_client,
                params=params_from(param or [], max_tokens=max_tokens, temperature=temperature, call=asked),
                timeout_s=timeout,
                outage_patience_s=_seconds("--outage-patience", outage_patience),
                ordered=not unordered,
                quiet=quiet,
                new=new,
                retry_failed=retry_failed,
                journal=journal,
                keep_going=keep_going,
                call=asked,
                packed=packed_from(vectors, asked),
                system=system,
                dry_run=dry_run,
                dedupe=dedupe,
                schema=schema_from(schema),
                retry_invalid=retry_invalid,
                cost=cost_from(price, gpu_price, gpus, max_cost),
                metrics=address_from(metrics_port),
                log=log,
            )
            status = run_map(options)
        except ConfigError as error:
            _complain(refusal_of(error))
        except Refusal as refusal:
            _complain(refusal)
    raise typer.Exit(status)


def _complain(refusal: Refusal) -> NoReturn:
    say(f"Error: {refusal}")
    raise typer.Exit(Status.USAGE)


def _seconds(option: str, value: float | None) -> float | None:
    if value is not None and not 0 < value < math.inf:
        raise Refusal(f"{option}: a number of seconds above 0, not {value:g}")
    return value
