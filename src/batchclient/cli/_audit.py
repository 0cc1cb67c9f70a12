"""``map --audit P%``: some rows are asked again, alone, and their answers compared.

- The rows are drawn by a hash of what they ask: the same ones in whatever order the answers come,
  in whatever shards the input is cut, and whatever ids the rows have.
- They are asked when ``OUT`` is whole, one in flight, with ``temperature=0``. An answer that is
  another one now has changed under load, or was somebody else's.
"""

from __future__ import annotations

import hashlib
import heapq
import json
from collections.abc import Callable, Mapping
from typing import Any

from batchclient import BatchClient, Completion, MapResult
from batchclient._maps.row_calls import RowCall
from batchclient.cli._refusal import Refusal
from batchclient.jobs import Row

__all__ = ["Audit", "audit_from"]

_MOST = 4096
"""Rows, at most: their answers are in memory."""
_SHOWN = 5


def audit_from(text: str | None, call: str, params: Mapping[str, Any]) -> float | None:
    """Read ``--audit``; return the share of the rows.

    Raises:
        Refusal: it is no share, or answers to one prompt differ by chance.
    """
    if text is None:
        return None
    number = text.removesuffix("%").replace(".", "", 1)
    share = float(text[:-1]) / 100 if number.isdecimal() and text.endswith("%") else 0.0
    if not 0 < share <= 1:
        raise Refusal(f"--audit: a share of the rows, such as 0.5%, not {text!r:.40}")
    if call not in ("complete", "chat") or params.get("temperature") != 0:
        raise Refusal("--audit is for texts generated with --temperature 0: others differ by chance")
    return share


class Audit:
    """The rows that are asked again.

    Args:
        client: of the job.
        share: of the rows.
        call_of: from a row to its call.
        sketch_of: likewise, and no file that a row names is opened.
        arguments: of the job's map.

    Attributes:
        asked: rows that were answered again.
        differing: where another answer is, with the id.
    """

    def __init__(
        self,
        client: BatchClient,
        share: float,
        call_of: Callable[[Row], RowCall],
        sketch_of: Callable[[Row], RowCall],
        arguments: Mapping[str, Any],
    ) -> None:
        self.asked = 0
        self.differing: list[str] = []
        self._client = client
        self._share = share
        self._call_of = call_of
        self._sketch_of = sketch_of
        self._alone = {**arguments, "look_ahead": 1}
        self._heap: list[tuple[int, int, Row, str]] = []
        """The drawn rows: of their hashes the largest, negated, is the first; and their places."""

    def __repr__(self) -> str:
        return f"<Audit: {self.asked} of {len(self._heap)} rows>"

    @property
    def drawn(self) -> list[tuple[Row, str]]:
        """The rows drawn so far, in the input's order, and what was answered."""
        return [(row, said) for _, _, row, said in sorted(self._heap, key=lambda each: -each[1])]

    def add(self, result: MapResult[Any]) -> None:
        """Draw a row of the job, or leave it; rows with a temperature of their own are left."""
        if not isinstance(result.answer, Completion):
            return
        made = self._sketch_of(result.document)
        if made.params.get("temperature"):
            return
        asked = json.dumps([made.call, made.item, dict(made.params), made.model], sort_keys=True, default=repr)
        drawn = int.from_bytes(hashlib.blake2b(asked.encode(), digest_size=8).digest())
        if drawn < self._share * 2**64:
            heapq.heappush(self._heap, (-drawn, -result.index, result.document, _said(result.answer)))
        if len(self._heap) > _MOST:
            heapq.heappop(self._heap)

    async def run(self) -> None:
        """Ask the rows again."""
        drawn = self.drawn
        rows = [row for row, _ in drawn]
        async with self._client.stream_map(rows, self._call_of, **self._alone) as results:
            async for result in results:
                row, before = drawn[result.index]
                if isinstance(result.answer, Completion):
                    self.asked += 1
                    if _said(result.answer) != before:
                        self.differing.append(f"{row.where}, id {result.id}")

    def lines(self) -> list[str]:
        """Return what came of it, for people."""
        rows = f"{self.asked:,} of {len(self._heap):,} rows answered again, alone"
        return [f"audit: {rows}; other answers: {len(self.differing):,}", *map("  {}".format, self.differing[:_SHOWN])]


def _said(answer: Completion) -> str:
    """Return what an answer says. The ids of its tool calls are other ones each time."""
    calls = [
        each.get("function") for choice in answer.choices for each in (choice.message or {}).get("tool_calls") or ()
    ]
    return json.dumps([[choice.text for choice in answer.choices], calls])
