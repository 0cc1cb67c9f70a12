"""Whose tokens they are where a server tells one sum for a whole list: shares of that sum, marked as estimates.

Rules:
- Shares are whole numbers that add up to the server's sum: prompt tokens by the lengths that were expected, output tokens by the texts' lengths.
- What is known of a call bounds its share: its token ids, a text (one token at least), ``max_tokens``, ``finish_reason: "length"``.
- A sum that is less than those bounds allow is none (llama.cpp tells the first prompt's usage): nothing is shared out.
- A share that can have only one value is exact, and bears no mark.
- A streamed list's sum comes after its last answer, and no answer waits for it. Such a usage is estimated from the call's own events and text.
"""

from __future__ import annotations

from collections.abc import Sequence

from batchclient._core.messages import Batch
from batchclient.types import Usage

__all__ = ["Made", "estimated_tokens", "prompt_shares", "share_out", "shared_usages", "size_of"]

_BYTES_PER_TOKEN = 4
"""A rough mean for English text."""
_ANY = 1 << 30
_MOST_BYTES_PER_EVENT = 16
"""An event with more text than this, on average, holds more than one token."""

Made = tuple[int, str | None, int | None]
"""What is known of one choice: the size of its text in bytes, why it ended, and how many token ids came with it."""


def size_of(text: object) -> int:
    """How long a text is in UTF-8, bytes; 0 for whatever is none."""
    if type(text) is not str:
        return 0
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def share_out(total: int, weights: Sequence[int], least: Sequence[int], most: Sequence[int]) -> list[int]:
    """Return whole numbers that add up to a total, in proportion to weights as far as bounds allow.

    Args:
        total: at least the sum of ``least`` and at most that of ``most``.
        weights: at least 0 each.
        least, most: each number's bounds.
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
            # Of what rounding down has left, one more for each of the largest remainders: the heavier never has less.
            rest = left - sum(shares[i] for i in free)
            for i in sorted(free, key=lambda i: left * heavy[i] % whole, reverse=True)[:rest]:
                shares[i] += 1
            break
        # Those that the larger of both misfits concerns stay at their bounds: what it leaves to the others cannot set them free again.
        bound, fixed = (least, lack) if sum(lack.values()) >= sum(excess.values()) else (most, excess)
        for i in fixed:
            shares[i] = bound[i]
            left -= bound[i]
        free = [i for i in free if i not in fixed]
    return shares


def prompt_shares(batch: Batch, total: object) -> tuple[list[int], bool] | None:
    """Share out the prompt tokens that a server told of a whole list; return (shares, whether they are estimates), or ``None`` if it told none."""
    if type(total) is not int or total < 0:
        return None
    sizes = [request.prompt_tokens for request in batch.requests]
    if len(sizes) == 1:
        return [total], False
    ids = all(request.prompt[:1] == b"[" and request.prompt[1:2].isdigit() for request in batch.requests)
    if ids and sum(sizes) == total:
        # Token ids are counted exactly. If they add up to what the server counted, it neither cut nor added any.
        return sizes, False
    least = [int(total >= len(sizes))] * len(sizes)
    return share_out(total, sizes, least, [total] * len(sizes)), True


def shared_usages(batch: Batch, told: Usage, made: Sequence[Made]) -> list[Usage] | None:
    """Share out a list's usage among its requests.

    Args:
        batch: the list.
        told: what the server told of the whole.
        made: of each choice, in order.

    Returns:
        A usage for each request; ``None`` if what was told is no sum of theirs.
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
        # More than was asked for: the server counts something that is not in the texts.
        most = [left] * len(open_)
    for place, share in zip(open_, share_out(left, sizes, least, most), strict=True):
        shares[place] = share
    # One alone has what is left; at the sum of all bounds each is at its own.
    guessed = frozenset(open_ if len(open_) > 1 and left not in (sum(least), sum(most)) else ())
    sizes_of_prompts, are_guessed = prompts
    return [
        Usage(prompt, share or 0, are_guessed, place in guessed)
        for place, (prompt, share) in enumerate(zip(sizes_of_prompts, shares, strict=True))
    ]


def _bounds(batch: Batch, size: int, reason: str | None) -> tuple[int, int]:
    """The fewest and the most tokens that a choice may have."""
    limit = batch.shape.max_output_tokens
    if limit and reason == "length":
        return limit, limit
    # An echoed prompt is a text without an output token. With ``max_tokens`` 0 vLLM counts a token all the same.
    return int(size > 0 and not batch.shape.echo), _ANY if limit is None else max(1, limit)


def estimated_tokens(size: int, events: int, reason: str | None, limit: int | None) -> int:
    """How many tokens a streamed choice probably has.

    Args:
        size: of its text, bytes.
        events: that brought some of it: a token each, unless they hold too much.
        reason: why it ended.
        limit: ``max_tokens``; ``None``: the server decided.
    """
    if limit and reason == "length":
        return limit
    tokens = events if size <= _MOST_BYTES_PER_EVENT * events else -(-size // _BYTES_PER_TOKEN)
    return tokens if limit is None else min(tokens, max(1, limit))
