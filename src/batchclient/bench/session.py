"""One server under measurement: what it is, and its measurements, one after the other.

Rules:
- A call before the first measurement finds out whether answers can have a fixed length, and how
  many tokens a word has. If the call fails, nothing is measured.
- No prompt comes twice in a session: prompts are numbered through all measurements.
- A measurement waits until the server is idle. A server that stays busy works for somebody else:
  the measurement is marked.
- A server that answers nothing is measured no further.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from batchclient import BadRequest, BatchClient, BatchClientError, ConfigError, ServerInfo, ServerLoad
from batchclient.bench.arrivals import Closed, Load, Poisson
from batchclient.bench.generator import Times, Window, generate
from batchclient.bench.measurement import Measurement, Setting, measurement_of
from batchclient.bench.openai_process import window_in_process
from batchclient.bench.slo import Slo
from batchclient.bench.strategies import BASELINE, Target, caller_of, callers_of, open_client
from batchclient.bench.workload import Workload
from batchclient.transport import Transport

__all__ = ["BenchFailed", "Run", "Session", "begin", "look_at"]

_IDLE_WITHIN_S = 5.0
_LOOK_AGAIN_S = 0.25
_STILL_S = 2.0
"""A server that has generated nothing for so long is idle, whatever its page says."""
_FIXED_LENGTH: dict[str, Any] = {"ignore_eos": True}


class BenchFailed(BatchClientError):
    """Nothing could be measured; the message says why."""


@dataclass(slots=True)
class Session:
    """A server, a workload, and what is asked of the measurements.

    Args:
        target: the server.
        server: its name and version; ``None``: not known.
        model: its name in reports; ``None``: not known.
        workload: the calls.
        times: the parts of a measurement.
        slos: the objectives.
        seed: of arrivals and orders.
        cpu_s: CPU seconds of this process so far.
        on_window: given the calls of each measurement; ``None``: nobody is.
        first_number: of the next prompt.
    """

    target: Target
    server: str | None
    model: str | None
    workload: Workload
    times: Times
    slos: Sequence[Slo] = ()
    seed: int = 0
    cpu_s: Callable[[], float] = time.process_time
    on_window: Callable[[Setting, int, Window], object] | None = None
    first_number: int = 1

    async def measure(self, setting: Setting, repetition: int = 0) -> Measurement:
        """Measure one setting once.

        Args:
            setting: what to measure.
            repetition: from 0; another repetition has other arrivals.

        Raises:
            BenchFailed: the process of ``AsyncOpenAI`` failed.
        """
        before, others = await self._idle_load()
        window, list_sizes, limit_changes = await self._window(setting, repetition)
        self.first_number += len(window.calls) + 1
        after = await self._load()
        if self.on_window is not None:
            self.on_window(setting, repetition, window)
        return measurement_of(
            setting,
            repetition,
            window,
            self.slos,
            list_sizes=list_sizes,
            cache_hit_share=_cache_hit_share(before, after),
            server={name: _known(load) for name, load in (("before", before), ("after", after)) if load is not None},
            limit_changes=limit_changes,
            others=others,
            prefix_reuse=bool(self.workload.prefix_reuse),
        )

    async def _window(
        self, setting: Setting, repetition: int
    ) -> tuple[Window, Mapping[int, int], list[tuple[float, int]]]:
        """Return the calls, the sizes of lists, and the limit's changes since the beginning."""
        load: Load = Closed(callers_of(setting)) if setting.rate is None else Poisson(setting.rate)
        seed = self.seed * 1_000_003 + repetition
        if setting.strategy == BASELINE:
            target, limit = replace(self.target, model=self.model), setting.concurrency
            try:
                window = await window_in_process(
                    target, self.workload, load, limit, self.times, seed, self.first_number
                )
            except RuntimeError as error:
                raise BenchFailed(str(error)) from None
            return window, {1: sum(window.calls.attempts)}, []
        prompts = map(self.workload.prompt, itertools.count(self.first_number))
        async with open_client(setting, self.target, self.workload) as (client, call):
            began = asyncio.get_running_loop().time()
            window = await generate(call, load, prompts, self.times, seed, self.cpu_s)
            statistics = client.statistics()
        changes = [each for each in statistics.adjustments if each.setting == "limit"]
        since = [(max(0.0, round(each.at - began, 4)), each.new) for each in changes]
        return window, statistics.list_sizes, [(0.0, changes[0].old), *since] if changes else []

    async def _load(self) -> ServerLoad | None:
        return (await look_at(self.target)).load

    async def _idle_load(self) -> tuple[ServerLoad | None, bool]:
        """Return the server's load once the server is idle, and whether it never was.

        A page may show the sequences of the last step for ever where all were cancelled at once, as
        at the end of a measurement (vLLM issues 22545 and 29928).
        """
        loop = asyncio.get_running_loop()
        began = moved = loop.time()
        generated: float | None = None
        while True:
            load, now = await self._load(), loop.time()
            if load is None or not (load.running or load.waiting):
                return load, False
            if generated is None or load.generation_tokens != generated:
                generated, moved = load.generation_tokens, now
            if now - moved >= _STILL_S or now - began >= _IDLE_WITHIN_S:
                return load, now - moved < _STILL_S
            await asyncio.sleep(_LOOK_AGAIN_S)


