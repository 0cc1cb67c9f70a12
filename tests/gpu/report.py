"""The report of a run: what was found, what each test said, every figure with what it was measured on. JSON, and Markdown for people."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.gpu.machine import ROOT


def folder(environ: Mapping[str, str] = os.environ) -> Path:
    """Where reports go: ``BATCHCLIENT_REPORT``, or ``.cache/gpu-report``."""
    return Path(environ.get("BATCHCLIENT_REPORT") or ROOT / ".cache" / "gpu-report")


class Report:
    """One run's.

    Args:
        facts: see ``machine.facts``.
        command: how the run was started.
    """

    def __init__(self, facts: Mapping[str, Any], command: str) -> None:
        self.facts = dict(facts)
        self.command = command
        self.started_at = time.time()
        self.servers: list[dict[str, Any]] = []
        self.figures: list[dict[str, Any]] = []
        self.tests: list[dict[str, Any]] = []

    def server(self, **fields: Any) -> None:
        """A server that was found or started; the same one only once."""
        if fields not in self.servers:
            self.servers.append(fields)

    def figure(self, test: str, what: str, value: float, unit: str, **conditions: Any) -> None:
        """One measured number and the conditions it holds under."""
        self.figures.append({"test": test, "what": what, "value": round(value, 4), "unit": unit, **conditions})

    def test(self, name: str, outcome: str, seconds: float, reason: str = "") -> None:
        self.tests.append({"name": name, "outcome": outcome, "seconds": round(seconds, 2), "reason": reason})

    def as_json(self) -> dict[str, Any]:
        return {
            "date": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(self.started_at)),
            "command": self.command,
            **self.facts,
            "servers": self.servers,
            "figures": self.figures,
            "tests": self.tests,
        }

    def as_markdown(self) -> str:
        data = self.as_json()
        cards = "; ".join(", ".join(card.values()) for card in data.get("cards", [])) or "no GPU"
        versions = ", ".join(f"{name} {version}" for name, version in data.get("versions", {}).items())
        counts = Counter(test["outcome"] for test in self.tests)
        lines = ["# GPU suite", "", f"{data['date']} · {data.get('machine')} · {cards}", ""]
        lines += [f"Python {data.get('python')}, {versions}, commit {data.get('commit') or 'unknown'}", ""]
        lines += [f"`{self.command}`", "", ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()))]
        lines += ["", "## Servers", ""]
        lines += ["- " + ", ".join(f"{name} {value}" for name, value in server.items()) for server in self.servers]
        lines += ["", "## Figures", "", "| what | value | unit | on | test |", "| --- | --- | --- | --- | --- |"]
        for figure in self.figures:
            rest = {name: value for name, value in figure.items() if name not in ("test", "what", "value", "unit")}
            on = ", ".join(f"{name} {value}" for name, value in rest.items())
            lines.append(f"| {figure['what']} | {figure['value']:g} | {figure['unit']} | {on} | {figure['test']} |")
        lines += ["", "## Tests", "", "| test | outcome | s | why |", "| --- | --- | --- | --- |"]
        for test in self.tests:
            reason = test["reason"].replace("|", "\\|").replace("\n", " ")
            lines.append(f"| {test['name']} | {test['outcome']} | {test['seconds']} | {reason} |")
        return "\n".join(lines) + "\n"

    def write(self, into: Path) -> Path:
        """Write ``report.json`` and ``report.md``; the folder."""
        into.mkdir(parents=True, exist_ok=True)
        (into / "report.json").write_text(json.dumps(self.as_json(), indent=1) + "\n", "utf-8")
        (into / "report.md").write_text(self.as_markdown(), "utf-8")
        return into
