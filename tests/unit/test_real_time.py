"""What lets a benchmark's client run beside a server that spins."""

import os
import subprocess
import sys

import pytest

from tests.live.real_time import LOWEST_PRIORITY, go_first

pytestmark = pytest.mark.skipif(not hasattr(os, "sched_setscheduler"), reason="only Linux has it")


@pytest.fixture
def child():
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process.pid
        process.communicate(b"\n")


@pytest.mark.parametrize("heirs", [False, True])
def test_a_process_goes_first_where_that_is_allowed(child, heirs):
    allowed = go_first(child, heirs=heirs)
    policy = os.sched_getscheduler(child)
    if not allowed:
        assert policy == os.SCHED_OTHER
        return
    assert policy & ~os.SCHED_RESET_ON_FORK == os.SCHED_FIFO
    assert bool(policy & os.SCHED_RESET_ON_FORK) is not heirs, "a server it starts would spin at that priority"
    assert os.sched_getparam(child).sched_priority == LOWEST_PRIORITY
