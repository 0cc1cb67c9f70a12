"""``BatchClient`` beside ``AsyncOpenAI`` on a real vLLM: completions, chats and embeddings.

    python benchmarks/on_vllm.py                # boots a vLLM, and another one for embeddings
    python benchmarks/on_vllm.py --calls chat --base-url http://localhost:8000/v1 --server-pid 1234

The measurement is that of ``batchclient bench``: closed loads, cells interleaved and repeated,
prompts that never come twice, and answers of one length. Beside it stands the CPU of the server's
API process per call, its warm-up included.

- Completions and embeddings: the client as it comes, and ``AsyncOpenAI``, with 64 and 256 callers.
- Chats, 64 in flight: the same two, lists of chats, and chats sent singly.
- ``mixed``: an answer ends by itself, when the end-of-text token is drawn (``logit_bias``), so the
  members of a list end at different times.
"""

from __future__ import annotations

import argparse
import asyncio
import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from _common import machine, median, provenance, spread, table, write_results
from _vllm import Server, add_server_options, given_or_started

from batchclient.bench import Cell, Figures, Setting, Times, Workload
from batchclient.bench.cell import SHARES
from batchclient.bench.session import begin
from batchclient.bench.strategies import RIVAL as THEIRS
from batchclient.bench.sweep import cells, settings_of

OURS = "adaptive"
CALLS: dict[str, tuple[tuple[str, ...], list[Setting]]] = {
    "complete": (("20x1", "20x16", "100x1", "20x64"), settings_of((OURS, THEIRS), concurrency=(64, 256))),
    "chat": (
        ("20x1", "20x16", "20x64", "20xmixed"),
        settings_of((OURS, "lists", "singles", THEIRS), concurrency=(64,), sizes=(64,)),
    ),
    "embed": (("20x1",), settings_of((OURS, THEIRS), concurrency=(64, 256))),
}
"""By kind of call: tokens in x tokens out of each case, and the clients with their loads."""
SERVERS = (
    (("complete", "chat"), ("--max-num-seqs", "256")),
    (("embed",), ("--runner", "pooling", "--convert", "embed", "--max-model-len", "512")),
)
"""Kinds of calls, and the flags of the vLLM that takes them.

The toy model is a generator or an embedder.
"""
END_OF_TEXT = "2"
MIXED_AT_MOST = 64
BIAS = 4.5
"""The ``logit_bias`` of the toy model's end-of-text token.

Answers had a mean of 41 tokens with 3.5, and of 10 with 5.5.
"""


@dataclass(frozen=True, slots=True)
class Case:
    """Calls alike.

    Args:
        call: ``"complete"``, ``"chat"`` or ``"embed"``.
        label: tokens in x tokens out.
    """

    call: str
    label: str

    def workload(self) -> Workload:
        tokens, _, made = self.label.partition("x")
        most = MIXED_AT_MOST if made == "mixed" else int(made)
        return Workload(int(tokens), most, call=self.call, seed=random.getrandbits(32))

    def fields(self) -> dict[str, Any]:
        """Sent with every call, in place of those that give answers one length."""
        return {"logit_bias": {END_OF_TEXT: BIAS}, "temperature": 1.0} if self.label.endswith("mixed") else {}


async def measured(server: Server, case: Case, options: argparse.Namespace) -> dict[str, Any]:
    times, answered = Times(options.warm_up_s, options.seconds), []
    session = await begin(server.base_url, case.workload(), times, model=server.model)
    session.on_window = lambda _setting, _repetition, window: answered.append(window.calls.outcomes.count(1))
    if fields := case.fields():
        session.target = replace(session.target, fields=fields)
    runs: dict[str, list[dict[str, Any]]] = {}
    cpu_s = server.api_cpu_s()
    async for cell in cells(session, CALLS[case.call][1], repeat=options.repetitions):
        api_ms = 1e3 * (server.api_cpu_s() - cpu_s) / max(1, sum(answered))
        runs.setdefault(str(cell.setting), []).append({**figures(cell), "api_ms": api_ms})
        print(f"  {case.call} {case.label}: {cell.setting}: {cell.calls_per_s:.0f}/s", flush=True)
        answered.clear()
        cpu_s = server.api_cpu_s()
    return {"call": case.call, "cell": case.label, "runs": runs}


