"""One night's job, killed half way and started again: with batchclient, and as people write it by hand.

    python benchmarks/night.py
    python benchmarks/night.py --seeds 1 --only batchclient --check

Each tool answers the same rows on the same server, with the same tokens and as many in flight. At
the moment at which the server has answered a share of the rows, which a seed draws around one half,
SIGKILL ends the tool's processes. The same command is then started again, as the tool's
documentation says.

The server generates for ``--seconds`` per row in ``--slots`` slots, and counts.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from _common import HERE, machine, median, provenance, table, write_results
from _night_server import NightServer, row_of

MOST_S = 300.0
"""A run that takes longer is given up."""


@dataclass(frozen=True, slots=True)
class Job:
    """What every tool is to do."""

    rows: int
    max_tokens: int
    concurrency: int


def batchclient_map(source: Path, out: Path, base_url: str, job: Job) -> list[str]:
    options = ["--base-url", base_url, "--model", "instant", "--prompt", "{prompt}", "--resume"]
    numbers = ["--max-tokens", str(job.max_tokens), "--concurrency", str(job.concurrency)]
    return [sys.executable, "-m", "batchclient", "map", str(source), "-o", str(out), *options, *numbers]


def script(how: str, source: Path, out: Path, base_url: str, job: Job) -> list[str]:
    numbers = [str(job.max_tokens), str(job.concurrency)]
    return [sys.executable, str(HERE / "_night_scripts.py"), how, str(source), str(out), base_url, *numbers]


Command = Callable[[Path, Path, str, Job], Sequence[str]]
"""From input, output, base URL and job; the same for the first run and the second."""
OURS = "`batchclient map --resume`"
TOOLS: dict[str, Command] = {
    OURS: batchclient_map,
    "`AsyncOpenAI`, written at the end": partial(script, "at-the-end"),
    "`AsyncOpenAI`, each row appended": partial(script, "append"),
    "`AsyncOpenAI`, a file kept open": partial(script, "keep-open"),
}


def write_input(path: Path, job: Job) -> None:
    with path.open("w") as file:
        for number in range(job.rows):
            prompt = f"row {number:06d} is a report: summarise it in one line"
            file.write(json.dumps({"id": f"{number:06d}", "prompt": prompt}) + "\n")


def text_of(line: dict[str, Any]) -> str | None:
    """The answer in a line of an output; ``None``: the row has none."""
    return None if line.get("error") else line.get("completion", line.get("text"))


def look(out: Path) -> dict[str, int]:
    """Count an output: rows answered, rows that are there twice, lines that cannot be read."""
    rows: list[int] = []
    torn = 0
    for line in out.read_bytes().splitlines() if out.exists() else ():
        try:
            text = text_of(json.loads(line))
        except ValueError:
            torn += 1
            continue
        row = None if text is None else row_of(text)
        if row is not None:
            rows.append(row)
    return {"answered": len(set(rows)), "twice": len(rows) - len(set(rows)), "torn": torn}


class Run:
    """One run of a tool's command, in a process group of its own."""

    def __init__(self, command: Sequence[str], log: Path) -> None:
        self._command = command
        self._log = log
        self._process: asyncio.subprocess.Process
        self.was_killed = False

    async def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip

    def kill(self) -> None:
        self.was_killed = True
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)

    async def wait(self) -> int:
        """Return the exit status; a run that takes too long is killed."""
        try:
            return await asyncio.wait_for(self._process.wait(), MOST_S)
        except TimeoutError:
            self.kill()
            await self._process.wait()
            raise SystemExit(f"{self._command}: more than {MOST_S:.0f} s; see {self._log}") from None


