"""Many calls at once against servers that bear less, and do not say how much.

    python benchmarks/odd_servers.py  # all, about forty minutes
    python benchmarks/odd_servers.py --servers queue --arms default --runs 1 --calls 300
    PYTHONPATH=../before/src python benchmarks/odd_servers.py --servers queue  # another checkout

The server is the simulator with the profile gpu, whose answers have 54 tokens in the mean. Before
it stands a proxy with the server's rules (``_odd_proxy.py``). Client, proxy and simulator have a
process each. Measured is the time from the first call to the last answer of a fresh client. The
arms:

- ``default`` and ``throughput``: the client as it comes, and with that preset.
- ``openai``: ``AsyncOpenAI`` with 16, 64 or 256 calls in flight, and its own retries.
- ``raw``: ``httpx`` with lists of a fixed size, so many at once. A refused list is sent again after
  what the server asked for, else after a random pause that doubles up to a second.

The settings of ``openai`` and ``raw`` are tried in the first run. The best one goes on: fewest
failed calls, then most calls/s. *Refused* is the share of requests that were refused, or whose
connection was closed. *Rests broken* are requests that came before the seconds of a ``Retry-After``
were over, and more than 0.1 s after it was said.

Options that leave something out write no file unless ``--name`` is given.
"""

from __future__ import annotations

import argparse
import asyncio
import bisect
import contextlib
import gc
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import httpx
import openai
from _common import machine, median, provenance, table, write_results
from _odd_proxy import Entry, ProxyProcess, Rules

from batchclient import BatchClient
from batchclient.simulator import EmbeddedServer

MODEL = "simulated"
CALLS = 900
MAX_TOKENS, LENGTHS = 128, "lognormal:56:0.5"
"""Means 54 tokens, since a few answers are cut."""
PATIENCE_S = 300.0
"""Calls without an answer by then have failed."""
LATER_S = 2.0
REACTION_S, EARLY_S = 0.1, 0.02
"""A request may be on its way when a refusal is; a clock may be a little early."""
LONGEST_PAUSE_S = 1.0


@dataclass(frozen=True, slots=True)
class Server:
    """A simulator behind a proxy, or several with the same rules.

    Args:
        speeds: of each replica, as factors on the profile's.
        sequences: that a replica runs at once.
    """

    label: str
    rules: Rules = field(default_factory=Rules)
    sequences: int = 96
    speeds: tuple[float, ...] = (1.0,)
    calls: int = CALLS


SERVERS = {
    "sequences": Server("96 sequences, more are 429", Rules(sequences=96)),
    "queue": Server("64 slots, 503 when 32 wait", Rules(slots=64, waiting=32, status=503), sequences=64),
    "requests": Server("16 requests at a time, more are 429", Rules(requests=16)),
    "rests": Server("the same with `Retry-After: 2`", Rules(requests=16, retry_after_s=2), calls=3000),
    "rate": Server("20 requests a second, more are 503", Rules(per_s=20, status=503)),
    "connections": Server("32 connections, more are closed", Rules(connections=32)),
    "stall": Server("no answer from second 2 to 14", Rules(stall_s=(2.0, 14.0))),
    "replicas": Server("two replicas, one four times slower", speeds=(1.0, 0.25)),
}


# --- the clients ---

Client = Callable[[Sequence[str], Sequence[str]], Awaitable[tuple[float, int]]]
"""Base URLs and prompts in; seconds until the last answer, and failed calls."""


async def measured(jobs: Sequence[tuple[Awaitable[None], int]]) -> tuple[float, int]:
    """Run jobs of so many calls each, all at once."""
    began = time.perf_counter()
    tasks = {asyncio.ensure_future(job): calls for job, calls in jobs}
    _, late = await asyncio.wait(tasks, timeout=PATIENCE_S)
    took_s = time.perf_counter() - began
    for task in late:
        task.cancel()
    errors = await asyncio.gather(*tasks, return_exceptions=True)
    failed = sum(calls for error, calls in zip(errors, tasks.values(), strict=True) if error is not None)
    if failed:
        print(f"    {failed} failed; the first: {next(error for error in errors if error is not None)!r:.200}")
    return took_s, failed


async def ours(urls: Sequence[str], prompts: Sequence[str], **settings: Any) -> tuple[float, int]:
    async with BatchClient(list(urls), model=MODEL, **settings) as client:

        async def call(prompt: str) -> None:
            assert (await client.complete(prompt, max_tokens=MAX_TOKENS)).text

        return await measured([(call(prompt), 1) for prompt in prompts])


