"""The bridge from threads to its event loop: gathering, giving up, errors, the end, forks. No sockets."""

import asyncio
import contextvars
import gc
import itertools
import os
import signal
import sys
import threading
import time
import weakref
from contextlib import closing, contextmanager
from functools import partial

import anyio
import pytest
import trio

from batchclient import ClientClosed, ConfigError
from batchclient._threads import bridge as bridge_module
from batchclient._threads.bridge import Bridge
from batchclient._threads.crossing import Crossing
from tests.shell.test_loops import in_python

NEVER_S = 3600.0


async def nothing():
    pass


async def double(number):
    await asyncio.sleep(0)
    return 2 * number


async def running_loop():
    return asyncio.get_running_loop()


def make_bridge(on_end=nothing, **times):
    return closing(Bridge(on_end, **times))


def new_threads(before):
    """Those that have started since."""
    return set(threading.enumerate()) - before


def holds(bridge, *, queued=0, under_way=0):
    return repr(bridge) == f"<Bridge: {under_way} calls under way, {queued} queued>"


def let_turn(loop):
    """Let the loop do what it was told so far."""
    turned = threading.Event()
    loop.call_soon_threadsafe(turned.set)
    turned.wait()


class Calls:
    """Calls of threads, each in a thread of its own, and what became of them."""

    def __init__(self):
        self.threads = []
        self.outcomes = {}

    def start(self, name, function, *args):
        def run():
            try:
                self.outcomes[name] = function(*args)
            except BaseException as error:
                self.outcomes[name] = error

        thread = threading.Thread(target=run, daemon=True)
        self.threads.append(thread)
        thread.start()

    def join(self):
        for thread in self.threads:
            thread.join()
        return self.outcomes


def wait_until(true):
    """Other threads are on their way."""
    given_up_s = time.monotonic() + 20.0
    while not true():
        assert time.monotonic() < given_up_s, "waited for 20 s"
        time.sleep(0.001)


@contextmanager
def stopped(bridge):
    """The loop stands still, so that a queue fills: by the call that holds it, one is under way."""
    go_on, stands_still = threading.Event(), threading.Event()

    def stand_still():
        stands_still.set()
        go_on.wait()

    holder = Calls()
    holder.start("holder", bridge.ask, stand_still)
    stands_still.wait()
    yield
    go_on.set()
    holder.join()


def call_together(bridge):
    """Two calls in one queue: whoever calls next was not alone the last time."""
    calls = Calls()
    with stopped(bridge):
        for number in range(2):
            calls.start(number, bridge.call, double, number)
        wait_until(lambda: holds(bridge, queued=2, under_way=1))
    calls.join()


class Held:
    """A coroutine function that says when it began and how it ended."""

    def __init__(self):
        self.began = threading.Event()
        self.ended = threading.Event()
        self.how = None

    async def __call__(self):
        self.began.set()
        try:
            await asyncio.sleep(NEVER_S)
        except BaseException as error:
            self.how = type(error)
            raise
        finally:
            self.ended.set()


# Answers and errors --------------------------------------------------------------------------------------------------


def test_a_call_returns_what_the_coroutine_returns():
    with make_bridge() as bridge:
        assert bridge.call(double, 21) == 42
        assert bridge.call_now(double, number=4) == 8
        assert bridge.ask(max, 3, 5) == 5


def test_an_error_that_was_handled_is_collected_without_the_garbage_collector():
    class Mine(Exception):
        pass

    async def fail():
        raise Mine

    with make_bridge() as bridge:
        gc.disable()
        try:
            try:
                bridge.call(fail)
            except Mine as error:
                trace = weakref.ref(error)
            # The loop lets go of the task in its next turn.
            bridge.ask(int)
            bridge.ask(int)
            assert trace() is None
        finally:
            gc.enable()


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_what_ends_a_program_is_raised_in_the_callers_thread_and_the_loop_lives_on(kind):
    async def leave():
        raise kind

    with make_bridge() as bridge:
        with pytest.raises(kind):
            bridge.call(leave)
        assert bridge.call(double, 1) == 2


