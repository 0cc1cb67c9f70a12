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
import asyncio
import contextlib
import math
import re
import resource
import sys
from collections.abc import Iterator
from typing import Any

import openai
from _common import arguments_of, machine, median, provenance, table, write_results
from _vllm import OtherCores, Prompts, Server, learn_prompts, vllm
from on_gpu import DEFAULT, RIVAL, Job, Run, ours, theirs

from batchclient.simulator import EmbeddedServer

MEDIAN_BAR, WORST_BAR = 1.05, 1.15
"""Bars for the default client's time over the best ``AsyncOpenAI`` arm's.

The first holds in the median round, the second in every round.
"""
ROUNDS, QUICK_ROUNDS = 5, 2
PROMPT_TOKENS = 20
SEMAPHORES = (64, 256)
VLLM_SEQUENCES = 256
"""Sequences that a started vLLM runs at once.

The number is vLLM 0.32's own default on GPUs of less than 70 GiB and on the A100
(``engine/arg_utils.py``). On larger GPUs the default is 1,024, as in the profile gpu.
"""


def cell_of(text: str) -> Job:
    if not re.fullmatch(r"[1-9]\d*x[1-9]\d*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is not CALLSxTOKENS, such as 300x16")
    calls, tokens = map(int, text.split("x"))
    return Job("completions", calls, 0, tokens, {"temperature": 0})


def arms_of(cell: Job, clients: dict[str, dict[str, Any]]) -> dict[str, Run]:
    arms = {DEFAULT: ours()}
    arms |= {f"{DEFAULT}, {text}": ours(**arguments) for text, arguments in clients.items()}
    arms[f"{RIVAL}, all at once"] = theirs(None)
    arms |= {f"{RIVAL}, {many}": theirs(many) for many in SEMAPHORES if cell.calls > many}
    return arms


WARM_UP = cell_of("300x4")


# --- measuring ---


def run_fresh(run: Run, server: Server, cell: Job, prompts: Prompts) -> dict[str, Any]:
    """Start all calls at once with a fresh client; return the seconds taken, and whether a call failed."""
    texts, others = prompts.make(cell.calls, PROMPT_TOKENS), OtherCores(server)
    try:
        took_s, _, more = asyncio.run(run(server.base_url, server.model, cell, texts))
    except Exception as error:
        print(f"  a call failed: {error!r:.200}", flush=True)
        return {"took_s": math.inf, "failed": 1, "other": others.mean()}
    if more["lacking"]:
        raise AssertionError(f"{more['lacking']} answers without the {cell.tokens} tokens that were asked for")
    return {"took_s": took_s, "failed": 0, "other": others.mean()}


def measure(server: Server, prompts: Prompts, cell: Job, arms: dict[str, Run], rounds: int) -> dict[str, Any]:
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in arms}
    names = list(arms)
    for number in range(rounds):
        first = number % len(names)
        for name in names[first:] + names[:first]:
            runs[name].append(run_fresh(arms[name], server, cell, prompts))
    label = f"{cell.calls:,} × {cell.tokens}"
    case = {"cell": label, "runs": runs}
    for name, done in runs.items():
        shown = f"{median([seconds(run) for run in done]):7.2f} s, ratio {median(ratios(case, name)):.2f}"
        print(f"  {label:10} {name:40} {shown}", flush=True)
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
    """The server of ``--base-url``, or one that is started."""
    if options.base_url:
        with openai.OpenAI(base_url=options.base_url, api_key="none") as client:
            model = options.model or client.models.list().data[0].id
        yield Server(options.base_url, model, options.server_pid)
    elif options.server == "simulator":
        with EmbeddedServer("gpu", process=True, max_num_seqs=options.max_num_seqs) as simulated:
            yield Server(simulated.base_url, simulated.model)
    else:
        with vllm("--max-num-seqs", str(options.max_num_seqs or VLLM_SEQUENCES)) as server:
            yield server


def allow_many_connections() -> None:
    """Let this process and the server it starts open as many files as the system allows.

    A job of 3,000 calls needs so many files.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url", help="a running server's, with /v1; without it one is started")
    parser.add_argument("--model", help="its first model if not given")
    parser.add_argument("--server-pid", type=int, help="its API server, to tell its CPU from other processes'")
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
        for run in arms_of(WARM_UP, options.client).values():
            run_fresh(run, server, WARM_UP, prompts)
        for cell in options.cells:
            arms = arms_of(cell, options.client)
            data["cases"].append(measure(server, prompts, cell, arms, options.rounds))
            write_results(options.name, data, markdown(data))  # what is done stays, should a later cell fail
    print(markdown(data))
    if options.check and (missed := shortfalls(data)):
        sys.exit("\n".join(missed))


if __name__ == "__main__":
    main()
