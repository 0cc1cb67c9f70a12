"""A job whose answers are kept: its journal, and what the journal notes of ``OUT``.

Rules:
- ``OUT.journal`` has the answers. The same command again goes on with them.
- The journal notes each file that takes rows before it is made, so that the next run may remove it;
  and ``OUT`` before it is renamed, so that it is known as the job's own, also as a copy or by
  another name. Any other ``OUT`` is refused, unless ``--new`` is given.
- A finished job is known by sizes and times of ``OUT``, ``IN`` and the files that its rows name; by
  checksums where a copy has other times.
- A note of another form is none, whatever its checksum says.
- A job whose audit is still to come says so: the same command makes up for it, also with ``--new``.
- ``--new`` begins another job in the same journal. Until its ``OUT`` is in place, the job before
  is there, too: a command goes on with the job of its own settings, and of two with the older one.
  With ``--new`` it goes on with the new one, until that has no row left that may succeed later.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from batchclient.cli._finish_by import next_time
from batchclient.cli._map_options import MapOptions
from batchclient.cli._refusal import Refusal
from batchclient.cli._rows import Names
from batchclient.errors import BatchClientError
from batchclient.jobs.inputs import shown
from batchclient.jobs.output import Output
from batchclient.jobs.source import Source
from batchclient.journal.held import HeldJournal
from batchclient.journal.rows import MAY_BE_TRIED
from batchclient.journal.settings import Journal

__all__ = ["Kept", "kept_by", "outputs_in", "pilot_in", "place_of", "seconds_in"]

T = TypeVar("T")

_OUTPUTS = "outputs"
"""The note about a journal's outputs, by their paths from its folder; the latest is the last."""


class _FileNote(TypedDict, total=False):
    """Of a file: the name of what takes its rows; size, mtime and checksum, and the file before."""

    part: Annotated[str, Field(pattern=r"^[^/\x00]+\.[0-9a-f]{16}\.part$")]
    out: list[int] | None
    was: list[int] | None


class _ReadNote(TypedDict):
    shard: Annotated[list[int], Field(min_length=2, max_length=2)] | None


_FactsNote = TypedDict("_FactsNote", {"in": Any, "read": _ReadNote})


def _renamed(price: Any) -> Any:
    """A price in today's names."""
    old = {"per_million_in": "input", "per_million_out": "output"}
    return {old.get(name, name): each for name, each in price.items()} if isinstance(price, dict) else price


class _NamesNote(TypedDict):
    """Of the fields that are added: by which options they were named, and those that ``IN`` has."""

    by: list[Any]
    taken: list[str]


class _Note(_FileNote, total=False):
    names: _NamesNote
    beside: dict[Literal[".errors", ".ids"], _FileNote]
    facts: _FactsNote
    price: Annotated[dict[Literal["per_hour", "input", "output"], float | None], BeforeValidator(_renamed)] | None
    begun: str
    finish_by: dict[str, float]
    finished: str
    input: str
    seconds: float
    paid: float
    audit: float | None
    media: str | None
    media_checksum: str | None
    checksum: int | None
    status: int
    broken: str
    bad: dict[str, int]
    read: int
    answered: int
    failed: int
    reused: int
    may_be_tried: int
    not_sent: int


_notes = TypeAdapter(_Note)
_bounds = TypeAdapter(tuple[float, float])


@contextmanager
def kept_by(
    options: MapOptions, output: Output, source: Source, media: Callable[..., str | None] = lambda **_: None
) -> Iterator[Kept | None]:
    """Open what keeps a job's answers; ``None``: rows go to the output alone.

    Args:
        options, output: of the job.
        source: the input.
        media: tells what changes with the files that its rows name, which are opened if ``reads``.

    Raises:
        Refusal, ConfigError: there is a job or a file that the command does not go on with.
        OSError: the disk fails.
    """
    place = place_of(options, output)
    if place is None:
        yield None
        return
    is_there = os.path.lexists(place)
    settings = _settings(options)
    journal = Journal(place, retry_failed=options.retry_failed, settings=settings, dedupe=options.dedupe)
    with closing(HeldJournal.open(journal)) as held:
        try:
            # The command before may have ended while its journal was waited for.
            output.look()
            output.check_free()
            kept = Kept(held, place, options, output, source, media=media)
            kept.check()
            yield kept
        finally:
            if not is_there:
                _discard(held)


