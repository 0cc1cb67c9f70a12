"""Views of a client: one limit, queue and fleet; a class, a tenant and batching of their own.

A view's engine and its maker of requests are the client's own in all that they know and do: they
share their state. All but one thing: each call that a view makes has what the view says of it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from batchclient._calls.call import Call
from batchclient._calls.make import CallMaker
from batchclient._checks import check_choice
from batchclient._client.engine import Engine
from batchclient._core.kinds import Kind
from batchclient._core.messages import Request, Shape
from batchclient._core.settings import BatchingNumbers
from batchclient._shell.backend import Waiter

__all__ = ["EngineOfView", "View"]


class View(NamedTuple):
    """What calls of a view have where they say nothing else.

    Args:
        priority: the class of those of class 0.
        tenant: of those without one.
        numbers: how they become batches; ``None``: as the client's.
    """

    priority: int
    tenant: str | None
    numbers: BatchingNumbers | None

    def of(self, call: Call) -> Call:
        """Return a call as the view makes it."""
        manner = call.manner if self.numbers is None else call.manner._replace(numbers=self.numbers)
        return call._replace(
            priority=call.priority or self.priority,
            tenant=self.tenant if call.tenant is None else call.tenant,
            manner=manner,
        )


class _MakerOfView(CallMaker):
    __slots__ = ("_view",)

    def __init__(self, maker: CallMaker, view: View) -> None:
        self.__dict__ = maker.__dict__
        self._view = view

    def make(self, call: Call, waiter: Waiter | None, now: float, *, from_grant: bool = False) -> Request:
        return super().make(self._view.of(call), waiter, now, from_grant=from_grant)

    def check(self, call: Call, method: str | None = None) -> Shape:
        return super().check(self._view.of(call), method)


class EngineOfView(Engine):
    """The engine of a view.

    Args:
        engine: the client's.
        priority, tenant, preset: the view's.

    Raises:
        ConfigError: an argument is wrong.
    """

    __slots__ = ("_maker",)

    def __init__(self, engine: Engine, priority: int, tenant: str | None, preset: str | None) -> None:
        from batchclient._settings import PRESETS

        if preset is not None:
            check_choice("preset", preset, PRESETS)
        self.__dict__ = engine.__dict__
        self._maker = _MakerOfView(engine.calls, View(priority, tenant, None if preset is None else PRESETS[preset]))
        self._maker.check(Call(Kind.COMPLETION, "", {}))

    def __del__(self, _warn: Any = None) -> None:
        """The client says itself that it is not closed."""

    @property
    def calls(self) -> CallMaker:  # type: ignore[override]  # the client's has it as an attribute
        """Makes requests of the view's calls."""
        return self._maker
