"""A map that survives its end: a journal beside the output, and an output that has each row once.

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

import errno
import hashlib
import json
import os
import re
import sys
from contextlib import nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from batchclient.cli._manifest import manifest_of, output_in_manifest
from batchclient.cli._map_options import MapOptions
from batchclient.cli._refusal import Refusal
from batchclient.errors import ConfigError
from batchclient.jobs import BadRow
from batchclient.jobs.folder import JobFolder, JobState, file_error, folder_of, may_be_file
from batchclient.jobs.marker import Marker
from batchclient.jobs.marks import NAME, Mark
from batchclient.jobs.output import Output, reason_of
from batchclient.jobs.owner import Owner, is_locked, lock_of
from batchclient.jobs.plan import Plan, anew, plan_of
from batchclient.journal import Journal
from batchclient.journal.of_file import Coverage, FileJournal

if TYPE_CHECKING:
    from batchclient.cli._tally import Tally
    from batchclient.jobs.writer import Writer

__all__ = ["Durable", "durable_of"]

_DOCUMENT = re.compile(r"^document \d+: ")


def durable_of(options: MapOptions) -> Durable | None:
    """Return what keeps a job's rows; ``None``: rows go to the output alone.

    Raises:
        Refusal: the options do not go together, or there is a job that they would lose.
    """
    kept = options.kept
    is_file = options.output != "-" and may_be_file(options.output)
    if kept.no_journal or not options.output or not (is_file or kept.journal is not None):
        for option, given in (("--resume", kept.resume), ("--journal", kept.journal is not None)):
            if given and kept.no_journal:
                raise Refusal(f"{option}: not with --no-journal")
        if kept.resume:
            name = "stdout" if options.output == "-" else options.output or "an empty path"
            raise Refusal(f"--resume: rows to {name} have no journal; give --journal DIR")
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
        self._aside = JobFolder(folder.path.with_name(f"{folder.path.name}.old"))
        self.covered: Coverage = Coverage()
        self.failed_before: int = 0
        self._options = options
        self._kept = options.kept
        self._state: JobState | None = None
        self._is_new = True
        self._replaces = False
        self._is_spooled = False
        self._spooled: Path | None = None
        self._output: Output
        self._journal: FileJournal
        self._tally: Tally | None = None
        self._marker: Marker
        self._goes_on = False
        self._owner: Owner | None = None
        self._missing: int | None = None
        self._look()

    @property
    def publishes(self) -> bool:
        """Whether rows are taken from the journal alone."""
        return self._kept.publish

    @property
    def continues(self) -> bool:
        """Whether there is a job that goes on."""
        return self._state is not None

    def __enter__(self) -> Self:
        if self._kept.journal is not None:
            # Several outputs may name one folder. The lock of an output keeps its own folder.
            self._owner = Owner(lock_of(self.folder.path), str(self.folder.path))
            self._look()
        return self

    def __exit__(self, *_: object) -> None:
        if self._owner is not None:
            self._owner.release()

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
            self._replaces = self.folder.replaces_another
            return
        if not state.rows:
            return
        self._replaces = True
        name, out = self.folder.path, self._options.output
        rows = f"{state.answered:,} {'answer' if state.answered == 1 else 'answers'}"
        if not self.folder.is_finished:
            self._refuse_running()
            if self._options.overwrite:
                raise Refusal(
                    f"--overwrite: {name} has {rows} of an unfinished job; --resume goes on with it, "
                    f"`batchclient job rm --force {name}` gives them up"
                )
            raise Refusal(
                f"{name} has {rows} of an unfinished job, begun {state.begun}; --resume goes on with it, "
                f"`batchclient job rm --force {name}` gives them up"
            )
        if not self._options.overwrite:
            raise Refusal(
                f"{out}: its job is finished, and {name} has {rows}; --resume maps the rows that are new in IN, "
                "--overwrite begins anew"
            )

    def _refuse_running(self) -> None:
        """Refuse by name where another command is at work: its job is no unfinished one.

        Raises:
            ConfigError: it is.
        """
        if self._options.output != "-" and self._options.output:
            place = Path(os.path.realpath(self._options.output))
            if is_locked(lock_of(place)):
                Owner(lock_of(place), self._options.output).release()

    def place(self, output: Output) -> None:
        """Find out where the output goes on. Nothing is changed.

        Raises:
            ConfigError: the output is not the one that the job has written.
        """
        self._output = output
        if not output.is_named:
            return
        self._marker = Marker(output, self._form)
        state = self._state
        if state is None:
            plan = Plan(replaces=self._options.overwrite and output.path.exists())
        elif self._kept.publish:
            # Beside the place also where there is no output: a part of one is none.
            plan = Plan(replaces=True)
        else:
            is_finished = self.folder.is_finished
            plan = plan_of(output, state.mark, form=self._form, job=str(self.folder.path), is_finished=is_finished)
            if self._runs_again(state):
                plan = anew(output, state.mark)
        self._follow(plan)

    def _follow(self, plan: Plan) -> None:
        self.covered, self.failed_before = plan.covered, plan.failed
        self._goes_on = plan.at is not None
        plan.choose(self._output)

    def _runs_again(self, state: JobState) -> bool:
        """Whether rows that the output may have run again, or may be in another place."""
        retried = state.may_be_tried if self._kept.retry_failed != "none" else 0
        if self._kept.retry_failed == "all":
            retried += state.failed
        return bool(retried or state.damaged) or not self._knows_rows

    @property
    def _knows_rows(self) -> bool:
        """Whether the rows of the output are the first ones of the input."""
        # While a journal is published nobody knows yet which rows it does not have.
        is_known = not self._kept.publish or self._missing == 0
        return self._options.ordered and not self._options.dedupe and is_known

    @property
    def _form(self) -> str:
        """How rows are written."""
        options = self._options
        return json.dumps([options.call, options.packed, options.rows.columns and list(options.rows.columns)])

    def rewrite(self) -> None:
        """Write all rows anew: the input has changed."""
        mark = self._marker.last if self._state is None else self._state.mark
        self._follow(anew(self._output, mark))

    # The run ---------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Make the folder. A finished job that is replaced is kept aside until the new one has an end.

        Raises:
            ConfigError: the folder cannot be made.
            JournalFailed: the disk is full, or fails.
        """
        try:
            if self._state is None and self.folder.journal.exists():
                if self._replaces:
                    self.folder.move_to(self._aside)
                else:
                    # Killed before its first row: what it was to replace may still be aside.
                    self.folder.remove()
            self.folder.make()
        except OSError as error:
            raise file_error(self.folder.path, error) from None

    def spool(self) -> None:
        """Write an input that can be read once into the folder: standard input, or a pipe.

        Where it is empty, the rows of the run before are read again.

        Raises:
            ConfigError: the input cannot be opened.
            JournalFailed: the disk is full, or the input cannot be read.
        """
        source = self._options.source
        try:
            with nullcontext(sys.stdin.buffer) if source == "-" else Path(source).open("rb") as stream:
                self._spooled = self.folder.spool(stream)
        except OSError as error:
            raise ConfigError(f"{source}: {reason_of(error)}") from None
        self._is_spooled = True

    @property
    def options(self) -> MapOptions:
        """The job's options; a spooled input is read from its file."""
        if not self._is_spooled:
            return self._options
        return self._options.reading(str(self._spooled or self.folder.input))

    def arguments(self) -> dict[str, Any]:
        """Return the arguments for ``stream_map``."""
        kept, options = self._kept, self._options
        journal = Journal(
            self.folder.journal,
            disk_patience_s=kept.disk_patience_s,
            reuse=[self._journal_in(each) for each in kept.reuse],
        )
        self._journal = FileJournal(
            journal,
            json.dumps([options.prompt, options.system]),
            covered=self.covered,
            identify=_identify,
            explain=_explain,
            only_kept=kept.publish,
        )
        return {
            "journal": self._journal,
            "resume": True,
            "retry_failed": "none" if kept.publish else kept.retry_failed,
            "accept_changed": kept.accept_changed,
        }

    def _journal_in(self, job: str) -> Path:
        """Return the journal of another job, given as its folder or its file."""
        folder = JobFolder(Path(job))
        if folder.path.is_dir():
            if folder.path.resolve() == self.folder.path.resolve():
                raise Refusal(f"--reuse: {job} is this job's own folder; give --resume to go on with it")
            return folder.journal
        if Path(f"{job}.job").is_dir():
            raise Refusal(f"--reuse: {job} is no job's folder; {job}.job is one")
        if not folder.path.exists():
            raise Refusal(f"--reuse: {job}: there is no job")
        return folder.path

    def settle(self) -> None:
        """Write the settings down. The journal is open, and the output is not.

        Raises:
            JournalFailed: the disk is full, or fails.
        """
        if self._output.is_named and (mark := self._marker.before(goes_on=self._goes_on)) is not None:
            self._note(mark)
        if self._kept.publish:
            return
        options = self._options.reading("-") if self._is_spooled else self._options
        try:
            if self._spooled is not None:
                self._spooled = self._spooled.rename(self.folder.input)
            settings = options.for_file(self.folder.path) | {"replaces_job": self._replaces}
            self.folder.write_settings(settings)
        except OSError as error:
            raise file_error(self.folder.path, error) from error

    def opened(self, tally: Tally) -> None:
        """Write down where the rows go, before the first one goes there.

        Args:
            tally: of the job.
        """
        self._tally = tally
        if self._output.is_named:
            self._note(self._marker.opened(self._known(self.covered), self.failed_before))

    def mark(self, writer: Writer, *, is_last: bool = False) -> None:
        """Write down how far the output is, once it is there.

        Args:
            writer: of the output.
            is_last: whether no row behind this place is in turn.
        """
        if not self._output.is_named or self._journal.skips:
            return
        assert self._tally is not None
        rows, failed = self._known(self._journal.coverage), self._tally.failed_in_output
        self._marker.ask(writer, rows, failed, self._note, is_last=is_last)

    def _known(self, coverage: Coverage) -> Coverage | None:
        return coverage if self._knows_rows else None

    def _note(self, mark: Mark) -> None:
        self._journal.note(NAME, mark.write())

    # The end ---------------------------------------------------------------------------------------------------------

    def discard(self, *, is_refused: bool = False) -> None:
        """Remove the folder of a job that could not begin. A job that has begun keeps its rows.

        Args:
            is_refused: whether the job has begun, and no row was written.
        """
        if self._spooled is not None and self._spooled != self.folder.input:
            self._spooled.unlink(missing_ok=True)
        if self._is_new and (self._tally is None or is_refused) and self.folder.path.is_dir():
            try:
                self.folder.remove()
                if self._aside.path.is_dir():
                    self._aside.path.rename(self.folder.path)
            except OSError:  # it is in nobody's way: it has no row
                return

    def finish(self, *, is_whole: bool, wrote_all: bool) -> None:
        """Write down how the job ended, and put the output in its place.

        Args:
            is_whole: whether all rows of the input are in the output.
            wrote_all: whether the output has taken all rows given to it.

        Raises:
            OSError: the disk is full, or fails.
        """
        if self._tally is None:
            # Ended before the output was opened.
            self.discard()
            return
        self._end(self._tally, is_whole=is_whole, wrote_all=wrote_all)
        if is_whole and self._replaces:
            with suppress(OSError):
                self._aside.remove()

    def _end(self, tally: Tally, *, is_whole: bool, wrote_all: bool) -> None:
        output = self._output
        self._missing = tally.missing
        if not output.is_named:
            if is_whole:
                self.folder.write_manifest(self._manifest(tally, []))
            return
        if not wrote_all:
            return
        if self._marker.is_moved:
            # An output without a row is removed where it is closed.
            if tally.read or is_whole:
                raise OSError(errno.ESTALE, "the file was moved or replaced while the job ran")
            return
        if not is_whole:
            self.folder.note(NAME, self._marker.last.write())
            return
        failed = tally.failed_in_output
        size, sha256 = self._marker.place.stat().st_size, output.sha256.hexdigest()
        mark = self._marker.at(size, sha256, self._known(self._journal.coverage), failed)
        self.folder.note(NAME, mark.write())
        written = output_in_manifest(output.path, size, sha256)
        # A job that is published may be finished: its manifest is of the output that goes.
        finished = self.folder.take_manifest() if self._kept.publish else None
        if output.is_replaced:
            output.put_in_place()
            output.choose(replaces=False)
            self.folder.note(NAME, replace(mark, replaces=False).write())
        if not self._kept.publish:
            self.folder.write_manifest(self._manifest(tally, [written]))
        elif finished is not None:
            self.folder.write_manifest(finished | {"outputs": [written]})

    def _manifest(self, tally: Tally, outputs: list[dict[str, Any]]) -> dict[str, Any]:
        source = "-" if self._is_spooled else self._options.source
        model = state.model if (state := self.folder.state()) is not None else None
        return manifest_of(tally, outputs, source=source, call=self._options.call, model=model)


def _explain(document: Any, error: Exception) -> str:
    """Return why a row makes no request, with the line's number in place of the document's."""
    return _DOCUMENT.sub(f"line {document.line}: ", str(error), count=1)


def _identify(document: Any, error: Exception) -> bytes | None:
    """Return the identity of a row that makes no request: of its content."""
    from batchclient.cli._repeats import is_repeated

    if is_repeated(error):
        # An equal row has the record.
        return None
    reason = document.fault if isinstance(error, BadRow) and document.fault is not None else ""
    return hashlib.sha256(f"no request: {reason}: {document!r}".encode("utf-8", "surrogatepass")).digest()[:16]
