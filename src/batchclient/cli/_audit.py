"""``map --audit P%``: some rows are asked again, alone, and their answers compared.

Rules:
- The rows are drawn by a hash of their ids, so that the same rows are drawn whatever came first.
- They are asked again when ``OUT`` is whole, one in flight, with ``temperature=0``: an answer that
  is another one now has changed under load, or was somebody else's.
- A row with a temperature of its own is left out.
- Nothing of an answer is shown, but where it begins to differ.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from typing import Any

from batchclient import Completion, MapResult
from batchclient._maps.row_calls import RowCall
from batchclient.cli._refusal import Refusal
from batchclient.jobs import BadRow, Row
from batchclient.maps import Map

__all__ = ["Audit", "audit_from"]

_MOST = 4096
"""Rows that are asked again, at most: their answers are in memory."""
_SHOWN = 5


def audit_from(text: str | None, call: str, params: Mapping[str, Any]) -> float | None:
    """Read ``--audit``; return the share of the rows.

    Raises:
        Refusal: it is no share, or answers to a prompt differ by chance.
    """
    if text is None:
        return None
    try:
        share = float(text.removesuffix("%")) / 100 if text.endswith("%") else 0.0
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise Refusal(f"--audit: a share of the rows, such as 0.5%, not {text!r:.40}")
    if call not in ("complete", "chat"):
        raise Refusal(f"--audit: --call {call} generates nothing")
    if params.get("temperature") != 0:
        raise Refusal("--audit: without --temperature 0 answers differ by chance")
    return share


class Audit:
    """The rows that are asked again.

    Args:
        share: of the rows.
        call_of: from a row to its call.
        map_alone: maps rows by a reader of calls, one row in flight.

    Attributes:
        asked: rows that were answered again.
        failed: rows that were not.
        differing: of the rows asked, those with another answer: where, with the id.
    """

    def __init__(
        self,
        share: float,
        call_of: Callable[[Row], RowCall],
        map_alone: Callable[[list[Row], Callable[[Row], RowCall]], Map[Any]],
    ) -> None:
        self.asked = self.failed = 0
        self.differing: list[str] = []
        self._share = share
        self._call_of = call_of
        self._map_alone = map_alone
        self._drawn: list[tuple[Row, str]] = []
        self._first: tuple[float, Row, str] | None = None
        """The row of the least hash, which is drawn in any case."""

    def __repr__(self) -> str:
        return f"<Audit: {self.asked} of {len(self._drawn)} rows>"

    def add(self, result: MapResult[Any]) -> None:
        """Draw a row of the job, or leave it."""
        if not isinstance(result.answer, Completion):
            return
        place = int.from_bytes(hashlib.blake2b(result.id.encode(), digest_size=8).digest()) / 2**64
        if place < self._share and len(self._drawn) < _MOST:
            self._drawn.append((result.document, _said(result.answer)))
        elif self._first is None or place < self._first[0]:
            self._first = place, result.document, _said(result.answer)

    async def run(self) -> None:
        """Ask the rows again."""
        drawn = self._drawn or ([] if self._first is None else [self._first[1:]])
        async with self._map_alone([row for row, _ in drawn], self._call_alone) as results:
            async for result in results:
                row, before = drawn[result.index]
                if not isinstance(result.answer, Completion):
                    self.failed += 1
                    continue
                self.asked += 1
                now = _said(result.answer)
                if now != before:
                    place = next(
                        (at for at, (a, b) in enumerate(zip(before, now, strict=False)) if a != b),
                        min(map(len, (before, now))),
                    )
                    self.differing.append(f"{row.where} (id {result.id}): from character {place + 1:,} on")

    def _call_alone(self, row: Row) -> RowCall:
        made = self._call_of(row)
        if made.params.get("temperature") not in (None, 0):
            raise BadRow("a temperature of its own")
        return made

    def lines(self) -> list[str]:
        """Return what came of it, for people."""
        left_out = f", and {self.failed:,} not answered" if self.failed else ""
        lines = [f"audit: {self.asked:,} rows asked again alone{left_out}; other answers: {len(self.differing):,}"]
        return lines + [f"  {each}" for each in self.differing[:_SHOWN]]


def _said(answer: Completion) -> str:
    """Return what an answer says; ids of tool calls are drawn anew each time."""
    said = []
    for choice in answer.choices:
        calls = (choice.message or {}).get("tool_calls") or ()
        said += [choice.text or "", *(json.dumps(each.get("function")) for each in calls)]
    return "\0".join(said)