async def night(name: str, job: Job, share: float, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run, kill and resume one tool's job; return the account."""
    source, out, log = folder / "in.jsonl", folder / "out.jsonl", folder / "log"
    write_input(source, job)
    server = NightServer(options.slots, options.seconds)
    command = TOOLS[name](source, out, await server.start(), job)
    at = round(share * job.rows)
    first, second = Run(command, log), Run(command, log)
    began = time.perf_counter()
    server.on_answered = lambda count: first.kill() if count == at else None
    await first.start()
    await first.wait()
    if not first.was_killed:
        raise SystemExit(f"{name}: ended before the kill:\n{log.read_text()[-3000:]}")
    killed_at = time.perf_counter()
    # Connections that the kill closed are seen in the event loop's next turns.
    await asyncio.sleep(0.05)
    before = look(out)
    sent, answered = server.received.copy(), server.answered.copy()
    await second.start()
    status = await second.wait()
    took = time.perf_counter() - killed_at
    server.close()
    after = look(out)
    return {
        "share": share,
        "status": status,
        "answered_before": len(answered),
        "in_flight": len(sent) - len(answered),
        "output_before": before,
        "output_after": after,
        "lost": job.rows - after["answered"],
        "sent_again": sum(server.received[row] > sent[row] for row in answered),
        "tokens_twice": sum((server.answered[row] - 1) * server.tokens[row] for row in server.answered),
        "torn": after["torn"],
        "first_s": killed_at - began,
        "resume_s": took,
        "load": os.getloadavg()[0],
    }


COLUMNS = ("lost", "twice", "torn", "sent_again", "tokens_twice", "resume_s")


def medians(runs: Sequence[dict[str, Any]]) -> dict[str, float]:
    flat = [
        run | {"twice": run["output_after"]["twice"], "written_before": run["output_before"]["answered"]}
        for run in runs
    ]
    return {name: median([run[name] for run in flat]) for name in (*COLUMNS, "answered_before", "written_before")}


def markdown(data: dict[str, Any]) -> str:
    rows = []
    for name, runs in data["runs"].items():
        middle = medians(runs)
        written, again = (
            f"{middle[column]:,.0f} of {middle['answered_before']:,.0f}" for column in ("written_before", "sent_again")
        )
        whole = [f"{middle[column]:,.0f}" for column in ("lost", "twice", "torn")]
        rows.append([name, written, *whole, again, f"{middle['tokens_twice']:,.0f}", f"{middle['resume_s']:.1f}"])
    header = (
        "tool",
        "answers in the output at the kill",
        "rows lost",
        "rows twice",
        "lines torn",
        "answered rows sent again",
        "tokens paid twice",
        "s to the whole output",
    )
    return f"{table(header, rows)}\n\n{provenance(data['machine'])}"


def shortfalls(data: dict[str, Any]) -> list[str]:
    """Name the rows that batchclient lost, doubled, tore, or sent again beyond one group."""
    missed = []
    for run in data["runs"].get(OURS, ()):
        faults = {name: run[name] for name in ("status", "lost", "torn") if run[name]}
        if run["output_after"]["twice"]:
            faults["twice"] = run["output_after"]["twice"]
        if run["sent_again"] > data["most_sent_again"]:
            faults["sent_again"] = run["sent_again"]
        if faults:
            missed.append(f"killed at {run['share']:.2f}: {faults}")
    return missed


def parsed() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--max-tokens", type=int, default=16)
    parser.add_argument("--concurrency", type=int, default=64)
    parser.add_argument("--slots", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=0.3, help="of a row's generation")
    parser.add_argument("--seeds", type=int, default=3, help="kills of each tool")
    parser.add_argument("--only", default="", help="tools whose names have this")
    parser.add_argument("--most-sent-again", type=int, default=1024, help="the bar: answered rows that are sent again")
    parser.add_argument("--check", action="store_true", help="exit status 1 if batchclient misses a bar")
    parser.add_argument("--name", default="night", help="file name of the results")
    return parser.parse_args()


def main() -> None:
    options = parsed()
    job = Job(options.rows, options.max_tokens, options.concurrency)
    facts = machine()
    runs: dict[str, list[dict[str, Any]]] = {}
    for seed in range(options.seeds):
        share = random.Random(seed).uniform(0.4, 0.6)
        for name in TOOLS:
            if options.only not in name:
                continue
            folder = Path(tempfile.mkdtemp(prefix="night-"))
            run = asyncio.run(night(name, job, share, options, folder))
            shutil.rmtree(folder)
            runs.setdefault(name, []).append(run)
            print(name, json.dumps(run), flush=True)
    data = {
        "machine": facts,
        "job": {"rows": job.rows, "max_tokens": job.max_tokens, "concurrency": job.concurrency},
        "slots": options.slots,
        "seconds": options.seconds,
        "seeds": options.seeds,
        "most_sent_again": options.most_sent_again,
        "runs": runs,
    }
    text = markdown(data)
    write_results(options.name, data, text)
    print(text)
    missed = shortfalls(data)
    print("\n".join(missed) or "every bar is met")
    if options.check and missed:
        sys.exit(1)


if __name__ == "__main__":
    main()
