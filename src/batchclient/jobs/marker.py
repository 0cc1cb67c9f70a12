"""The marks of one run: what its journal is told of the output while rows are written.

A mark is asked of the writer, which syncs the file first; one is under way at a time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import partial
from pathlib import Path

from batchclient.jobs.marks import Mark, stamp_of
from batchclient.jobs.output import Output
from batchclient.jobs.writer import Writer
from batchclient.journal.of_file import Coverage

__all__ = ["Marker"]


class Marker:
    """Makes the marks of an output. ``None`` for the rows of a mark: they are not known.

    Args:
        output: a named file.
        form: how rows are written: their call, columns and the like.

    Attributes:
        last: the latest mark, which the journal may not have yet.
    """

    def __init__(self, output: Output, form: str) -> None:
        self.last: Mark
        self._output = output
        self._form = form
        self._inode = 0
        self._replaced = ""
        self._is_asked = False

    @property
    def place(self) -> Path:
        """The file that takes the rows."""
        return self._output.part if self._output.is_replaced else self._output.path

    @property
    def is_moved(self) -> bool:
        """Whether the file that was opened is no longer there, or is another one."""
        return not self.place.exists() or self.place.stat().st_ino != self._inode

    def before(self, *, goes_on: bool) -> Mark | None:
        """Return the mark of a file that is made next; ``None``: the file is there, and goes on.

        A kill between this mark and the file leaves a mark of an empty file.
        """
        if self._output.is_replaced:
            self._replaced = stamp_of(self._output.path)
        return None if goes_on else self.at(0, hashlib.sha256().hexdigest(), Coverage(), 0)

    def opened(self, rows: Coverage | None, failed: int) -> Mark:
        """Return the mark of the file that was opened.

        Args:
            rows: the rows in the file.
            failed: rows among them that failed.
        """
        status = self.place.stat()
        self._inode = status.st_ino
        self.last = self.at(status.st_size, self._output.sha256.hexdigest(), rows, failed)
        return self.last

    def ask(
        self, writer: Writer, rows: Coverage | None, failed: int, on_mark: Callable[[Mark], None], *, is_last: bool
    ) -> None:
        """Have a mark made once the rows are on the disk; nothing, if one is under way.

        Args:
            writer: of the output.
            rows: the rows given to the writer so far.
            failed: rows among them that failed.
            on_mark: is given the mark.
            is_last: whether no row behind this place is in turn.
        """
        if self._is_asked and not is_last:
            return
        self._is_asked = True
        copied = None if rows is None else Coverage(rows.rows, rows.digest)
        writer.mark(partial(self._on_synced, copied, failed, on_mark))

    def _on_synced(
        self, rows: Coverage | None, failed: int, on_mark: Callable[[Mark], None], size: int, sha256: str
    ) -> None:
        self._is_asked = False
        self.last = self.at(size, sha256, rows, failed)
        on_mark(self.last)

    def at(self, size: int, sha256: str, rows: Coverage | None, failed: int) -> Mark:
        """Return the mark of a place in the file.

        Args:
            size: bytes before the place.
            sha256: of these bytes, as hexadecimal digits.
            rows: the rows before the place.
            failed: rows among them that failed.
        """
        return Mark(
            replaces=self._output.is_replaced,
            size=size,
            sha256=sha256,
            inode=self._inode,
            form=self._form,
            rows=None if rows is None else rows.rows,
            digest="" if rows is None else rows.digest.hex(),
            failed=failed,
            replaced=self._replaced,
            name=self._output.path.name,
        )
