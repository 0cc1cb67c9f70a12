"""Jobs on one server with a GPU: this client, ``AsyncOpenAI`` with ``gather``, and the engine itself.

    python benchmarks/on_gpu.py load --base-url http://localhost:8000/v1 --model m --server-pid 1234
    python benchmarks/on_gpu.py engine --model-dir DIR      # LLM.generate; needs vLLM in this interpreter
    python benchmarks/on_gpu.py page                        # the results, from the lines that the others wrote

All calls of a job begin at once, and the job ends with its last answer. Every arm of a job runs
before the next job begins; then all of it comes a second time. The most telling jobs come first, and
the measurement ends when ``--seconds`` are over. Each run is written as a line of JSON at once, into
``results/on_gpu.jsonl``.

Prompts are drawn anew for each run, so that no run finds another's in the server's prefix cache.
Each answer must have as many tokens as its call asked for. ``--scale 0.02`` and ``--jobs`` make a
rehearsal on a CPU or on ``batchclient simulate``.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import random
import re
import subprocess
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import openai
from _common import RESULTS, machine, median, processes, provenance, table, write_results

from batchclient import BatchClient

LINES = RESULTS / "on_gpu.jsonl"
TURNS = 2
_BAD_RUN = 1.05
"""Times the engine's rate: what a server around it cannot reach."""
SYLLABLES = [a + b for a in "bdfgklmnprstvz" for b in ("a", "e", "i", "o", "u", "an", "er", "il", "on", "us")]


@dataclass(frozen=True, slots=True)
class Job:
    """Calls alike, all made at once.

    Args:
        kind: ``"completions"`` or ``"chats"``.
        words: of each prompt; some 1.3 tokens each.
        tokens: of each answer.
        more: further fields of each call.
    """

    kind: str
    calls: int
    words: int
    tokens: int
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.kind} of {self.words} words, {self.tokens} tokens out"


JOBS = (
    Job("completions", 4000, 48, 128),
    Job("chats", 2000, 48, 128),
    Job("completions", 16000, 12, 1),
    Job("completions", 4000, 380, 8),
    Job("chats", 1000, 48, 512),
    Job("completions", 8000, 48, 16),
    Job("completions", 300, 48, 256),
)

Answered = tuple[float, float, dict[str, Any]]
"""Seconds, CPU seconds of this process, and what else is told of a run."""
Run = Callable[[str, str, Job, Sequence[str]], Coroutine[Any, Any, Answered]]
"""A fresh client's job, from a base URL, a model and the prompts."""


def prompts_of(job: Job, count: int) -> list[str]:
    draw = random.SystemRandom()
    return [
        f"{draw.getrandbits(48):x} " + " ".join(draw.choice(SYLLABLES) for _ in range(job.words)) for _ in range(count)
    ]


class Stopwatch:
    """Wall time and this process' CPU time. A collection of other runs' objects is none of its time."""

    def __init__(self) -> None:
        gc.collect()
        gc.freeze()
        self._wall, self._cpu = time.perf_counter(), time.process_time()

    def read(self) -> tuple[float, float]:
        wall, cpu = time.perf_counter() - self._wall, time.process_time() - self._cpu
        gc.unfreeze()
        return wall, cpu


# --- the clients ---


def ours(**settings: Any) -> Run:
    async def run(url: str, model: str, job: Job, prompts: Sequence[str]) -> Answered:
        async with BatchClient(url, model=model, **settings) as client:

            def call(prompt: str) -> Awaitable[Any]:
                fixed: dict[str, Any] = {"max_tokens": job.tokens, "ignore_eos": True, **job.more}
                if job.kind == "chats":
                    return client.chat([{"role": "user", "content": prompt}], **fixed)
                return client.complete(prompt, **fixed)

            watch = Stopwatch()
            answers = await asyncio.gather(*map(call, prompts))
            wall_s, cpu_s = watch.read()
            counted = client.statistics()
        told = [answer.usage for answer in answers if answer.usage and not answer.usage.completion_tokens_estimated]
        lacking = sum(usage.completion_tokens != job.tokens for usage in told)
        limits = [each.limit for each in counted.endpoints]
        more = {"requests": counted.batches, "limit": limits, "lacking": lacking, "estimated": len(answers) - len(told)}
        return wall_s, cpu_s, more

    return run


