"""How far the output of a job is: what is in the journal about the file, and whether it is true.

Rules:
- A mark is written after the file was synced, and the file may be longer. A resume cuts the file at
  the mark. So the rows in the file before the mark are those that the mark tells of, each once.
- The hash of the file is compared before anything is cut: a file that somebody else has changed is
  left alone.
- A mark without ``rows`` says nothing about rows: the next run writes them all anew, from the
  journal, into ``OUT.part``, which takes the place of ``OUT`` in the end.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from batchclient.journal.of_file import Coverage

__all__ = ["NAME", "Mark", "OutputChanged", "hash_of", "stamp_of"]

NAME = "output"
"""Of the journal's fact that is the mark."""
_CHUNK_BYTES = 1024 * 1024


class OutputChanged(Exception):
    """A file is not as its mark says. The message says how."""


@dataclass(frozen=True, slots=True)
class Mark:
    """What is on the disk of an output.

    Args:
        replaces: whether the file is ``OUT.part``, which is to replace ``OUT``.
        size: bytes of it that the job has written.
        sha256: of these bytes, as hexadecimal digits.
        inode: of the file, which tells a file without a row from another one.
        form: how rows are written: their call, columns and the like.
        rows: the rows of the input that are in the file, from the first; ``None``: not known.
        digest: of these rows, as hexadecimal digits (``Coverage``).
        failed: rows among them that failed.
        replaced: the stamp of the ``OUT`` that is to be replaced (``stamp_of``).
        name: of ``OUT``, without its folder.
    """

    replaces: bool
    size: int
    sha256: str
    inode: int
    form: str
    rows: int | None = None
    digest: str = ""
    failed: int = 0
    replaced: str = ""
    name: str = ""

    @classmethod
    def read(cls, text: object) -> Mark | None:
        """Read a mark from the journal; ``None``: there is none that this version wrote."""
        try:
            return cls(**json.loads(text)) if isinstance(text, str) else None
        except (TypeError, ValueError):
            return None

    def write(self) -> str:
        """Return the mark as a fact for the journal."""
        return json.dumps(asdict(self))

    @property
    def covered(self) -> Coverage | None:
        """The rows in the file, if they are known."""
        return None if self.rows is None else Coverage(self.rows, bytes.fromhex(self.digest))

    def check(self, path: Path, *, is_all: bool = False) -> Any:
        """Compare a file with the mark; return the hash of what the job has written, to go on with.

        Args:
            path: of the file.
            is_all: whether nothing may be behind the mark.

        Raises:
            OutputChanged: the file is another one.
            OSError: the file cannot be read.
        """
        status = path.stat()
        if status.st_size < self.size:
            raise OutputChanged(f"has {status.st_size:,} bytes, and the job had written {self.size:,}")
        if is_all and status.st_size > self.size:
            raise OutputChanged(f"has {status.st_size - self.size:,} bytes more than the job had written")
        if not self.size and status.st_size and status.st_ino != self.inode:
            raise OutputChanged("is a file of somebody else's")
        found = hash_of(path, self.size)
        if found.hexdigest() != self.sha256:
            raise OutputChanged(f"was changed within the first {self.size:,} bytes, which the job had written")
        return found


def stamp_of(path: Path) -> str:
    """Return what tells a file that nobody has written since: size and time; ``""`` without one."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return ""
    return f"{status.st_size} {status.st_mtime_ns}"


def hash_of(path: Path, size: int) -> Any:
    """Return the SHA-256 object of the first bytes of a file."""
    found = hashlib.sha256()
    with path.open("rb", buffering=0) as file:
        while size > 0 and (chunk := file.read(min(_CHUNK_BYTES, size))):
            found.update(chunk)
            size -= len(chunk)
    return found
