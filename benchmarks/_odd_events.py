"""A server bound by its API process, which sends an event for each token: for ``odd_servers.py``.

Rules:
- The API process does one thing at a time: a request takes it ``REQUEST_S``, an event of a stream or
  a plain reply ``EVENT_S``. What it has not done yet waits, in order.
- The engine runs ``SLOTS`` sequences, and makes a token of each every ``STEP_S``.
- It has OpenAI's ``/v1/completions`` and ``/v1/models``, and nothing else.
- Port and log as in ``_odd_proxy.py``.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from _odd_proxy import MODEL, Asked, Entry, content_length, reply

REQUEST_S, EVENT_S = 0.003, 0.00005
STEP_S, SLOTS = 0.005, 256
MEDIAN_TOKENS, SIGMA = 56, 0.5
"""Of answers, lognormal."""
SHORTEST_SLEEP_S = 0.001

MODELS = reply(200, json.dumps({"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "us"}]}))
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = (
    f'data: {{"id":"x","object":"text_completion","created":1,"model":"{MODEL}","choices":'
    '[{"index":%d,"text":" so","logprobs":null,"finish_reason":%s}]}\n\n'
)
DONE = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"


@dataclass(slots=True, eq=False)
class Request:
    """A request, and what is still to be made for it."""

    writer: asyncio.StreamWriter
    asked: Asked
    is_stream: bool
    unfinished: int
    made: list[int]


@dataclass(slots=True, eq=False)
class Sequence:
    request: Request
    index: int
    tokens: int
    made: int = 0

    @property
    def finish_reason(self) -> str | None:
        if self.made < self.tokens:
            return None
        return "length" if self.tokens == self.request.asked.max_tokens else "stop"


@dataclass(slots=True)
class ApiProcess:
    """Does what is put in one by one, each after its cost."""

    _jobs: deque[tuple[float, float, Callable[[], None]]] = field(default_factory=deque)
    _came: asyncio.Event = field(default_factory=asyncio.Event)

    def put(self, cost_s: float, act: Callable[[], None]) -> None:
        self._jobs.append((time.monotonic(), cost_s, act))
        self._came.set()

    async def work(self) -> None:
        """Do it all, for ever."""
        free_at = 0.0
        while True:
            while not self._jobs:
                self._came.clear()
                await self._came.wait()
            put_at, cost_s, act = self._jobs.popleft()
            free_at = max(free_at, put_at) + cost_s
            while (left_s := free_at - time.monotonic()) > SHORTEST_SLEEP_S:
                await asyncio.sleep(left_s)
            act()


@dataclass(slots=True)
class EventServer:
    log: list[Entry] = field(default_factory=list)
    _api: ApiProcess = field(default_factory=ApiProcess)
    _waiting: deque[Sequence] = field(default_factory=deque)
    _running: list[Sequence] = field(default_factory=list)
    _random: random.Random = field(default_factory=lambda: random.Random(1))

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of a client."""
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                body = await reader.readexactly(content_length(head))
                if head.startswith(b"POST /v1/completions "):
                    self._take(writer, body)
                else:
                    writer.write(
                        MODELS if head.startswith(b"GET /v1/models ") else reply(404, '{"detail":"Not Found"}')
                    )
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client has left, or this process ends
        finally:
            writer.close()

    def _take(self, writer: asyncio.StreamWriter, body: bytes) -> None:
        asked = Asked.read(body)
        count = len(asked.prompts)
        self.log.append((time.monotonic(), count, 200))
        request = Request(writer, asked, bool(json.loads(body).get("stream")), count, [0] * count)
        self._api.put(REQUEST_S, lambda: self._begin(request))

    def _begin(self, request: Request) -> None:
        if request.is_stream:
            request.writer.write(STREAM_HEAD)
        for index in range(len(request.asked.prompts)):
            drawn = round(MEDIAN_TOKENS * self._random.lognormvariate(0, SIGMA))
            self._waiting.append(Sequence(request, index, max(1, min(request.asked.max_tokens, drawn))))

    async def run(self) -> None:
        """Step, for ever."""
        step_at = time.monotonic()
        while True:
            step_at = max(step_at + STEP_S, time.monotonic())
            await asyncio.sleep(step_at - time.monotonic())
            while self._waiting and len(self._running) < SLOTS:
                self._running.append(self._waiting.popleft())
            for sequence in self._running:
                self._token(sequence)
            self._running = [each for each in self._running if each.finish_reason is None]

    def _token(self, sequence: Sequence) -> None:
        request = sequence.request
        if request.writer.is_closing():
            sequence.made = sequence.tokens
            return
        sequence.made += 1
        reason = sequence.finish_reason
        request.made[sequence.index] = sequence.made
        request.unfinished -= reason is not None
        if request.is_stream:
            data = event(sequence.index, reason) + (DONE if not request.unfinished else b"")
            self._api.put(EVENT_S, lambda: request.writer.write(data))
        elif not request.unfinished:
            self._api.put(EVENT_S, lambda: request.writer.write(plain(request)))


def event(index: int, reason: str | None) -> bytes:
    """A token of a stream as an HTTP chunk."""
    data = EVENT % (index, f'"{reason}"' if reason else "null")
    return f"{len(data):x}\r\n{data}\r\n".encode()


def plain(request: Request) -> bytes:
    choices = [
        {
            "index": index,
            "text": made * " so",
            "logprobs": None,
            "finish_reason": "length" if made == request.asked.max_tokens else "stop",
        }
        for index, made in enumerate(request.made)
    ]
    prompts, answers = sum(len(each) // 4 for each in request.asked.prompts), sum(request.made)
    usage = {"prompt_tokens": prompts, "completion_tokens": answers, "total_tokens": prompts + answers}
    said = {"id": "x", "object": "text_completion", "created": 1, "model": MODEL, "choices": choices, "usage": usage}
    return reply(200, json.dumps(said))


async def main() -> None:
    server = EventServer()
    listener = await asyncio.start_server(server.serve, "127.0.0.1", 0, limit=2**24, backlog=4096)
    tasks = [asyncio.ensure_future(server.run()), asyncio.ensure_future(server._api.work())]
    print(listener.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)  # nothing is ever sent here: the parent has closed it, or gone
    for task in tasks:
        task.cancel()
    listener.close()
    print(json.dumps(server.log), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
