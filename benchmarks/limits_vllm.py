"""The limit that finds itself, beside fixed ones, on a real vLLM on two CPU cores.

    python benchmarks/limits_vllm.py                             # everything; boots a vLLM per part
    python benchmarks/limits_vllm.py --parts outputs --cells 16  # one part, one cell
    python benchmarks/limits_vllm.py --check --name limits_check  # exit status 1 on a missed bar

``tests/live/servers.py`` boots the servers. The parts:

- ``outputs``: 512 callers in a closed loop, prompts of about 20 tokens, ``max_tokens`` 1, 16, 64
  and a mixture of 4 to 128. The default client runs beside clients with a fixed limit. Every client
  stays open. Windows are interleaved in a new order each time, after the default client's search.
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
arm ``probe=False`` is the default client without the page.

The bars of ``--check`` are shares of the best fixed limit: 0.95 in ``outputs``, 0.85 for
conversations, 0.9 with timeouts and for agents. Agents also need 0.95 of ``probe=False``.
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
import itertools
import json
import random
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from _common import RESULTS, machine, median, provenance, table, write_results
from _vllm import OtherCores, Prompts, Server, learn_prompts, page_of, vllm

from batchclient import BatchClient, DeadlineExceeded

DEFAULT, NO_PAGE = "default", "probe=False"
"""The arms whose limit finds itself. All others are fixed ones."""
BEST_FIXED = "best fixed"
"""The fixed limit with the most answers per second. Most bars are a share of its figure."""
CALLERS = 512
AGENTS = 300
AGENT_PAUSE_S = (1.0, 3.0)
MIXTURE = (4, 8, 16, 16, 32, 32, 64, 128)
"""Output lengths of a mixed load: a mean of 37 tokens, a few long ones."""

Work = Callable[[BatchClient], Any]
"""One caller's next call; true if its answer came."""


# --- the callers' calls ---


async def whole_answer(client: BatchClient, prompt: str, tokens: int, timeout_s: float | None = None) -> bool:
    """Ask for just so many tokens; false: the answer did not come in time."""
    try:
        answer = await client.complete(prompt, max_tokens=tokens, temperature=0, ignore_eos=True, timeout_s=timeout_s)
    except DeadlineExceeded:
        return False
    if answer.usage is None or answer.usage.completion_tokens != tokens:
        raise AssertionError("an answer without all its tokens")
    return True


def completing(prompts: Prompts, max_tokens: int | None, timeout_s: float | None = None) -> Work:
    """Prompts of about 20 tokens; without ``max_tokens`` answers of the mixture's lengths."""

    async def work(client: BatchClient) -> bool:
        (prompt,) = prompts.make(1, 20)
        return await whole_answer(client, prompt, max_tokens or random.choice(MIXTURE), timeout_s)

    return work


class Conversations:
    """Each caller holds one, on a prefix of 300 tokens of its own.

    Args:
        tokens: of an answer.
        turns: after so many the caller begins another one; ``None``: never.
    """

    def __init__(self, prompts: Prompts, tokens: int, turns: int | None) -> None:
        self._prompts = prompts
        self._tokens = tokens
        self._turns = turns
        self._open: dict[asyncio.Task[Any], tuple[str, int]] = {}

    async def work(self, client: BatchClient) -> bool:
        task = asyncio.current_task()
        assert task is not None
        prefix, turn = self._open.get(task, ("", self._turns or 0))
        if not prefix or turn == self._turns:
            (prefix,), turn = self._prompts.make(1, 300), 0
        self._open[task] = (prefix, turn + 1)
        return await whole_answer(client, f"{prefix} turn {turn}", self._tokens)


# --- measuring ---


@dataclass(frozen=True, slots=True)
class Arm:
    """A client's arguments, and its callers.

    Args:
        callers: the number of callers.
        work: the call that each caller makes, again and again.
        arguments: of ``BatchClient``; none for the default client.
        pause_s: the shortest and the longest pause of a caller between two calls.
    """

    callers: int
    work: Work
    arguments: dict[str, Any] = field(default_factory=dict)
    pause_s: tuple[float, float] | None = None

    @contextlib.asynccontextmanager
    async def opened(self, server: Server) -> AsyncIterator[Load]:
        async with BatchClient(server.base_url, model=server.model, **self.arguments) as client:
            yield Load(server, client, self)


