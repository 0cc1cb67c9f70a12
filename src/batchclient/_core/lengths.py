"""Length groups: how long a call is expected to be, in tokens, and which bucket that is.

Buckets are geometric (a factor of 2), as in the textbook remedy for padding. On servers that batch continuously they
change nothing that was measured, so that the dialect says how far from the oldest call's bucket a batch may reach.
"""

from __future__ import annotations

from collections import OrderedDict

__all__ = ["OutputLengths", "bucket_of", "weighted_tokens"]

_REMEMBERED_KEYS = 4096
_EWMA_WEIGHT = 0.1
_FILLED_RATIO = 0.75
_FIRST_GUESS_TOKENS = 256
"""Before anything was seen: the smaller of this and the call's ``max_tokens``."""


def bucket_of(tokens: int) -> int:
    """The geometric bucket of a length: 0 for none, 1 for 1, 2 for 2-3, 3 for 4-7, …"""
    return tokens.bit_length()


def weighted_tokens(prompt_tokens: float, output_tokens: float) -> float:
    """What a call costs a server, in prompt tokens: an output token counts twice.

    Source: Sheng et al., "Fairness in Serving Large Language Models" (OSDI 2024), w_p = 1 and w_q = 2, which follow the prices of
    hosted models.
    """
    return prompt_tokens + 2 * output_tokens


class OutputLengths:
    """Expected output tokens by coalescing key, learnt as an exponential mean of what was seen."""

    __slots__ = ("_mean",)

    def __init__(self) -> None:
        self._mean: OrderedDict[bytes, float] = OrderedDict()

    def expected(self, key: bytes, max_output_tokens: int | None) -> int:
        """Expected output tokens of one prompt with this key."""
        seen = self._mean.get(key)
        if seen is not None:
            return int(seen)
        if max_output_tokens is None:
            return _FIRST_GUESS_TOKENS
        return min(max_output_tokens, _FIRST_GUESS_TOKENS)

    def fills(self, key: bytes, max_output_tokens: int | None) -> bool:
        """Whether most answers with this key were seen to run into their ``max_tokens``, and so end together."""
        seen = self._mean.get(key)
        return seen is not None and max_output_tokens is not None and seen >= _FILLED_RATIO * max_output_tokens

    def learn(self, key: bytes, tokens: float) -> None:
        """Take in the mean output tokens of some finished prompts."""
        seen = self._mean.get(key)
        if seen is None:
            self._mean[key] = tokens
            if len(self._mean) > _REMEMBERED_KEYS:
                self._mean.popitem(last=False)
        else:
            self._mean[key] = seen + _EWMA_WEIGHT * (tokens - seen)
