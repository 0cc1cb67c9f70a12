"""Ways to send chats to a real vLLM: in lists, singly, rendered to completions; ``AsyncOpenAI``.

    python benchmarks/chat_vllm.py                       # boots a vLLM (tests/live/vllm_server.py)
    python benchmarks/chat_vllm.py --base-url http://127.0.0.1:8000/v1 --server-pid 1234

The ways:

- ``lists``: ``/v1/chat/completions/batch``, whatever the length.
- ``singles``: ``max_size=1``.
- ``rendered``: ``render_chat``, streamed lists of completions.
- ``default``: the client as it comes, which chooses.
- ``openai``: ``AsyncOpenAI``.

Rules:

- Every way has the same callers in a closed loop and the same limit. Runs are interleaved, in a new
  order each time. Ratios are taken within a repetition, against ``singles`` and against ``openai``.
- Cells are ``max_tokens``: a number N or ``mixed:N``. With a number every answer has exactly N
  tokens. With ``mixed:N`` an answer ends by itself within N tokens, when the end-of-text token is
  drawn (``logit_bias``), so the members of a list end at different times.
- Prompts are random and never repeat. An answer of another length than asked for is an error.

With ``--server-pid`` the CPU of the server's API process is measured, and the CPU of other
processes. The tables show both; no run is left out for the CPU of others.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import asdict
from typing import Any

import openai
from _common import RESULTS, Call, Measured, closed_loop, machine, machine_line, median, spread, table, write_results
from vllm_cpu import Gauges, Prompts, Server, learn_prompts, vllm

from batchclient import BatchClient, Batching

WAYS = ("lists", "singles", "rendered", "default", "openai")
END_OF_TEXT = "2"
BIAS = 4.5
"""The ``logit_bias`` of the toy model's end-of-text token.

