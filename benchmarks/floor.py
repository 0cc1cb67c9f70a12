"""The floor: the cheapest micro-batcher by hand on httpx, to compare ``BatchClient`` with.

The floor does only the minimum for coalescing. Calls of one event-loop turn, and calls that waited
for a running list, leave as one plain list. The floor has no retries, checks, deadlines or
cancellation, and one set of parameters. The cost of ``BatchClient`` beyond the floor is the cost of
the client's promises.
"""

from __future__ import annotations

import asyncio
from typing import Any, Self

import httpx
from pydantic_core import from_json, to_json


class Floor:
    """Coalesces ``complete`` calls into plain lists, with at most ``limit`` prompts in flight.

    A list has up to ``limit`` prompts.
    """

    def __init__(self, base_url: str, *, model: str, max_tokens: int, limit: int = 64) -> None:
        self._http = httpx.AsyncClient(timeout=60, headers={"content-type": "application/json"})
        self._url = httpx.URL(f"{base_url}/completions")
        self._fields = {"model": model, "max_tokens": max_tokens}
        self._free = limit
        self._waiting: list[tuple[str, asyncio.Future[str]]] = []
        self._flush_due = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._http.aclose()

    def complete(self, prompt: str) -> asyncio.Future[str]:
        """Return a future of the answer's text."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[str] = loop.create_future()
        self._waiting.append((prompt, future))
        if self._free and not self._flush_due:
            self._flush_due = True
            loop.call_soon(self._flush)
        return future

    def _flush(self) -> None:
        self._flush_due = False
        size = min(self._free, len(self._waiting))
        if size:
            batch, self._waiting = self._waiting[:size], self._waiting[size:]
            self._free -= size
            task = asyncio.ensure_future(self._send(batch))
            self._tasks.add(task)  # the loop itself keeps only a weak reference
            task.add_done_callback(self._tasks.discard)

    async def _send(self, batch: list[tuple[str, asyncio.Future[str]]]) -> None:
        body = {**self._fields, "prompt": [prompt for prompt, _ in batch]}
        try:
            reply = await self._http.post(self._url, content=to_json(body))
            reply.raise_for_status()
            choices: list[dict[str, Any]] = from_json(reply.content)["choices"]
            for choice in choices:
                batch[choice["index"]][1].set_result(choice["text"])
        except Exception as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
        finally:
            self._free += len(batch)
            # After one more turn, so that callers woken just now can join the next list.
            asyncio.get_running_loop().call_soon(self._flush)
