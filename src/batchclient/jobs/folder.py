"""The folder of a job, ``OUT.job``: its journal, its settings, and at the end its manifest.

- ``journal.sqlite``: the rows' answers (``batchclient.journal``), and how far the output is
  (``marks``).
- ``job.json``: the settings of the command, for ``batchclient job``. No key, no header.
- ``input``: standard input, where the rows came from there.
- ``done.json``: the manifest. It is written last: a job with a manifest is finished.

Rules:
- All files are readable for their owner alone.
- A file of JSON is written beside its place, synced, and renamed: it is whole, or it is not there.
- Whoever only looks reads the journal with a connection that cannot write.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import sqlite3
import stat
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, Any

from batchclient.errors import ConfigError, JournalFailed
from batchclient.jobs.marks import NAME, Mark
from batchclient.jobs.output import reason_of, sync, sync_folder
from batchclient.journal.file import JournalFile, Line
from batchclient.journal.place import Lock
from batchclient.journal.records import ANSWERED, FAILED, MAY_BE_TRIED, check, fields_in

__all__ = ["JobFolder", "JobState", "file_error", "folder_of", "may_be_file"]

_JOURNAL = "journal.sqlite"
_SETTINGS = "job.json"
_MANIFEST = "done.json"
_INPUT = "input"
_VARIABLE = "BATCHCLIENT_JOURNAL_DIR"
_OWN = frozenset({_JOURNAL, f"{_JOURNAL}.lock", _SETTINGS, _MANIFEST, _INPUT})
_CHUNK_BYTES = 1024 * 1024
_OF_THE_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS})
_TAIL_ROWS = 10_000
"""The rows whose checksums are compared when a job goes on: those that the last commits wrote."""


@dataclass(frozen=True, slots=True)
class JobState:
    """A job as its journal has it.

    Args:
        answered: rows with an answer.
        failed: rows that failed for good.
        may_be_tried: rows that failed and may succeed later.
        damaged: rows among the last ones whose checksum is wrong.
        mark: how far the output is, if it was begun.
        begun: when, in words.
        model: the model's name.
    """

    answered: int
    failed: int
    may_be_tried: int
    damaged: int
    mark: Mark | None
    begun: str
    model: str

    @property
    def rows(self) -> int:
        """All rows of the journal."""
        return self.answered + self.failed + self.may_be_tried


def folder_of(output: str, journal: str | None) -> JobFolder:
    """Return the folder of a job.

    Args:
        output: the path of ``OUT``.
        journal: as given with ``--journal``.
    """
    if journal is not None:
        return JobFolder(Path(journal))
    place = Path(os.path.realpath(output))
    folder = os.environ.get(_VARIABLE)
    if not folder:
        return JobFolder(place.with_name(f"{place.name}.job"))
    # Outputs of one name in several folders have a journal each.
    named = hashlib.sha256(os.fsencode(place)).hexdigest()[:8]
    return JobFolder(Path(folder) / f"{place.name}-{named}.job")


def may_be_file(path: str) -> bool:
    """Whether a path is a regular file's, or free."""
    try:
        return stat.S_ISREG(Path(path).stat().st_mode)
    except (OSError, ValueError):
        return True


def file_error(path: Path, error: OSError) -> ConfigError | JournalFailed:
    """Return the error of a file that cannot be written: the command's fault, or the disk's."""
    if error.errno in _OF_THE_DISK:
        return JournalFailed(f"{path} cannot be written: {reason_of(error)}")
    return ConfigError(f"{path}: {reason_of(error)}")


