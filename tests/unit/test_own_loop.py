"""An event loop in a thread of its own: work that a blocked caller does not hold up."""

import asyncio
import os
import threading

import pytest
from tests.shell.test_forks import forking, in_child

from batchclient.integrations._own_loop import OwnLoop

LONGEST_S = 10.0


def test_work_goes_on_while_the_callers_loop_stands_still():
    worked = threading.Event()

    async def work():
        for _ in range(3):
            await asyncio.sleep(0)
        worked.set()
        return "done"

    async def caller():
        running = asyncio.create_task(OwnLoop().run(work()))
        await asyncio.sleep(0)
        # No step of this loop until the work is done.
        assert worked.wait(LONGEST_S)
        return await running

    assert asyncio.run(caller()) == "done"


def test_all_work_runs_in_one_loop_and_an_error_is_the_callers():
    async def where():
        return asyncio.get_running_loop(), threading.current_thread()

    async def fail():
        raise ValueError("no")

    async def caller():
        own = OwnLoop()
        one, other = await asyncio.gather(own.run(where()), own.run(where()))
        assert one == other
        assert one[0] is not asyncio.get_running_loop()
        assert one[1].daemon
        with pytest.raises(ValueError, match="no"):
            await own.run(fail())

    asyncio.run(caller())


def test_a_cancelled_caller_cancels_its_work():
    began, ended = threading.Event(), threading.Event()

    async def work():
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def caller():
        running = asyncio.create_task(OwnLoop().run(work()))
        await asyncio.to_thread(began.wait, LONGEST_S)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running

    asyncio.run(caller())
    assert ended.wait(LONGEST_S)


@forking
def test_a_forked_child_has_a_thread_of_its_own():
    own = OwnLoop()

    async def where():
        return os.getpid()

    parent = asyncio.run(own.run(where()))
    child = in_child(lambda: asyncio.run(own.run(where())))
    assert child.isdigit() and int(child) != parent == asyncio.run(own.run(where()))