Answers had a mean of 41 tokens with 3.5, and of 10 with 5.5.
"""
SETTINGS: dict[str, dict[str, Any]] = {
    "lists": {"batching": Batching(alone_above_tokens=10**7)},
    "singles": {"batching": Batching(max_size=1)},
    "rendered": {"render_chat": lambda messages: f"user: {messages[0]['content']}assistant:"},
    "default": {},
}


def fields_of(cell: str) -> tuple[int, dict[str, Any]]:
    """(max_tokens, the server's other fields) of a cell."""
    if cell.startswith("mixed:"):
        return int(cell[6:]), {"logit_bias": {END_OF_TEXT: BIAS}, "temperature": 1.0}
    return int(cell), {"ignore_eos": True, "temperature": 0}


def checked(made: int | None, cell: str, most: int) -> None:
    if made is None or not (1 <= made <= most if cell.startswith("mixed") else made == most):
        raise AssertionError(f"an answer of {made} tokens where {cell} was asked for")


@contextlib.asynccontextmanager
async def ours(way: str, server: Server, cell: str, callers: int, lists: Counter[int]) -> AsyncIterator[Call]:
    most, fields = fields_of(cell)
    settings = {"preset": "throughput", "limit": callers, "dialect": "vllm", **SETTINGS[way]}
    async with BatchClient(server.base_url, model=server.model, **settings) as client:

        async def call(prompt: str) -> str:
            fresh = dict(fields)
            if way == "rendered" and "logit_bias" in fresh:
                fresh["logit_bias"] = dict(fresh["logit_bias"])
            answer = await client.chat([{"role": "user", "content": prompt}], max_tokens=most, **fresh)
            checked(answer.output_tokens, cell, most)
            return answer.text

        yield call
        lists.update(client.statistics().list_sizes)


@contextlib.asynccontextmanager
async def async_openai(server: Server, cell: str) -> AsyncIterator[Call]:
    most, fields = fields_of(cell)
    extra = {"ignore_eos": True} if "ignore_eos" in fields else {}
    own = {name: value for name, value in fields.items() if name != "ignore_eos"}
    async with openai.AsyncOpenAI(base_url=server.base_url, api_key="none") as client:

        async def call(prompt: str) -> str:
            reply = await client.chat.completions.create(
                model=server.model,
                messages=[{"role": "user", "content": prompt}],
                max_tokens=most,
                extra_body=extra,
                **own,
            )
            checked(reply.usage.completion_tokens if reply.usage else None, cell, most)
            return reply.choices[0].message.content or ""

        yield call


async def run_of(way: str, server: Server, cell: str, prompts: list[str], callers: int) -> dict[str, Any]:
    lists: Counter[int] = Counter()
    opened = async_openai(server, cell) if way == "openai" else ours(way, server, cell, callers, lists)
    async with opened as call:
        warm = prompts[: len(prompts) // 4]
        await closed_loop(call, warm, callers)
        gauges = Gauges(server)
        measured: Measured = await closed_loop(call, prompts[len(warm) :], callers)
        run = gauges.run(measured)
    requests = sum(lists.values())
    mean_list = sum(size * count for size, count in lists.items()) / requests if requests else 1.0
    return {**asdict(measured), "api_ms": run.api_ms, "other": run.other_cores, "mean_list": mean_list}


async def measure(server: Server, prompts: Prompts, cell: str, options: argparse.Namespace) -> dict[str, Any]:
    runs: dict[str, list[dict[str, Any]]] = {way: [] for way in WAYS}
    for _ in range(options.repetitions):
        for way in random.sample(WAYS, len(WAYS)):
            own = prompts.make(options.calls, options.words)
            runs[way].append(await run_of(way, server, cell, own, options.callers))
    for way, done in runs.items():
        rate = median([run["calls"] / run["wall_s"] for run in done])
        print(f"  {cell:10} {way:9} {rate:7.1f}/s  mean {median([run['mean_ms'] for run in done]):6.0f} ms", flush=True)
    return {"cell": cell, "runs": runs}


def ratios(case: dict[str, Any], way: str, to: str, figure: str) -> list[float]:
    def value(run: dict[str, Any]) -> float:
        return run["calls"] / run["wall_s"] if figure == "rate" else run[figure]

    pairs = zip(case["runs"][way], case["runs"][to], strict=True)
    return [value(one) / value(other) for one, other in pairs if value(other)]


def ratio(case: dict[str, Any], way: str, to: str, figure: str) -> str:
    values = ratios(case, way, to, figure)
    return f"{median(values):.2f} ({spread(values)})" if values else "-"


def rows(case: dict[str, Any]) -> list[list[str]]:
    made = []
    for way in WAYS:
        runs = case["runs"][way]

        def middle(name: str, runs: list[dict[str, Any]] = runs) -> float:
            return median([run[name] for run in runs])

        made.append(
            [
                case["cell"],
                way,
                f"{median([run['calls'] / run['wall_s'] for run in runs]):.0f}",
                ratio(case, way, "singles", "rate"),
                ratio(case, way, "openai", "rate"),
                f"{middle('mean_ms'):.0f}",
                ratio(case, way, "singles", "mean_ms"),
                f"{middle('p95_ms'):.0f}",
                ratio(case, way, "singles", "api_ms"),
                f"{1e6 * median([run['cpu_s'] / run['calls'] for run in runs]):.0f}",
                f"{middle('mean_list'):.1f}",
                f"{middle('other'):.2f}",
            ]
        )
    return made


def markdown(data: dict[str, Any]) -> str:
    header = (
        "tokens",
        "way",
        "calls/s",
        "of singles'",
        "of openai's",
        "mean ms",
        "of singles'",
        "p95 ms",
        "API process's CPU per call, of singles'",
        "client µs/call",
        "mean list",
        "other processes, cores",
    )
    text = [
        "# Chats",
        "Medians of interleaved runs; ratios are medians of the ratios within a repetition (smallest to largest).",
    ]
    text.append(table(header, [row for case in data["cases"] for row in rows(case)]))
    text += dict.fromkeys(case["machine"] for case in data["cases"])
    return "\n\n".join(text)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base-url")
    parser.add_argument("--model")
    parser.add_argument("--server-pid", type=int)
    parser.add_argument("--cells", default="1,8,16,32,64,mixed:64")
    parser.add_argument("--callers", type=int, default=64)
    parser.add_argument("--calls", type=int, default=512)
    parser.add_argument("--words", type=int, default=20, help="tokens of a prompt, about")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--name", default="chat_vllm")
    parser.add_argument("--add", action="store_true", help="keep what an earlier run measured of other cells")
    options = parser.parse_args()
    data: dict[str, Any] = {"cases": []}
    kept_file = RESULTS / f"{options.name}.json"
    if options.add and kept_file.exists():
        data["cases"] = json.loads(kept_file.read_text())["cases"]
    here = machine_line(machine())
    with vllm(options) as server:
        prompts = asyncio.run(learn_prompts(server))
        for cell in options.cells.split(","):
            case = asyncio.run(measure(server, prompts, cell, options))
            data["cases"] = [*[each for each in data["cases"] if each["cell"] != cell], {**case, "machine": here}]
            write_results(options.name, data, markdown(data))
    print(markdown(data))


if __name__ == "__main__":
    main()
