"""A map's side of its journal, in the event loop: which rows are sent, when they are handed out.

Rules:
- With a journal that has rows, a row waits for a lookup before it is sent. Lookups go to the
  journal's thread in batches: what one turn has read, 256 rows at most.
- A row that has ended joins the group. The group is committed when it is full, when its first row
  has waited ``commit_s``, or when no open row is left that could join it.
- A row is handed out when its group is committed. A row that the client's end cut short is handed
  out at once: nothing is known of it, and it is not written down.
- While eight groups wait, or the disk refuses, no document is read.
- The map is known weakly, as by its rows.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import partial
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Protocol

import anyio

from batchclient._core.histograms import DURATIONS, Recorder
from batchclient.errors import BatchClientError, ConfigError, JournalFailed
from batchclient.journal import Journal
from batchclient.journal.journal import journal_of
from batchclient.journal.of_file import CoverChanged, FileJournal, NotKept

if TYPE_CHECKING:
    from batchclient._core.messages import Request, Shape
    from batchclient._shell.backend import Cancellable
    from batchclient._shell.runner import Runner
    from batchclient.journal.file import Pair
    from batchclient.journal.records import Record
    from batchclient.journal.writer import Kept, Writer

__all__ = ["Journaled", "make_journaled"]

_LOOKED_UP_AT_ONCE = 256
_MOST_GROUPS = 8
_GROUPS_OPEN = 3
"""A group is a third of the look-ahead at most: rows are under way while it is committed."""
_LEAST_TELLING = 16
"""So many rows, none of which is in the journal, say that the prompts have changed."""
_CLOSING_S = 30.0
"""How long the end of a map waits for its last commit, seconds."""

_log = logging.getLogger("batchclient")


class _Row(Protocol):
    key: bytes
    n: int
    own_id: str | None
    attempts: int
    reused: bool
    unusable: str | None
    document: Any
    request: Request | None
    answer: Any
    error: Exception | None

    def reuse(self, answer: Any, error: Exception | None, attempts: int) -> None: ...

    def set_exception(self, error: BaseException) -> None: ...


class _Owner(Protocol):
    def _hand_out(self, row: Any) -> None: ...

    def _fail(self, error: Exception) -> None: ...

    def _wake(self) -> None: ...


class Journaled:
    """The rows of one map on their way into its journal, or out of it.

    Args:
        journal: the map's.
        resume, accept_changed: as for ``stream_map``.
        retry_failed: as for ``stream_map``.
        describe: returns the call's name, the template and the shape, once the model is known.
        by_template: whether those are all that makes the prompts.
        again: makes of a kept answer the caller's, such as its ``parsed``.
        of_file: what a job from file to file asks for.

    Attributes:
        owner: a weak reference to the map.
        damaged: rows of the journal that were damaged.
        commits: times of the commits of rows, seconds.
    """

    owner: Callable[[], _Owner | None]

    def __init__(
        self,
        journal: Journal,
        *,
        resume: bool,
        retry_failed: str,
        accept_changed: bool,
        describe: Callable[[], tuple[str, str | None, Shape]],
        by_template: bool,
        again: Callable[[Any], Any] | None,
        of_file: FileJournal | None = None,
    ) -> None:
        self._journal = journal
        self.of_file: FileJournal | None = of_file
        self._resume = resume
        self._retry_failed = retry_failed
        self._accept_changed = accept_changed
        self._describe = describe
        self._again = again
        self.damaged: int = 0
        self.commits: Recorder = Recorder(DURATIONS)
        self._may_be_changed = not (by_template or accept_changed)
        """Whether the first lookup is to find anything."""
        self._writer: Writer | None = None
        self._opened: anyio.Event | None = None
        self._refusal: BatchClientError | None = None
        self._closed: anyio.Event | None = None
        self._runner: Runner
        self._record_of: Callable[..., Record]
        self._is_kept: Callable[[Exception | None], bool]
        self._has_rows = False
        self._wanted: tuple[int, ...] = ()
        """States of rows that are taken as they are in the journal."""
        self._under_way = 0
        """Open rows that have not ended."""
        self._asked: list[_Row] = []
        self._rows: list[_Row] = []
        self._records: list[Record] = []
        self._group_rows = journal.commit_rows
        self._timer: Cancellable | None = None
        self._commits = 0
        self._trouble = ""
        self._is_over = False

    @property
    def holds_back(self) -> bool:
        """Whether no document is to be read now."""
        return self._commits >= _MOST_GROUPS or bool(self._trouble) or self._is_over

    @property
    def more_ahead(self) -> int:
        """How many rows more than without a journal are to be open, unless the caller says."""
        return (_GROUPS_OPEN - 1) * self._journal.commit_rows

    async def open(self, runner: Runner, look_ahead: int) -> None:
        """Open the journal, in its thread.

        Raises:
            ConfigError: the journal is in use, no journal, or in the wrong place; or it has rows,
                and the map does not resume, or has another template or other parameters.
            JournalFailed: the disk failed.
        """
        if self._opened is None:
            # Here, not above: a script without a journal is spared SQLite.
            from batchclient.journal.records import ANSWERED, FAILED, MAY_BE_TRIED, is_kept, record_of
            from batchclient.journal.writer import Job, Writer

            self._record_of, self._is_kept = record_of, is_kept
            self._wanted = {
                "all": (ANSWERED,),
                "transient": (ANSWERED, FAILED),
                "none": (ANSWERED, FAILED, MAY_BE_TRIED),
            }[self._retry_failed]
            self._opened, self._runner = anyio.Event(), runner
            self._group_rows = max(1, min(self._journal.commit_rows, look_ahead // _GROUPS_OPEN))
            call, template, shape = self._describe()
            if self.of_file is not None:
                template = self.of_file.template
            # Model and parameters are in the shape's key; server, key and priority are not.
            config = sha256(json.dumps([call, template]).encode() + shape.answer_key).hexdigest()
            self._writer = Writer(self._journal, runner.backend.call_soon_threadsafe, self._give_up)
            self._writer.open(Job(self._resume, self._accept_changed, config, shape.model), self._on_opened)
        await self._opened.wait()
        if self._refusal is not None:
            raise self._refusal
        if self.of_file is not None:
            self.of_file.bind(self._note)

    def _note(self, name: str, value: str) -> None:
        if self._writer is not None and not self._is_over:
            self._writer.note(name, value, self._on_written, self._on_trouble)

    def _on_opened(self, refusal: BatchClientError | None) -> None:
        assert self._opened is not None
        self._refusal = refusal
        self._has_rows = self._writer is not None and self._writer.has_rows
        self._opened.set()

    # Rows in ---------------------------------------------------------------------------------------------------------

    def enter(self, row: _Row, request: Request) -> None:
        """Send a row, or look it up first."""
        self._under_way += 1
        if not self._has_rows and (self.of_file is None or not self.of_file.only_kept):
            self._runner.submit(request, may_wait=True)
            return
        self._asked.append(row)
        if len(self._asked) >= _LOOKED_UP_AT_ONCE:
            self._ask()
        elif len(self._asked) == 1:
            self._runner.backend.call_soon(self._ask)

    @property
    def skips(self) -> bool:
        """Whether the next document is one that the output has."""
        return self.of_file is not None and self.of_file.skips

    def skip(self, key: bytes, document: Any) -> None:
        """Take in a document that the output has.

        Raises:
            CoverChanged: the first documents are others than those that the output has.
        """
        assert self.of_file is not None
        self.of_file.skip(key, document)
        self._runner.reused += 1

    def on_short(self) -> None:
        """Take in that there are fewer documents than the output has.

        Raises:
            CoverChanged: always.
        """
        raise CoverChanged

    def key_without_request(self, document: Any, error: Exception) -> bytes | None:
        """Return the identity of a document that makes no request, if such a row has a record."""
        return None if self.of_file is None else self.of_file.identify(document, error)

    def taken(self, row: Any) -> None:
        """Count a row that is handed out."""
        if self.of_file is not None and hasattr(row, "key"):
            self.of_file.coverage.add(row.key, row.document)

    def enter_failed(self, row: _Row, error: Exception) -> None:
        """Take in a row that makes no request: it fails for good."""
        assert self.of_file is not None
        row.unusable = self.of_file.explain(row.document, error)
        self._under_way += 1
        row.set_exception(error)

    def _ask(self) -> None:
        rows, self._asked = self._asked, []
        if rows and self._writer is not None:
            self._writer.look_up([(row.key, row.n) for row in rows], partial(self._on_found, rows))

    def _on_found(self, rows: list[_Row], found: dict[Pair, Kept]) -> None:
        owner = self.owner()
        if owner is None or self._is_over:
            return
        if self._may_be_changed and len(rows) >= _LEAST_TELLING and not found:
            message = (
                f"none of the first {len(rows)} rows is in the journal {self._journal.path}: the prompts have changed,"
                " or the rows are new; accept_changed=True runs them"
            )
            self._give_up(ConfigError(message, field="accept_changed"))
            return
        self._may_be_changed = False
        for row in rows:
            request = row.request
            if request is None:
                # The map was closed.
                continue
            kept = found.get((row.key, row.n))
            if kept is not None and kept.damaged:
                self.damaged += 1
            elif kept is not None and kept.state in self._wanted and self._revive(row, kept):
                self._under_way -= 1
                self._runner.reused += 1
                if kept.elsewhere:
                    self._join(row)
                else:
                    owner._hand_out(row)
                continue
            if self.of_file is not None and self.of_file.only_kept:
                self._under_way -= 1
                row.reuse(None, NotKept(), 0)
                owner._hand_out(row)
                continue
            self._runner.submit(request, may_wait=True)

    def _revive(self, row: _Row, kept: Kept) -> bool:
        answer = kept.answer
        if answer is not None and self._again is not None:
            try:
                answer = self._again(answer)
            except Exception:  # a validator may be the user's code: the row is asked again
                return False
        row.reuse(answer, kept.error, kept.attempts)
        return True

    # Rows out --------------------------------------------------------------------------------------------------------

    def on_ended(self, row: _Row) -> None:
        """Take in a row that has its answer or its error."""
        self._under_way -= 1
        if not self._is_kept(row.error):
            owner = self.owner()
            if owner is not None:
                owner._hand_out(row)
        else:
            self._join(row)
        if self._under_way <= 0 and (owner := self.owner()) is not None:
            # Perhaps nothing more comes.
            owner._wake()

    def _join(self, row: _Row) -> None:
        if self._is_over:
            return
        try:
            record = self._record_of(
                row.key, row.n, row.own_id, row.answer, row.error, row.attempts, unusable=row.unusable
            )
        except Exception as error:  # an answer that no server of today gives
            failed = JournalFailed(f"an answer cannot be written to a journal: {type(error).__name__}")
            failed.__cause__ = error
            self._give_up(failed)
            return
        self._rows.append(row)
        self._records.append(record)
        if len(self._rows) >= self._group_rows or self._runner.ended:
            # On trio nothing can be started once the client has ended.
            self._flush()
        elif self._timer is None:
            backend = self._runner.backend
            self._timer = backend.call_at(backend.now() + self._journal.commit_s, self._on_timer)

    def nudge(self) -> None:
        """Commit the group, if no open row is left that could join it: nothing more is read now."""
        if self._rows and self._under_way <= 0:
            self._flush()

    def _on_timer(self) -> None:
        self._timer = None
        self._flush()

    def _flush(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        rows, records = self._rows, self._records
        if not rows or self._writer is None:
            return
        self._rows, self._records = [], []
        self._commits += 1
        self._writer.commit(records, partial(self._on_committed, rows), self._on_trouble)

    def _on_committed(self, rows: list[_Row], seconds: float) -> None:
        self._commits -= 1
        self.commits.observe(seconds)
        owner = self.owner()
        if owner is not None:
            for row in rows:
                owner._hand_out(row)
        self._on_written(seconds)

    def _on_written(self, _seconds: float) -> None:
        """End the trouble, whichever task has ended it, and let documents be read again."""
        if self._trouble:
            _log.warning("the journal %s can be written again", self._journal.path)
            self._trouble = ""
        owner = self.owner()
        if owner is not None:
            owner._wake()

    def _on_trouble(self, reason: str) -> None:
        if not self._trouble:
            _log.warning(
                "the journal %s cannot be written (%s): no further rows are read; it is tried again for %.0f s",
                self._journal.path,
                reason,
                self._journal.disk_patience_s,
            )
        self._trouble = reason

    def _give_up(self, error: BatchClientError) -> None:
        if self._is_over:
            return
        self._is_over = True
        owner = self.owner()
        if owner is not None:
            owner._fail(error)

    # The end ---------------------------------------------------------------------------------------------------------

    def leave(self) -> None:
        """Commit what has ended, and close the journal, in its thread. From anywhere, repeatedly."""
        writer = self._writer
        if writer is None:
            return
        rows, records = self._rows, self._records
        self._rows, self._records = [], []
        self._writer = None
        if rows:
            writer.commit(records, partial(self._on_committed, rows), self._on_trouble)
        if not self._is_over and self.damaged:
            _log.warning("%d rows of the journal %s were damaged, and ran again", self.damaged, self._journal.path)
        self._is_over = True
        writer.close(self._on_closed)

    def close(self) -> None:
        """Do the same in the event loop, where the end can be waited for."""
        if self._writer is not None and self._closed is None:
            self._closed = anyio.Event()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self.leave()

    def _on_closed(self) -> None:
        if self._closed is not None:
            self._closed.set()

    async def closed(self) -> None:
        """Wait for the last commit, and for the lock to be free."""
        if self._closed is not None:
            with anyio.move_on_after(_CLOSING_S, shield=True):
                await self._closed.wait()


def make_journaled(
    journal: object,
    *,
    resume: bool,
    retry_failed: str,
    accept_changed: bool,
    describe: Callable[[], tuple[str, str | None, Shape]],
    by_template: bool,
    again: Callable[[Any], Any] | None,
) -> Journaled | None:
    """Check a map's arguments about its journal; ``None``: the map has no journal.

    Raises:
        ConfigError: an argument is wrong, or needs a journal.
    """
    of_file = journal if isinstance(journal, FileJournal) else None
    kept_in = journal_of(
        journal if of_file is None else of_file.journal,
        resume=resume,
        retry_failed=retry_failed,
        accept_changed=accept_changed,
    )
    if kept_in is None:
        return None
    return Journaled(
        kept_in,
        resume=resume,
        retry_failed=retry_failed,
        accept_changed=accept_changed,
        describe=describe,
        by_template=by_template or of_file is not None,
        again=again,
        of_file=of_file,
    )