async def async_openai(urls: Sequence[str], prompts: Sequence[str], *, in_flight: int) -> tuple[float, int]:
    """Replicas take turns."""
    gate = asyncio.Semaphore(in_flight)
    async with contextlib.AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(openai.AsyncOpenAI(base_url=url, api_key="none")) for url in urls]

        async def call(client: openai.AsyncOpenAI, prompt: str) -> None:
            async with gate:
                reply = await client.completions.create(model=MODEL, prompt=prompt, max_tokens=MAX_TOKENS)
                assert reply.choices[0].text

        return await measured([(call(clients[n % len(clients)], each), 1) for n, each in enumerate(prompts)])


async def raw(urls: Sequence[str], prompts: Sequence[str], *, size: int, at_once: int) -> tuple[float, int]:
    """Replicas take turns."""
    lists = [prompts[begin : begin + size] for begin in range(0, len(prompts), size)]
    gate = asyncio.Semaphore(at_once)
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(timeout=PATIENCE_S, limits=limits) as client:

        async def ask(url: str, some: Sequence[str]) -> None:
            async with gate, contextlib.aclosing(pauses()) as waiting:
                async for waited_s in waiting:
                    rest_s = await asked(client, url, some)
                    if rest_s is None:
                        return
                    await asyncio.sleep(rest_s or waited_s)

        return await measured([(ask(urls[n % len(urls)], each), len(each)) for n, each in enumerate(lists)])


async def asked(client: httpx.AsyncClient, url: str, prompts: Sequence[str]) -> float | None:
    """Send a list; return the seconds that a refusal asks for, or ``None`` if all was answered."""
    body = {"model": MODEL, "prompt": list(prompts), "max_tokens": MAX_TOKENS}
    try:
        reply = await client.post(f"{url}/completions", json=body)
    except httpx.TransportError:
        return 0.0
    if reply.status_code in (429, 503):
        return float(reply.headers.get("retry-after", 0))
    assert len(reply.raise_for_status().json()["choices"]) == len(prompts)
    return None


async def pauses() -> AsyncIterator[float]:
    most_s = 0.05
    while True:
        yield random.uniform(0, most_s)
        most_s = min(LONGEST_PAUSE_S, 2 * most_s)


ARMS: dict[str, dict[str, Client]] = {
    "default": {"": ours},
    "throughput": {"": partial(ours, preset="throughput")},
    "openai": {f"{many} in flight": partial(async_openai, in_flight=many) for many in (16, 64, 256)},
    "raw": {
        f"{at_once} lists of {size}": partial(raw, size=size, at_once=at_once)
        for size, at_once in ((1, 64), (1, 96), (4, 16), (8, 32), (16, 16))
    },
}
"""Each client by its settings; the best one counts."""


# --- measuring ---


@contextlib.contextmanager
def served(server: Server) -> Iterator[list[ProxyProcess]]:
    with contextlib.ExitStack() as stack:
        simulators = [
            EmbeddedServer(
                "gpu", process=True, model=MODEL, speed=speed, max_num_seqs=server.sequences, output_lengths=LENGTHS
            )
            for speed in server.speeds
        ]
        yield [ProxyProcess(stack.enter_context(each).port, server.rules) for each in simulators]


def run(server: Server, client: Client, calls: int) -> dict[str, Any]:
    """A fresh client on fresh servers."""
    start = random.getrandbits(48)
    prompts = [f"{start + number:016x} please summarise this document in a line" for number in range(calls)]
    gc.collect()
    with served(server) as proxies:
        took_s, failed = asyncio.run(client([proxy.base_url for proxy in proxies], prompts))
        log = sorted(entry for proxy in proxies for entry in proxy.end())
    taken = [sequences for _, sequences, status in log if status == 200]
    return {
        "calls_per_s": (calls - failed) / took_s,
        "failed": failed,
        "requests": len(log),
        "refused": refused(log),
        "refused_later": refused([entry for entry in log if entry[0] >= log[0][0] + LATER_S]),
        "rests_broken": rests_broken(log, server.rules.retry_after_s),
        "mean_list": sum(taken) / max(1, len(taken)),
    }


def refused(log: Sequence[Entry]) -> float:
    return sum(status != 200 for _, _, status in log) / max(1, len(log))


def rests_broken(log: Sequence[Entry], rest_s: float | None) -> int:
    """Requests within the rest that an earlier refusal asked for."""
    said = [at for at, _, status in log if status != 200]
    broken = 0
    for at, _, _ in log if rest_s else ():
        heard = bisect.bisect_right(said, at - REACTION_S)
        broken += heard > 0 and at < said[heard - 1] + (rest_s or 0) - EARLY_S
    return broken


