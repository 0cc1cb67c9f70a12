"""A completions server that answers at once, so that a benchmark measures the client alone.

The server is not the simulator but a raw ``asyncio.Protocol``. It speaks HTTP/1.1 with keep-alive
and content-length bodies only. Answers are glued from prebuilt fragments in the shapes vLLM 0.32
sends. Every answer's text is ``"echo:" + prompt[:16]``, so a caller can check the text.

- A plain reply is one JSON body in one write.
- A streamed reply sends two events a prompt: all first tokens, then all the rest, each with its
  usage. The total and ``[DONE]`` follow. Every event is its own HTTP chunk and its own
  ``transport.write``, as vLLM's are. The server behaves as if ``stream_interval`` were always
  large. Events written without a gap reach a client several in one read. ``--gap-s`` spaces the
  events out, the worst case for a client.
- Chats and vLLM's lists of chats are answered plainly; the prompt is the last message's content.
- ``GET /statistics`` counts requests, prompts, list sizes and the server's own CPU. ``GET /last``
  returns the last POST body as it came.

Run it: ``python benchmarks/instant_server.py [--port 0]``. The port is the first line on stdout.
The server ends on SIGTERM. Where its stdin is a pipe, it also ends when the pipe closes, so it
never outlives a benchmark.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import stat
import sys
import time
from collections import Counter
from collections.abc import Iterator
from json.encoder import encode_basestring_ascii as quote  # the C version: the cheapest JSON string there is
from typing import Any, cast

from pydantic_core import from_json, to_json

MODEL = "instant"
JSON_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
NOT_FOUND = (
    b'HTTP/1.1 404 Not Found\r\ncontent-type: application/json\r\ncontent-length: 22\r\n\r\n{"detail":"Not Found"}'
)
DONE = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"

CREATED = 1_760_000_000
REPLY_HEAD = f'{{"id":"cmpl-0","object":"text_completion","created":{CREATED},"model":"{MODEL}","choices":['
REPLY_TAIL = (
    '],"service_tier":null,"system_fingerprint":null,"usage":'
    '{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d,'
    '"prompt_tokens_details":null},"kv_transfer_params":null}'
)
CHOICE = (
    '{"index":%d,"text":%s,"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":%s,'
    '"prompt_logprobs":null,"prompt_token_ids":%s}'
)
CHAT_HEAD = f'{{"id":"chatcmpl-0","object":"chat.completion","created":{CREATED},"model":"{MODEL}","choices":['
CHAT_CHOICE = (
    '{"index":%d,"message":{"role":"assistant","content":%s,"refusal":null,'
    '"annotations":null,"audio":null,"function_call":null,'
    '"tool_calls":[],"reasoning":null},"logprobs":null,"finish_reason":"length","stop_reason":null,"token_ids":%s}'
)
EVENT_HEAD = f'data: {{"id":"cmpl-0","object":"text_completion","created":{CREATED},"model":"{MODEL}","choices":['
EVENT = (
    EVENT_HEAD + '{"index":%d,"text":%s,"logprobs":null,"finish_reason":%s,"stop_reason":null,"prompt_token_ids":null,'
    '"token_ids":null}],"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}}\n\n'
)
TOTAL = EVENT_HEAD + '],"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}}\n\n'
MODELS = to_json(
    {"object": "list", "data": [{"id": MODEL, "object": "model", "owned_by": "vllm", "max_model_len": 2048}]}
)

Prompt = str | list[int]
padding = ""
"""What follows each answer's text, for answers of a real length."""


class Counts:
    """Counts since the server's start."""

    def __init__(self) -> None:
        self.connections = 0
        self.requests = 0
        self.streamed = 0
        self.prompts = 0
        self.list_sizes: Counter[int] = Counter()
        self.last_body = b"{}"

    def as_json(self) -> bytes:
        return to_json(
            {
                "connections": self.connections,
                "requests": self.requests,
                "streamed": self.streamed,
                "prompts": self.prompts,
                "list_sizes": {str(size): count for size, count in sorted(self.list_sizes.items())},
                "cpu_s": time.process_time(),
            }
        )


class InstantProtocol(asyncio.Protocol):
    """One connection."""

    def __init__(self, counts: Counts, gap_s: float) -> None:
        self._counts = counts
        self._gap_s = gap_s
        self._buffer = b""
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self._counts.connections += 1

    def data_received(self, data: bytes) -> None:
        buffer = self._buffer + data if self._buffer else data
        while buffer:
            end = buffer.find(b"\r\n\r\n")
            if end < 0:
                break
            body_at = end + 4
            stop = body_at + content_length(buffer[:end])
            if len(buffer) < stop:
                break
            self._answer(buffer[: buffer.find(b"\r\n")], buffer[body_at:stop])
            buffer = buffer[stop:]
        self._buffer = buffer

    def _answer(self, request_line: bytes, body: bytes) -> None:
        method, target, _ = request_line.split(b" ", 2)
        if method == b"POST" and target.endswith((b"/completions", b"/chat/completions/batch")):
            self._generate(body, target)
        elif target.endswith(b"/statistics"):
            self._reply(self._counts.as_json())
        elif target.endswith(b"/last"):
            self._reply(self._counts.last_body)
        elif target.endswith(b"/models"):
            self._reply(MODELS)
        else:
            self._transport.write(NOT_FOUND)

    def _reply(self, body: bytes) -> None:
        self._transport.write(JSON_HEAD % (len(body), body))

    def _generate(self, body: bytes, target: bytes) -> None:
        request: dict[str, Any] = from_json(body)
        is_chat = b"/chat/" in target
        if is_chat:
            conversations = request["messages"] if target.endswith(b"/batch") else [request["messages"]]
            prompts: list[Prompt] = [messages[-1]["content"] for messages in conversations]
        else:
            prompts = as_list(request["prompt"])
        counts = self._counts
        counts.requests += 1
        counts.prompts += len(prompts)
        counts.list_sizes[len(prompts)] += 1
        counts.last_body = body
        made = request.get("max_completion_tokens") or request.get("max_tokens", 16)
        if request.get("stream") and not is_chat:
            counts.streamed += 1
            self._stream(prompts, made)
        else:
            reply = chat_reply if is_chat else plain_reply
            self._reply(reply(prompts, made, with_ids=bool(request.get("return_token_ids"))))

    def _stream(self, prompts: list[Prompt], max_tokens: int) -> None:
        events = stream_events(prompts, max_tokens)
        if self._gap_s:
            self._write_spaced(events)
        else:
            for event in events:
                self._transport.write(event)

    def _write_spaced(self, events: Iterator[bytes]) -> None:
        event = next(events, None)
        if event is not None and not self._transport.is_closing():
            self._transport.write(event)
            asyncio.get_running_loop().call_later(self._gap_s, self._write_spaced, events)


