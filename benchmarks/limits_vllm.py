"""The limit that finds itself, beside fixed ones, on a real vLLM on two CPU cores.

    python benchmarks/limits_vllm.py                             # everything; boots a vLLM per part
    python benchmarks/limits_vllm.py --parts outputs --cells 16  # one part, one cell
    python benchmarks/limits_vllm.py --check --name limits_check  # exit status 1 on a missed bar

``tests/live/servers.py`` boots the servers. The parts:

- ``outputs``: 512 callers in a closed loop, prompts of about 20 tokens, ``max_tokens`` 1, 16, 64
  and a mixture of 4 to 128. The default client runs beside clients with a fixed limit. Every client
  stays open. Windows are interleaved in a new order each time. The default client's search before
  its first window is timed and shown.
- ``conversations``: ten turns each on a 300-token prefix of its own, with a KV cache of 3,072
  tokens. Beyond ten conversations at once the prefix cache thrashes, and no preemption counter
  moves. The default client is given 48 conversations at once.
- ``timeouts``: 256 callers that wait a second at most, 64 tokens each. With too many calls in
  flight nobody gets an answer. Beside the default run fixed limits with the same callers, and fixed
  limits with no more callers than permits.
- ``agents``: 300 at once, each on a 300-token prefix of its own, with 1 to 3 s between an answer of
  16 tokens and the next turn. The KV cache of 16,384 tokens holds some 50 agents. Each arm has a
  fresh client; the last half of 40 s counts.

Clients with a fixed limit do not read the metrics page, which would lower a fixed limit, too. The
arm ``server_metrics=False`` is the default client without the page.

The bars of ``--check`` are shares of the best fixed limit: 0.95 in ``outputs``, 0.85 for
conversations, 0.9 with timeouts and for agents. Agents also need 0.95 of ``server_metrics=False``.
A bar that cannot be judged is missed: too few quiet windows, or arms left out by ``--arm``.

Prompts are random and never repeat, but for the conversations' own prefixes. An answer counts if it
has all its tokens and came in the window. The part ``outputs`` counts otherwise. Its answers of
equal length come in waves of a hundred and more, and a window holds one wave more or one less.
Nobody gives up there, so the server's own counter of generated tokens gives the number of answers:
``answers/s`` is that counter over the mean tokens of an answer. A window in which other processes
used more than ``--max-other`` cores is left out.

The server computes in bfloat16, as its model asks. On a CPU without AVX-512 bfloat16 is many times
slower than ``--dtype float32``, and answers come in waves seconds apart. There take float32, longer
windows and a name of their own, ``--name limits_vllm_float32``.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any

from _callers import MIXTURE, Conversations, Load, Work, completing
from _common import RESULTS, machine, median, provenance, table, write_results
from _vllm import Server, learn_prompts, vllm

from batchclient import BatchClient

DEFAULT, NO_PAGE = "default", "server_metrics=False"
"""The arms whose limit finds itself. All others are fixed ones."""
BEST_FIXED = "best fixed"
"""The fixed limit with the most answers per second. Most bars are a share of its figure."""
CALLERS = 512
AGENTS = 300
AGENT_PAUSE_S = (1.0, 3.0)


@dataclass(frozen=True, slots=True)
class Arm:
    """A client's arguments, and its callers.

    Args:
        callers: the number of callers.
        work: the call that each caller makes.
        arguments: of ``BatchClient``; none for the default client.
        pause_s: the shortest and the longest pause of a caller between two calls.
    """

    callers: int
    work: Work
    arguments: dict[str, Any] = field(default_factory=dict)
    pause_s: tuple[float, float] | None = None

    @contextlib.asynccontextmanager
    async def opened(self, server: Server) -> AsyncIterator[tuple[BatchClient, Load]]:
        async with BatchClient(server.base_url, model=server.model, **self.arguments) as client:
            yield client, Load(client, self.work, self.callers, self.pause_s)


Arms = dict[str, Arm]


def fixed(limit: int) -> dict[str, Any]:
    """A client's arguments for a limit that nothing lowers: a metrics page lowers a number, too."""
    return {"limit": limit, "server_metrics": False}


def chosen(arms: Arms, options: argparse.Namespace) -> Arms:
    """The default client, and the other arms; with ``--arm`` of the others only those named."""
    return {name: arm for name, arm in arms.items() if not options.arm or name in (DEFAULT, *options.arm)}


def shown(runs: dict[str, list[dict[str, float]]]) -> None:
    for name, done in runs.items():
        rate, limit = median([run["per_s"] for run in done]), median([run["limit"] for run in done])
        print(f"  {name:20} {rate:7.1f}/s  limit {limit:.0f}", flush=True)


