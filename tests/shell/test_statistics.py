"""``statistics()`` from other threads: it never raises, and is of one moment."""

import asyncio
import sys
import threading
import time

import pytest

from tests.shell.scripted import make_client
from tests.shell.test_pooling import Recorder

CALLS = 1500


@pytest.fixture
def busy():
    """Threads take turns far more often than they do."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("busy")
def test_each_snapshot_of_another_thread_is_of_one_moment():
    seen, faults = asyncio.run(watched())
    assert not faults
    assert all(submitted == told for submitted, told, _ in seen), "a snapshot is of two moments"
    assert len({ended for *_, ended in seen}) > 8, "it was looked at during the work"


async def watched():
    """Make calls; return what another thread saw meanwhile."""
    seen, faults, over = [], [], threading.Event()
    async with make_client(Recorder(), preset="throughput", limit=64, retry=None) as client:

        def look():
            while not over.is_set():
                try:
                    now = client.statistics()
                    client.story()
                except BaseException as error:
                    faults.append(error)
                    return
                ended = now.succeeded + now.failed + now.cancelled
                held = now.queued + now.backing_off + now.in_flight - now.abandoned
                seen.append((now.submitted, ended + held, ended))
                time.sleep(0.0002)

        thread = threading.Thread(target=look)
        thread.start()
        try:
            await asyncio.gather(*[client.complete(f"p {n}", max_tokens=1 + n % 3) for n in range(CALLS)])
        finally:
            over.set()
            thread.join()
    return seen, faults
