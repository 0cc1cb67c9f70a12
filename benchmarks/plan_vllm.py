"""What ``batchclient plan`` tells of a real vLLM on two CPU cores, beside what was measured there.

    python benchmarks/plan_vllm.py --check --name plan_vllm  # exit status 1 on a missed bar

- The job has 600 rows with answers of 16, 32 or 64 tokens. They are asked in three rounds: 25 rows
  with 8 in flight, 35 with 32, and 140 with ``auto``. All go into one journal, which ``plan`` fits.
- Between the rounds limits of 8, 32 and 128 are measured, with answers of 16 and of 64 tokens, from
  the first sending to the last answer. What ``plan`` tells is compared with their medians.
- Bars: of six, five are within 0.85 to 1.15 of what was measured; of the measured times, eight in
  ten are within the intervals; twice the load that the job had is refused.

The engine goes before other programs of the machine, where that is allowed.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import random
import shutil
import sys
import tempfile
from pathlib import Path
from statistics import median

from _common import machine, provenance, table, write_results
from _vllm import Server, vllm

from batchclient.cli.app import make_app

LIMITS, ANSWERS = (8, 32, 128), (16, 64)
CELL_ROWS = {8: 200, 32: 500, 128: 1000}
PARTS = ((25, "8"), (60, "32"), (200, "auto"))
ROUNDS = 3
WORDS = ["time", "year", "people", "way", "day", "man", "thing", "woman", "life", "child", "world", "school", "state"]
LOW, HIGH, LEAST_WITHIN, LEAST_HELD = 0.85, 1.15, 5, 0.8


def command(*arguments: object) -> tuple[int, str]:
    """Run the command in this process; return its status and what it wrote to stdout."""
    written = io.StringIO()
    with contextlib.redirect_stdout(written):
        try:
            make_app([str(arguments[0])])([str(each) for each in arguments])
        except SystemExit as end:
            return int(end.code or 0), written.getvalue()
    raise AssertionError("the command ends with a status")


def rows_into(path: Path, count: int, answers: tuple[int, ...], rng: random.Random) -> Path:
    """Write rows whose prompts never come twice, so that no prefix is cached."""
    with path.open("w") as file:
        for _ in range(count):
            words = " ".join(rng.choices(WORDS, k=rng.randint(10, 60)))
            file.write(json.dumps({"prompt": f"{rng.random():.6f} {words}", "max_tokens": rng.choice(answers)}) + "\n")
    return path


def run(server: Server, rows: Path, journal: Path, limit: str, *more: object) -> None:
    asked = ["--base-url", server.base_url, "--model", server.model, "--row-params", "take", "--temperature", 0]
    asked += ["--param", "ignore_eos=true", "--concurrency", limit, "--journal", journal, "--quiet", *more]
    status, _ = command("map", rows, "-o", f"{journal}.{limit}.out", *asked)
    assert status == 0, "every row has its answer"


def seconds_of(journal: Path) -> float:
    """From the first sending to the last answer."""
    _, text = command("job", "export", journal)
    records = [json.loads(line) for line in text.splitlines()]
    return max(each["sent"] + each["seconds"] for each in records) - min(each["sent"] for each in records)


def one_round(server: Server, folder: Path, journal: Path, number: int) -> dict[str, float]:
    """Ask a part of the job's rows; then measure each cell."""
    rng = random.Random(f"rows/{number}")
    job, measured = rows_into(folder / f"job{number}.jsonl", PARTS[-1][0], (16, 32, 64), rng), {}
    for first, limit in PARTS:
        run(server, job, journal, limit, "--first", first)
    for limit in LIMITS:
        for answer in ANSWERS:
            cell, kept = f"{limit}x{answer}", folder / f"{limit}x{answer}.{number}"
            rows = rows_into(folder / f"{cell}.jsonl", CELL_ROWS[limit], (answer,), rng)
            run(server, rows, kept, str(limit))
            measured[cell] = seconds_of(kept)
            print(number, cell, f"{measured[cell]:.2f} s", flush=True)
    return measured


def told_of(folder: Path, journal: Path) -> tuple[dict[str, list[float]], bool]:
    """What is told of each cell, in seconds: low, middle, high; and whether twice the load is refused."""
    told = {}
    for limit in LIMITS:
        for answer in ANSWERS:
            cell = f"{limit}x{answer}"
            status, text = command("plan", journal, folder / f"{cell}.jsonl", "--limit", limit, "--json")
            assert status == 0, f"{cell} was seen"
            told[cell] = json.loads(text)["plans"][0]["seconds"]
    most = max(json.loads(line)["in_flight"] for line in command("job", "export", journal)[1].splitlines())
    return told, command("plan", journal, folder / "128x16.jsonl", "--limit", 2 * most)[0] == 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", default="")
    parser.add_argument("--keep", default="", help="a file for the job's journal")
    parser.add_argument("--check", action="store_true")
    options = parser.parse_args()
    about = machine()
    with vllm("--max-num-seqs", "256") as server, tempfile.TemporaryDirectory() as place:
        if server.pid is not None:
            with contextlib.suppress(PermissionError):
                os.setpriority(os.PRIO_PGRP, server.pid, -19)
        folder, journal = Path(place), Path(place) / "job"
        warm = rows_into(folder / "warm.jsonl", 150, (16, 32, 64), random.Random(0))
        run(server, warm, folder / "warm", "auto")
        rounds = [one_round(server, folder, journal, number) for number in range(ROUNDS)]
        told, is_refused = told_of(folder, journal)
        if options.keep:
            shutil.copy(journal, options.keep)
    lines, ratios, held = [], [], 0
    for cell, (low, middle, high) in told.items():
        times = [each[cell] for each in rounds]
        ratios.append(middle / median(times))
        inside = sum(low <= each <= high for each in times)
        held += inside
        measured = f"{median(times):.1f} ({min(times):.1f} to {max(times):.1f})"
        limit, answer = map(int, cell.split("x"))
        cells = [
            limit,
            answer,
            CELL_ROWS[limit],
            measured,
            f"{middle:.1f} ({low:.1f} to {high:.1f})",
            f"{ratios[-1]:.2f}",
        ]
        lines.append([*cells, f"{inside} of {ROUNDS}"])
    head = ["limit", "tokens", "rows", "measured, s", "told, s", "told over measured", "measured within the interval"]
    text = table(head, lines)
    print(f"{text}\n{held} of {ROUNDS * len(told)} are within their intervals; twice the load is refused: {is_refused}")
    if options.name:
        data = {"machine": about, "measured": rounds, "told": told, "refused": is_refused}
        write_results(options.name, data, f"{text}\n\n{provenance(about)}")
    within = sum(LOW <= each <= HIGH for each in ratios)
    if options.check and not (within >= LEAST_WITHIN and held >= LEAST_HELD * ROUNDS * len(told) and is_refused):
        sys.exit(1)


if __name__ == "__main__":
    main()