def figures(cell: Cell) -> dict[str, Any]:
    """The figures of a cell. One without an answer has zeros, and a mark."""
    nothing = Figures(dict.fromkeys(SHARES, 0.0), {}, 0.0)
    latency, server = (cell.times.get(name, nothing).percentiles for name in ("latency", "server"))
    lists = Counter(cell.list_sizes)
    return {
        "per_s": cell.calls_per_s,
        "p50_ms": latency[0.5] * 1e3,
        "p95_ms": latency[0.95] * 1e3,
        "sent_p50_ms": server[0.5] * 1e3,
        "cpu_us": 1e6 * cell.client_cpu_share / cell.calls_per_s if cell.answered else 0.0,
        "output_tokens": cell.output_tokens_mean,
        "mean_list": sum(size * count for size, count in lists.items()) / max(1, lists.total()),
        "without_answer": cell.without_answer,
        "marks": list(cell.marks),
    }


# --- the report ---


def middle(runs: Sequence[dict[str, Any]], figure: str) -> float:
    return median([run[figure] for run in runs])


def best_rival(case: dict[str, Any]) -> str:
    """The load under which ``AsyncOpenAI`` had most calls per second."""
    rivals = {name: middle(runs, "per_s") for name, runs in case["runs"].items() if name.startswith(THEIRS)}
    return max(rivals, key=lambda name: rivals[name])


def ratio_values(case: dict[str, Any], ours: str, theirs: str, figure: str) -> list[float]:
    """One figure of two clients, within each repetition."""
    pairs = zip(case["runs"][ours], case["runs"][theirs], strict=True)
    return [one[figure] / other[figure] for one, other in pairs if other[figure]]


KINDS = {"complete": "completions", "chat": "chats", "embed": "embeddings"}


def markdown(data: dict[str, Any]) -> str:
    """Our client beside the rival at its best, with as many callers."""
    rows = []
    for case in data["cases"]:
        theirs = best_rival(case)
        ours = theirs.replace(THEIRS, OURS)
        tokens, _, made = case["cell"].partition("x")
        out = "" if case["call"] == "embed" else f", {made.replace('mixed', 'up to 64')} out"
        row = [f"{KINDS[case['call']]}, {tokens} in{out}", theirs.split()[-3]]
        for figure, digits in (("per_s", 0), ("p95_ms", 0), ("api_ms", 2)):
            values = ratio_values(case, ours, theirs, figure)
            row.append(", ".join(f"{middle(case['runs'][name], figure):,.{digits}f}" for name in (ours, theirs)))
            row.append(f"{median(values):.2f} ×" + f" ({spread(values)})" * (figure == "per_s"))
        rows.append(row)
    header = ("calls, tokens", "callers", "calls/s: ours, theirs", "ratio", "p95 ms", "ratio", "API CPU ms", "ratio")
    return f"{table(header, rows)}\n\n{provenance(data['machine'])}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_server_options(parser)
    parser.add_argument("--calls", default=",".join(CALLS), help="kinds of calls")
    parser.add_argument("--seconds", type=float, default=8.0, help="of a cell that count")
    parser.add_argument("--warm-up-s", type=float, default=2.0, help="of a cell before")
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--name", default="on_vllm", help="file name of the results")
    options = parser.parse_args()
    data: dict[str, Any] = {"machine": machine(), "cases": []}
    for kinds, flags in SERVERS:
        cases = [Case(call, label) for call in kinds if call in options.calls.split(",") for label in CALLS[call][0]]
        if not cases:
            continue
        with given_or_started(options, *flags) as server:
            for case in cases:
                data["cases"].append(asyncio.run(measured(server, case, options)))
                write_results(options.name, data, markdown(data))  # what is done stays, should a later case fail
    print(markdown(data))


if __name__ == "__main__":
    main()
