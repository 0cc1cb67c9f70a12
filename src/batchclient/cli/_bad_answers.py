"""The bad answers, in a few words: how many, an example row, and what mends them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from batchclient.types import Completion, MapResult

__all__ = ["BadAnswers"]

_MANY = 0.05
"""From this share on a kind is told before all else."""


class BadAnswers:
    """Counts answers by their health.

    Args:
        params: of the calls. Their bound on the tokens is the truncated answers' length.
        retries: the job's options for such answers, in ``Repair``'s words.

    Attributes:
        total: answers of all kinds, the good ones included.
        counts: of the kinds that are not ``ok``.
    """

    def __init__(self, params: Mapping[str, Any], retries: Mapping[str, Any]) -> None:
        self.total = 0
        self.counts: Counter[str] = Counter()
        self._examples: dict[str, str] = {}
        bounds = (params.get(name) for name in ("max_tokens", "max_completion_tokens"))
        self._longest: int = max((bound for bound in bounds if type(bound) is int), default=0)
        """Output tokens of a truncated answer. Several answers of a list may share an estimate."""
        self._tried: int = retries.get("max_tokens") or self._longest << retries.get("truncated", 0)
        """Output tokens that this job lets an answer have."""
        self._mendable = False

    @property
    def shown(self) -> str:
        """The counts in words; empty: there are none."""
        return ", ".join(f"{count:,} {kind}" for kind, count in self.counts.most_common())

    def add(self, result: MapResult[Any]) -> None:
        """Count a row's answer, if it has one that was generated."""
        health = result.health
        if health is None:
            return
        self.total += 1
        if health == "ok":
            return
        self.counts[health] += 1
        self._examples.setdefault(health, result.document.where)
        answer = result.answer if result.error is None else getattr(result.error, "completion", None)
        if health == "truncated" and isinstance(answer, Completion):
            self._longest = max(self._longest, (answer.output_tokens or 0) // max(1, len(answer.choices)))
            self._mendable |= len(answer.choices) == 1

    def many(self) -> str:
        """Say which kinds are more than a twentieth of the answers; empty: none is."""
        many = [(kind, count) for kind, count in self.counts.most_common() if count > _MANY * self.total]
        told = " and ".join(f"{100 * count / self.total:.3g} % {kind}" for kind, count in many)
        return f"bad answers: {told}" if told else ""

    def lines(self) -> list[str]:
        """Return a line for each kind, with an example. Invalid answers are among the failed rows."""
        told = [(kind, count) for kind, count in self.counts.most_common() if kind != "invalid"]
        return [f"  {count:,} {kind}, such as {self._examples[kind]}" for kind, count in told]

    def way(self, *, is_kept: bool) -> list[str]:
        """Return the options that let the truncated answers go on; none where they cannot, or did not.

        Args:
            is_kept: whether there is a journal.
        """
        if not self._mendable or 0 < 2 * self._longest <= self._tried:
            return []
        options = "--retry-truncated 1" + (f" --max-tokens-at-most {2 * self._longest}" if self._longest else "")
        if is_kept:
            return [
                f"the same command with {options} lets the truncated answers go on, and sends no other answered row"
            ]
        return [f"{options} lets such answers go on"]