class Load:
    """An arm's callers in a closed loop on one client, and a count of their answers."""

    def __init__(self, server: Server, client: BatchClient, arm: Arm) -> None:
        self._server = server
        self._client = client
        self._arm = arm
        self._answers = 0

    async def _call(self) -> None:
        while True:
            self._answers += await self._arm.work(self._client)
            if self._arm.pause_s:
                await asyncio.sleep(random.uniform(*self._arm.pause_s))

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self._call()) for _ in range(self._arm.callers)]
        try:
            yield
        finally:
            ended = [task for task in tasks if task.done()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            while self._client.statistics().in_flight:
                await asyncio.sleep(0.02)
        for task in ended:
            task.result()  # a caller never ends by itself: it failed, and the count is not what it says

    async def _generated(self) -> float:
        """Output tokens since the server's start, by its metrics page."""
        page = await page_of(self._server)
        assert page is not None and page.generation_tokens is not None
        return page.generation_tokens

    async def window(self, warm_s: float, seconds: float, answer_tokens: float | None) -> dict[str, float]:
        """Run the callers, and count the answers that come in a window after a warm-up.

        With ``answer_tokens``, the mean tokens of an answer, the server's counter of generated
        tokens gives the number of answers.
        """
        async with self.running():
            await asyncio.sleep(warm_s)
            self._answers, generated = 0, await self._generated()
            others, began = OtherCores(self._server), time.perf_counter()
            await asyncio.sleep(seconds)
            generated = await self._generated() - generated
            took, other = time.perf_counter() - began, others.mean()
            limit = self._client.statistics().endpoints[0].limit
        answers = self._answers if answer_tokens is None else generated / answer_tokens
        return {"per_s": answers / took, "limit": limit, "other": other}


@dataclass(frozen=True, slots=True)
class Case:
    """One load, under several arms.

    Args:
        part: the option's name for it.
        case: its name in the results.
        flags: of its vLLM.
        arms: from the server's prompts.
        bars: shares of other arms that the default client is to reach.
        answer_tokens: the mean of an answer, where the server's counter of tokens gives the answers.
        fresh: a fresh client for every run, of which the last half counts: the search for the limit
            is part of it. Else every client stays open, and the default client searches first.
    """

    part: str
    case: str
    flags: tuple[str, ...]
    arms: Callable[[Prompts], Mapping[str, Arm]]
    bars: dict[str, float]
    answer_tokens: float | None = None
    fresh: bool = False

    async def measured(self, server: Server, options: argparse.Namespace) -> dict[str, list[dict[str, float]]]:
        """Windows by arm: in turn, in a new order each time."""
        everyone = self.arms(await learn_prompts(server))
        arms = {name: arm for name, arm in everyone.items() if not options.arm or name in (DEFAULT, *options.arm)}
        runs: dict[str, list[dict[str, float]]] = {name: [] for name in arms}
        async with contextlib.AsyncExitStack() as stack:
            if not self.fresh:
                opened = {name: await stack.enter_async_context(arm.opened(server)) for name, arm in arms.items()}
                async with opened[DEFAULT].running():
                    await asyncio.sleep(options.search_s)
            for _ in range(options.agents_repetitions if self.fresh else options.repetitions):
                for name in random.sample(list(arms), len(arms)):
                    if self.fresh:
                        half_s = options.agents_s / 2
                        async with arms[name].opened(server) as load:
                            runs[name].append(await load.window(half_s, half_s, None))
                    else:
                        window = opened[name].window(options.warm_s, options.seconds, self.answer_tokens)
                        runs[name].append(await window)
        for name, done in runs.items():
            per_s, limit = (median([run[figure] for run in done]) for figure in ("per_s", "limit"))
            print(f"  {name:20} {per_s:7.1f}/s  limit {limit:.0f}", flush=True)
        return runs


def fixed(limit: int) -> dict[str, Any]:
    """A client's arguments for a limit that nothing lowers: a metrics page lowers a number, too."""
    return {"limit": limit, "probe": False}


def cell(given: str) -> Case:
    tokens = None if given == "mixed" else int(given)

    def arms(prompts: Prompts) -> dict[str, Arm]:
        work = completing(prompts, tokens)
        return {DEFAULT: Arm(CALLERS, work)} | {
            str(limit): Arm(CALLERS, work, fixed(limit)) for limit in (16, 32, 64, 128, 256)
        }

    mean = tokens or sum(MIXTURE) / len(MIXTURE)
    return Case("outputs", f"max_tokens {given}", (), arms, {BEST_FIXED: 0.95}, mean)


def conversations(prompts: Prompts) -> dict[str, Arm]:
    def arm(callers: int, **arguments: Any) -> Arm:
        return Arm(callers, Conversations(prompts, tokens=4, turns=10).work, arguments)

    return {DEFAULT: arm(48)} | {str(many): arm(many, **fixed(256)) for many in (4, 6, 8, 10, 12, 48)}


def timeouts(prompts: Prompts) -> dict[str, Arm]:
    in_time = completing(prompts, 64, timeout_s=1.0)
    arms = {DEFAULT: Arm(256, in_time)}
    # Fixed limits have the same callers, and also as many callers as permits. A call that waits in
    # the client's queue uses up its second there.
    arms |= {str(limit): Arm(256, in_time, fixed(limit)) for limit in (16, 32, 64, 128)}
    return arms | {f"{limit}, as many callers": Arm(limit, in_time, fixed(limit)) for limit in (32, 64)}


def agents(prompts: Prompts) -> dict[str, Arm]:
    def arm(**arguments: Any) -> Arm:
        return Arm(AGENTS, Conversations(prompts, tokens=16, turns=None).work, arguments, AGENT_PAUSE_S)

    arms = {DEFAULT: arm(), NO_PAGE: arm(probe=False)}
    return arms | {str(limit): arm(**fixed(limit)) for limit in (8, 16, 32, 64, 128, 256)}


def blocks(count: int) -> tuple[str, ...]:
    """Flags for a KV cache of so many blocks of 32 tokens."""
    return ("--num-gpu-blocks-override", str(count), "--block-size", "32")


BESIDE_OUTPUTS = (
    Case("conversations", "ten turns on a prefix", blocks(96), conversations, {BEST_FIXED: 0.85}),
    Case("timeouts", "1 s, 64 tokens", (), timeouts, {BEST_FIXED: 0.9}),
    Case("agents", f"{AGENTS} agents", blocks(512), agents, {BEST_FIXED: 0.9, NO_PAGE: 0.95}, fresh=True),
)
PARTS = ("outputs", *(case.part for case in BESIDE_OUTPUTS))


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
    cases = [*map(cell, options.cells.split(",")), *BESIDE_OUTPUTS]
    chosen = [each for part in options.parts.split(",") for each in cases if each.part == part]
    for flags, alike in itertools.groupby(chosen, lambda case: case.flags):
        with vllm("--max-num-seqs", "256", "--dtype", options.dtype, *flags) as server:
            for case in alike:
                print(case.case, flush=True)
                runs = asyncio.run(case.measured(server, options))
                measured.append(
                    {"part": case.part, "case": case.case, "bars": case.bars, "runs": runs, "machine": here}
                )
                others = [each for each in data["cases"] if each["case"] != case.case]
                # By part, then 1, 16, 64, mixed.
                data["cases"] = sorted(
                    [*others, measured[-1]],
                    key=lambda each: (PARTS.index(each["part"]), len(each["case"]), each["case"]),
                )
                write_results(options.name, data, markdown(data))
    print(markdown(data))
    if options.check and (missed := shortfalls(measured, options.max_other)):
        sys.exit("\n".join(missed))


if __name__ == "__main__":
    main()
