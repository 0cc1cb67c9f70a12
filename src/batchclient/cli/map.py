"""``batchclient map``: a file of rows in, the same rows with completions out.

Rules:
- A wrong command is refused before anything is sent and before the output is touched.
- The fault of a row is written into the row; the exit status says that there was such a row.
- No message holds the key or the text of a row.
"""

from __future__ import annotations

import csv
import math
import sys
from pathlib import Path
from typing import Annotated

import typer

from batchclient._client.parts import Shard, shard_from
from batchclient.cli._audit import audit_from
from batchclient.cli._cost import cost_from
from batchclient.cli._giving_up import REFUSED_S
from batchclient.cli._map_options import MapOptions
from batchclient.cli._metrics import address_from
from batchclient.cli._options import (
    FILES,
    JOB,
    PACE,
    REQUEST,
    AnswerField,
    ApiKey,
    BaseUrl,
    CallOption,
    Concurrency,
    Delimiter,
    DialectName,
    Encoding,
    EndpointsShard,
    Escape,
    FileFormat,
    GpuPrice,
    Headers,
    LogFormat,
    MaxBatchSize,
    MaxTokens,
    MetricsPort,
    Model,
    OutputFormOption,
    P95Latency,
    Params,
    Priority,
    Prompt,
    PromptFile,
    Quiet,
    RetryInvalid,
    RowParams,
    Rows,
    Schema,
    System,
    Temperature,
    Timeout,
    TimeToFirstToken,
    WaitForServer,
    client_arguments,
    params_from,
    server_arguments,
)
from batchclient.cli._prompts import template_from
from batchclient.cli._refusal import Refusal
from batchclient.cli._run import run_map
from batchclient.cli._schema import schema_from
from batchclient.jobs.media import Media
from batchclient.jobs.source import columns_from

__all__ = ["WAIT_S", "map_rows"]

_SHARD = "{shard}"
WAIT_S = 600.0
"""A job without somebody who looks on begins before its server, as jobs of one schedule do."""


