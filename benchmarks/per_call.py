"""Cost of a call in this process, in parts too small for a server: best CPU time of many runs.

    python benchmarks/per_call.py
    PYTHONPATH=/path/to/another/checkout/src python benchmarks/per_call.py --parts client

The second command measures an earlier version; compare the two in turns. The parts:

- ``client``: ``complete`` from call to answer, 256 at once in plain lists of 32. The transport
  answers at once and costs next to nothing.
- ``vectors``: reading an embedding of 4,096 numbers, as base64 and as JSON.
- ``lengths``: learning prompts' lengths, per call and per reply event.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import gc
import json
import time
from array import array
from collections.abc import AsyncGenerator, Callable
from inspect import signature
from types import SimpleNamespace
from typing import Any

from batchclient import BatchClient, Batching

PARTS = ("client", "vectors", "lengths")
CALLS = 256
ROUNDS = 20
RUNS = 12


class _Response:
    status = 200
    headers = {"content-type": "application/json"}  # noqa: RUF012

    def __init__(self, body: bytes) -> None:
        self._body = body

    async def chunks(self) -> AsyncGenerator[bytes]:
        yield self._body

    async def aclose(self) -> None:
        pass


class _Instant:
    """Answers each prompt that begins with ``p `` with one token."""

    async def send(self, request: Any, timeouts: Any) -> _Response:
        prompts = request.body.count(b'"p ')
        choice = b'{"index":%d,"text":"x","finish_reason":"length","token_ids":[1],"prompt_token_ids":[1,2]}'
        choices = b",".join([choice % place for place in range(prompts)])
        usage = b'{"prompt_tokens":%d,"completion_tokens":%d}' % (2 * prompts, prompts)
        await asyncio.sleep(0)
        return _Response(
            b'{"id":"a","object":"o","created":1,"model":"m","choices":[' + choices + b'],"usage":' + usage + b"}"
        )

    async def aclose(self) -> None:
        pass


async def _client() -> float:
    # Earlier versions had no such argument, and asked for nothing.
    quiet = {"server_metrics": False} if "server_metrics" in signature(BatchClient).parameters else {}
    client = BatchClient("http://s/v1", model="m", limit=64, batching=Batching(max_size=32), dialect="vllm", **quiet)
    client._connections.for_calls = lambda _url: _Instant()
    best = float("inf")
    async with client:
        for _ in range(RUNS):
            gc.collect()
            started_s = time.process_time()
            for _ in range(ROUNDS):
                await asyncio.gather(*[client.complete(f"p {number}", max_tokens=1) for number in range(CALLS)])
            best = min(best, (time.process_time() - started_s) / (CALLS * ROUNDS))
    return best


def _best(work: Callable[[], object], times: int) -> float:
    best = float("inf")
    for _ in range(RUNS):
        started_s = time.process_time()
        for _ in range(times):
            work()
        best = min(best, (time.process_time() - started_s) / times)
    return best


def _vectors() -> dict[str, float]:
    from pydantic_core import from_json

    from batchclient.dialects._embeddings import read_vector

    numbers = array("f", [place / 4096 - 0.5 for place in range(4096)])
    packed = json.dumps({"embedding": base64.b64encode(numbers.tobytes()).decode()}).encode()
    plain = json.dumps({"embedding": numbers.tolist()}).encode()
    return {
        f"a vector of 4,096, {name}": _best(lambda body=body: read_vector(from_json(body)["embedding"]), 200)
        for name, body in (("base64", packed), ("JSON", plain))
    }


def _lengths() -> dict[str, float]:
    from batchclient._core.learnt.lengths import OutputLengths, PromptLengths
    from batchclient._core.requests import Request, Shape
    from batchclient.types import Usage

    shape = Shape(b"k", b"{}", model="m")
    requests = [Request(shape, b'"a prompt of some forty bytes, number %d"' % number) for number in range(64)]
    batch: Any = SimpleNamespace(shape=shape, requests=requests, id=3)
    answers: Any = [(place, SimpleNamespace(usage=Usage(9, 4))) for place in range(16)]
    lengths, outputs = PromptLengths(), OutputLengths()
    lengths.learn(batch, answers)
    return {
        "prompt length, per call": _best(lambda: lengths.place(requests[0], outputs), 20_000),
        "prompt length, per event": _best(lambda: lengths.learn(batch, answers), 20_000),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS))
    parts = parser.parse_args().parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    found: dict[str, float] = {}
    if "client" in parts:
        found["complete(), no transport"] = asyncio.run(_client())
    if "vectors" in parts:
        found |= _vectors()
    if "lengths" in parts:
        found |= _lengths()
    for name, seconds in found.items():
        print(f"{name:32} {1e6 * seconds:8.2f} µs")


if __name__ == "__main__":
    main()
