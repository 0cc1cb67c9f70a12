"""The reports that a measurement writes.

Rules:
- A place that cannot be written is refused before a call is sent; so is a file that another option
  names, too.
- A report that fails at the end costs the measurement nothing: the other one is written.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from batchclient.bench.report import Report, write_report
from batchclient.cli._refusal import Refusal
from batchclient.cli._words import say
from batchclient.jobs.output import reason_of

__all__ = ["Outputs", "are_one_file", "write_page", "writing"]


@dataclass(frozen=True, slots=True)
class Outputs:
    """Where the reports go.

    Args:
        html, json: the files of ``--report`` and ``--json``.
        prompts: the file of ``--prompts``, which is no output.
    """

    html: str | None = None
    json: str | None = None
    prompts: str | None = None

    def check(self) -> None:
        """Refuse a place that cannot be written, before hours are spent.

        Raises:
            Refusal: names the option.
        """
        taken = [("--prompts", self.prompts)]
        for option, path in (("--report", self.html), ("--json", self.json)):
            if path is None:
                continue
            if path == "-":
                raise Refusal(f"{option} -: the name of a file; the standard output has the answer")
            for other, of_other in taken:
                if of_other is not None and are_one_file(path, of_other):
                    raise Refusal(f"{option} {path}: the file of {other}; give another name")
            taken.append((option, path))
            file = Path(path)
            is_new = not file.exists()
            with writing(path):
                file.open("a", encoding="utf-8").close()
                # Stopped early, a measurement leaves no empty file, and a link as it was.
                if is_new:
                    file.resolve().unlink()

    def write(self, report: Report) -> bool:
        """Write the reports; return whether all are written."""
        failed = False
        for path, write in ((self.json, write_report), (self.html, write_page)):
            try:
                if path is not None:
                    write(report, Path(path))
            except OSError as error:
                failed = True
                say(f"{path}: {reason_of(error)}", event="error")
        return not failed


def write_page(report: Report, path: Path) -> None:
    """Write a report for people.

    Raises:
        OSError: the file cannot be written.
    """
    from batchclient.bench.html import html_of

    path.write_text(html_of(report), encoding="utf-8", errors="backslashreplace")


def are_one_file(path: str, other: str) -> bool:
    """Whether two paths lead to one file, which need not be there; a device takes several outputs."""
    one, two = Path(path), Path(other)
    try:
        return one.samefile(two) and one.is_file()
    except OSError:
        return one.resolve() == two.resolve()


@contextmanager
def writing(path: str) -> Iterator[None]:
    """Refuse a file that cannot be written.

    Raises:
        Refusal: with the reason.
    """
    try:
        yield
    except OSError as error:
        raise Refusal(f"{path}: {reason_of(error)}") from None
