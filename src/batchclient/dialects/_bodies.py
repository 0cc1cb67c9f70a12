"""The shared parts of request bodies in a server's own fields, remembered: calls come by the
thousand with the same few parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from pydantic_core import from_json

from batchclient._core.messages import Failure, FailureKind
from batchclient._core.requests import Shape
from batchclient.dialects._fields import canonical
from batchclient.errors import BadRequest

__all__ = ["Bodies", "guided_in", "in_new_names", "refuse", "with_model"]

_REMEMBERED = 256
_GUIDED = {
    "guided_json": "json",
    "guided_regex": "regex",
    "guided_choice": "choice",
    "guided_grammar": "grammar",
    "guided_whitespace_pattern": "whitespace_pattern",
}
"""The form of an answer in vLLM's older words, and the same in its ``structured_outputs``."""
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


def in_new_names(fields: dict[str, Any]) -> bytes:
    """Return fields with the form of the answer as ``structured_outputs``.

    The backend that makes it (``guided_decoding_backend``) is left out: no call chooses it there.
    """
    form = {new: fields.pop(old) for old, new in _GUIDED.items() if old in fields}
    fields.pop("guided_decoding_backend", None)
    given = fields.get("structured_outputs")
    return canonical({**fields, "structured_outputs": {**form, **(given or {})}} if form else fields)


def with_model(body: bytes, model: str) -> bytes:
    """Return a shape's fields with another name of the model."""
    return canonical({**from_json(body), "model": model})


def guided_in(body: bytes) -> str:
    """Return the first of vLLM's older words among a shape's fields; empty: there is none."""
    if b'"guided_' not in body:
        return ""
    fields = from_json(body)
    return next((name for name in _GUIDED if fields.get(name) is not None), "")