class JobFolder:
    """The folder of one job.

    Args:
        path: of the folder, which need not exist.
    """

    def __init__(self, path: Path) -> None:
        # Not resolved: the name that was given is the one that messages say.
        self.path: Path = path.absolute()

    def __repr__(self) -> str:
        return f"<JobFolder {self.path}>"

    @property
    def journal(self) -> Path:
        """The journal's file."""
        return self.path / _JOURNAL

    @property
    def lock(self) -> Path:
        """The lock of whoever writes the journal."""
        return self.journal.with_name(f"{_JOURNAL}.lock")

    @property
    def input(self) -> Path:
        """The place of a standard input."""
        return self.path / _INPUT

    @property
    def exists(self) -> bool:
        """Whether there is a journal, made whole."""
        try:
            # SQLite has this second file while the journal is made, and never later: it has no row.
            is_made = not self.journal.with_name(f"{_JOURNAL}-journal").exists()
            return self.journal.stat().st_size > 0 and is_made
        except OSError:  # also where the name is too long: the output is refused then
            return False

    @property
    def is_finished(self) -> bool:
        """Whether the job has its manifest."""
        return (self.path / _MANIFEST).exists()

    def size(self) -> int:
        """Return the bytes of all files of the folder."""
        return sum(each.stat().st_size for each in self.path.iterdir() if each.is_file())

    def make(self) -> None:
        """Make the folder, unless it is there.

        Raises:
            ConfigError: it cannot be made, or its place is taken.
        """
        try:
            self.path.mkdir(mode=0o700, parents=False, exist_ok=True)
        except FileExistsError:
            raise ConfigError(
                f"{self.path}: the job's folder belongs here, and there is a file; move it away"
            ) from None
        except OSError as error:
            raise ConfigError(f"{self.path}: {reason_of(error)}") from None
        if not self.journal.exists() and not (self.path / _SETTINGS).exists():
            foreign = next((each.name for each in self.path.iterdir() if not self._is_own(each.name)), None)
            if foreign is not None:
                raise ConfigError(
                    f"{self.path}: the job's folder belongs here, and there is a folder with other files, such as "
                    f"{foreign}; name another folder with --journal"
                )
        sync_folder(self.path.parent)

    @staticmethod
    def _is_own(name: str) -> bool:
        return name.removesuffix(".new") in _OWN or name.startswith((f"{_JOURNAL}-", f"{_INPUT}-"))

    def state(self, *, check_tail: bool = False) -> JobState | None:
        """Read the journal, in some milliseconds, however many rows there are.

        Returns:
            ``None`` if the job was killed before it had a journal.

        Args:
            check_tail: compare the checksums of the last 10,000 rows, too.

        Raises:
            ConfigError: the journal is damaged, is none, or is a newer version's.
            JournalFailed: the disk failed.
        """
        if not self.exists:
            return None
        with self._reading() as file:
            if file.is_empty:
                return None
            counts = file.states()
            return JobState(
                counts.get(ANSWERED, 0),
                counts.get(FAILED, 0),
                counts.get(MAY_BE_TRIED, 0),
                file.damaged_among_last(_TAIL_ROWS) if check_tail else 0,
                Mark.read(file.meta(NAME)),
                str(file.meta("begun") or ""),
                str(file.meta("model") or ""),
            )

    def failures(self) -> Iterator[tuple[str | None, dict[str, Any]]]:
        """Yield the id and the error of each row that failed.

        Raises:
            ConfigError: the journal is damaged, or is none.
        """
        with self._reading() as file:
            for identity, error in file.failures():
                try:
                    fields = json.loads(error or "")
                except ValueError:
                    fields = {"error": "a damaged record"}
                yield identity, fields

    def export(self) -> Iterator[dict[str, Any] | None]:
        """Yield all rows, and ``None`` for each that cannot be read.

        Raises:
            ConfigError: the journal cannot be opened.
        """
        with self._reading() as file:
            for line in file.lines():
                yield None if line is None else _exported(line)

    @contextmanager
    def _reading(self) -> Iterator[JournalFile]:
        file = JournalFile(self.journal, read_only=True)
        try:
            yield file
        except sqlite3.Error as error:
            raise ConfigError(f"{self.journal} is damaged ({error}); nothing was changed in it") from error
        finally:
            file.close()

    def note(self, name: str, value: str) -> None:
        """Write a fact into the journal, which no map has open.

        Raises:
            ConfigError: another process has the journal open.
            OSError: the disk is full, or fails.
        """
        lock = Lock(self.journal, lambda: False)
        try:
            file = JournalFile(self.journal)
            try:
                file.set_meta([(name, value)])
            finally:
                file.close()
        except (sqlite3.Error, JournalFailed) as error:
            raise OSError(errno.EIO, f"{self.journal}: {error}") from error
        finally:
            lock.release()

    def settings(self) -> dict[str, Any]:
        """Return the command's settings.

        Raises:
            ConfigError: there are none that can be read.
        """
        return self._read(_SETTINGS)

    def manifest(self) -> dict[str, Any]:
        """Return the manifest.

        Raises:
            ConfigError: there is none that can be read.
        """
        return self._read(_MANIFEST)

    def spool(self, stream: IO[bytes]) -> Path | None:
        """Write an input that can be read once into a new file of the folder; return the file.

        Returns:
            ``None`` if there was nothing to read, and the folder has an input.

        Raises:
            JournalFailed: the disk is full, or the stream cannot be read.
        """
        # A name of its own: nobody has locked the folder yet.
        beside = self.path / f"{_INPUT}-{os.getpid()}"
        try:
            with open(beside, "wb", opener=partial(os.open, mode=0o600)) as file:
                shutil.copyfileobj(stream, file, _CHUNK_BYTES)
                file.flush()
                os.fsync(file.fileno())
            if beside.stat().st_size or not self.input.exists():
                return beside
            beside.unlink()
        except OSError as error:
            raise file_error(beside, error) from None
        return None

    def write_settings(self, fields: Mapping[str, Any]) -> None:
        """Write the command's settings down; the job is no longer finished.

        Raises:
            OSError: the disk is full, or fails.
        """
        (self.path / _MANIFEST).unlink(missing_ok=True)
        self._write(_SETTINGS, fields)

    def write_manifest(self, fields: Mapping[str, Any]) -> None:
        """Write the manifest: the job is finished.

        Raises:
            OSError: the disk is full, or fails.
        """
        self._write(_MANIFEST, fields)

    def take_manifest(self) -> dict[str, Any] | None:
        """Remove the manifest, and return it: the job is not finished until it is written again.

        Raises:
            ConfigError: there is one that cannot be read.
            OSError: the disk fails.
        """
        if not self.is_finished:
            return None
        fields = self.manifest()
        (self.path / _MANIFEST).unlink()
        sync_folder(self.path)
        return fields

    @property
    def replaces_another(self) -> bool:
        """Whether the job has put another one aside, which goes when this one is finished."""
        try:
            return self.settings().get("replaces_job") is True
        except ConfigError:
            return False

    def move_to(self, aside: JobFolder) -> None:
        """Put a finished job aside.

        Raises:
            ConfigError: the place is taken, or files of others are in the folder.
            OSError: the folder cannot be moved.
        """
        if aside.path.exists():
            raise ConfigError(
                f"{aside.path}: the job that is replaced goes there, and the place is taken; move it away"
            )
        foreign = next((each.name for each in self.path.iterdir() if not self._is_own(each.name)), None)
        if foreign is not None or self.path.is_symlink():
            what = "it is a link" if foreign is None else f"it has other files, such as {foreign}"
            raise ConfigError(f"{self.path}: the job cannot be replaced: {what}; remove it with `batchclient job rm`")
        self.path.rename(aside.path)

    def remove(self) -> None:
        """Remove the job's files, and the folder, if nothing of others is in it.

        Raises:
            OSError: a file cannot be removed.
        """
        if not self.path.is_dir():
            return
        # The manifest goes last: half of a finished job is no unfinished one.
        names = sorted((each.name for each in self.path.iterdir()), key=lambda name: (name == _MANIFEST, name))
        for name in names:
            if self._is_own(name):
                (self.path / name).unlink(missing_ok=True)
        if self.path.is_symlink():
            self.path.unlink()
            return
        try:
            self.path.rmdir()
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise

    def _read(self, name: str) -> dict[str, Any]:
        path = self.path / name
        try:
            fields = json.loads(path.read_bytes())
        except OSError as error:
            raise ConfigError(f"{path}: {reason_of(error)}") from None
        except ValueError:
            raise ConfigError(f"{path} is damaged: it is no JSON") from None
        if not isinstance(fields, dict):
            raise ConfigError(f"{path} is damaged: it is no JSON object")
        return fields

    def _write(self, name: str, fields: Mapping[str, Any]) -> None:
        beside = self.path / f"{name}.new"
        beside.unlink(missing_ok=True)
        file = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            data = json.dumps(fields, indent=1, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
            while data:
                data = data[os.write(file, data) :]
            sync(file)
        finally:
            os.close(file)
        beside.rename(self.path / name)
        sync_folder(self.path)


def _exported(line: Line) -> dict[str, Any] | None:
    key, n, identity, state, attempts, crc, error, body = line
    try:
        check(key, n, state, attempts, crc, error, body)
        row = {"key": key.hex(), "n": n, "id": identity, "state": state, "attempts": attempts}
        return row | ({"error": json.loads(error or "")} if body is None else {"answer": fields_in(body)})
    except ValueError:  # Damaged is one
        return None
