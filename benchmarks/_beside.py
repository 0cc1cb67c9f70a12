"""Two checkouts of batchclient in one run of ``overhead.py``: pairs of runs, in turns.

Each repetition has a process for each checkout, whose ``PYTHONPATH`` is that checkout's ``src``.
The two processes run the same code of this folder, arm by arm, and never at the same time. Which of
them begins changes from pair to pair. A ratio is taken within a pair, so that a drift of the
machine cancels out. Fresh processes in each repetition let a lucky layout of memory cancel out.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from _common import HERE, median, spread, table

Runs = dict[str, list[dict[str, Any]]]
"""By arm, this checkout's run and the other's of each pair: two lists of equal length."""
_CHILD = "import sys; sys.path.insert(0, sys.argv[1]); import overhead; overhead.run_as_told()"


class Checkout:
    """A process that imports batchclient from a checkout, and runs one arm after the other as told."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._process = subprocess.Popen(
            [sys.executable, "-c", _CHILD, str(HERE)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(root / "src")},
        )
        imported = Path(self._read()["imported"])
        if not imported.is_relative_to(root / "src"):
            raise SystemExit(f"{root}: batchclient was imported from {imported}")

    def run(self, arm: str, base_url: str, cpu_s: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        print(json.dumps([arm, base_url, cpu_s]), file=self._process.stdin, flush=True)
        return self._read()

    def close(self) -> None:
        self._process.communicate()  # it ends with its stdin

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self._root}: the process of this checkout failed; its error stands above")
        said: dict[str, Any] = json.loads(line)
        return said


def checkout(text: str) -> Path:
    """A folder that holds ``src/batchclient``, as argparse's type."""
    root = Path(text).resolve()
    if not (root / "src" / "batchclient").is_dir():
        raise ValueError(text)
    return root


def obey(run: Callable[[str, str, float], Any]) -> None:
    """Be the process of a ``Checkout``: run what each line of stdin names, and print the result."""
    import batchclient

    print(json.dumps({"imported": batchclient.__file__}), flush=True)
    for line in sys.stdin:
        done = asyncio.run(run(*json.loads(line)))
        print(json.dumps({**asdict(done), "cpu_us": done.measured.cpu_us}), flush=True)


@contextlib.contextmanager
def checkouts(here: Path, other: Path) -> Iterator[tuple[Checkout, Checkout]]:
    with contextlib.ExitStack() as stack:
        both = [stack.enter_context(contextlib.closing(Checkout(root))) for root in (here, other)]
        yield both[0], both[1]


def pairs(other: Path, arms: Sequence[tuple[str, str, float]], repetitions: int) -> tuple[Runs, Runs]:
    """This checkout's runs and the other's.

    Args:
        arms: name, the server's base URL, CPU seconds of a run.
    """
    ours: Runs = {name: [] for name, _, _ in arms}
    theirs: Runs = {name: [] for name, _, _ in arms}
    for repetition in range(repetitions):
        with checkouts(HERE.parent, other) as (mine, yours):
            for place, told in enumerate(arms):
                turns = [(mine, ours), (yours, theirs)]
                for process, runs in turns if (repetition + place) % 2 == 0 else turns[::-1]:
                    runs[told[0]].append(process.run(*told))
                cpu = [runs[told[0]][-1]["cpu_us"] for runs in (ours, theirs)]
                shown = f"{cpu[0]:8.1f} and {cpu[1]:8.1f} µs/call: {cpu[0] / cpu[1]:.3f}"
                print(f"  {repetition + 1}/{repetitions} {told[0]:18} {shown}", flush=True)
    return ours, theirs


def pair_table(ours: Runs, theirs: Runs) -> str:
    rows = []
    for name, mine in ours.items():
        both = (mine, theirs[name])
        row = [name]
        for figure, digits in ((_cpu_us, 1), (_calls_per_s, 0)):
            row += [f"{median([figure(run) for run in runs]):,.{digits}f}" for runs in both]
            ratios = [figure(one) / figure(other) for one, other in zip(*both, strict=True)]
            row.append(f"{median(ratios):.3f} ({spread(ratios)})")
        row.append(", ".join(f"{median([run['mean_list'] for run in runs]):.1f}" for runs in both))
        rows.append(row)
    figures = [f"{figure}: {column}" for figure in ("CPU µs/call", "calls/s") for column in ("here", "beside", "ratio")]
    return table(("arm", *figures, "mean list: here, beside"), rows)


def _cpu_us(run: dict[str, Any]) -> float:
    return float(run["cpu_us"])


def _calls_per_s(run: dict[str, Any]) -> float:
    return float(run["measured"]["calls"] / run["measured"]["wall_s"])
