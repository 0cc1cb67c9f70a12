"""Results to lines of bytes, the faults of rows, and their ids. No files here, and no client.

Rules:
- An unusable row fails with its own message. The job goes on; the row of the output is
  ``{"line": N, "error": {…}}``.
- A row of the output has the fields of the input and the fields added by the call (``ADDED_BY``).
  A field of the input keeps its name: the added one of that name begins with ``answer_``.
- A row's own ``id`` stays as it stands, empty or ``null`` too. A row without one gets the map's.
  With ``--id COLUMN`` that column is the id, and there is no other.
- A field of the answer that a parameter asks for is written where the server sends it
  (``ASKED_FOR``).
- ``--answer-field NAME`` is the name of the answer itself, and begins the other added names:
  ``NAME_usage``. So the output of one job may be the input of the next.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from batchclient._maps.fields import encode
from batchclient._maps.kinds import message_of
from batchclient._maps.occurrences import Occurrences
from batchclient._maps.row import own_id_of
from batchclient._maps.row_calls import RowCall
from batchclient.jobs import BadRow, Row
from batchclient.types import Completion, Embedding, MapResult

__all__ = ["ADDED", "ADDED_BY", "Ids", "Names", "added_by", "blame", "fields_of_row", "id_and", "to_line"]

ADDED = ("completion", "finish_reason", "health", "usage", "error")
"""The fields added, beside ``id``, where each row is completed."""
ADDED_BY: Mapping[str, tuple[str, ...]] = {
    "complete": ADDED,
    "chat": (*ADDED, "message"),
    "embed": ("embedding", "usage", "error"),
    "classify": ("label", "probabilities", "usage", "error"),
    "score": ("score", "results", "usage", "error"),
    "rerank": ("results", "usage", "error"),
}
"""The added fields by call."""
ASKED_FOR: Mapping[str, str] = {
    "logprobs": "logprobs",
    "prompt_logprobs": "prompt_logprobs",
    "return_token_ids": "token_ids",
    "n": "choices",
}
"""The fields that parameters of generating calls add, by the parameters' names."""


_ANSWERS = ("completion", "embedding", "label", "score")
_PROBABILITY = "probability_"
"""Begins the name of the column of a label."""


@dataclass(frozen=True, slots=True)
class Names:
    """How the fields of ``OUT`` are called.

    Args:
        answer_field: the name of the answer, which begins the other added names, too.
        id: the column of the input that has the rows' ids; ``None``: it is ``id``, and added.
        taken: of the added names those that the input has. ``None``: the job began when such an
            input was refused, and ``OUT`` had no ``health``.
    """

    answer_field: str | None = None
    id: str | None = None
    taken: frozenset[str] | None = frozenset()

    def of(self, added: Iterable[str]) -> dict[str, str]:
        """Return the names in ``OUT`` of added fields, by their own."""
        names = [name for name in added if self.taken is not None or name != "health"]
        if self.answer_field is None:
            return {name: self.free(name) for name in names}
        return {name: self.free(each) for name, each in _renamed(names, self.answer_field).items()}

    def free(self, name: str, row: Collection[str] = ()) -> str:
        """Return an added name that neither the input nor the row has."""
        return f"answer_{name}" if name in (self.taken or ()) or name in row else name


def added_by(call: str, params: Mapping[str, Any], *, is_table: bool = False) -> tuple[str, ...]:
    """Return the fields that a call with these parameters may add; ``logprobs=0`` asks, too.

    ``is_table``: the probabilities of labels have a column each.
    """
    asked = [name for name in ASKED_FOR if (value := params.get(name)) is not None and value is not False]
    names = [*ADDED_BY[call], *(ASKED_FOR[name] for name in asked if name != "n" or params[name] != 1)]
    if (labels := params.get("labels")) is not None:
        names.append("label")
        if params.get("probabilities"):
            names += [f"{_PROBABILITY}{label}" for label in (*labels, "other")] if is_table else ["probabilities"]
    return tuple(names)


def _renamed(names: Collection[str], answer_field: str) -> dict[str, str]:
    """Return the names of the added fields by those without ``--answer-field``; one is the answer's."""
    answer = next((name for name in _ANSWERS if name in names), None)
    return {name: answer_field if name == answer else f"{answer_field}_{name}" for name in names}