def place_of(options: MapOptions, output: Output) -> Path | None:
    """Return the place of a job's journal; ``None``: it has none.

    Raises:
        Refusal: rows go there, or there is an output without a journal.
    """
    if not output.is_file and options.journal is None:
        return None
    beside = output.path.with_name(f"{output.path.name}.journal")
    place = beside if options.journal is None else Path(options.journal)
    if not place.name:
        raise Refusal(f"--journal: {options.journal!r} names no file")
    files = [output] if output.beside is None else [output, output.beside]
    taken = {_real(path) for each in files for path in (each.path, each.link)}
    if output.is_file and _real(place) in taken:
        raise Refusal(f"--journal: {place}: rows go there; name another file")
    if not (options.new or os.path.lexists(place)):
        _refuse_foreign(place, output)
    return place


def _refuse_foreign(place: Path, output: Output) -> None:
    if output.beside is not None:
        _refuse_foreign(place, output.beside)
    if output.is_file and output.before is not None:
        raise Refusal(f"{output.name}: the file exists, and {place} does not; --new replaces it in the end")


def _discard(held: HeldJournal) -> None:
    """Remove a journal that this command has made, if it has no record and its output has no end."""
    if any("out" in told for told in outputs_in(held).values()) or not held.still_held():
        return
    with held.path.open("rb") as file:
        if not any(line.startswith(b'{"key"') for line in file):
            held.path.unlink()


def _real(path: Path) -> str:
    return os.path.realpath(path)


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


