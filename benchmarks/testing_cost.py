"""Cost of the test tools: a test with ``mock_llm``, and the pytest plugin where nobody uses it.

    python benchmarks/testing_cost.py

- ``tests``: a hundred tests of each sort in one run of pytest, set-up and tear-down included, by
  the clock and in CPU time. The first test of each sort, which does the imports, is told apart.
- ``collect``: CPU time of ``pytest --collect-only`` over an empty folder, with the plugin and
  without, in turns.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

TESTS = 100
RUNS = 15
SOURCE = """
import asyncio
import httpx
import pytest

MANY = pytest.mark.parametrize("number", range({tests}))

@MANY
def test_nothing(number):
    pass

@MANY
def test_one_call(mock_llm, number):
    mock_llm.when("Hello").answer("Hi")
    async def main():
        async with mock_llm.client() as client:
            return (await client.complete("Hello", max_tokens=16)).text
    assert asyncio.run(main()) == "Hi"

@MANY
def test_batch_of_100(mock_llm, number):
    async def main():
        async with mock_llm.client() as client:
            return await client.batch_map(map(str, range(100)), "Number {{}}", max_tokens=16)
    assert len(asyncio.run(main())) == 100
    mock_llm.assert_batched()

@MANY
def test_by_its_url(mock_llm, number):
    from batchclient import BatchClient
    async def main():
        async with BatchClient(mock_llm.base_url, model="m") as client:
            return (await client.complete("Hello", max_tokens=16)).text
    asyncio.run(main())

@MANY
def test_retries_in_virtual_time(mock_llm, virtual_clock, number):
    mock_llm.when("Hello").fail(503, retry_after_s=50, times=2).answer("Hi")
    async def main():
        async with mock_llm.client() as client:
            return (await client.complete("Hello", max_tokens=16)).attempts
    assert asyncio.run(main()) == 3
    assert virtual_clock.elapsed_s > 20

@MANY
def test_embedded_server(llm_server, number):
    async def main():
        from batchclient import BatchClient
        async with BatchClient(llm_server.base_url, model=llm_server.model) as client:
            return (await client.complete("Hello", max_tokens=16)).text
    assert asyncio.run(main())
"""


class _Durations:
    """A plugin that keeps the durations of each test: (wall time, CPU time) in seconds."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[tuple[float, float]]] = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Iterator[None]:
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        result = yield
        took = time.perf_counter() - wall_s, time.process_time() - cpu_s
        self.seconds.setdefault(item.name.partition("[")[0], []).append(took)
        return result

    def pytest_runtest_logreport(self, report: Any) -> None:
        assert not report.failed, report.longreprtext


def _tests(folder: Path) -> None:
    (folder / "test_cost.py").write_text(SOURCE.format(tests=TESTS))
    durations = _Durations()
    options = ["-p", "no:cacheprovider", "-p", "no:asyncio", str(folder)]
    with contextlib.redirect_stdout(io.StringIO()):
        assert pytest.main(options, plugins=[durations]) == 0
    print(f"{'one test, set-up and tear-down included':42} {'median':>9} {'its CPU':>9} {'worst':>9} {'first':>9}")
    for name, seconds in durations.seconds.items():
        first, *others = (1e3 * wall_s for wall_s, _ in seconds)
        cpu_ms = 1e3 * statistics.median(cpu_s for _, cpu_s in seconds)
        print(f"{name:42} {statistics.median(others):6.2f} ms {cpu_ms:6.2f} ms {max(others):6.2f} ms {first:6.1f} ms")


def _collect(folder: Path) -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:cacheprovider"]
    # Others of this environment take longer than pytest itself, and their time swings.
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    ways = {"with the plugin": ["-p", "pytest_batchclient"], "without": []}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(RUNS):
        for name, options in ways.items():
            before_s = _cpu_of_children_s()
            subprocess.run(command + options, cwd=folder, env=environment, capture_output=True, check=False)
            seconds[name].append(_cpu_of_children_s() - before_s)
    print(f"\npytest --collect-only over an empty folder, CPU time, medians of {RUNS} in turns")
    for name, own in seconds.items():
        print(f"{name:42} {1e3 * statistics.median(own):6.1f} ms")


def _cpu_of_children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    with tempfile.TemporaryDirectory() as folder:
        _tests(Path(folder))
    with tempfile.TemporaryDirectory() as folder:
        _collect(Path(folder))


if __name__ == "__main__":
    main()
