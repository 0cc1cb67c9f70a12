"""The user's functions (``retry``, ``max_size``, ``progress``, …); none breaks a step.

Rules:
- The functions are plain. asyncio cancels a task where the task awaits, so a ``CancelledError`` out
  of a plain function is no cancellation. The error becomes a ``RuntimeError``, as Python makes of a
  ``StopIteration`` out of a generator.
- A function called in its caller's own task (``call_back``) raises anything else there.
- A function called within a step of the runner (``Callbacks.guard``) raises nothing but an
  ``Exception``; one that can be done without (``Callbacks.hook``) raises nothing. An attempt must
  end, and the core must not be left in the midst of an event. Ctrl-C and ``sys.exit()`` reach the
  program a turn later: the event loop raises both itself, as from any callback of its own. On trio
  both come out of ``async with``.
- A transport is awaited, within a task of the client. Its error is the call's failure, unless the
  error ends the task (``ends_task``).
"""

from __future__ import annotations

import asyncio
import math
from asyncio import CancelledError
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import anyio

from batchclient._common.log import log

if TYPE_CHECKING:
    from batchclient._shell.backend import Backend
    from batchclient.retry import RetryPolicy

__all__ = ["Callbacks", "call_back", "ends_task", "ends_unwrapped"]

_P = ParamSpec("_P")
_T = TypeVar("_T")


def call_back(name: str, function: Callable[_P, _T], /, *args: _P.args, **kwargs: _P.kwargs) -> _T:
    """Call a user's function in its caller's own task.

    Raises:
        RuntimeError: the function raised ``CancelledError``, though nobody is cancelled.
    """
    try:
        return function(*args, **kwargs)
    except CancelledError as error:
        raise RuntimeError(f"{name} raised CancelledError") from error


def ends_task(error: BaseException) -> bool:
    """Whether an error of awaited user code ends the task, perhaps with the loop or program."""
    if isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit)):
        return True
    if asyncio._get_running_loop() is None:
        return BaseExceptionGroup("", [error]).split(anyio.get_cancelled_exc_class())[1] is None  # also a nursery's
    task = asyncio.current_task()
    return isinstance(error, CancelledError) and (task is None or task.cancelling() > 0)


@contextmanager
def ends_unwrapped() -> Iterator[None]:
    """Raise Ctrl-C and ``SystemExit`` bare if a nursery raises nothing else.

    Inside a group Python takes both for an error.
    """
    end: BaseException | None = None
    try:
        yield
    except BaseExceptionGroup as group:
        ends, others = group.split((KeyboardInterrupt, SystemExit))
        if ends is None or others is not None:
            raise
        end = ends.exceptions[0]
    if end is not None:
        # Raised outside of the group, which would be shown as the context.
        raise end from end.__cause__


class Callbacks:
    """The user's functions of a client, called within a step of the runner.

    Attributes:
        backend: of the event loop served now.
    """

    def __init__(self) -> None:
        self.backend: Backend | None = None

    def guard(self, name: str, function: Callable[_P, _T]) -> Callable[_P, _T]:
        """Return the function, guarded: nothing but an ``Exception`` comes out."""

        def guarded(*args: _P.args, **kwargs: _P.kwargs) -> _T:
            try:
                return call_back(name, function, *args, **kwargs)
            except Exception:
                raise
            except BaseException as error:
                if self.backend is not None:
                    self.backend.raise_soon(error)
                raise RuntimeError(f"{name} raised {type(error).__name__}") from error

        return guarded

    def hook(self, name: str, function: Callable[_P, _T]) -> Callable[_P, _T | None]:
        """Return the function, guarded: ``None`` where it fails, which the log says once."""
        guarded, has_failed = self.guard(name, function), False

        def hook(*args: _P.args, **kwargs: _P.kwargs) -> _T | None:
            nonlocal has_failed
            try:
                return guarded(*args, **kwargs)
            except Exception:
                if not has_failed:
                    has_failed = True
                    log(f"{name}_failed", f"{name} failed, and is done without; this is said once", exc_info=True)
                return None

        return hook

    def guard_policy(self, policy: RetryPolicy) -> RetryPolicy:
        """Return the retry policy, guarded: it returns ``None`` or a time."""

        def decide(*asked: Any) -> float | None:
            delay_s = policy.decide(*asked)
            if delay_s is not None and not math.isfinite(float(delay_s)):
                raise ValueError(f"{delay_s} is no delay in seconds")
            return None if delay_s is None else max(0.0, float(delay_s))

        return _Guarded(self.guard("retry", decide))


class _Guarded:
    def __init__(self, decide: Callable[..., float | None]) -> None:
        self._decide = decide

    def decide(self, *asked: Any) -> float | None:
        try:
            return self._decide(*asked)
        except Exception:
            log("retry_policy_failed", "the retry policy failed; nothing is tried again", exc_info=True)
            return None