class Kept:
    """The journal of one run, and its notes about the output.

    Args:
        journal: open.
        place: where the journal is.
        options, output: of the job.
        source: the input.
        media: as for ``kept_by``.

    Attributes:
        journal, place: the arguments.
    """

    def __init__(
        self,
        journal: HeldJournal,
        place: Path,
        options: MapOptions,
        output: Output,
        source: Source,
        *,
        media: Callable[..., str | None] = lambda **_: None,
    ) -> None:
        self._media = media
        self.journal: HeldJournal = journal
        self.place: Path = place
        self._options = options
        self._output = output
        # A journal and its output may move together.
        self._name = os.path.relpath(_real(output.path), _real(place.parent)) if output.is_file else output.device
        journal.complete(self._is_made_by)
        self._differences = journal.choose(_job_of(options), is_new=options.new)
        self._outputs: dict[str, dict[str, Any]] = outputs_in(journal)
        if output.is_file and self._name not in self._outputs and len(self._outputs) == 1:
            ((name, told),) = self._outputs.items()
            if not os.path.lexists(os.path.join(place.parent, name)) and self._is_of(told, output):  # noqa: PTH118
                # The output was renamed, and perhaps the journal.
                self._outputs = {self._name: told}
        self._told: dict[str, Any] = self._outputs.pop(self._name, {})
        self._source = source
        self._facts = _facts(options, source.stamp)
        # Each form has a second file of its own name, and the job may have been of several forms.
        self._suffix = "" if output.beside is None else output.beside.path.suffix
        self._beside: dict[str, Any] = self._told.get("beside", {}).get(self._suffix, {})
        if options.new and not self._is_begun:
            if options.journal is not None and (others := self._others):
                also = f"{place} has the answers of {', '.join(others)}, too"
                raise Refusal(f"--new: {also}; name another file with --journal")
            journal.begin_anew()
            self._differences, self._outputs, self._told, self._beside = [], {}, {}, {}

    @property
    def _is_begun(self) -> bool:
        """Whether a command with ``--new`` has begun this job, and it is not done.

        Once its ``OUT`` is in place, the job is of this file alone.
        """
        journal, told, output = self.journal, self._told, self._output
        if not journal.is_new or self._differences or not (told or self._options.journal is None):
            return False
        is_ours = not output.is_file or self.is_in_place or self._is_of(told, output, "was")
        return is_ours or not journal.is_in_place

    def _is_made_by(self, notes: Mapping[str, Any]) -> bool:
        """Whether ``OUT`` is what a job with these notes has finished."""
        told = _outputs_of(notes).get(self._name, {})
        return "facts" in told and self._is_of(told, self._output) and not self._has_part(told)

    def _has_part(self, told: Mapping[str, Any]) -> bool:
        part = told.get("part")
        return part is not None and os.path.lexists(self._output.path.with_name(part))

    @property
    def _others(self) -> list[str]:
        """The other outputs whose answers the journal has."""
        names = dict.fromkeys(name for notes in self.journal.all_notes for name in _outputs_of(notes))
        return [name for name in names if name != self._name]

    def __repr__(self) -> str:
        return f"<Kept in {self.place}>"

    @property
    def is_in_place(self) -> bool:
        """Whether ``OUT`` is the file that the job has finished."""
        return self._is_of(self._told, self._output)

    @property
    def is_renamed(self) -> bool:
        """Whether ``OUT`` is that file, and not one before of the same bytes."""
        return self.is_in_place and not self._has_part(self._told)

    @property
    def _is_beside(self) -> bool:
        """Whether the second file, if there has to be one, is that of the finished job."""
        beside = self._output.beside
        return beside is None or self._is_of(self._beside, beside)

    def _is_of(self, told: Mapping[str, Any], output: Output, name: str = "out") -> bool:
        """Whether a note is of the file that is there: nobody has written it since, or it is a copy."""
        then, now = told.get(name), None if output.before is None else _stamp(output.before)
        if then is None or now is None or then[:1] != now[:1]:
            return False
        return then[:2] == now or (len(then) == 3 and then[2] == output.checksum_before())

    def check(self) -> None:
        """Refuse a job of other settings, and an output that is not its own.

        Raises:
            Refusal: it is so.
        """
        journal, options = self.journal, self._options
        if self._differences and journal.rows:
            # A trial's answers go with those of the job whose journal it has used.
            others = options.journal is not None and self._others
            way = "name another file with --journal" if others else "--new begins anew"
            rows = f"{journal.path} has {journal.rows:,} rows of another job"
            raise Refusal(f"{rows}, with another {' and another '.join(self._differences)}; {way}")
        is_another = options.retries["truncated"] and self._told.get("retries") != options.retries
        if options.pilot and (options.retry_failed or (journal.rows and is_another)):
            raise Refusal(f"--pilot is for new rows; leave it out where rows of {journal.path} are asked again")
        output = self._output
        part, now = self._told.get("facts", {}).get("read", {}).get("shard"), self._facts["read"]["shard"]
        if options.new:
            return
        if part != now and self.is_in_place:
            was, is_ = (f"part {each[0]}/{each[1]}" if each else "the whole" for each in (part, now))
            raise Refusal(f"{output.name} has {was} of its input, not {is_}; --new replaces it in the end")
        if output.is_file and output.before is not None and not self.is_in_place:
            if "out" not in self._told:
                if journal.is_new:
                    begun = f"{self.place} has a job begun with --new that is not finished"
                    raise Refusal(f"{output.name}: {begun}; --new goes on with it")
                raise Refusal(f"{output.name}: {self.place} has not written this file; --new replaces it in the end")
            if not self._is_of(self._told, output, "was"):
                raise Refusal(
                    f"{output.name}: the file has changed since the job wrote it; move it away, and the same command "
                    "writes it anew from the journal"
                )

        beside = output.beside
        if beside is None or beside.before is None:
            return
        if not (self._is_beside or self._is_of(self._beside, beside, "was")):
            raise Refusal(f"{beside.name}: {self.place} has not written this file; --new replaces it in the end")

    @property
    def status(self) -> int | None:
        """The status of the finished job, where nothing is to be done."""
        told = self._told
        if (
            not (self.is_renamed and self._is_beside)
            or not self._facts["in"]
            or not self._has_facts
            # It asks rows again; the others come from the journal.
            or self._options.audited is not None
        ):
            return None
        again = told.get("failed", 0) if self._options.retry_failed else told.get("may_be_tried", 0)
        # The journal knows answers by the bytes that were sent, which may be others now.
        if not again and told.get("media") != self._media():
            checksum = told.get("media_checksum")
            again = checksum is None or checksum != self._media(reads=True)
        return None if again else told.get("status")

    @property
    def _has_facts(self) -> bool:
        """Whether ``OUT`` is made of what the command gives, of this input or of one like it."""
        told, now = self._told.get("facts"), self._facts
        if told == now or told is None or {**told, "in": None} != {**now, "in": None}:
            return told == now
        checksum = self._told.get("checksum")
        return checksum is not None and checksum == self._source.checksum()

    @property
    def without(self) -> str:
        """What is said of a command that goes on with a job that is done; empty: nothing."""
        given = {"--new": self._options.new, "--pilot": self._options.pilot is not None}
        others = " and ".join(name for name, is_given in given.items() if is_given)
        return f" without {others}" if others else ""

    @property
    def failed(self) -> str:
        """What is said of the finished job's failed rows; empty: none failed."""
        failed, not_sent = self._told.get("failed", 0), self._told.get("not_sent", 0)
        told = f"; --fail-if {broken}" if (broken := self._told.get("broken")) else ""
        told += f"; rows that were not sent: {not_sent:,} (mend the input)" if not_sent else ""
        if failed > not_sent:
            way = f"--retry-failed{self.without} runs them again"
            told += f"; {failed - not_sent:,} of its rows failed for good; {way}"
        return told

    def names(self, names: Names) -> Names:
        """Return the names of the output's fields as they were when the job began.

        Args:
            names: those of a job that begins now.
        """
        form, columns = self._facts["as"][:1], self._facts["columns"]
        by, told = [*form, names.answer_field, columns], self._told.get("names")
        if told is None and "begun" in self._told:
            return replace(names, taken=None)
        if told is None or told["by"] != by:
            self._told["names"] = told = {"by": by, "taken": sorted(names.taken or ())}
        return replace(names, taken=frozenset(told["taken"]))

    def settled(self) -> int:
        """Take in the answers of a pilot; return the rows of the journal that the job does not send.

        Raises:
            OSError: the disk fails.
        """
        self.journal.read_again()
        return sum(fields.get("state") != MAY_BE_TRIED for fields in self.journal.records())

    def begin(self) -> str:
        """Remove the rows of a run that was killed, and note the file of this one; return its token.

        Raises:
            OSError: the disk fails.
        """
        parts = [each.get("part") for told in self._earlier for each in (told, *told.get("beside", {}).values())]
        for name in ("facts", "status", "failed", "may_be_tried", "not_sent", "broken", "bad"):
            # ``OUT`` stays the job's own, and is no longer all that the command asks for.
            self._told.pop(name, None)
        token, output = self.journal.token, self._output
        if output.is_file:
            for part in filter(None, parts):
                output.remove(part)
            self._told["part"] = output.part_of(token).name
        if output.beside is not None:
            self._note_beside(part=output.beside.part_of(token).name)
        self.note_begun()
        return token

    def note_begun(self) -> None:
        """Note what the job is, and since when."""
        source, cost = self._options.source, self._options.cost
        self._note(
            input=shown(source) if source == "-" or "://" in source else _real(Path(source)),
            begun=self._told.get("begun") or _now(),
            price=None if cost is None or cost.price is None else asdict(cost.price),
            retries=self._options.retries,
        )

    def finish_by(self, text: str) -> float:
        """Return when the job has to end, by a time of day: the next one when the job first began."""
        told: dict[str, float] = {} if "facts" in self._told else self._told.get("finish_by", {})
        now = time.time()
        self._told["finish_by"] = {text: told[text] if text in told else next_time(text, now)}
        return self._told["finish_by"][text]  # type: ignore[no-any-return]

    def end(self, file: os.stat_result | None, seconds: float, paid: float, **counts: Any) -> None:
        """Note an output that is whole, before it is put in its place.

        Args:
            file: the status of its file; ``None``: it is none.
            seconds: that this run took.
            paid: what it cost at servers with a price of their own.
            counts: of its rows, and the status of the command.

        Raises:
            OSError: the disk fails, or another command has the journal.
        """
        if not self.journal.still_held():
            raise OSError(errno.ESTALE, f"{self.place} was moved, or another command has taken the job over")
        beside = self._output.beside
        self._told |= self._stamps(self._output, file)
        if beside is not None:
            self._note_beside(**self._stamps(beside, beside.status))
        audit, media = self._options.audited, self._options.media
        self._note(
            facts=self._facts,
            finished=_now(),
            **self._spent(seconds, paid),
            audit=audit,
            checksum=self._source.checksum(),
            media=None if media is None else f"{media.stamp:016x}",
            media_checksum=None if media is None else f"{media.checksum:016x}",
            **counts,
        )

    def audited(self) -> None:
        """Note that the audit has ended, if that can be written."""
        with suppress(OSError, BatchClientError):
            self._note(audit=None)

    def leave(self, seconds: float, paid: float) -> None:
        """Note what a run has spent that did not come to the end, if that can be written."""
        if self.journal.job is not None:
            with suppress(OSError, BatchClientError):
                self._note(**self._spent(seconds, paid))

    def settle(self) -> None:
        """Remove the second files of the job's other forms: they are not about this output.

        Those who come later go on with no job that ``--new`` has replaced.

        Raises:
            BatchClientError, OSError: the disk fails.
        """
        for suffix, told in (file for each in self._earlier for file in each.get("beside", {}).items()):
            path = self._output.path.with_name(f"{self._output.path.name}{suffix}")
            if suffix != self._suffix and path.is_file() and _stamp(path.lstat()) == (told.get("out") or [])[:2]:
                path.unlink()
        self.journal.settle(is_alone=not self._others)

    def done(self) -> None:
        """Note that ``--new`` begins anew from now on, if that can be written."""
        with suppress(OSError, BatchClientError):
            self.journal.settle(is_alone=not self._others, is_done=True)

    @property
    def _earlier(self) -> list[dict[str, Any]]:
        """What is noted about the output, also of older jobs."""
        return [self._told, *(_outputs_of(notes).get(self._name, {}) for notes in self.journal.all_notes)]

    def _stamps(self, output: Output, file: os.stat_result | None) -> dict[str, Any]:
        """Return the note about a file that takes the rows, and about the one whose place it takes."""
        return {
            "out": None if file is None else [*_stamp(file), output.checksum],
            "was": None if output.before is None else _stamp(output.before),
        }

    def _note_beside(self, **facts: Any) -> None:
        self._beside |= facts
        self._told["beside"] = self._told.get("beside", {}) | {self._suffix: self._beside}

    def _spent(self, seconds: float, paid: float) -> dict[str, float]:
        """Return the notes about what this run and those before have spent."""
        spent = {"seconds": round(self._told.get("seconds", 0.0) + seconds, 3)}
        cost = self._options.cost
        if "paid" in self._told or (cost is not None and cost.of_servers):
            spent["paid"] = self._told.get("paid", 0.0) + paid
        return spent

    def _note(self, **facts: Any) -> None:
        self._told |= facts
        self.journal.note(_OUTPUTS, {**self._outputs, self._name: self._told})


