"""From facts to findings, the heaviest first: as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from batchclient._doctor.checks import CHECKS
from batchclient._doctor.facts import Facts, Finding, Weight

__all__ = ["Report", "report_on"]


@dataclass(frozen=True, slots=True)
class Report:
    """The findings about a server.

    Args:
        facts: on which they rest.
        findings: the heaviest first.
        unknown: the questions that stayed open.
    """

    facts: Facts
    findings: tuple[Finding, ...]
    unknown: tuple[str, ...]

    @property
    def works(self) -> bool:
        """Whether calls succeed."""
        return all(finding.weight is not Weight.BROKEN for finding in self.findings)

    @property
    def concerns_server(self) -> bool:
        """Whether a setting of the server should be another."""
        return any(finding.of_server for finding in self.findings)

    def about(self) -> str:
        """Return which server this is, in a line."""
        facts = self.facts
        parts = [facts.server or ("a server with OpenAI's API" if facts.kind else "no server known")]
        if facts.model is not None:
            parts.append(f"model {facts.model[:100]}")
        numbers = {
            "a length of {} tokens": facts.max_len,
            "{} sequences at once" if facts.slots != 1 else "{} sequence at once": facts.slots,
            "{} KV tokens": facts.kv_tokens,
        }
        parts += [text.format(f"{number:,}") for text, number in numbers.items() if number]
        if facts.calls == "chat":
            parts.append("no completions: each chat is a request of its own")
        if facts.proxies:
            parts.append(f"behind a proxy ({', '.join(facts.proxies)})")
        return ", ".join(parts)

    def lines(self) -> Iterator[str]:
        """Yield the lines of the report."""
        yield f"{self.facts.url}: {self.about()}"
        for finding in self.findings:
            yield from ("", f"{finding.weight.name.lower()}: {finding.sentence}")
            yield from (f"  change: {finding.setting}", f"  seen: {finding.seen}")
        if not self.findings:
            yield from ("", "nothing to mend")
        if self.unknown:
            yield from ("", "not known:", *(f"  {question}" for question in self.unknown))

    def as_json(self) -> Mapping[str, Any]:
        """Return the report for programs."""
        facts = self.facts
        return {
            "schema": 1,
            "url": facts.url,
            "works": self.works,
            "server": {
                "kind": facts.kind,
                "name": facts.server,
                "models": list(facts.models),
                "model": facts.model,
                "max_model_len": facts.max_len,
                "sequences": facts.slots,
                "kv_tokens": facts.kv_tokens,
                "proxies": list(facts.proxies),
            },
            "findings": [{**asdict(each), "weight": each.weight.name.lower()} for each in self.findings],
            "not_known": list(self.unknown),
        }


def report_on(facts: Facts) -> Report:
    """Look at the facts by all checks."""
    found = [facts.fault, *(check(facts) for check in CHECKS)]
    # A stable sort: the table's order holds within a weight.
    findings = sorted((each for each in found if isinstance(each, Finding)), key=lambda finding: -finding.weight)
    # Where calls fail, open questions can wait.
    unknown = [each for each in found if isinstance(each, str)] if facts.fault is None and facts.kind else []
    return Report(facts, tuple(findings), tuple(unknown))
