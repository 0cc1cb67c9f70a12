"""From threads to an event loop: one loop in a daemon thread of its own, which many threads call at once.

Rules:
- A thread puts its call into a queue and sleeps. The first call of a queue wakes the loop, which takes all there is a millisecond later: calls that threads
  make at nearly the same time begin in one turn of the loop, as those of ``gather`` do, and so travel together.
- A caller that was alone the last time, and is now, is not kept waiting.
- A thread that gives up, by Ctrl-C for instance, cancels its call. Every call ends exactly once: with its answer, its own error, or ``ClientClosed``.
- What is called runs in the caller's context (``contextvars``), in the loop's thread. An error is raised in the caller's thread, with its frames.
- The thread starts with the first call. It ends with ``close``, when the bridge is dropped, and with the interpreter; it never keeps a process alive.
- A user's function may end the loop, by ``sys.exit()`` in a retry policy for instance. It ends as by ``close``, and what was raised goes to every
  thread that waits, or to the next that calls.
- The loop has a clock of its own, which runs on where a test has frozen time.
- After a fork the child starts afresh; the parent's loop and sockets are left alone.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

from batchclient._shell.clock import make_loop
from batchclient._threads.crossing import Crossing
from batchclient.errors import ClientClosed, ConfigError

__all__ = ["Bridge"]

_P = ParamSpec("_P")
_T = TypeVar("_T")

_GATHER_S = 0.001
"""How long the first call of a queue waits for others: some threads' worth of waking up, and little beside any answer."""
_CLOSED = "the client is closed; make a new one"
_EXIT_S = 1.0

_log = logging.getLogger("batchclient")
_bridges: weakref.WeakSet[Bridge] = weakref.WeakSet()
_of_the_parent: list[object] = []