def outputs_in(journal: HeldJournal) -> dict[str, dict[str, Any]]:
    """Return a journal's note about its outputs; one of another form is none."""
    return _outputs_of(journal.notes)


def _outputs_of(notes: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    outputs = notes.get(_OUTPUTS)
    found = outputs.items() if isinstance(outputs, dict) else ()
    return {name: told for name, told in found if _read(_notes, told) is not None}


def pilot_in(journal: HeldJournal) -> tuple[float, float] | None:
    """Return a journal's note about the seconds that a row takes, by its pilot: their bounds."""
    told = journal.notes.get("pilot")
    return _read(_bounds, tuple(told) if isinstance(told, list) else None)


def _read(kind: TypeAdapter[T], told: Any) -> T | None:
    """Return a note; ``None``: it has another form."""
    try:
        return kind.validate_python(told, strict=True)
    except ValidationError:
        return None


def seconds_in(place: Path, options: MapOptions) -> tuple[int, float, float]:
    """Return the rows in a job's journal, and the bounds of the seconds for a row; 0: unknown.

    Raises:
        ConfigError, OSError: it cannot be read.
    """
    if not place.exists():
        return 0, 0.0, 0.0
    with closing(HeldJournal.look_into(place)) as held:
        if held.choose({"call": options.call, "settings": _settings(options)}) or not held.rows:
            return 0, 0.0, 0.0
        in_runs = sum(told.get("seconds", 0.0) for told in outputs_in(held).values()) / held.rows
        return held.rows, *(pilot_in(held) or (in_runs, in_runs))


def _stamp(status: os.stat_result) -> list[int]:
    """Return what tells a file that nobody has written since."""
    return [status.st_size, status.st_mtime_ns]


def _job_of(options: MapOptions) -> dict[str, Any]:
    """Return what decides the answers, as far as it is known before a server is asked."""
    model = options.client["model"]
    return {"call": options.call, "settings": _settings(options), **({} if model is None else {"model": model})}


def _settings(options: MapOptions) -> dict[str, Any]:
    """Return what decides an answer, but for call and model, by names that tell a difference."""
    schema = None if options.answers_as is None else options.answers_as.model_json_schema()
    told = {
        "rows": options.rows,
        "row_params": options.row_params,
        "documents": options.documents,
        "top_n": options.top_n,
        "media": None if options.media is None else list(options.media.fields),
    }
    of_rows = {name: value for name, value in told.items() if value is not None}
    return {**options.params, "template": options.prompt, "system": options.system, "schema": schema, **of_rows}


def _facts(options: MapOptions, source: list[Any] | None) -> dict[str, Any]:
    """Return what an output is made of."""
    return {
        "answers": [options.call, options.client["model"], _settings(options)],
        "in": source,
        "read": {name: list(value) if isinstance(value, tuple) else value for name, value in options.file.items()},
        "form": [not options.unordered, options.dedupe, options.first, options.retries, options.fail_if or []],
        "as": [options.output_form, options.answer_field, options.answer_columns, *filter(None, [options.id])],
        "columns": None if options.kept_columns is None else [*options.kept_columns],
    }
