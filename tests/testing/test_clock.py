"""Virtual time: it passes when nothing else is left to do, it is moved by hand, and it is given back."""

import asyncio
import socket
import threading
import time

import anyio
import pytest
import trio

from batchclient import Backoff, ConfigError, DeadlineExceeded
from batchclient.testing import MockLLM, Stuck, VirtualClock, VirtualLoop


@pytest.fixture
def clock():
    with VirtualClock() as governing:
        yield governing


def on(library, clock, function):
    if library == "trio":
        # Not by ``anyio.run``: before 4.14 it does not hand on the clock.
        return trio.run(function, clock=clock.trio_clock)
    return anyio.run(function)


BOTH = pytest.mark.parametrize("library", ["asyncio", "trio"])


@BOTH
def test_sleeping_takes_no_time(clock, library):
    began = time.monotonic()

    async def main():
        began_s = anyio.current_time()
        await anyio.sleep(3600)
        return anyio.current_time() - began_s

    assert on(library, clock, main) == pytest.approx(3600)
    assert clock.elapsed_s == pytest.approx(3600)
    assert time.monotonic() - began < 60


@BOTH
def test_what_is_due_first_happens_first_and_at_its_own_time(clock, library):
    seen = []

    async def main():
        began_s = anyio.current_time()

        async def wait(seconds):
            await anyio.sleep(seconds)
            seen.append((seconds, round(anyio.current_time() - began_s, 6)))

        async with anyio.create_task_group() as group:
            for seconds in (3, 1, 2):
                group.start_soon(wait, seconds)

    on(library, clock, main)
    assert seen == [(1, 1), (2, 2), (3, 3)]


@BOTH
def test_moved_by_hand_it_goes_no_further(clock, library):
    clock.jumps = False
    seen = []

    async def main():
        async def tick():
            while True:
                await anyio.sleep(1)
                seen.append(round(clock.elapsed_s, 6))

        async with anyio.create_task_group() as group:
            group.start_soon(tick)
            await clock.advance(2.5)
            assert seen == [1, 2], "what is due on the way has happened, at its own time"
            await clock.settle()
            assert seen == [1, 2]
            await clock.advance(0.5)
            assert seen == [1, 2, 3]
            await clock.advance(0)
            assert clock.elapsed_s == pytest.approx(3)
            group.cancel_scope.cancel()

    on(library, clock, main)


@BOTH
def test_advanced_all_that_was_due_has_happened_to_its_end(clock, library):
    clock.jumps = False
    seen = []

    async def work():
        await anyio.sleep(5)
        for _ in range(3):
            await anyio.lowlevel.checkpoint()
        seen.append("done")

    async def main():
        async with anyio.create_task_group() as group:
            group.start_soon(work)
            await clock.advance(5)
            assert seen == ["done"]

    on(library, clock, main)


@BOTH
def test_advancing_a_clock_that_jumps_is_sleeping(clock, library):
    async def main():
        await clock.advance(10)
        return clock.elapsed_s

    assert on(library, clock, main) == pytest.approx(10)


@BOTH
def test_settled_nothing_is_left_to_do_at_this_moment(clock, library):
    clock.jumps = False
    mock = MockLLM()
    mock.when("p").answer("late", delay_s=5)
    got = []

    async def main():
        async with mock.client() as client, anyio.create_task_group() as group:

            async def call():
                got.append((await client.complete("p")).text)

            group.start_soon(call)
            await clock.settle()
            assert mock.prompts == ["p"]
            assert got == []
            await clock.advance(4.9)
            assert got == []
            await clock.advance(0.2)
            assert got == ["late"]

    on(library, clock, main)


@BOTH
def test_backoff_and_deadlines_take_virtual_time(clock, library):
    mock = MockLLM()
    mock.when("p").fail(503, times=2).answer("there")
    mock.when("q").hang()

    async def main():
        async with mock.client(retry=Backoff(max_attempts=3)) as client:
            answer = await client.complete("p")
            waited_s = clock.elapsed_s
            with pytest.raises(DeadlineExceeded):
                await client.complete("q", timeout_s=30)
            return answer.attempts, waited_s

    attempts, waited_s = on(library, clock, main)
    assert attempts == 3
    assert 0 < waited_s < 60
    assert clock.elapsed_s - waited_s == pytest.approx(30, abs=0.1)


