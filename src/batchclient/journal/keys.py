"""Where each key's record is: the table ``keys``, and how rows enter it.

Rules:
- Keys enter the table many at a time, and sorted. Entered one by one, each row would rewrite a page
  of its own: at a million rows that is two thirds of the time and three quarters of the bytes.
- The last keys enter the table when the file is opened to be written, or closed. Where the file is
  only read, they enter a table in memory with the first lookup.
- A key can be lost with a damaged page. Its row then runs again, and has a new record.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

__all__ = ["TABLE", "Keys", "Pair"]

Pair = tuple[bytes, int]
"""A row's identity: its key, and how many rows with that key came before."""
TABLE = "keys(key BLOB NOT NULL, n INTEGER NOT NULL, seq INTEGER NOT NULL, PRIMARY KEY(key, n)) WITHOUT ROWID"
_ENTERED = "keys_entered"
"""The fact up to which row the table is complete."""
_NOTE = "INSERT OR REPLACE INTO meta(name, value) VALUES (?, ?)"
_ENTER = "INSERT OR REPLACE INTO {}.keys SELECT key, n, seq FROM row WHERE seq > ? AND seq <= ? ORDER BY key, n"
_ENTER_THESE = "INSERT OR REPLACE INTO {}.keys VALUES (?, ?, ?)"
_READABLE = "SELECT key, n, seq FROM row WHERE seq = ? AND typeof(key) = 'blob' AND typeof(n) = 'integer'"
_SEQS = (
    "WITH wanted(k, m) AS (VALUES {}) SELECT k, m, row.seq FROM wanted"
    " CROSS JOIN main.keys AS at ON at.key = k AND at.n = m"
    " CROSS JOIN row ON row.seq = at.seq AND row.key = k AND row.n = m WHERE row.seq <= ?"
)
_AT_ONCE = 65_536


class Keys:
    """The keys of an open journal.

    Args:
        connection: of the file.
        at_once: keys that enter together.
    """

    def __init__(self, connection: sqlite3.Connection, at_once: int | None) -> None:
        self._connection = connection
        self._at_once = _AT_ONCE if at_once is None else at_once
        self._entered = 0
        self._last = 0
        self._began_with = 0
        """Rows up to this one may be written again."""
        self._schemas: tuple[str, ...] = ("main",)
        self._are_read_only = False

    def open(self, *, read_only: bool) -> None:
        """Take in how far the rows are.

        Raises:
            sqlite3.Error: the file is damaged, or the disk failed.
        """
        (self._last,) = self._connection.execute("SELECT ifnull(max(seq), 0) FROM row").fetchone()
        self._began_with = self._last
        found = self._connection.execute("SELECT value FROM meta WHERE name = ?", (_ENTERED,)).fetchone()
        if found is not None and type(found[0]) is int and 0 <= found[0] <= self._last:
            self._entered = found[0]
        self._are_read_only = read_only
        if not read_only:
            self.complete()

    @property
    def schemas(self) -> tuple[str, ...]:
        """The schemas that have the table: the file, and perhaps the memory."""
        if self._are_read_only and self._entered < self._last:
            self._connection.execute("PRAGMA temp_store=MEMORY")
            self._connection.execute(f"CREATE TEMP TABLE IF NOT EXISTS {TABLE}")
            self._schemas = ("main", "temp")
            self._enter_last("temp")
        return self._schemas

    def seqs(self, pairs: Sequence[Pair]) -> dict[Pair, int]:
        """Return which rows the file had when it was opened, and where they are."""
        if not self._began_with:
            return {}
        statement = _SEQS.format(",".join(["(?,?)"] * len(pairs)))
        lines = self._connection.execute(statement, (*chain.from_iterable(pairs), self._began_with))
        return {(key, n): seq for key, n, seq in lines}

    def grow(self, count: int) -> None:
        """Take in that the file has more rows."""
        self._last += count

    def enter_when_many(self) -> None:
        """Enter the last keys, all or none, if they are many.

        Raises:
            sqlite3.Error: none was entered.
        """
        if self._last - self._entered >= self._at_once:
            self._enter_last("main")

    def complete(self) -> None:
        """Enter the last keys, all or none, if the file can be written.

        Raises:
            sqlite3.Error: none was entered.
        """
        if self._entered < self._last and not self._are_read_only:
            self._enter_last("main")

    def _enter_last(self, schema: str) -> None:
        try:
            self._enter(schema, _ENTER.format(schema), [(self._entered, self._last)])
        except sqlite3.DatabaseError as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF not in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_CONSTRAINT):
                raise
            self._enter(schema, _ENTER_THESE.format(schema), self._readable())
        self._entered = self._last

    def _enter(self, schema: str, statement: str, lines: Iterable[tuple[Any, ...]]) -> None:
        self._connection.execute("BEGIN IMMEDIATE" if schema == "main" else "BEGIN")
        try:
            self._connection.executemany(statement, lines)
            if schema == "main":
                self._connection.execute(_NOTE, (_ENTERED, self._last))
            self._connection.execute("COMMIT")
        except sqlite3.Error:
            with suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")
            raise

    def _readable(self) -> list[tuple[bytes, int, int]]:
        """Return the last keys but for those in damaged pages."""
        found: list[tuple[bytes, int, int]] = []
        for seq in range(self._entered + 1, self._last + 1):
            with suppress(sqlite3.Error):
                found += self._connection.execute(_READABLE, (seq,))
        return found
