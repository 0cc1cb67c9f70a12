"""``batchclient bench`` beside ``vllm bench serve``, on a real vLLM. Exits with 1 past a bar.

    python benchmarks/beside_vllm_bench.py --rate 8 --rounds 5

- Both send single prompts of one length at Poisson arrivals, without a cap on what is in flight. No
  prompt comes twice. Ours is the strategy ``async-openai``, which sends each prompt by itself.
- vLLM's command reads the prompts with pandas, which its environment needs, too.
- Bars: tokens of a call equal; p50 within 5 %; p99 within the range of the rival's own rounds.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _common import HERE, machine, machine_line, median, table
from _vllm import vllm

from batchclient.bench import Setting, Times, Workload
from batchclient.bench.session import begin

VENV = Path(os.environ.get("BATCHCLIENT_VLLM_VENV", HERE.parent / ".vllm"))
MODEL_DIR = HERE.parent / ".cache" / "tiny-model"
PROMPT_TOKENS, OUTPUT_TOKENS = 64, 32
P50_SHARE = 0.05


def theirs(base_url: str, model: str, prompts: list[str], rate: float, seed: int) -> dict[str, Any]:
    """One run of ``vllm bench serve``: its result file."""
    with tempfile.TemporaryDirectory() as folder:
        dataset = Path(folder, "prompts.jsonl")
        dataset.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in prompts))
        command = [
            VENV / "bin" / "vllm", "bench", "serve", "--backend", "openai", "--base-url", base_url.removesuffix("/v1"),
            "--model", model, "--tokenizer", MODEL_DIR, "--dataset-name", "custom", "--dataset-path", dataset,
            "--custom-output-len", str(OUTPUT_TOKENS), "--skip-chat-template", "--disable-shuffle",
            "--num-prompts", str(len(prompts)), "--request-rate", str(rate), "--ignore-eos", "--seed", str(seed),
            "--percentile-metrics", "e2el", "--metric-percentiles", "50,95,99", "--disable-tqdm",
            "--save-result", "--result-dir", folder, "--result-filename", "result.json",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"vllm bench serve failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        return json.loads(Path(folder, "result.json").read_text())


async def ours(base_url: str, model: str, prompts: list[str], rate: float, seed: int) -> Any:
    # The texts as they are: no number in front.
    workload = Workload(prompts=prompts, output_tokens=OUTPUT_TOKENS, prefix_reuse=0.0)
    session = await begin(base_url, workload, Times(0.0, len(prompts) / rate, 60.0), model=model, seed=seed)
    return await session.cell(Setting("async-openai", rate=rate))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rate", type=float, default=8.0)
    parser.add_argument("--calls", type=int, default=240)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--dtype", default="float32")
    options = parser.parse_args()
    made = Workload(prompt_tokens=PROMPT_TOKENS)
    rows, number = [], 0
    with vllm("--max-num-seqs", "64", "--dtype", options.dtype) as server:
        for turn in range(options.rounds):
            runs = {}
            for name in ("theirs", "ours") if turn % 2 else ("ours", "theirs"):
                prompts = [made.prompt(number + each) for each in range(options.calls + 1)]
                number += options.calls + 1
                if name == "theirs":
                    result = theirs(server.base_url, server.model, prompts[1:], options.rate, turn)
                    completed = result["completed"]
                    runs[name] = [
                        result["total_input_tokens"] / completed, result["total_output_tokens"] / completed,
                        result["p50_e2el_ms"], result["p95_e2el_ms"], result["p99_e2el_ms"],
                    ]  # fmt: skip
                else:
                    cell = asyncio.run(ours(server.base_url, server.model, prompts, options.rate, turn))
                    latency = cell.times["latency"].percentiles
                    runs[name] = [
                        cell.prompt_tokens_mean, cell.output_tokens_mean,
                        *(latency[share] * 1e3 for share in (0.5, 0.95, 0.99)),
                    ]  # fmt: skip
            rows.append(runs)
            print(turn, runs, file=sys.stderr)
    print(machine_line(machine()))
    header = ["", "prompt tokens", "output tokens", "p50, ms", "p95, ms", "p99, ms"]
    middle = {name: [median([row[name][place] for row in rows]) for place in range(5)] for name in ("ours", "theirs")}
    print(table(header, [[name, *(f"{value:,.1f}" for value in values)] for name, values in middle.items()]))
    p99s = [row["theirs"][4] for row in rows]
    print(f"p99 of their rounds: {min(p99s):,.1f} to {max(p99s):,.1f} ms")
    missed = [
        name
        for name, is_missed in (
            ("tokens", round(middle["ours"][1]) != round(middle["theirs"][1])),
            ("p50", abs(middle["ours"][2] / middle["theirs"][2] - 1) > P50_SHARE),
            ("p99", not min(p99s) <= middle["ours"][4] <= max(p99s)),
        )
        if is_missed
    ]
    print(f"missed: {', '.join(missed) or 'none'}")
    sys.exit(bool(missed))


if __name__ == "__main__":
    main()
