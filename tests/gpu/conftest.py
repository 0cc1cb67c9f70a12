"""The suite for a GPU machine. What it runs against it finds by itself (``machine``); what it found out it writes down (``report``).

Without a server or a GPU every test is skipped, for one reason, which ``machine.find`` words.
"""

from __future__ import annotations

import functools
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.contract.conftest import Server
from tests.contract.peers import CAN, Peer
from tests.gpu.machine import Found, facts, find
from tests.gpu.report import Report, folder
from tests.gpu.servers import MODEL_LEN_TOKENS, LocalVllm, start
from tests.gpu.targets import Target

FOUND = find()
_HERE = Path(__file__).parent
_REPORT = pytest.StashKey[Report]()
_ALREADY_SKIPPED = "skipped"


@functools.cache
def _common(kind: str) -> Target:
    """The usual server of a kind, started once."""
    if kind in FOUND.urls:
        return Target.attached(kind, FOUND.urls[kind])
    process = start(FOUND)
    return Target.of_process(process, MODEL_LEN_TOKENS if kind == "vllm" else None)


def _noted(report: Report, target: Target) -> Target:
    started = "by this run" if target.process else "by someone else"
    boot_s = target.process.boot_s if target.process else None
    report.server(
        kind=target.kind, model=target.model, max_model_len=target.max_model_len, started=started, boot_s=boot_s
    )
    return target


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without anything to test against, no test of this folder so much as sets a fixture up."""
    if FOUND.missing:
        for item in items:
            if item.path.is_relative_to(_HERE):
                item.add_marker(pytest.mark.skip(reason=FOUND.missing))


@pytest.fixture(scope="session")
def found() -> Found:
    """What there is."""
    return FOUND


@pytest.fixture(scope="session")
def report(request: pytest.FixtureRequest) -> Report:
    """Where figures go."""
    return request.config.stash[_REPORT]


@pytest.fixture(scope="session", params=FOUND.kinds or ["none"])
def target(request: pytest.FixtureRequest, found: Found, report: Report) -> Iterator[Target]:
    """Each server in turn."""
    yield _noted(report, _common(request.param))


@pytest.fixture(scope="session")
def vllm(found: Found, report: Report) -> Target:
    """The vLLM; what only vLLM has (lists in streams, its counters) is tested there."""
    if "vllm" not in found.kinds:
        pytest.skip(f"needs a vLLM; there is {', '.join(found.kinds)}")
    return _noted(report, _common("vllm"))


@pytest.fixture(scope="session")
def server(vllm: Target) -> Server:
    """What tests/contract calls a server."""
    return Server(vllm.base_url, vllm.model, vllm.max_model_len or MODEL_LEN_TOKENS, real=True)


@pytest.fixture(scope="session")
def peer(target: Target) -> Peer:
    """What tests/contract calls a peer; what it can do is in the table there."""
    # The cases send 6,000 tokens as a prompt that is too long. A server that says no length may take it.
    can = replace(CAN[target.kind], model=target.model, refuses_long=(target.max_model_len or 6000) < 6000)
    return Peer(f"real {target.kind}", can, target.base_url)


@pytest.fixture(scope="session")
def own_vllm(found: Found) -> Found:
    """For tests that need a vLLM of their own: one with other flags, or one to be killed."""
    if found.local != "vllm":
        pytest.skip("needs a vLLM that this machine can start, not one behind a URL")
    return found


@pytest.fixture(scope="module")
def tight(own_vllm: Found) -> Iterator[LocalVllm]:
    """A KV cache of 3,072 tokens: about 26 of the prompts of tests/live/test_prefixes.py."""
    with LocalVllm(own_vllm, kv_tokens=3072) as process:
        yield process


# The report --------------------------------------------------------------------------------------------------------------


def pytest_configure(config: pytest.Config) -> None:
    command = shlex.join(["python", "-m", "pytest", *config.invocation_params.args])
    config.stash[_REPORT] = Report(facts() if not FOUND.missing else {}, command)
    config.pluginmanager.register(_Outcomes(config.stash[_REPORT]), "batchclient-gpu-report")


class _Outcomes:
    """Notes how each test of this folder ended, and writes the report at the end if any of them ran."""

    def __init__(self, report: Report) -> None:
        self.report = report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if not report.nodeid.startswith("tests/gpu/"):
            return
        if report.when == "call" or report.skipped or report.failed:
            reason = report.longrepr[2] if report.skipped and isinstance(report.longrepr, tuple) else ""
            if report.failed:
                reason = report.longreprtext.strip().splitlines()[-1]
            name = report.nodeid.removeprefix("tests/gpu/")
            self.report.test(name, report.outcome, report.duration, reason.removeprefix("Skipped: "))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if any(test["outcome"] != _ALREADY_SKIPPED for test in self.report.tests):
            into = self.report.write(folder())
            print(f"\nreport: {into / 'report.md'}", file=sys.stderr)
