"""The calls of a measurement: prompts of a wanted length, answers of a fixed one.

Rules:
- The same seed gives the same prompts. No prompt comes twice in a run, so a server's prefix cache
  answers none of them, unless reuse is asked for.
- Each prompt begins with a number of its own, written as four words. Two neighbours differ in the
  first word, and so in the first token.
- A word has about one token. A call before the run tells the real ratio (``fitted``).
- All answers have the same length, where the server takes ``ignore_eos``. Else the answers' own
  lengths are reported.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from statistics import NormalDist
from typing import Literal

from batchclient import ConfigError
from batchclient.bench.arrivals import check_numbers

__all__ = ["Workload"]

_TEXT = """
    able about above across act add after again age air all allow alone along also always among
    angle animal answer any apple area arm art ask away baby back bad ball band bank bar base
    basic bath bear beat bed before begin bell best better big bill bird black block blood blue
    board boat body bone book both bottom box boy branch bread break bridge bright bring brother
    brown build burn busy buy call camp car card care carry case cat catch cause cell center
    chair chance change check child choose circle city class clean clear climb clock close cloud
    coast cold color come common cook cool copy corn corner cost cotton count country course
    cover cow create crop cross crowd cry cup current cut dance dark day dead deal deep degree
    design desk develop die differ dinner direct discuss distant do doctor dog dollar door down
    draw dream dress drink drive drop dry during each ear early earth ease east eat edge effect
    egg eight either electric else end enemy energy engine enough enter equal even evening event
    ever every exact example except expect eye face fact fair fall family famous far farm fast
    fat father favor fear feed feel feet few field fight figure fill final find fine finger
    finish fire first fish fit five flat floor flow flower fly follow food foot force forest
    form forward four free fresh friend from front fruit full fun game garden gas gather general
    gentle get girl give glad glass go gold good govern grand grass gray
"""
_WORDS = _TEXT.split()
_NUMBER_WORDS = 4
"""Words of a prompt's number: 256 ** 4 prompts differ."""
_LONGEST = 4.0
"""A drawn prompt is at most this many times as long as the mean."""
_FACTOR, _MASK = 2_654_435_761, 0xFFFF_FFFF
"""Knuth's multiplicative hash: odd, so that numbers of 32 bits are only put into another order."""
_GOLDEN = (math.sqrt(5) - 1) / 2
_STRETCH = 8192
"""Words of the random text that prompts are cut from."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Calls alike.

    Args:
        prompt_tokens: of a prompt, on the mean.
        output_tokens: of an answer.
        spread: the standard deviation of the logarithm of the prompts' lengths; 0: all alike.
        prefix_reuse: the share of each prompt that is the same for all, 0 to 1.
        call: ``"complete"``, ``"chat"`` or ``"embed"``.
        prompts: own texts, taken in turn, in place of drawn ones. Each has its number in front,
            unless ``prefix_reuse`` is given.
        seed: of the texts and their lengths.

    Raises:
        ConfigError: a value is wrong.
    """

    prompt_tokens: int = 256
    output_tokens: int = 128
    spread: float = 0.0
    prefix_reuse: float | None = None
    call: Literal["complete", "chat", "embed"] = "complete"
    prompts: Sequence[str] | None = field(default=None, repr=False)
    seed: int = 0
    _words_per_token: float = field(default=1.0, repr=False)

    def __post_init__(self) -> None:
        check_numbers(whole=True, prompt_tokens=[self.prompt_tokens], output_tokens=[self.output_tokens])
        if type(self.spread) not in (int, float) or not 0 <= self.spread < math.inf:
            raise ConfigError("spread: a number, 0 or more", field="spread")
        if self.prefix_reuse is not None and not (
            type(self.prefix_reuse) in (int, float) and 0 <= self.prefix_reuse <= 1
        ):
            raise ConfigError("prefix_reuse: a share, 0 to 1, or None", field="prefix_reuse")
        if self.call not in ("complete", "chat", "embed"):
            raise ConfigError("call: 'complete', 'chat' or 'embed'", field="call")
        if self.prompts is not None and (isinstance(self.prompts, str) or not len(self.prompts)):
            raise ConfigError("prompts: a list of at least one text", field="prompts")

    def fitted(self, words: int, prompt_tokens: int) -> Workload:
        """Return the workload for a server on which a drawn prompt of so many words had so many tokens."""
        if self.prompts is not None or not (words and prompt_tokens):
            return self
        return replace(self, _words_per_token=self._words_per_token * words / prompt_tokens)

    def prompt(self, number: int) -> str:
        """Return a prompt.

        Args:
            number: of the prompt in the run, from 0.
        """
        if self.prompts is not None:
            text = self.prompts[number % len(self.prompts)]
            return text if self.prefix_reuse is not None else f"({' '.join(self._number(number))}) {text}"
        length = self._length(number)
        common = round(length * (self.prefix_reuse or 0.0))
        own = self._number(number)
        at = self._shuffled(number) % _STRETCH
        own += _stretch(self.seed, length)[at : at + max(0, length - common - len(own))]
        return " ".join(_stretch(self.seed + 1, common)[:common] + own[: max(1, length - common)])

    def _number(self, number: int) -> list[str]:
        """Return the number as words, the last digit first: neighbours differ at once."""
        shuffled = self._shuffled(number)
        # The high bits of the product differ most; they come first.
        return [_WORDS[shuffled >> shift & 0xFF] for shift in range(8 * (_NUMBER_WORDS - 1), -1, -8)]

    def _shuffled(self, number: int) -> int:
        return (number * _FACTOR + self.seed) & _MASK

    def _length(self, number: int) -> int:
        words = self.prompt_tokens * self._words_per_token
        if self.spread:
            # Multiples of the golden ratio fill the unit interval evenly; 0 has no quantile.
            rank = (number + 1) * _GOLDEN % 1.0 or 0.5
            # The mean of a lognormal distribution is exp(mu + sigma ** 2 / 2).
            drawn = NormalDist(-(self.spread**2) / 2, self.spread).inv_cdf(rank)
            words *= min(_LONGEST, math.exp(drawn))
        return max(1, round(words))


def _stretch(seed: int, length: int) -> list[str]:
    """Return words at random: from each of the first ``_STRETCH``, at least ``length`` follow."""
    return _words(seed, 1 + math.ceil(max(1, length) / _STRETCH))


@lru_cache(maxsize=8)
def _words(seed: int, times: int) -> list[str]:
    return random.Random(seed).choices(_WORDS, k=_STRETCH) * times  # noqa: S311
