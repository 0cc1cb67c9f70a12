"""The report of a measurement as JSON, and reading it again.

Rules:
- The JSON is the truth; every other form of the report is made from it.
- It has no text of prompts or answers, no key, and no URL's user part or query.
- Infinite ends of intervals are ``null``: JSON has no such numbers.
- A field of the wrong type is refused by its name; one that an earlier version did not write has
  its default.
"""

from __future__ import annotations

import json
import math
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from batchclient import ConfigError, __version__
from batchclient.bench.find import Recommendation
from batchclient.bench.generator import Times
from batchclient.bench.measurement import Measurement
from batchclient.bench.session import Session
from batchclient.bench.slo import Slo

__all__ = ["SCHEMA", "About", "Calls", "Report", "Server", "read_report", "report_of", "write_report"]

SCHEMA = 2


@dataclass(frozen=True, slots=True)
class Server:
    """The server that was measured; the name with its version."""

    url: str
    name: str | None
    model: str | None


@dataclass(frozen=True, slots=True)
class Calls:
    """The calls that were made: those of a ``Workload``.

    Args:
        own_prompts: how many texts were taken in turn; ``None``: prompts were drawn.
        fixed_length: whether answers have as many tokens as asked for.
        seed: of prompts, arrivals and orders.
    """

    call: str
    prompt_tokens: int
    output_tokens: int
    spread: float
    prefix_reuse: float | None
    own_prompts: int | None
    fixed_length: bool
    seed: int


@dataclass(frozen=True, slots=True)
class About:
    """What was measured, by whom and when; ``complete``: whether the run came to its end."""

    started: str
    complete: bool
    machine: dict[str, int | str | None]
    client: dict[str, str | None]
    server: Server
    workload: Calls
    times: Times


@dataclass(frozen=True, slots=True)
class Report:
    """A measurement that was written down.

    Args:
        about: server, client, calls, times, and how it ended.
        objectives: their texts.
        measurements: all, in their order.
        recommendation: of a search; ``None``: there is none.
        lines: the answer in words, one line each.
        schema: the version of these fields.
    """

    about: About
    objectives: tuple[str, ...]
    measurements: tuple[Measurement, ...]
    recommendation: Recommendation | None
    lines: tuple[str, ...]
    schema: int = SCHEMA

    @property
    def slos(self) -> tuple[Slo, ...]:
        """The objectives."""
        return tuple(map(Slo, self.objectives))


def report_of(
    session: Session,
    measurements: Sequence[Measurement],
    started: datetime,
    *,
    recommendation: Recommendation | None = None,
    lines: Sequence[str] = (),
    complete: bool = True,
) -> Report:
    """Return the report of a session's measurements.

    Args:
        session: the server and the workload.
        measurements: what was measured.
        started: when.
        recommendation: ``None``: there is none.
        lines: the answer in words.
        complete: whether all was measured that was asked for.
    """
    workload, openai = session.workload, getattr(sys.modules.get("openai"), "__version__", None)
    about = About(
        started=started.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        complete=complete,
        machine={"cores": os.cpu_count(), "system": f"{platform.system()} {platform.machine()}"},
        client={"batchclient": __version__, "python": platform.python_version(), "openai": openai},
        server=Server(_without_secrets(session.target.base_url), session.server, session.model),
        workload=Calls(
            call=workload.call,
            prompt_tokens=workload.prompt_tokens,
            output_tokens=workload.output_tokens,
            spread=workload.spread,
            prefix_reuse=workload.prefix_reuse,
            own_prompts=None if workload.prompts is None else len(workload.prompts),
            fixed_length=bool(session.target.fields),
            seed=session.seed,
        ),
        times=session.times,
    )
    return Report(about, tuple(slo.text for slo in session.slos), tuple(measurements), recommendation, tuple(lines))


def _without_secrets(url: str) -> str:
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def write_report(report: Report, path: Path) -> None:
    """Write a report.

    Raises:
        OSError: it cannot be written.
    """
    path.write_bytes(_form().dump_json(report, indent=1) + b"\n")


def read_report(path: Path) -> Report:
    """Read a report.

    Raises:
        ConfigError: the file is no report, is one of another version, or has a wrong field, which
            the message names.
        OSError: it cannot be read.
    """
    from pydantic import ValidationError

    try:
        written = json.loads(path.read_bytes(), object_hook=_with_ends)
        if isinstance(written, dict) and (schema := written.get("schema")) != SCHEMA:
            raise ConfigError(f"it is of schema {schema!r}, and this version reads {SCHEMA}")
        report: Report = _form().validate_python(written)
        objectives = len(report.slos)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(each) for each in first["loc"])
        raise ConfigError(f"{path}: no report, or a damaged one: {where}{where and ': '}{first['msg']}") from None
    except (ConfigError, ValueError, RecursionError) as error:
        raise ConfigError(f"{path}: no report, or a damaged one: {error}") from None
    for place, each in enumerate(report.measurements):
        if len(each.slo_hits) != objectives or max(each.slo_hits, default=0) > each.scheduled:
            raise ConfigError(f"{path}: a damaged report: measurements.{place}.slo_hits: calls for each objective")
    return report


def _with_ends(fields: dict[str, Any]) -> dict[str, Any]:
    """Return fields of JSON with the infinite ends of their intervals."""
    intervals = fields.get("intervals")
    if isinstance(intervals, dict):
        fields["intervals"] = {share: _ends(interval) for share, interval in intervals.items()}
    if "interval" in fields:
        fields["interval"] = _ends(fields["interval"])
    return fields


def _ends(interval: Any) -> Any:
    if not isinstance(interval, list) or len(interval) != 2:
        return interval
    return [end if end is not None else unknown for end, unknown in zip(interval, (-math.inf, math.inf), strict=True)]


def _form() -> Any:
    # Pydantic takes as long to import as all the rest.
    from pydantic import TypeAdapter

    return TypeAdapter(Report)
