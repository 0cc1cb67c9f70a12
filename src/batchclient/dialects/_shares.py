"""Shares of a list's usage, where a server tells only a sum. A share is marked as an estimate.

Rules:
- Shares are whole numbers that add up to the server's sum. Prompt tokens are shared by the expected
  lengths, output tokens by the texts' lengths; a text has a token at least.
- Token ids are counted, and ``finish_reason: "length"`` means ``max_tokens``: what is known so is
  no estimate, and the rest is the others'.
- A sum that is too small is none (llama.cpp tells the first prompt's usage): nothing is shared out.
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


def share_out(total: int, sizes: Sequence[int]) -> list[int]:
    """Return whole numbers that add up to a total: one for each size that is not 0, if the total is
    enough for that, and the rest in proportion to the sizes.
    """
    least = [int(size > 0) for size in sizes]
    rest, whole = total - sum(least), sum(sizes)
    if rest < 0:
        least, rest = [0] * len(sizes), total
    if not whole:
        sizes, whole = [1] * len(sizes), len(sizes)
    shares = [low + rest * size // whole for low, size in zip(least, sizes, strict=True)]
    # What rounding down left goes, one each, to the largest remainders.
    left = total - sum(shares)
    for i in sorted(range(len(sizes)), key=lambda i: rest * sizes[i] % whole, reverse=True)[:left]:
        shares[i] += 1
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
    return share_out(total, sizes), True


def shared_usages(batch: Batch, told: Usage, made: Sequence[Made]) -> list[Usage] | None:
    """Share out a list's usage among its requests, by the facts about each choice, in order.

    ``None``: the usage told cannot be a sum over the requests.
    """
    prompts = prompt_shares(batch, told.prompt_tokens)
    if prompts is None:
        return None
    n = batch.shape.weight
    requests = [made[start : start + n] for start in range(0, len(made), n)]
    shares = [_known(batch, own) for own in requests]
    open_ = [place for place, share in enumerate(shares) if share is None]
    left = told.completion_tokens - sum(share or 0 for share in shares)
    # An echoed prompt is a text without an output token.
    sizes = [0 if batch.shape.echo else sum(size for size, _, _ in requests[place]) for place in open_]
    texts = sum(size > 0 for size in sizes)
    if left < texts:
        return None
    for place, share in zip(open_, share_out(left, sizes), strict=True) if open_ else ():
        shares[place] = share
    # A single open share gets the rest; where there is a token for each text, each has one.
    guessed = frozenset(open_ if len(open_) > 1 and left > texts else ())
    # Of a list's sum nobody knows whose tokens were cached.
    return [
        Usage(prompt, share or 0, prompts[1], place in guessed)
        for place, (prompt, share) in enumerate(zip(prompts[0], shares, strict=True))
    ]


def _known(batch: Batch, own: Sequence[Made]) -> int | None:
    """Return how many tokens a request's choices have: by their ids, or as all that were asked for."""
    limit = batch.shape.max_output_tokens
    counts = [ids if ids is not None else limit if limit and reason == "length" else None for _, reason, ids in own]
    known = [count for count in counts if count is not None]
    return sum(known) if len(known) == len(counts) else None


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
