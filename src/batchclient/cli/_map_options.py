"""The settings of ``batchclient map``, read from its options."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchclient._client.connections import shown
from batchclient.cli._cost import Cost
from batchclient.cli._log import PLAIN, LogOptions
from batchclient.cli._metrics import Address
from batchclient.cli._refusal import Call, Refusal, one_of
from batchclient.cli._schema import model_of
from batchclient.cli._servers import ServerOptions
from batchclient.jobs.rows import Format
from batchclient.jobs.shards import Shard

if TYPE_CHECKING:
    from pydantic import BaseModel

__all__ = ["KeptOptions", "MapOptions", "RowOptions"]


_LONGEST_PATIENCE_S = 1e6


@dataclass(frozen=True, slots=True)
class RowOptions:
    """Which rows of the input are mapped, and what is kept of them.

    Args:
        form: the form of the input, if given.
        columns: the fields to write beside ``id``; ``None``: all.
        shard: the part of the input.
        sample: the share of the rows.
        first: rows to map from the beginning, of the part and the share; ``None`` for all.
    """

    form: Format | None = None
    columns: Sequence[str] | None = None
    shard: Shard | None = None
    sample: Fraction | None = None
    first: int | None = None


@dataclass(frozen=True, slots=True)
class KeptOptions:
    """How the rows of a job are kept.

    Args:
        resume: go on with the job that is there, if one is.
        retry_failed: which failed rows of it run again.
        accept_changed: go on also with another template, other parameters or another model.
        journal: the job's folder, instead of ``OUT.job``.
        no_journal: keep no rows.
        reuse: journals of other jobs, whose answers are taken.
        disk_patience_s: how long a full disk is waited for.
        publish: send nothing, and write what the journal has.
    """

    resume: bool = False
    retry_failed: str = "transient"
    accept_changed: bool = False
    journal: str | None = None
    no_journal: bool = False
    reuse: tuple[str, ...] = ()
    disk_patience_s: float = 600.0
    publish: bool = False


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
        overwrite: whether an existing output may be replaced.
        keep_going: whether the job goes on when all rows fail alike.
        call: the call made for each row, in ``stream_map``'s words.
        packed: whether vectors are written as base64.
        system: the text of a chat's system message, if there is one.
        dry_run: generate nothing, and report.
        dedupe: whether rows with equal prompts are asked once.
        kept: how rows are kept.
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
    overwrite: bool = False
    keep_going: bool = False
    call: Call = "complete"
    packed: bool = False
    outage_patience_s: float | None = None
    system: str | None = None
    dry_run: bool = False
    dedupe: bool = False
    kept: KeptOptions = KeptOptions()
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

    def reading(self, source: str) -> MapOptions:
        """Return the same settings for another input."""
        return replace(self, source=source)

    def for_file(self, folder: Path) -> dict[str, Any]:
        """Return the settings that make the rows, for ``job.json`` in this folder.

        No key, no header and no query of a URL is among them.
        """
        rows = self.rows
        return {
            "version": 1,
            "folder": os.path.realpath(folder),
            "input": self.source if self.source == "-" else os.path.realpath(self.source),
            "output": self.output if self.output == "-" else os.path.realpath(self.output),
            "prompt": self.prompt,
            "system": self.system,
            "call": self.call,
            "params": self.params,
            "schema": None if self.schema is None else [self.schema.__name__, self.schema.model_json_schema()],
            "format": rows.form,
            "columns": None if rows.columns is None else list(rows.columns),
            "shard": None if rows.shard is None else list(rows.shard),
            "sample": None if rows.sample is None else [rows.sample.numerator, rows.sample.denominator],
            "first": rows.first,
            "ordered": self.ordered,
            "dedupe": self.dedupe,
            "vectors": "base64" if self.packed else "numbers",
            "servers": [shown(url) for url in self.server.urls],
            "model": self.server.arguments["model"],
        }

    @classmethod
    def from_file(cls, fields: Mapping[str, Any], folder: Path, server: ServerOptions, kept: KeptOptions) -> MapOptions:
        """Read the settings of ``job.json`` in this folder, which may have moved with its files.

        Raises:
            KeyError, TypeError, ValueError: they are damaged, or another version's.
        """
        shard, sample = fields["shard"], fields["sample"]
        return cls(
            source=_moved(fields["input"], fields["folder"], folder),
            output=_moved(fields["output"], fields["folder"], folder),
            prompt=fields["prompt"],
            rows=RowOptions(
                fields["format"],
                fields["columns"],
                None if shard is None else (shard[0], shard[1]),
                None if sample is None else Fraction(*sample),
                fields["first"],
            ),
            server=server,
            client={},
            params=fields["params"],
            schema=None if fields["schema"] is None else model_of(*fields["schema"]),
            timeout_s=None,
            ordered=fields["ordered"],
            quiet=False,
            call=fields["call"],
            packed=fields["vectors"] == "base64",
            system=fields["system"],
            dedupe=fields["dedupe"],
            kept=kept,
        )


def _moved(path: str, before: str, now: Path) -> str:
    """Return a file's path: a file that was beside the folder is beside the folder now."""
    if path != "-" and Path(path).parent == Path(before).parent:
        return str(now.resolve().parent / Path(path).name)
    return path


def kept_from(
    *,
    resume: bool,
    retry_failed: str,
    accept_changed: bool,
    journal: str | None,
    no_journal: bool,
    reuse: Sequence[str],
    disk_patience_s: float,
    overwrite: bool,
) -> KeptOptions:
    """Check the options of a journal.

    Raises:
        Refusal: they do not go together.
    """
    one_of("--retry-failed", retry_failed, ("none", "transient", "all"))
    if resume and overwrite:
        raise Refusal("--resume: goes on with OUT, and --overwrite replaces it; give one of them")
    for option, given in (("--retry-failed", retry_failed != "transient"), ("--accept-changed", accept_changed)):
        if given and not resume:
            raise Refusal(f"{option}: for a job that goes on: give --resume, too")
    if journal == "":
        raise Refusal("--journal is empty; give a folder")
    if not 0 <= disk_patience_s < _LONGEST_PATIENCE_S:
        raise Refusal(f"--disk-patience: a number of seconds, at least 0, not {disk_patience_s:g}")
    return KeptOptions(resume, retry_failed, accept_changed, journal, no_journal, tuple(reuse), disk_patience_s)
