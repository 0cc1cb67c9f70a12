"""``read_rows``: the rows of a file for Python."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import BinaryIO

from batchclient.errors import ConfigError
from batchclient.jobs.rows import Row
from batchclient.jobs.source import Source

__all__ = ["read_rows"]


class _Rows(Iterable[Row]):
    """The rows of a file; each iteration opens the file anew."""

    def __init__(self, opening: partial[Source]) -> None:
        self._open = opening

    def __repr__(self) -> str:
        return f"<rows of {self._open.args[0]!r}>"

    def __iter__(self) -> Iterator[Row]:
        with self._open() as opened:
            yield from opened.read()


def read_rows(
    source: str | os.PathLike[str] | BinaryIO,
    *,
    format: str | None = None,  # noqa: A002  # the command line's name, too
    columns: Sequence[str] | None = None,
    shard: str | Sequence[int] | None = None,
    delimiter: str | None = None,
    escape: str | None = None,
    encoding: str | None = None,
) -> Iterable[Row]:
    r"""Read a file of rows: JSONL, text, CSV or TSV, also packed; Parquet or Arrow; or several.

    The rows are for ``batch_map`` and ``stream_map``, or for a loop of your own::

        rows = read_rows("docs.csv", columns=["id", "text"])
        async for result in client.stream_map(rows, "Summarise: {text}"):
            ...

    An unusable row does not end the reading. Its ``fault`` says why, with the line. A map yields
    that row with a ``BadRow`` error, because asking the row for a field raises one.

    Args:
        source: a path; a folder, or a pattern such as ``"data/*.parquet"``; a URL
            of fsspec's (``s3://``, ``gs://``, ``hf://``, extra ``data``), whose reading waits;
            ``"-"``, which is standard input; or a file that is open for reading bytes, which stays
            open.
        format: ``"jsonl"`` (an object per line), ``"text"`` (a line is a row with one field,
            ``text``), ``"csv"`` (with a header; values are texts, and ``None`` where a field is
            empty), ``"parquet"`` or ``"arrow"`` (by pyarrow, extra ``data``). By default the first
            bytes or the ending decide, also before ``.gz`` or that of bzip2, xz or zstd; then the
            first line.
        columns: the fields of a row. A row without one of them is unusable; a table must have them
            all, and of Parquet only they are read. By default a row has the fields that are there.
        shard: the part of the file to read, ``"0/8"`` to ``"7/8"`` or ``(0, 8)`` to ``(7, 8)``. The
            parts are disjoint, and together they are the file.
        delimiter: between the fields of CSV, by default what the header has: comma, tab, semicolon.
        escape: a character that takes the next one's meaning in CSV, such as a backslash.
        encoding: a codec of Python's, such as ``"cp1252"``; by default UTF-8, or UTF-16 or UTF-32
            with a byte-order mark.

    Returns:
        An iterable of ``Row``, which are dicts. A path is opened anew for each iteration. Standard
        input is read where rows are asked for, which may wait.

    Raises:
        ConfigError: an argument is wrong, or the file has no form that is read here; or there is
            no file, or there are files of several forms, in a folder or of a pattern.
        OSError: the file cannot be opened; while iterating, it cannot be read any further.
    """
    path = os.fspath(source) if isinstance(source, (str, os.PathLike)) else None
    if path == "":
        raise ConfigError("source is an empty path", field="source")
    if path is None and not callable(getattr(source, "read", None)):
        raise ConfigError(f"source is a path or an open file, not a {type(source).__name__}", field="source")
    opening = partial(
        Source,
        source,
        format,
        columns=columns,
        shard=shard,
        delimiter=delimiter,
        escape=escape,
        encoding=encoding,
    )
    # The header, the columns and the form are refused here, not in the middle of a job. A pipe is
    # left alone: opening it may wait, and what was read could not be read again.
    may_wait = path is not None and Path(path).exists() and not (Path(path).is_file() or Path(path).is_dir())
    if path is not None and path != "-" and not may_wait:
        with opening() as opened:
            opened.first()
    return _Rows(opening)
