"""``fail_if``: bounds on a map's shares of bad rows, looked at while it runs and at its end.

Rules:
- A map that has tried all rows breaks a bound if the share of such rows is above it.
- It ends early only where that is so with 99.9 % certainty, however often one looks, and on no
  fewer than 50 rows. The certainty is a confidence sequence: the likelihood of the rows, mixed over
  all shares by a beta prior, to their likelihood at the bound. While a bound is kept, this passes
  1,000 with a probability of at most 0.1 % (Ville, 1939; Robbins, "Statistical methods related to
  the law of the iterated logarithm", 1970; for rows drawn from a list: Waudby-Smith and Ramdas,
  "Confidence sequences for sampling without replacement", 2020).
- Rows are looked at in the order of the input: failures end before long answers do. That order is
  taken to be random; a sorted input may end early though its share in all would be lower.
- A row is looked at once all rows before it have ended. Until then it takes a byte.
- Rows of a journal cost nothing: as long as there are no others, nothing ends early.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import inf, lgamma, log, log1p
from typing import TYPE_CHECKING, Any

from batchclient.errors import ConfigError, TooManyBadRows
from batchclient.health import HEALTHS

if TYPE_CHECKING:
    from batchclient.types import MapResult

__all__ = ["KINDS", "LEAST_ROWS", "FailIf"]

KINDS: tuple[str, ...] = (*HEALTHS[1:], "failed")
"""What a bound may be about. A ``failed`` row has an error; an ``invalid`` one is failed, too."""
_BITS = {kind: 1 << place for place, kind in enumerate(KINDS)}
_ONLY_FAILED = ("embed", "classify", "score", "rerank", "function")
"""What these make has no health."""
_ENDED = 1 << len(KINDS)
_FORM = re.compile(r"\s*(\w+)\s*>\s*(\d{1,2}(?:\.\d{1,9})?)\s*%\s*", re.ASCII)
LEAST_ROWS = 50
_CERTAIN = -log1p(-0.999)
"""The logarithm of 1,000."""
_PRIOR = 0.5
"""Both parameters of the beta prior (Jeffreys)."""
_PIECE = 4096
"""Bytes that are dropped together."""


@dataclass(slots=True)
class _Bound:
    rule: str
    bit: int
    share: Fraction
    count: int = 0


class FailIf:
    """Looks at the rows of a map.

    Args:
        rules: such as ``truncated>1%``.
        call: of the rows, or ``"function"``. Where it generates nothing, a row can only be
            ``failed``.

    Attributes:
        early: the bound that is certain to be broken, if one is, as the error of a map.

    Raises:
        ConfigError: a rule has another form, is the second about its kind, or can never be broken.
    """

    def __init__(self, rules: Sequence[str], call: str = "complete") -> None:
        self.early: TooManyBadRows | None = None
        kinds = ("failed",) if call in _ONLY_FAILED else KINDS
        self._bounds = [_bound_of(rule, kinds) for rule in (rules if isinstance(rules, (list, tuple)) else (rules,))]
        if len({bound.bit for bound in self._bounds}) < len(self._bounds):
            raise ConfigError("fail_if: a kind of rows has one bound", field="fail_if")
        self._rows = self._new = 0
        self._ended = bytearray()
        """Of the rows from the ``_first`` on: what they are; 0: not ended."""
        self._first = self._at = 0

    def add(self, result: MapResult[Any]) -> None:
        """Take in a row that has ended."""
        health = result.health
        bad = _ENDED if health is None or health == "ok" else _ENDED | _BITS[health]
        if result.error is not None:
            bad |= _BITS["failed"]
        self._new += not result.reused
        ended, place = self._ended, result.index - self._first
        if place >= len(ended):
            ended.extend(bytes(place + 1 - len(ended)))
        ended[place] = bad
        while self._at < len(ended) and ended[self._at]:
            self._look(ended[self._at])
            self._at += 1
        if self._at >= _PIECE:
            del ended[: self._at]
            self._first, self._at = self._first + self._at, 0

    def at_end(self) -> TooManyBadRows | None:
        """Return the bound that is broken by a map that has tried all its rows, if one is."""
        for bound in self._bounds:
            if bound.count > bound.share * self._rows:
                return self._broken(bound, is_early=False)
        return None

    def _look(self, row: int) -> None:
        self._rows += 1
        for bound in self._bounds:
            bound.count += bool(row & bound.bit)
        if self._rows < LEAST_ROWS or self.early is not None or not self._new:
            return
        for bound in self._bounds:
            if _is_above(float(bound.share), bound.count, self._rows):
                self.early = self._broken(bound, is_early=True)
                return

    def _broken(self, bound: _Bound, *, is_early: bool) -> TooManyBadRows:
        rows = f"{'the first ' if is_early else ''}{self._rows:,} rows"
        told = f"{bound.rule}: {bound.count:,} of {rows} ({100 * bound.count / self._rows:.3g} %)"
        if bound.bit == _BITS["reasoning_only"]:
            told += "; thinking_tokens bounds the thinking, and leaves room for the answer"
        error = TooManyBadRows(told)
        error.rule, error.count, error.rows, error.is_early = bound.rule, bound.count, self._rows, is_early
        return error


def _bound_of(rule: object, kinds: Sequence[str]) -> _Bound:
    found = _FORM.fullmatch(rule) if isinstance(rule, str) else None
    if found is None or found[1] not in kinds:
        told = f"'{kinds[0]}>1%', not {rule!r:.40}; kinds: {', '.join(kinds)}"
        raise ConfigError(f"fail_if: such as {told}", field="fail_if")
    return _Bound(found[0].strip(), _BITS[found[1]], Fraction(found[2]) / 100)


def _is_above(share: float, count: int, rows: int) -> bool:
    """Whether so many rows say that the share of all is above this one."""
    if count <= share * rows:
        return False
    good, a = rows - count, _PRIOR
    mixed = lgamma(a + count) + lgamma(a + good) - lgamma(2 * a + rows) - 2 * lgamma(a) + lgamma(2 * a)
    at_bound = count * log(share) + good * log1p(-share) if share else -inf
    return mixed - at_bound >= _CERTAIN
