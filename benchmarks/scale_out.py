"""Many servers, several workers: maps over 50 endpoints, servers shared or partitioned.

    python benchmarks/scale_out.py --check             # all parts, against their bars
    python benchmarks/scale_out.py partition --seconds 30

- ``in-flight``: 50 endpoints with a limit of 256 each, answers after 1 s, the look-ahead as it is
  by default. Bar: 0.9 of 12,800 sequences in flight at once.
- ``first-answers``: one endpoint that answers after 0.1 s, and a look-ahead of 51,200 documents,
  whose reading takes seconds. Bar: 0.2 s from an answer's arrival to its row, for every row until
  the look-ahead is full. The seconds are those of the process' own CPU time, which neighbours do
  not lengthen; by the clock they are told, too.
- ``collector``: a map in a task that nobody holds, the collector run at every turn of the event
  loop. Bar: all rows.
- ``partition``: four worker processes and eight simulated servers of different speeds. Each worker
  alone with its own servers, all four together with servers of their own, and all four together
  with all eight. Bar: partitioned, 0.9 of the sum of each alone.

The first three have a transport within the process: no socket takes part. The servers of the fourth
are slow, so that a few per cent of a core serve all of them. ``other`` is the CPU that other
processes used meanwhile, in cores. Beside busy neighbours a process may be too slow to have 12,800
answers a second: ``--answer-s 5`` gives it five seconds for them.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import gc
import json
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Iterator, Mapping
from pathlib import Path
from typing import Any

from _common import machine, machine_line, table, write_results

from batchclient import BatchClient
from batchclient.partition import endpoints_shard
from batchclient.simulator import EmbeddedServer
from batchclient.transport import Timeouts, WireRequest

ENDPOINTS, LIMIT = 50, 256
LOOK_AHEAD = 51_200
WORKERS = 4
SPEEDS = (0.2, 0.16, 0.14, 0.12, 0.1, 0.08, 0.06, 0.05)
"""Of the eight servers, as factors on the profile ``gpu``."""
SEQUENCES = 32
"""Which a server runs at once."""
TOKENS = 4
BARS = {"in-flight": 0.9, "first-answers": 0.2, "collector": 1.0, "partition": 0.9}


# A transport that answers after a time ---------------------------------------------------------------------------


def clocks() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()


class Wire:
    """What all endpoints see together."""

    def __init__(self, answer_s: float) -> None:
        self.answer_s = answer_s
        self.in_flight = self.most_in_flight = 0
        self.arrived: dict[str, tuple[float, float]] = {}
        """When the answer to a prompt was there, by the clock and by the process' CPU time."""


