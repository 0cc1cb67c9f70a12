"""The output of a command: checked before anything is sent, opened as late as possible.

A path is checked before the output is opened, since opening empties the file.
"""

from __future__ import annotations

import errno
import os
import stat
import sys
from pathlib import Path
from typing import BinaryIO

from batchclient.cli._refusal import Refusal, reason_of
from batchclient.jobs.source import Source

__all__ = ["check_output", "open_output"]


def check_output(path: str, source: Source, *, overwrite: bool = False) -> None:
    """Refuse an impossible output, without touching the file.

    Raises:
        Refusal: the directory of the output does not exist; or the output is a directory, the
            input, or an existing file without ``overwrite``. A device or a pipe has nothing to
            lose.
    """
    if not path:
        raise Refusal("--output is empty; give a path, or - for stdout")
    if path == "-":
        status = os.fstat(sys.stdout.fileno())
    else:
        target = Path(path)
        if not target.parent.is_dir():
            raise Refusal(f"{path}: there is no directory {target.parent}")
        if target.is_dir():
            raise Refusal(f"{path}: {os.strerror(errno.EISDIR)}")
        if not target.exists():
            return
        status = target.stat()
    if stat.S_ISREG(status.st_mode) and os.path.samestat(status, os.fstat(source.file.fileno())):
        raise Refusal(f"{path}: output and input are the same file; rows would be lost before they are read")
    if path != "-" and not overwrite and stat.S_ISREG(status.st_mode):
        raise Refusal(f"{path}: the file exists; give --overwrite to replace it")


def open_output(path: str) -> BinaryIO:
    """Open an output and empty the file; ``-`` is stdout.

    Raises:
        Refusal: the file cannot be written.
    """
    try:
        if path == "-":
            return open(sys.stdout.fileno(), "wb", closefd=False)
        return open(path, "wb")  # noqa: PTH123
    except OSError as error:
        raise Refusal(f"{path}: {reason_of(error)}") from None