def map_rows(
    *,
    source: Annotated[
        str, typer.Argument(metavar="IN", help="A file of rows, a folder, a pattern or a URL; - is stdin.")
    ],
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="OUT",
            show_default=False,
            help="A file, or - (stdout); {shard} is its number.",
            rich_help_panel=JOB,
        ),
    ] = "-",
    new: Annotated[
        bool, typer.Option("--new", help="Begin anew; OUT stays until the new one is whole.", rich_help_panel=JOB)
    ] = False,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Run rows again that failed for good, too.", rich_help_panel=JOB)
    ] = False,
    prompt: Prompt = None,
    prompt_file: PromptFile = None,
    rows: Rows = None,
    row_params: RowParams = None,
    system: System = None,
    call: CallOption = "complete",
    image: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD", help="A picture of each chat; repeatable.", rich_help_panel=REQUEST),
    ] = None,
    audio: Annotated[
        list[str] | None,
        typer.Option(metavar="FIELD", help="A sound of each chat; repeatable.", rich_help_panel=REQUEST),
    ] = None,
    media_root: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="The folder that --image and --audio are in.", rich_help_panel=REQUEST),
    ] = None,
    schema: Schema = None,
    retry_invalid: RetryInvalid = 0,
    retry_truncated: Annotated[
        int,
        typer.Option(
            min=0,
            show_default=False,
            metavar="N",
            help="Go on with answers cut off at --max-tokens, N times at most.",
            rich_help_panel=REQUEST,
        ),
    ] = 0,
    max_tokens_at_most: Annotated[
        int | None,
        typer.Option(metavar="N", help="Tokens of such a row in all, at most.", rich_help_panel=REQUEST),
    ] = None,
    runaway: Annotated[
        bool, typer.Option("--runaway", help="End answers that run into a loop.", rich_help_panel=REQUEST)
    ] = False,
    param: Params = None,
    max_tokens: MaxTokens = None,
    temperature: Temperature = None,
    base_url: BaseUrl = None,
    model: Model = None,
    api_key: ApiKey = None,
    header: Headers = None,
    dialect: DialectName = None,
    endpoints_shard: EndpointsShard = None,
    format: FileFormat = None,  # noqa: A002  # the option's name
    columns: Annotated[
        str | None,
        typer.Option(metavar="A,B", help="The fields of IN that OUT has beside id.", rich_help_panel=FILES),
    ] = None,
    delimiter: Delimiter = None,
    escape: Escape = None,
    encoding: Encoding = None,
    first: Annotated[
        int | None, typer.Option(metavar="N", help="Map the first N rows alone.", rich_help_panel=FILES)
    ] = None,
    shard: Annotated[
        str | None,
        typer.Option(metavar="I/N", help="Map part I of N of IN, from 0/N on.", rich_help_panel=FILES),
    ] = None,
    dedupe: Annotated[
        bool, typer.Option("--dedupe", help="Ask rows with equal prompts once.", rich_help_panel=FILES)
    ] = False,
    unordered: Annotated[
        bool, typer.Option("--unordered", help="Write rows as they finish.", rich_help_panel=FILES)
    ] = False,
    output_form: OutputFormOption = None,
    answer_field: AnswerField = None,
    journal: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="The job's answers, instead of OUT.journal.", rich_help_panel=FILES),
    ] = None,
    concurrency: Concurrency = None,
    max_batch_size: MaxBatchSize = None,
    priority: Priority = 0,
    p95_latency: P95Latency = None,
    time_to_first_token: TimeToFirstToken = None,
    timeout: Timeout = None,
    wait_for_server: WaitForServer = None,
    outage_patience: Annotated[
        float | None,
        typer.Option(metavar="S", help="Give up after an outage of all servers of S.", rich_help_panel=PACE),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Read all rows and report; generate nothing.", rich_help_panel=JOB)
    ] = False,
    pilot: Annotated[
        int | None,
        typer.Option(metavar="N", help="N rows at random first; tell what the rest will take.", rich_help_panel=JOB),
    ] = None,
    yes: Annotated[
        bool, typer.Option("--yes", "-y", help="Go on after --pilot, unasked.", rich_help_panel=JOB)
    ] = False,
    audit: Annotated[
        str | None,
        typer.Option(metavar="P%", help="Ask so many rows again, alone, at the end.", rich_help_panel=JOB),
    ] = None,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(metavar="KIND>P%", help="Status 3, as for 'truncated>1%'; repeatable.", rich_help_panel=JOB),
    ] = None,
    price: Annotated[
        str | None,
        typer.Option(metavar="IN/OUT", help="Of a million tokens each, such as 0.15/0.60.", rich_help_panel=JOB),
    ] = None,
    gpu_price: GpuPrice = None,
    max_cost: Annotated[
        float | None,
        typer.Option(metavar="X", help="Stop, with status 3, once the job has cost X.", rich_help_panel=JOB),
    ] = None,
    metrics_port: MetricsPort = None,
    log_format: LogFormat = None,
    quiet: Quiet = False,
) -> int:
    """Make one call per row of IN and write each row with its answer.

    IN is JSONL, CSV or TSV with a header, text with a document per line, each also packed by gzip,
    bzip2, xz or zstd, or Parquet or Arrow; a folder or a pattern of these, such as
    'data/*.parquet'; or a URL. --prompt makes the prompts. Without it each row is a request:
    messages, prompt, conversations, or a line of an OpenAI Batch file.

    A row of OUT has the fields of its row of IN, an id, and completion,
    finish_reason and usage, or error. With --call embed it has embedding and usage instead, with
    --call classify label, probabilities and usage. The same command again goes on where it ended.

    Exit status: 0 all rows succeeded, 1 some failed, 2 wrong usage, 3 --max-cost or
    --fail-if, 4 disk full, 5 no server, 129 hangup, 130 Ctrl-C, 143 SIGTERM.
    """
    if first is not None and first < 1:
        raise Refusal(f"--first: at least 1 row, not {first}")
    if pilot is not None and pilot < 2:
        raise Refusal(f"--pilot: at least 2 rows, not {pilot}")
    if yes and pilot is None:
        raise Refusal("--yes goes with --pilot")
    part = None if shard is None else shard_from(shard, "shard")
    wait_s = (0.0 if sys.stderr.isatty() else WAIT_S) if wait_for_server is None else wait_for_server
    patience_s = _seconds("--outage-patience", outage_patience)
    server = server_arguments(base_url, model, api_key, header, endpoints_shard, dialect)
    pace = client_arguments(concurrency, max_batch_size, p95_latency, time_to_first_token, tell_server=priority != 0)
    template = template_from(prompt, prompt_file)
    params = params_from(param or [], max_tokens=max_tokens, temperature=temperature, call=call)
    options = MapOptions(
        source=source,
        output=_path_from(output, part),
        file={"form": format, "delimiter": delimiter, "escape": escape, "encoding": encoding, "shard": part},
        columns=None if columns is None else columns_from(_names_from(columns)),
        first=first,
        prompt=template,
        rows=rows,
        row_params=row_params,
        call=call,
        system=system,
        media=_media_from(template, call, image or [], audio or [], media_root),
        schema=schema_from(schema),
        params=params,
        retries={
            "invalid": retry_invalid,
            "truncated": retry_truncated,
            "max_tokens": max_tokens_at_most,
            "runaway": runaway,
        },
        fail_if=fail_if or [],
        timeout_s=timeout,
        priority=priority,
        client={
            **server,
            **pace,
            "wait_for_server_s": wait_s,
            # The job ends before its rows do.
            "outage_patience_s": (patience_s or REFUSED_S) + REFUSED_S,
        },
        outage_patience_s=patience_s,
        output_form=output_form,
        answer_field=answer_field,
        ordered=not unordered,
        dedupe=dedupe,
        journal=None if journal is None else _path_from(journal, part),
        new=new,
        retry_failed=retry_failed,
        dry_run=dry_run,
        pilot=pilot,
        yes=yes,
        audit=audit_from(audit, call, params),
        cost=cost_from(price, gpu_price, max_cost),
        metrics=address_from(metrics_port),
        quiet=quiet,
        draws=log_format is None and not quiet,
    )
    return run_map(options)


def _path_from(path: str, shard: Shard | None) -> str:
    """Put the number of the shard in place of ``{shard}``.

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


def _names_from(columns: str) -> list[str]:
    """Read names between commas. Quotes are around one that begins with a blank, or has a comma."""
    lines = csv.reader(columns.splitlines(keepends=True), skipinitialspace=True)
    return [name for line in lines for name in line]


def _media_from(template: str | None, call: str, images: list[str], audio: list[str], root: str | None) -> Media | None:
    has_media = bool(images or audio)
    if root is not None and not has_media:
        raise Refusal("--media-root goes with --image or --audio")
    if has_media and template is not None and call != "chat":
        raise Refusal("--image and --audio are for --call chat")
    return Media(images, audio, root) if has_media else None


def _seconds(option: str, value: float | None) -> float | None:
    if value is not None and not 0 < value < math.inf:
        raise Refusal(f"{option}: a number of seconds above 0, not {value:g}")
    return value
