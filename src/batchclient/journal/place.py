"""A journal's place: the file, readable for its owner alone, and the lock of who writes.

Rules:
- The lock is ``flock`` on ``PATH.lock``, so that it goes with the process. Its text says who holds
  it. The file of the lock stays: removing it would let two processes lock two files.
- Two ways to one file are one lock: links are followed first.
- A place without locks is refused, as are network file systems. SQLite's WAL needs memory that
  all users of the file share, and network file systems have lied about locks and writes.
- A forked child drops its copy of the lock, so that the parent's end frees the lock.
"""

from __future__ import annotations

import os
import socket
import sys
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from batchclient._shell.forks import forget_in_child
from batchclient.errors import ConfigError

__all__ = ["NETWORK", "Lock", "file_system_of", "make_file", "real_path"]

NETWORK = {
    0x6969: "NFS",
    0x0BD00BD0: "Lustre",
    0xFF534D42: "CIFS",
    0xFE534D42: "SMB",
    0x517B: "SMB",
    0x65735546: "FUSE",
    0x01021997: "9p",
    0x00C36400: "Ceph",
    0x47504653: "GPFS",
    0x19830326: "BeeGFS",
    0x5346414F: "AFS",
}
"""File systems by ``f_type`` of ``statfs`` (linux/magic.h, and the projects' own headers)."""
_OWN_WAIT_S = 30.0
"""How long a map that this process has left may take to give its lock back, seconds."""
_AGAIN_S = 0.02
_held: weakref.WeakSet[Lock] = weakref.WeakSet()


def real_path(path: str | os.PathLike[str]) -> Path:
    """Return the path of a journal's file without links.

    Raises:
        ConfigError: the folder is missing, is on a network file system, or the path is no file's.
    """
    real = Path(os.path.realpath(path))
    if not real.parent.is_dir():
        raise _refusal(f"the folder of {_shown(path)} does not exist")
    if real.exists() and not real.is_file():
        raise _refusal(f"{_shown(path)} is no regular file")
    kind = file_system_of(real.parent)
    if kind is not None:
        raise _refusal(
            f"{_shown(path)} is on {kind}, where a journal cannot be trusted; give it a path on a local disk"
        )
    return real


def file_system_of(folder: Path) -> str | None:
    """Return the network file system of a folder; ``None`` if it is local or unknown."""
    if not sys.platform.startswith("linux"):
        return None
    # Python's own ``statvfs`` leaves the type out.
    import ctypes

    room = ctypes.create_string_buffer(512)
    try:
        failed = ctypes.CDLL(None).statfs(os.fsencode(folder), room)
    except (AttributeError, OSError):
        return None
    # The first field of ``struct statfs`` is the type, a word of the machine.
    return None if failed else NETWORK.get(ctypes.c_long.from_buffer(room).value & 0xFFFFFFFF)


def make_file(path: Path) -> None:
    """Create the journal's file, readable for its owner alone, unless it is there.

    Raises:
        OSError: the file cannot be created.
    """
    try:
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        # The name is on the disk, too.
        os.fsync(folder)
    finally:
        os.close(folder)


class Lock:
    """The lock of a journal, taken when made.

    Args:
        path: of the journal.
        is_leaving: whether its holder is about to give the lock back.

    Raises:
        ConfigError: another map holds the lock, or the place has no locks.
    """

    def __init__(self, path: Path, is_leaving: Callable[[], bool]) -> None:
        try:
            import fcntl
        except ImportError:  # Windows
            raise _refusal("journals need a system with flock: Linux or macOS") from None
        self._is_leaving = is_leaving
        self._path = path.with_name(path.name + ".lock")
        self._descriptor: int | None = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600)
        until = time.monotonic() + _OWN_WAIT_S
        is_leaving_now = True
        try:
            while True:
                try:
                    fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except BlockingIOError:
                    was_leaving, is_leaving_now = is_leaving_now, self._is_about_to_be_free()
                    # The holder may have gone between the two looks: the second refusal counts.
                    if not (was_leaving or is_leaving_now) or time.monotonic() >= until:
                        holder = self._holder()
                        raise _refusal(f"{_shown(path)} is in use by {holder or 'another process'}") from None
                    time.sleep(_AGAIN_S)
                except OSError as error:
                    message = f"the place of {_shown(path)} has no locks ({error.strerror}); use a local disk"
                    raise _refusal(message) from error
            self._check_that_it_locks(path)
            since = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
            _held.add(self)
            forget_in_child(self)
            os.ftruncate(self._descriptor, 0)
            os.pwrite(self._descriptor, f"pid {os.getpid()} on {socket.gethostname()} since {since}\n".encode(), 0)
        except BaseException:
            self.release()
            raise

    def _check_that_it_locks(self, path: Path) -> None:
        import fcntl

        second = os.open(self._path, os.O_RDWR)
        try:
            fcntl.flock(second, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return
        finally:
            os.close(second)
        raise _refusal(f"the place of {_shown(path)} keeps no locks; use a local disk")

    def _is_about_to_be_free(self) -> bool:
        """Whether a closed or dropped map of this process holds the lock: its thread ends soon."""
        holders = [lock for lock in list(_held) if lock._path == self._path and lock is not self]
        return any(lock._is_leaving() for lock in holders)

    def _holder(self) -> str:
        assert self._descriptor is not None
        with suppress(OSError):
            return os.pread(self._descriptor, 400, 0).decode("utf-8", "replace").strip()
        return ""

    @property
    def is_held(self) -> bool:
        """Whether this process holds the lock."""
        return self._descriptor is not None

    def release(self) -> None:
        """Give the lock back. Safe to call twice."""
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)
        _held.discard(self)

    _forget_parent = release


def _refusal(message: str) -> ConfigError:
    return ConfigError(f"journal: {message}", field="journal")


def _shown(path: str | os.PathLike[str]) -> str:
    return os.fspath(path)