def test_a_cancellation_from_within_is_the_callers_too():
    async def cancelled():
        raise asyncio.CancelledError

    with make_bridge() as bridge:
        with pytest.raises(asyncio.CancelledError):
            bridge.call(cancelled)
        assert bridge.call(double, 1) == 2


# Gathering -----------------------------------------------------------------------------------------------------------


def test_calls_of_many_threads_wake_the_loop_once_and_begin_in_one_turn(monkeypatch):
    turns = []

    async def begin():
        turns.append(turn[0])

    turn = [0]
    with make_bridge() as bridge:
        loop = bridge.call_now(running_loop)
        with stopped(bridge):
            woken = []
            wake = loop.call_soon_threadsafe
            monkeypatch.setattr(loop, "call_soon_threadsafe", lambda *args: (woken.append(args[0]), wake(*args)))

            def count_turns():
                turn[0] += 1
                loop.call_soon(count_turns)

            loop.call_soon(count_turns)
            calls = Calls()
            for number in range(64):
                calls.start(number, bridge.call, begin)
            wait_until(lambda: holds(bridge, queued=64, under_way=1))
        calls.join()
        assert len(woken) == 1
        assert len(turns) == 64
        assert len(set(turns)) == 1


def test_a_call_waits_for_company_and_the_queue_goes_together():
    with make_bridge(gather_s=NEVER_S) as bridge:
        loop, calls = bridge.call_now(running_loop), Calls()
        call_together(bridge)
        for number in (1, 2):
            calls.start(number, bridge.call, double, number)
            wait_until(lambda number=number: holds(bridge, queued=number) or calls.outcomes)
            let_turn(loop)
        assert calls.outcomes == {}
        assert holds(bridge, queued=2)
        # Nothing that is asked passes what was called before.
        bridge.ask(int)
        assert calls.join() == {1: 2, 2: 4}


def test_a_caller_that_was_alone_and_is_alone_does_not_wait():
    with make_bridge(gather_s=NEVER_S) as bridge:
        bridge.call_now(nothing)
        assert [bridge.call(double, number) for number in range(3)] == [0, 2, 4]


def test_beside_calls_under_way_it_waits():
    with make_bridge(gather_s=NEVER_S) as bridge:
        loop, held, calls = bridge.call_now(running_loop), Held(), Calls()
        calls.start("held", bridge.call_now, held)
        held.began.wait()
        calls.start(1, bridge.call, double, 1)
        wait_until(lambda: holds(bridge, queued=1, under_way=1) or calls.outcomes)
        let_turn(loop)
        assert holds(bridge, queued=1, under_way=1)
        bridge.ask(int)
        wait_until(lambda: calls.outcomes == {1: 2})


# Where it runs -------------------------------------------------------------------------------------------------------


def test_the_callers_context_is_the_calls_and_comes_back_as_it_was():
    variable = contextvars.ContextVar("variable", default="default")

    async def look():
        seen = variable.get()
        variable.set("changed")
        return seen

    with make_bridge() as bridge:
        variable.set("mine")
        assert bridge.call(look) == "mine"
        assert variable.get() == "mine"
        calls = Calls()
        with stopped(bridge):
            # In one queue, so that none has the context of the thread that woke the loop.
            for name in ("default", "one", "other"):
                context = contextvars.Context()
                if name != "default":
                    context.run(variable.set, name)
                calls.start(name, context.run, bridge.call, look)
            wait_until(lambda: holds(bridge, queued=3, under_way=1))
        assert calls.join() == {name: name for name in ("default", "one", "other")}


@pytest.mark.parametrize("run", [trio.run, lambda main: anyio.run(main, backend="trio")])
def test_a_context_that_belongs_to_trio_does_not_mislead_anyio(run):
    async def uses_anyio():
        with anyio.fail_after(5):
            await anyio.sleep(0)
        return "slept"

    with make_bridge() as bridge:

        async def main():
            return bridge.call(uses_anyio)

        assert run(main) == "slept"


