"""A journal's file: how a process comes to write it, on whichever machine.

Rules:
- Nobody appends to a file, or cuts it, that he did not create or lock. A link is not followed.
- Who takes a journal over from another machine goes on in a copy, which is renamed over it: what
  the holder before may still write goes into the old file.
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from batchclient._common.log import log
from batchclient.errors import ConfigError, JournalFailed
from batchclient.journal.lease import CAREFULLY, Lease, LeaseFile, Watch, leaving
from batchclient.journal.settings import Journal

__all__ = ["OF_THE_PLACE", "JournalInUse", "JournalLost", "is_at", "open_regular", "sync_folder", "take", "write_all"]

_TO_READ = os.O_RDONLY | CAREFULLY
_TO_WRITE = os.O_RDWR | os.O_APPEND | CAREFULLY
_NEW = os.O_CREAT | os.O_EXCL
OF_THE_PLACE = frozenset(
    {errno.ELOOP, errno.EISDIR, errno.ENOENT, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS, errno.ENAMETOOLONG}
)
"""Errors that say that the path is wrong, and not that the disk is."""


class JournalInUse(ConfigError):
    """Another process, or another map of this one, writes the journal."""


class JournalLost(JournalFailed):
    """The journal is another process's now, or its file is gone: nothing more is written."""


def take(journal: Journal, lease: LeaseFile, wait: Callable[[float], object]) -> int:
    """Open a journal's file, and take its lease, after a wait where another may hold it.

    Args:
        journal: where it is.
        lease: of this process.
        wait: sleeps for some seconds; true: the journal is not wanted any more.

    Returns:
        The descriptor. The lease is renewed from now on.

    Raises:
        JournalInUse: another one holds it.
        ConfigError: the path is no file's, or the lease's.
        OSError: the path cannot be used, or the disk failed.
    """
    path, system = journal.path, lease.system
    watch, is_told = Watch(system, lease.times), False
    while True:
        file = _open(journal)
        try:
            is_locked = system.lock(file)
            line = lease.read()
            holder = None if line is None else Lease.read(line)
            step = watch.look(line, system.now(), is_locked=is_locked)
            leaves = holder is not None and holder.token in leaving
            if step == "in use" and not leaves:
                name = "another process" if holder is None else holder.name
                raise JournalInUse(f"journal: {path} is in use by {name}", field="journal")
            # The file may have been exchanged since it was opened.
            if step in ("take", "take over") and is_at(file, path) and lease.take(is_there=line is not None):
                lease.renew_always()
                if holder is not None:
                    _copy_of(path, holder.token).unlink(missing_ok=True)
                return file if step == "take" else _go_on_in_copy(file, path, lease, line, wait)
        except BaseException:
            os.close(file)
            raise
        os.close(file)
        if step == "wait" and line and not is_told:
            is_told = True
            name = "an unknown process" if holder is None else holder.name
            message = "the journal %s was left by %s: it is taken over once its lease stands still for %.0f s"
            facts = {"path": str(path), "holder": name}
            log("journal_waited_for", message, path, name, lease.times.still_s, **facts)  # type: ignore[arg-type]
        if wait(lease.times.look_s / 50 if leaves else lease.times.look_s):
            raise JournalInUse(f"journal: {path} was not waited for", field="journal")


def _go_on_in_copy(file: int, path: Path, lease: LeaseFile, line: bytes | None, wait: Callable[[float], object]) -> int:
    """Put a copy into the file's place, if nobody else has taken the lease after a while."""
    name, copy = _copy_of(path, lease.lease.token), -1
    try:
        if not wait(lease.times.settle_s) and lease.is_ours():
            copy = os.open(name, _TO_WRITE | _NEW, 0o600)
            with open(file, "rb", closefd=False) as old, open(copy, "wb", closefd=False) as new:
                shutil.copyfileobj(old, new)
            lease.system.sync(copy)
        if copy < 0 or not (lease.is_held() and lease.is_ours()):
            raise JournalInUse(f"journal: {path} is taken over by another process", field="journal")
        lease.system.lock(copy)
        name.rename(path)
        sync_folder(path.parent)
    except BaseException:
        if copy >= 0:
            os.close(copy)
            name.unlink(missing_ok=True)
        lease.give_back(line)
        raise
    os.close(file)
    return copy


def _copy_of(path: Path, token: str) -> Path:
    """Where the holder of a lease makes its copy. Nobody else makes a file there."""
    return path.with_name(f"{path.name}.{token}")


def _open(journal: Journal) -> int:
    path = journal.path
    try:
        file = os.open(path, _TO_WRITE | _NEW, 0o600)
    except FileExistsError:
        if not journal.resume:
            raise ConfigError(f"journal: {path} is there, and resume=False refuses it", field="resume") from None
        return open_regular(path, _TO_WRITE)
    sync_folder(path.parent)
    return file


def open_regular(path: Path, flags: int = _TO_READ) -> int:
    """Open a regular file that is there.

    Raises:
        ConfigError: it is none.
        OSError: it cannot be opened.
    """
    file = os.open(path, flags)
    if stat.S_ISREG(os.fstat(file).st_mode):
        return file
    os.close(file)
    raise ConfigError(f"journal: {path} is no regular file", field="journal")


def is_at(file: int, path: Path) -> bool:
    """Whether an open file is the one at a path."""
    # Opened, since a network mount may answer an old ``stat`` from its memory.
    try:
        there = os.open(path, _TO_READ)
    except OSError:
        return False
    try:
        return os.path.samestat(os.fstat(file), os.fstat(there))
    finally:
        os.close(there)


def write_all(file: int, data: bytes) -> None:
    """Write all of it, in as many calls as that takes."""
    left = memoryview(data)
    while left:
        left = left[os.write(file, left) :]


def sync_folder(path: Path) -> None:
    """Wait until a folder's names are on the disk, where the file system can tell."""
    with suppress(OSError):  # some mounts sync files alone
        folder = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
