"""``map --pilot N``: N rows at random go first, and tell what the others will take.

Rules:
- The rows go through a map like the job's and into its journal, so that the job takes their answers
  from there.
- On a terminal the command asks whether to go on; elsewhere it goes on, unless a bound of
  ``--fail-if`` is broken. A pilot breaks a bound where the whole interval is above it.
- What is forecast is for the other rows; ``forecast`` says how.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

from batchclient import BatchClient, MapResult
from batchclient._maps.fail_if import FailIf
from batchclient.cli._cost import Cost, written_cost
from batchclient.cli._reading import Reading
from batchclient.cli._words import say
from batchclient.errors import TooManyBadRows
from batchclient.jobs.forecast import Interval, Load, Sampled, seconds, share, total
from batchclient.maps import Map

__all__ = ["Pilot", "asks", "written_time"]

_LOOK_S = 0.05
_FAR = 1.5
"""Where a job may have so many times more in flight than its pilot, a word is due."""


class Pilot:
    """The rows of a job that go first.

    Args:
        client: of the job.
        results: of that client's map of the rows.
        read: all rows of the input, with those that go first.
        fail_if: bounds on the shares of bad rows.
        cost: the price of the work, if given.
        kept: rows that the journal has, at most; they are not sent again.

    Attributes:
        done: rows that have ended.
        broken: the bound that the job would break, if there is one.
        per_row: seconds and output tokens per row to come, as the journal keeps them.
    """

    def __init__(
        self,
        client: BatchClient,
        results: Map[Any],
        read: Reading,
        *,
        fail_if: tuple[str, ...] = (),
        cost: Cost | None = None,
        kept: int = 0,
    ) -> None:
        self.results: Map[Any] = results
        self.done = 0
        self.broken: TooManyBadRows | None = None
        self.per_row: dict[str, Interval] = {}
        self._client = client
        self._read = read
        self._rules = [FailIf([rule]) for rule in fail_if]
        self._cost = cost
        self._kept = kept
        self._kinds: Counter[str] = Counter()
        self._rows: list[tuple[int, int, int, bool]] = []
        """Bytes and tokens of the prompt, tokens of the answer, and whether the row was sent."""
        self._sizes = {id(prompt.row): prompt.size for prompt in read.drawn}
        self._others = read.usable - len(read.drawn)
        self._seconds = 0.0
        self._load = Load(0.0)

    def __repr__(self) -> str:
        return f"<Pilot: {self.done} of {len(self._read.drawn)} rows>"

    @property
    def is_part(self) -> bool:
        """Whether there are other rows."""
        return self._others > 0

    async def run(self, on_result: Callable[[MapResult[Any]], None]) -> None:
        """Map the rows.

        Args:
            on_result: told each row's; it may raise.

        Raises:
            BatchClientError: as for a map.
        """
        await self.results.prepare()
        clock = asyncio.get_running_loop().time
        began_at = clock()
        self._load = Load(began_at)
        looking = asyncio.ensure_future(self._look_on(clock))
        try:
            async for result in self.results:
                self._take(result)
                on_result(result)
        finally:
            looking.cancel()
            await self.results.aclose()
        self._look(clock())
        self._seconds = clock() - began_at
        self.broken = next((error for rule in self._rules if (error := self._broken(rule))), None)

    def _take(self, result: MapResult[Any]) -> None:
        self.done += 1
        for rule in self._rules:
            rule.add(result)
        usage = None if result.answer is None else result.answer.usage
        tokens = (0, getattr(result.answer, "output_tokens", None) or 0)
        if usage is not None:
            tokens = usage.prompt_tokens, usage.completion_tokens
        self._rows.append((self._sizes[id(result.document)], *tokens, not result.reused))
        self._kinds["failed" if result.error is not None else result.health or "ok"] += 1

    async def _look_on(self, clock: Callable[[], float]) -> None:
        while True:
            self._look(clock())
            await asyncio.sleep(_LOOK_S)

    def _look(self, now: float) -> None:
        statistics = self._client.statistics()
        self._load.look(now, statistics.in_flight, statistics.queued)

    def _broken(self, rule: FailIf) -> TooManyBadRows | None:
        error = rule.at_end()
        if error is None:
            return None
        bound = float(error.rule.partition(">")[2].rstrip("% ")) / 100
        return error if share(error.count, error.rows, self._others).low > bound else None

    def lines(self) -> list[str]:
        """Return what the rows tell, for people."""
        read, rows, others = self._read, self._rows, self._others
        lines = [f"pilot: {self.done:,} of {read.usable:,} rows at random, in {self._seconds:.1f} s"]
        if not others or not rows:
            return lines
        # Rows that an earlier run has answered take nothing.
        reused = sum(not is_sent for *_, is_sent in rows)
        to_send = max(others - max(self._kept - reused, 0), 0)
        size = (sum(map(int.__mul__, read.sizes, read.sizes.values())) - sum(self._sizes.values())) / others
        lines[0] += f"; the other {to_send:,}, with 90 % certainty:"
        sent = [Sampled(row[0], row[2]) for row in rows if row[3]]
        limit = sum(each.limit for each in self._client.statistics().endpoints)
        time = seconds(self._load, limit, sent, to_send, size)
        prompts, answers = (total([Sampled(row[0], row[place]) for row in rows], to_send, size) for place in (1, 2))
        if sent:
            lines.append(f"  time: {written_time(time.low)} to {written_time(time.high)}")
            if (most := self._load.steady(limit)) > _FAR * self._load.mean:
                lines[-1] += f" (it had {self._load.mean:,.0f} in flight, and the job may have {most:,.0f}:"
                lines[-1] += " a larger pilot tells more)"
        told = [f"{_between(each)} {way}" for each, way in ((prompts, "in"), (answers, "out")) if each.high]
        if told:
            lines.append(f"  tokens: {', '.join(told)}")
        if self._cost is not None:
            low, high = (
                self._cost.price.cost(prompt_tokens=int(each[0]), completion_tokens=int(each[1]), seconds=each[2])
                for each in zip(prompts, answers, time, strict=True)
            )
            lines.append(f"  cost: {written_cost(low)} to {written_cost(high)}")
        kinds = [f"{_percent(share(count, self.done, others))} {kind}" for kind, count in self._kinds.most_common()]
        lines.append(f"  answers: {', '.join(kinds)}")
        if to_send:
            self.per_row = {"tokens": Interval(answers.low / to_send, answers.high / to_send)}
            self.per_row |= {"seconds": Interval(time.low / to_send, time.high / to_send)} if sent else {}
        return lines


async def asks() -> bool:
    """Ask on the terminal whether to go on; return the answer."""
    say("go on? [y/N]")
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(sys.stdin, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(sys.stdin)
    return os.read(sys.stdin.fileno(), 1024).strip().lower() in (b"y", b"yes")


def written_time(duration_s: float) -> str:
    """Write hours, minutes and seconds."""
    minutes, rest = divmod(round(duration_s), 60)
    return f"{minutes // 60}:{minutes % 60:02}:{rest:02}"


def _between(interval: Interval) -> str:
    return f"{interval.low:,.0f} to {interval.high:,.0f}"


def _percent(interval: Interval) -> str:
    return f"{100 * interval.low:.3g} to {100 * interval.high:.3g} %"
