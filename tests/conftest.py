"""Hypothesis profiles: ``ci`` is the same in every run; ``HYPOTHESIS_PROFILE=explore`` looks for longer, at random. Ctrl-C; certificates."""

import functools
import os
import signal
import ssl

import pytest
from hypothesis import settings

from tests.promises import table

# No deadline: the machines are shared and noisy, and a slow example says nothing about the code.
settings.register_profile("ci", derandomize=True, deadline=None, database=None, print_blob=True)
settings.register_profile("explore", max_examples=3000, deadline=None, print_blob=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts the suite in the background has it ignored. Processes inherit that, and the tests of Ctrl-C would wait for ever.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def certificates_read_once():
    """An HTTP client of httpx reads the machine's certificates when it is made: most of the time of a test that makes two."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ssl, "create_default_context", functools.cache(ssl.create_default_context))
        yield


def pytest_terminal_summary(terminalreporter):
    """The last screen names the promises of promises.tsv whose tests failed."""
    failed = {report.nodeid.partition("[")[0] for report in terminalreporter.stats.get("failed", ())}
    broken = [line.promise for line in table() if line.test.partition("[")[0] in failed] if failed else []
    if broken:
        terminalreporter.section("broken promises")
        for promise in broken:
            terminalreporter.line(promise)