def measure(server: Server, name: str, runs: int, calls: int) -> dict[str, Any]:
    """All settings of an arm once, and the best one ``runs`` times."""
    tried = {setting: [run(server, client, calls)] for setting, client in ARMS[name].items()}
    for setting, (first,) in tried.items():
        print(f"  {name:10} {setting:15} {shown(first)}", flush=True)
    best = min(tried, key=lambda setting: (tried[setting][0]["failed"], -tried[setting][0]["calls_per_s"]))
    for _ in range(runs - 1):
        tried[best].append(run(server, ARMS[name][best], calls))
        print(f"  {name:10} {best:15} {shown(tried[best][-1])}", flush=True)
    return {"setting": best, "runs": tried[best], "tried": {each: first for each, (first, *_) in tried.items()}}


def shown(run: dict[str, Any]) -> str:
    return (
        f"{run['calls_per_s']:6.1f} calls/s, {run['failed']} failed, {run['requests']} requests, refused"
        f" {run['refused']:.0%}, later {run['refused_later']:.0%}, rests broken {run['rests_broken']},"
        f" mean list {run['mean_list']:.1f}"
    )


# --- the report ---


def markdown(data: dict[str, Any]) -> str:
    header = (
        "server",
        "default",
        "`throughput`",
        "`AsyncOpenAI`, best",
        "raw, best",
        "default over raw",
        "refused after 2 s: default, `throughput`",
    )
    rows, parts = [], []
    for case in data["servers"].values():
        arms = case["arms"]
        if arms.keys() != ARMS.keys():
            continue
        speeds = {name: median([run["calls_per_s"] for run in arm["runs"]]) for name, arm in arms.items()}
        later = [median([run["refused_later"] for run in arms[name]["runs"]]) for name in ("default", "throughput")]
        share = f"{speeds['default'] / speeds['raw']:.2f}"
        rows.append(
            [case["label"], *map(calls_per_s, arms.values()), share, ", ".join(f"{each:.0%}" for each in later)]
        )
        if case["rests"]:
            broken = [sum(run["rests_broken"] for run in arms[name]["runs"]) for name in ("default", "throughput")]
            kept = "A `Retry-After` was broken by the default client {} times, with `throughput` {} times, in all runs."
            parts.append(kept.format(*broken))
    return "\n\n".join([table(header, rows), *parts, provenance(data["machine"])])


def calls_per_s(arm: dict[str, Any]) -> str:
    """Return the median, the setting, and how many calls failed."""
    failed = sum(run["failed"] for run in arm["runs"])
    beside = [arm["setting"]] if arm["setting"] else []
    beside += [f"**{failed} failed**"] if failed else []
    value = f"{median([run['calls_per_s'] for run in arm['runs']]):.0f}"
    return f"{value} ({', '.join(beside)})" if beside else value


def chosen(text: str, known: Sequence[str]) -> list[str]:
    names = text.split(",")
    if unknown := set(names) - set(known):
        raise argparse.ArgumentTypeError(f"no {', '.join(unknown)}; there are {', '.join(known)}")
    return names


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for option, known in (("--servers", list(SERVERS)), ("--arms", list(ARMS))):
        parser.add_argument(option, type=partial(chosen, known=known), default=known, help=f"of {', '.join(known)}")
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--calls", type=int, help=f"{CALLS} if not given, and 3,000 for rests")
    parser.add_argument("--name", help="file name of the results; odd_servers if nothing is left out")
    options = parser.parse_args()
    whole = options.servers == list(SERVERS) and options.arms == list(ARMS) and options.runs >= 3
    if whole and options.calls is None:
        options.name = options.name or "odd_servers"
    return options


def main() -> None:
    options = arguments()
    data: dict[str, Any] = {"machine": machine(), "servers": {}}
    for key in options.servers:
        server = SERVERS[key]
        calls = options.calls or server.calls
        print(f"{server.label}, {calls:,} calls", flush=True)
        arms = {name: measure(server, name, options.runs, calls) for name in options.arms}
        rests = server.rules.retry_after_s is not None
        data["servers"][key] = {"label": server.label, "calls": calls, "rests": rests, "arms": arms}
        if options.name:
            write_results(options.name, data, markdown(data))  # what is done stays, should a later one fail
    print(markdown(data))


if __name__ == "__main__":
    main()
