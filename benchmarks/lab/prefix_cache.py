"""Prefix caches: which conversations' prefixes a server still has.

``PrefixCache`` has room of its own. ``CachingEngine`` keeps prefixes in the KV of the sequences
that run, as vLLM does. A finished sequence's KV stays until a running sequence needs the room. The
least recently used KV goes first, and its end before its beginning.
"""

from __future__ import annotations

import random
from collections import OrderedDict
from typing import TYPE_CHECKING

from benchmarks.lab.workloads import Call

from batchclient.simulator import Profile
from batchclient.simulator.engine import Engine, Sequence

if TYPE_CHECKING:
    from benchmarks.lab.profiles import Cache

__all__ = ["BLOCK_TOKENS", "CachingEngine", "PrefixCache"]

BLOCK_TOKENS = 16
"""vLLM's: only whole blocks are found again."""


class PrefixCache:
    """Which conversations' prefixes are still in the KV cache: least recently used out first.

    vLLM keeps the blocks of finished requests until another request needs them. A prefix is looked
    up when its request reaches the engine, and counts as used then.

    The engine gets the sequence without the prefix that was found. So the cache's room is its own
    and not shared with the engine's KV.

    Args:
        cache: its sizes.
    """

    def __init__(self, cache: Cache) -> None:
        self._room = cache.tokens // cache.held_tokens
        self._found_tokens = cache.found_tokens
        self._held: OrderedDict[int, None] = OrderedDict()
        self.hits = 0
        self.queries = 0

    def uncached(self, call: Call) -> int:
        """How many of the call's prompt tokens must be computed."""
        self.queries += call.prompt_tokens
        if call.conversation in self._held:
            self._held.move_to_end(call.conversation)
            self.hits += self._found_tokens
            return max(1, call.prompt_tokens - self._found_tokens)
        self._held[call.conversation] = None
        if len(self._held) > self._room:
            self._held.popitem(last=False)
        return call.prompt_tokens


class CachingEngine(Engine):
    """An engine whose finished sequences leave their KV behind for the next turn of their conversation.

    Args:
        profile: the costs and limits.
        rng: for the noise.
        found_tokens: how many of a prompt's tokens can be found again; whole blocks only.
    """

    def __init__(self, profile: Profile, rng: random.Random, found_tokens: int) -> None:
        super().__init__(profile, rng)
        self._found_tokens = found_tokens
        self._kept: OrderedDict[int, int] = OrderedDict()
        """KV tokens that are left of each conversation, the least recently used first."""
        self._kept_tokens = 0
        self.hits = 0
        self.queries = 0

    def _begin(self) -> float:
        seconds = super()._begin()
        # What runs has taken what it needs: it goes off what was kept.
        over = self._kept_tokens + self._kv_used - self.profile.kv_tokens
        while over > 0 and self._kept:
            conversation, tokens = next(iter(self._kept.items()))
            gone = min(over, tokens)
            self._kept_tokens -= gone
            over -= gone
            if gone == tokens:
                del self._kept[conversation]
            else:
                self._kept[conversation] = tokens - gone
        return seconds

    def _found(self, sequence: Sequence) -> int:
        kept = self._kept.get(_conversation(sequence), 0) // BLOCK_TOKENS * BLOCK_TOKENS
        return min(kept, self._found_tokens, sequence.prompt_tokens - 1)

    def _admit(self, sequence: Sequence, found: int) -> None:
        super()._admit(sequence, found)
        self.queries += sequence.prompt_tokens
        self.hits += found
        # What is behind the prefix was another turn's: nobody finds it any more.
        self._kept_tokens -= self._kept.pop(_conversation(sequence), 0)

    def _leave(self, sequence: Sequence) -> None:
        kv = sequence.kv + (self._begun - sequence.joined_step if sequence.decodes else 0)
        super()._leave(sequence)
        conversation = _conversation(sequence)
        if conversation >= 0:
            self._kept_tokens += kv - self._kept.pop(conversation, 0)
            self._kept[conversation] = kv


def _conversation(sequence: Sequence) -> int:
    if sequence.owner is None:
        return -1
    exchange, position = sequence.owner  # type: ignore[misc]
    conversation: int = exchange.batch.requests[position].waiter.conversation
    return conversation
