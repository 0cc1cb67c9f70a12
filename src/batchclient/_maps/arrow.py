"""Tables with Arrow's stream as documents: a dict per row, lazily. pandas, polars, DuckDB have it.

pyarrow is imported only where such a table, or a file of that kind, is read.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Iterator, Mapping
from typing import Any, Protocol, TypeAlias

from batchclient._calls.tables import refuse_frame
from batchclient.errors import ConfigError

__all__ = ["ArrowTable", "Documents", "documents_of", "pyarrow_for", "rows_of_batch"]

_ROWS_AT_ONCE = 256


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
        import pyarrow.compute  # loads it
    except ImportError:
        raise ConfigError(f"{what} needs pyarrow: pip install 'batchclient[data]'", field=field) from None
    return pa


def documents_of(docs: Any) -> Iterable[Any] | AsyncIterable[Any]:
    """Return what to iterate over: the rows of a table, or the argument itself.

    Raises:
        ConfigError: the argument is nothing to map, or a table that cannot be read.
    """
    kind = type(docs)
    is_series = isinstance(docs, Iterable) and not (hasattr(kind, "columns") or hasattr(kind, "schema"))
    if hasattr(kind, "__arrow_c_stream__") and not is_series:
        return _rows_of(pyarrow_for(f"docs is a {kind.__name__}, which", "docs").RecordBatchReader.from_stream(docs))
    refuse_frame(docs, "docs")
    if isinstance(docs, (str, bytes, Mapping)) or not isinstance(docs, (Iterable, AsyncIterable)):
        raise ConfigError(f"docs is an iterable of documents, not a {kind.__name__}", field="docs")
    return docs


def _rows_of(batches: Iterable[Any]) -> Iterator[dict[str, Any]]:
    for batch in batches:
        yield from rows_of_batch(batch)


def rows_of_batch(batch: Any) -> Iterator[dict[str, Any]]:
    """Yield the rows of a record batch, as values of Python.

    Times in nanoseconds become microseconds, or texts where that would lose something.
    """
    arrow = pyarrow_for("a table")
    for place, field in enumerate(batch.schema):
        if getattr(field.type, "unit", None) == "ns":
            column = batch.column(place)
            try:
                column = column.cast(_micro(arrow, field.type))
            except arrow.ArrowInvalid:
                column = arrow.compute.replace_substring(column.cast(arrow.string()), " ", "T")
            batch = batch.set_column(place, field.name, column)
    for start in range(0, batch.num_rows, _ROWS_AT_ONCE):
        yield from batch.slice(start, _ROWS_AT_ONCE).to_pylist()


def _micro(arrow: Any, kind: Any) -> Any:
    if arrow.types.is_timestamp(kind):
        return arrow.timestamp("us", kind.tz)
    return arrow.time64("us") if arrow.types.is_time(kind) else arrow.duration("us")
