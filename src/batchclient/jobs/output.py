"""The output of a job: checked before anything is sent, opened late, never torn.

Rules:
- A file is made with ``O_EXCL``: a file that appears between the check and the opening is refused,
  and never emptied.
- To replace a file, rows go into ``OUT.part`` beside the file. The new file takes the place of the
  old one by a rename, once all rows are written and synced. So a crash, a signal or a full disk
  leaves the whole old file. (Emptying the old file first would leave half of a new one.)
- A link is followed within its folder alone: the place of the file is then the link's target.
- One command at a time owns a file (``owner``). Without locks, a left-over ``OUT.part`` is refused,
  since nobody can tell whose the file is.
- A device or a pipe has nothing to lose: no lock, no ``OUT.part``.
- The file of a job with a journal is continued: cut where the journal says, and written from there.
- A file without a row is removed, unless all rows (none) have been written.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import sys
from contextlib import suppress
from pathlib import Path
from typing import Self

from batchclient.errors import ConfigError
from batchclient.jobs.owner import Owner, lock_of

__all__ = ["Output", "reason_of", "sync", "sync_folder"]

_NEW = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
_NO_SYNC = frozenset({errno.EINVAL, errno.ENOTSUP, errno.ENOSYS})
"""How file systems say that a file cannot be synced."""


class Output:
    """The place that rows go to. The constructor checks; nothing is changed before ``open``.

    Args:
        path: of the file, a device or a pipe; ``-`` is stdout.
        source: the status of the input, which must be another file; ``None``: no file.
        overwrite: whether an existing file may be replaced.
        continues: whether an existing file is the work of a job that goes on (``choose``).

    Attributes:
        name: for messages.
        warning: a sentence to tell, if the file system keeps no locks.
        is_file: whether rows go into a regular file.
        sha256: of what is in the file, up to where it is written.

    Raises:
        ConfigError: the output cannot be, or another command is writing it.
    """

    def __init__(
        self, path: str, *, source: os.stat_result | None = None, overwrite: bool = False, continues: bool = False
    ) -> None:
        if not path:
            raise ConfigError("--output is empty; give a path, or - for stdout")
        self.name: str = "stdout" if path == "-" else path
        self.warning: str = ""
        self._path = None if path == "-" else Path(path)
        self._overwrite = overwrite
        self._owner: Owner | None = None
        self._part: Path | None = None
        self._continues = continues
        self._at: int | None = None
        self._has_job = False
        self._part_is_own = True
        self.sha256: hashlib._Hash = hashlib.sha256()
        self._is_complete = False
        self._mode: int | None = None
        self._file = -1
        try:
            status = self._status()
            self.is_file: bool = status is None or stat.S_ISREG(status.st_mode)
            if status is not None and self.is_file and source is not None and os.path.samestat(status, source):
                raise ConfigError(
                    f"{self.name}: output and input are the same file; rows would be lost before they are read"
                )
            if self._path is not None and self.is_file:
                self._own(self._path)
        except OSError as error:
            raise ConfigError(f"{self.name}: {reason_of(error)}") from None

    def __repr__(self) -> str:
        return f"<Output {self.name}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._owner is not None:
            self._owner.release()

    @property
    def where(self) -> str:
        """Where the rows are, for a report at the end."""
        if self._part is None or self._is_complete:
            return self.name
        return f"{self._part} ({self.name} is as it was)"

    @property
    def is_named(self) -> bool:
        """Whether rows go into a regular file with a name: standard output may be a file, too."""
        return self._path is not None and self.is_file

    @property
    def path(self) -> Path:
        """The place of a named file, links followed."""
        assert self._path is not None and self.is_file
        return self._path

    @property
    def part(self) -> Path:
        """The place of the rows that are to replace the file."""
        return self.path.with_name(f"{self.path.name}.part")

    @property
    def is_replaced(self) -> bool:
        """Whether rows go to ``part`` first."""
        return self._part is not None

    def choose(self, *, replaces: bool, at: int | None = None, part_is_own: bool = True) -> None:
        """Say where the rows of a job with a journal go. ``put_in_place`` ends such a job.

        Args:
            replaces: into ``part``, to replace the file.
            at: the offset to go on from; ``None``: the file is new.
            part_is_own: whether a ``part`` with rows is the job's own, and may go.
        """
        self._has_job = True
        self._part_is_own = part_is_own
        self._part = self.part if replaces else None
        self._at = at
        self.sha256 = hashlib.sha256()

    def open(self) -> int:
        """Open the output and return its descriptor. A pipe that nobody reads may block.

        Raises:
            ConfigError: the output cannot be opened, or a file has appeared since the check.
        """
        try:
            if self._path is None:
                self._file = os.dup(sys.stdout.fileno())
            elif not self.is_file:
                self._file = self._open_device(self._path)
            elif self._at is not None:
                self._file = self._open_at(self._part or self._path, self._at)
            elif self._part is None:
                self._file = os.open(self._path, _NEW, 0o666)
            else:
                self._file = self._open_part(self._part)
        except FileExistsError:
            raise ConfigError(f"{self._part or self.name}: the file has appeared meanwhile; it is left alone") from None
        except OSError as error:
            raise ConfigError(f"{self._part or self.name}: {reason_of(error)}") from None
        return self._file

    def close(self, *, is_complete: bool) -> None:
        """Sync and close the file, and put it in its place.

        Args:
            is_complete: whether all rows have been written. Otherwise a file to be replaced stays.

        Raises:
            OSError: the rows may not have reached the disk. The file to be replaced stays.
        """
        file, self._file = self._file, -1
        if self._path is None or not self.is_file:
            os.close(file)
            return
        own = self._part or self._path
        try:
            is_empty = not os.fstat(file).st_size
            sync(file)
        finally:
            os.close(file)
        if is_empty and not is_complete:
            own.unlink()
        elif is_complete and not self._has_job:
            self.put_in_place()
        self._is_complete = is_complete or is_empty

    def put_in_place(self) -> None:
        """Let a file that is whole take the place of the file to be replaced."""
        if self._part is not None:
            self._part.rename(self.path)
            sync_folder(self.path.parent)

    # Checks ----------------------------------------------------------------------------------------------------------

    def _status(self) -> os.stat_result | None:
        """Return the status of what is there; ``None``: nothing."""
        path = self._path
        if path is None:
            return os.fstat(sys.stdout.fileno())
        if not path.parent.is_dir():
            raise ConfigError(f"{self.name}: there is no directory {path.parent}")
        try:
            status = path.stat()
        except FileNotFoundError:
            if path.is_symlink():
                target = path.readlink()
                raise ConfigError(
                    f"{self.name}: a link to {target}, which does not exist; name the file itself"
                ) from None
            return None
        if stat.S_ISDIR(status.st_mode):
            raise ConfigError(f"{self.name}: {os.strerror(errno.EISDIR)}")
        return status

    def _own(self, path: Path) -> None:
        """Become the owner of a file, and decide how the file is made."""
        exists = ConfigError(f"{self.name}: the file exists; give --overwrite to replace it")
        if path.is_symlink():
            target = path.resolve()
            if (self._overwrite or self._continues) and target.parent != path.parent.resolve():
                raise ConfigError(f"{self.name}: a link into another folder, to {target}; name that file itself")
            self._path = path = target
        lock = lock_of(path)
        try:
            self._owner = Owner(lock, self.name)
        except OSError as error:
            if not self._overwrite and self._status() is not None:
                raise exists from None
            raise ConfigError(f"{lock}: {reason_of(error)}") from None
        try:
            # Looked at again: the file may be the work of the owner before.
            status = self._status()
            if status is not None:
                if not self._overwrite and not self._continues:
                    raise exists
                self._part = None if self._continues else path.with_name(f"{path.name}.part")
                self._mode = stat.S_IMODE(status.st_mode)
        except BaseException:
            self._owner.release()
            raise
        if not self._owner.holds:
            self.warning = f"{self.name}: the file system keeps no locks; let no other command write this file"

    # Opening ---------------------------------------------------------------------------------------------------------

    def _open_device(self, path: Path) -> int:
        file = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOCTTY)
        if stat.S_ISREG(os.fstat(file).st_mode):
            os.close(file)
            raise FileExistsError
        return file

    def _open_at(self, path: Path, at: int) -> int:
        file = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.ftruncate(file, at)
            os.lseek(file, at, os.SEEK_SET)
        except BaseException:
            os.close(file)
            raise
        return file

    def _open_part(self, part: Path) -> int:
        try:
            file = os.open(part, _NEW, 0o666)
        except FileExistsError:
            # The owner may remove the rest of a command that was killed.
            status = part.lstat()
            is_own = self._part_is_own or not status.st_size
            if self._owner is None or not self._owner.holds or not stat.S_ISREG(status.st_mode) or not is_own:
                raise ConfigError(f"{part}: rows go there first, and the file exists; move it away") from None
            part.unlink()
            file = os.open(part, _NEW, 0o666)
        if self._mode is not None:
            with suppress(OSError):
                os.fchmod(file, self._mode)
        return file


def reason_of(error: OSError) -> str:
    """Return why a file cannot be used, in the system's words."""
    return error.strerror or type(error).__name__


def sync(file: int) -> None:
    """Wait until a file is on the disk, where the file system can tell."""
    try:
        os.fsync(file)
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


def sync_folder(path: Path) -> None:
    """Wait until a folder's names are on the disk, where the file system can tell."""
    with suppress(OSError):
        folder = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
