"""``Journal``: where a map's answers are kept, and how they are written."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from batchclient.errors import ConfigError

__all__ = ["Journal", "RetryFailed", "journal_of"]

RetryFailed = Literal["transient", "none", "all"]
"""Which failed rows of a journal are run again."""
_MOST_ROWS = 2048
"""Rows of a commit, at most. SQLite takes 32,766 values in a statement, and a row has eight."""
_LONGEST_S = 1e6


@dataclass(frozen=True, init=False)
class Journal:
    """The file in which a map keeps its answers, so that a later run takes them from there.

    The file is SQLite's, for one job, and written by one process at a time. It lies on a local
    disk: network file systems are refused. Beside it are ``PATH.lock`` and, while it is in use,
    ``PATH-wal`` and ``PATH-shm``. All are readable for their owner alone.

    Args:
        path: of the file, in an existing folder.
        sync: ``"full"``: each commit is on the disk before its rows are handed out. ``"normal"``: a
            power cut may lose the last commits; the end of the process loses none.
        commit_rows: rows of a commit, at most; 1 to 2,048.
        commit_s: how long a finished row waits for others, at most, seconds.
        disk_patience_s: how long a full disk is waited for before the map ends, seconds.
        reuse: journals of other jobs, whose answers are taken, too; they are only read.

    Raises:
        ConfigError: an argument is wrong.
    """

    path: Path
    sync: Literal["full", "normal"] = "full"
    commit_rows: int = 1024
    commit_s: float = 0.2
    disk_patience_s: float = 600.0
    reuse: tuple[Path, ...] = ()

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        sync: Literal["full", "normal"] = "full",
        commit_rows: int = 1024,
        commit_s: float = 0.2,
        disk_patience_s: float = 600.0,
        reuse: Sequence[str | os.PathLike[str] | Journal] = (),
    ) -> None:
        if sync not in ("full", "normal"):
            raise ConfigError(f'sync is "full" or "normal", not {sync!r:.40}', field="sync")
        if type(commit_rows) is not int or not 1 <= commit_rows <= _MOST_ROWS:
            message = f"commit_rows is a whole number from 1 to {_MOST_ROWS:,}, not {commit_rows!r:.40}"
            raise ConfigError(message, field="commit_rows")
        for name, value in (("commit_s", commit_s), ("disk_patience_s", disk_patience_s)):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < _LONGEST_S:
                raise ConfigError(f"{name} is a number of seconds, at least 0, not {value!r:.40}", field=name)
        if isinstance(reuse, (str, bytes, os.PathLike, Journal)) or not isinstance(reuse, Sequence):
            raise ConfigError("reuse is a list of journals or of their paths", field="reuse")
        others = tuple(Path(_path(each, "reuse")) for each in reuse)
        for name, given in (
            ("path", Path(_path(path, "path"))),
            ("sync", sync),
            ("commit_rows", commit_rows),
            ("commit_s", float(commit_s)),
            ("disk_patience_s", float(disk_patience_s)),
            ("reuse", others),
        ):
            object.__setattr__(self, name, given)

    def __repr__(self) -> str:
        return f"Journal({os.fspath(self.path)!r})"


def _path(given: object, field: str) -> str:
    given = given.path if isinstance(given, Journal) else given
    text = os.fspath(given) if isinstance(given, (str, os.PathLike)) else None
    if not isinstance(text, str) or not text or "\0" in text:
        raise ConfigError(f"{field} is the path of a journal's file, not {given!r:.60}", field=field)
    return text


def journal_of(journal: object, *, resume: object, retry_failed: object, accept_changed: object) -> Journal | None:
    """Check a map's arguments about its journal; ``None``: the map has no journal.

    Raises:
        ConfigError: an argument is wrong, or needs a journal.
    """
    for name, flag in (("resume", resume), ("accept_changed", accept_changed)):
        if type(flag) is not bool:
            raise ConfigError(f"{name} is true or false, not {flag!r:.40}", field=name)
    if retry_failed not in get_args(RetryFailed):
        named = ", ".join(f'"{each}"' for each in get_args(RetryFailed))
        raise ConfigError(f"retry_failed is one of {named}, not {retry_failed!r:.40}", field="retry_failed")
    if journal is None:
        for name, flag in (("resume", resume), ("accept_changed", accept_changed)):
            if flag:
                raise ConfigError(f"{name} is for a map with a journal: give it journal=PATH", field=name)
        return None
    if isinstance(journal, Journal):
        return journal
    return Journal(_path(journal, "journal"))
