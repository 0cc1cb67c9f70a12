"""An OpenAI Batch file by ``batchclient map``, ``saturate``, ``AsyncOpenAI`` and ``vllm run-batch``.

    python benchmarks/batch_files.py                        # 20,000 rows beside an instant server
    python benchmarks/batch_files.py --engine-rows 20000    # then beside a real vLLM

Each row is a chat with ``max_tokens``, ``temperature`` and ``seed`` of its own, so no two rows
share a request. Every tool reads the same file, by its defaults. The arms take turns. A rate counts
from the command's start to its end. Each output has to have every row once. Then each tool is
killed (SIGKILL) when half of the rows are answered, and the same command runs again. A row that the
output then lacks is lost. Sent again is what was answered beyond the rows.

- ``saturate`` has no command: its arm is the program of its README. To install it: ``python3 -m
  venv .cache/saturate && .cache/saturate/bin/pip install saturate==0.2.0``.
- ``AsyncOpenAI`` is a script that appends a line per answer, and skips rows whose line is there.
- ``vllm run-batch`` is an engine in process. Beside it the others ask a ``vllm serve`` that runs
  already, with the same model and flags (``make test-extra WHICH=vllm`` installs it). Its rows have
  no seed: vLLM 0.32 on the CPU dies of one in a prompt that it reads in parts.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as parquet
from _common import (
    HERE,
    documents,
    instant_server,
    machine,
    median,
    memory_mib,
    processes,
    provenance,
    server_counts,
    spread,
    table,
    write_results,
)
from _vllm import go_first, vllm

ROOT = HERE.parent
SATURATE_PYTHON = ROOT / ".cache/saturate/bin/python"
VLLM = Path(os.environ.get("BATCHCLIENT_VLLM_VENV", ROOT / ".vllm")) / "bin/vllm"
MODEL = ROOT / ".cache/tiny-model"
FLAGS = ("--max-num-seqs", "256")
OFFLINE = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}

SATURATE = """
import json, sys
from saturate import pump

base_url, source, out = sys.argv[1:]
pump(
    map(json.loads, open(source)),
    to_request=lambda row: row["body"],
    parse=lambda row, reply: {"text": reply["choices"][0]["message"]["content"], **reply["usage"]},
    endpoint=base_url,
    output=out,
    id_key="custom_id",
)
"""
OPENAI = """
import asyncio, json, os, sys
from openai import AsyncOpenAI

async def main(base_url, source, out):
    done = {json.loads(line)["custom_id"] for line in open(out)} if os.path.exists(out) else set()
    permits = asyncio.Semaphore(64)
    async with AsyncOpenAI(base_url=base_url, api_key="none") as client:
        with open(out, "a", buffering=1) as file:
            async def ask(row):
                async with permits:
                    reply = await client.chat.completions.create(**row["body"])
                line = {"custom_id": row["custom_id"], "response": {"body": reply.model_dump()}}
                file.write(json.dumps(line) + "\\n")

            rows = map(json.loads, open(source))
            await asyncio.gather(*(ask(row) for row in rows if row["custom_id"] not in done))

asyncio.run(main(*sys.argv[1:]))
"""


def lines(out: Path) -> Iterator[tuple[str, str]]:
    """Read ids and texts of the Batch form."""
    with out.open() as file:
        for line in map(json.loads, file):
            yield line["custom_id"], line["response"]["body"]["choices"][0]["message"]["content"]


def parts(out: Path) -> Iterator[tuple[str, str]]:
    """Read saturate's folder: without a part that the kill has torn, as saturate itself does."""
    for part in out.glob("part-*.parquet"):
        with contextlib.suppress(pa.ArrowInvalid):
            for row in parquet.read_table(part).to_pylist():
                assert row["error"] is None, row["error"]
                yield row["id"], row["text"]


@dataclass(frozen=True, slots=True)
class Arm:
    """A tool: its command by base URL, input and output is the same for the first run and the next."""

    name: str
    command: Callable[[str, Path, Path], list[str]]
    read: Callable[[Path], Iterator[tuple[str, str]]] = lines


def batchclient_map(base_url: str, source: Path, out: Path) -> list[str]:
    options = ["--base-url", base_url, "--output-form", "batch"]
    return [sys.executable, "-m", "batchclient", "map", str(source), "-o", str(out), *options]