async def interleaved(
    server: Server, arms: Arms, options: argparse.Namespace, answer_tokens: float | None = None
) -> dict[str, Any]:
    """Every client stays open; windows of all arms in turn. The default client searches first."""
    async with contextlib.AsyncExitStack() as stack:
        opened = {name: await stack.enter_async_context(arm.opened(server)) for name, arm in arms.items()}
        client, searched = opened[DEFAULT]
        series = []
        async with searched.running():
            began = time.perf_counter()
            while (at := time.perf_counter() - began) < options.search_s:
                before = searched.answers
                await asyncio.sleep(1.0)
                series.append((round(at + 1), searched.answers - before, client.statistics().endpoints[0].limit))
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in arms}
        for _ in range(options.repetitions):
            for name in random.sample(list(arms), len(arms)):
                load = opened[name][1]
                runs[name].append(await load.window(server, options.warm_s, options.seconds, answer_tokens))
    shown(runs)
    return {"runs": runs, "search": series}


async def from_the_start(server: Server, arms: Arms, seconds: float, repetitions: int) -> dict[str, Any]:
    """A fresh client for every run of ``seconds``, of which the last half counts.

    The search for the limit is part of the run.
    """
    runs: dict[str, list[dict[str, float]]] = {name: [] for name in arms}
    for _ in range(repetitions):
        for name in random.sample(list(arms), len(arms)):
            async with arms[name].opened(server) as (_, load):
                runs[name].append(await load.window(server, seconds / 2, seconds / 2, None))
    shown(runs)
    return {"runs": runs, "search": []}


