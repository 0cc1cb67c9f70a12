"""Where a figure comes from: the measured commit, the machine, the time and the command."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from _common import RESULTS

FIRST_COMMITS: dict[str, str] = json.loads((RESULTS / "commits.json").read_text())
"""The first commit that holds a result, by the time of its run, for runs that noted no commit."""

_LINE = re.compile(
    r"(?P<cpu>.+?), (?P<cores>\d+) cores, .*; (?P<date>\d{4}-\d\d-\d\d \d\d:\d\d UTC); "
    r"(?:commit (?P<commit>[^;]+); )?`(?P<command>[^`]+)`"
)


@dataclass(frozen=True, slots=True)
class Source:
    """One run of a benchmark."""

    commit: str
    cpu: str
    cores: int
    date: str
    command: str


def sources(data: Any) -> Iterator[Source]:
    """Yield the runs that a result names: under ``machine``, at its top or in its cases."""
    if isinstance(data, dict):
        facts = data.get("machine")
        if isinstance(facts, str) and (found := _LINE.match(facts)):
            facts = found.groupdict()
        if isinstance(facts, dict):
            known = facts.get("commit") or FIRST_COMMITS.get(facts["date"], "not noted")
            yield Source(known, facts["cpu"], int(facts["cores"]), facts["date"], facts["command"])
        for case in data.get("cases", ()):
            yield from sources(case)
