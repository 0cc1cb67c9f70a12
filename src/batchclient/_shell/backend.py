"""Sleeping and waking of callers, starting and timing of work: on asyncio and on trio.

Rules:
- A waiter has ``done()``, ``set_result(value)``, ``set_exception(error)``; it wakes one caller.
- On asyncio a task lives only for a request under way, a timer only while anything waits for time.
  So ``asyncio.run`` ends cleanly without ``async with``. Its shutdown of async generators tells
  idle connections of the end.
- On trio the client needs ``async with``, which holds the nursery.
- Work is started in the client's own context, not in the context of the caller whose call started
  the work.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from contextvars import Context
from typing import TYPE_CHECKING, Any, Protocol

from batchclient.errors import ConfigError

if TYPE_CHECKING:
    import trio

__all__ = ["AsyncioBackend", "Backend", "Cancellable", "TrioBackend", "Waiter"]


class Cancellable(Protocol):
    """A task or a timer."""

    def cancel(self) -> object: ...


class Waiter(Protocol):
    """The place where a caller sleeps, such as an ``asyncio.Future``."""

    def done(self) -> bool: ...
    def set_result(self, result: Any, /) -> None: ...
    def set_exception(self, error: BaseException, /) -> None: ...


class AsyncioBackend:
    """The asyncio side. Belongs to the loop in which it was made."""

    def __init__(self, context: Context) -> None:
        self.loop: asyncio.AbstractEventLoop = asyncio.get_running_loop()
        self._context = context
        self.now: Callable[[], float] = self.loop.time
        self.waiter: Callable[[], Any] = self.loop.create_future
        self._ends = False
        """Whether the loop was told to end, and has had no work since."""
        self._ended = False
        """Whether the loop has ended."""

    @staticmethod
    def wait(waiter: asyncio.Future[Any]) -> asyncio.Future[Any]:
        """Sleep until the future is set."""
        return waiter

    def spawn(
        self, work: Callable[[Any], Awaitable[None]], argument: Any, context: Context | None = None
    ) -> asyncio.Task[None]:
        """Start a task, in the client's own context unless another is given."""
        coroutine: Any = self._run(work, argument)
        # Not by the factory of the loop: an eager one lets a task begin before it is listed.
        return asyncio.Task(coroutine, loop=self.loop, context=(context or self._context).copy())

    async def _run(self, work: Callable[[Any], Awaitable[None]], argument: Any) -> None:
        try:
            await work(argument)
        except (asyncio.CancelledError, GeneratorExit):
            raise
        except BaseException as error:
            # Nobody awaits the task: asyncio would complain of a forgotten error.
            self.raise_soon(error)

    def call_soon(self, function: Callable[[], None]) -> None:
        """Call in the next turn of the loop."""
        self.loop.call_soon(function, context=self._context)

    def call_soon_threadsafe(self, function: Callable[[], None]) -> None:
        """Call likewise, from anywhere: a finalizer may run in any thread.

        Raises:
            RuntimeError: the event loop is over.
        """
        self.loop.call_soon_threadsafe(function, context=self._context)

    def call_at(self, time: float, function: Callable[[], None]) -> asyncio.TimerHandle:
        """Call at a time of the loop's clock."""
        return self.loop.call_at(time, function, context=self._context)

    def raise_soon(self, error: BaseException) -> None:
        """Ctrl-C and ``SystemExit`` end the loop's run; its exception handler gets the rest."""
        raise_now = _raise
        if isinstance(error, (KeyboardInterrupt, SystemExit)):
            if self._ends:
                # A second one would break into the tidying up of ``asyncio.run`` after the first.
                return
            self._ends = True
            raise_now = self._end
        self.loop.call_soon(raise_now, error, context=self._context)

    def _end(self, error: BaseException) -> None:
        self._ended = True
        raise error

    def note_work(self) -> None:
        """Note that calls were made: a loop that a user's function has ended runs again."""
        if self._ended:
            self._ends = self._ended = False

    def at_end(self, close: Callable[[], Awaitable[None]]) -> AsyncGenerator[None]:
        """Call when ``asyncio.run`` ends, or when the result is dropped while the loop runs."""

        async def keeper() -> AsyncGenerator[None]:
            try:
                yield
            finally:
                await close()

        generator = keeper()
        # The first step tells the loop of the generator; nothing is awaited before its yield.
        with suppress(StopIteration):
            generator.asend(None).send(None)
        return generator

    def is_current(self) -> bool:
        """Whether the caller runs in this event loop."""
        return asyncio._get_running_loop() is self.loop

    def is_running(self) -> bool:
        """Whether this event loop runs, perhaps in another thread."""
        return self.loop.is_running()

    def is_gone(self) -> bool:
        """Whether this event loop is closed: remaining tasks are only being collected."""
        return self.loop.is_closed()