def stream_events(prompts: list[Prompt], max_tokens: int) -> Iterator[bytes]:
    """The head of a streamed reply, then each event as an HTTP chunk."""
    yield STREAM_HEAD
    sizes = [token_count(prompt) for prompt in prompts]
    if max_tokens > 1:  # one token has no "rest": vLLM then sends a single event
        for index, size in enumerate(sizes):
            yield chunk(EVENT % (index, '"echo:"', "null", size, size + 1, 1))
    opening = "" if max_tokens > 1 else "echo:"
    for index, (prompt, size) in enumerate(zip(prompts, sizes, strict=True)):
        text = quote(opening + tag(prompt) + padding)
        yield chunk(EVENT % (index, text, '"length"', size, size + max_tokens, max_tokens))
    total, made = sum(sizes), max_tokens * len(prompts)
    yield chunk(TOTAL % (total, total + made, made))
    yield DONE


def content_length(head: bytes) -> int:
    at = head.find(b"ontent-")  # both spellings clients use, without lowering the whole head
    while at >= 0:
        if head[at + 7 : at + 14].lower() == b"length:":
            return int(head[at + 14 :].split(b"\r\n", 1)[0])
        at = head.find(b"ontent-", at + 7)
    return 0


def as_list(prompt: Any) -> list[Prompt]:
    if isinstance(prompt, str) or (prompt and isinstance(prompt[0], int)):
        return [prompt]
    return cast("list[Prompt]", prompt)


def tag(prompt: Prompt) -> str:
    return prompt[:16] if isinstance(prompt, str) else ",".join(map(str, prompt[:4]))[:16]


def token_count(prompt: Prompt) -> int:
    return len(prompt) // 4 + 1 if isinstance(prompt, str) else len(prompt)


def chunk(event: str) -> bytes:
    return b"%x\r\n%b\r\n" % (len(event), event.encode("ascii"))


ID_LISTS: dict[int, str] = {}


def id_list(length: int) -> str:
    """JSON of ``length`` token ids; only its length carries meaning, so one of each is enough."""
    made = ID_LISTS.get(length)
    if made is None:
        made = ID_LISTS[length] = "[" + ",".join(str(100 + i) for i in range(length)) + "]"
    return made


def plain_reply(prompts: list[Prompt], max_tokens: int, *, with_ids: bool) -> bytes:
    total = 0
    choices = []
    answer_ids = id_list(max_tokens) if with_ids else "null"
    for index, prompt in enumerate(prompts):
        size = token_count(prompt)
        total += size
        choices.append(
            CHOICE % (index, quote("echo:" + tag(prompt) + padding), answer_ids, id_list(size) if with_ids else "null")
        )
    made = max_tokens * len(prompts)
    return "".join((REPLY_HEAD, ",".join(choices), REPLY_TAIL % (total, total + made, made))).encode("ascii")


def chat_reply(prompts: list[Prompt], max_tokens: int, *, with_ids: bool) -> bytes:
    total = sum(map(token_count, prompts))
    answer_ids = id_list(max_tokens) if with_ids else "null"
    choices = [
        CHAT_CHOICE % (index, quote("echo:" + tag(prompt) + padding), answer_ids)
        for index, prompt in enumerate(prompts)
    ]
    made = max_tokens * len(prompts)
    return "".join((CHAT_HEAD, ",".join(choices), REPLY_TAIL % (total, total + made, made))).encode("ascii")


async def serve(port: int, gap_s: float) -> None:
    loop = asyncio.get_running_loop()
    counts = Counts()
    server = await loop.create_server(lambda: InstantProtocol(counts, gap_s), "127.0.0.1", port, backlog=4096)
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    if stat.S_ISFIFO(os.fstat(sys.stdin.fileno()).st_mode):
        # Nothing is ever sent here: readable means that the parent has gone.
        loop.add_reader(sys.stdin.fileno(), stopped.set)
    print(server.sockets[0].getsockname()[1], flush=True)
    await stopped.wait()
    server.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0, help="0 picks a free one")
    parser.add_argument(
        "--gap-s", type=float, default=0.0, help="between the events of a stream, so that each is read alone"
    )
    parser.add_argument("--pad", type=int, default=0, help="characters that follow each answer's text")
    options = parser.parse_args()
    global padding
    padding = "x" * options.pad
    asyncio.run(serve(options.port, options.gap_s))


if __name__ == "__main__":
    main()
