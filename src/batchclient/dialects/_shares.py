"""Shares of a list's usage, where a server tells only a sum. A share is marked as an estimate.

Rules:
- Shares are whole numbers that add up to the server's sum. Prompt tokens are shared by the expected
  lengths, output tokens by the texts' lengths.
- A share is bounded by facts about its call: token ids, a text (at least a token), ``max_tokens``,
  ``finish_reason: "length"``.
- A sum below the bounds is none (llama.cpp tells the first prompt's usage): nothing is shared out.
- A share with a single possible value is exact, and not marked.
- A streamed list's sum comes after the last answer, and no answer waits. The usage is then
  estimated from the call's own events and text.
"""

from __future__ import annotations

from collections.abc import Sequence

from batchclient._core.messages import Batch
from batchclient.types import Usage

__all__ = ["TOO_MANY", "Made", "estimated_tokens", "prompt_shares", "share_out", "shared_usages", "size_of"]

_BYTES_PER_TOKEN = 4
"""A rough mean for English text."""
_ANY = 1 << 30
TOO_MANY = 1 << 53
"""A number of tokens that is nonsense, and that arithmetic with fractions may not bear."""
_MOST_BYTES_PER_EVENT = 16
"""An event with more text on average holds more than one token."""

Made = tuple[int, str | None, int | None]
"""The facts about a choice: bytes of its text, why it ended, and the number of its token ids
(``None``: not told).
"""


def size_of(text: object) -> int:
    """Return the length of a text in UTF-8, bytes; 0 for a value of another type."""
    if type(text) is not str:
        return 0
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def share_out(total: int, weights: Sequence[int], least: Sequence[int], most: Sequence[int]) -> list[int]:
    """Return whole numbers that add up to a total, in proportion to weights as far as bounds allow.

    Args:
        total: from the sum of ``least`` to the sum of ``most``.
        weights: at least 0 each.
        least, most: the bounds of each number.
    """
    shares = [0] * len(weights)
    free, left = list(range(len(weights))), total
    while free:
        heavy = {i: weights[i] for i in free}
        whole = sum(heavy.values())
        if not whole:
            heavy, whole = dict.fromkeys(free, 1), len(free)
        lack = {i: least[i] * whole - left * heavy[i] for i in free if left * heavy[i] < least[i] * whole}
        excess = {i: left * heavy[i] - most[i] * whole for i in free if left * heavy[i] > most[i] * whole}
        if not lack and not excess:
            for i in free:
                shares[i] = left * heavy[i] // whole
            # The rest left by rounding down goes, one each, to the largest remainders: the heavier
            # never has less.
            rest = left - sum(shares[i] for i in free)
            for i in sorted(free, key=lambda i: left * heavy[i] % whole, reverse=True)[:rest]:
                shares[i] += 1
            break
        # Numbers on the side of the larger misfit stay at their bounds: the rest left to the others
        # cannot free them again.
        bound, fixed = (least, lack) if sum(lack.values()) >= sum(excess.values()) else (most, excess)
        for i in fixed:
            shares[i] = bound[i]
            left -= bound[i]
        free = [i for i in free if i not in fixed]
    return shares


def prompt_shares(batch: Batch, total: object) -> tuple[list[int], bool] | None:
    """Share out the prompt tokens told for a list; return (shares, whether they are estimates).

    ``None``: the server told no number.
    """
    if type(total) is not int or not 0 <= total < TOO_MANY:
        return None
    sizes = [request.prompt_tokens for request in batch.requests]
    if len(sizes) == 1:
        return [total], False
    ids = all(request.prompt[:1] == b"[" and request.prompt[1:2].isdigit() for request in batch.requests)
    if ids and sum(sizes) == total:
        # Token ids are counted exactly. If they add up to the server's count, the server neither
        # cut nor added any.
        return sizes, False
    least = [int(total >= len(sizes))] * len(sizes)
    return share_out(total, sizes, least, [total] * len(sizes)), True


def shared_usages(batch: Batch, told: Usage, made: Sequence[Made]) -> list[Usage] | None:
    """Share out a list's usage among its requests, by the facts about each choice, in order.

    ``None``: the usage told cannot be a sum over the requests.
    """
    prompts = prompt_shares(batch, told.prompt_tokens)
    if prompts is None:
        return None
    n, left = batch.shape.weight, told.completion_tokens
    shares: list[int | None] = []
    open_: list[int] = []
    sizes: list[int] = []
    least: list[int] = []
    most: list[int] = []
    for start in range(0, len(made), n):
        own = made[start : start + n]
        ids = [count for _, _, count in own if count is not None]
        if len(ids) == n:
            shares.append(sum(ids))
            left -= sum(ids)
            continue
        bounds = [_bounds(batch, size, reason) for size, reason, _ in own]
        open_.append(len(shares))
        shares.append(None)
        sizes.append(sum(size for size, _, _ in own))
        least.append(sum(low for low, _ in bounds))
        most.append(sum(high for _, high in bounds))
    if left < sum(least):
        return None
    if left > sum(most):
        # More than asked for: the server counts tokens that are not in the texts.
        most = [left] * len(open_)
    for place, share in zip(open_, share_out(left, sizes, least, most), strict=True):
        shares[place] = share
    # A single open share gets the rest; at the sum of all bounds each is at its own.
    guessed = frozenset(open_ if len(open_) > 1 and left not in (sum(least), sum(most)) else ())
    sizes_of_prompts, are_guessed = prompts
    return [
        Usage(prompt, share or 0, are_guessed, place in guessed)
        for place, (prompt, share) in enumerate(zip(sizes_of_prompts, shares, strict=True))
    ]


def _bounds(batch: Batch, size: int, reason: str | None) -> tuple[int, int]:
    """Return the fewest and the most tokens of a choice."""
    limit = batch.shape.max_output_tokens
    if limit and reason == "length":
        return limit, limit
    # An echoed prompt is a text without an output token. vLLM counts a token even with
    # ``max_tokens`` 0.
    return int(size > 0 and not batch.shape.echo), _ANY if limit is None else max(1, limit)


def estimated_tokens(size: int, events: int, reason: str | None, limit: int | None) -> int:
    """Estimate the tokens of a streamed choice.

    Args:
        size: of the text, bytes.
        events: events that brought text: a token each, unless the text is too long for that.
        reason: why the choice ended.
        limit: ``max_tokens``; ``None``: the server decided.
    """
    if limit and reason == "length":
        return limit
    tokens = events if size <= _MOST_BYTES_PER_EVENT * events else -(-size // _BYTES_PER_TOKEN)
    return tokens if limit is None else min(tokens, max(1, limit))
