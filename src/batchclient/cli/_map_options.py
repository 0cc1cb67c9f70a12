"""The settings of ``batchclient map``, read from its options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from batchclient._client.parts import Shard
from batchclient.cli._cost import Cost
from batchclient.cli._log import PLAIN, LogOptions
from batchclient.cli._metrics import Address
from batchclient.cli._refusal import Call
from batchclient.cli._servers import ServerOptions
from batchclient.jobs.rows import Format

if TYPE_CHECKING:
    from pydantic import BaseModel

__all__ = ["MapOptions", "RowOptions"]


@dataclass(frozen=True, slots=True)
class RowOptions:
    """Which rows of the input are mapped, and what is kept of them.

    Args:
        form: the form of the input, if given.
        columns: the fields to write beside ``id``; ``None``: all.
        shard: the part of the input.
        first: rows to map from the beginning, of the part and the share; ``None`` for all.
    """

    form: Format | None = None
    columns: Sequence[str] | None = None
    shard: Shard | None = None
    first: int | None = None


@dataclass(frozen=True, slots=True)
class MapOptions:
    """The settings of a map job.

    Args:
        source, output: paths, or ``-``.
        prompt: the template.
        rows: which rows are mapped.
        server: where the servers are, with the model and the key.
        client: further arguments of ``BatchClient``.
        params: of the server.
        timeout_s: of a row.
        outage_patience_s: how long every server may be away, if there is a bound.
        ordered: whether rows keep their order.
        quiet: neither progress nor summary.
        new: whether the job begins anew, beside the one that is there.
        retry_failed: whether rows that failed for good run again, too.
        journal: the path of the journal, instead of ``OUT.journal``.
        keep_going: whether the job goes on when all rows fail alike.
        call: the call made for each row, in ``stream_map``'s words.
        packed: whether vectors are written as base64.
        system: the text of a chat's system message, if there is one.
        dry_run: generate nothing, and report.
        dedupe: whether rows with equal prompts are asked once.
        cost: the price of the work, if given, and the bound.
        schema: a model whose instances are the answers that fit ``--schema``.
        retry_invalid: how often a row is asked again whose answer does not fit.
        metrics: where the job's metrics are served, if anywhere.
        log: what is written to stderr of the library's records, and how.
    """

    source: str
    output: str
    prompt: str
    rows: RowOptions
    server: ServerOptions
    client: dict[str, Any]
    params: dict[str, Any]
    timeout_s: float | None
    ordered: bool
    quiet: bool
    new: bool = False
    retry_failed: bool = False
    journal: str | None = None
    keep_going: bool = False
    call: Call = "complete"
    packed: bool = False
    outage_patience_s: float | None = None
    system: str | None = None
    dry_run: bool = False
    dedupe: bool = False
    cost: Cost | None = None
    schema: type[BaseModel] | None = None
    retry_invalid: int = 0
    metrics: Address | None = None
    log: LogOptions = PLAIN

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of ``stream_map`` about each row's call, beside its prompt."""
        return {
            "call": self.call,
            "timeout_s": self.timeout_s,
            "response_model": self.schema,
            "retry_invalid": self.retry_invalid,
            **self.params,
        }
