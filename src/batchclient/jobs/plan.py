"""Where the rows of a job with a journal go: on in ``OUT``, on in ``OUT.part``, or anew.

Rules:
- The output goes on where the journal's mark says, if the file is as the mark says.
- ``OUT`` that somebody has changed is refused. ``OUT.part`` is the job's own, and is written anew.
- A file that the job has not written is never cut. It is replaced only if it is the one that the
  job was to replace from the beginning.
- Where there is an ``OUT``, rows that are written anew go to ``OUT.part``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from batchclient.errors import ConfigError
from batchclient.jobs.marks import Mark, OutputChanged, stamp_of
from batchclient.jobs.output import Output
from batchclient.journal.of_file import Coverage

__all__ = ["Plan", "anew", "plan_of"]


@dataclass(frozen=True, slots=True)
class Plan:
    """Where the rows of a run go.

    Args:
        replaces: into ``OUT.part``, which is to replace ``OUT``.
        at: the offset to go on from; ``None``: the file is new.
        sha256: the hash object of what is before the offset.
        covered: the rows that are before the offset.
        failed: rows among them that failed.
        part_is_own: whether an ``OUT.part`` with rows is the job's own, and may go.
    """

    replaces: bool
    at: int | None = None
    sha256: Any = None
    covered: Coverage = field(default_factory=Coverage)
    failed: int = 0
    part_is_own: bool = True

    def choose(self, output: Output) -> None:
        """Tell the output."""
        output.choose(replaces=self.replaces, at=self.at, part_is_own=self.part_is_own)
        if self.sha256 is not None:
            output.sha256 = self.sha256


def anew(output: Output, mark: Mark | None) -> Plan:
    """Plan to write all rows anew.

    Args:
        output: a named file.
        mark: the latest of the journal, if there is one.
    """
    return Plan(replaces=output.path.exists(), part_is_own=mark is not None and mark.replaces)


def plan_of(output: Output, mark: Mark | None, *, form: str, job: str, is_finished: bool = False) -> Plan:
    """Find out where a job goes on. Nothing is changed.

    Args:
        output: a named file.
        mark: of the journal, if there is one.
        form: how rows are written now.
        job: how messages name the job.
        is_finished: whether nothing may be behind the mark, not even the beginning of a row.

    Raises:
        ConfigError: the output is not the one that the job has written.
    """
    if mark is None:
        # Killed before the first mark: the output is not there, or has no row.
        if output.path.exists() and output.path.stat().st_size:
            raise ConfigError(f"{output.name}: the file exists, and {job} has not written it; move it away")
        return anew(output, mark)
    is_renamed = mark.replaces and not output.part.exists()
    # Renamed, and killed before the journal said so: the part is the output.
    where = output.part if mark.replaces and not is_renamed else output.path
    is_old = stamp_of(output.path) in ("", mark.replaced)
    if mark.replaces and not is_renamed and not is_old:
        raise ConfigError(f"{output.name}: the file is not the one that {job} was to replace; move it away")
    try:
        found = mark.check(where, is_all=is_finished)
    except FileNotFoundError:
        return anew(output, mark)
    except OutputChanged as error:
        if mark.replaces and is_old:
            return anew(output, mark)
        if mark.name != output.path.name:
            raise ConfigError(f"{output.name} is not the output of {job}, which is {mark.name}") from None
        advice = f"`batchclient job publish {job}` writes it anew from the journal"
        raise ConfigError(f"{output.name} {error}; {advice}") from None
    if mark.covered is None or mark.form != form:
        return anew(output, mark)
    return Plan(where == output.part, mark.size, found, mark.covered, mark.failed)
