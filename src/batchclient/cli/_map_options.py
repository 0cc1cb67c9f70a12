"""The options of ``batchclient map``: each is declared here, and read from its text."""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from pydantic import BaseModel

from batchclient._client.parts import Shard, shard_from
from batchclient._maps.repair import Repair
from batchclient.cli._answer_columns import Kind, kinds_in
from batchclient.cli._audit import audit_from
from batchclient.cli._cost import Cost, cost_from
from batchclient.cli._finish_by import time_from
from batchclient.cli._metrics import Address, address_from
from batchclient.cli._options import (
    ApiKey,
    BaseUrl,
    Concurrency,
    Delimiter,
    Encoding,
    EndpointsShard,
    Escape,
    FileFormat,
    Guest,
    Headers,
    LogFormat,
    MaxTokens,
    MetricsPort,
    Model,
    Params,
    Prompt,
    PromptFile,
    Quiet,
    RowParams,
    Rows,
    System,
    Temperature,
    client_arguments,
    of_files,
    of_job,
    of_pace,
    of_request,
    of_server,
    params_from,
    server_arguments,
    server_from,
)
from batchclient.cli._prompts import template_from
from batchclient.cli._refusal import Refusal
from batchclient.cli._rows import Names
from batchclient.cli._schema import schema_from
from batchclient.jobs.file import columns_from
from batchclient.jobs.forms import OutputForm
from batchclient.jobs.media import Media
from batchclient.options import Server

__all__ = ["REFUSED_S", "WAIT_S", "MapOptions"]

_SHARD = "{shard}"
WAIT_S = 600.0
"""A job without somebody who looks on begins before its server, as jobs of one schedule do."""
REFUSED_S = 60.0
"""How long a key or a model that was served may be refused, where no patience is given."""