def blame(
    read: Callable[[Row], RowCall], columns: Collection[str] = (), id_column: str | None = None
) -> Callable[[Row], RowCall]:
    """Wrap the reader of calls: faulty rows fail with their own message.

    Args:
        read: from a row to its call.
        columns: the fields that a row must have.
        id_column: the field that has to be an id; ``None``: none has.
    """

    def call_of(row: Row) -> RowCall:
        if row.fault is not None:
            raise BadRow(row.fault)
        for name in columns:
            if name not in row:
                raise BadRow(f"{row.where} has no field {name!r}")
        if id_column is not None and own_id_of(row, id_column) is None:
            raise BadRow(f"{row.where} has no id in {id_column!r}: an id is a text or a whole number")
        return read(row)

    return call_of


class Ids:
    """Tells rows whose id an earlier row has.

    Args:
        most: ids that are remembered with their places. Of the others 14 to 26 bytes are kept each,
            and a repeat is told without the first one's line.
        column: that has the ids; ``None``: it is called ``id``.
    """

    def __init__(self, most: int = 10_000, column: str | None = None) -> None:
        self._most = most
        self._column = column
        self._places: dict[int, str] = {}
        self._others = Occurrences(), Occurrences()

    def __repr__(self) -> str:
        return f"<Ids: {len(self._places)}>"

    def repeated(self, row: Row) -> str | None:
        """Take in a row; return what is to be said of it, if an earlier row has its id."""
        own = own_id_of(row, self._column)
        if own is None:
            return None
        key = hash(own) & 0xFFFFFFFFFFFFFFFF
        place = self._places.get(key)
        if place is None and len(self._places) < self._most:
            self._places[key] = row.where
        elif place is not None or min(each.number(hash((key, n))) for n, each in enumerate(self._others)):
            first = f"after line {self._most:,}" if place is None else f"in {place}"
            return f"{row.where} has the id of the row {first}"
        return None


def id_and(columns: Collection[str], id_column: str | None = None) -> Collection[str]:
    """Return the names of columns in their order, and before them the id's, if it is not among them."""
    name = id_column or "id"
    return columns if name in columns else (name, *columns)


def to_line(result: MapResult, *, columns: Collection[str] | None = None) -> bytes:
    """Write a result as one line of JSON, with ``fields_of_row``."""
    return encode(fields_of_row(result, columns=columns)) + b"\n"


def fields_of_row(
    result: MapResult,
    *,
    columns: Collection[str] | None = None,
    names: Names = Names(),
    values: Callable[[str], dict[str, Any]] | None = None,
    other: str | None = None,
    raw: bool = False,
) -> dict[str, Any]:
    """Return the fields of a row of the output.

    Args:
        result: of a row.
        columns: the fields to keep beside the id; ``None``: all.
        names: of the added fields.
        values: makes further fields of an answer's text; ``None``: there are none.
        other: the column of a table for what has no other; ``None``: it is no table.
        raw: leave a vector as the array that it is.
    """
    row: Row = result.document
    if row.fault is not None:
        (error,) = names.of(["error"]).values()
        place: dict[str, Any] = {"file": row.file, "line": row.line} if row.file else {"line": row.line}
        # A column of the user's may be called line.
        return {**(place if other is None else {other: place}), error: {"type": BadRow.__name__, "message": row.fault}}
    fields = dict(row) if columns is None else {name: row[name] for name in id_and(columns, names.id) if name in row}
    if names.id is None and "id" not in fields:
        fields["id"] = result.id
    answer = result.answer
    told = answer.as_dict(raw=True) if raw and isinstance(answer, Embedding) else answer.as_dict() if answer else {}
    if other is not None and isinstance(answer, Completion) and "probabilities" in told:
        told |= {f"{_PROBABILITY}{label}": number for label, number in told.pop("probabilities").items()}
    if result.error is not None:
        told = {"error": {"type": type(result.error).__name__, "message": message_of(result)}}
        # An answer that does not fit says why.
        told |= {} if result.health is None else {"health": result.health}
    # A row that adds more than the others do, by parameters of its own, may have such a field.
    added = {names.free(name, fields): told[each] for each, name in names.of(told).items()}
    if values is not None and isinstance(answer, Completion):
        added |= values(answer.text)
    return fields | added