def test_a_blocking_call_from_the_loops_own_thread_is_refused():
    async def call_back():
        return bridge.call(double, 1)

    with make_bridge() as bridge:
        with pytest.raises(ConfigError, match="wait for itself"):
            bridge.call(call_back)
        assert bridge.call(double, 1) == 2


def test_what_is_asked_may_be_asked_from_anywhere_at_any_time():
    async def ask_back():
        return bridge.ask(threading.get_ident)

    bridge, before = Bridge(nothing), set(threading.enumerate())
    here = threading.get_ident()
    assert bridge.ask(threading.get_ident) == here
    assert new_threads(before) == set()
    there = bridge.call(ask_back)
    assert there != here
    assert bridge.ask(threading.get_ident) == there
    bridge.close()
    assert bridge.ask(threading.get_ident) == here


def test_what_is_asked_while_another_thread_starts_the_loop_is_asked_there(monkeypatch):
    lock, tries, calls = threading.RLock(), threading.Event(), Calls()

    class Telling:
        """A lock that tells that a thread is about to wait for it."""

        def __enter__(self):
            tries.set()
            lock.acquire()

        def __exit__(self, *_):
            lock.release()

    with monkeypatch.context() as patched:
        patched.setattr(bridge_module, "ForkLock", Telling)
        bridge = Bridge(nothing)
    with closing(bridge):
        with lock:
            calls.start("asked", bridge.ask, threading.get_ident)
            tries.wait()
            bridge.call_now(nothing)
        assert calls.join() == {"asked": bridge.ask(threading.get_ident)}


def test_the_error_of_what_is_asked_is_its_own():
    def refuse():
        raise ClientClosed("its own")

    with make_bridge() as bridge:
        bridge.call(double, 1)
        with pytest.raises(ClientClosed, match="its own"):
            bridge.ask(refuse)


# Giving up -----------------------------------------------------------------------------------------------------------


def interrupt_when(event):
    def interrupt():
        event.wait()
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()


def test_a_thread_that_is_interrupted_cancels_its_call_and_no_other():
    with make_bridge() as bridge:
        held, other, calls = Held(), Held(), Calls()
        calls.start("other", bridge.call, other)
        other.began.wait()
        interrupt_when(held.began)
        with pytest.raises(KeyboardInterrupt):
            bridge.call(held)
        held.ended.wait()
        assert held.how is asyncio.CancelledError
        assert bridge.call(double, 1) == 2
        assert not other.ended.is_set()
        assert holds(bridge, under_way=1)


def test_a_call_that_is_given_up_in_the_queue_never_begins():
    queued = threading.Event()
    with make_bridge(gather_s=NEVER_S) as bridge:
        held, other, calls = Held(), Held(), Calls()
        # Beside this one it is to wait for company, so that giving it up is what the loop hears of first.
        calls.start("other", bridge.call_now, other)
        other.began.wait()
        with stopped(bridge):
            is_queued = partial(holds, bridge, queued=1, under_way=2)
            threading.Thread(target=lambda: (wait_until(is_queued), queued.set()), daemon=True).start()
            interrupt_when(queued)
            with pytest.raises(KeyboardInterrupt):
                bridge.call(held)
        for _ in range(3):
            bridge.call_now(nothing)
        assert not held.began.is_set()


def test_a_thread_that_is_interrupted_before_it_told_the_loop_leaves_nobody_waiting(monkeypatch):
    with make_bridge() as bridge:
        loop = bridge.call(running_loop)
        wake = loop.call_soon_threadsafe

        def interrupted(*args):
            monkeypatch.setattr(loop, "call_soon_threadsafe", wake)
            raise KeyboardInterrupt

        monkeypatch.setattr(loop, "call_soon_threadsafe", interrupted)
        with pytest.raises(KeyboardInterrupt):
            bridge.call(double, 1)
        calls = Calls()
        for number in range(3):
            calls.start(number, bridge.call, double, number)
        assert calls.join() == {0: 0, 1: 2, 2: 4}