def theirs(most: int | None, **settings: Any) -> Run:
    """``AsyncOpenAI`` + ``gather``.

    Args:
        most: calls in flight, by a semaphore; ``None``: all at once, within the client's own bound
            of 1,000 connections.
        settings: the client's.
    """

    async def run(url: str, model: str, job: Job, prompts: Sequence[str]) -> Answered:
        client = openai.AsyncOpenAI(base_url=url, api_key="none", **settings)
        places = asyncio.Semaphore(most or len(prompts))
        fixed: dict[str, Any] = {"model": model, "max_tokens": job.tokens, "extra_body": {"ignore_eos": True}}
        fixed |= job.more

        async def call(prompt: str) -> int:
            async with places:
                if job.kind == "chats":
                    message: Any = {"role": "user", "content": prompt}
                    answer: Any = await client.chat.completions.create(messages=[message], **fixed)
                else:
                    answer = await client.completions.create(prompt=prompt, **fixed)
            return answer.usage.completion_tokens

        async with client:
            watch = Stopwatch()
            made = await asyncio.gather(*map(call, prompts))
            wall_s, cpu_s = watch.read()
        return wall_s, cpu_s, {"requests": len(made), "lacking": sum(tokens != job.tokens for tokens in made)}

    return run


PATIENT = {"timeout": 1200, "max_retries": 0}
DEFAULT, RIVAL, ENGINE = "BatchClient", "AsyncOpenAI", "LLM.generate"
ARMS = {
    DEFAULT: ours(),
    f"{RIVAL}, all at once": theirs(None, **PATIENT),
    "AsyncOpenAI, 512": theirs(512, **PATIENT),
    "BatchClient, limit=1024": ours(limit=1024),
    "AsyncOpenAI, 256": theirs(256, **PATIENT),
    'BatchClient, "throughput"': ours(preset="throughput"),
}


# --- the runs ---


def facts() -> dict[str, Any]:
    """All that a reader needs to judge a figure."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        card = subprocess.run(query, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        card = "no card"
    return {"card": card, **machine()}


def cpu_s_of(pid: int | None) -> float:
    """CPU seconds of a process; 0 where it is not known."""
    return sum(cpu_s for each, _, cpu_s in processes() if each == pid)


def write(options: argparse.Namespace, line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)
    with options.out.open("a") as file:
        file.write(json.dumps({"server": options.label, **line}) + "\n")


def figures(job: Job, count: int, wall_s: float) -> dict[str, float]:
    return {
        "calls": count,
        "seconds": round(wall_s, 3),
        "calls_per_s": round(count / wall_s, 1),
        "output_tokens_per_s": round(count * job.tokens / wall_s),
    }


def chosen(options: argparse.Namespace) -> list[Job]:
    return [JOBS[int(number)] for number in options.jobs.split(",")] if options.jobs else list(JOBS)


def load(options: argparse.Namespace) -> None:
    ends = time.monotonic() + options.seconds
    write(options, {"facts": facts() | {"flags": options.flags}})
    for turn in range(TURNS):
        for job in chosen(options):
            count = max(4, int(job.calls * options.scale))
            for arm, run in ARMS.items():
                if time.monotonic() > ends:
                    return
                line: dict[str, Any] = {"job": job.name, "arm": arm, "turn": turn}
                api_s = cpu_s_of(options.server_pid)
                try:
                    wall_s, cpu_s, more = asyncio.run(run(options.base_url, options.model, job, prompts_of(job, count)))
                except Exception as error:  # the other arms' figures are worth having
                    write(options, line | {"failed": f"{type(error).__name__}: {error}"[:300]})
                    continue
                per_call = {
                    "client_cpu_us": round(cpu_s / count * 1e6, 1),
                    "api_cpu_us": round((cpu_s_of(options.server_pid) - api_s) / count * 1e6, 1),
                }
                write(options, line | figures(job, count, wall_s) | per_call | more)


def engine(options: argparse.Namespace) -> None:
    """The engine in this process, without HTTP. Waits for ``--start-when`` after it has loaded the model."""
    from vllm import LLM, SamplingParams

    llm = LLM(model=options.model_dir, dtype="bfloat16", max_model_len=8192, **json.loads(options.engine_args))
    while options.start_when and not options.start_when.exists():
        time.sleep(0.2)
    ends = time.monotonic() + options.seconds
    for job in chosen(options):
        if time.monotonic() > ends:
            return
        count = max(4, int(job.calls * options.scale))
        prompts = prompts_of(job, count)
        asked = SamplingParams(max_tokens=job.tokens, ignore_eos=True)
        began = time.perf_counter()
        answers = llm.generate(prompts, asked, use_tqdm=False)
        took_s = time.perf_counter() - began
        lacking = sum(len(answer.outputs[0].token_ids) != job.tokens for answer in answers)
        line = {"job": job.name, "arm": ENGINE, "turn": 0, "lacking": lacking}
        write(options, line | figures(job, count, took_s))


# --- the results ---


def gathered(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The lines by server, job and client, and the machine of each server."""
    servers: dict[str, Any] = {}
    for line in lines:
        own = servers.setdefault(line["server"], {"facts": [], "jobs": {}, "not_whole": []})
        if "facts" in line:
            own["facts"].append(line["facts"])
        elif "failed" in line or line["lacking"]:
            own["not_whole"].append(line)
        else:
            own["jobs"].setdefault(line["job"], {}).setdefault(line["arm"], []).append(line)
    first = next(own["facts"][0] for own in servers.values() if own["facts"])
    machine = {name: first[name] for name in ("cpu", "cores", "date", "commit", "command")}
    return {"machine": machine, "servers": servers}


