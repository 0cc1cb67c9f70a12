"""Words of scheduling in pairs: whatever two are said together, each call gets its own answer, and none starves.

A map of rows and callers of their own share one client and one server that runs eight sequences, in virtual time.
"""

import asyncio
import random
from itertools import combinations
from unittest.mock import patch

import httpx
import pytest

from batchclient import AdaptiveLimit, BatchClient, DeadlineExceeded, Price, Queue, Server
from batchclient.simulator import SimulatedServer, SimulatorTransport
from batchclient.testing import VirtualLoop
from batchclient.transport import Timeouts, WireRequest

ROWS, CALLS = 60, 60
AGING_S = 2.0
LONGEST_S = 23.0
"""No call waits longer here. Without aging, in most pairs rows would wait for 24 to 26 s."""
LATE_S = 4.0
"""The deadline of those that have one: some make it, and some do not."""

WORDS = [
    "objective",
    "deadlines",
    "tenants",
    "sessions",
    "guest",
    "finish_by",
    "longest_first",
    "expected_tokens",
    "prices",
    "view",
]

PAIRS = [pair for pair in combinations(WORDS, 2) if pair != ("guest", "finish_by")]
"""A client that is always a guest refuses a map that is to be one for a time."""


def client_with(words):
    limit = {"guest": "guest" in words, "start": 6, "max": 6, "p95_latency_s": 8.0 if "objective" in words else None}
    queue = Queue(
        aging_s=AGING_S,
        order="deadline" if "deadlines" in words else "fcfs",
        tenant_weights={"a": 3.0, "b": 1.0} if "tenants" in words else None,
    )
    urls = ["http://one/v1"]
    if "prices" in words:
        urls.append(Server("http://two/v1", price=Price(input=1.0, output=2.0)))
    elif "sessions" in words:
        urls.append("http://two/v1")
    return BatchClient(urls, model="m", limit=AdaptiveLimit(**limit), queue=queue, probe=True)


def carried(transport):
    """httpx takes every request to the simulated server, its pages too."""

    async def handle(_, request):
        sent = WireRequest(request.method, request.url.path, await request.aread(), list(request.headers.items()))
        reply = await transport.send(sent, Timeouts())
        body = b"".join([piece async for piece in reply.chunks()])
        return httpx.Response(reply.status, headers=dict(reply.headers), content=body)

    return patch.object(httpx.AsyncHTTPTransport, "handle_async_request", handle)


def said(words, rng, number):
    """The arguments of a call beside its prompt."""
    tokens = rng.choice([1, 5, 30, 400])
    more = {"max_tokens": tokens}
    if "deadlines" in words and number % 3 == 0:
        more["timeout_s"] = LATE_S
    if "tenants" in words:
        more["tenant"] = rng.choice("ab")
    if "sessions" in words:
        more["session"] = f"session {number % 7}"
    if "expected_tokens" in words and number % 2:
        more["expected_tokens"] = tokens
    return more


async def outcomes(words, seed):
    rng, ended = random.Random(seed), {}
    transport = SimulatorTransport(SimulatedServer("gpu", model="m", max_num_seqs=8), prefix="")
    with carried(transport):
        async with client_with(words) as client:
            calls = client.view(priority=1, preset="latency") if "view" in words else client

            async def one(number):
                more = said(words, rng, number)
                await asyncio.sleep(rng.uniform(0.0, 10.0))
                prompt = f"call {number} of {seed}"
                began = asyncio.get_running_loop().time()
                try:
                    answer = await calls.complete(prompt, priority=int(calls is client), echo=True, **more)
                    ended[prompt] = answer.text.startswith(prompt), answer.queued_s
                except DeadlineExceeded:
                    ended[prompt] = "timeout_s" in more, asyncio.get_running_loop().time() - began

            async def rows():
                names = ("expected_tokens", "max_tokens")
                documents = [
                    {
                        "text": f"row {number} of {seed}",
                        "params": {k: v for k, v in said(words, rng, number).items() if k in names},
                    }
                    for number in range(ROWS)
                ]
                more = {"order": "longest_first"} if "longest_first" in words else {}
                if "finish_by" in words:
                    more["finish_by_s"] = rng.choice([1.0, 30.0])
                more |= {"tenant": "a"} if "tenants" in words else {}
                async for row in client.stream_map(
                    documents, "{text}", ordered=False, rows="template", echo=True, **more
                ):
                    prompt = row.document["text"]
                    assert prompt not in ended, "a row comes once"
                    ended[prompt] = row.answer.text.startswith(prompt), row.answer.queued_s

            async with asyncio.TaskGroup() as group:
                group.create_task(rows())
                for number in range(CALLS):
                    group.create_task(one(number))
            statistics = client.statistics()
    assert statistics.in_flight == statistics.queued == statistics.abandoned == 0
    return ended


@pytest.mark.long
@pytest.mark.parametrize("words", PAIRS, ids=" and ".join)
def test_two_words_together_lose_no_call_and_let_none_starve(words):
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        ended = runner.run(outcomes(words, seed=1))
    assert len(ended) == ROWS + CALLS
    assert all(right for right, _ in ended.values()), "each caller gets its own answer"
    assert max(waited for _, waited in ended.values()) <= LONGEST_S