def outputs(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    with vllm("--max-num-seqs", "256", "--dtype", options.dtype) as server:
        prompts = asyncio.run(learn_prompts(server))
        for cell in options.cells.split(","):
            work = completing(prompts, None if cell == "mixed" else int(cell))
            tokens = sum(MIXTURE) / len(MIXTURE) if cell == "mixed" else float(cell)
            arms = {DEFAULT: Arm(CALLERS, work)}
            arms |= {str(limit): Arm(CALLERS, work, fixed(limit)) for limit in (16, 32, 64, 128, 256)}
            print(f"max_tokens {cell}", flush=True)
            measured = asyncio.run(interleaved(server, chosen(arms, options), options, tokens))
            yield {"part": "outputs", "case": f"max_tokens {cell}", "bars": {BEST_FIXED: 0.95}, **measured}


def conversations(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    with vllm(
        "--max-num-seqs", "256", "--num-gpu-blocks-override", "96", "--block-size", "32", "--dtype", options.dtype
    ) as server:
        prompts = asyncio.run(learn_prompts(server))

        def arm(callers: int, **arguments: Any) -> Arm:
            return Arm(callers, Conversations(prompts, tokens=4, turns=10).work, arguments)

        arms = {DEFAULT: arm(48)} | {str(many): arm(many, **fixed(256)) for many in (4, 6, 8, 10, 12, 48)}
        print("conversations", flush=True)
        measured = asyncio.run(interleaved(server, chosen(arms, options), options))
        yield {"part": "conversations", "case": "ten turns on a prefix", "bars": {BEST_FIXED: 0.85}, **measured}


def timeouts(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    with vllm("--max-num-seqs", "256", "--dtype", options.dtype) as server:
        prompts = asyncio.run(learn_prompts(server))
        in_time = completing(prompts, 64, timeout_s=1.0)
        arms = {DEFAULT: Arm(256, in_time)}
        # Fixed limits have the same callers, and also as many callers as permits. A call that waits
        # in the client's queue uses up its second there.
        arms |= {str(limit): Arm(256, in_time, fixed(limit)) for limit in (16, 32, 64, 128)}
        arms |= {f"{limit}, as many callers": Arm(limit, in_time, fixed(limit)) for limit in (32, 64)}
        print("timeouts", flush=True)
        measured = asyncio.run(interleaved(server, chosen(arms, options), options))
        yield {"part": "timeouts", "case": "1 s, 64 tokens", "bars": {BEST_FIXED: 0.9}, **measured}


def agents(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    with vllm(
        "--max-num-seqs", "256", "--num-gpu-blocks-override", "512", "--block-size", "32", "--dtype", options.dtype
    ) as server:
        prompts = asyncio.run(learn_prompts(server))

        def arm(**arguments: Any) -> Arm:
            return Arm(AGENTS, Conversations(prompts, tokens=16, turns=None).work, arguments, AGENT_PAUSE_S)

        arms = {DEFAULT: arm(), NO_PAGE: arm(server_metrics=False)}
        arms |= {str(limit): arm(**fixed(limit)) for limit in (8, 16, 32, 64, 128, 256)}
        print("agents", flush=True)
        measured = asyncio.run(
            from_the_start(server, chosen(arms, options), options.agents_s, options.agents_repetitions)
        )
        bars = {BEST_FIXED: 0.9, NO_PAGE: 0.95}
        yield {"part": "agents", "case": f"{AGENTS} agents", "bars": bars, **measured}


PARTS = {"outputs": outputs, "conversations": conversations, "timeouts": timeouts, "agents": agents}


# --- the report ---

LOADS = {
    "ten turns on a prefix": "conversations of ten turns",
    "1 s, 64 tokens": "callers that wait 1 s",
    "300 agents": "300 agents that pause",
}


def named(case: dict[str, Any]) -> str:
    """A case's name for readers of a page or a picture."""
    name = case["case"]
    tokens = name.removeprefix("max_tokens ")
    if tokens == name:
        return LOADS.get(name, name)
    return {"1": "1 token each", "mixed": "4 to 128 tokens each"}.get(tokens, f"{tokens} tokens each")


def kept(case: dict[str, Any], name: str, max_other: float) -> list[dict[str, float]]:
    return [run for run in case["runs"][name] if not run["other"] > max_other]


def rate(case: dict[str, Any], name: str, max_other: float) -> float | None:
    """The median answers per second; ``None`` if no window was quiet or the arm was left out."""
    rates = [run["per_s"] for run in kept(case, name, max_other)] if name in case["runs"] else []
    return median(rates) if rates else None


def best_fixed(case: dict[str, Any], max_other: float) -> float | None:
    """The best fixed limit's median, or ``None`` while a fixed limit is missing.

    The missing one may be the best.
    """
    rates = [rate(case, name, max_other) for name in case["runs"] if name not in (DEFAULT, NO_PAGE)]
    known = [each for each in rates if each is not None]
    return max(known) if known and len(known) == len(rates) else None


def shortfalls(cases: list[dict[str, Any]], max_other: float) -> list[str]:
    """A sentence for each bar that the default client misses, or that could not be judged."""
    said = []
    for case in cases:
        own = rate(case, DEFAULT, max_other)
        for to, bar in case["bars"].items():
            against = best_fixed(case, max_other) if to == BEST_FIXED else rate(case, to, max_other)
            what = f"{case['case']}: the default client's share of {to}"
            if own is None or not against:
                said.append(f"{what} is not known: an arm was left out, or its windows were too noisy")
            elif own / against < bar:
                said.append(f"{what} is {own / against:.2f}, below {bar}")
    return said


def markdown(data: dict[str, Any]) -> str:
    rows, at_most = [], data["max_other"]
    for case in data["cases"]:
        own, best = rate(case, DEFAULT, at_most), best_fixed(case, at_most)
        if own is None or best is None:
            rows.append([named(case), "too noisy", "", "", "", ""])
            continue
        fixed_ones = [name for name in case["runs"] if name not in (DEFAULT, NO_PAGE)]
        best_name = next(name for name in fixed_ones if rate(case, name, at_most) == best)
        last = median([run["limit"] for run in case["runs"][DEFAULT]])
        rows.append([named(case), f"{own:.0f}", f"{best:.0f}", best_name, f"{own / best:.2f}", f"{last:.0f}"])
    header = ("load", "default, answers/s", BEST_FIXED, "its limit", "share", "the default's at the end")
    return f"{table(header, rows)}\n\n{provenance(*(case['machine'] for case in data['cases']))}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--cells", default="1,16,64,mixed")
    parser.add_argument("--seconds", type=float, default=4.0, help="a window")
    parser.add_argument("--warm-s", type=float, default=2.0, help="before a window")
    parser.add_argument(
        "--search-s", type=float, default=60.0, help="the default client's search before its first window"
    )
    parser.add_argument("--repetitions", type=int, default=5, help="windows of each arm")
    parser.add_argument(
        "--agents-s", type=float, default=40.0, help="a run of the agents, of which the last half counts"
    )
    parser.add_argument("--agents-repetitions", type=int, default=3, help="runs of the agents with each arm")
    parser.add_argument("--arm", action="append", default=[], help="only this arm beside the default; may be repeated")
    parser.add_argument("--check", action="store_true", help="exit status 1 if the default client misses a bar")
    parser.add_argument("--max-other", type=float, default=0.3)
    parser.add_argument("--dtype", default="auto", help="what the server computes in")
    parser.add_argument("--name", default="limits_vllm")
    parser.add_argument("--add", action="store_true", help="keep what an earlier run measured of other cases")
    options = parser.parse_args()
    data: dict[str, Any] = {"cases": [], "max_other": options.max_other, "dtype": options.dtype}
    kept_file = RESULTS / f"{options.name}.json"
    if options.add and kept_file.exists():
        data["cases"] = json.loads(kept_file.read_text())["cases"]
    here = machine()
    measured = []
    for name in options.parts.split(","):
        for case in PARTS[name](options):
            measured.append(case)
            others = [each for each in data["cases"] if each["case"] != case["case"]]
            # By part, then 1, 16, 64, mixed.
            data["cases"] = sorted(
                [*others, {**case, "machine": here}],
                key=lambda each: (list(PARTS).index(each["part"]), len(each["case"]), each["case"]),
            )
            write_results(options.name, data, markdown(data))
    print(markdown(data))
    if options.check and (missed := shortfalls(measured, options.max_other)):
        sys.exit("\n".join(missed))


if __name__ == "__main__":
    main()
