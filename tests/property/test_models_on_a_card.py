"""A map of two models' rows, over a router that holds one model and loads the other when asked; virtual time."""

import asyncio
import json
import random
from unittest.mock import patch

import anyio
import httpx
import pytest

from batchclient import AdaptiveLimit, BatchClient, Server
from batchclient.simulator import SimulatedServer, SimulatorTransport
from batchclient.testing import VirtualLoop
from batchclient.transport import Timeouts, WireRequest

ROWS, LOAD_S = 600, 1.0


class Router:
    """Holds one model, and answers in order: a request for another waits for those under way, and for the load."""

    def __init__(self, load_s=LOAD_S):
        self._inner = SimulatorTransport(SimulatedServer("gpu", is_strict=False, max_num_seqs=16), prefix="")
        self._load_s = load_s
        self._turn, self._free = asyncio.Lock(), asyncio.Event()
        self.loaded, self._under_way = None, 0
        self.changes, self.most_models = 0, 0
        self._models = {}

    async def answer(self, request):
        body = await request.aread()
        model = json.loads(body)["model"] if body else None
        if model is None:
            return httpx.Response(404)
        self._models[model] = self._models.get(model, 0) + 1
        self.most_models = max(self.most_models, sum(1 for count in self._models.values() if count))
        try:
            async with self._turn:
                while self._load_s and self.loaded != model and self._under_way:
                    self._free.clear()
                    await self._free.wait()
                if self.loaded != model:
                    self.changes, self.loaded = self.changes + 1, model
                    await anyio.sleep(self._load_s)
                self._under_way += 1
            sent = WireRequest(request.method, request.url.path, body, list(request.headers.items()))
            reply = await self._inner.send(sent, Timeouts())
            content = b"".join([piece async for piece in reply.chunks()])
            return httpx.Response(reply.status, headers=dict(reply.headers), content=content)
        finally:
            self._models[model] -= 1
            self._under_way -= 1
            self._free.set()


async def mapped(router, **of_server):
    rng = random.Random(1)
    rows = [
        {"prompt": f"row {number}", "params": {"model": rng.choice("ab"), "max_tokens": rng.randint(5, 60)}}
        for number in range(ROWS)
    ]

    async def handle(_, request):
        return await router.answer(request)

    with patch.object(httpx.AsyncHTTPTransport, "handle_async_request", handle):
        server = Server("http://router/v1", **of_server)
        async with BatchClient(server, model="a", limit=AdaptiveLimit(max=32), probe=False) as client:
            began = asyncio.get_running_loop().time()
            answers = await client.batch_map(rows, echo=True)
            seconds = asyncio.get_running_loop().time() - began
    assert all(answer.text.startswith(row["prompt"]) for row, answer in zip(rows, answers, strict=True))
    return seconds


def run(router, **of_server):
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(mapped(router, **of_server))


@pytest.mark.long
def test_a_router_that_holds_one_model_gets_the_rows_model_by_model():
    router, at_once = Router(), Router()
    seconds = run(router, one_model_at_a_time=True)
    assert router.changes <= 8
    assert router.most_models == 1
    assert seconds < 0.5 * run(at_once, one_model_at_a_time=False)


@pytest.mark.long
def test_such_a_router_is_found_out():
    router, at_once = Router(), Router()
    assert run(router) < run(at_once, one_model_at_a_time=False)
    assert router.changes < 0.5 * at_once.changes


@pytest.mark.long
def test_a_server_that_holds_both_models_gets_them_at_once():
    assert run(Router(0.0)) == run(Router(0.0), one_model_at_a_time=False)


if __name__ == "__main__":
    for load_s in (0.0, 1.0, 5.0, 20.0):
        for told in (False, None, True):
            router = Router(load_s)
            print(load_s, told, f"{run(router, one_model_at_a_time=told):.1f} s", router.changes, router.most_models)
