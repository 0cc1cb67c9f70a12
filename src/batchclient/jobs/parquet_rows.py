"""Rows to Parquet, by pyarrow: typed columns that do not depend on what becomes of the rows.

Rules:
- Columns of Parquet and Arrow keep their types, and their values are as they stand in the table,
  also where Python has no such value. A type that Parquet has not is JSON as a text.
- Columns of CSV and text are texts. Of JSONL the first 256 rows tell: booleans, whole numbers,
  numbers, texts and lists of one of these have a type; anything else is JSON as a text.
- A value that does not fit its column, or has none, is in ``other_fields``. Nothing is rounded, cut
  or turned into another kind of value to make it fit.
- Vectors are lists of a fixed size, that of the first one. Rows before it wait; where 65,536 rows
  have had none, lists may have any length.
- A row group has about 4 MiB: memory does not grow with the file.
- Columns are made, and packed, in the thread that writes them: pyarrow takes seconds for its first
  array where pandas is installed.
"""

from __future__ import annotations

import io
from array import array
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import date, timedelta
from functools import partial
from itertools import zip_longest
from typing import Any

from batchclient._maps.arrow import INDEX, pyarrow_for
from batchclient._maps.fields import encode
from batchclient.jobs.csv_rows import distinct
from batchclient.jobs.forms import Fields, Work, Writer
from batchclient.jobs.source import Source
from batchclient.types import MapResult

__all__ = ["ParquetRows", "columns_of"]

_GROUP_BYTES = 4 * 1024 * 1024
_BATCH_BYTES = 1024 * 1024
_BATCH_ROWS = 1024
_WAITING_ROWS = 65536
_VECTOR = "vector"
_JSON = "json"
_LIST = "list"
_Cell = tuple[Any, int]
"""A record batch, and the place of a row there."""
_NO_VALUE = (ValueError, TypeError, OverflowError, NotImplementedError)
"""What pyarrow raises for a value that a column cannot have."""
_SCALARS = {bool: "bool_", int: "int64", float: "float64", str: "string"}


def columns_of(source: Source, *, is_typed: bool) -> dict[str, Any]:
    """Return the names of the columns for an input's fields, with their types, if they are typed."""
    rows = source.ahead()
    if source.schema is not None:
        types = zip(distinct(source.schema.names), source.schema.types, strict=True)
        return {name: kind for name, kind in types if not name.startswith(INDEX)}
    kinds: dict[str, set[str]] = {}
    for row in rows:
        for name, value in row.items():
            kinds.setdefault(name, set()).update({"string"} if source.form != "jsonl" else _kinds_of(value))
    return {name: _type_of(seen) if is_typed else None for name, seen in kinds.items()}


def _kinds_of(value: Any) -> set[str]:
    if type(value) is list:
        inner: set[str] = set().union(*map(_kinds_of, value))
        return {_JSON} if _JSON in inner or _LIST in inner else {_LIST, *inner}
    return set() if value is None else {_SCALARS.get(type(value), _JSON)}


def _type_of(kinds: set[str]) -> Any:
    """Return the type of a column with values of these kinds. A list is told with what it holds."""
    arrow = pyarrow_for("Parquet")
    held = kinds - {_LIST}
    if held == {"int64", "float64"}:
        held = {"float64"}
    if len(held) > 1 or _JSON in held:
        return _JSON
    kind = getattr(arrow, next(iter(held), "string"))()
    return arrow.list_(kind) if _LIST in kinds else kind


def _typed(kind: Any) -> Any:
    """Return the type of an answer's property."""
    arrow = pyarrow_for("Parquet")
    if kind == _JSON:
        return _JSON
    if isinstance(kind, dict):
        return arrow.struct([(name, _typed(each)) for name, each in kind.items()])
    return arrow.list_(_typed(kind[0])) if isinstance(kind, list) else getattr(arrow, kind)()


def _added(name: str) -> Any:
    """Return the type of a field that an answer adds."""
    arrow = pyarrow_for("Parquet")
    whole, text = arrow.int64(), arrow.string()
    tokens, are_estimated = ("prompt_tokens", "completion_tokens"), arrow.bool_()
    usage = [(each, whole) for each in (*tokens, "reasoning_tokens")]
    usage += [(f"{each}_estimated", are_estimated) for each in tokens]
    types = {
        "completion": text,
        "finish_reason": text,
        "health": text,
        "label": text,
        "score": arrow.float64(),
        "usage": arrow.struct(usage),
        "error": arrow.struct([("type", text), ("message", text)]),
        "embedding": _VECTOR,
        "probabilities": arrow.list_(arrow.float64()),
        "token_ids": arrow.list_(whole),
    }
    return arrow.float64() if name.startswith("probability_") else types.get(name, _JSON)


