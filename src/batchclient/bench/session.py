"""One server under measurement: what it is, and its cells, one after the other.

Rules:
- A call before the first cell finds out the model, whether answers can have a fixed length, and how
  many tokens a word has. If the call fails, nothing is measured.
- No prompt comes twice in a session: prompts are numbered through all cells.
- Where a process of ``AsyncOpenAI`` is busy, the cell is measured again with twice as many, up to
  one for each core. The first measurement is in no output.
- A cell waits until the server is idle. A server that stays busy works for somebody else: the cell
  is marked.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from batchclient.bench.arrivals import Closed, Load, Poisson
from batchclient.bench.cell import Cell, Setting, cell_of
from batchclient.bench.generator import Times, Window, generate
from batchclient.bench.pages import Page, cache_hit_share, fetch_page, told
from batchclient.bench.processes import generate_in_processes
from batchclient.bench.slo import Slo
from batchclient.bench.strategies import RIVAL, Target, callers_of, open_strategy
from batchclient.bench.workload import Workload
from batchclient.client import BatchClient
from batchclient.dialects._metrics import EMPTIED_BY_READING
from batchclient.errors import BadRequest, BatchClientError, ConfigError
from batchclient.transport import Transport

__all__ = ["Session", "begin"]

_IDLE_WITHIN_S = 5.0
_LOOK_AGAIN_S = 0.25
_STILL_S = 2.0
"""A server that has generated nothing for so long is idle, whatever its page says."""
_FIRST_BLOCK, _BLOCK = 1 << 31, 10_000_000
"""The first number of the prompts of cells with several processes, and the numbers of each cell."""
_HALF_BUSY = 0.5
"""A process with a smaller share of a core is late for another reason: more of them do not help."""
_FIXED_LENGTH: dict[str, Any] = {"ignore_eos": True}


@dataclass(slots=True)
class Session:
    """A server, a workload, and what is asked of the cells.

    Args:
        target: the server.
        server: its name and version; ``None``: not known.
        workload: the calls.
        times: the parts of a cell.
        slos: the objectives.
        seed: of arrivals and orders.
        burstiness: of the arrivals of open loads.
        cpu_s: CPU seconds of this process so far.
        on_window: given the calls of each cell; ``None``: nobody is.
        processes: of ``AsyncOpenAI``; it grows as needed.
    """

    target: Target
    server: str | None
    workload: Workload
    times: Times
    slos: Sequence[Slo] = ()
    seed: int = 0
    burstiness: float = 1.0
    cpu_s: Callable[[], float] = time.process_time
    on_window: Callable[[Setting, int, Window], object] | None = None
    processes: int = 1
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))
    _blocks: itertools.count[int] = field(default_factory=itertools.count)

    async def cell(self, setting: Setting, repetition: int = 0) -> Cell:
        """Measure one setting once.

        Args:
            setting: what to measure.
            repetition: from 0; another repetition has other arrivals.
        """
        before, others = await self._idle_page()
        window, list_sizes, limit_changes = await self._window(setting, repetition)
        after = await self._page()
        cell = cell_of(
            setting,
            repetition,
            window,
            self.slos,
            list_sizes=list_sizes,
            cache_hit_share=cache_hit_share(before, after),
            server=told(before, after),
            limit_changes=limit_changes,
            others=others,
            prefix_reuse=bool(self.workload.prefix_reuse),
        )
        if cell.measured_the_client and cell.client_cpu_share > _HALF_BUSY and self._adds_processes(setting):
            return await self.cell(setting, repetition)
        if self.on_window is not None:
            self.on_window(setting, repetition, window)
        return cell

    async def _window(
        self, setting: Setting, repetition: int
    ) -> tuple[Window, dict[int, int], list[tuple[float, int]]]:
        """Return the calls, the sizes of lists, and the limit's changes since the cell's begin."""
        load, seed = self._load_of(setting), self.seed * 1_000_003 + repetition
        processes = min(self.processes, setting.concurrency or self.processes)
        if setting.strategy == RIVAL and processes > 1:
            first_number = _FIRST_BLOCK + next(self._blocks) * _BLOCK
            try:
                window = await generate_in_processes(
                    processes, setting, self.target, self.workload, load, self.times, seed, first_number
                )
            except RuntimeError as error:
                raise BenchFailed(str(error)) from None
            return window, {1: sum(not math.isnan(at) for at in window.calls.sent)}, []
        async with open_strategy(setting, self.target, self.workload) as opened:
            prompts = map(self.workload.prompt, self._numbers)
            window = await generate(opened.call, load, prompts, self.times, seed, self.cpu_s)
            began = window.begins - self.times.warm_up_s
            changes = [(max(0.0, round(at - began, 4)), limit) for at, limit in opened.limit_changes()]
            return window, opened.list_sizes(), changes

    def _adds_processes(self, setting: Setting) -> bool:
        """Whether the rival has more processes from now on: one of them was too slow for a cell."""
        callers = setting.concurrency or self.processes * 2
        if setting.strategy != RIVAL or self.target.transport is not None:
            return False
        if self.processes * 2 > min(callers, os.cpu_count() or 1):
            return False
        self.processes *= 2
        return True

    def _load_of(self, setting: Setting) -> Load:
        if setting.rate is not None:
            return Poisson(setting.rate, self.burstiness)
        return Closed(callers_of(setting))

    async def _page(self) -> Page:
        return None if (self.server or "").partition(" ")[0] in EMPTIED_BY_READING else await fetch_page(self.target)

    async def _idle_page(self) -> tuple[Page, bool]:
        """Return the server's page once the server is idle, and whether it never was.

        A page may tell the sequences of the last step for ever where all were cancelled at once, as
        at the end of a cell (vLLM issues 22545 and 29928).
        """
        loop = asyncio.get_running_loop()
        began = moved = loop.time()
        generated: float | None = None
        while True:
            page = await self._page()
            now = loop.time()
            if page is None or not (page.running or page.waiting):
                return page, False
            if generated is None or page.generation_tokens != generated:
                generated, moved = page.generation_tokens, now
            if now - moved >= _STILL_S:
                return page, False
            if now - began >= _IDLE_WITHIN_S:
                return page, True
            await asyncio.sleep(_LOOK_AGAIN_S)


async def begin(
    base_url: str,
    workload: Workload,
    times: Times,
    slos: Sequence[Slo] = (),
    *,
    model: str | None = None,
    api_key: str | None = None,
    headers: Mapping[str, str] | None = None,
    seed: int = 0,
    burstiness: float = 1.0,
    budget_s: float | None = None,
    transport: Callable[[str, Mapping[str, str]], Transport] | None = None,
    cpu_s: Callable[[], float] = time.process_time,
) -> Session:
    """Make a first call, and return what the server's measurement needs.

    Args:
        base_url, model, api_key, headers, transport: as for ``BatchClient``.
        workload, times, slos, seed, burstiness, cpu_s: see ``Session``.
        budget_s: the most time for the call, seconds.

    Raises:
        BatchClientError: the first call failed.
        BenchFailed: it had no answer within the budget.
    """
    target = Target(base_url, model or "", api_key, dict(headers or {}), {}, transport)
    client = BatchClient(**{**target.arguments(), "model": model}, from_environment=False)
    try:
        async with asyncio.timeout(budget_s):
            answer, fields = await _first_answer(client, workload)
            # The server's name is asked for beside the first call.
            await client.drain()
        server = client.statistics().endpoints[0].server
        # The name that calls have: some servers answer with another one, or with none.
        name = client._engine.calls.model(None)
    except TimeoutError:
        raise BenchFailed("the first call had no answer within the budget") from None
    finally:
        await client.aclose()
    if answer.usage is not None and not answer.usage.prompt_tokens_estimated:
        workload = workload.fitted(len(workload.prompt(0).split()), answer.usage.prompt_tokens)
    target = replace(target, model=name, fields=fields)
    return Session(target, server, workload, times, tuple(slos), seed, burstiness, cpu_s)


async def _first_answer(client: BatchClient, workload: Workload) -> tuple[Any, dict[str, Any]]:
    """Return the answer to a call, and the fields that give answers a fixed length."""
    prompt = workload.prompt(0)
    if workload.call == "embed":
        return await client.embed(prompt), {}
    item: Any = [{"role": "user", "content": prompt}] if workload.call == "chat" else prompt
    make: Any = client.chat if workload.call == "chat" else client.complete
    try:
        return await make(item, max_tokens=workload.output_tokens, **_FIXED_LENGTH), _FIXED_LENGTH
    except (BadRequest, ConfigError):
        return await make(item, max_tokens=workload.output_tokens), {}


def failure_of(cell: Cell) -> str | None:
    """Return the errors of a cell in which no call was answered; ``None``: some were."""
    if cell.answered or not cell.scheduled:
        return None
    errors = ", ".join(f"{count:,} × {name}" for name, count in sorted(cell.failed.items()))
    return errors or "no call was answered in time"


class Silence:
    """A look at each cell of a session: a server that answers nothing is measured no further.

    Attributes:
        cells: seen so far.
    """

    def __init__(self) -> None:
        self.cells: int = 0
        self._was_silent = self._has_answered = False

    def check_first(self, cell: Cell) -> None:
        """Look at a cell before anybody is told of the cell.

        Raises:
            BenchFailed: the cell is the first one, and no call was answered.
        """
        failure = failure_of(cell)
        if not self.cells and failure is not None:
            raise BenchFailed(f"no call was answered: {failure}")

    def check(self, cell: Cell, slos: Sequence[Slo]) -> None:
        """Look at a cell that is written down.

        Raises:
            BenchFailed: no call was answered in this cell and the one before; or calls were
                answered, and none tells the time of an objective: it would miss its bound.
        """
        self.cells += 1
        failure = failure_of(cell)
        if self._has_answered and cell.setting.rate is None and not cell.scheduled:
            # Callers that all wait for a server that went away schedule nothing.
            failure = "all callers waited for answers"
        if failure is not None and self._was_silent:
            raise BenchFailed(f"no call was answered in the last two measurements: {failure}")
        self._was_silent = failure is not None
        self._has_answered = self._has_answered or bool(cell.answered)
        for slo in slos:
            if cell.answered and slo.measure not in cell.times:
                raise BenchFailed(
                    f"slo {slo.text}: no answer to {cell.setting.strategy} tells this time: calls of few tokens may"
                    " travel without a stream; more output tokens have one"
                )


class BenchFailed(BatchClientError):
    """Nothing could be measured; the message says why."""
