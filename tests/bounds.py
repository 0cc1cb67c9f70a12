"""The longest that a test may compute and wait: what hangs ends, and a busy machine ends nothing.

- A test that computes is bounded by the processor's time, which other processes do not lengthen.
- One that waits uses next to none of the processor's time, for a while. One that computes beside
  other processes uses its share.
"""

import contextlib
import signal
import time

import pytest

WAITING_SHARE = 0.03
"""Of one processor: less is no computing, on a machine with up to thirty processes a processor."""


@contextlib.contextmanager
def bounded(computing_s, waiting_s):
    """Fail a test that computes, or waits in real time, for longer than so many seconds; a wait is noticed within twice as many."""
    computed_s = time.process_time()

    def end_computing(number, frame):
        # No ``Exception``: whoever guards against those must not swallow it.
        pytest.fail(f"the test computed for {computing_s:g} s")

    def end_waiting(number, frame):
        nonlocal computed_s
        before_s, computed_s = computed_s, time.process_time()
        if computed_s - before_s < WAITING_SHARE * waiting_s:
            signal.setitimer(signal.ITIMER_REAL, 1.0, 1.0)
            pytest.fail(f"the test waited for {waiting_s:g} s")

    before = signal.signal(signal.SIGPROF, end_computing), signal.signal(signal.SIGALRM, end_waiting)
    signal.setitimer(signal.ITIMER_PROF, computing_s, 1.0)
    signal.setitimer(signal.ITIMER_REAL, waiting_s, waiting_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGPROF, before[0])
        signal.signal(signal.SIGALRM, before[1])