class TrioBackend:
    """The trio side. Lives in the nursery of ``async with``."""

    def __init__(self, context: Context, nursery: trio.Nursery) -> None:
        import trio

        self._trio = trio
        self._context = context
        self._nursery = nursery
        self._token = trio.lowlevel.current_trio_token()
        self.now: Callable[[], float] = trio.current_time

    def waiter(self) -> Any:
        """Return a fresh waiter.

        Raises:
            ConfigError: the caller runs in another trio loop, which asyncio's test for the same
                loop cannot see.
        """
        if not self.is_current():
            raise ConfigError("another running event loop uses this client; make one client per event loop")
        return TrioWaiter(self._trio.Event())

    @staticmethod
    def wait(waiter: TrioWaiter) -> Awaitable[Any]:
        """Sleep until the waiter is set."""
        return waiter.wait()

    def spawn(
        self, work: Callable[[Any], Awaitable[None]], argument: Any, context: Context | None = None
    ) -> Cancellable:
        """Start a task in the nursery, in the client's own context unless another is given."""
        scope = self._trio.CancelScope()

        async def run() -> None:
            with scope:
                await work(argument)

        (context or self._context).run(self._nursery.start_soon, run)
        return scope

    def call_soon(self, function: Callable[[], None]) -> None:
        """Call in the next turn of trio's loop."""
        self._token.run_sync_soon(function)

    def call_soon_threadsafe(self, function: Callable[[], None]) -> None:
        """Call likewise, from anywhere."""
        self._token.run_sync_soon(function)

    def call_at(self, time: float, function: Callable[[], None]) -> Cancellable:
        """Call at a time of trio's clock."""
        scope = self._trio.CancelScope()

        async def run() -> None:
            with scope:
                await self._trio.sleep_until(time)
                function()

        self._context.run(self._nursery.start_soon, run)
        return scope

    def raise_soon(self, error: BaseException) -> None:
        """Raise out of the nursery, and so out of ``async with``."""

        async def run() -> None:
            raise error

        self._context.run(self._nursery.start_soon, run)

    def note_work(self) -> None:
        """Do nothing: the nursery ends once."""

    def at_end(self, close: Callable[[], Awaitable[None]]) -> None:
        """Do nothing: ``async with`` is the end."""

    def is_current(self) -> bool:
        """Whether the caller runs in this run of trio."""
        try:
            return self._trio.lowlevel.current_trio_token() is self._token
        except RuntimeError:
            return False

    def is_running(self) -> bool:
        """Whether the nursery is open: its end also ends the runner."""
        return True

    def is_gone(self) -> bool:
        """Return false: trio leaves no task behind."""
        return False


def _raise(error: BaseException) -> None:
    raise error


class TrioWaiter:
    """An event with an outcome."""

    __slots__ = ("_error", "_event", "_result")

    def __init__(self, event: trio.Event) -> None:
        self._event = event
        self._result: Any = None
        self._error: BaseException | None = None

    def done(self) -> bool:
        """Whether the waiter was set."""
        return self._event.is_set()

    def set_result(self, result: Any) -> None:
        """Wake the caller with an answer."""
        self._result = result
        self._event.set()

    def set_exception(self, error: BaseException) -> None:
        """Wake the caller with an error."""
        self._error = error
        self._event.set()

    async def wait(self) -> Any:
        """Sleep until the waiter is set."""
        await self._event.wait()
        if self._error is not None:
            try:
                raise self._error
            finally:
                del self  # the error holds this frame: a circle would wait for the garbage collector
        return self._result


Backend = AsyncioBackend | TrioBackend
"""The runner's view of an async library."""
