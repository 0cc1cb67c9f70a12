"""Rows of Parquet and of Arrow's IPC files and streams, by pyarrow.

Rules:
- Rows have values of Python: ``datetime``, ``Decimal``, ``bytes``. ``OUT`` says how it writes them.
  Of a value that these may not hold as it is, the row knows the cell in the table, too.
- Columns that nobody asks for are not read. A batch of Parquet holds about 256 KiB.
- A row with a value that Python cannot hold is unusable, unless nobody uses the column: then it has
  ``None`` there. Reading goes on.
- A shard is a range of rows; only the row groups, or batches, that have them are read.
"""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from itertools import accumulate
from typing import Any

from batchclient._client.parts import Shard
from batchclient._maps.arrow import PartialRow, pyarrow_for, rows_of_batch
from batchclient.errors import ConfigError
from batchclient.jobs.csv_rows import distinct
from batchclient.jobs.rows import Row

__all__ = ["count_of_parquet", "rows_of_arrow", "rows_of_parquet"]

_BATCH_BYTES = 256 * 1024
_ROWS_OF_BATCH = 1024
_PLAIN = {"bool", "string", "large_string", "float", "double"} | {
    f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)
}
"""Types whose values Python has exactly: for these no table stays in memory."""


Choose = Callable[[Any], list[str]]
"""Which of a table's columns are read, by its schema."""


def count_of_parquet(file: Any, shard: Shard | None) -> int:
    """Return the number of rows of a Parquet file, or of its shard."""
    with _opened(file) as opened:
        _, _, start, end = _cut([opened.metadata.num_rows], shard)
    return end - start


def rows_of_parquet(
    file: Any, choose: Choose, shard: Shard | None, used: Collection[str] | None = None
) -> Iterator[Row]:
    """Yield the rows of a Parquet file.

    Args:
        file: a path, or a file with ``seek``.
        choose: the columns.
        shard: the part to read.
        used: the columns without whose values a row is unusable; ``None``: all.

    Raises:
        ConfigError: a column is not there, or pyarrow is not.
        OSError: the file is damaged, or no Parquet.
    """
    with _opened(file) as opened:
        groups = [opened.metadata.row_group(place) for place in range(opened.num_row_groups)]
        places, first, start, end = _cut([group.num_rows for group in groups], shard)
        columns = choose(opened.schema_arrow)
        if not places:
            return
        width = max(groups[place].total_byte_size / max(1, groups[place].num_rows) for place in places)
        size = int(max(1, min(_ROWS_OF_BATCH, _BATCH_BYTES / max(1, width))))
        names = opened.schema_arrow.names
        asked = columns if distinct(names) == names else None  # which knows a column by its own name alone
        batches = opened.iter_batches(size, row_groups=places, columns=asked, use_threads=False)
        yield from _rows_of(batches, columns, used, first, start, end)


def rows_of_arrow(
    file: Any, choose: Choose, shard: Shard | None, used: Collection[str] | None = None, *, is_stream: bool
) -> Iterator[Row]:
    """Yield the rows of Arrow's IPC form: of a file, or of a stream, which has no shards.

    The arguments and errors are those of ``rows_of_parquet``.
    """
    arrow = pyarrow_for("Arrow")
    with _said():
        if is_stream:
            stream = arrow.ipc.open_stream(file)
            yield from _rows_of(stream, choose(stream.schema), used)
            return
        # Of a file that is the user's, nothing is closed.
        with arrow.memory_map(file) if isinstance(file, str) else nullcontext(file) as mapped:
            opened = arrow.ipc.open_file(mapped)
            columns = choose(opened.schema)
            places: Sequence[int] = range(opened.num_record_batches)
            first, start, end = 0, 0, sys.maxsize
            if shard is not None:
                places, first, start, end = _cut([opened.get_batch(place).num_rows for place in places], shard)
            yield from _rows_of(map(opened.get_batch, places), columns, used, first, start, end)


@contextmanager
def _said() -> Iterator[None]:
    """Turn what pyarrow says of bytes that it cannot read into one line."""
    try:
        yield
    except ConfigError:
        raise
    except (ValueError, OSError, NotImplementedError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise OSError(errno.EIO, f"damaged, or of another form: {str(error).splitlines()[0]:.200}") from None


@contextmanager
def _opened(file: Any) -> Iterator[Any]:
    pyarrow_for("Parquet")
    from pyarrow.parquet import ParquetFile

    with _said(), ParquetFile(file, buffer_size=_BATCH_BYTES, pre_buffer=False) as opened:
        yield opened


def _cut(counts: Sequence[int], shard: Shard | None) -> tuple[list[int], int, int, int]:
    """Cut a shard out of pieces that have so many rows.

    Returns:
        The pieces that have rows of the shard, the number of the first piece's first row, and the
        numbers of the shard's first row and of the one behind its last.
    """
    edges = [0, *accumulate(counts)]
    part, parts = shard or (0, 1)
    start, end = edges[-1] * part // parts, edges[-1] * (part + 1) // parts
    places = [place for place in range(len(counts)) if edges[place] < end and start < edges[place + 1]]
    return places, edges[places[0]] if places else 0, start, end


def _rows_of(
    batches: Iterable[Any],
    columns: list[str],
    used: Collection[str] | None,
    first: int = 0,
    start: int = 0,
    end: int = sys.maxsize,
) -> Iterator[Row]:
    """Yield the rows from ``start`` to ``end`` of batches, whose first row has the number ``first``."""
    for batch in batches:
        begin = max(first, start)
        wanted = batch.slice(begin - first, max(0, min(end, first + batch.num_rows) - begin))
        first += batch.num_rows
        wanted = wanted.rename_columns(distinct(wanted.schema.names)).select(columns)
        kinds = zip(wanted.schema.names, wanted.schema.types, strict=True)
        kept = wanted.select([name for name, kind in kinds if str(kind) not in _PLAIN])
        for place, fields in enumerate(rows_of_batch(wanted)):
            if isinstance(fields, PartialRow):
                why = next((why for name, why in fields.faults.items() if used is None or name in used), None)
                row = Row({name: fields.get(name) for name in columns} if why is None else (), begin + 1 + place, why)
                row.cells = wanted, place
            else:
                row = Row(fields, begin + 1 + place)
                row.cells = (kept, place) if kept.num_columns else None
            yield row
    if first < end < sys.maxsize:  # pyarrow takes the end of a file that was cut meanwhile for that of its rows
        raise OSError(f"it ended after {first:,} of {end:,} rows")
