"""The settings of ``batchclient map``, read from its options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from batchclient._maps.repair import Repair
from batchclient.cli._cost import Cost
from batchclient.cli._metrics import Address
from batchclient.jobs.forms import OutputForm
from batchclient.jobs.media import Media

if TYPE_CHECKING:
    from pydantic import BaseModel

__all__ = ["MapOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class MapOptions:
    """The settings of a map job.

    Args:
        source, output: paths, or ``-``.
        file: how the input is read: form, delimiter, escape, encoding, shard.
        columns: the fields to write beside ``id``; ``None``: all.
        first: rows to map from the beginning, of the shard; ``None`` for all.
        prompt: the template; ``None``: the rows are requests themselves.
        rows, row_params: the form of the rows, and what becomes of their parameters.
        call: the call made for each row, in ``stream_map``'s words.
        system: the text of a chat's system message, if there is one.
        media: adds the pictures and sounds of rows to their chats; ``None``: they have none.
        schema: a model whose instances are the answers that fit ``--schema``.
        params: of the server.
        retries: what becomes of bad answers, in ``stream_map``'s words.
        timeout_s, priority: of the calls, likewise.
        fail_if: bounds on the shares of bad rows.
        client: the arguments of ``BatchClient``.
        outage_patience_s: how long every server may be away, if there is a bound.
        output_form: of the output; ``None``: its ending tells it.
        answer_field: a name for the answer, which begins the other added names, too.
        ordered: whether rows keep their order.
        dedupe: whether rows with equal prompts are asked once.
        journal: the path of the journal, instead of ``OUT.journal``.
        new: whether the job begins anew, beside the one that is there.
        retry_failed: whether rows that failed for good run again, too.
        dry_run: generate nothing, and report.
        pilot: rows at random that go first; ``None``: none do.
        yes: go on after them without a question.
        audit: the share of the rows that are asked again afterwards, if any are.
        cost: the price of the work, if given, and the bound.
        metrics: where the job's metrics are served, if anywhere.
        quiet: neither progress nor summary.
        draws: whether a bar may be drawn on stderr.
    """

    source: str
    output: str
    file: dict[str, Any]
    columns: Sequence[str] | None
    first: int | None
    prompt: str | None
    rows: Literal["batch", "messages", "prompt", "conversations", "template"] | None
    row_params: Literal["take", "ignore"] | None
    call: str
    system: str | None
    media: Media | None
    schema: type[BaseModel] | None
    params: dict[str, Any]
    retries: dict[str, Any]
    fail_if: list[str]
    timeout_s: float | None
    priority: int
    client: dict[str, Any] = field(repr=False)
    outage_patience_s: float | None
    output_form: OutputForm | None
    answer_field: str | None
    ordered: bool
    dedupe: bool
    journal: str | None
    new: bool
    retry_failed: bool
    dry_run: bool
    pilot: int | None
    yes: bool
    audit: float | None
    cost: Cost | None
    metrics: Address | None
    quiet: bool
    draws: bool

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments of ``stream_map`` about each row's call, beside its prompt."""
        return {
            "call": self.call,
            "timeout_s": self.timeout_s,
            "priority": self.priority,
            "response_model": self.schema,
            "repair": Repair(self.retries["invalid"], self.retries["truncated"], self.retries["max_tokens"]),
            **({"runaway": True} if self.retries["runaway"] else {}),
            # The media of open rows are in memory.
            **({} if self.media is None else {"look_ahead": 512}),
            **self.params,
        }
