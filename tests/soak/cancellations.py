"""Calls cancelled at every moment of their lives, connecting included, by the hundred thousand: no place in a pool may be lost.

httpcore loses a place where a request is cancelled while it connects (its issues 1093, 830, 658).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from tests.seams import connected

from batchclient import Backoff, Batching, Http

__all__ = ["Left", "cancel_many"]

CALLS_AT_ONCE = 16
_MOST_TURNS = 60
"""A call over loopback takes some 40 turns of the event loop; so every await of it is hit.

It takes more while the server's process waits for its turn on a busy machine: then they are doubled.
"""


@dataclass
class Left:
    """What was left behind.

    Args:
        cancelled: calls that were cancelled.
        answered: calls that had their answer before.
        places: in pools, taken by nobody.
        in_flight: permits taken by nobody.
    """

    cancelled: int
    answered: int
    places: int
    in_flight: int


async def cancel_many(base_url: str, model: str, count: int, http_backend: str) -> Left:
    """Cancel at least ``count`` calls, and until some were answered first.

    Afterwards as many as fit at once must be answered.

    Raises:
        AssertionError: what was answered is not what was asked.
    """
    cancelled = answered = turns = 0
    most_turns = _MOST_TURNS
    made: list[Any] = []
    async with connected(
        base_url,
        made=made.append,
        model=model,
        limit=CALLS_AT_ONCE,
        batching=Batching(max_size=1),
        http=Http(backend=http_backend),
        retry=Backoff(max_attempts=1),
        probe=False,
    ) as client:
        while cancelled < count or not answered:
            calls = [asyncio.ensure_future(client.complete(f"c{n}", max_tokens=1)) for n in range(CALLS_AT_ONCE)]
            for _ in range(turns):
                await asyncio.sleep(0)
            turns += 1
            if turns >= most_turns:
                turns, most_turns = 0, most_turns if answered else 2 * most_turns
            for call in calls:
                call.cancel()
            for outcome in await asyncio.gather(*calls, return_exceptions=True):
                if isinstance(outcome, asyncio.CancelledError):
                    cancelled += 1
                elif isinstance(outcome, BaseException):
                    raise outcome
                else:
                    answered += 1
        # The tasks of what was cancelled end in their own time.
        while client.statistics().in_flight:
            await asyncio.sleep(0.001)
        async with asyncio.timeout(10):
            await asyncio.gather(*(client.complete(f"after {n}", max_tokens=1) for n in range(4 * CALLS_AT_ONCE)))
        (transport,) = made
        return Left(cancelled, answered, transport.under_way, client.statistics().in_flight)
