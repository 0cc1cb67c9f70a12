"""How fast ``read_rows`` reads, and how much memory it takes.

    python benchmarks/readers.py [--rows 1000000]

Rows have an id and a text of 60 characters; each tenth text of CSV is quoted. Rates are rows per
second of CPU time, the best of five processes. Beside them stands the shortest loop of the standard
library over the same file: ``json.loads`` per line, ``csv.reader`` with ``dict(zip(…))``. The bars:
460,000 rows/s of JSONL and 490,000 of CSV, less a fifth.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

BARS = {"jsonl": 460_000, "csv": 490_000}


def write(folder: Path, rows: int) -> dict[str, Path]:
    paths = {name: folder / f"rows.{name}" for name in ("jsonl", "txt", "csv", "jsonl.gz")}
    texts = [f"a plain text of sixty characters, most often, number {n:07d}" for n in range(rows)]
    with paths["jsonl"].open("w") as jsonl, gzip.open(paths["jsonl.gz"], "wt", 1) as packed:
        for n, text in enumerate(texts):
            line = json.dumps({"id": n, "text": text}) + "\n"
            jsonl.write(line)
            packed.write(line)
    paths["txt"].write_text("".join(f"{text}\n" for text in texts))
    with paths["csv"].open("w") as file:
        file.write("id,text\n")
        for n, text in enumerate(texts):
            file.write(f'{n},"{text}"\n' if n % 10 == 0 else f"{n},{text.replace(',', ';')}\n")
    return paths


def bare_jsonl(path: str) -> Iterator[dict]:
    with Path(path).open("rb") as file:
        for line in file:
            yield json.loads(line)


def bare_csv(path: str) -> Iterator[dict]:
    with Path(path).open(newline="", encoding="utf-8") as file:
        reader = csv.reader(file)
        names = next(reader)
        for fields in reader:
            yield dict(zip(names, fields, strict=True))


BARE = {"jsonl": bare_jsonl, "csv": bare_csv}


def read(path: str, form: str, *, bare: bool) -> None:
    from batchclient.jobs import read_rows

    rows = BARE[form](path) if bare else read_rows(path)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start, count = time.process_time(), 0
    for _ in rows:
        count += 1
    seconds = time.process_time() - start
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    print(json.dumps({"rows": count, "rows_per_s": round(count / seconds), "grown_mib": round(grown / 1024, 1)}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--read", help=argparse.SUPPRESS)
    parser.add_argument("--bare", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.read:
        read(options.read, Path(options.read).suffix[1:], bare=options.bare)
        return
    with tempfile.TemporaryDirectory() as folder:
        for name, path in write(Path(folder), options.rows).items():
            command = [sys.executable, __file__, "--read", str(path)]
            best = best_of(command)
            beside = ""
            if name in BARE:
                bare = best_of([*command, "--bare"])["rows_per_s"]
                rate, bar = best["rows_per_s"], BARS[name]
                beside = f", {rate / bar:.0%} of {bar:,}; the bare loop {bare:,}"
            print(f"{name:9} {best['rows_per_s']:>9,} rows/s, memory +{best['grown_mib']} MiB{beside}", flush=True)


def best_of(command: list[str]) -> dict[str, float]:
    runs = [json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout) for _ in range(5)]
    return max(runs, key=lambda run: run["rows_per_s"])


if __name__ == "__main__":
    main()