def run_batch(_base_url: str, source: Path, out: Path) -> list[str]:
    served = ["--model", str(MODEL), "--served-model-name", "tiny", "--max-model-len", "2048", "--enforce-eager"]
    return [str(VLLM), "run-batch", "-i", str(source), "-o", str(out), *served, *FLAGS]


def script(python: Path | str, text: str) -> Callable[[str, Path, Path], list[str]]:
    return lambda base_url, source, out: [str(python), "-c", text, base_url, str(source), str(out)]


ARMS = {
    "map": Arm("`batchclient map`", batchclient_map),
    "saturate": Arm("`saturate` 0.2", script(SATURATE_PYTHON, SATURATE), parts),
    "openai": Arm("`AsyncOpenAI`, a semaphore of 64", script(sys.executable, OPENAI)),
    "run-batch": Arm("`vllm run-batch`", run_batch),
}


@dataclass(frozen=True, slots=True)
class Service:
    """What answers the rows; the CPU of ``run-batch``'s is in the tool's own, and its progress in the log."""

    base_url: str
    model: str
    answered: Callable[[str], int]
    cpu_s: Callable[[], float] = float


def run(arm: Arm, service: Service, source: Path, folder: Path, kill_at: int | None = None) -> dict[str, float]:
    """Run a tool to its end, or kill it and all that it started once so many rows are answered."""
    log, boot_s, cpu_s, mib, killed = folder / "log", 0.0, 0.0, 0.0, False
    given, server_s = arm.command(service.base_url, source, folder / "out"), service.cpu_s()
    with log.open("a") as told:
        began, logged = time.perf_counter(), told.tell()
        quiet: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": told, "stderr": told}
        process = subprocess.Popen(given, **quiet, start_new_session=True, env={**os.environ, **OFFLINE})
    try:
        while not (ended := os.wait4(process.pid, os.WNOHANG))[0]:
            # An engine's processes are not all children that the tool waits for.
            own = [(pid, used_s) for pid, group, used_s in processes() if group == process.pid]
            cpu_s = max(cpu_s, sum(used_s for _, used_s in own))
            mib = max(mib, sum(memory_mib("VmHWM", pid) for pid, _ in own))
            text = log.read_text(errors="replace")
            boot_s = boot_s or ("Reading batch from" in text[logged:]) * (time.perf_counter() - began)
            if service.model != "instant" and (service.base_url or boot_s):
                go_first(process.pid)  # as the server does: the engine's processes spin
            if killed := kill_at is not None and service.answered(text) >= kill_at:
                os.killpg(process.pid, signal.SIGKILL)
            time.sleep(0.05)
        took_s = time.perf_counter() - began
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.returncode = os.waitstatus_to_exitcode(ended[1])
    if killed != (kill_at is not None) or (process.returncode and not killed):
        raise SystemExit(f"{arm.name}: exit status {process.returncode}\n{log.read_text()[-3000:]}")
    cpu_s = max(cpu_s, ended[2].ru_utime + ended[2].ru_stime)
    return {"s": took_s, "boot_s": boot_s, "cpu_s": cpu_s, "server_s": service.cpu_s() - server_s, "mib": mib}


def check(arm: Arm, service: Service, folder: Path, rows: int) -> dict[str, int]:
    """Return how many rows the output lacks, and how many it has twice."""
    seen: Counter[str] = Counter()
    for row, text in arm.read(folder / "out"):
        assert service.model != "instant" or text == f"echo:{row}", f"a wrong answer to {row}: {text!r}"
        seen[row] += 1
    return {"lost": rows - len(seen), "twice": sum(count > 1 for count in seen.values())}


