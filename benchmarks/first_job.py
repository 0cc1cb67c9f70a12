"""A first job: ``gather`` over N calls with a client that knows nothing of the server.

    python benchmarks/first_job.py --check          # boots a vLLM; exit status 1 if a bar is missed
    python benchmarks/first_job.py --base-url http://127.0.0.1:8000/v1  # a server that is up
    python benchmarks/first_job.py --server simulator --quick  # the embedded server; two rounds
    python benchmarks/first_job.py --client limit=256  # a further arm, with these arguments

The embedded server has the profile gpu. The rival is ``AsyncOpenAI``.

Measured is the time from the first call to the last answer. The arms:

- ``batchclient``: the client as it comes. Each ``--client`` adds one with arguments of its own.
- ``AsyncOpenAI, all at once``: ``gather`` and nothing else. The client's HTTP pool opens 1,000
  connections at most and keeps 100 idle ones, so further calls wait in the client.
- ``AsyncOpenAI, all at once, open pool``: the same with no bound on connections.
- ``AsyncOpenAI, 64`` and ``AsyncOpenAI, 256``: with a semaphore of that many.

A bound of at least as many as there are calls never holds. Such an arm is left out: the best of
three times the same client would only be luckier than one.

Rules:

- Cells are CALLSxTOKENS. Every answer has exactly that many tokens; another length is an error.
- Each arm of each round has a fresh client, a fresh event loop and random prompts of its own, so no
  prefix cache favours a later arm. The order rotates by one from round to round.
- One small job per arm, which is not counted, warms the server and this process's imports.
- A ratio is taken within a round, against the fastest ``AsyncOpenAI`` arm of that round. An arm
  with a failed call counts as infinitely slow in that round.
- ``--check`` judges the default client alone: in every cell the median ratio is at most 1.05, and
  no round's ratio is above 1.15.

The CPU of other processes is shown where the server's processes are known. No run is left out for
that CPU.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import contextlib
import functools
import gc
import math
import re
import resource
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any

import httpx2
import openai
from _common import machine, median, provenance, table, write_results
from _vllm import OtherCores, Prompts, Server, add_server_options, given_or_started, learn_prompts

from batchclient import BatchClient

MEDIAN_BAR, WORST_BAR = 1.05, 1.15
"""Bars for the default client's time over the best ``AsyncOpenAI`` arm's.

The first holds in the median round, the second in every round.
"""
ROUNDS, QUICK_ROUNDS = 5, 2
PROMPT_TOKENS = 20
POOL = 1000
"""Connections that ``AsyncOpenAI`` opens at most (``openai.DEFAULT_CONNECTION_LIMITS``)."""
SEMAPHORES = (64, 256)
VLLM_SEQUENCES = 256
"""Sequences that a started vLLM runs at once.

The number is vLLM 0.32's own default on GPUs of less than 70 GiB and on the A100
(``engine/arg_utils.py``). On larger GPUs the default is 1,024, as in the profile gpu.
"""
DEFAULT, RIVAL = "batchclient", "AsyncOpenAI"

Ask = Callable[[str], Awaitable[int | None]]
"""A prompt in; how many tokens came."""
Open = Callable[[Server, int], AbstractAsyncContextManager[Ask]]
"""Opens a client for a server and a number of tokens per answer."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A job: so many calls, so many tokens each."""

    calls: int
    tokens: int

    @property
    def label(self) -> str:
        return f"{self.calls:,} × {self.tokens}"


WARM_UP = Cell(300, 4)


# --- the arms ---


@contextlib.asynccontextmanager
async def ours(server: Server, tokens: int, **arguments: Any) -> AsyncIterator[Ask]:
    async with BatchClient(server.base_url, model=server.model, **arguments) as client:

        async def ask(prompt: str) -> int | None:
            answer = await client.complete(prompt, max_tokens=tokens, temperature=0, ignore_eos=True)
            return answer.output_tokens

        yield ask


