"""``map --pilot N``: N rows at random go first, and tell what the others will take.

- The rows go through a map like the job's and into its journal: the job takes their answers there.
- On a terminal the command asks whether to go on; elsewhere it goes on, unless a bound of
  ``--fail-if`` is broken: its whole interval is above the bound.
"""

from __future__ import annotations

import asyncio
import math
import os
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from batchclient import BatchClient, MapResult
from batchclient._maps.fail_if import LEAST_ROWS, FailIf
from batchclient._maps.finish_by import FinishBy
from batchclient._maps.forecast import Interval, Look, seconds, share, total
from batchclient._maps.kinds import Kinds
from batchclient._maps.row_calls import RowCall
from batchclient.cli._dry_run import Reading
from batchclient.cli._kept import Kept, pilot_in
from batchclient.cli._map_options import MapOptions
from batchclient.cli._progress import written_time
from batchclient.cli._words import say
from batchclient.errors import TooManyBadRows
from batchclient.jobs import Row
from batchclient.jobs.source import in_thread
from batchclient.maps import map_of

__all__ = ["Pilot", "asks"]

_LOOK_S = 0.05
_WIDE = 1.5


class Pilot:
    """The rows of a job that go first.

    Args:
        client: of the job.
        read: all rows of the input, with those that go first.
        call_of: from a row to its call.
        options: of the command.
        kept: keeps the answers; without it each row is sent.
        finish_by: keeps the time of the job, which learns from the pilot.

    Attributes:
        size: rows that go first.
        sent: of these, rows that were not in the journal.
        to_send: the other rows that the job sends, once the pilot has run.
        prompts, answers, seconds: their tokens and time.
        kinds: answers of the pilot by health, and rows that failed.
        taken: its rows, as the map counts them.
    """

    def __init__(
        self,
        client: BatchClient,
        read: Reading,
        call_of: Callable[[Row], RowCall],
        options: MapOptions,
        kept: Kept | None,
        finish_by: FinishBy | None = None,
    ) -> None:
        self.size: int = len(read.drawn)
        self.sent: int = 0
        self.to_send: int = 0
        self.prompts = self.answers = self.seconds = Interval(0.0, 0.0)
        self.kinds: Counter[str] = Counter()
        self._client = client
        self._read = read
        self._others = read.usable - self.size
        self._options = options
        journal = None if kept is None else kept.journal
        self._kept, self._row_s = kept, None if journal is None else pilot_in(journal)
        rows = [each.row for each in read.drawn]
        self._results = map_of(
            client.stream_map(rows, call_of, **options.arguments, **options.bounds, journal=journal), options.id
        )
        self._finish_by = finish_by
        if finish_by is not None:
            self._results.finish_by = finish_by.of_pilot(self.size)
        self.taken: Kinds = self._results.kinds or Kinds()
        self._rules = [FailIf([rule], options.call) for rule in options.fail_if or []]
        self._rows: list[tuple[int, int, int]] = []
        """Bytes and tokens of each prompt, and tokens of its answer; the rows that were sent come first."""
        self._looks: list[Look] = []

    def __repr__(self) -> str:
        return f"<Pilot: {len(self._rows)} of {self.size} rows>"

    async def run(self, is_last: Callable[[MapResult[Any]], bool]) -> None:
        """Map the rows, until the function says of one's result that no more are needed.

        Raises:
            BatchClientError: as a map.
        """
        sizes = {id(each.row): each.size for each in self._read.drawn}
        await self._results.begin()
        looking = asyncio.ensure_future(self._look_on())
        try:
            if self._kept is not None:
                await in_thread(self._kept.note_begun)
            async for result in self._results:
                if is_last(result):
                    break
                usage = None if result.answer is None else result.answer.usage
                out = getattr(result.answer, "output_tokens", None) or 0
                row = sizes[id(result.document)], 0 if usage is None else usage.prompt_tokens, out
                self._rows.insert(len(self._rows) if result.reused else self.sent, row)
                self.sent += not result.reused
                self.kinds["failed" if result.error is not None else result.health or "ok"] += 1
                for rule in self._rules:
                    rule.add(result)
        finally:
            looking.cancel()
            await self._results.aclose()
        self._look()
        if self._finish_by is not None:
            # As long as they are when they are sent.
            longer = self._read.bytes / (sum(each * count for each, count in self._read.sizes.items()) or 1)
            self._finish_by.pilot = self._looks, [(longer * row[0], row[2]) for row in self._rows[: self.sent]]
        known = self.sent if self._kept is None else await in_thread(self._kept.settled)
        # Rows that the journal has take nothing, nor do equal ones with --dedupe.
        known += self._read.duplicates if self._options.dedupe else 0
        self.to_send = max(self._read.usable - known, 0) if self._others else 0

    async def _look_on(self) -> None:
        while True:
            self._look()
            # A short pilot is looked at as often as a long one.
            await asyncio.sleep(min((self._looks[-1].at - self._looks[0].at) / 50 + 0.001, _LOOK_S))

    def _look(self) -> None:
        now = self._client.statistics()
        self._looks.append(Look(asyncio.get_running_loop().time(), now.in_flight, now.queued))

    @property
    def broken(self) -> TooManyBadRows | None:
        """The bound that the job would break."""
        for error in filter(None, (rule.at_end() for rule in self._rules if len(self._rows) >= LEAST_ROWS)):
            bound = float(error.rule.partition(">")[2].rstrip("% ")) / 100
            if share(error.count, error.rows, self._others).low > bound:
                return error
        return None

    @property
    def spread(self) -> tuple[float, ...]:
        """The bounds of the time that is left, relative to what the rate of now says."""
        low, high = self.seconds
        return (2 * low / (low + high), 2 * high / (low + high)) if high else (1.0,)

    def forecast(self) -> list[str]:
        """Return what the rows tell, for people."""
        read, rows, others, to_send = self._read, self._rows, self._others, self.to_send
        took_s = self._looks[-1].at - self._looks[0].at
        lines = [f"pilot: {len(rows):,} of {read.usable:,} rows at random, in {took_s:.1f} s"]
        if not to_send:
            return lines
        size = (sum(each * count for each, count in read.sizes.items()) - sum(row[0] for row in rows)) / others
        self.prompts, self.answers = (total([(row[0], row[at]) for row in rows], to_send, size) for at in (1, 2))
        lines[0] += f"; the other {to_send:,}, by 90 % intervals:"
        hint = ""
        if self.sent:
            limit = sum(each.limit for each in self._client.statistics().endpoints)
            sent = [(row[0], row[2]) for row in rows[: self.sent]]
            self.seconds = seconds(self._looks, limit, sent, to_send, size)
        elif self._row_s is not None:
            # The rows of an earlier pilot are in the journal, and so is what they told.
            hint = ", by the earlier pilot"
            self.seconds = Interval(self._row_s[0] * to_send, self._row_s[1] * to_send)
        low, high = self.seconds
        if high:
            hint = hint or ("; a larger pilot tells more" if high > _WIDE * low else "")
            lines.append(f"  time: {written_time(math.floor(low))} to {written_time(math.ceil(high))}{hint}")
        tokens = ((self.prompts, "in"), (self.answers, "out"))
        told = [f"{low:,.0f} to {high:,.0f} {way}" for (low, high), way in tokens if high]
        lines += [f"  tokens: {', '.join(told)}"] if told else []
        if (cost := self._options.cost) is not None and cost.price is not None:
            lines.append(f"  cost: {' to '.join(map(cost.written, self.prompts, self.answers, self.seconds))}")
        kinds = ((kind, share(count, len(rows), others)) for kind, count in self.kinds.most_common())
        told = [f"{100 * each.low:.3g} to {100 * each.high:.3g} % {kind}" for kind, each in kinds]
        return [*lines, f"  answers: {', '.join(told)}"]


async def asks() -> bool | None:
    """Ask on the terminal whether to go on; ``None``: there is none."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        return None
    say("go on? [y/N]")
    ready, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_reader(sys.stdin, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(sys.stdin)
    return os.read(sys.stdin.fileno(), 1024).strip().lower() in (b"y", b"yes")
