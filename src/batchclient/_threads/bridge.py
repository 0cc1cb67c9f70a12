"""The bridge from many threads to one event loop in a daemon thread of its own.

Rules:
- A thread queues its call and sleeps. A queue's first call wakes the loop, which takes the whole
  queue a millisecond later. So nearly simultaneous calls begin in one turn of the loop, as those of
  ``gather`` do, and travel together.
- A caller who was alone the last time, and is alone now, is not kept waiting.
- A thread that gives up, by Ctrl-C for instance, cancels its call. Every call ends exactly once:
  with its answer, its own error, or ``ClientClosed``.
- A called function runs in the caller's context (``contextvars``), in the loop's thread. An error
  is raised in the caller's thread, with its frames.
- The thread starts with the first call. It ends with ``close``, a dropped bridge or the
  interpreter, and never keeps a process alive.
- A user's function may end the loop as ``close`` does, by ``sys.exit()`` in a retry policy for
  instance. The error goes to every waiting thread, or to the next caller.
- The loop has a clock of its own, which runs on while a test has frozen time.
- After a fork the child starts afresh, and leaves the parent's loop and sockets alone.
"""

from __future__ import annotations

import asyncio
import atexit
import threading
import weakref
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar

from batchclient._common.forks import ForkLock, forget_in_child
from batchclient._common.log import log
from batchclient._shell.clock import make_loop
from batchclient._threads.crossing import Crossing
from batchclient.errors import ClientClosed, ConfigError

__all__ = ["Bridge"]

_P = ParamSpec("_P")
_T = TypeVar("_T")

_GATHER_S = 0.001
"""How long a queue's first call waits: some threads' waking, and little beside an answer."""
_CLOSED = "the client is closed; make a new one"
_EXIT_S = 1.0

_bridges: weakref.WeakSet[Bridge] = weakref.WeakSet()


