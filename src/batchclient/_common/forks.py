"""What a forked child does not take over from its parent."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

__all__ = ["ForkLock", "forget_in_child"]

_owners: weakref.WeakSet[Any] = weakref.WeakSet()
_of_the_parent: list[object] = []


def forget_in_child(owner: Any) -> None:
    """Call ``owner._forget_parent()`` in every forked child, while the owner lives.

    What that returns is kept: collected in the child it would close what is shared with the parent.
    """
    _owners.add(owner)


class ForkLock:
    """A re-entrant lock that is free in a forked child: the child lacks the thread that held it."""

    def __init__(self) -> None:
        self._forget_parent()
        forget_in_child(self)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def _forget_parent(self) -> None:
        self._lock = threading.RLock()


def _after_fork() -> None:
    _of_the_parent.extend([owner._forget_parent() for owner in list(_owners)])


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
