"""A server on loopback that generates for a while, and counts what was sent and answered by row.

- A prompt names its row as ``row 000123``. A trial call's prompt without a row is not counted.
- Each prompt holds one of ``slots`` for ``seconds``; others wait in order.
- Completions, plain or streamed, their lists, chats and vLLM's lists of chats are taken.
- Every answer ends with ``stop``: a client may take one that was cut for a failure, and ask again.
- As vLLM does, the server drops the prompts of a connection that is gone.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, cast

from instant_server import (
    DONE,
    EVENT,
    JSON_HEAD,
    MODELS,
    NOT_FOUND,
    STREAM_HEAD,
    TOTAL,
    as_list,
    chat_reply,
    chunk,
    content_length,
    plain_reply,
    quote,
    tag,
    token_count,
)
from pydantic_core import from_json

__all__ = ["NightServer", "row_of"]

_ROW = re.compile(r"row (\d{6})")


def row_of(text: str) -> int | None:
    """Return the number of the row that a prompt or an answer names."""
    found = _ROW.search(text)
    return int(found[1]) if found else None


class NightServer:
    """The account of all prompts, and the slots.

    Attributes:
        received: how often each row was sent.
        answered: how often each row's answer was generated to its end.
        tokens: of one row: prompt and answer.
        on_answered: called with the number of answers so far.
    """

    def __init__(self, slots: int, seconds: float) -> None:
        self._free = slots
        self._seconds = seconds
        self._waiting: deque[_Prompt] = deque()
        self.received: Counter[int] = Counter()
        self.answered: Counter[int] = Counter()
        self.tokens: dict[int, int] = {}
        self.on_answered: Callable[[int], object] = bool
        self._server: asyncio.Server

    async def start(self) -> str:
        """Listen; return the base URL."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: _Connection(self), "127.0.0.1", 0, backlog=4096)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"

    def close(self) -> None:
        """Take no more connections."""
        self._server.close()

    def enter(self, prompt: _Prompt) -> None:
        """Take a prompt in."""
        if prompt.row is not None:
            self.received[prompt.row] += 1
            self.tokens[prompt.row] = token_count(prompt.text) + prompt.max_tokens
        self._waiting.append(prompt)
        self._grant()

    def _grant(self) -> None:
        while self._free and self._waiting:
            prompt = self._waiting.popleft()
            if not prompt.is_dropped:
                self._free -= 1
                asyncio.get_running_loop().call_later(self._seconds, self._finish, prompt)

    def _finish(self, prompt: _Prompt) -> None:
        self._free += 1
        if not prompt.is_dropped:
            prompt.on_done()
            if prompt.row is not None:
                self.answered[prompt.row] += 1
                self.on_answered(self.answered.total())
        self._grant()


def content_of(message: dict[str, Any]) -> str:
    """Return a message's text, which may be given in parts."""
    content = message["content"]
    return content if isinstance(content, str) else "".join(part.get("text", "") for part in content)


class _Prompt:
    def __init__(self, text: str, max_tokens: int, on_done: Callable[[], None]) -> None:
        self.text = text
        self.max_tokens = max_tokens
        self.on_done = on_done
        self.row = row_of(text)
        self.is_dropped = False


class _Connection(asyncio.Protocol):
    def __init__(self, server: NightServer) -> None:
        self._server = server
        self._buffer = b""
        self._open: list[_Prompt] = []
        self._left = 0
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def connection_lost(self, error: Exception | None) -> None:
        for prompt in self._open:
            prompt.is_dropped = True

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        stop = end + 4 + content_length(self._buffer[:end])
        if len(self._buffer) >= stop:
            method, target, _ = self._buffer[: self._buffer.find(b"\r\n")].split(b" ", 2)
            body, self._buffer = self._buffer[end + 4 : stop], self._buffer[stop:]
            self._take(method, target, body)

    def _take(self, method: bytes, target: bytes, body: bytes) -> None:
        if method == b"GET" and target.endswith(b"/models"):
            self._transport.write(JSON_HEAD % (len(MODELS), MODELS))
        elif method == b"POST" and b"/chat/completions" in target:
            request: dict[str, Any] = from_json(body)
            lists = request["messages"] if target.endswith(b"/batch") else [request["messages"]]
            self._generate([content_of(messages[-1]) for messages in lists], request, is_chat=True)
        elif method == b"POST" and target.endswith(b"/completions"):
            request = from_json(body)
            self._generate([str(prompt) for prompt in as_list(request["prompt"])], request, is_chat=False)
        else:
            self._transport.write(NOT_FOUND)

    def _generate(self, prompts: list[str], request: dict[str, Any], *, is_chat: bool) -> None:
        max_tokens = request.get("max_completion_tokens") or request.get("max_tokens") or 16
        is_streamed = bool(request.get("stream"))
        assert not (is_streamed and is_chat), "none of the compared clients streams chats"
        if is_streamed:
            self._transport.write(STREAM_HEAD)
        self._left = len(prompts)

        def done(index: int) -> None:
            self._left -= 1
            if is_streamed:
                self._transport.write(streamed(index, prompts[index], max_tokens))
            if self._left:
                return
            self._open = []
            if is_streamed:
                total, made = sum(map(token_count, prompts)), max_tokens * len(prompts)
                self._transport.write(chunk(TOTAL % (total, total + made, made)) + DONE)
            else:
                reply = chat_reply(prompts, max_tokens, with_ids=False) if is_chat else None
                reply = reply or plain_reply(list(prompts), max_tokens, with_ids=False)
                reply = reply.replace(b'"finish_reason":"length"', b'"finish_reason":"stop"')
                self._transport.write(JSON_HEAD % (len(reply), reply))

        for index, text in enumerate(prompts):
            prompt = _Prompt(text, max_tokens, lambda index=index: done(index))  # type: ignore[misc]
            self._open.append(prompt)
            self._server.enter(prompt)


def streamed(index: int, prompt: str, max_tokens: int) -> bytes:
    """All tokens of one choice, as one event."""
    size = token_count(prompt)
    return chunk(EVENT % (index, quote("echo:" + tag(prompt)), '"stop"', size, size + max_tokens, max_tokens))