def test_wherever_a_thread_is_held_up_no_call_waits_for_ever():
    with make_bridge() as bridge:
        bridge.call(double, 1)
        for line in itertools.count():
            is_held, go_on, lines, calls = threading.Event(), threading.Event(), itertools.count(), Calls()

            def hold(frame, event, arg, line=line, is_held=is_held, go_on=go_on, lines=lines):
                if frame.f_code.co_filename != bridge_module.__file__:
                    return None
                if event == "line" and next(lines) == line:
                    is_held.set()
                    go_on.wait()
                return hold

            def held_up(hold=hold):
                sys.settrace(hold)
                return bridge.call(double, 2)

            calls.start("held up", held_up)
            wait_until(lambda is_held=is_held, calls=calls: is_held.is_set() or calls.outcomes)
            if not is_held.is_set():
                break
            # It takes what is queued, too.
            assert bridge.call_now(double, 3) == 6
            go_on.set()
            wait_until(lambda calls=calls: calls.outcomes == {"held up": 4})
            calls.start("next", bridge.call, double, 4)
            wait_until(lambda calls=calls: calls.outcomes.get("next") == 8)
        assert line > 10


# The end -------------------------------------------------------------------------------------------------------------


def test_async_generators_that_were_left_are_closed_at_the_end():
    kept, closed = [], []

    async def pieces():
        try:
            yield 1
            yield 2
        finally:
            await asyncio.sleep(0)
            closed.append(True)

    async def take_one():
        kept.append(pieces())
        return await anext(kept[0])

    with make_bridge() as bridge:
        assert bridge.call(take_one) == 1
    assert closed == [True]


def test_an_interrupt_while_the_thread_starts_leaves_a_bridge_that_works(monkeypatch):
    before, start = threading.active_count(), threading.Thread.start

    def interrupted(thread):
        monkeypatch.setattr(threading.Thread, "start", start)
        start(thread)
        raise KeyboardInterrupt

    with make_bridge() as bridge:
        monkeypatch.setattr(threading.Thread, "start", interrupted)
        with pytest.raises(KeyboardInterrupt):
            bridge.call(double, 1)
        assert bridge.call(double, 1) == 2
        assert threading.active_count() == before + 1
    assert threading.active_count() == before


def test_where_the_system_gives_no_thread_the_call_fails_and_a_later_one_may_succeed(monkeypatch):
    start = threading.Thread.start

    def refused(thread):
        monkeypatch.setattr(threading.Thread, "start", start)
        # Another thread has seen the loop already.
        calls.start("meanwhile", bridge.call_now, double, 1)
        wait_until(lambda: holds(bridge, queued=1))
        raise RuntimeError("can't start new thread")

    calls = Calls()
    with make_bridge() as bridge:
        monkeypatch.setattr(threading.Thread, "start", refused)
        with pytest.raises(RuntimeError, match="can't start new thread"):
            bridge.call(double, 1)
        assert isinstance(calls.join()["meanwhile"], ClientClosed)
        assert bridge.call(double, 1) == 2


def test_close_ends_every_call_wherever_it_is():
    bridge = Bridge(nothing, gather_s=NEVER_S)
    held, stubborn, calls = Held(), threading.Event(), Calls()

    async def will_not_be_told():
        try:
            await asyncio.sleep(NEVER_S)
        except asyncio.CancelledError:
            stubborn.set()
            raise ValueError("its own error at the end") from None

    calls.start("under way", bridge.call_now, held)
    calls.start("stubborn", bridge.call_now, will_not_be_told)
    wait_until(lambda: holds(bridge, under_way=2))
    calls.start("queued", bridge.call, double, 1)
    wait_until(lambda: holds(bridge, queued=1, under_way=2))
    bridge.close()
    outcomes = calls.join()
    assert held.how is asyncio.CancelledError
    assert {name: type(outcome) for name, outcome in outcomes.items()} == {
        "under way": ClientClosed,
        "stubborn": ValueError,
        "queued": ClientClosed,
    }
    assert outcomes["under way"] is not outcomes["queued"]


