"""Batch sizes, and arrivals that are answered in time: ``batchclient bench`` on a real vLLM.

    python benchmarks/sizing.py                                   # boots a vLLM; 30 minutes
    python benchmarks/sizing.py --only loads --picture chromium   # a part anew, with its picture

Commands, each as a user types it:

- ``sizes``: 64 calls in flight, answers of 16 tokens, plain and streamed lists of 2 to 64 prompts
  beside single prompts, the client as it is, and ``AsyncOpenAI``.
- ``loads``: 4 to 256 calls in flight, of the same calls. The report of this command goes into
  ``docs/reports`` as it was written, and its pictures of the loads into ``docs/images``.
- ``rates``: Poisson arrivals of calls of one token, by the client as it is and by ``AsyncOpenAI``.
- ``find``: the highest such rate that keeps 95 % of the calls within 400 ms.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from _common import HERE, RESULTS, machine, machine_line, table, write_results
from _vllm import vllm

from batchclient.bench.report import Report, read_report
from batchclient.bench.summary import Figure, Summary, percentile, summaries_of

REPORT = HERE.parent / "docs" / "reports" / "vllm_loads.html"
PICTURE = HERE.parent / "docs" / "images" / "bench_report.png"
WINDOW = "--for 8 --warm-up 2"
COMMANDS = {
    "sizes": "--prompt-tokens 64 --output-tokens 16 --concurrency 64 --sizes 2,4,8,16,32,64"
    f" --strategies adaptive,singles,lists,streamed,async-openai {WINDOW}",
    "loads": "--prompt-tokens 64 --output-tokens 16 --concurrency 4,16,64,256 --sizes 16"
    f" --strategies adaptive,lists,async-openai {WINDOW}",
    "rates": "--prompt-tokens 20 --output-tokens 1 --rate 100,200,400,800"
    f" --strategies adaptive,async-openai --slo p95<400ms {WINDOW}",
    "find": f"--prompt-tokens 20 --output-tokens 1 --find rate --slo p95<400ms {WINDOW}",
}


def run(name: str, base_url: str, folder: Path) -> Report:
    """Run one command, and read the report that it wrote."""
    written = folder / f"{name}.json"
    command = [sys.executable, "-m", "batchclient", "bench", "--base-url", base_url, *shlex.split(COMMANDS[name])]
    command += ["--json", str(written)]
    if name == "loads":
        REPORT.parent.mkdir(exist_ok=True)
        command += ["--report", str(REPORT)]
    subprocess.run(command, check=True, env={**os.environ, "BATCHCLIENT_LOG_LEVEL": "warning"})
    return read_report(written)


def figure(told: Figure | None) -> dict[str, Any] | None:
    return None if told is None else {"value": told.value, "interval": told.interval}


def row(summary: Summary) -> dict[str, Any]:
    setting = summary.setting
    return {
        "strategy": setting.strategy, "size": setting.size, "concurrency": setting.concurrency, "rate": setting.rate,
        "calls_per_s": figure(summary.calls_per_s), "tokens_per_s": figure(summary.tokens_per_s),
        **{f"{name}_p95_s": figure(percentile(summary, name, 0.95)) for name in ("late", "queued", "server")},
        "p50_s": figure(percentile(summary, "latency", 0.5)), "p95_s": figure(percentile(summary, "latency", 0.95)),
        "slo_shares": [figure(share) for share in summary.slo_shares], "marks": summary.marks,
    }  # fmt: skip


def result(report: Report, command: str) -> dict[str, Any]:
    return {
        "command": f"batchclient bench {command}", "server": report.about["server"]["name"],
        "workload": report.about["workload"], "answer": report.lines, "recommendation": report.recommendation,
        "rows": [row(summary) for summary in summaries_of(report.cells, report.slos)],
    }  # fmt: skip


def shown(each: dict[str, Any] | None, times: float = 1.0) -> str:
    if each is None:
        return ""
    if each["interval"] is None:
        return f"{each['value'] * times:,.3g}"
    low, high = (bound * times for bound in each["interval"])
    return f"{each['value'] * times:,.3g} [{low:,.3g}, {high:,.3g}]"


def markdown(data: dict[str, Any]) -> str:
    """All rows, with their intervals."""
    parts = ["# Batch sizes, loads and arrivals on a real vLLM"]
    for part in data["cases"]:
        header = ["strategy", "size", "in flight", "arrivals/s", "calls/s", "tokens/s", "p50, ms", "p95, ms", "marks"]
        rows = [
            [
                each["strategy"], each["size"] or "", each["concurrency"] or "", each["rate"] or "",
                shown(each["calls_per_s"]), shown(each["tokens_per_s"]), shown(each["p50_s"], 1e3),
                shown(each["p95_s"], 1e3), "; ".join(each["marks"]),
            ]
            for each in part["rows"]
        ]  # fmt: skip
        answer = "\n".join(f"    {line}" for line in part["answer"])
        parts += [
            f"## {part['cell']}",
            machine_line(part["machine"]),
            f"    {part['command']}",
            table(header, rows),
            answer,
        ]
    return "\n\n".join(parts)


def draw(browser: str) -> None:
    """Draw the report's first two figures, throughput and latency by concurrency, as one picture."""
    page = REPORT.read_text(encoding="utf-8")
    styles = re.findall(r"<style>.*?</style>", page, re.DOTALL)
    figures = re.findall(r"<figure>.*?</figure>", page, re.DOTALL)[:2]
    with tempfile.TemporaryDirectory() as folder:
        cut = Path(folder, "figures.html")
        cut.write_text(f"<!doctype html><meta charset=utf-8>{''.join(styles)}{''.join(figures)}", encoding="utf-8")
        subprocess.run(
            [
                browser, "--headless", "--no-sandbox", "--hide-scrollbars", "--force-device-scale-factor=1.25",
                "--window-size=980,815", f"--screenshot={PICTURE}", cut.as_uri(),
            ],
            check=True, capture_output=True,
        )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dtype", default="auto", help="of the model")
    parser.add_argument("--picture", metavar="BROWSER", help="Chromium's command")
    parser.add_argument("--only", choices=COMMANDS, help="one command; the other results stay")
    options = parser.parse_args()
    cases: dict[str, dict[str, Any]] = {}
    if options.only:
        cases = {case["cell"]: case for case in json.loads((RESULTS / "sizing.json").read_text())["cases"]}
    with vllm("--max-num-seqs", "256", "--dtype", options.dtype) as server, tempfile.TemporaryDirectory() as folder:
        for name in [options.only] if options.only else COMMANDS:
            facts = machine()
            cases[name] = {
                "cell": name,
                "machine": facts,
                **result(run(name, server.base_url, Path(folder)), COMMANDS[name]),
            }
    data = {"cases": [cases[name] for name in COMMANDS if name in cases]}
    text = markdown(data)
    write_results("sizing", data, text)
    print(text)
    if options.picture:
        draw(options.picture)


if __name__ == "__main__":
    main()