@contextlib.asynccontextmanager
async def async_openai(
    server: Server, tokens: int, *, in_flight: int | None = None, open_pool: bool = False
) -> AsyncIterator[Ask]:
    no_bound = httpx2.Limits(max_connections=None, max_keepalive_connections=None)
    http = openai.DefaultAsyncHttpxClient(limits=no_bound) if open_pool else None
    gate = asyncio.Semaphore(in_flight) if in_flight else contextlib.nullcontext()
    async with openai.AsyncOpenAI(base_url=server.base_url, api_key="none", http_client=http) as client:

        async def ask(prompt: str) -> int | None:
            async with gate:
                reply = await client.completions.create(
                    model=server.model,
                    prompt=prompt,
                    max_tokens=tokens,
                    temperature=0,
                    extra_body={"ignore_eos": True},
                )
            return reply.usage.completion_tokens if reply.usage else None

        yield ask


def arms_of(cell: Cell, clients: dict[str, dict[str, Any]]) -> dict[str, Open]:
    arms: dict[str, Open] = {DEFAULT: ours}
    arms |= {f"{DEFAULT}, {text}": functools.partial(ours, **arguments) for text, arguments in clients.items()}
    arms[f"{RIVAL}, all at once"] = async_openai
    if cell.calls > POOL:
        arms[f"{RIVAL}, all at once, open pool"] = functools.partial(async_openai, open_pool=True)
    for many in SEMAPHORES:
        if cell.calls > many:
            arms[f"{RIVAL}, {many}"] = functools.partial(async_openai, in_flight=many)
    return arms


# --- measuring ---


async def job(open_client: Open, server: Server, cell: Cell, prompts: list[str]) -> dict[str, Any]:
    """Start all calls at once with a fresh client; return the seconds taken and the failures."""
    async with open_client(server, cell.tokens) as ask:
        others, began = OtherCores(server), time.perf_counter()
        answers = await asyncio.gather(*map(ask, prompts), return_exceptions=True)
        took_s, other = time.perf_counter() - began, others.mean()
    failures = [answer for answer in answers if isinstance(answer, BaseException)]
    if failures:
        print(f"  {len(failures)} calls failed; the first: {failures[0]!r:.200}", flush=True)
    for answer in answers:
        if not isinstance(answer, BaseException) and answer != cell.tokens:
            raise AssertionError(f"an answer of {answer} tokens where {cell.tokens} were asked for")
    return {"took_s": took_s, "failed": len(failures), "other": other}


def run_fresh(open_client: Open, server: Server, cell: Cell, prompts: Prompts) -> dict[str, Any]:
    texts = prompts.make(cell.calls, PROMPT_TOKENS)
    gc.collect()  # what earlier arms left is not this one's to clean up
    return asyncio.run(job(open_client, server, cell, texts))


def measure(server: Server, prompts: Prompts, cell: Cell, arms: dict[str, Open], rounds: int) -> dict[str, Any]:
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in arms}
    names = list(arms)
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            runs[name].append(run_fresh(arms[name], server, cell, prompts))
    case = {"cell": cell.label, "runs": runs}
    for name, done in runs.items():
        shown = f"{median([seconds(run) for run in done]):7.2f} s, ratio {median(ratios(case, name)):.2f}"
        print(f"  {cell.label:10} {name:40} {shown}", flush=True)
    return case


# --- the report ---


def seconds(run: dict[str, Any]) -> float:
    return math.inf if run["failed"] else float(run["took_s"])


def ratios(case: dict[str, Any], name: str) -> list[float]:
    """Per round: this arm's time over the fastest ``AsyncOpenAI`` arm's.

    Infinite where a call of this arm failed.
    """
    pairs = zip(case["runs"][name], best_of_round(case), strict=True)
    return [math.inf if run["failed"] else seconds(run) / best_s for run, best_s in pairs]


def shortfalls(data: dict[str, Any]) -> list[str]:
    """A sentence for each bar that the default client misses."""
    said = []
    for case in data["cases"]:
        values = ratios(case, DEFAULT)
        if median(values) > MEDIAN_BAR:
            said.append(f"{case['cell']}: the median ratio is {median(values):.2f}, above {MEDIAN_BAR}")
        if max(values) > WORST_BAR:
            said.append(f"{case['cell']}: the worst ratio is {max(values):.2f}, above {WORST_BAR}")
    return said


def best_of_round(case: dict[str, Any]) -> list[float]:
    """The seconds of the fastest ``AsyncOpenAI`` arm, round by round."""
    arms = [runs for name, runs in case["runs"].items() if name.startswith(RIVAL)]
    return [min(seconds(run) for run in runs) for runs in zip(*arms, strict=True)]


