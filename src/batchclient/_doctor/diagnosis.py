"""From facts to findings, the heaviest first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from batchclient._doctor.checks import CHECKS
from batchclient._doctor.facts import Facts, Weight
from batchclient.dialects import DIALECTS

__all__ = ["Diagnosis", "Finding", "diagnose"]

_WITHOUT_INTERVAL = frozenset({"tgi", "llamacpp", "openai"})
"""Servers without a setting for fewer events."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault of a server, or of the way to the server.

    Args:
        id: a short name, for programs.
        weight: how much the finding matters.
        sentence: the fault.
        setting: the setting to change.
        seen: on which the finding rests.
    """

    id: str
    weight: Weight
    sentence: str
    setting: str
    seen: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
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

    def about(self) -> str:
        """Return which server this is, in a line."""
        facts = self.facts
        known = facts.kind in DIALECTS and facts.kind != "openai"
        parts = [
            facts.server
            or (facts.kind or "" if known else "a server with OpenAI's API" if facts.kind else "no server known")
        ]
        if facts.model is not None:
            parts.append(f"model {facts.model[:100]}")
        numbers = {
            "a length of {} tokens": facts.max_len,
            "{} sequences at once" if facts.slots != 1 else "{} sequence at once": facts.slots,
            "{} KV tokens": facts.kv_tokens,
        }
        parts += [text.format(f"{number:,}") for text, number in numbers.items() if number]
        if (
            facts.kind in _WITHOUT_INTERVAL
            and facts.events is not None
            and facts.tokens
            and facts.events >= facts.tokens
        ):
            parts.append("an event per token, for which such a server has no setting")
        return ", ".join(parts)

    def as_json(self) -> Mapping[str, Any]:
        """Return the diagnosis for programs."""
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
            },
            "findings": [
                {
                    "id": each.id,
                    "weight": each.weight.name.lower(),
                    "sentence": each.sentence,
                    "setting": each.setting,
                    "seen": each.seen,
                }
                for each in self.findings
            ],
            "not_known": list(self.unknown),
        }


def diagnose(facts: Facts) -> Diagnosis:
    """Look at the facts by all checks."""
    findings, unknown = [], []
    if facts.fault is not None:
        fault = facts.fault
        findings.append(Finding(fault.id, Weight.BROKEN, fault.sentence, fault.setting, fault.seen))
    for check in CHECKS:
        if check.kinds and facts.kind not in check.kinds:
            continue
        if any(getattr(facts, name) is None for name in check.needs):
            if check.unknown and facts.kind is not None:
                unknown.append(check.unknown)
        elif check.is_wanting(facts):
            findings.append(
                Finding(check.id, check.weight, check.sentence(facts), check.setting(facts), check.seen(facts))
            )
    # A stable sort: the table's order holds within a weight.
    findings.sort(key=lambda finding: -finding.weight)
    # Where calls fail, open questions can wait.
    return Diagnosis(facts, tuple(findings), tuple(unknown) if facts.fault is None else ())