def kill(arm: Arm, service: Service, source: Path, folder: Path, rows: int) -> dict[str, float]:
    before = service.answered("")
    run(arm, service, source, folder, kill_at=before + rows // 2)
    again = run(arm, service, source, folder)
    answered = service.answered((folder / "log").read_text(errors="replace")) - before
    return {**check(arm, service, folder, rows), "again": answered - rows, "s": again["s"]}


def compare(services: dict[str, Service], rows: int, rounds: int) -> dict[str, Any]:
    """Run the arms in turn, each beside its service; then kill each once."""
    result: dict[str, Any] = {name: {"rows": rows, "runs": []} for name in services}
    for number in range(rounds + 1):
        for name, service in services.items():
            with tempfile.TemporaryDirectory() as place:
                folder, arm = Path(place), ARMS[name]
                write_rows(source := folder / "in.jsonl", rows, service.model)
                if number == rounds:
                    result[name]["kill"] = found = kill(arm, service, source, folder, rows)
                else:
                    result[name]["runs"].append(found := run(arm, service, source, folder))
                    assert not any(check(arm, service, folder, rows).values()), f"{name}: rows are lost, or twice"
            print(name, json.dumps(found), flush=True)
    return result


def write_rows(source: Path, rows: int, model: str) -> None:
    with source.open("w") as file:
        for number, text in enumerate(documents(rows)):
            own: dict[str, Any] = {"max_tokens": 1 + number % 16, "temperature": round(number / rows, 6)}
            own |= {"seed": number} if model == "instant" else {}
            body = {"model": model, "messages": [{"role": "user", "content": text}], **own}
            line = {"custom_id": text[:16], "method": "POST", "url": "/v1/chat/completions", "body": body}
            file.write(json.dumps(line) + "\n")


def answered_by_vllm(base_url: str) -> int:
    with urllib.request.urlopen(f"{base_url.removesuffix('/v1')}/metrics", timeout=10) as reply:
        counts = re.findall(rb"^vllm:request_success_total\{.*\} (\S+)", reply.read(), re.MULTILINE)
    return int(sum(map(float, counts)))


def progress(log: str) -> int:
    """Rows that ``run-batch`` has answered, over all its runs in the log: each one counts from 0."""
    counts = [int(count) for count in re.findall(r"Completed \| (\d+)/\d+ \[", log)]
    return sum(count for count, after in zip(counts, [*counts[1:], 0], strict=False) if after < count)


def beside_instant(arms: list[str], rows: int, rounds: int) -> dict[str, Any]:
    with instant_server() as url:
        service = Service(url, "instant", lambda _: server_counts(url)["prompts"], lambda: server_counts(url)["cpu_s"])
        return compare({name: service for name in arms if name != "run-batch"}, rows, rounds)


def beside_vllm(arms: list[str], rows: int, rounds: int) -> dict[str, Any]:
    with vllm(*FLAGS) as server:
        url, model = server.base_url, server.model
        service = Service(url, model, lambda _: answered_by_vllm(url), server.whole_cpu_s)
        engine = Service("", model, progress)
        services = {name: engine if name == "run-batch" else service for name in arms if name != "openai"}
        return compare(services, rows, rounds)


HEADER = ("tool", "rows/s (min to max)", "CPU µs/row", "server's", "peak MiB", "lost", "twice", "sent again", "s")


def markdown(result: dict[str, Any]) -> str:
    shown = []
    for name, found in result.items():
        runs, rows, killed = found["runs"], found["rows"], found["kill"]
        rates, started = ([rows / (each["s"] - less * each["boot_s"]) for each in runs] for less in (0, 1))
        rate = f"{median(rates):,.0f} ({spread(rates)})"
        rate += f"; {median(started):,.0f} once started" if started != rates else ""
        own, servers, mib = (median([each[of] for each in runs]) for of in ("cpu_s", "server_s", "mib"))
        figures = [f"{own / rows * 1e6:,.0f}", f"{servers / rows * 1e6:,.0f}" if servers else "", f"{mib:,.0f}"]
        after = [f"{killed[of]:,}" for of in ("lost", "twice", "again")]
        shown.append([ARMS[name].name, rate, *figures, *after, f"{killed['s']:.1f}"])
    return table(HEADER, shown)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=20_000, help="beside the instant server; 0: none")
    parser.add_argument("--engine-rows", type=int, default=0, help="beside a real vLLM: 10 s of work or more; 0: none")
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--name", default="batch_files", help="file name of the results")
    options = parser.parse_args()
    facts, arms, result, texts = machine(), options.arms, {}, []
    for name, program in (("saturate", SATURATE_PYTHON), ("run-batch", VLLM)):
        if name in arms and not program.exists():
            arms.remove(name)
            print(f"left out: {name}, since {program} is not there; --help says how to get it")
    if options.rows:
        result["instant"] = beside_instant(arms, options.rows, options.rounds)
        texts.append(f"{options.rows:,} rows, a server that answers at once:\n\n{markdown(result['instant'])}")
    if options.engine_rows:
        result["vllm"] = beside_vllm(arms, options.engine_rows, options.rounds)
        texts.append(f"{options.engine_rows:,} rows, vLLM on the machine's CPU:\n\n{markdown(result['vllm'])}")
    write_results(options.name, {"machine": facts, **result}, "\n\n".join([*texts, provenance(facts)]))


if __name__ == "__main__":
    main()
