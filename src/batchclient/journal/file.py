"""A journal's SQLite file: the table, its checks, one statement a commit, lookups by keys.

Everything here blocks, and belongs to the thread in which it was made.

Rules:
- A table with a plain rowid: records follow one another in the file. ``keys`` finds them.
- A record that is written again keeps its place (``seq``).
- A lookup that meets a damaged page asks for its rows one by one, so that one page costs few rows.
- ``mmap_size`` stays 0: memory shared with a file that is cut short ends the process.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path
from typing import Any

from batchclient.errors import ConfigError, JournalFailed
from batchclient.journal.keys import TABLE, Keys, Pair
from batchclient.journal.records import ANSWERED, Damaged, Record, check

__all__ = ["Found", "JournalFile", "Line", "Pair", "is_of_the_disk"]

VERSION = 1
Found = dict[Pair, "tuple[int, int, str | None, bytes | None] | None"]
"""By identity: state, attempts, error, body; ``None``: the record is damaged."""
Line = tuple[bytes, int, str | None, int, int, int, str | None, bytes | None]
"""A row as it is in the table: the fields of ``Record``."""
_READ_AT_ONCE = 256
_SCHEMA = f"""
CREATE TABLE row(
    seq INTEGER PRIMARY KEY, key BLOB NOT NULL, n INTEGER NOT NULL, id TEXT, state INTEGER, attempts INTEGER,
    crc INTEGER, error TEXT, body BLOB
);
CREATE TABLE {TABLE};
CREATE INDEX not_answered ON row(state) WHERE state <> 1;
CREATE TABLE meta(name TEXT PRIMARY KEY, value);
"""
_LINE = f"({','.join('?' * (1 + len(Record._fields)))})"
_INSERT = "INSERT INTO row(seq, key, n, id, state, attempts, crc, error, body) VALUES "
_AGAIN = (
    " ON CONFLICT(seq) DO UPDATE SET id = excluded.id, state = excluded.state, attempts = excluded.attempts,"
    " crc = excluded.crc, error = excluded.error, body = excluded.body"
)
_LOOK_UP = (
    "WITH wanted(k, m) AS (VALUES {}) SELECT k, m, state, attempts, crc, error, body"
    " FROM wanted CROSS JOIN {}.keys AS at ON at.key = k AND at.n = m CROSS JOIN row ON row.seq = at.seq"
)
_FSYNC = frozenset({sqlite3.SQLITE_IOERR_FSYNC, sqlite3.SQLITE_IOERR_DIR_FSYNC})
_STATEMENTS_KEPT = 16
"""A statement of a thousand rows takes some 300 KB."""


class JournalFile:
    """An open journal.

    Args:
        path: of the file; it exists, perhaps empty.
        sync: ``"full"`` or ``"normal"``.
        read_only: the journal of another job, or one that is looked at: nothing is written.
        keys_at_once: keys that enter their table together, if not as many as are best.

    Attributes:
        is_empty: whether its making was cut short: it has no tables. Never so where it is written.

    Raises:
        ConfigError: the file is no journal, a damaged one, or a newer version's.
        JournalFailed: the disk failed.
    """

    def __init__(
        self, path: Path, sync: str = "full", *, read_only: bool = False, keys_at_once: int | None = None
    ) -> None:
        self._path = path
        self.is_empty: bool = False
        self._is_refused = False
        """Whether the last commit failed."""
        mode = "ro" if read_only else "rw"
        try:
            self._connection = sqlite3.connect(
                f"{path.as_uri()}?mode={mode}", uri=True, isolation_level=None, cached_statements=_STATEMENTS_KEPT
            )
        except sqlite3.Error as error:
            raise ConfigError(f"journal: {path} cannot be opened: {error}", field="journal") from error
        self._keys = Keys(self._connection, keys_at_once)
        try:
            self._open(sync, read_only=read_only)
        except sqlite3.Error as error:
            self.close()
            if is_of_the_disk(error):
                raise JournalFailed(f"the journal {path} cannot be opened: {error}") from error
            message = f"journal: {path} is damaged, or is no journal ({error}); nothing was changed in it"
            raise ConfigError(message, field="journal") from error
        except BaseException:
            self.close()
            raise

    def _open(self, sync: str, *, read_only: bool) -> None:
        connection = self._connection
        connection.text_factory = _text
        connection.execute("PRAGMA mmap_size=0")
        version = self._one("PRAGMA user_version")
        tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        if type(version) is int and version > VERSION:
            message = (
                f"journal: {self._path} is a journal of version {version}, made by a newer batchclient;"
                f" this one reads version {VERSION}"
            )
            raise ConfigError(message, field="journal")
        self.is_empty = not tables and version == 0
        is_new = self.is_empty and not read_only
        if not self.is_empty and not (version == VERSION and {"row", "keys", "meta"} <= tables):
            raise ConfigError(f"journal: {self._path} is an SQLite file, but no journal", field="journal")
        if read_only:
            if not self.is_empty:
                self._keys.open(read_only=True)
            return
        if self._one("PRAGMA journal_mode=WAL") != "wal":
            raise ConfigError(f"journal: the place of {self._path} does not allow SQLite's WAL", field="journal")
        connection.execute(f"PRAGMA synchronous={'FULL' if sync == 'full' else 'NORMAL'}")
        # On macOS alone an fsync may stop at the drive's cache.
        connection.execute("PRAGMA fullfsync=1")
        connection.execute("PRAGMA checkpoint_fullfsync=1")
        if is_new:
            connection.executescript(f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA user_version={VERSION}; COMMIT;")
            self.is_empty = False
        self._keys.open(read_only=False)

    def _one(self, statement: str, values: Sequence[Any] = ()) -> Any:
        found = self._connection.execute(statement, values).fetchone()
        return None if found is None else found[0]

    def has_rows(self) -> bool:
        """Whether anything was written down."""
        return self._one("SELECT 1 FROM row LIMIT 1") is not None

    def count(self) -> int:
        """Return the number of rows: none is ever deleted."""
        return int(self._one("SELECT ifnull(max(seq), 0) FROM row"))

    def states(self) -> dict[int, int]:
        """Return the number of rows by state. Reads indices alone, not the rows."""
        counted = "SELECT state, count(*) FROM row INDEXED BY not_answered WHERE state <> 1 GROUP BY state"
        others: dict[int, int] = dict(self._connection.execute(counted).fetchall())
        return others | {ANSWERED: self.count() - sum(others.values())}

    def damaged_among_last(self, most: int) -> int:
        """Return how many of the last rows are not as they were written."""
        lines = self._connection.execute(
            "SELECT key, n, state, attempts, crc, error, body FROM row ORDER BY seq DESC LIMIT ?", (most,)
        )
        damaged = 0
        for line in lines:
            try:
                check(*line)
            except Damaged:
                damaged += 1
        return damaged

    def failures(self) -> Iterator[tuple[str | None, str | None]]:
        """Yield the id and the error of each row that failed, in the order of their commits."""
        yield from self._connection.execute("SELECT id, error FROM row WHERE state <> 1 ORDER BY seq")

    def lines(self) -> Iterator[Line | None]:
        """Yield all rows in the order of their commits, and ``None`` for each in a damaged page."""
        columns = ", ".join(Record._fields)
        last, seq = self.count(), 0
        while seq < last:
            try:
                lines = self._connection.execute(
                    f"SELECT seq, {columns} FROM row WHERE seq > ? ORDER BY seq LIMIT {_READ_AT_ONCE}",  # noqa: S608
                    (seq,),
                ).fetchall()
            except sqlite3.Error:
                seq += 1
                try:
                    statement = f"SELECT {columns} FROM row WHERE seq = ?"  # noqa: S608
                    line = self._connection.execute(statement, (seq,)).fetchone()
                except sqlite3.Error:
                    yield None
                else:
                    if line is not None:
                        yield line
                continue
            for line in lines:
                seq = line[0]
                yield line[1:]
            if not lines:
                return

    def meta(self, name: str) -> Any:
        """Return a fact about the job, or ``None``."""
        return self._one("SELECT value FROM meta WHERE name = ?", (name,))

    def set_meta(self, facts: Iterable[tuple[str, str | int]]) -> None:
        """Write facts about the job."""
        values = list(facts)
        self._connection.execute(
            f"INSERT INTO meta(name, value) VALUES {','.join(['(?,?)'] * len(values))}"  # noqa: S608
            " ON CONFLICT(name) DO UPDATE SET value = excluded.value",
            tuple(chain.from_iterable(values)),
        )

    def commit(self, records: Sequence[Record]) -> None:
        """Write rows, all or none, and wait until they are on the disk.

        Raises:
            sqlite3.Error: none was written.
        """
        self._is_refused = True
        self._keys.enter_when_many()
        seqs = self._keys.seqs([record[:2] for record in records])
        statement = f"{_INSERT}{','.join([_LINE] * len(records))}{_AGAIN}"
        values = chain.from_iterable((seqs.get(record[:2]), *record) for record in records)
        self._connection.execute(statement, tuple(values))
        self._keys.grow(len(records) - len(seqs))
        self._is_refused = False

    def look_up(self, pairs: Sequence[Pair]) -> Found:
        """Return what is there of some rows, 16,000 at most."""
        found: Found = {}
        try:
            self._look_up(pairs, found)
        except sqlite3.Error:
            for pair in pairs:
                if pair not in found:
                    try:
                        self._look_up([pair], found)
                    except sqlite3.Error:
                        found[pair] = None
        return found

    def _look_up(self, pairs: Sequence[Pair], found: Found) -> None:
        for schema in self._keys.schemas:
            statement = _LOOK_UP.format(",".join(["(?,?)"] * len(pairs)), schema)
            lines = self._connection.execute(statement, tuple(chain.from_iterable(pairs)))
            for key, n, state, attempts, crc, error, body in lines:
                try:
                    check(key, n, state, attempts, crc, error, body)
                except Damaged:
                    found[key, n] = None
                else:
                    found[key, n] = (state, attempts, error, body)

    def close(self) -> None:
        """Close the file; if the disk allows, the last keys enter their table, and the WAL is moved."""
        with suppress(sqlite3.Error):
            if not self._is_refused:
                self._keys.complete()
        with suppress(sqlite3.Error):
            self._connection.close()


def _text(data: bytes) -> str:
    """A flipped bit must not keep a row from being read: its checksum is what judges it."""
    return data.decode("utf-8", "surrogateescape")


def is_of_the_disk(error: sqlite3.Error) -> bool:
    """Whether an error may pass: the disk is full, cannot be written, or is in use by another."""
    code = getattr(error, "sqlite_errorcode", 0)
    passing = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
    return code & 0xFF in passing


def is_of_fsync(error: sqlite3.Error) -> bool:
    """Whether the disk could not say that it holds what was written: the file is not to be trusted.

    After a failed ``fsync`` Linux may drop the pages and report success the next time
    (Rebello et al., USENIX ATC 2020).
    """
    return getattr(error, "sqlite_errorcode", 0) in _FSYNC
