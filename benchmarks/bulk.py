"""A durable job of millions of rows: its rate at the end, its memory, and the cost of a resume.

    python benchmarks/bulk.py                                    # 1,000,000 rows, command and map
    python benchmarks/bulk.py --rows 200000 --arms command --check
    python benchmarks/bulk.py --rows 1000000 --arms stream --name million

The arm ``command`` is ``batchclient map IN -o OUT``, the arm ``map`` is ``stream_map(journal=…)``,
and ``stream`` is ``stream_map`` without a journal. Each is a process of its own beside an instant
server, with answers of some 1 KB, or for ``stream`` of one token. The job's rate is that of its
last tenth. Its memory is flat if the resident memory grows little after the first tenth. Then the
finished job of the command runs again without its output: the server must see no request.

A map checks every answer as it comes. The output of the command is read at the end: each row is
there once, with its own answer.

The bars: 20,000 rows/s in the last tenth, 20 MiB of growth; a resume of a million rows in 60 s and
150 MiB without a request.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from _common import (
    documents,
    in_a_process,
    instant_server,
    machine,
    memory_mib,
    provenance,
    report,
    server_counts,
    shortfalls,
    table,
)

from batchclient import BatchClient

PAD = 640
"""So an answer's body in the journal has about 1 KB."""
BARS = {"last_rows_per_s": 20_000.0, "growth_mib": 20.0, "resume_s": 60.0, "resume_mib": 150.0}
SHARES = 10
"""Parts of a job: the rate is the last one's, and memory grows from the end of the first."""


def shares_of(samples: Sequence[tuple[float, float, float]], rows: int) -> dict[str, Any]:
    """Return the rate and the memory by parts of the job, from samples of rows, seconds and MiB."""
    marks = []
    for share in range(1, SHARES + 1):
        at = next((sample for sample in samples if sample[0] >= rows * share / SHARES), samples[-1])
        marks.append({"rows": at[0], "s": at[1], "mib": at[2]})
    (near, last), first = marks[-2:], marks[0]
    after = [mib for done, _, mib in samples if done >= first["rows"]]
    return {
        "marks": marks,
        "rows_per_s": rows / last["s"],
        "last_rows_per_s": (last["rows"] - near["rows"]) / (last["s"] - near["s"]),
        "growth_mib": max(after) - first["mib"],
        "peak_mib": max(mib for _, _, mib in samples),
    }


# The map, in a process of its own -----------------------------------------------------------------


