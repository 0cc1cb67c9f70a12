"""Shared by the benchmarks: the server's start, a closed loop, processes, medians, result files."""

from __future__ import annotations

import argparse
import ast
import asyncio
import contextlib
import gc
import importlib.metadata
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import time
import urllib.request
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
RESULTS = HERE / "results"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PACKAGES = (
    "batchclient",
    "vllm",
    "torch",
    "openai",
    "httpx",
    "httpx2",
    "httpx-aiohttp",
    "aiohttp",
    "anyio",
    "pydantic-core",
)

Call = Callable[[str], Awaitable[str]]
"""One prompt in, the answer's text out: the face every compared client is given."""


@dataclass(frozen=True, slots=True)
class Measured:
    """One closed-loop run of one client."""

    calls: int
    wall_s: float
    cpu_s: float

    @property
    def cpu_us(self) -> float:
        return self.cpu_s / self.calls * 1e6

    @property
    def calls_per_s(self) -> float:
        return self.calls / self.wall_s


def percentile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def spread(values: Sequence[float]) -> str:
    """From the least to the most, three digits at least."""
    return " to ".join(f"{each:,.0f}" if each >= 1000 else f"{each:.3g}" for each in (min(values), max(values)))


@contextlib.contextmanager
def instant_server(gap_s: float = 0.0, pad: int = 0) -> Iterator[str]:
    """Run the instant server in its own process; yields its base URL, ``/v1`` included."""
    process = subprocess.Popen(
        [sys.executable, str(HERE / "instant_server.py"), "--gap-s", str(gap_s), "--pad", str(pad)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}/v1"
    finally:
        process.terminate()
        process.wait(timeout=10)


def server_counts(base_url: str) -> dict[str, Any]:
    with urllib.request.urlopen(f"{base_url}/statistics", timeout=10) as reply:
        counts: dict[str, Any] = json.load(reply)
        return counts


async def closed_loop(call: Call, prompts: Sequence[str], workers: int, expect: Callable[[str], str]) -> Measured:
    """Keep ``workers`` calls in flight until every prompt is answered.

    Each worker awaits one call at a time.

    Args:
        expect: the right answer to a prompt, to be compared with the one that came.
    """
    pending = iter(prompts)
    answered, now = 0, time.perf_counter

    async def work() -> None:
        nonlocal answered
        for prompt in pending:
            text = await call(prompt)
            answered += 1
            if text != expect(prompt):
                raise AssertionError(f"a wrong answer: {text!r} is not for {prompt!r}")

    # Each full collection would otherwise walk again the objects made before this run (other
    # clients, openai's types).
    gc.collect()
    gc.freeze()
    cpu, wall = time.process_time(), now()
    async with asyncio.TaskGroup() as group:
        for _ in range(workers):
            group.create_task(work())
    wall_s, cpu_s = now() - wall, time.process_time() - cpu
    gc.unfreeze()
    assert answered == len(prompts)
    return Measured(answered, wall_s, cpu_s)


def in_a_process(file: str, given: dict[str, Any], source: Path | None = None) -> dict[str, Any]:
    """Run a program with ``--child`` and these arguments as JSON; return the JSON that it prints.

    Args:
        source: the folder that batchclient is imported from; that of this process if not given.
    """
    environment = {**os.environ, "PYTHONPATH": str(source)} if source else None
    command = [sys.executable, file, "--child", json.dumps(given)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        raise SystemExit(done.stderr)
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def arguments_of(text: str) -> dict[str, Any]:
    """``limit=256,probe=False`` as arguments; a value that is no Python literal is a text."""
    arguments: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = part.partition("=")
        if not (name.isidentifier() and equals):
            raise argparse.ArgumentTypeError(f"{part!r} is not NAME=VALUE, such as limit=256")
        try:
            arguments[name] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            arguments[name] = value
    return arguments


def documents(count: int) -> Iterator[str]:
    """Texts of about 12 tokens whose first 16 characters never repeat."""
    for number in range(count):
        yield f"{number:016x} please summarise the quarterly report in one line"


def memory_mib(field: str = "VmRSS", pid: int | str = "self") -> float:
    """Return memory in MiB: ``VmRSS`` is the resident memory now, ``VmHWM`` its peak; 0 of a process that has ended."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) / 1024
    return 0.0


VECTORS = {"amx_bf16": "AMX", "avx512f": "AVX-512", "avx2": "AVX2"}
"""Vector instructions of a CPU, widest first.

Without AVX-512 a real vLLM is twenty times slower.
"""


def cpu_model() -> str:
    """Return the CPU's name, and its widest vectors where they are known.

    Makers give quite different processors one name.
    """
    with contextlib.suppress(OSError):
        lines = [line.partition(":") for line in Path("/proc/cpuinfo").read_text().splitlines()]
        facts = {name.strip(): value.strip() for name, _, value in lines}
        if "model name" in facts:
            flags = facts.get("flags", "").split()
            widest = next((label for flag, label in VECTORS.items() if flag in flags), None)
            return facts["model name"] + (f" ({widest})" if widest else "")
    return platform.processor() or platform.machine()


def command_line() -> str:
    return " ".join(["python", os.path.relpath(sys.argv[0], HERE.parent), *sys.argv[1:]])


def commit(root: Path = HERE.parent) -> str | None:
    """Return the checked-out commit, and whether ``src`` differs; ``None`` outside a repository."""

    def git(*arguments: str) -> str:
        command = ["git", *arguments]
        return subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout.strip()

    try:
        short = git("rev-parse", "--short", "HEAD")
        return f"{short} with changes in src" if git("status", "--porcelain", "--", "src") else short
    except (OSError, subprocess.CalledProcessError):
        return None


def machine() -> dict[str, Any]:
    """Return all that a reader needs to judge a figure: machine, versions, commit, command, time."""
    versions = {}
    for name in PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "packages": versions,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "commit": commit(),
        "command": command_line(),
        "load_average": round(os.getloadavg()[0], 2),
    }


def provenance(*runs: dict[str, Any]) -> str:
    """Say on which machine, at which commit, when and by which command results were made."""
    machines = ", or ".join(dict.fromkeys(f"{run['cpu']}, {run['cores']} cores" for run in runs))
    lines = dict.fromkeys(f"    {run['commit']}  {run['date']}  {run['command']}" for run in runs)
    return "\n".join([f"{machines}; commit, time and command:\n", *lines])


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    lines = ["| " + " | ".join(header) + " |", "| " + " | ".join("-" for _ in header) + " |"]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in rows]
    return "\n".join(lines)


def section_text(name: str, folder: Path = RESULTS) -> str:
    """A result's Markdown as a part of a page: one level down, since the page has its own title."""
    return re.sub(r"^#", "##", (folder / f"{name}.md").read_text(), flags=re.MULTILINE).rstrip()


def merged(page: str, name: str, text: str) -> str:
    """A page with this text between the result's markers; at its end if they are not there."""
    start, end = f"<!-- results:{name} -->", f"<!-- /results:{name} -->"
    block = f"{start}\n{text}\n{end}"
    if start in page and end in page:
        return page[: page.index(start)] + block + page[page.index(end) + len(end) :]
    return f"{page.rstrip()}\n\n{block}\n"


def processes() -> Iterator[tuple[int, int, float]]:
    """(process, process group, CPU seconds) of every process."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                # The second field is the command in parentheses, which may hold spaces.
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                yield int(entry.name), int(fields[2]), (int(fields[11]) + int(fields[12])) / TICKS_PER_S


def shortfalls(what: str, result: dict[str, Any], bars: dict[str, float], at_least: str) -> list[str]:
    """A sentence for each bar that is missed: ``at_least`` is the one that a value is to exceed."""
    found = []
    for name, bar in bars.items():
        value = result.get(name)
        if value is not None and (value < bar if name == at_least else value > bar):
            found.append(f"{what}: {name} is {value:,.1f}, the bar is {bar:,g}")
    return found


def report(name: str, data: dict[str, Any], markdown: str, missed: Sequence[str], *, check: bool) -> None:
    """Write and print the results, and the bars that are missed; with ``check`` those end the program with 1."""
    write_results(name, data, markdown)
    print(markdown)
    print("\n".join(missed) or "every bar is met")
    if check and missed:
        sys.exit(1)


def write_results(name: str, data: dict[str, Any], markdown: str, folder: Path = RESULTS) -> None:
    """Write all figures as JSON, and as Markdown what ``docs/guide/figures.md`` shows of them."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.json").write_text(json.dumps(data, indent=1) + "\n")
    (folder / f"{name}.md").write_text(markdown.rstrip() + "\n")
