"""A proxy that refuses, closes or stalls as its rules say, and counts: for ``odd_servers.py``.

Rules:
- ``POST`` alone is counted, refused and stalled. Pages pass, as they do where an engine is busy.
- A list has as many sequences as prompts. A sequence is over when its finish reason passes by, so
  those of a streamed list end one by one, and those of a plain list together.
- Each connection of a client has one to the server. A client that has left is noticed with the next
  bytes for it.
- The log, a line of JSON, is printed when stdin closes: (monotonic seconds, sequences, status) of
  each request in order. The status is 200 where the request was let through, and 0 where its
  connection was closed.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

Entry = tuple[float, int, int]
STEP_S = 0.015
"""Sequences that wait get free slots so often: a step of the engine's."""
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
        stall_s: no byte of an answer passes from the first of these seconds to the second, counted
            from the first request.
        status: of a refusal.
        retry_after_s: what a refusal asks for.
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


class ProxyProcess:
    """The proxy as a process of its own, before a server on a loopback port."""

    def __init__(self, upstream: int, rules: Rules) -> None:
        command = [sys.executable, str(Path(__file__)), str(upstream), json.dumps(asdict(rules))]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.base_url = f"http://127.0.0.1:{int(self._process.stdout.readline())}/v1"

    def end(self) -> list[Entry]:
        """End the process; return its log."""
        log, _ = self._process.communicate()
        return [(at, sequences, status) for at, sequences, status in json.loads(log)]


@dataclass(slots=True)
class Proxy:
    upstream: int
    rules: Rules
    log: list[Entry] = field(default_factory=list)
    _connections: int = 0
    _requests: int = 0
    _sequences: int = 0
    _running: int = 0
    _allowance: float = 0.0
    _allowed_at: float = -math.inf

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection of a client."""
        self._connections += 1
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        try:
            if self._connections > (self.rules.connections or math.inf):
                self._note(0, 0)
                return
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                body = await reader.readexactly(_content_length(head))
                sequences = _sequences(body) if head.startswith(b"POST") else 0
                if sequences and self._refuses(sequences):
                    self._note(sequences, self.rules.status)
                    writer.write(self._refusal())
                    continue
                if server is None or server[0].at_eof():
                    server = await asyncio.open_connection("127.0.0.1", self.upstream, limit=2**24)
                server[1].write(head + body)
                await self._answer(server[0], writer, sequences)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # one of the two has left
        finally:
            self._connections -= 1
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
            async for piece in _pieces(reader):
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

    def _refuses(self, sequences: int) -> bool:
        rules, now = self.rules, time.monotonic()
        refused = (
            self._sequences + sequences > (rules.sequences or math.inf)
            or self._requests + 1 > (rules.requests or math.inf)
            or self._sequences - self._running + sequences > (rules.waiting or math.inf)
        )
        if rules.per_s and not refused:
            self._allowance = min(rules.per_s, self._allowance + (now - self._allowed_at) * rules.per_s)
            self._allowed_at = now
            refused = self._allowance < 1
            self._allowance -= not refused
        return refused

    def _refusal(self) -> bytes:
        rules = self.rules
        body = json.dumps({"error": {"message": "Too many requests", "type": "overloaded", "code": rules.status}})
        rest = f"retry-after: {rules.retry_after_s}\r\n" if rules.retry_after_s else ""
        head = f"HTTP/1.1 {rules.status} Refused\r\ncontent-type: application/json\r\n{rest}"
        return f"{head}content-length: {len(body)}\r\n\r\n{body}".encode()

    async def _stalled(self) -> None:
        if self.rules.stall_s is not None:
            begin_s, end_s = self.rules.stall_s
            elapsed_s = time.monotonic() - self.log[0][0]
            if begin_s <= elapsed_s < end_s:
                await asyncio.sleep(end_s - elapsed_s)

    def _note(self, sequences: int, status: int) -> None:
        self.log.append((time.monotonic(), sequences, status))


async def _pieces(reader: asyncio.StreamReader) -> Any:
    """A reply's head, and its body in the chunks that came."""
    head = await reader.readuntil(b"\r\n\r\n")
    yield head
    if b"transfer-encoding: chunked" not in head.lower():
        yield await reader.readexactly(_content_length(head))
        return
    size = 1
    while size:
        line = await reader.readline()
        found = _CHUNK_SIZE.match(line)
        if found is None:
            raise ConnectionError("the server left in the middle of a reply")
        size = int(found[0], 16)
        yield line + await reader.readexactly(size + 2)


def _content_length(head: bytes) -> int:
    found = re.search(rb"\r\ncontent-length: *([0-9]+)", head, re.IGNORECASE)
    return int(found[1]) if found else 0


def _sequences(body: bytes) -> int:
    prompt = json.loads(body).get("prompt")
    return len(prompt) if isinstance(prompt, list) and prompt and not isinstance(prompt[0], int) else 1


async def main() -> None:
    rules: dict[str, Any] = json.loads(sys.argv[2])
    proxy = Proxy(int(sys.argv[1]), Rules(**rules))
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0, limit=2**24, backlog=4096)
    stepping = asyncio.ensure_future(proxy.step())
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.to_thread(sys.stdin.read)  # nothing is ever sent here: the parent has closed it, or gone
    stepping.cancel()
    server.close()
    print(json.dumps(proxy.log), flush=True)


if __name__ == "__main__":
    asyncio.run(main())