class Endpoint:
    """One server: every request's answers come after the same time."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    async def send(self, request: WireRequest, timeouts: Timeouts) -> Reply:
        body = json.loads(request.body)
        prompts = body["prompt"] if isinstance(body["prompt"], list) else [body["prompt"]]
        wire = self._wire
        wire.in_flight += len(prompts)
        wire.most_in_flight = max(wire.most_in_flight, wire.in_flight)
        try:
            await asyncio.sleep(wire.answer_s)
        finally:
            wire.in_flight -= len(prompts)
        now = clocks()
        for prompt in prompts:
            wire.arrived[prompt] = now
        return Reply(prompts, stream=bool(body.get("stream")))

    async def aclose(self) -> None:
        pass


class Reply:
    status = 200

    def __init__(self, prompts: list[str], *, stream: bool) -> None:
        self._prompts = prompts
        self._stream = stream
        self.headers: Mapping[str, str] = {"content-type": "text/event-stream" if stream else "application/json"}

    async def chunks(self) -> AsyncGenerator[bytes]:
        choices = [{"index": place, "text": "yes", "finish_reason": "length"} for place in range(len(self._prompts))]
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        if self._stream:
            events = [{"id": "c", "model": "m", "choices": [choice], "usage": usage} for choice in choices]
            yield b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + b"data: [DONE]\n\n"
        else:
            yield json.dumps({"id": "c", "model": "m", "choices": choices, "usage": usage}).encode()

    async def aclose(self) -> None:
        pass


def client_of(wire: Wire, endpoints: int = ENDPOINTS, **settings: Any) -> BatchClient:
    urls = [f"http://server-{number}/v1" for number in range(endpoints)]
    return BatchClient(urls, model="m", transport=lambda _url, _headers: Endpoint(wire), dialect="vllm", **settings)


def texts(count: int) -> Iterator[str]:
    return (f"{number} is a document" for number in range(count))


async def in_flight(answer_s: float, count: int = 4 * ENDPOINTS * LIMIT) -> dict[str, Any]:
    """Map documents with the default look-ahead; return how many were in flight."""
    wire = Wire(answer_s)
    started, cpu = time.perf_counter(), time.process_time()
    async with client_of(wire, limit=LIMIT) as client:
        rows = 0
        async for row in client.stream_map(texts(count), "{}", max_tokens=1):
            assert row.error is None, row.error
            rows += 1
    took_s = time.perf_counter() - started
    return {
        "rows": rows,
        "in_flight": wire.most_in_flight,
        "share": wire.most_in_flight / (ENDPOINTS * LIMIT),
        "rows_per_s": rows / took_s,
        "cpu_us_per_row": (time.process_time() - cpu) / rows * 1e6,
    }


async def first_answers(_: float, count: int = 2 * LOOK_AHEAD) -> dict[str, Any]:
    """Fill a long look-ahead; return how late the rows of that time came."""
    wire = Wire(0.1)
    late: list[tuple[float, float]] = []
    async with client_of(wire, 1, limit=LIMIT) as client:
        read = 0

        def documents() -> Iterator[str]:
            nonlocal read
            for text in texts(count):
                read += 1
                yield text

        async for row in client.stream_map(documents(), "{}", look_ahead=LOOK_AHEAD, max_tokens=1):
            (now, used), (arrived, used_then) = clocks(), wire.arrived[row.document]
            late.append((now - arrived, used - used_then))
            if read >= LOOK_AHEAD + len(late) - 1:
                break
    by_clock, by_cpu = (sorted(times) for times in zip(*late, strict=True))
    return {
        "rows_while_it_fills": len(late),
        "p50_s": by_clock[len(late) // 2],
        "worst_s": by_clock[-1],
        "worst_cpu_s": by_cpu[-1],
    }


async def collector(_: float, count: int = 5000) -> dict[str, Any]:
    """Map in a task that nobody holds, while every turn of the event loop ends with a collection."""
    gc.freeze()
    wire, outcome = Wire(0.01), asyncio.get_running_loop().create_future()
    loop = asyncio.get_running_loop()
    collections = 0

    def collect() -> None:
        nonlocal collections
        gc.collect()
        collections += 1
        if not outcome.done():
            loop.call_soon(collect)

    async def work() -> None:
        try:
            client = client_of(wire, limit=LIMIT)
            answers = await client.batch_map(texts(count), "{}", max_tokens=1)
            await client.aclose()
            outcome.set_result(len(answers))
        except BaseException as error:
            outcome.set_exception(error)
            raise

    loop.create_task(work())  # noqa: RUF006  # nobody holds it: that is the question
    loop.call_soon(collect)
    rows = await asyncio.wait_for(outcome, 300)
    gc.unfreeze()
    return {"rows": rows, "share": rows / count, "collections": collections}


# Workers and servers ---------------------------------------------------------------------------------------------


async def work(urls: list[str], seconds: float) -> dict[str, Any]:
    """Map without end; return the answers per second of the second half of the time."""
    answers, half = 0, time.monotonic() + seconds / 2
    ends, cpu = half + seconds / 2, time.process_time()
    endless = (f"document {number} of a worker" for number in range(10**9))
    async with BatchClient(urls, model="m", preset="throughput") as client:
        async for row in client.stream_map(endless, "{}", max_tokens=TOKENS, temperature=0):
            now = time.monotonic()
            if now >= ends:
                break
            answers += now >= half and row.error is None
        return {
            "rate": answers / (seconds / 2),
            "cores": (time.process_time() - cpu) / seconds,
            "in_flight": sum(each.in_flight for each in client.statistics().endpoints),
            "limits": {url: each.limit for url, each in zip(urls, client.statistics().endpoints, strict=True)},
        }


def together(shares: list[list[str]], seconds: float) -> list[dict[str, Any]]:
    """Run a worker process for each share at once."""
    command = [sys.executable, __file__, "--worker", str(seconds)]
    workers = [subprocess.Popen([*command, *urls], stdout=subprocess.PIPE, text=True) for urls in shares]
    found = [worker.communicate(timeout=seconds + 120)[0] for worker in workers]
    if any(worker.returncode for worker in workers):
        raise RuntimeError("a worker failed")
    return [json.loads(text) for text in found]


@contextlib.contextmanager
def servers() -> Iterator[list[str]]:
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(
                EmbeddedServer("gpu", model="m", process=True, speed=speed, max_num_seqs=SEQUENCES)
            ).base_url
            for speed in SPEEDS
        ]


def partition(seconds: float) -> dict[str, Any]:
    # Fresh servers for each arm: none has a queue of the arm before.
    alone, shares_of_speeds = [], []
    with servers() as urls:
        speeds = dict(zip(urls, SPEEDS, strict=True))
        shares = [endpoints_shard(urls, (part, WORKERS)) for part in range(WORKERS)]
        shares_of_speeds = [[speeds[str(url)] for url in share] for share in shares]
        for share in shares:
            alone += together([[str(url) for url in share]], seconds)
        apart = together([[str(url) for url in share] for share in shares], seconds)
    with servers() as urls:
        shared = together([urls] * WORKERS, seconds)
    sum_alone, sum_apart, sum_shared = (sum(one["rate"] for one in arm) for arm in (alone, apart, shared))
    return {
        "speeds": shares_of_speeds,
        "alone": alone,
        "partitioned": apart,
        "shared": shared,
        "sum_alone": sum_alone,
        "sum_partitioned": sum_apart,
        "sum_shared": sum_shared,
        "share": sum_apart / sum_alone,
        "shared_share": sum_shared / sum_alone,
        "cores": sum(one["cores"] for one in apart),
    }


# The report ------------------------------------------------------------------------------------------------------


def cpu_used() -> tuple[float, float]:
    """Return the CPU seconds of the whole machine, and of this process with its ended children."""
    import os

    numbers = [int(text) for text in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    idle = numbers[3] + numbers[4]
    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    return (sum(numbers[:8]) - idle) / os.sysconf("SC_CLK_TCK"), own


def run(name: str, seconds: float, answer_s: float) -> dict[str, Any]:
    started, (all_before, own_before) = time.perf_counter(), cpu_used()
    if name == "partition":
        result = partition(seconds)
    else:
        part = {"in-flight": in_flight, "first-answers": first_answers, "collector": collector}[name]
        result = asyncio.run(part(answer_s))
    all_after, own_after = cpu_used()
    other = (all_after - all_before) - (own_after - own_before)
    result["other"] = max(0.0, other / (time.perf_counter() - started))
    return result


def shortfalls(results: dict[str, dict[str, Any]]) -> list[str]:
    """Return what misses its bar."""
    missed = []
    for name, result in results.items():
        bar = BARS[name]
        if name == "first-answers":
            if not result["worst_cpu_s"] <= bar:
                missed.append(f"{name}: a row came {result['worst_cpu_s']:.2f} s after its answer, above {bar} s")
        elif not result["share"] >= bar:
            missed.append(f"{name}: {result['share']:.2f}, below {bar}")
    return missed


def markdown(facts: dict[str, Any], results: dict[str, dict[str, Any]]) -> str:
    lines = ["# Many servers, several workers", "", machine_line(facts), ""]
    for name, result in results.items():
        lines += [f"## {name}", ""]
        if name != "partition":
            rows = [(key, f"{value:,.0f}" if value >= 100 else f"{value:,.3g}") for key, value in result.items()]
            lines += [table(("figure", "value"), rows), ""]
            continue
        rows = [
            (
                f"worker {number}",
                ", ".join(map(str, result["speeds"][number])),
                *(f"{result[arm][number]['rate']:.1f}" for arm in ("alone", "partitioned", "shared")),
            )
            for number in range(WORKERS)
        ]
        sums = (f"{result[f'sum_{arm}']:.1f}" for arm in ("alone", "partitioned", "shared"))
        rows.append(("all", "", *sums))
        waits = (
            sum(one["in_flight"] for one in result[arm]) / result[f"sum_{arm}"]
            for arm in ("alone", "partitioned", "shared")
        )
        rows.append(("in flight / rate, s", "", *(f"{wait:.2f}" for wait in waits)))
        rows.append(("share of the sum alone", "", "1", f"{result['share']:.2f}", f"{result['shared_share']:.2f}"))
        header = ("answers/s", "its servers' speeds", "alone", "together, own servers", "together, all servers")
        lines += [table(header, rows), "", f"CPU of other processes: {result['other']:.1f} cores.", ""]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=", ".join(BARS))
    parser.add_argument("--seconds", type=float, default=24.0, help="of each arm of partition")
    parser.add_argument("--answer-s", type=float, default=1.0, help="seconds until the 50 endpoints answer")
    parser.add_argument("--check", action="store_true", help="exit with 1 where a bar is missed")
    parser.add_argument("--save", action="store_true", help="write the results")
    parser.add_argument("--worker", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker is not None:
        print(json.dumps(asyncio.run(work(args.parts, args.worker))))
        return 0
    if unknown := set(args.parts) - set(BARS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}")
    results = {}
    for name in args.parts or BARS:
        results[name] = run(name, args.seconds, args.answer_s)
        shown = {key: value for key, value in results[name].items() if not isinstance(value, (list, dict))}
        print(f"{name}: {json.dumps(shown)}", flush=True)
    missed = shortfalls(results)
    for line in missed:
        print(f"MISSED {line}")
    if args.save:
        facts = machine()
        write_results("scale_out", {"machine": facts, "results": results}, markdown(facts, results))
    return int(args.check and bool(missed))


if __name__ == "__main__":
    sys.exit(main())
