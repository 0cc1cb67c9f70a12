"""A proxy that refuses, closes, stalls or goes away as its rules say, and counts: for ``odd_servers.py``.

Rules:
- ``POST`` alone is counted, refused and stalled. Pages pass, as they do where an engine is busy; but
  not where a replica is dead, nor while the server is away with a 5xx.
- A list has as many sequences as prompts. A sequence is over when its finish reason passes by, so
  those of a streamed list end one by one, and those of a plain list together.
- Each connection of a client has one to the server. A client that has left is noticed with the next
  bytes for it.
- The log, a line of JSON, is printed when stdin closes: (monotonic seconds, sequences, status) of
  each request in order. The status is 200 where the request was let through, and 0 where its
  connection was closed.
- Seconds count from the first request.
"""

from __future__ import annotations

import asyncio
import http
import json
import math
import random
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

MODEL = "simulated"
Entry = tuple[float, int, int]
STEP_S = 0.015
"""Sequences that wait get free slots so often: a step of the engine's."""
DEFAULT_TOKENS = 16
"""Of an answer whose request names no number."""
OWN = (
    "Request too large for this organization on tokens per min (TPM): Limit 500, Requested 1000."
    " The input or output tokens must be reduced in order to run successfully."
)
_CHUNK_SIZE = re.compile(rb"[0-9a-fA-F]+")
_FINISHED = re.compile(rb'"finish_reason": ?"')


@dataclass(frozen=True, slots=True)
class Rules:
    """What a server bears; ``None``: anything.

    Args:
        sequences, requests: in flight at once.
        slots, waiting: sequences that run at once, and those that may wait for a slot.
        per_s: requests a second, with as many at once after a quiet second.
        connections: open at once; further ones are closed.
        stall_s: no byte of an answer passes from the first of these seconds to the second.
        status: of a refusal.
        retry_after_s: what a refusal asks for.
        refused_model: always 429.
        longest: characters of a prompt; a request with a longer one is 429 on its own account.
        rest: the first request after so many seconds is 429 with a ``Retry-After`` of so many.
        tokens_per_s: of prompts and answers as they may become, with twice as many at once after two
            quiet seconds. Replies tell the rest by ``x-ratelimit-*``, refusals the time by
            ``retry-after-ms``.
        dead: the share of requests that a router sends to a dead replica: 502.
        down_s: nothing listens from the first of these seconds to the second.
        away: from the first of these seconds to the second all requests have this status.
    """

    sequences: int | None = None
    requests: int | None = None
    slots: int | None = None
    waiting: int | None = None
    per_s: float | None = None
    connections: int | None = None
    stall_s: tuple[float, float] | None = None
    status: int = 429
    retry_after_s: int | None = None
    refused_model: str | None = None
    longest: int | None = None
    rest: tuple[float, int] | None = None
    tokens_per_s: float | None = None
    dead: float = 0.0
    down_s: tuple[float, float] | None = None
    away: tuple[float, float, int] | None = None


