"""The playbooks' tests, each with what its schedulers were told and commanded; see ``core``."""

import io
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from tests.snapshots.core import recorded

__all__ = ["FOLDER", "lines_of_playbooks"]

_ROOT = Path(__file__).parent.parent.parent
FOLDER = _ROOT / "tests" / "playbook"


def lines_of_playbooks(file=""):
    """Run a file of playbooks; return {test: lines} of its tests that made a scheduler.

    Args:
        file: its name; empty: all files.

    Raises:
        RuntimeError: pytest found nothing to run, or failed otherwise than by a test.
    """
    notes, told = _Notes(), io.StringIO()
    arguments = [str(FOLDER / file), "--rootdir", str(_ROOT), "-c", str(_ROOT / "pyproject.toml")]
    with redirect_stdout(told), redirect_stderr(told):
        status = pytest.main([*arguments, "-q", "-p", "no:cacheprovider", "--assert=plain"], plugins=[notes])
    if status not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED):
        raise RuntimeError(f"pytest ended with {status!r}:\n{told.getvalue()}")
    return notes.lines


class _Notes:
    """A pytest plugin that records each test."""

    def __init__(self):
        self.lines = {}

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item):
        with recorded() as record:
            result = yield
        name = item.nodeid.removeprefix("tests/playbook/")
        lines = record.lines() + self.lines.pop(name, [])
        if lines:
            self.lines[name] = lines
        return result

    @pytest.hookimpl
    def pytest_runtest_logreport(self, report):
        if report.failed:
            self.lines.setdefault(report.nodeid.removeprefix("tests/playbook/"), []).append("WRONG the test failed")
