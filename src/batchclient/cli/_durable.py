"""A map that survives its end: the journal beside the output, and the output that each row is in once.

Rules:
- A regular ``OUT`` has ``OUT.job``, unless ``--no-journal`` is given. A pipe has none by itself.
- A job that is there is never begun anew in silence: it goes on with ``--resume``, is removed with
  ``batchclient job rm``, and a finished one is replaced with ``--overwrite``.
- The output goes on where the journal's mark says (``jobs.marks``), if the rows before the mark are
  the first rows of the input. In all other cases the rows are written anew, from the journal, into
  ``OUT.part``: for ``--unordered``, for failed rows that run again, after a change of the input.
- The end of a job: mark, rename, mark, manifest. A kill between two of them costs nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import sqlite3
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchclient import __version__
from batchclient.cli._map_options import MapOptions
from batchclient.cli._refusal import Refusal
from batchclient.errors import ConfigError
from batchclient.jobs import BadRow
from batchclient.jobs.folder import JobFolder, JobState
from batchclient.jobs.marks import NAME, Mark, OutputChanged
from batchclient.jobs.output import Output, reason_of
from batchclient.journal import Journal
from batchclient.journal.of_file import Coverage, FileJournal

if TYPE_CHECKING:
    from batchclient.cli._job import Job
    from batchclient.jobs.writer import Writer

__all__ = ["Durable", "durable_of", "folder_of"]

_VARIABLE = "BATCHCLIENT_JOURNAL_DIR"
_CHUNK_BYTES = 1024 * 1024


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


def durable_of(options: MapOptions) -> Durable | None:
    """Return what keeps a job's rows; ``None``: rows go to the output alone.

    Raises:
        Refusal: the options do not go together, or there is a job that they would lose.
    """
    kept = options.kept
    is_file = options.output != "-" and (not Path(options.output).exists() or Path(options.output).is_file())
    if kept.no_journal or not options.output or not (is_file or kept.journal is not None):
        for option, given in (("--resume", kept.resume), ("--journal", kept.journal is not None)):
            if given and kept.no_journal:
                raise Refusal(f"{option}: not with --no-journal")
        if kept.resume:
            raise Refusal(f"--resume: rows to {options.output or 'an empty path'} have no journal; give --journal PATH")
        return None
    return Durable(options, folder_of(options.output, kept.journal))


class Durable:
    """The journal of one run of ``batchclient map``, and its output's place.

    Args:
        options: of the job.
        folder: of the job.

    Attributes:
        folder: the argument.
        covered: the rows that the output has already.
        failed_before: rows among them that failed.

    Raises:
        Refusal: there is a job, and the options say neither to go on nor to replace it.
    """

    def __init__(self, options: MapOptions, folder: JobFolder) -> None:
        self.folder: JobFolder = folder
        self.covered: Coverage = Coverage()
        self.failed_before: int = 0
        self._options = options
        self._kept = options.kept
        self._state: JobState | None = None
        self._is_new = True
        self._output: Output
        self._journal: FileJournal
        self._failed: Callable[[], int] = lambda: 0
        self._is_marking = False
        self._inode = 0
        self._look()

    @property
    def continues(self) -> bool:
        """Whether there is a job that goes on."""
        return self._state is not None

    def __repr__(self) -> str:
        return f"<Durable {self.folder.path}>"

    @property
    def answered_before(self) -> int:
        """The answers that the journal had at the beginning."""
        return 0 if self._state is None else self._state.answered

    # Before anything is changed --------------------------------------------------------------------------------------

    def _look(self) -> None:
        state = self.folder.state(check_tail=self._kept.resume)
        if state is None:
            return
        if self._kept.resume:
            self._state, self._is_new = state, False
            return
        if not state.rows:
            return
        name, out = self.folder.path, self._options.output
        rows = f"{state.answered:,} {'answer' if state.answered == 1 else 'answers'}"
        if not self.folder.is_finished:
            if self._options.overwrite:
                raise Refusal(
                    f"--overwrite: {name} has {rows} of an unfinished job; --resume goes on with it, "
                    f"`batchclient job rm {name}` gives them up"
                )
            raise Refusal(
                f"{name} has {rows} of an unfinished job, begun {state.begun}; --resume goes on with it, "
                f"`batchclient job rm {name}` gives them up"
            )
        if not self._options.overwrite:
            raise Refusal(
                f"{out}: its job is finished, and {name} has {rows}; --resume maps the rows that are new in IN, "
                "--overwrite begins anew"
            )

    def place(self, output: Output) -> None:
        """Find out where the output goes on. Nothing is changed.

        Raises:
            Refusal: the output is not the one that the job has written.
        """
        self._output = output
        if not output.is_file:
            return
        state = self._state
        if state is None:
            output.choose(replaces=self._options.overwrite and output.path.exists())
            return
        mark = state.mark
        if mark is None:
            # Killed before the first mark: the output is not there, or has no row.
            if output.path.exists() and output.path.stat().st_size:
                raise Refusal(
                    f"{output.name}: the file exists, and {self.folder.path} has not written it; move it away"
                )
            self._rewrite(exists=output.path.exists())
            return
        where = output.part if mark.replaces else output.path
        if mark.replaces and not where.exists():
            # Renamed, and killed before the journal said so.
            where = output.path
        try:
            found = mark.check(where)
        except FileNotFoundError:
            self._rewrite(exists=output.path.exists())
            return
        except OutputChanged as error:
            if mark.replaces:
                self._rewrite(exists=output.path.exists())
                return
            raise Refusal(
                f"{output.name} {error}; `batchclient job publish {self.folder.path}` writes it anew from the journal"
            ) from None
        covered = mark.covered
        if covered is None or mark.form != self._form or self._runs_again(state):
            self._rewrite(exists=True)
            return
        output.choose(replaces=where == output.part, at=mark.size)
        output.sha256 = found
        self.covered, self.failed_before = covered, mark.failed

    def _runs_again(self, state: JobState) -> bool:
        """Whether rows that the output may have run again, or may be in another place."""
        retried = state.may_be_tried if self._kept.retry_failed != "none" else 0
        if self._kept.retry_failed == "all":
            retried += state.failed
        return bool(retried or state.damaged) or not self._knows_rows or self._kept.publish

    @property
    def _knows_rows(self) -> bool:
        """Whether the rows of the output are the first ones of the input."""
        return self._options.ordered and not self._options.dedupe and not self._kept.publish

    @property
    def _form(self) -> str:
        """How rows are written."""
        options = self._options
        return json.dumps([options.call, options.packed, options.rows.columns and list(options.rows.columns)])

    def rewrite(self) -> None:
        """Write all rows anew: the input has changed."""
        self._rewrite(exists=True)

    def _rewrite(self, *, exists: bool) -> None:
        self.covered, self.failed_before = Coverage(), 0
        self._output.choose(replaces=exists)

    # The run ---------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Make the folder. A finished job that is replaced goes.

        Raises:
            ConfigError: the folder cannot be made.
        """
        self.folder.make()
        try:
            if self._state is None and self.folder.journal.exists():
                self.folder.remove()
                self.folder.make()
        except OSError as error:
            raise ConfigError(f"{self.folder.path}: {reason_of(error)}") from None

    def spool(self) -> MapOptions:
        """Write standard input into the folder; return the options that read it from there.

        An empty standard input is none: the rows of the run before are read again.

        Raises:
            ConfigError: the disk is full, or standard input cannot be read.
        """
        beside = self.folder.path / "input.new"
        try:
            with open(beside, "wb", opener=partial(os.open, mode=0o600)) as file:
                shutil.copyfileobj(sys.stdin.buffer, file, _CHUNK_BYTES)
                file.flush()
                os.fsync(file.fileno())
            if beside.stat().st_size or not self.folder.input.exists():
                beside.rename(self.folder.input)
            else:
                beside.unlink()
        except OSError as error:
            raise ConfigError(f"{beside}: {reason_of(error)}") from None
        return self._options.reading(str(self.folder.input))

    def arguments(self) -> dict[str, Any]:
        """Return the arguments for ``stream_map``."""
        kept, options = self._kept, self._options
        journal = Journal(
            self.folder.journal, disk_patience_s=kept.disk_patience_s, reuse=[_journal_in(each) for each in kept.reuse]
        )
        self._journal = FileJournal(
            journal,
            json.dumps([options.prompt, options.system]),
            covered=self.covered,
            identify=_identify,
            only_kept=kept.publish,
        )
        return {
            "journal": self._journal,
            "resume": True,
            "retry_failed": "none" if kept.publish else kept.retry_failed,
            "accept_changed": kept.accept_changed,
        }

    def opened(self, failed: Callable[[], int]) -> None:
        """Write down the settings, and where the rows go, before the first one goes there.

        Args:
            failed: tells how many rows failed so far.

        Raises:
            ConfigError: the settings cannot be written.
        """
        self._failed = failed
        try:
            self.folder.write_settings(self._options.for_file())
        except OSError as error:
            raise ConfigError(f"{self.folder.path}: {reason_of(error)}") from None
        if self._output.is_file:
            status = self._place.stat()
            self._inode = status.st_ino
            self._note(self._mark_of(status.st_size, self._output.sha256.hexdigest(), self.covered, self.failed_before))

    @property
    def _place(self) -> Path:
        return self._output.part if self._output.is_replaced else self._output.path

    def mark(self, writer: Writer) -> None:
        """Write down how far the output is, once it is there."""
        if self._is_marking or not self._output.is_file:
            return
        self._is_marking = True
        coverage = self._journal.coverage
        failed = self.failed_before + self._failed()
        writer.mark(partial(self._on_marked, Coverage(coverage.rows, coverage.digest), failed))

    def _on_marked(self, coverage: Coverage, failed: int, size: int, sha256: str) -> None:
        self._is_marking = False
        self._note(self._mark_of(size, sha256, coverage, failed))

    def _note(self, mark: Mark) -> None:
        self._journal.note(NAME, mark.write())

    def _mark_of(self, size: int, sha256: str, coverage: Coverage, failed: int) -> Mark:
        knows = self._knows_rows
        return Mark(
            replaces=self._output.is_replaced,
            size=size,
            sha256=sha256,
            inode=self._inode,
            form=self._form,
            rows=coverage.rows if knows else None,
            digest=coverage.digest.hex() if knows else "",
            failed=failed,
        )

    # The end ---------------------------------------------------------------------------------------------------------

    def discard(self) -> None:
        """Remove the folder of a job that could not begin."""
        if self._is_new and self.folder.path.is_dir():
            try:
                self.folder.remove()
            except OSError:  # it is in nobody's way: it has no row
                return

    def finish(self, job: Job, source: str) -> None:
        """Write down how the job ended, and put the output in its place.

        Args:
            job: that has ended.
            source: the name of the input.

        Raises:
            OSError: the disk is full, or fails.
        """
        output = self._output
        if not output.is_file:
            if job.is_whole:
                self.folder.write_manifest(self._manifest(job, source, None))
            return
        if not job.wrote_all or not self._place.exists():
            return
        size = self._place.stat().st_size
        sha256 = output.sha256.hexdigest()
        failed = self.failed_before + self._failed()
        mark = self._mark_of(size, sha256, self._journal.coverage, failed)
        self.folder.note(NAME, mark.write())
        if not job.is_whole and not self._kept.publish:
            return
        if output.is_replaced:
            output.put_in_place()
            output.choose(replaces=False)
            self.folder.note(NAME, self._mark_of(size, sha256, self._journal.coverage, failed).write())
        if not self._kept.publish:
            self.folder.write_manifest(self._manifest(job, source, (size, sha256)))

    def _manifest(self, job: Job, source: str, written: tuple[int, str] | None) -> dict[str, Any]:
        options = self._options
        outputs = []
        if written is not None:
            outputs = [{"path": str(self._output.path), "bytes": written[0], "sha256": written[1]}]
        return {
            "version": 1,
            "input": source if source == "-" else os.path.realpath(source),
            "outputs": outputs,
            "read": job.read,
            "answered": job.answered,
            "failed": job.failed,
            "filtered": 0,
            "reused": job.reused,
            "model": state.model if (state := self.folder.state()) is not None else None,
            "call": options.call,
            "finished": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
            "versions": {
                "batchclient": __version__,
                "python": platform.python_version(),
                "sqlite": sqlite3.sqlite_version,
            },
        }


def _journal_in(job: str) -> Path:
    """Return the journal of another job, given as its folder or its file."""
    return JobFolder(Path(job)).journal if Path(job).is_dir() else Path(job)


def _identify(document: Any, error: Exception) -> bytes | None:
    """Return the identity of a row that makes no request: of its content."""
    from batchclient.cli._repeats import is_repeated

    if is_repeated(error):
        # An equal row has the record.
        return None
    reason = document.fault if isinstance(error, BadRow) and document.fault is not None else ""
    return hashlib.sha256(f"no request: {reason}: {document!r}".encode("utf-8", "surrogatepass")).digest()[:16]
