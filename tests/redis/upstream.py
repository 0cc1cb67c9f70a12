"""A server in the test's own process: it holds, refuses or answers prompts as the test says."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

from batchclient import BatchClient, Batching
from batchclient.errors import ConnectFailed
from batchclient.retry import Backoff
from tests.shell.scripted import Answer, Reply


def _answer(status, body):
    return Answer(Reply(status, {"content-type": "application/json"}, [json.dumps(body).encode()]))


class Upstream:
    """Answers ``yes`` to every prompt of a request, at once.

    Attributes:
        came: how often each prompt was sent.
        held: prompts that are answered once ``release`` is called.
        refused: statuses by prompt.
        is_away: whether no connection can be made.
        under_way: requests that have no answer yet, at most so far in ``most``.
    """

    def __init__(self):
        self.came = Counter()
        self.held = set()
        self.refused = {}
        self.is_away = False
        self.under_way = self.most = 0
        self.pause_s = 0.0
        self.tries = 0
        self._released = asyncio.Event()

    def release(self):
        self.held = set()
        self._released.set()

    def client(self, **options):
        given = {
            "model": "m",
            "limit": 16,
            "batching": Batching(max_size=1, linger_s=0.0),
            "retry": Backoff(base_s=0.01),
        }
        return BatchClient("http://upstream.test/v1", http=lambda *_: self, **(given | options))

    async def send(self, request, timeouts):
        self.tries += 1
        if self.is_away:
            raise ConnectFailed("nobody is there")
        if request.method == "GET":
            found = request.path.endswith("/models")
            return _answer(200 if found else 404, {"object": "list", "data": [{"id": "m", "object": "model"}]})
        body = json.loads(request.body)
        prompts = body["prompt"] if isinstance(body.get("prompt"), list) else [body.get("prompt")]
        self.came.update(prompts)
        self.under_way += 1
        self.most = max(self.most, self.under_way)
        try:
            await asyncio.sleep(self.pause_s)
            while not self.held.isdisjoint(prompts):
                await self._released.wait()
            for prompt in prompts:
                refusals = self.refused.get(prompt)
                if refusals:
                    status = refusals.pop(0) if isinstance(refusals, list) else refusals
                    words = "The model `m` does not exist." if status == 404 else "no"
                    return _answer(status, {"error": {"message": words, "type": "refused", "code": status}})
        finally:
            self.under_way -= 1
        choices = [{"index": at, "text": "yes", "finish_reason": "stop"} for at in range(len(prompts))]
        usage = {"prompt_tokens": len(prompts), "completion_tokens": len(prompts), "total_tokens": 2 * len(prompts)}
        return _answer(200, {"id": "1", "object": "text_completion", "model": "m", "choices": choices, "usage": usage})

    async def aclose(self):
        pass
