"""The shared parts of bodies in a server's own fields, remembered: calls come by the thousand with the same few parameters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from pydantic_core import from_json

from batchclient._core.messages import Failure, FailureKind
from batchclient._core.requests import Shape
from batchclient.errors import BadRequest

__all__ = ["Bodies", "refuse"]

_REMEMBERED = 256
T = TypeVar("T")


class Bodies(Generic[T]):
    """What is made of shapes' fields, by shape.

    Args:
        make: from a call's fields in OpenAI's names, with nulls left out, which mean the server's default.
    """

    def __init__(self, make: Callable[[dict[str, Any]], T]) -> None:
        self._make = make
        self._made: dict[bytes, T] = {}

    def of(self, shape: Shape) -> T:
        """What was made of a shape's fields."""
        made = self._made.get(shape.body)
        if made is None:
            if len(self._made) >= _REMEMBERED:
                self._made.clear()
            fields = {name: value for name, value in from_json(shape.body).items() if value is not None}
            self._made[shape.body] = made = self._make(fields)
        return made


def refuse(server: str, what: str) -> Failure:
    """A call that this sort of server cannot answer as it was meant; nothing is sent."""
    return Failure(FailureKind.UNSUPPORTED, BadRequest, f"a {server} server {what}; the call was not sent")