class Bridge:
    """Runs coroutine functions for threads in an event loop in the background.

    Not a pool: a thread that calls sleeps until its own call has ended. What is called must not block.

    Args:
        on_end: awaited in the loop before it ends; it should end the calls that are under way.
        gather_s: how long the first call of a queue waits for others, seconds.
        exit_s: how long the interpreter waits at its end for connections to close, seconds.
    """

    def __init__(
        self, on_end: Callable[[], Awaitable[object]], *, gather_s: float = _GATHER_S, exit_s: float = _EXIT_S
    ) -> None:
        self._on_end = on_end
        self._gather_s = gather_s
        self._exit_s = exit_s
        self._lock = threading.RLock()
        """Of starting, closing and what is asked while no loop runs. A signal's handler may come back for it."""
        self._thread: _LoopThread | None = None
        self._closed = False
        _bridges.add(self)

    def __repr__(self) -> str:
        return f"<Bridge: {'closed' if self._closed else 'idle' if self._thread is None else self._thread}>"

    def call(self, function: Callable[_P, Coroutine[Any, Any, _T]], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call a coroutine function in the loop, together with what other threads call now, and wait for what it returns.

        Raises:
            ClientClosed: the bridge is closed, or was closed meanwhile.
            ConfigError: the caller runs in the bridge's own loop, which would wait for itself.
        """
        return self._running().do(Crossing(function, args, kwargs))  # type: ignore[no-any-return]

    def call_now(self, function: Callable[_P, Coroutine[Any, Any, _T]], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """The same for a call that has nothing to gain from others' company."""
        return self._running().do(Crossing(function, args, kwargs), at_once=True)  # type: ignore[no-any-return]

    def ask(self, function: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call a plain function where the loop does nothing meanwhile: in its thread after all that was called before, or here if none runs.

        It may be called from the loop's own thread, and after the end.
        """
        thread = self._thread
        if thread is not None:
            if thread.is_current:
                return function(*args, **kwargs)
            call = Crossing(function, args, kwargs, plain=True)
            try:
                return thread.do(call, at_once=True)  # type: ignore[no-any-return]
            except ClientClosed:
                if not call.refused:
                    raise
            thread.join()
        with self._lock:
            if self._thread is thread:
                return function(*args, **kwargs)
        # Another thread has just started the loop.
        return self.ask(function, *args, **kwargs)

    def close(self) -> None:
        """End the loop, and with it every call with ``ClientClosed``; wait until its connections are closed. Safe to call twice, from any thread."""
        thread = self._begin_to_close()
        if thread is not None:
            thread.join()

    def _begin_to_close(self) -> _LoopThread | None:
        with self._lock:
            self._closed = True
            thread = self._thread
        if thread is not None:
            thread.end()
        return thread

    def _running(self) -> _LoopThread:
        """The loop's thread, started if need be."""
        thread = self._thread
        if thread is None or self._closed:
            with self._lock:
                if self._closed:
                    raise ClientClosed(_CLOSED)
                thread = self._thread
                if thread is None:
                    # Kept before it is started: Ctrl-C may come while it is.
                    self._thread = thread = _LoopThread(self._on_end, self._gather_s)
                    try:
                        thread.start()
                    except RuntimeError:
                        self._thread = None
                        raise
        thread.check()
        return thread

    def _forget_parent(self) -> None:
        # Kept, because collecting it would close what is shared with the parent.
        _of_the_parent.append(self._thread)
        self._thread = None
        # Another thread of the parent may have held it.
        self._lock = threading.RLock()

    def __del__(self) -> None:
        thread = getattr(self, "_thread", None)
        if thread is not None:
            thread.end()


class _LoopThread:
    """A running event loop, its thread and what was called there. It knows nothing of its bridge, which may be dropped."""

    def __init__(self, on_end: Callable[[], Awaitable[object]], gather_s: float) -> None:
        self._on_end = on_end
        self._gather_s = gather_s
        self._queue: deque[Crossing] = deque()
        self._due = False
        """Whether the loop was told of the queue."""
        self._timer: asyncio.TimerHandle | None = None
        self._was_alone = False
        self._tasks: dict[asyncio.Task[None], Crossing] = {}
        self._over = False
        """Whether nothing is taken any more."""
        self._ended_by: BaseException | None = None
        """What a user's function raised to end the program, until a thread was told."""
        self._loop = make_loop()
        self._ending = asyncio.Event()
        self._thread = threading.Thread(target=self._live, name="batchclient", daemon=True)

    def __repr__(self) -> str:
        return "over" if self._over else f"{len(self._tasks)} calls under way, {len(self._queue)} queued"

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in this thread."""
        # Not by its ident: once this one has ended, the system gives that to the next.
        return threading.current_thread() is self._thread

    def start(self) -> None:
        """Start the thread.

        Raises:
            RuntimeError: the system gives none. What was called meanwhile is refused.
        """
        try:
            self._thread.start()
        except RuntimeError:
            self._end_loop()
            raise

    # For other threads ---------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Refuse a call that comes after the end.

        Raises:
            BaseException: what ended the loop, if no thread was told.
            ClientClosed: the loop has ended.
        """
        if self._over:
            why, self._ended_by = self._ended_by, None
            raise why or ClientClosed(_CLOSED)

    def do(self, call: Crossing, *, at_once: bool = False) -> Any:
        """Have a call made, and wait for its end.

        Raises:
            ClientClosed: the loop ended first.
            ConfigError: the caller runs in the loop's own thread.
        """
        if self.is_current:
            raise ConfigError(
                "a blocking call from the client's own event loop would wait for itself; use another thread"
            )
        try:
            self._submit(call, at_once=at_once)
            call.done.acquire()
        except BaseException:
            # The caller was interrupted, and waits no more.
            call.left = True
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._drop, call)
            raise
        return call.outcome()

    def _submit(self, call: Crossing, *, at_once: bool) -> None:
        self._queue.append(call)
        # A closed loop takes no more; see below.
        with suppress(RuntimeError):
            # Looked at after the call is in the queue, and cleared by the loop before it looks there: no call is overlooked.
            if at_once:
                self._loop.call_soon_threadsafe(self._drain)
            elif not self._due:
                self._due = True
                self._loop.call_soon_threadsafe(self._on_first)
        if self._over:
            self._refuse(self._queued())

    def end(self) -> None:
        """End the loop soon. This may run anywhere, as a finalizer does."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._ending.set)

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until the loop has ended. In its own thread there is nothing to wait for: it ends after what runs there now."""
        if not self.is_current and self._thread.ident is not None:
            self._thread.join(timeout_s)

    # In the loop's thread ------------------------------------------------------------------------------------------

    def _live(self) -> None:
        # A caller's context may say that it belongs to trio.
        with suppress(ImportError):
            import sniffio

            sniffio.thread_local.name = "asyncio"
        try:
            self._run(self._serve())
            self._run(self._loop.shutdown_asyncgens())
        finally:
            self._end_loop()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run the loop until the work is done, also where a user's function stops it meanwhile."""
        task = self._loop.create_task(work)
        while not task.done():
            try:
                self._loop.run_until_complete(task)
            except (KeyboardInterrupt, SystemExit) as error:
                self._ended_by = error
                # At once: not what their calls make of it, and not that the client closes.
                self._refuse([*self._tasks.values(), *self._queued()])
                self._ending.set()

    def _end_loop(self) -> None:
        # Look-ups of names may still run in threads of the loop's; nobody waits for them.
        self._loop.close()
        self._over = True
        self._refuse([*self._tasks.values(), *self._queued()])

    async def _serve(self) -> None:
        await self._ending.wait()
        try:
            await self._on_end()
        except Exception:  # whatever it is, the callers must not be left sleeping
            _log.exception("closing failed")
        finally:
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            for task in rest:
                task.cancel()
            if rest:
                await asyncio.wait(rest)

    def _on_first(self) -> None:
        """There is something in a queue that was empty."""
        if not self._queue:
            return
        if self._was_alone and not self._tasks:
            self._drain()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._gather_s, self._drain)

    def _drain(self) -> None:
        """Begin all that is in the queue, in one turn."""
        if self._ending.is_set():
            # What comes now is refused at the end.
            return
        self._due = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        queue = self._queue
        count = len(queue)
        if count:
            self._was_alone = count == 1
        for _ in range(count):
            call = queue.popleft()
            if not call.left:
                call.task = task = self._loop.create_task(self._answer(call), context=call.context)
                self._tasks[task] = call

    async def _answer(self, call: Crossing) -> None:
        try:
            answer = call.function(*call.args, **call.kwargs)
            if not call.plain:
                answer = await answer
        except asyncio.CancelledError as error:
            if call.left or self._ending.is_set():
                # Nobody waits for it, or it is refused at the end.
                raise
            self._end_call(call, None, error)
        except BaseException as error:  # the caller's own, SystemExit too: it must not end the loop
            self._end_call(call, None, error)
        else:
            self._end_call(call, answer)

    def _end_call(self, call: Crossing, answer: Any, error: BaseException | None = None) -> None:
        assert call.task is not None
        # Before its thread wakes, which may call again at once.
        self._tasks.pop(call.task, None)
        call.settle(answer, error)

    def _drop(self, call: Crossing) -> None:
        if call.task is not None:
            self._tasks.pop(call.task, None)
            call.task.cancel()
        # Its thread may have been interrupted between queueing it and telling the loop, as all others rely on.
        self._drain()

    def _queued(self) -> Iterator[Crossing]:
        """Take out what is in the queue."""
        with suppress(IndexError):
            while True:
                yield self._queue.popleft()

    def _refuse(self, calls: Iterable[Crossing]) -> None:
        why = self._ended_by
        for call in calls:
            if call.plain:
                # It is asked again where no loop runs.
                call.refuse(None)
            else:
                call.refuse(why)
                self._ended_by = None


def _end_all() -> None:
    """At the interpreter's end: close connections, and wake threads that would sleep for ever."""
    bridges = list(_bridges)
    threads = [(thread, bridge._exit_s) for bridge in bridges if (thread := bridge._begin_to_close()) is not None]
    for thread, exit_s in threads:
        thread.join(exit_s)


def _after_fork() -> None:
    for bridge in list(_bridges):
        bridge._forget_parent()


atexit.register(_end_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
