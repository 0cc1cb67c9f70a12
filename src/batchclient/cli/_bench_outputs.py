"""What a measurement writes: its reports, and each call's times.

Rules:
- A place that cannot be written is refused before a call is sent; so is a file that another option
  names, too.
- A file that fails later costs the measurement nothing: the rest is measured, said and written.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from batchclient.bench.cell import Setting
from batchclient.bench.generator import Window
from batchclient.bench.report import Report, write_report
from batchclient.cli._refusal import Refusal
from batchclient.cli._words import say
from batchclient.jobs.output import reason_of

__all__ = ["Outputs", "are_one_file", "writing"]


@dataclass(slots=True)
class Outputs:
    """Where the report goes, and what it tells beside the figures.

    Args:
        html, json, calls: the files of ``--report``, ``--json`` and ``--calls``.
        prompts: the file of ``--prompts``, which is no output.
        gpu_price, gpus: of the server.

    Attributes:
        failed: whether a file could not be written.
    """

    html: str | None
    json: str | None
    calls: str | None
    prompts: str | None
    gpu_price: float | None
    gpus: int
    failed: bool = False
    _file: IO[str] | None = field(default=None, repr=False)

    def check(self) -> None:
        """Refuse a place that cannot be written, before hours are spent."""
        named = [("--report", self.html), ("--json", self.json), ("--calls", self.calls)]
        taken = [] if self.prompts is None else [("--prompts", self.prompts)]
        for option, path in named:
            if path is None:
                continue
            if path == "-":
                raise Refusal(f"{option} -: the name of a file; the standard output has the answer")
            for other, of_other in taken:
                if are_one_file(path, of_other):
                    raise Refusal(f"{option} {path}: the file of {other}; give another name")
            taken.append((option, path))
        for _, path in named:
            if path is not None:
                file = Path(path)
                is_new = not file.exists()
                with writing(path):
                    file.open("a", encoding="utf-8").close()
                    # Stopped early, a measurement leaves no empty file, and a link as it was.
                    if is_new:
                        file.resolve().unlink()

    def note(self, setting: Setting, repetition: int, window: Window) -> None:
        """Write the calls of a cell."""
        if self.calls is None or self.failed:
            return
        with self._told(self.calls, "; the measurement goes on without it"):
            if self._file is None:
                self._file = Path(self.calls).open("w", encoding="utf-8")  # noqa: SIM115  # closed at the end
            for row in _rows(setting, repetition, window):
                self._file.write(json.dumps(row, allow_nan=False) + "\n")
            self._file.flush()

    def write(self, told: Report) -> None:
        """Write the reports."""
        if self.json is not None:
            with self._told(self.json):
                write_report(told, Path(self.json))
        if self.html is not None:
            from batchclient.bench.html import html_of

            with self._told(self.html):
                Path(self.html).write_text(html_of(told), encoding="utf-8", errors="backslashreplace")

    def close(self) -> None:
        """Close the file of the calls. Safe to call twice."""
        file, self._file = self._file, None
        if file is not None and self.calls is not None:
            with self._told(self.calls):
                file.close()

    def price_of(self, tokens_per_s: float) -> str | None:
        """Return the price of a million tokens at a speed, in words."""
        if self.gpu_price is None or not tokens_per_s:
            return None
        per_million = self.gpu_price * self.gpus / (tokens_per_s * 3600) * 1e6
        return f"a million tokens, in and out, costs {per_million:.3g} at that speed"

    @contextmanager
    def _told(self, path: str, more: str = "") -> Iterator[None]:
        """Say which file cannot be written, and go on."""
        try:
            yield
        except OSError as error:
            self.failed = True
            say(f"Error: {path}: {reason_of(error)}{more}")


def are_one_file(path: str, other: str) -> bool:
    """Whether two paths lead to one file, which need not be there; a device takes several outputs."""
    one, two = Path(path), Path(other)
    try:
        return one.samefile(two) and one.is_file()
    except OSError:
        return one.resolve() == two.resolve()


def _rows(setting: Setting, repetition: int, window: Window) -> Iterator[dict[str, Any]]:
    calls, zero = window.calls, window.begins
    for place in range(len(calls)):
        times = {name: getattr(calls, name)[place] for name in ("scheduled", "begun", "sent", "first", "ended")}
        yield {
            "setting": str(setting),
            "repetition": repetition,
            **{name: None if math.isnan(at) else round(at - zero, 6) for name, at in times.items()},
            "counted": window.begins <= calls.scheduled[place] < window.ends,
            "prompt_tokens": calls.prompt_tokens[place],
            "output_tokens": calls.output_tokens[place],
            "error": calls.errors.get(place),
        }


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
