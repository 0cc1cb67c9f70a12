"""Tables with Arrow's stream as documents: a dict per row, lazily. pandas, polars, DuckDB have it.

pyarrow is imported only where such a table, or a file of that kind, is read.
"""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterable, Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Protocol, TypeAlias

from batchclient._calls.tables import refuse_frame
from batchclient.errors import ConfigError

__all__ = ["INDEX", "ArrowTable", "Documents", "PartialRow", "documents_of", "pyarrow_for", "rows_of_batch"]

_ROWS_AT_ONCE = 256
INDEX = "__index_level_"
"""The beginning of an index without a name, which pandas adds to a frame's columns."""


class ArrowTable(Protocol):
    """A table that Arrow's PyCapsule interface gives: pandas', polars', pyarrow's, DuckDB's."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


Documents: TypeAlias = Iterable[Any] | AsyncIterable[Any] | ArrowTable


def pyarrow_for(what: str, field: str | None = None) -> Any:
    """Import pyarrow.

    Args:
        what: needs it.
        field: the argument's name, for the error.

    Raises:
        ConfigError: pyarrow is not installed.
    """
    try:
        import pyarrow as pa
    except ImportError:
        raise ConfigError(f"{what} needs pyarrow, of the extra batchclient[data]", field=field) from None
    return pa


def documents_of(docs: Any, name: str = "docs") -> Iterable[Any] | AsyncIterable[Any]:
    """Return what to iterate over: the rows of a table, or the argument itself.

    ``name`` is the argument's, for errors.

    Raises:
        ConfigError: the argument is nothing to map, or a table that cannot be read.
    """
    kind = type(docs)
    is_series = isinstance(docs, Iterable) and not (hasattr(kind, "columns") or hasattr(kind, "schema"))
    if hasattr(kind, "__arrow_c_stream__") and not is_series:
        return _rows_of(pyarrow_for(f"{name} is a {kind.__name__}, which", name).RecordBatchReader.from_stream(docs))
    refuse_frame(docs, name)
    if isinstance(docs, (str, bytes, Mapping)) or not isinstance(docs, (Iterable, AsyncIterable)):
        raise ConfigError(f"{name} is an iterable of documents, not a {kind.__name__}", field=name)
    return docs


def _rows_of(batches: Iterable[Any]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        names = batch.schema.names
        yield from rows_of_batch(batch.select([n for n, name in enumerate(names) if not name.startswith(INDEX)]))


class PartialRow(dict[str, Any]):
    """A row with values that Python cannot hold; asking for one of them says so."""

    __slots__ = ("faults",)
    faults: dict[str, str]
    """What the row has instead, by the columns' names."""

    def __missing__(self, name: str) -> Any:
        raise ConfigError(f"the document {self.faults[name]}", field=name)


def rows_of_batch(batch: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a record batch, as values of Python. One that lacks values is a ``PartialRow``.

    Times that have nanoseconds become ISO texts, lengths of such time seconds, and values of
    ``arrow.json`` what their JSON says.
    """
    arrow = pyarrow_for("a table")
    readers = [(field.name, read) for field in batch.schema if (read := _json_in(arrow.types, field.type))]
    for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
        part = batch.slice(start, _ROWS_AT_ONCE)
        try:
            rows = part.to_pylist()
        except Exception:  # pyarrow raises errors of many classes
            rows = [_row_of(arrow, part, place) for place in range(part.num_rows)]
        for row in rows:
            for name, read in readers:
                if name in row:
                    row[name] = read(row[name])
            yield row


def _json_in(types: Any, kind: Any) -> Callable[[Any], Any] | None:
    """Return what reads the JSON in values of a type; ``None``: there is none."""
    if getattr(kind, "extension_name", "") == "arrow.json":
        return _read_json
    if types.is_struct(kind):
        parts = {field.name: read for field in kind if (read := _json_in(types, field.type))}
        return partial(_read_fields, parts) if parts else None
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        read = _json_in(types, kind.value_type)
        return None if read is None else lambda values: values and [read(each) for each in values]
    return None


def _read_fields(parts: Mapping[str, Callable[[Any], Any]], fields: Any) -> Any:
    return fields and fields | {name: read(fields[name]) for name, read in parts.items()}


def _read_json(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value


def _row_of(arrow: Any, batch: Any, place: int) -> dict[str, Any]:
    row = PartialRow()
    row.faults = {}
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        try:
            row[name] = _value_of(arrow, column[place])
        except Exception as error:  # as above; its words may have the value
            why = f"that Python cannot hold ({type(error).__name__})"
            row.faults[name] = f"has a {column.type!s:.60} in column {name!r:.60} {why}"
    return row if row.faults else dict(row)


def _value_of(arrow: Any, scalar: Any) -> Any:
    if getattr(scalar.type, "unit", None) != "ns" or not scalar.is_valid or scalar.value % 1000 == 0:
        return scalar.as_py()
    if arrow.types.is_duration(scalar.type):
        return scalar.value / 1e9
    text = scalar.cast(arrow.string()).as_py().replace(" ", "T").replace("Z", "+00:00")
    return re.sub(r"([+-]\d\d)(\d\d)$", r"\1:\2", text)
