"""The shared parts of request bodies in a server's own fields, remembered: calls come by the
thousand with the same few parameters.
"""

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
    """Values made from shapes' fields, remembered by shape.

    Args:
        make: makes a value from a call's fields in OpenAI's names. Nulls, which mean the server's
            default, are left out.
    """

    def __init__(self, make: Callable[[dict[str, Any]], T]) -> None:
        self._make = make
        self._made: dict[bytes, T] = {}

    def of(self, shape: Shape) -> T:
        """Return the value made from a shape's fields."""
        made = self._made.get(shape.body)
        if made is None:
            if len(self._made) >= _REMEMBERED:
                self._made.clear()
            fields = {name: value for name, value in from_json(shape.body).items() if value is not None}
            self._made[shape.body] = made = self._make(fields)
        return made


def refuse(server: str, what: str) -> Failure:
    """Return the failure of a call that the server cannot answer as meant; nothing is sent."""
    message = f"a {server} server {what}; the call was not sent"
    return Failure(FailureKind.UNSUPPORTED, BadRequest, message, begun=False)