class LoggedProcess:
    """A server of ours as a process of its own, on a loopback port."""

    def __init__(self, script: Path, *arguments: str) -> None:
        command = [sys.executable, str(script), *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.base_url = f"http://127.0.0.1:{int(self._process.stdout.readline())}/v1"

    def end(self) -> list[Entry]:
        """End the process; return its log."""
        log, _ = self._process.communicate()
        return [(at, sequences, status) for at, sequences, status in json.loads(log)]

    @classmethod
    def proxy(cls, upstream: int, rules: Rules) -> Self:
        """Start the proxy before a server on this port."""
        return cls(Path(__file__), str(upstream), json.dumps(asdict(rules)))


@dataclass(frozen=True, slots=True)
class Asked:
    """What a ``POST`` asks for."""

    model: str
    prompts: list[Any]
    max_tokens: int

    @classmethod
    def read(cls, body: bytes) -> Self:
        fields = json.loads(body)
        prompt = fields.get("prompt", "")
        is_list = isinstance(prompt, list) and bool(prompt) and not isinstance(prompt[0], int)
        max_tokens = fields.get("max_tokens") or DEFAULT_TOKENS
        return cls(fields.get("model", ""), prompt if is_list else [prompt], max_tokens)

    @property
    def tokens(self) -> int:
        """As OpenAI counts them before the answer is there."""
        return sum(len(each) // 4 + self.max_tokens for each in self.prompts)


@dataclass(slots=True)
class Proxy:
    upstream: int
    rules: Rules
    log: list[Entry] = field(default_factory=list)
    _random: random.Random = field(default_factory=lambda: random.Random(1))
    _listener: asyncio.Server | None = None
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)
    _requests: int = 0
    _sequences: int = 0
    _running: int = 0
    _allowance: float = 0.0
    _allowed_at: float = -math.inf
    _rested: bool = False

    async def listen(self, port: int = 0) -> int:
        """Take connections; return the port."""
        self._listener = await asyncio.start_server(self.serve, "127.0.0.1", port, limit=2**24, backlog=4096)
        return int(self._listener.sockets[0].getsockname()[1])

    def leave(self) -> None:
        """Close the port and all connections, as a server that is killed."""
        assert self._listener is not None
        self._listener.close()
        for writer in self._writers:
            writer.transport.abort()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of a client."""
        self._writers.add(writer)
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        try:
            if len(self._writers) > (self.rules.connections or math.inf):
                self._note(0, 0)
                return
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                body = await reader.readexactly(content_length(head))
                asked = Asked.read(body) if head.startswith(b"POST") else None
                if refusal := self._refusal(asked, head):
                    writer.write(refusal)
                    continue
                if server is None or server[0].at_eof():
                    server = await asyncio.open_connection("127.0.0.1", self.upstream, limit=2**24)
                server[1].write(head + body)
                await self._answer(server[0], writer, len(asked.prompts) if asked else 0)
        except (ConnectionError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # one of the two has left, or this process ends
        finally:
            self._writers.discard(writer)
            writer.close()
            if server is not None:
                server[1].close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sequences: int) -> None:
        if sequences:
            self._note(sequences, 200)
        self._requests += bool(sequences)
        self._sequences += sequences
        left = sequences
        try:
            async for piece in _pieces(reader, self._headers() if sequences else b""):
                finished = min(left, len(_FINISHED.findall(piece)))
                left -= finished
                self._end(finished)
                if sequences:
                    await self._stalled()
                writer.write(piece)
                await writer.drain()
        finally:
            self._requests -= bool(sequences)
            self._end(left)

    def _end(self, sequences: int) -> None:
        self._sequences -= sequences
        self._running = max(0, self._running - sequences)

    async def step(self) -> None:
        """Give free slots to those that wait, for ever."""
        while True:
            self._running = min(self._sequences, self.rules.slots or self._sequences)
            await asyncio.sleep(STEP_S)

    async def restart(self, port: int) -> None:
        """Be down in the seconds of the rules."""
        assert self.rules.down_s is not None
        begin_s, end_s = self.rules.down_s
        while self._elapsed_s() < begin_s:
            await asyncio.sleep(STEP_S)
        self.leave()
        await asyncio.sleep(end_s - begin_s)
        await self.listen(port)

    def _elapsed_s(self) -> float:
        return time.monotonic() - self.log[0][0] if self.log else 0.0

    def _refusal(self, asked: Asked | None, head: bytes) -> bytes | None:
        """Return the reply to what goes no further, and note it; ``None``: it may pass."""
        said = self._gateways(asked) or (asked and self._quotas(asked))
        if asked and not said and self._refuses(len(asked.prompts)):
            rest = f"retry-after: {self.rules.retry_after_s}\r\n" if self.rules.retry_after_s else ""
            said = _error(self.rules.status, "Too many requests", rest)
        if asked and said:
            self._note(len(asked.prompts), int(said.split(b" ", 2)[1]))
        if not said and self.rules.refused_model and head.startswith(b"GET /v1/models "):
            names = [
                {"id": name, "object": "model", "owned_by": "gateway"} for name in (MODEL, self.rules.refused_model)
            ]
            return reply(200, json.dumps({"object": "list", "data": names}))
        return said or None

    def _gateways(self, asked: Asked | None) -> bytes | None:
        """What a router says in the place of its servers."""
        rules = self.rules
        if rules.dead and self._random.random() < rules.dead:
            return _page(502)
        if rules.away is None or not rules.away[0] <= self._elapsed_s() < rules.away[1]:
            return None
        if rules.away[2] >= 500:
            return _page(rules.away[2])
        return _error(rules.away[2], f"The model `{asked.model}` does not exist.") if asked else None

    def _quotas(self, asked: Asked) -> bytes | None:
        """What a gateway refuses though its servers have room."""
        rules = self.rules
        if asked.model == rules.refused_model:
            return _error(429, f"Rate limit reached for {asked.model}")
        if rules.longest and any(len(each) > rules.longest for each in asked.prompts):
            return _error(429, OWN)
        if rules.rest and not self._rested and self._elapsed_s() >= rules.rest[0]:
            self._rested = True
            return _error(429, "Too many requests", f"retry-after: {rules.rest[1]}\r\n")
        if rules.tokens_per_s:
            cost = min(asked.tokens, 2 * rules.tokens_per_s)
            self._fill(rules.tokens_per_s, 2 * rules.tokens_per_s)
            if self._allowance < cost:
                wait_s = (cost - self._allowance) / rules.tokens_per_s
                times = f"retry-after-ms: {math.ceil(1000 * wait_s)}\r\nretry-after: {math.ceil(wait_s)}\r\n"
                return _error(429, "Rate limit reached on tokens", times + self._headers().decode())
            self._allowance -= cost
        return None

    def _fill(self, per_s: float, most: float) -> None:
        now = time.monotonic()
        self._allowance = min(most, self._allowance + (now - self._allowed_at) * per_s)
        self._allowed_at = now

    def _headers(self) -> bytes:
        per_s = self.rules.tokens_per_s
        if per_s is None:
            return b""
        reset_ms = math.ceil(1000 * (2 * per_s - self._allowance) / per_s)
        prefix = "x-ratelimit"
        return (
            f"{prefix}-limit-tokens: {2 * per_s:.0f}\r\n{prefix}-remaining-tokens: {self._allowance:.0f}\r\n"
            f"{prefix}-reset-tokens: {reset_ms}ms\r\n"
        ).encode()

    def _refuses(self, sequences: int) -> bool:
        """Whether the server has no room."""
        rules = self.rules
        refused = (
            self._sequences + sequences > (rules.sequences or math.inf)
            or self._requests + 1 > (rules.requests or math.inf)
            or self._sequences - self._running + sequences > (rules.waiting or math.inf)
        )
        if rules.per_s and not refused:
            self._fill(rules.per_s, rules.per_s)
            refused = self._allowance < 1
            self._allowance -= not refused
        return refused

    async def _stalled(self) -> None:
        if self.rules.stall_s is not None:
            begin_s, end_s = self.rules.stall_s
            elapsed_s = self._elapsed_s()
            if begin_s <= elapsed_s < end_s:
                await asyncio.sleep(end_s - elapsed_s)

    def _note(self, sequences: int, status: int) -> None:
        self.log.append((time.monotonic(), sequences, status))


def reply(status: int, body: str, headers: str = "", *, kind: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status} {'OK' if status == 200 else 'Refused'}\r\ncontent-type: {kind}\r\n{headers}"
    return f"{head}content-length: {len(body)}\r\n\r\n{body}".encode()


def _error(status: int, message: str, headers: str = "") -> bytes:
    return reply(status, json.dumps({"error": {"message": message, "type": "overloaded", "code": status}}), headers)


def _page(status: int) -> bytes:
    """As nginx says that it has nobody to ask."""
    title = f"{status} {http.HTTPStatus(status).phrase}"
    return reply(status, f"<html><head><title>{title}</title></head><body>{title}</body></html>", kind="text/html")


async def _pieces(reader: asyncio.StreamReader, headers: bytes) -> AsyncIterator[bytes]:
    """A reply's head with these headers more, and its body in the chunks that came."""
    head = await reader.readuntil(b"\r\n\r\n")
    yield head[:-2] + headers + head[-2:]
    if b"transfer-encoding: chunked" not in head.lower():
        yield await reader.readexactly(content_length(head))
        return
    size = 1
    while size:
        line = await reader.readline()
        found = _CHUNK_SIZE.match(line)
        if found is None:
            raise ConnectionError("the server left in the middle of a reply")
        size = int(found[0], 16)
        yield line + await reader.readexactly(size + 2)


def content_length(head: bytes) -> int:
    found = re.search(rb"\r\ncontent-length: *([0-9]+)", head, re.IGNORECASE)
    return int(found[1]) if found else 0


async def main() -> None:
    proxy = Proxy(int(sys.argv[1]), Rules(**json.loads(sys.argv[2])))
    port = await proxy.listen()
    tasks = [asyncio.ensure_future(proxy.step())]
    if proxy.rules.down_s is not None:
        tasks.append(asyncio.ensure_future(proxy.restart(port)))
    print(port, flush=True)
    await asyncio.to_thread(sys.stdin.read)  # nothing is ever sent here: the parent has closed it, or gone
    for task in tasks:
        task.cancel()
    proxy.leave()
    print(json.dumps(proxy.log), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
