"""``AsyncOpenAI`` in several processes: one makes some 500 calls a second and then measures itself.

Rules:
- A process makes a share of the callers, or every so manyth arrival of the one schedule, with
  prompts of its own. So the arrivals are those that one process would make.
- All begin at one moment of the machine's monotonic clock, which their event loops share.
- What a process is told, the key above all, goes through a pipe and stands in no list of processes.
- The processes end with the cell: a cancelled cell kills them, and one whose parent is gone ends
  itself. Ctrl-C reaches the parent alone.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import threading
import time
from array import array
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from batchclient.bench.arrivals import Closed, Load, Poisson
from batchclient.bench.calls import Calls
from batchclient.bench.cell import Setting
from batchclient.bench.generator import Times, Window, generate
from batchclient.bench.strategies import Target, open_strategy
from batchclient.bench.workload import Workload

__all__ = ["generate_in_processes", "main"]

_COMMAND = (sys.executable, "-c", "from batchclient.bench.processes import main; main()")
_SOON_S = 0.2
_TIMES = ("scheduled", "begun", "sent", "first", "ended")
_COUNTS = ("prompt_tokens", "output_tokens", "attempts")


async def generate_in_processes(
    count: int,
    setting: Setting,
    target: Target,
    workload: Workload,
    load: Load,
    times: Times,
    seed: int,
    first_number: int,
) -> Window:
    """Make the calls of a cell in several processes.

    Args:
        count: processes; no more than there are callers.
        setting, target, workload: of the strategy in each of them.
        load: of all together.
        times, seed: as for ``generate``.
        first_number: of the first prompt; the processes' numbers interleave.

    Raises:
        RuntimeError: a process failed.
    """
    processes = []
    try:
        for place, share in enumerate(_shares(load, count)):
            told = {
                "setting": asdict(replace(setting, concurrency=_limit_of(setting, count, place))),
                "target": {name: getattr(target, name) for name in ("base_url", "model", "api_key", "fields")}
                | {"headers": dict(target.headers)},
                "workload": {each: getattr(workload, each) for each in workload.__slots__},
                "load": asdict(share),
                "times": asdict(times),
                "seed": seed,
                "turn": [place, count],
                "numbers": [first_number + place, count],
            }
            process = await asyncio.create_subprocess_exec(
                *_COMMAND,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=1 << 30,
                start_new_session=True,
            )
            processes.append(process)
            _write(process, json.dumps(told))
        for process in processes:
            await _read(process)
        # All are ready: their imports are done.
        start = json.dumps(time.monotonic() + _SOON_S)
        for process in processes:
            _write(process, start)
        return _joined([json.loads(await _read(process)) for process in processes])
    finally:
        for process in processes:
            if process.returncode is None:
                process.kill()
            await process.wait()


def _write(process: asyncio.subprocess.Process, line: str) -> None:
    assert process.stdin is not None
    process.stdin.write(line.encode() + b"\n")


async def _read(process: asyncio.subprocess.Process) -> bytes:
    assert process.stdout is not None
    line = await process.stdout.readline()
    if not line:
        raise RuntimeError("a process that makes calls has failed")
    return line


def _shares(load: Load, count: int) -> list[Load]:
    if isinstance(load, Poisson):
        return [load] * count
    return [Closed(each) for each in _split(load.callers, count)]


def _split(number: int, count: int) -> list[int]:
    return [number // count + (place < number % count) for place in range(count)]


def _limit_of(setting: Setting, count: int, place: int) -> int | None:
    return None if setting.concurrency is None else max(1, _split(setting.concurrency, count)[place])


def _joined(parts: Sequence[dict[str, Any]]) -> Window:
    """Return the windows of all processes as one; the latest and the busiest process count."""
    calls = Calls()
    for part in parts:
        offset = len(calls)
        for name in (*_TIMES, *_COUNTS):
            getattr(calls, name).extend(part[name])
        calls.outcomes.extend(part["outcomes"])
        calls.errors.update({int(place) + offset: error for place, error in part["errors"].items()})
    lags = max((part["lags"] for part in parts), key=lambda each: sorted(each)[int(len(each) * 0.99)] if each else 0.0)
    cpu_share = max(part["cpu_share"] for part in parts)
    return Window(calls, parts[0]["begins"], parts[0]["ends"], cpu_share, array("d", lags))


# In such a process -----------------------------------------------------------------------------------------------


async def _share(told: dict[str, Any]) -> dict[str, Any]:
    load: Load = Closed(**told["load"]) if "callers" in told["load"] else Poisson(**told["load"])
    workload = Workload(**told["workload"])
    first, step = told["numbers"]
    async with open_strategy(Setting(**told["setting"]), Target(**told["target"]), workload) as opened:
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        starts_at = json.loads(sys.stdin.readline())
        threading.Thread(target=_end_with_parent, daemon=True).start()
        window = await generate(
            opened.call,
            load,
            map(workload.prompt, itertools.count(first, step)),
            Times(**told["times"]),
            told["seed"],
            starts_at=starts_at,
            turn=(told["turn"][0], told["turn"][1]),
        )
    calls = window.calls
    return {
        **{name: getattr(calls, name).tolist() for name in (*_TIMES, *_COUNTS)},
        "outcomes": list(calls.outcomes),
        "errors": calls.errors,
        "begins": window.begins,
        "ends": window.ends,
        "cpu_share": window.cpu_share,
        "lags": window.lags.tolist(),
    }


def _end_with_parent() -> None:
    """End the process where the other end of its pipe is closed: nobody waits for the calls."""
    # Not ``sys.stdin``: an interpreter that ends for another reason waits for its lock.
    while os.read(0, 1024):
        pass
    os._exit(1)


def main() -> None:
    """Make a share of a load, as told by standard input."""
    told = json.loads(sys.stdin.readline())
    sys.stdout.write(json.dumps(asyncio.run(_share(told))) + "\n")
    sys.stdout.flush()
    # The parent kills it in any case: the ends of idle connections are not worth waiting for.
    os._exit(0)