def markdown(data: dict[str, Any]) -> str:
    rows = []
    for case in data["cases"]:
        over = ratios(case, DEFAULT)
        arms = (case["runs"][DEFAULT], case["runs"][f"{RIVAL}, all at once"])
        took = [[seconds(run) for run in runs] for runs in arms] + [best_of_round(case)]
        rows.append(
            [case["cell"], *(f"{median(each):.3g}" for each in took), f"{median(over):.2f}", f"{max(over):.2f}"]
        )
    header = (
        "calls × tokens",
        "`BatchClient`, s",
        "`AsyncOpenAI` + `gather`, s",
        "at its best, s",
        "ours over its best",
        "worst round",
    )
    return f"{table(header, rows)}\n\n{provenance(data['machine'])}"


# --- the command ---


@contextlib.contextmanager
def served(options: argparse.Namespace) -> Iterator[Server]:
    if options.server == "simulator" and not options.base_url:
        from batchclient.simulator import EmbeddedServer

        with EmbeddedServer("gpu", process=True, max_num_seqs=options.max_num_seqs) as simulated:
            yield Server(simulated.base_url, simulated.model)
    else:
        with given_or_started(options, "--max-num-seqs", str(options.max_num_seqs or VLLM_SEQUENCES)) as server:
            yield server


def cell_of(text: str) -> Cell:
    if not re.fullmatch(r"[1-9]\d*x[1-9]\d*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not CALLSxTOKENS, such as 300x16")
    return Cell(*map(int, text.split("x")))


def arguments_of(text: str) -> dict[str, Any]:
    """``limit=256,server_metrics=False`` as arguments; a value that is no Python literal is a text."""
    arguments: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not (name.isidentifier() and equals):
            raise argparse.ArgumentTypeError(f"{part!r} is not NAME=VALUE, such as limit=256")
        try:
            arguments[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            arguments[name] = value
    return arguments


def allow_many_connections() -> None:
    """Let this process and the server it starts open as many files as the system allows.

    A job of 3,000 calls needs so many files.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_server_options(parser)
    parser.add_argument("--server", choices=("vllm", "simulator"), default="vllm", help="what is started")
    parser.add_argument("--max-num-seqs", type=int, help="sequences that the started server runs at once;"
                        f" if not given, {VLLM_SEQUENCES} in vLLM and 1,024 in the simulator")  # fmt: skip
    parser.add_argument("--cells", type=lambda text: [cell_of(each) for each in text.split(",")],
                        default="64x64,300x16,300x256,3000x1")  # fmt: skip
    parser.add_argument("--client", action="append", default=[], metavar="NAME=VALUE[,…]",
                        help="a further batchclient arm with these arguments of BatchClient;"
                        " may be repeated")  # fmt: skip
    parser.add_argument("--rounds", type=int, help=f"{ROUNDS} if not given, with --quick {QUICK_ROUNDS}")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--check", action="store_true", help="exit status 1 if the default client misses a bar")
    parser.add_argument("--name", default="first_job", help="file name of the results")
    options = parser.parse_args()
    options.rounds = options.rounds or (QUICK_ROUNDS if options.quick else ROUNDS)
    try:
        options.client = {text: arguments_of(text) for text in options.client}
    except argparse.ArgumentTypeError as error:
        parser.error(f"--client: {error}")
    return options


def main() -> None:
    options = arguments()
    allow_many_connections()
    named = options.base_url or {"vllm": "a real vLLM", "simulator": "the embedded server, profile gpu"}[options.server]
    data: dict[str, Any] = {"cases": [], "server": named, "machine": machine()}
    with served(options) as server:
        prompts = asyncio.run(learn_prompts(server))
        for open_client in arms_of(WARM_UP, options.client).values():
            run_fresh(open_client, server, WARM_UP, prompts)
        for cell in options.cells:
            arms = arms_of(cell, options.client)
            data["cases"].append(measure(server, prompts, cell, arms, options.rounds))
            write_results(options.name, data, markdown(data))  # what is done stays, should a later cell fail
    print(markdown(data))
    if options.check and (missed := shortfalls(data)):
        sys.exit("\n".join(missed))


if __name__ == "__main__":
    main()