async def look_at(target: Target) -> ServerInfo:
    """Return what the server is and how busy it is, as far as its pages say; never raises for them."""
    async with target.client() as client:
        return (await client.servers())[0]


def _cache_hit_share(before: ServerLoad | None, after: ServerLoad | None) -> float | None:
    """Return the prefix cache's share of the prompt tokens between two pages; ``None``: not known."""
    if before is None or after is None:
        return None
    hits = _grown(before.prefix_hit_tokens, after.prefix_hit_tokens)
    asked = _grown(before.prefix_query_tokens, after.prefix_query_tokens)
    return None if hits is None or not asked else hits / asked


def _grown(before: float | None, after: float | None) -> float | None:
    return None if before is None or after is None or after < before else after - before


def _known(load: ServerLoad) -> dict[str, float]:
    return {name: value for name, value in asdict(load).items() if value is not None}


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
    budget_s: float | None = None,
    transport: Callable[[str, Mapping[str, str]], Transport] | None = None,
    cpu_s: Callable[[], float] = time.process_time,
) -> Session:
    """Make a first call, and return what the server's measurement needs.

    Args:
        base_url, model, api_key, headers: as for ``BatchClient``; ``transport`` as its ``http``.
        workload, times, slos, seed, cpu_s: see ``Session``.
        budget_s: the most time for the call, seconds.

    Raises:
        BatchClientError: the first call failed.
        BenchFailed: it had no answer within the budget.
    """
    target = Target(base_url, model, api_key, dict(headers or {}), {}, transport)
    try:
        async with asyncio.timeout(budget_s), target.client() as client:
            answer, target = await _first_answer(client, target, workload)
            info = (await client.servers())[0]
    except TimeoutError:
        raise BenchFailed("the first call had no answer within the budget") from None
    usage = answer.usage
    if usage is not None and not usage.prompt_tokens_estimated:
        workload = workload.fitted(len(workload.prompt(0).split()), usage.prompt_tokens)
    server = f"{info.name} {info.version or ''}".rstrip() if info.name else None
    named = model or next(iter(info.models), None) or answer.extra.get("model")
    return Session(target, server, named, workload, times, tuple(slos), seed, cpu_s)


async def _first_answer(client: BatchClient, target: Target, workload: Workload) -> tuple[Any, Target]:
    """Return the answer to a call, and the target with the fields that give answers a fixed length."""
    prompt = workload.prompt(0)
    if workload.call == "embed":
        return await client.embed(prompt), target
    fixed = replace(target, fields=_FIXED_LENGTH)
    try:
        answer = await caller_of(client, fixed, workload)(prompt)
    except (BadRequest, ConfigError):
        return await caller_of(client, target, workload)(prompt), target
    # A server may take the field, and not heed it.
    is_fixed = answer.usage is not None and answer.usage.completion_tokens == workload.output_tokens
    return answer, fixed if is_fixed else target


class Run:
    """The measurements of a search or a sweep, within a budget.

    Args:
        session: the server.
        budget_s: no measurement is begun that would end later, seconds; ``None``: no bound.
        on_measurement: given each one.

    Attributes:
        measurements: all so far.
        is_over: whether the budget has ended the run.
    """

    def __init__(
        self,
        session: Session,
        budget_s: float | None = None,
        on_measurement: Callable[[Measurement], object] = lambda _: None,
    ) -> None:
        self.session: Session = session
        self.measurements: list[Measurement] = []
        self.is_over: bool = False
        self._budget_s = budget_s
        self._on_measurement = on_measurement
        self._loop = asyncio.get_running_loop()
        self._began = self._loop.time()
        self._longest_s = session.times.warm_up_s + session.times.window_s
        self._last_failure: str | None = None

    async def measure(self, setting: Setting, repetition: int) -> Measurement | None:
        """Measure a setting; return ``None`` where the budget is spent.

        Raises:
            BenchFailed: no call of the first measurement was answered, or of two in a row; or calls
                were answered, and none tells the time of an objective: it would miss its bound.
        """
        started = self._loop.time()
        if self._budget_s is not None and self.measurements:
            self.is_over = started - self._began + self._longest_s > self._budget_s
            if self.is_over:
                return None
        done = await self.session.measure(setting, repetition)
        self._longest_s = max(self._longest_s, self._loop.time() - started)
        failure = self._failure_of(done)
        if failure is not None and not self.measurements:
            raise BenchFailed(f"no call was answered: {failure}")
        self.measurements.append(done)
        self._on_measurement(done)
        if failure is not None and self._last_failure is not None:
            raise BenchFailed(f"no call was answered in the last two measurements: {failure}")
        self._last_failure = failure
        for slo in self.session.slos:
            if done.answered and slo.measure not in done.times:
                raise BenchFailed(
                    f"slo {slo.text}: no answer to {setting.strategy} tells this time: calls of few tokens may"
                    " travel without a stream; more output tokens have one"
                )
        return done

    def _failure_of(self, done: Measurement) -> str | None:
        """Return why no call was answered; ``None``: some were, or none was to be made."""
        if done.answered:
            return None
        if not done.scheduled:
            # Callers that all wait for a server that went away schedule nothing.
            has_answered = any(each.answered for each in self.measurements)
            return "all callers waited for answers" if has_answered and done.setting.rate is None else None
        errors = ", ".join(f"{count:,} × {name}" for name, count in sorted(done.failed.items()))
        return errors or "no call was answered in time"