def test_what_is_still_queued_at_the_end_is_refused():
    bridge, calls = Bridge(nothing, gather_s=NEVER_S), Calls()
    calls.start("queued", bridge.call, double, 1)
    wait_until(lambda: holds(bridge, queued=1))
    bridge.close()
    assert isinstance(calls.join()["queued"], ClientClosed)


def test_on_end_may_end_the_calls_itself():
    bridge = Bridge(lambda: let_go())
    released = None

    async def waits():
        nonlocal released
        released = asyncio.Event()
        await released.wait()
        return "ended by itself"

    async def let_go():
        released.set()
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    calls = Calls()
    calls.start("call", bridge.call, waits)
    wait_until(lambda: released is not None)
    bridge.close()
    assert calls.join() == {"call": "ended by itself"}


def test_what_comes_while_the_loop_ends_is_refused(monkeypatch):
    """The loop hears of the call only now."""
    ends, told, late, calls = threading.Event(), threading.Event(), Held(), Calls()

    async def on_end():
        ends.set()
        while not told.is_set():
            await asyncio.sleep(0.001)
        # As long as it would take the loop to take what is there.
        for _ in range(10):
            await asyncio.sleep(0)

    bridge = Bridge(on_end)
    loop = bridge.call(running_loop)
    wake = loop.call_soon_threadsafe

    def tell(*args):
        if threading.current_thread() is calls.threads[0]:
            ends.wait()
            wake(*args)
            told.set()
        else:
            wake(*args)

    monkeypatch.setattr(loop, "call_soon_threadsafe", tell)
    calls.start("late", bridge.call_now, late)
    wait_until(lambda: holds(bridge, queued=1))
    calls.start("close", bridge.close)
    assert isinstance(calls.join()["late"], ClientClosed)
    assert not late.began.is_set()


def test_an_end_that_fails_still_ends_the_loop_and_the_calls(caplog):
    async def fails():
        raise OSError("at the end")

    bridge = Bridge(fails)
    held, calls = Held(), Calls()
    calls.start("held", bridge.call, held)
    held.began.wait()
    bridge.close()
    assert isinstance(calls.join()["held"], ClientClosed)
    assert "closing failed" in caplog.text


def test_many_threads_may_close_and_each_returns_after_the_end():
    bridge, before = Bridge(nothing), set(threading.enumerate())
    bridge.call(double, 1)
    (thread,) = new_threads(before)
    calls = Calls()
    for number in range(10):
        calls.start(number, lambda: (bridge.close(), thread.is_alive())[1])
    assert calls.join() == dict.fromkeys(range(10), False)


def test_close_from_the_loops_own_thread_ends_it_afterwards():
    async def close_here():
        bridge.close()
        return "closed"

    bridge, before = Bridge(nothing), set(threading.enumerate())
    assert bridge.call(close_here) == "closed"
    for thread in new_threads(before):
        thread.join()


def test_calls_and_close_at_the_same_time_end_all():
    """A call is answered or refused; none sleeps for ever."""
    for _ in range(30):
        bridge = Bridge(nothing)
        calls = Calls()
        for number in range(8):
            calls.start(number, bridge.call, double, number)
        bridge.close()
        for number, outcome in calls.join().items():
            assert outcome == 2 * number or isinstance(outcome, ClientClosed)


@pytest.mark.parametrize("way", [Bridge.call, Bridge.call_now])
def test_a_call_that_meets_a_loop_that_has_just_ended_is_refused(way, monkeypatch):
    bridge = Bridge(nothing)
    bridge.call(double, 1)

    def closed_meanwhile(*args, **kwargs):
        """What crosses is made after the bridge was seen to be open."""
        monkeypatch.setattr(bridge_module, "Crossing", Crossing)
        bridge.close()
        return Crossing(*args, **kwargs)

    monkeypatch.setattr(bridge_module, "Crossing", closed_meanwhile)
    with pytest.raises(ClientClosed):
        way(bridge, double, 1)