class Bridge:
    """Runs coroutine functions for threads in an event loop in the background.

    Not a pool: a thread sleeps until its own call has ended. Called functions must not block.

    Args:
        on_end: awaited in the loop before its end; should end the calls under way.
        gather_s: how long the first call of a queue waits for others, seconds.
        exit_s: how long the interpreter waits at its end for connections to close, seconds.
    """

    def __init__(
        self, on_end: Callable[[], Awaitable[object]], *, gather_s: float = _GATHER_S, exit_s: float = _EXIT_S
    ) -> None:
        self._on_end = on_end
        self._gather_s = gather_s
        self._exit_s = exit_s
        self._lock = ForkLock()
        """For starting, closing and ``ask`` without a loop. Re-entrant for a signal's handler."""
        self._thread: _LoopThread | None = None
        self._closed = False
        _bridges.add(self)
        forget_in_child(self)

    def __repr__(self) -> str:
        return f"<Bridge: {'closed' if self._closed else 'idle' if self._thread is None else self._thread}>"

    def call(self, function: Callable[_P, Coroutine[Any, Any, _T]], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call a coroutine function in the loop, together with other threads' calls.

        Raises:
            ClientClosed: the bridge is closed, or was closed meanwhile.
            ConfigError: the caller runs in the bridge's own loop, which would wait for itself.
        """
        return self._running().do(Crossing(function, args, kwargs))  # type: ignore[no-any-return]

    def call_now(self, function: Callable[_P, Coroutine[Any, Any, _T]], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call likewise, but at once: for a call with nothing to gain from company."""
        return self._running().do(Crossing(function, args, kwargs), at_once=True)  # type: ignore[no-any-return]

    def ask(self, function: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        """Call a plain function while the loop does nothing else.

        The function runs in the loop's thread after all earlier calls, or here if no loop runs. The
        call may come from the loop's own thread, and after the end.
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
        """End the loop, and all calls with ``ClientClosed``; wait until connections are closed.

        Safe to call twice, from any thread.
        """
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
        """Return the loop's thread, started if need be."""
        thread = self._thread
        if thread is None or self._closed:
            with self._lock:
                if self._closed:
                    raise ClientClosed(_CLOSED)
                thread = self._thread
                if thread is None:
                    # Kept before the start: Ctrl-C may come during the start.
                    self._thread = thread = _LoopThread(self._on_end, self._gather_s)
                    try:
                        thread.start()
                    except RuntimeError:
                        self._thread = None
                        raise
        thread.check()
        return thread

    def _forget_parent(self) -> object:
        theirs, self._thread = self._thread, None
        return theirs

    def __del__(self) -> None:
        thread = getattr(self, "_thread", None)
        if thread is not None:
            thread.end()


class _LoopThread:
    """A running event loop, its thread and calls.

    Holds no reference to its bridge, which may be dropped.
    """

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
        """Whether no more calls are taken."""
        self._ended_by: BaseException | None = None
        """The error by which a user's function ended the program, until a thread is told."""
        self._loop = make_loop()
        self._ending = asyncio.Event()
        self._thread = threading.Thread(target=self._live, name="batchclient", daemon=True)

    def __repr__(self) -> str:
        return "over" if self._over else f"{len(self._tasks)} calls under way, {len(self._queue)} queued"

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in this thread."""
        # Not by ident: the system gives the ident of an ended thread to the next.
        return threading.current_thread() is self._thread

    def start(self) -> None:
        """Start the thread.

        Raises:
            RuntimeError: the system gives no thread. Calls made meanwhile are refused.
        """
        try:
            self._thread.start()
        except RuntimeError:
            self._end_loop()
            raise

    # For other threads ---------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Refuse a call after the end.

        Raises:
            BaseException: the error that ended the loop, if no thread was told.
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
            # Read after the queueing, and cleared by the loop before a look at the queue: no call
            # is lost.
            if at_once:
                self._loop.call_soon_threadsafe(self._drain)
            elif not self._due:
                self._due = True
                self._loop.call_soon_threadsafe(self._on_first)
        if self._over:
            self._refuse(self._queued())

    def end(self) -> None:
        """End the loop soon; from anywhere, as a finalizer runs."""
        with suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._ending.set)

    def join(self, timeout_s: float | None = None) -> None:
        """Wait until the loop has ended.

        The loop's own thread does not wait: it ends after the present work.
        """
        if not self.is_current and self._thread.ident is not None:
            self._thread.join(timeout_s)

    # In the loop's thread ------------------------------------------------------------------------------------------

    def _live(self) -> None:
        # A caller's context may name trio.
        with suppress(ImportError):
            import sniffio

            sniffio.thread_local.name = "asyncio"
        try:
            self._run(self._serve())
            self._run(self._loop.shutdown_asyncgens())
        finally:
            self._end_loop()

    def _run(self, work: Coroutine[Any, Any, None]) -> None:
        """Run the loop until the work is done, also if a user's function stops the loop."""
        task = self._loop.create_task(work)
        while not task.done():
            try:
                self._loop.run_until_complete(task)
            except (KeyboardInterrupt, SystemExit) as error:
                self._ended_by = error
                # At once: neither the calls' own results nor the closing of the client comes first.
                self._refuse([*self._tasks.values(), *self._queued()])
                self._ending.set()

    def _end_loop(self) -> None:
        # Look-ups of names may still run in threads of the loop; nobody waits for them.
        self._loop.close()
        self._over = True
        self._refuse([*self._tasks.values(), *self._queued()])

    async def _serve(self) -> None:
        await self._ending.wait()
        try:
            await self._on_end()
        except Exception:  # whatever it is, the callers must not be left sleeping
            log("close_failed", "closing failed", exc_info=True)
        finally:
            rest = asyncio.all_tasks() - {asyncio.current_task()}
            for task in rest:
                task.cancel()
            if rest:
                await asyncio.wait(rest)

    def _on_first(self) -> None:
        """Take notice of the first call in an empty queue."""
        if not self._queue or (self._was_alone and not self._tasks):
            # An empty one: another call's drain took this one before its thread told of it.
            self._drain()
        elif self._timer is None:
            self._timer = self._loop.call_later(self._gather_s, self._drain)

    def _drain(self) -> None:
        """Begin all queued calls in one turn."""
        if self._ending.is_set():
            # Calls from now on are refused at the end.
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
                # Nobody waits for the call, or it is refused at the end.
                raise
            self._end_call(call, None, error)
        except BaseException as error:  # the caller's own, SystemExit too: it must not end the loop
            self._end_call(call, None, error)
        else:
            self._end_call(call, answer)

    def _end_call(self, call: Crossing, answer: Any, error: BaseException | None = None) -> None:
        assert call.task is not None
        # Before the thread wakes, which may call again at once.
        self._tasks.pop(call.task, None)
        call.settle(answer, error)

    def _drop(self, call: Crossing) -> None:
        if call.task is not None:
            self._tasks.pop(call.task, None)
            call.task.cancel()
        # The thread may have been interrupted before telling the loop, on which all others rely.
        self._drain()

    def _queued(self) -> Iterator[Crossing]:
        """Take the calls out of the queue."""
        with suppress(IndexError):
            while True:
                yield self._queue.popleft()

    def _refuse(self, calls: Iterable[Crossing]) -> None:
        why = self._ended_by
        for call in calls:
            if call.plain:
                # Asked again once no loop runs.
                call.refuse(None)
            else:
                call.refuse(why)
                self._ended_by = None


def _end_all() -> None:
    """At the interpreter's end, close connections, and wake threads which would sleep for ever."""
    bridges = list(_bridges)
    threads = [(thread, bridge._exit_s) for bridge in bridges if (thread := bridge._begin_to_close()) is not None]
    for thread, exit_s in threads:
        thread.join(exit_s)


atexit.register(_end_all)
