"""One night's job, killed half way and started again, with batchclient and with other tools.

    python benchmarks/night.py
    python benchmarks/night.py --seeds 1 --only batchclient --check

Each tool answers the same rows on the same server, with the same tokens and as many in flight. At
the moment at which the server has answered a share of the rows, which a seed draws around one half,
SIGKILL ends the tool's processes. The same command is then started again, as the tool's
documentation says.

The server generates for ``--seconds`` per row in ``--slots`` slots, and counts. vLLM's run-batch is
an engine and no client: its rows are counted from its progress and its output alone, and the engine
is not the simulated one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from _common import machine, machine_line, median, table, write_results
from _night_server import NightServer, row_of
from _night_tools import Job, Tool, tools

MOST_S = 300.0
"""A run that takes longer is given up."""


def write_input(path: Path, job: Job, *, is_batch: bool) -> None:
    """Write the rows; as a file of OpenAI's batches where the tool wants one."""
    with path.open("w") as file:
        for number in range(job.rows):
            prompt = f"row {number:06d} is a report: summarise it in one line"
            row: dict[str, Any] = {"id": f"{number:06d}", "prompt": prompt}
            if is_batch:
                body = {"model": "instant", "messages": [{"role": "user", "content": prompt}]}
                body["max_tokens"] = job.max_tokens
                row = {"custom_id": row["id"], "method": "POST", "url": "/v1/chat/completions", "body": body}
            file.write(json.dumps(row) + "\n")


def look(out: Path, text_of: Callable[[dict[str, Any]], str | None]) -> dict[str, int]:
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

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self._command = command
        self._environment = dict(os.environ) | dict(environment)
        self._log = log
        self._process: asyncio.subprocess.Process
        self.was_killed = False

    async def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command, stdin=asyncio.subprocess.DEVNULL, stdout=log, stderr=log,
                env=self._environment, start_new_session=True,
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


