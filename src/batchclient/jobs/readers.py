"""``read_rows``: the rows of a file for Python."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO

from batchclient.errors import ConfigError
from batchclient.jobs.other_files import advice_for_format
from batchclient.jobs.rows import FORMATS, Format, Row
from batchclient.jobs.shards import Shard, shard_from
from batchclient.jobs.source import Source, open_source

__all__ = ["columns_from", "form_from", "read_rows"]


class _Rows(Iterable[Row]):
    """The rows of a file; each iteration opens the file anew."""

    def __init__(
        self,
        source: str | os.PathLike[str] | BinaryIO,
        form: Format | None,
        columns: Sequence[str] | None,
        shard: Shard | None,
    ) -> None:
        self._source = source
        self._form = form
        self._columns = columns
        self._shard = shard
        # The header, the columns and the form are refused here, not in the middle of a job. A pipe
        # is left alone: opening it may wait, and what was read could not be read again.
        if isinstance(source, (str, os.PathLike)) and os.fspath(source) != "-" and not _is_pipe(source):
            with self._open() as opened:
                opened.first()

    def __repr__(self) -> str:
        return f"<rows of {self._source!r}>"

    def __iter__(self) -> Iterator[Row]:
        with self._open() as opened:
            yield from opened.read()

    def _open(self) -> Source:
        return open_source(self._source, self._form, columns=self._columns, shard=self._shard)


def read_rows(
    source: str | os.PathLike[str] | BinaryIO,
    *,
    format: str | None = None,  # noqa: A002  # the command line's name, too
    columns: Sequence[str] | None = None,
    shard: str | Sequence[int] | None = None,
) -> Iterable[Row]:
    """Read a file of rows: JSONL, text or CSV, also gzipped.

    The rows are for ``batch_map`` and ``stream_map``, or for a loop of your own:

        rows = read_rows("docs.csv", columns=["id", "text"])
        async for result in client.stream_map(rows, "Summarise: {text}"):
            ...

    An unusable row does not end the reading. Its ``fault`` says why, with the line. A map yields
    that row with a ``BadRow`` error, because asking the row for a field raises one.

    Args:
        source: a path; ``"-"``, which is standard input; or a file that is open for reading bytes,
            which stays open.
        format: ``"jsonl"`` (an object per line), ``"text"`` (a line is a row with one field,
            ``text``) or ``"csv"`` (with a header; values are texts, and ``None`` where a field is
            empty). By default the ending decides: ``.jsonl``, ``.ndjson``, ``.txt``, ``.csv``, also
            before ``.gz``. Without an ending the first line decides between JSONL and text.
        columns: the fields of a row. A row without one of them is unusable; of CSV, the header
            must have them all. By default a row has the fields that are there.
        shard: the part of the file to read, ``"0/8"`` to ``"7/8"`` or ``(0, 8)`` to ``(7, 8)``. The
            parts are disjoint, and together they are the file.

    Returns:
        An iterable of ``Row``, which are dicts. A path is opened anew for each iteration. Standard
        input is read where rows are asked for, which may wait.

    Raises:
        ConfigError: an argument is wrong, or the file has another form. Parquet, Arrow and others
            are named, with a command that makes JSONL of them.
        OSError: the file cannot be opened; while iterating, it cannot be read any further.
    """
    if isinstance(source, (str, os.PathLike)) and not os.fspath(source):
        raise ConfigError("source is an empty path", field="source")
    if not isinstance(source, (str, os.PathLike)) and not callable(getattr(source, "read", None)):
        raise ConfigError(f"source is a path or an open file, not a {type(source).__name__}", field="source")
    form = None if format is None else form_from(format, source if isinstance(source, str) else "-")
    return _Rows(
        source,
        form,
        None if columns is None else columns_from(columns),
        None if shard is None else shard_from(shard),
    )


def _is_pipe(path: str | os.PathLike[str]) -> bool:
    try:
        mode = os.stat(path).st_mode  # noqa: PTH116
    except OSError:  # said where it is opened
        return False
    return not (stat.S_ISREG(mode) or stat.S_ISDIR(mode))


def form_from(text: str, path: str) -> Format:
    """Read the name of a form.

    Args:
        text: the name.
        path: of the file, for a message.

    Raises:
        ConfigError: there is no such form, or it is not read here.
    """
    for form in FORMATS:
        if text == form:
            return form
    advice = advice_for_format(text, path) if isinstance(text, str) else None
    if advice is not None:
        raise ConfigError(f"format: {text} is not read: {advice}", field="format")
    raise ConfigError(f"format: one of {', '.join(FORMATS)}, not {text!r:.40}", field="format")


def columns_from(columns: Sequence[str]) -> list[str]:
    """Check the names of columns.

    Raises:
        ConfigError: there is none, or one is empty or comes twice.
    """
    if isinstance(columns, str) or not all(isinstance(name, str) for name in columns):
        raise ConfigError(f"columns: a list of names, not {columns!r:.40}", field="columns")
    names = list(columns)
    if not names or not all(names):
        raise ConfigError("columns: an empty name", field="columns")
    twice = next((name for place, name in enumerate(names) if name in names[:place]), None)
    if twice is not None:
        raise ConfigError(f"columns: {twice!r:.60} comes twice", field="columns")
    return names