class ParquetRows(Writer):
    """A Parquet file.

    Args:
        fields: of a row, a vector as the array that it is.
        types: of the input's columns, by their names; ``None``: a text.
        added: the name of each field that an answer adds, and the name by which its type is known.
        other: the name of the column for what has no other.
        schema: of the input's table, whose metadata stay; ``None``: it is none.
        answers: the types of an answer's properties, by their names: Arrow's name of one, a list of
            a type, types by name, or ``"json"``.

    Raises:
        ConfigError: pyarrow is not installed.
    """

    def __init__(
        self,
        fields: Fields,
        types: Mapping[str, Any],
        added: Mapping[str, str],
        other: str,
        schema: Any = None,
        *,
        answers: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(fields)
        self._arrow = pyarrow_for("Parquet")
        self._types: dict[str, Any] = {name: _text() if kind is None else kind for name, kind in types.items()}
        of_answers = {name: _typed(kind) for name, kind in (answers or {}).items()}
        self._added = added.keys() | of_answers.keys()
        self._types |= of_answers
        self._types |= {name: _added(known) for name, known in added.items()}
        self._vector = next((name for name, kind in self._types.items() if kind is _VECTOR), None)
        self._columns: dict[str, _Column] = {}
        self._rows: list[dict[str, Any]] = []
        self._cells: list[_Cell | None] = []
        self._other = other
        self._schema_in = schema
        self._is_begun = False
        self._bytes = 0
        self._batches: list[Any] = []
        self._sink = io.BytesIO()
        self._writer: Any = None

    def add(self, result: MapResult) -> bytes | Work:
        fields = self._fields(result)
        self._rows.append(fields)
        self._cells.append(result.document.cells)
        self._bytes += sum(len(value) for value in fields.values() if isinstance(value, (str, bytes, list, array)))
        if not self._is_begun:
            vector = fields.get(self._vector) if self._vector is not None else None
            if self._vector is not None and vector is None and len(self._rows) < _WAITING_ROWS:
                return b""
            self._is_begun = True
            return self._packing(partial(self._begin, vector))
        if len(self._rows) >= _BATCH_ROWS or self._bytes >= _BATCH_BYTES:
            return self._packing()
        return b""

    def end(self) -> Work:
        return self._packing((lambda: None) if self._is_begun else partial(self._begin, None), is_last=True)

    def _packing(self, before: Callable[[], None] = lambda: None, *, is_last: bool = False) -> Work:
        """Return what makes columns of the rows taken, and bytes of the columns."""
        rows, self._rows, self._bytes = self._rows, [], 0
        cells, self._cells = self._cells, []

        def pack() -> bytes:
            before()
            self._pack(rows, cells)
            if is_last or sum(batch.nbytes for batch in self._batches) >= _GROUP_BYTES:
                self._write()
            if is_last:
                self._writer.close()
            return self._taken()

        return pack

    def _taken(self) -> bytes:
        """Take away what pyarrow has written, which counts its place in the file itself."""
        data = self._sink.getvalue()
        self._sink.seek(0)
        self._sink.truncate()
        return data

    def _begin(self, vector: Any) -> None:
        """Settle the columns, by the length of the first vector."""
        from pyarrow.parquet import ParquetWriter

        arrow = self._arrow
        if self._vector is not None:
            size = () if vector is None else (len(vector),)
            self._types[self._vector] = arrow.list_(arrow.float32(), *size)
        self._columns = {name: _Column(arrow, kind) for name, kind in self._types.items()}
        given, columns = self._schema_in, self._columns.items()
        told = {} if given is None else dict(zip(distinct(given.names), given, strict=True))
        own = {name: told[name].metadata for name, each in columns if name in told and told[name].type == each.kind}
        fields = [arrow.field(name, each.kind, metadata=own.get(name)) for name, each in columns]
        metadata = None if given is None else given.metadata
        self._schema = arrow.schema([*fields, arrow.field(self._other, _text())], metadata=metadata)
        self._writer = ParquetWriter(self._sink, self._schema)

    def _pack(self, rows: list[dict[str, Any]], cells: list[_Cell | None]) -> None:
        """Turn rows into a batch of columns."""
        tables = {id(each[0]): each[0] for each in cells if each is not None}.values()
        of_tables = {name for table in tables for name in table.schema.names} - self._added
        others = [
            row.pop(self._other, {}) | {name: _of_json(row[name]) for name in row if name not in self._columns}
            for row in rows
        ]
        arrays = []
        for name, column in self._columns.items():
            values = [row.get(name) for row in rows]
            made, misfits = column.array(name, values, cells if name in of_tables else ())
            arrays.append(made)
            for place in misfits:
                others[place][name] = _of_json(values[place])
        arrays.append(self._arrow.array([encode(each).decode() if each else None for each in others], _text()))
        if rows:
            self._batches.append(self._arrow.record_batch(arrays, schema=self._schema))

    def _write(self) -> None:
        """Write the batches as a row group."""
        if self._batches:
            table = self._arrow.Table.from_batches(self._batches).combine_chunks()
            self._batches = []  # before the columns are encoded: both take memory
            self._writer.write_table(table)


def _text() -> Any:
    return pyarrow_for("Parquet").string()


def _of_json(value: Any) -> Any:
    return value.tolist() if isinstance(value, array) else value


class _Column:
    """Makes an array of a column's values.

    Args:
        arrow: the library.
        kind: the type; ``"json"`` for values of any kind, as JSON.
    """

    def __init__(self, arrow: Any, kind: Any) -> None:
        self._arrow = arrow
        self._is_json = kind is _JSON or not _is_of_parquet(arrow, kind)
        self.kind = _text() if self._is_json else kind
        self._fits = _fitting(arrow.types, self.kind)

    def array(self, name: str, values: list[Any], cells: Sequence[_Cell | None]) -> tuple[Any, list[int]]:
        """Return the array, and the places of the values that do not fit, which are null there.

        Args:
            name: of the column.
            values: of the rows.
            cells: where the rows are in tables that have the column; empty: they are in none.
        """
        if self._is_json:
            values = [None if value is None else encode(value).decode() for value in values]
        fitting = [value if value is None or self._fits(value) else None for value in values]
        if not cells:
            with suppress(*_NO_VALUE):
                return self._made(fitting), [n for n, value in enumerate(values) if value is not fitting[n]]
        pieces = [self._alone(name, *each) for each in zip_longest(fitting, cells)]
        misfits = [n for n, piece in enumerate(pieces) if values[n] is not None and piece.null_count]
        return self._arrow.concat_arrays(pieces), misfits

    def _alone(self, name: str, value: Any, cell: _Cell | None) -> Any:
        """Return an array of one value: the cell as it stands, if its column has the same type."""
        if cell is not None and not self._is_json:
            table, place = cell
            column = table.schema.get_field_index(name)
            if column >= 0 and table.schema.field(column).type == self.kind:
                return table.column(column).slice(place, 1)
        with suppress(*_NO_VALUE):
            return self._made([value])
        return self._made([None])

    def _made(self, values: list[Any]) -> Any:
        arrow, kind = self._arrow, self.kind
        first = next((value for value in values if value is not None), None)
        if first is None:
            return arrow.nulls(len(values), kind)  # of any type, also where Python has no value of it
        return self._vectors(values) if isinstance(first, array) else arrow.array(values, kind)

    def _vectors(self, values: list[Any]) -> Any:
        arrow = self._arrow
        if not arrow.types.is_fixed_size_list(self.kind):
            return arrow.array(values, self.kind)
        size = self.kind.list_size
        missing = bytes(4 * size)
        data = b"".join([missing if value is None else value.tobytes() for value in values])
        numbers = arrow.Array.from_buffers(arrow.float32(), len(values) * size, [None, arrow.py_buffer(data)])
        mask = arrow.array([value is None for value in values])
        return arrow.FixedSizeListArray.from_arrays(numbers, type=self.kind, mask=mask)


def _is_of_parquet(arrow: Any, kind: Any) -> bool:
    from pyarrow.parquet import ParquetWriter

    try:
        ParquetWriter(arrow.BufferOutputStream(), arrow.schema({"it": kind})).close()
    except _NO_VALUE:
        return False
    return True


def _fitting(types: Any, kind: Any) -> Callable[[Any], bool]:
    """Return what tells whether a value is of a type: pyarrow takes 1.5 for a whole number."""
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        inner, size = _fitting(types, kind.value_type), getattr(kind, "list_size", None)
        return lambda value: (
            (isinstance(value, array) or (type(value) is list and all(each is None or inner(each) for each in value)))
            and size in (None, len(value))
        )
    if types.is_struct(kind):
        parts = {field.name: _fitting(types, field.type) for field in kind}
        return lambda value: (
            type(value) is dict
            and value.keys() <= parts.keys()
            and all(each is None or parts[name](each) for name, each in value.items())
        )
    for is_kind, wanted in (
        (types.is_boolean, (bool,)),
        (types.is_integer, (int,)),
        (types.is_floating, (float, int)),
        (lambda kind: types.is_string(kind) or types.is_large_string(kind), (str,)),
        (types.is_date, (date,)),
        (types.is_duration, (timedelta,)),
    ):
        if is_kind(kind):
            return lambda value: type(value) in wanted
    return lambda value: not isinstance(value, (dict, bool))
