"""Cost of a call in this process, in parts too small for a server: best CPU time of many runs.

    python benchmarks/per_call.py
    PYTHONPATH=/path/to/another/checkout/src python benchmarks/per_call.py --parts vectors

The second command measures an earlier version; compare the two in turns. The parts:

- ``vectors``: reading an embedding of 4,096 numbers, as base64 and as JSON.
- ``lengths``: learning prompts' lengths, per call and per reply event.
"""

from __future__ import annotations

import argparse
import base64
import json
import time
from array import array
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

RUNS = 12


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
    lengths = PromptLengths(OutputLengths())
    lengths.learn(batch, answers)
    return {
        "prompt length, per call": _best(lambda: lengths.place(requests[0]), 20_000),
        "prompt length, per event": _best(lambda: lengths.learn(batch, answers), 20_000),
    }


PARTS = {"vectors": _vectors, "lengths": _lengths}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default=",".join(PARTS))
    parts = parser.parse_args().parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    for part in parts:
        for name, seconds in PARTS[part]().items():
            print(f"{name:32} {1e6 * seconds:8.2f} µs")


if __name__ == "__main__":
    main()
