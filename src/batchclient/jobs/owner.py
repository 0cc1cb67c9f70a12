"""The owner of an output: one command at a time writes a file.

Rules:
- Ownership is an OS lock (``flock``) on a file beside the output. The lock ends with the process,
  however the process ends; a lock file left by a killed command is taken over.
- The text of the lock file names the process, the host and the time, for the refusal of others.
- A file that is no lock of ours is neither changed nor removed.
- Where the file system keeps no locks there is no owner, and ``Owner.holds`` says so.
"""

from __future__ import annotations

import os
import socket
import time
from contextlib import suppress
from pathlib import Path

from batchclient.errors import ConfigError

try:
    import fcntl
except ImportError:  # a system without flock
    fcntl = None  # type: ignore[assignment]

__all__ = ["Owner", "is_locked", "lock_of"]

_OURS = b"batchclient: "
_LONGEST_TEXT = 200
_TRIES = 20
"""Attempts to lock a file that others remove, or to read a text that is being written."""
_PAUSE_S = 0.005


def lock_of(path: Path) -> Path:
    """Return the place of an output's lock."""
    return path.with_name(f"{path.name}.lock")


def is_locked(path: Path) -> bool:
    """Whether a process holds a lock file now."""
    if fcntl is None:
        return False
    try:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        # Shared: of several that look, none sees another's look.
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    finally:
        os.close(file)
    return False


class Owner:
    """The ownership of an output, from now until ``release`` or the end of the process.

    Args:
        path: of the lock file.
        output: the name of the output, for messages.

    Attributes:
        holds: whether the file system keeps locks, and this one is held.

    Raises:
        ConfigError: another command owns the output, or the lock file is a file of another kind.
        OSError: the lock file cannot be made.
    """

    def __init__(self, path: Path, output: str) -> None:
        self._path = path
        self._output = output
        self._file: int | None = None
        for _ in range(_TRIES):
            if self._take():
                break
        self.holds: bool = self._file is not None

    def __repr__(self) -> str:
        return f"<Owner of {self._output}: {'held' if self._file is not None else 'not held'}>"

    def release(self) -> None:
        """Remove the lock file and end the ownership. Safe to call twice."""
        if self._file is None:
            return
        file, self._file = self._file, None
        with suppress(OSError):
            # Removed while the lock is held: nobody else can hold a lock on this file.
            if self._is_there(file):
                self._path.unlink()
        os.close(file)

    def _take(self) -> bool:
        """Try to become the owner; return whether there is no more to try."""
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            if not (holds := self._lock(file)) or not self._is_there(file):
                with suppress(OSError):
                    if not holds and not os.fstat(file).st_size:
                        self._path.unlink()
                os.close(file)
                # A lock on a file that is not there: the owner before has just removed the file.
                return not holds
            if os.pread(file, len(_OURS), 0) not in (b"", _OURS):
                raise ConfigError(
                    f"{self._output}: the lock belongs into {self._path}, which is a file of another kind; move it away"
                )
            try:
                os.ftruncate(file, 0)
                os.pwrite(file, _text(), 0)
            except OSError:  # a full disk
                self._path.unlink()
                raise
        except BaseException:
            os.close(file)
            raise
        self._file = file
        return True

    def _lock(self, file: int) -> bool:
        """Lock the file; return whether the file system keeps locks."""
        if fcntl is None:
            return False
        try:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                # Somebody may just be looking whether the lock is held.
                time.sleep(_PAUSE_S)
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ConfigError(f"{self._output}: another command is writing this file{self._who(file)}") from None
        except OSError:
            return False
        return True

    def _who(self, file: int) -> str:
        for _ in range(_TRIES):
            text = os.pread(file, _LONGEST_TEXT, 0)
            if text.startswith(_OURS) and text.endswith(b"\n"):
                return ": " + text.removeprefix(_OURS).decode(errors="replace").strip()
            time.sleep(_PAUSE_S)
        return ""

    def _is_there(self, file: int) -> bool:
        try:
            return os.path.samestat(os.fstat(file), self._path.lstat())
        except FileNotFoundError:
            return False


def _text() -> bytes:
    since = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
    return _OURS + f"pid {os.getpid()} on {socket.gethostname()[:80]} since {since}\n".encode()