async def night(tool: Tool, job: Job, share: float, options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Run, kill and resume one tool's job; return the account."""
    source, out, log = folder / "in.jsonl", folder / "out.jsonl", folder / "log"
    write_input(source, job, is_batch=tool.is_engine)
    server = NightServer(options.slots, options.seconds)
    base_url = await server.start()
    at = round(share * job.rows)
    first = Run(tool.command(source, out, base_url, job), tool.environment, log)
    progress = Progress(log) if tool.is_engine else None
    began = time.perf_counter()
    if progress is None:
        server.on_answered = lambda count: first.kill() if count == at else None
    await first.start()
    watcher = asyncio.create_task(progress.kill_at(at, first)) if progress else None
    await first.wait()
    if not first.was_killed:
        raise SystemExit(f"{tool.name}: ended before the kill:\n{log.read_text()[-3000:]}")
    killed_at = time.perf_counter()
    if watcher:
        await watcher
    # Connections that the kill closed are seen in the event loop's next turns.
    await asyncio.sleep(0.05)
    before = look(out, tool.text_of)
    sent, answered = server.received.copy(), server.answered.copy()
    second = Run(tool.command(source, out, base_url, job), tool.environment, log)
    await second.start()
    status = await second.wait()
    took = time.perf_counter() - killed_at
    server.close()
    after = look(out, tool.text_of)
    if progress:
        again = progress.answered
        tokens = again * (len("row 000000 is a report: summarise it in one line") // 4 + 1 + job.max_tokens)
        in_flight = None
    else:
        again = sum(server.received[row] > sent[row] for row in answered)
        tokens = sum((server.answered[row] - 1) * server.tokens[row] for row in server.answered)
        in_flight = len(sent) - len(answered)
    return {
        "share": share,
        "status": status,
        "answered_before": progress.answered if progress else len(answered),
        "in_flight": in_flight,
        "output_before": before,
        "output_after": after,
        "lost": job.rows - after["answered"],
        "sent_again": again,
        "tokens_twice": tokens,
        "torn": after["torn"],
        "first_s": killed_at - began,
        "resume_s": took,
        "load": os.getloadavg()[0],
    }


class Progress:
    """The progress bar that run-batch writes."""

    def __init__(self, log: Path) -> None:
        self._log = log
        self.answered = 0

    async def kill_at(self, at: int, run: Run) -> None:
        while self.answered < at and not run.was_killed:
            await asyncio.sleep(0.02)
            text = self._log.read_text(errors="replace") if self._log.exists() else ""
            numbers = re.findall(r"(\d+)/\d+ \[", text)
            self.answered = max([self.answered, *map(int, numbers)])
            if "Traceback" in text and not numbers:
                return
        run.kill()


COLUMNS = ("lost", "twice", "torn", "sent_again", "tokens_twice", "resume_s")


def medians(runs: Sequence[dict[str, Any]]) -> dict[str, float]:
    flat = [
        run | {"twice": run["output_after"]["twice"], "written_before": run["output_before"]["answered"]}
        for run in runs
    ]
    return {name: median([run[name] for run in flat]) for name in (*COLUMNS, "answered_before", "written_before")}


def result_table(runs: dict[str, list[dict[str, Any]]]) -> str:
    header = (
        "tool",
        "answered at the kill",
        "of these in the output",
        "rows lost",
        "rows twice",
        "lines torn",
        "answered rows sent again",
        "tokens paid twice",
        "s from the kill to the whole output",
    )
    rows = []
    for name, each in runs.items():
        middle = medians(each)
        cells = [f"{middle[column]:,.0f}" for column in ("answered_before", "written_before", *COLUMNS[:-1])]
        rows.append([name, *cells, f"{middle['resume_s']:.1f}"])
    return table(header, rows)


def conditions(data: dict[str, Any]) -> str:
    job = data["job"]
    return (
        f"{job['rows']:,} rows of {job['max_tokens']} tokens, {job['concurrency']} in flight, {data['slots']} slots of"
        f" {data['seconds']} s. Medians of {data['seeds']} kills, each at another share of the answers."
    )


def markdown(data: dict[str, Any]) -> str:
    lines = [
        "# A job that is killed half way",
        machine_line(data["machine"]),
        conditions(data),
        result_table(data["runs"]),
    ]
    rows = [
        [name, f"{run['share']:.2f}", run["status"], run["output_before"], run["output_after"], run["in_flight"],
         f"{run['first_s']:.1f}", f"{run['resume_s']:.1f}", f"{run['load']:.1f}"]
        for name, runs in data["runs"].items() for run in runs
    ]  # fmt: skip
    header = ("tool", "share", "status", "output at the kill", "at the end", "in flight", "s before", "s after", "load")
    lines.append(table(header, rows))
    lines += [f"Not run: {each}." for each in data["not_run"]]
    return "\n\n".join(lines)


def shortfalls(data: dict[str, Any]) -> list[str]:
    """Name the rows that batchclient lost, doubled, tore, or sent again beyond one group."""
    missed = []
    for run in next((runs for name, runs in data["runs"].items() if "batchclient" in name), ()):
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
    can_run, not_run = tools()
    runs: dict[str, list[dict[str, Any]]] = {}
    for seed in range(options.seeds):
        share = random.Random(seed).uniform(0.4, 0.6)
        for tool in can_run:
            if options.only not in tool.name:
                continue
            folder = Path(tempfile.mkdtemp(prefix="night-"))
            run = asyncio.run(night(tool, job, share, options, folder))
            shutil.rmtree(folder)
            runs.setdefault(tool.name, []).append(run)
            print(tool.name, json.dumps(run), flush=True)
    data = {
        "machine": facts,
        "job": {"rows": job.rows, "max_tokens": job.max_tokens, "concurrency": job.concurrency},
        "slots": options.slots,
        "seconds": options.seconds,
        "seeds": options.seeds,
        "most_sent_again": options.most_sent_again,
        "not_run": not_run,
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
