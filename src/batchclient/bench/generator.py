"""The load of one measurement: calls made on schedule, and what became of each.

Rules:
- An arrival waits for nobody. Its latency runs from its scheduled time, however late the generator
  or the client was.
- A measurement has three parts: warm-up, window, grace. The load is the same in all three. Calls
  that are scheduled in the window are counted, and the load goes on until all of these have ended,
  for ``grace_s`` at most. A counted call that is not back then is unanswered; it is not left out.
- A caller of a closed load pauses after a failed call: nobody calls a dead server in a loop.
- At the end no call is left: those under way are cancelled.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from array import array
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from batchclient import ConfigError
from batchclient.bench.arrivals import Closed, Load, Poisson
from batchclient.bench.calls import FAILED, Calls

__all__ = ["Call", "Times", "Window", "generate"]

Call = Callable[[str, Calls, int], Awaitable[None]]
"""Makes one call with a prompt, and notes its times at its place."""
_BEAT_S = 0.02
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 1.0
"""Of a caller after a failed call: doubled until a call is answered."""
_HORIZON_S = 1.0
"""How long after the end of grace the drawn arrivals reach, seconds."""


@dataclass(frozen=True, slots=True)
class Times:
    """The parts of a measurement, seconds.

    Args:
        warm_up_s: before the window.
        window_s: the calls scheduled in it are counted.
        grace_s: after the window, for answers to come.

    Raises:
        ConfigError: a value is wrong.
    """

    warm_up_s: float = 5.0
    window_s: float = 30.0
    grace_s: float = 60.0

    def __post_init__(self) -> None:
        for name in ("warm_up_s", "window_s", "grace_s"):
            value = getattr(self, name)
            least = "above 0" if name == "window_s" else "0 or more"
            is_number = type(value) in (int, float) and 0 <= value < math.inf
            if not is_number or (name == "window_s" and not value):
                raise ConfigError(f"{name}: seconds, {least}", field=name)


@dataclass(frozen=True, slots=True)
class Window:
    """The calls of a measurement, and the part of them that counts.

    Args:
        calls: all calls, those of warm-up and grace, too.
        begins, ends: of the window, on the calls' clock.
        cpu_share: CPU time of this process in the window, as a share of one core.
        lags: how late the event loop was in the window, seconds, every 20 ms.
    """

    calls: Calls
    begins: float
    ends: float
    cpu_share: float
    lags: array[float] = field(default_factory=lambda: array("d"))


async def generate(
    call: Call,
    load: Load,
    prompts: Iterator[str],
    times: Times,
    seed: int,
    cpu_s: Callable[[], float] = time.process_time,
) -> Window:
    """Make the calls of one measurement.

    Args:
        call: makes one call.
        load: when calls are made.
        prompts: a new one for each call.
        times: the measurement's parts.
        seed: of the arrivals.
        cpu_s: CPU seconds of this process so far.
    """
    return await _LoadRun(call, load, prompts, times, seed, cpu_s).run()


class _LoadRun:
    def __init__(
        self,
        call: Call,
        load: Load,
        prompts: Iterator[str],
        times: Times,
        seed: int,
        cpu_s: Callable[[], float],
    ) -> None:
        self._call = call
        self._load = load
        self._prompts = prompts
        self._times = times
        self._seed = seed
        self._cpu_s = cpu_s
        self._cpu_share = 0.0
        self._lags = array("d")
        self._calls = Calls()
        self._loop = asyncio.get_running_loop()
        self._starts = self._loop.time()
        self._begins = self._starts + times.warm_up_s
        self._ends = self._begins + times.window_s
        self._open = 0
        """Counted calls under way, and the arrivals themselves."""
        self._done = asyncio.Event()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._fault: BaseException | None = None
        """What a call raised that it does not note: a fault of the measurement."""

    async def run(self) -> Window:
        closing = self._loop.create_task(self._close())
        try:
            if isinstance(self._load, Closed):
                # A caller is a task: it makes its next call when the last one is answered.
                for _ in range(self._load.callers):
                    self._begin(self._caller())
                await closing
            else:
                self._begin(self._arrive(self._load))
                await closing
            if self._fault is not None:
                raise self._fault
            return Window(self._calls, self._begins, self._ends, self._cpu_share, self._lags)
        finally:
            closing.cancel()
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(closing, *self._tasks, return_exceptions=True)

    async def _close(self) -> None:
        """Wait for the end of the window, then for the counted calls."""
        await asyncio.sleep(self._begins - self._loop.time())
        cpu_s, now = self._cpu_s(), self._loop.time()
        while (left := self._ends - self._loop.time()) > 0:
            await self._beat(min(_BEAT_S, left))
        self._cpu_share = (self._cpu_s() - cpu_s) / (self._loop.time() - now)
        if self._open:
            self._done.clear()
            try:
                async with asyncio.timeout(self._times.grace_s):
                    await self._done.wait()
            except TimeoutError:
                return

    async def _beat(self, seconds: float) -> None:
        """Wait, and note by how much too long: the event loop had other work, or no CPU."""
        due = self._loop.time() + seconds
        await asyncio.sleep(seconds)
        self._lags.append(self._loop.time() - due)

    def _begin(self, coroutine: Awaitable[object]) -> None:
        task = asyncio.ensure_future(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (fault := task.exception()) is not None:
            self._fault = fault

    async def _caller(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while True:
            # The next call is due as soon as its caller has the answer.
            place = self._note(self._loop.time())
            await self._one(place, next(self._prompts))
            if self._calls.outcomes[place] == FAILED:
                await asyncio.sleep(pause_s)
                pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)
            else:
                pause_s = _FIRST_PAUSE_S

    async def _arrive(self, load: Poisson) -> None:
        length = self._ends - self._starts + self._times.grace_s + _HORIZON_S
        arrivals = (self._starts + at for at in load.times(length, self._seed))
        # The window is not over before its last arrival is made, however late.
        self._count(+1)
        in_window, pending = True, list[float]()
        try:
            for due in arrivals:
                pending = [due]
                if in_window and due >= self._ends:
                    in_window = False
                    self._count(-1)
                prompt = next(self._prompts)
                # Also where the generator is behind its schedule, the others have their turn.
                await asyncio.sleep(max(0.0, due - self._loop.time()))
                # Noted here: a task that is cancelled before its first step notes nothing.
                self._begin(self._one(self._note(due), prompt))
                pending = []
        finally:
            for due in itertools.chain(pending, arrivals) if in_window else ():
                if due >= self._ends:
                    break
                # The grace is over, and the generator has not come so far: nobody answered.
                self._calls.begin(due, math.nan)

    def _count(self, number: int) -> None:
        self._open += number
        if not self._open:
            self._done.set()

    def _note(self, scheduled: float) -> int:
        """Note a call that is due; return its place."""
        self._count(+self._counts(scheduled))
        return self._calls.begin(scheduled, math.nan)

    def _counts(self, scheduled: float) -> bool:
        return self._begins <= scheduled < self._ends

    async def _one(self, place: int, prompt: str) -> None:
        """Make a call."""
        self._calls.begun[place] = self._loop.time()
        try:
            await self._call(prompt, self._calls, place)
        finally:
            self._count(-self._counts(self._calls.scheduled[place]))