def test_what_waits_for_ever_fails_at_once(clock):
    with pytest.raises(Stuck, match="no timer is set"):
        asyncio.run(asyncio.Event().wait())


def test_time_that_nobody_moves_is_said_to_stand_still(clock):
    clock.jumps = False
    with pytest.raises(Stuck, match="advance"):
        asyncio.run(asyncio.sleep(1))


def test_a_thread_is_waited_for_where_no_timer_is_set(clock):
    gate = threading.Event()

    async def main():
        asyncio.get_running_loop().time()
        real = asyncio.get_running_loop()._selector.real
        select = real.select

        def opens_the_gate(timeout=None):
            if timeout:
                gate.set()
            return select(timeout)

        real.select = opens_the_gate
        return await asyncio.to_thread(gate.wait, 5)

    assert asyncio.run(main()) is True


def test_no_time_passes_over_an_open_socket(clock):
    one, other = socket.socketpair()
    one.setblocking(False)

    async def main():
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(10):
            await loop.sock_recv(one, 1)

    with one, other, pytest.raises(Stuck, match="real socket"):
        asyncio.run(main())


def test_a_task_that_is_stuck_may_still_clean_up(clock):
    one, other = socket.socketpair()
    cleaned = []

    async def main():
        loop = asyncio.get_running_loop()
        loop.add_reader(one, lambda: None)
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.001)
            loop.remove_reader(one)
            cleaned.append(True)

    with one, other:
        with pytest.raises(Stuck):
            asyncio.run(main())
    assert cleaned


def test_what_a_socket_brings_at_once_is_read(clock):
    one, other = socket.socketpair()
    one.setblocking(False)
    other.send(b"x")

    async def main():
        return await asyncio.get_running_loop().sock_recv(one, 1)

    with one, other:
        assert asyncio.run(main()) == b"x"


def test_loops_of_other_threads_keep_their_time(clock):
    times = []

    def work():
        async def main():
            times.append(asyncio.get_running_loop().time() - time.monotonic())
            with pytest.raises(ConfigError, match="another clock"):
                await clock.advance(1)

        asyncio.run(main())

    asyncio.run(asyncio.sleep(10_000))
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(times) == 1, "the thread's assertions held"
    assert abs(times[0]) < 1000


def test_a_loop_that_lives_on_has_real_time_again():
    loop = asyncio.new_event_loop()
    original = asyncio.BaseEventLoop.time
    selector = loop._selector
    try:
        with VirtualClock() as clock:
            loop.run_until_complete(asyncio.sleep(10_000))
            kept = loop.time
            assert clock.elapsed_s == pytest.approx(10_000)
            assert loop._selector is not selector
        assert loop._selector is selector
        assert asyncio.BaseEventLoop.time is original
        assert abs(kept() - time.monotonic()) < 1000
        loop.run_until_complete(asyncio.sleep(0.001))
    finally:
        loop.close()


def test_one_clock_at_a_time(clock):
    with pytest.raises(ConfigError, match="already"), VirtualClock():
        pass
    asyncio.run(asyncio.sleep(5))
    assert clock.elapsed_s == pytest.approx(5), "the first one still governs"


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf"), "1", None])
def test_no_time_but_seconds(clock, seconds):
    async def main():
        with pytest.raises(ConfigError) as caught:
            await clock.advance(seconds)
        assert caught.value.field == "seconds"

    asyncio.run(main())


def test_trio_by_another_clock_is_refused(clock):
    async def main():
        with pytest.raises(ConfigError, match="trio_clock"):
            await clock.advance(1)
        with pytest.raises(ConfigError, match="trio_clock"):
            await clock.settle()

    trio.run(main)


def test_jumps_is_a_flag():
    with pytest.raises(ConfigError) as caught:
        VirtualClock(jumps=1)
    assert caught.value.field == "jumps"


def test_the_loop_by_itself():
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        loop = runner.get_loop()
        began_s = loop.time()
        runner.run(asyncio.sleep(100))
        assert loop.time() - began_s == pytest.approx(100)
        with pytest.raises(Stuck):
            runner.run(asyncio.Event().wait())