@dataclass(kw_only=True, repr=False)
class MapOptions:
    """The options, by their names on the command line, and what is made of them.

    Attributes:
        part: the shard of the input; ``None``: all of it.
        file: how the input is read: form, delimiter, escape, encoding, shard.
        kept_columns: the fields to write beside ``id``; ``None``: all.
        names: of the fields of the output.
        media: adds the pictures and sounds of rows to their chats; ``None``: they have none.
        answers_as: a model whose instances are the answers that fit ``--schema``.
        answer_kinds: the types of the answers' properties that are fields of the output, by name.
        params: of the server.
        retries: what becomes of bad answers, in ``Repair``'s words.
        client: the arguments of ``BatchClient``.
        audited: the share of the rows that are asked again afterwards, if any are.
        cost: the price of the work, if one is known, and the bound.
        metrics: where the job's metrics are served, if anywhere.

    Raises:
        Refusal, ConfigError: an option is wrong by itself, or beside another one.
    """

    source: Annotated[
        str, typer.Argument(metavar="IN", help="A file of rows, a folder, a pattern or a URL; - is stdin.")
    ]
    output: Annotated[
        str, of_job("Where rows go: a file, or - (stdout); {shard} is the shard.", "OUT", "--output", "-o")
    ] = "-"
    new: Annotated[bool, of_job("Begin anew; OUT stays until the new one is whole.", None, "--new")] = False
    retry_failed: Annotated[bool, of_job("Run rows again that failed for good, too.", None, "--retry-failed")] = False

    prompt: Prompt = None
    prompt_file: PromptFile = None
    rows: Rows = None
    row_params: RowParams = None
    system: System = None
    call: Annotated[
        Literal["complete", "chat", "embed", "classify", "score", "rerank"],
        of_request("complete (the default), chat, embed, classify, score or rerank.", "CALL"),
    ] = "complete"
    documents: Annotated[str | None, of_request("The field that has the documents (score, rerank).", "FIELD")] = None
    top_n: Annotated[int | None, of_request("Keep the best N documents of each row (rerank).", "N", min=1)] = None
    image: Annotated[list[str] | None, of_request("A picture of each chat; repeatable.", "FIELD")] = None
    audio: Annotated[list[str] | None, of_request("A sound of each chat; repeatable.", "FIELD")] = None
    media_root: Annotated[str | None, of_request("The folder that --image and --audio are in.", "DIR")] = None
    schema: Annotated[str | None, of_request("A JSON schema that each answer has to fit.", "FILE")] = None
    labels: Annotated[
        list[str] | None, of_request("The answer is one of these; repeatable, for commas within one.", "A,B")
    ] = None
    probabilities: Annotated[bool, of_request("Tell the probability of each label, too.", None, "--probabilities")] = (
        False
    )
    retry_invalid: Annotated[
        int, of_request("Ask again, at most N times, to fit --schema or --labels.", "N", min=0)
    ] = 0
    retry_truncated: Annotated[
        int, of_request("Go on with answers cut off at --max-tokens, N times at most.", "N", min=0)
    ] = 0
    max_tokens_at_most: Annotated[
        int | None, of_request("With --retry-truncated: tokens of an answer in all.", "N")
    ] = None
    runaway: Annotated[bool, of_request("End answers that run into a loop.", None, "--runaway")] = False
    param: Params = None
    max_tokens: MaxTokens = None
    thinking_tokens: Annotated[
        int | None, of_request("Tokens of reasoning before the answer, at most; 0: none.", "N")
    ] = None
    temperature: Temperature = None

    base_url: BaseUrl = None
    server: Annotated[
        list[str] | None, of_server("A server with model=, prices input=, output=, and key=; repeatable.", "URL,NAME=…")
    ] = None
    model: Model = None
    api_key: ApiKey = None
    header: Headers = None
    session_header: Annotated[str | None, of_server("The header that names each row's session.", "NAME")] = None
    dialect: Annotated[
        Literal["vllm", "sglang", "tgi", "llamacpp", "trtllm", "tei", "openai"] | None,
        of_server("The kind of server: vllm, sglang, … (default: it is asked).", "NAME"),
    ] = None
    endpoints_shard: EndpointsShard = None

    format: FileFormat = None
    columns: Annotated[str | None, of_files("The fields of IN that OUT has beside id.", "A,B")] = None
    delimiter: Delimiter = None
    escape: Escape = None
    encoding: Encoding = None
    first: Annotated[int | None, of_files("Map only the first N rows.", "N")] = None
    id: Annotated[str | None, of_files("The field with each row's own id (default: id).", "COLUMN")] = None
    shard: Annotated[str | None, of_files("Map part I of N of IN, from 0/N on.", "I/N")] = None
    dedupe: Annotated[bool, of_files("Ask rows with equal prompts once.", None, "--dedupe")] = False
    order: Annotated[
        Literal["longest_first"] | None, of_pace("longest_first: rows with long answers first.", "ORDER")
    ] = None
    unordered: Annotated[bool, of_files("Write rows as they finish.", None, "--unordered")] = False
    output_form: Annotated[
        OutputForm | None,
        of_files("The form of OUT: jsonl, csv, parquet, batch or npy (default: by its ending).", "FORM"),
    ] = None
    answer_field: Annotated[
        str | None, of_files("The answer's name in OUT; it begins the other added names.", "NAME")
    ] = None
    answer_columns: Annotated[bool, of_files("The properties of --schema are columns.", None, "--answer-columns")] = (
        False
    )
    journal: Annotated[str | None, of_files("The job's answers, instead of OUT.journal.", "FILE")] = None

    concurrency: Concurrency = None
    guest: Guest = False
    max_batch_size: Annotated[int | None, of_pace("Prompts in a request, at most.", "N")] = None
    priority: Annotated[int, of_pace("Place in vLLM's queue: higher goes first, other clients' calls have 0.", "N")] = 0
    p95_latency: Annotated[float | None, of_pace("Send less, until 95 % of answers take S at most.", "S")] = None
    time_to_first_token: Annotated[float | None, of_pace("The same for the first token of an answer.", "S")] = None
    finish_by: Annotated[
        str | None, of_pace("Leave places to others, as far as the job can still end by HH:MM.", "HH:MM")
    ] = None
    timeout_s: Annotated[
        float | None, of_pace("A row's time in seconds, from its first request.", "S", "--timeout")
    ] = None
    wait_for_server_s: Annotated[
        float | None,
        of_pace("Wait S for a server that is not there yet (default 600; on a terminal 0).", "S", "--wait-for-server"),
    ] = None
    outage_patience_s: Annotated[
        float | None, of_pace("Give up once all servers have been away for S.", "S", "--outage-patience")
    ] = None

    dry_run: Annotated[bool, of_job("Read all rows and report; generate nothing.", None, "--dry-run")] = False
    pilot: Annotated[int | None, of_job("Ask N rows at random first; tell what the rest will take.", "N")] = None
    yes: Annotated[bool, of_job("Go on after --pilot, unasked.", None, "--yes", "-y")] = False
    audit: Annotated[str | None, of_job("Ask P % of the rows again, one by one, at the end.", "P%")] = None
    fail_if: Annotated[
        list[str] | None, of_job("End with status 3 beyond a bound, such as 'truncated>1%'; repeatable.", "KIND>P%")
    ] = None
    price: Annotated[str | None, of_job("Prices of a million tokens, of prompts and answers: 0.15/0.60.", "IN/OUT")] = (
        None
    )
    gpu_price: Annotated[float | None, of_job("The price of an hour of all GPUs together.", "P")] = None
    max_cost: Annotated[float | None, of_job("Stop, with status 3, once this run has cost X.", "X")] = None
    metrics_port: MetricsPort = None
    log_format: LogFormat = None
    quiet: Quiet = False

    part: Shard | None = field(init=False)
    file: dict[str, Any] = field(init=False)
    kept_columns: Sequence[str] | None = field(init=False)
    names: Names = field(init=False)
    media: Media | None = field(init=False)
    answers_as: type[BaseModel] | None = field(init=False)
    answer_kinds: dict[str, Kind] = field(init=False)
    params: dict[str, Any] = field(init=False)
    retries: dict[str, Any] = field(init=False)
    client: dict[str, Any] = field(init=False)
    audited: float | None = field(init=False)
    cost: Cost | None = field(init=False)
    metrics: Address | None = field(init=False)

    def __post_init__(self) -> None:
        if self.first is not None and self.first < 1:
            raise Refusal(f"--first: at least 1 row, not {self.first}")
        if self.pilot is not None and self.pilot < 2:
            raise Refusal(f"--pilot: at least 2 rows, not {self.pilot}")
        if self.yes and self.pilot is None:
            raise Refusal("--yes goes with --pilot")
        self.part = None if self.shard is None else shard_from(self.shard, "shard")
        patience_s = self.outage_patience_s
        if patience_s is not None and not 0 < patience_s < math.inf:
            raise Refusal(f"--outage-patience: a number of seconds above 0, not {patience_s:g}")
        self.finish_by = time_from(self.finish_by)
        if self.finish_by is not None and self.concurrency not in (None, "auto"):
            raise Refusal("--finish-by finds how many rows may be in flight: leave --concurrency out")
        if self.finish_by is not None and self.guest:
            raise Refusal("--finish-by is a guest while that keeps the time: leave --guest out")
        looks_on_s = 0.0 if sys.stderr.isatty() else WAIT_S
        servers = [server_from(each) for each in self.server or ()]
        self.client = {
            **server_arguments(
                self.base_url, self.model, self.api_key, self.header, self.endpoints_shard, self.dialect, servers
            ),
            **client_arguments(
                self.concurrency,
                self.max_batch_size,
                self.p95_latency,
                self.time_to_first_token,
                guest=self.guest,
                tell_server=self.priority != 0,
            ),
            "wait_for_server_s": looks_on_s if self.wait_for_server_s is None else self.wait_for_server_s,
            # The job ends before its rows do.
            "outage_patience_s": (patience_s or REFUSED_S) + REFUSED_S,
        }
        if self.finish_by is not None:
            # The pages show what others have there, also where --dialect says which server it is.
            self.client["probe"] = True
        if self.session_header is not None:
            given = [each if isinstance(each, Server) else Server(each) for each in self.client["base_url"]]
            self.client["base_url"] = [replace(each, session_header=self.session_header) for each in given]
        self.prompt = template_from(self.prompt, self.prompt_file)
        ranks = self.call in ("score", "rerank")
        if ranks and (self.prompt is None or self.documents is None):
            raise Refusal(f"--call {self.call}: --prompt makes the query, and --documents names the documents' field")
        if not ranks and self.documents is not None:
            raise Refusal("--documents is for --call score and rerank")
        if self.call != "rerank" and self.top_n is not None:
            raise Refusal("--top-n is for --call rerank")
        self.params = params_from(
            self.param or [],
            max_tokens=self.max_tokens,
            thinking_tokens=self.thinking_tokens,
            temperature=self.temperature,
            call=self.call,
        )
        if self.labels is not None:
            self.params["labels"] = _labels_from(self.labels)
        if self.probabilities:
            self.params["probabilities"] = True
        self.output = _path_from(self.output, self.part)
        self.file = {
            "form": self.format,
            "delimiter": self.delimiter,
            "escape": self.escape,
            "encoding": self.encoding,
            "shard": self.part,
        }
        self.kept_columns = None if self.columns is None else columns_from(_names_from(self.columns))
        self.names = Names(self.answer_field, self.id)
        self.media = self._media()
        self.answers_as = schema_from(self.schema)
        self.answer_kinds = kinds_in(self.answers_as) if self.answer_columns else {}
        self.retries = {
            "invalid": self.retry_invalid,
            "truncated": self.retry_truncated,
            "max_tokens": self.max_tokens_at_most,
            "runaway": self.runaway,
        }
        self.journal = None if self.journal is None else _path_from(self.journal, self.part)
        self.audited = audit_from(self.audit, self.call, self.params)
        self.cost = cost_from(
            self.price, self.gpu_price, self.max_cost, of_servers=any(each.price is not None for each in servers)
        )
        self.metrics = address_from(self.metrics_port)

    def __repr__(self) -> str:
        return f"<MapOptions of {self.source} to {self.output}>"

    def but(self, **changes: Any) -> MapOptions:
        """Return the options with other values; what was made of the old ones stays."""
        made = copy(self)
        for name, value in changes.items():
            setattr(made, name, value)
        return made

    @property
    def draws(self) -> bool:
        """Whether a bar may be drawn on stderr."""
        return self.log_format is None and not self.quiet

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of ``stream_map`` about each row's call, beside its prompt."""
        return {
            "call": self.call,
            "timeout_s": self.timeout_s,
            "priority": self.priority,
            "response_model": self.answers_as,
            "repair": Repair(self.retry_invalid, self.retry_truncated, self.max_tokens_at_most),
            **({"runaway": True} if self.runaway else {}),
            **({} if self.order is None else {"order": self.order}),
            # The media of open rows are in memory.
            **({} if self.media is None else {"look_ahead": 512}),
            **self.params,
        }

    @property
    def bounds(self) -> dict[str, Any]:
        """The arguments of ``stream_map`` that bound what it costs, beside ``arguments``."""
        return {"max_cost": self.max_cost} if self.cost is not None and self.cost.of_servers else {}

    def _media(self) -> Media | None:
        has_media = bool(self.image or self.audio)
        if self.media_root is not None and not has_media:
            raise Refusal("--media-root goes with --image or --audio")
        if has_media and self.prompt is not None and self.call != "chat":
            raise Refusal("--image and --audio are for --call chat")
        return Media(self.image or [], self.audio or [], self.media_root) if has_media else None


def _labels_from(texts: list[str]) -> list[str]:
    """Return the labels: those between the commas of a text, or each of several texts as it is."""
    return texts if len(texts) > 1 else [each.strip() for each in texts[0].split(",")]


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