def test_what_ends_the_loop_is_told_to_those_in_its_queue_too():
    def leave():
        raise SystemExit(3)

    with make_bridge(gather_s=NEVER_S) as bridge:
        loop, held, calls = bridge.call_now(running_loop), Held(), Calls()
        calls.start("under way", bridge.call_now, held)
        held.began.wait()
        calls.start("queued", bridge.call, double, 1)
        wait_until(lambda: holds(bridge, queued=1, under_way=1))
        loop.call_soon_threadsafe(leave)
        assert {name: type(error) for name, error in calls.join().items()} == {
            "under way": SystemExit,
            "queued": SystemExit,
        }


def test_a_bridge_that_is_dropped_ends_its_thread():
    ended = threading.Event()

    async def on_end():
        ended.set()

    bridge, before = Bridge(on_end), set(threading.enumerate())
    bridge.call(double, 1)
    (thread,) = new_threads(before)
    gc.disable()
    try:
        del bridge
        thread.join()
    finally:
        gc.enable()
    assert ended.is_set()


# Processes -----------------------------------------------------------------------------------------------------------


def test_the_interpreters_end_closes_it_and_wakes_who_waits():
    status, out, err = in_python(
        """
    import asyncio, atexit, threading
    # What was registered first comes last.
    atexit.register(lambda: (waiter.join(), print("over")))
    from batchclient import ClientClosed
    from batchclient._threads.bridge import Bridge

    async def on_end():
        await asyncio.sleep(0)
        print("ended")

    async def never():
        began.set()
        await asyncio.sleep(3600)

    def wait():
        try:
            bridge.call(never)
        except ClientClosed:
            print("woken")

    began = threading.Event()
    bridge = Bridge(on_end)
    waiter = threading.Thread(target=wait, daemon=True)
    waiter.start()
    began.wait()
    """
    )
    assert (status, out, err) == (0, "ended\nwoken\nover\n", "")


def test_a_loop_that_stands_still_does_not_keep_the_interpreter_from_ending():
    status, out, err = in_python(
        """
    import threading
    from batchclient._threads.bridge import Bridge

    def stand_still():
        stands.set()
        threading.Event().wait()

    async def nothing():
        pass

    stands = threading.Event()
    bridge = Bridge(nothing, exit_s=0.01)
    bridge.call(nothing)
    threading.Thread(target=bridge.ask, args=(stand_still,), daemon=True).start()
    stands.wait()
    print("over")
    """
    )
    assert (status, out, err) == (0, "over\n", "")


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_after_a_fork_the_child_starts_afresh_and_the_parent_goes_on():
    status, out, err = in_python(
        """
    import asyncio, gc, os, sys, threading
    from batchclient._threads.bridge import Bridge

    async def where():
        return os.getpid()

    async def on_end():
        print("ended", "child" if os.getpid() != parent else "parent", flush=True)

    async def never():
        began.set()
        await asyncio.sleep(3600)

    parent = os.getpid()
    began = threading.Event()
    bridge = Bridge(on_end)
    assert bridge.call(where) == parent
    threading.Thread(target=lambda: bridge.call(never), daemon=True).start()
    began.wait()
    # Another thread of the parent may be at one that has not begun, and hold its lock.
    async def nothing():
        pass
    held, idle = threading.Event(), Bridge(nothing)
    def hold():
        held.set()
        threading.Event().wait()
    threading.Thread(target=idle.ask, args=(hold,), daemon=True).start()
    held.wait()
    child = os.fork()
    if child == 0:
        try:
            gc.collect()
            print("child", bridge.call(where) == os.getpid(), flush=True)
            bridge.close()
            print("idle", idle.call(where) == os.getpid(), flush=True)
            idle.close()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    print("parent", bridge.call(where) == parent, flush=True)
    os._exit(0)
    """,
        "-W",
        "ignore::DeprecationWarning",
    )
    assert (status, err) == (0, "")
    assert out == "child True\nended child\nidle True\nparent True\n"
