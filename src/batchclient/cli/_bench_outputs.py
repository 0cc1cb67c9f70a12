"""What a measurement writes: its reports, and each call's times."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from batchclient.bench.cell import Cell, Setting
from batchclient.bench.generator import Window
from batchclient.bench.report import Report, write_report
from batchclient.cli._refusal import Refusal
from batchclient.jobs.output import reason_of

__all__ = ["Outputs", "writing"]


@dataclass(slots=True)
class Outputs:
    """Where the report goes, and what it tells beside the figures."""

    html: str | None
    json: str | None
    calls: str | None
    gpu_price: float | None
    gpus: int
    _file: IO[str] | None = None

    def check(self) -> None:
        """Refuse a place that cannot be written, before hours are spent."""
        for path in (self.html, self.json, self.calls):
            if path is not None:
                is_new = not Path(path).exists()
                with writing(path):
                    Path(path).open("a", encoding="utf-8").close()
                    # A measurement that is stopped early leaves no empty file behind.
                    if is_new:
                        Path(path).unlink()

    def note(self, setting: Setting, repetition: int, window: Window) -> None:
        """Write the calls of a cell."""
        if self.calls is None:
            return
        if self._file is None:
            self._file = Path(self.calls).open("w", encoding="utf-8")  # noqa: SIM115  # closed at the end
        for row in _rows(setting, repetition, window):
            self._file.write(json.dumps(row, allow_nan=False) + "\n")

    def write(self, told: Report) -> None:
        """Write the reports."""
        if self._file is not None:
            self._file.close()
        if self.json is not None:
            with writing(self.json):
                write_report(told, Path(self.json))
        if self.html is not None:
            from batchclient.bench.html import html_of

            with writing(self.html):
                Path(self.html).write_text(html_of(told), encoding="utf-8")

    def price_of(self, cell: Cell) -> str | None:
        """Return the price of a million tokens at a cell's speed, in words."""
        if self.gpu_price is None or not cell.tokens_per_s:
            return None
        per_million = self.gpu_price * self.gpus / (cell.tokens_per_s * 3600) * 1e6
        return f"a million tokens, in and out, costs {per_million:.3g} there"


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
    try:
        yield
    except OSError as error:
        raise Refusal(f"{path}: {reason_of(error)}") from None
