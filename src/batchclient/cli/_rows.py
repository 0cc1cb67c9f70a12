"""Results to lines of bytes, and the faults of rows. No files here, and no client.

Rules:
- An unusable row fails with its own message. The job goes on; the row of the output is
  ``{"line": N, "error": {…}}``.
- A row of the output has the fields of the input and the fields added by the call (``ADDED_BY``).
  An input with an added field is at fault: two values have one name.
- A row's own ``id`` stays as it stands, empty or ``null`` too. A row without one gets the map's.
- A field of the answer that a parameter asks for is written where the server sends it
  (``ASKED_FOR``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from batchclient._maps.fields import asked_for, encode, fields_of
from batchclient.jobs import BadRow, Row
from batchclient.types import Completion, MapResult

__all__ = ["ADDED", "ADDED_BY", "added_by", "blame", "message_of", "to_line"]

ADDED = ("completion", "finish_reason", "usage", "error")
"""The fields added, beside ``id``, where each row is completed."""
ADDED_BY: Mapping[str, tuple[str, ...]] = {
    "complete": ADDED,
    "chat": (*ADDED, "message"),
    "embed": ("embedding", "usage", "error"),
    "classify": ("label", "probabilities", "usage", "error"),
}
"""The added fields by call."""
ASKED_FOR: Mapping[str, str] = {
    "logprobs": "logprobs",
    "prompt_logprobs": "prompt_logprobs",
    "return_token_ids": "token_ids",
}
"""The fields that parameters of generating calls add, by the parameters' names."""


def added_by(call: str, params: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the fields that a call with parameters of these names may add."""
    return (*ADDED_BY[call], *(ASKED_FOR[name] for name in params if name in ASKED_FOR))


def blame(render: Callable[[Any], Any], columns: Collection[str] = ()) -> Callable[[Row], Any]:
    """Wrap a prompt function: faulty rows fail with their own message.

    Args:
        render: from a row to its prompt.
        columns: the fields that a row must have.
    """

    def prompt_of(row: Row) -> Any:
        if row.fault is not None:
            raise BadRow(row.fault)
        for name in columns:
            if name not in row:
                raise BadRow(f"{row.where} has no field {name!r}")
        return render(row)

    return prompt_of


def to_line(result: MapResult, *, packed: bool = False, columns: Collection[str] | None = None) -> bytes:
    """Write a result as one line of JSON.

    Args:
        result: of a row.
        packed: write a vector as base64 of 32-bit floats, the lowest byte first.
        columns: the fields to keep beside ``id``; ``None``: all.
    """
    return encode(_fields(result, packed, columns)) + b"\n"


def _fields(result: MapResult, packed: bool, columns: Collection[str] | None) -> dict[str, Any]:  # noqa: FBT001
    row: Row = result.document
    if row.fault is not None:
        place = {"file": row.file, "line": row.line} if row.file else {"line": row.line}
        return {**place, "error": {"type": BadRow.__name__, "message": row.fault}}
    fields = dict(row) if columns is None else {name: row[name] for name in row if name in columns or name == "id"}
    if "id" not in fields:
        fields["id"] = result.id
    if result.error is not None:
        fields["error"] = {"type": type(result.error).__name__, "message": message_of(result)}
        return fields
    added = fields_of(result.answer, packed=packed)
    if isinstance(result.answer, Completion):
        # A row with a field of such a name has failed already, if the field was asked for.
        added |= {name: value for name, value in asked_for(result.answer).items() if name not in fields}
    return fields | added


def message_of(result: MapResult) -> str:
    """Return why a row failed. The library counts documents; a reader of the file counts lines."""
    return str(result.error).replace(f"document {result.index}: ", f"{result.document.where}: ", 1)