async def run_map(base_url: str, rows: int, journal: str | None) -> dict[str, Any]:
    samples: list[tuple[float, float, float]] = []
    answered = bytearray(rows)
    settings: dict[str, Any] = {"model": "instant", "dialect": "vllm", "preset": "throughput", "limit": 64}
    async with BatchClient(base_url, **settings) as client:
        began, cpu, done = time.perf_counter(), time.process_time(), 0
        async for row in client.stream_map(documents(rows), "{}", max_tokens=1, journal=journal):
            if row.error is not None:
                raise row.error
            tag = row.document[:16]
            if not row.completion.text.startswith("echo:" + tag) or int(tag, 16) != row.index or answered[row.index]:
                raise AssertionError(f"row {row.index}: a wrong answer, or a second one: {row.completion.text!r}")
            answered[row.index] = 1
            done += 1
            if done % max(1, rows // 100) == 0 or done == rows:
                samples.append((done, time.perf_counter() - began, memory_mib()))
        cpu_s = time.process_time() - cpu
    assert sum(answered) == rows, "not every row came back"
    return shares_of(samples, rows) | {"cpu_us": cpu_s / rows * 1e6}


def map_arm(base_url: str, rows: int, folder: Path) -> dict[str, Any]:
    journal = folder / "map.journal"
    result = in_a_process(__file__, {"base_url": base_url, "rows": rows, "journal": str(journal)})
    return result | {"journal_mb": journal.stat().st_size / 1e6}


def stream_arm(base_url: str, rows: int, _folder: Path) -> dict[str, Any]:
    return in_a_process(__file__, {"base_url": base_url, "rows": rows, "journal": None})


# The command --------------------------------------------------------------------------------------


def command(base_url: str, source: Path, out: Path) -> list[str]:
    options = ["--base-url", base_url, "--model", "instant", "--prompt", "{text}", "--max-tokens", "1"]
    options += ["--concurrency", "64"]
    return [sys.executable, "-m", "batchclient", "map", str(source), "-o", str(out), *options]


def write_input(source: Path, rows: int) -> None:
    with source.open("w") as file:
        for text in documents(rows):
            file.write(json.dumps({"id": text[:16], "text": text}) + "\n")


def run_command(given: list[str], out: Path) -> tuple[list[tuple[float, float, float]], float, float]:
    """Run the command; return samples of the output's bytes, its seconds, and its peak of memory."""
    part = out.with_name(f"{out.name}.part")
    samples: list[tuple[float, float, float]] = []
    began = time.perf_counter()
    with tempfile.TemporaryFile("w+") as told:
        process = subprocess.Popen(given, stdout=told, stderr=told, stdin=subprocess.DEVNULL)
        while True:
            pid, status, usage = os.wait4(process.pid, os.WNOHANG)
            if pid:
                break
            if mib := memory_mib(pid=process.pid):
                size = part.stat().st_size if part.exists() else 0
                samples.append((size, time.perf_counter() - began, mib))
            time.sleep(0.1)
        took = time.perf_counter() - began
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            told.seek(0)
            raise SystemExit(f"exit status {process.returncode}:\n{told.read()[-3000:]}")
    samples.append((out.stat().st_size, took, samples[-1][2] if samples else 0.0))
    return samples, took, usage.ru_maxrss / 1024


def check_output(out: Path, rows: int) -> None:
    """Hold the output against the input: each row once, with its own answer."""
    answered = bytearray(rows)
    with out.open("rb") as file:
        for line in file:
            row = json.loads(line)
            number = int(row["id"], 16)
            assert row["completion"].startswith("echo:" + row["id"]), f"a wrong answer to {row['id']}"
            assert not answered[number], f"row {row['id']} came twice"
            answered[number] = 1
    assert sum(answered) == rows, f"{rows - sum(answered)} rows are missing"


def command_arm(base_url: str, rows: int, folder: Path) -> dict[str, Any]:
    source, out = folder / f"in-{rows}.jsonl", folder / f"out-{rows}.jsonl"
    write_input(source, rows)
    given = command(base_url, source, out)
    samples, took, peak = run_command(given, out)
    check_output(out, rows)
    # Lines are of one length, but for the place of the row in them.
    line = out.stat().st_size / rows
    by_rows = [(size / line, seconds, mib) for size, seconds, mib in samples]
    result = shares_of(by_rows, rows) | {"took_s": took, "peak_mib": peak}
    result["journal_mb"] = Path(f"{out}.journal").stat().st_size / 1e6
    before, size = server_counts(base_url)["requests"], out.stat().st_size
    # With it there would be nothing to do.
    out.unlink()
    _, again, again_mib = run_command(given, out)
    assert out.stat().st_size == size, "the resume made another output"
    requests = server_counts(base_url)["requests"] - before
    return result | {"resume_s": again, "resume_mib": again_mib, "requests": requests}


ARMS = {"map": map_arm, "command": command_arm, "stream": stream_arm}


# The report ---------------------------------------------------------------------------------------


def missed(name: str, arm: dict[str, Any]) -> list[str]:
    """Name the bars that are missed."""
    found = shortfalls(name, arm, BARS, at_least="last_rows_per_s")
    return [*found, f"{name}: the resume sent {arm['requests']} requests"] if arm.get("requests") else found


def markdown(facts: dict[str, Any], result: dict[str, Any]) -> str:
    rows = []
    for name, arm in result.items():
        figures = [f"{arm[column]:,.0f}" for column in ("rows_per_s", "last_rows_per_s", "growth_mib", "peak_mib")]
        resume = f"{arm['resume_s']:.1f} s, {arm['resume_mib']:.0f} MiB" if "resume_s" in arm else ""
        cpu_us = f"{arm['cpu_us']:.1f}" if "cpu_us" in arm else ""
        rows.append([name, f"{arm['rows']:,}", *figures, cpu_us, resume])
    memory = ("memory's growth, MiB", "peak, MiB")
    header = ("job", "rows", "rows/s", "in the last tenth", *memory, "client CPU µs/row", "resume once finished")
    return f"{table(header, rows)}\n\n{provenance(facts)}"


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--arms", default="command,map", help=f"with commas, of {', '.join(ARMS)}")
    parser.add_argument("--folder", help="where the files lie, on a local disk: some 3.5 KB a row")
    parser.add_argument("--check", action="store_true", help="exit status 1 if a bar is missed")
    parser.add_argument("--name", default="bulk", help="file name of the results")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


def main() -> None:
    options = parsed()
    if options.child:
        print(json.dumps(asyncio.run(run_map(**json.loads(options.child)))))
        return
    facts = machine()
    result: dict[str, Any] = {}
    for arm in options.arms.split(","):
        pad = 0 if arm == "stream" else PAD
        with tempfile.TemporaryDirectory(dir=options.folder) as folder, instant_server(pad=pad) as base_url:
            load = os.getloadavg()[0]
            result[arm] = ARMS[arm](base_url, options.rows, Path(folder)) | {"rows": options.rows, "load": load}
            print(arm, json.dumps({key: value for key, value in result[arm].items() if key != "marks"}), flush=True)
    found = [line for name, arm in result.items() for line in missed(name, arm)]
    report(options.name, {"machine": facts, "arms": result}, markdown(facts, result), found, check=options.check)


if __name__ == "__main__":
    main()