def markdown(data: dict[str, Any]) -> str:
    """The default client, the best of openai's by calls/s, and the engine where it had as many calls.

    An engine that was slower than the server around it had a bad run: no ratio to it is shown.
    """
    rows = []
    for server, own in data["servers"].items():
        commit = own["facts"][-1]["commit"]
        for job, arms in own["jobs"].items():
            rivals = [arm for arm in arms if arm.startswith(RIVAL)]
            if DEFAULT not in arms or not rivals:
                continue
            rates = {arm: median([run["calls_per_s"] for run in runs]) for arm, runs in arms.items()}
            theirs = max(rivals, key=rates.__getitem__)
            calls = arms[DEFAULT][0]["calls"]
            engine_per_s = rates[ENGINE] if ENGINE in arms and arms[ENGINE][0]["calls"] == calls else None
            engine = "" if engine_per_s is None else f"{engine_per_s:,.0f}"
            if engine_per_s is not None and rates[DEFAULT] <= _BAD_RUN * engine_per_s:
                engine += f", {rates[DEFAULT] / engine_per_s:.2f} ×"
            cpu_us = [median([run["client_cpu_us"] for run in arms[arm]]) for arm in (DEFAULT, theirs)]
            rows.append(
                [
                    re.sub(r".* (\d+(?:\.\d+)?) billion.*", r"\1 B", server),
                    f"{calls:,} {job}",
                    f"{rates[DEFAULT]:,.0f} ({arms[DEFAULT][-1]['limit'][0]})",
                    f"{rates[theirs]:,.0f} ({theirs.removeprefix(RIVAL).removeprefix(', ')})",
                    f"{rates[DEFAULT] / rates[theirs]:.2f} ×",
                    engine,
                    ", ".join(f"{each:,.0f}" for each in cpu_us),
                    f"{len(arms[DEFAULT])}, {commit}",
                ]
            )
    header = (
        "model",
        "job",
        "calls/s, default client (its limit at the end)",
        "`AsyncOpenAI` at its best (in flight)",
        "ratio",
        "`LLM.generate`, and our ratio to it",
        "client CPU µs/call: ours, theirs",
        "runs, commit",
    )
    machines = [facts for own in data["servers"].values() for facts in own["facts"]]
    return f"{table(header, rows)}\n\n{provenance(*machines)}"


def write_page(options: argparse.Namespace) -> None:
    data = gathered([json.loads(line) for line in options.out.read_text().splitlines()])
    write_results(options.out.stem, data, markdown(data), options.out.parent)
    print(markdown(data))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("load", "engine", "page"))
    parser.add_argument("--base-url")
    parser.add_argument("--model")
    parser.add_argument("--server-pid", type=int, help="of the API server, to tell its CPU")
    parser.add_argument("--label", default="a server", help="which model and which flags; a table each")
    parser.add_argument("--flags", default="", help="the server's, for the page")
    parser.add_argument("--model-dir")
    parser.add_argument("--engine-args", default="{}", help="of vllm.LLM, JSON")
    parser.add_argument("--start-when", type=Path, help="a file whose appearance begins the engine's runs")
    parser.add_argument("--seconds", type=float, default=240.0)
    parser.add_argument("--scale", type=float, default=1.0, help="of the numbers of calls")
    parser.add_argument("--jobs", help=f"numbers of jobs, from 0 to {len(JOBS) - 1}, with commas")
    parser.add_argument("--out", type=Path, default=LINES)
    options = parser.parse_args()
    if options.what == "load":
        load(options)
    elif options.what == "engine":
        engine(options)
    else:
        write_page(options)


if __name__ == "__main__":
    main()
