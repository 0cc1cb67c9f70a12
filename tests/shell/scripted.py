"""A server in memory, behind the ``Transport`` seam: it answers by script, and can be held at any moment.

What it says of itself is what a server can see: which requests came, with what in them, and whether their connections
were read to the end or closed.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.lowlevel

from batchclient import BatchClient
from batchclient._settings import sending_of

__all__ = [
    "Answer",
    "MetricsPage",
    "Pages",
    "Reply",
    "ScriptedTransport",
    "Sent",
    "answer_to",
    "echo",
    "error",
    "make_client",
    "plain",
    "settle",
    "stream",
    "stream_end",
    "under_way",
]

BUSY = (Path(__file__).parent.parent / "wire" / "vllm" / "metrics_busy.txt").read_bytes()


@dataclass
class Reply:
    """What the server says: pieces of the body; an ``Event`` among them holds the rest, a number waits, an error breaks."""

    status: int = 200
    headers: dict = field(default_factory=dict)
    chunks: list = field(default_factory=list)


@dataclass
class Sent:
    """One request that arrived."""

    number: int
    request: object
    timeouts: object
    state: str = "open"
    """``open``, ``read`` (to its end), ``closed`` (before its end), ``cancelled`` (before the headers), ``broken``."""
    gate: anyio.Event = field(default_factory=anyio.Event)

    def __post_init__(self):
        self.body = json.loads(self.request.body)
        prompt = self.body.get("prompt", self.body.get("messages"))
        several = isinstance(prompt, list) and not isinstance(prompt[0], int)
        self.prompts = prompt if several else [prompt]

    @property
    def streamed(self):
        return bool(self.body.get("stream"))

    def release(self):
        self.gate.set()

    def end(self, state):
        self.state = state


def answer_to(prompt, choice=0):
    """The text the server gives: it holds the prompt, so that a swapped answer shows."""
    return f"<{prompt}|{choice}>"


def _event(sent, index, text, reason):
    n = sent.body.get("n") or 1
    prompt = sent.prompts[index // n]
    usage = {"prompt_tokens": len(prompt), "completion_tokens": 2, "total_tokens": len(prompt) + 2}
    choice = {"index": index, "text": text, "finish_reason": reason, "logprobs": None}
    event = {"id": f"cmpl-{sent.number}", "model": sent.body["model"], "choices": [choice], "usage": usage}
    return b"data: " + json.dumps(event).encode() + b"\n\n"


def stream(sent, positions=None, first=True, last=True):
    """Events of the prompts at some positions, the last prompt first; without ``first`` or ``last``, half of each."""
    n = sent.body.get("n") or 1
    positions = range(len(sent.prompts)) if positions is None else positions
    indices = [position * n + k for position in reversed(positions) for k in range(n)]
    chunks = []
    for part, wanted, reason in ((0, first, None), (1, last, "length")):
        for index in indices if wanted else ():
            text = answer_to(sent.prompts[index // n], index % n)
            middle = len(text) // 2
            chunks.append(_event(sent, index, text[middle:] if part else text[:middle], reason))
    return chunks


def stream_end():
    return [b"data: [DONE]\n\n"]


def plain(sent):
    """One JSON object, its choices in no order."""
    n = sent.body.get("n") or 1
    choices = [
        {
            "index": position * n + k,
            "text": answer_to(prompt, k),
            "finish_reason": "length",
            "prompt_token_ids": list(range(len(prompt))),
            "token_ids": [1, 2],
        }
        for position, prompt in enumerate(sent.prompts)
        for k in range(n)
    ]
    tokens = sum(len(prompt) for prompt in sent.prompts)
    usage = {"prompt_tokens": tokens, "completion_tokens": 2 * len(choices), "total_tokens": tokens + 2 * len(choices)}
    reply = {"id": f"cmpl-{sent.number}", "model": sent.body["model"], "choices": choices[::-1], "usage": usage}
    return json.dumps(reply).encode()


def echo(sent):
    """Answer every prompt."""
    return Reply(chunks=stream(sent) + stream_end() if sent.streamed else [plain(sent)])


def error(status, message="no", headers=None, kind="Error"):
    """An error as vLLM writes it."""
    body = {"error": {"message": message, "type": kind, "param": None, "code": status}}
    return Reply(status, headers or {}, [json.dumps(body).encode()])


class ScriptedTransport:
    """Replies in order of ``script`` (a ``Reply``, an exception, or a function of the request); then echoes.

    Args:
        script: what the first requests get.
        held: whether replies wait for ``Sent.release``.
    """

    def __init__(self, *script, held=False):
        self.script = list(script)
        self.held = held
        self.sent = []
        self.closed = 0
        self._news = anyio.Event()

    @property
    def states(self):
        return [each.state for each in self.sent]

    @property
    def prompts(self):
        """Of each request."""
        return [each.prompts for each in self.sent]

    @property
    def open(self):
        return sum(each.state == "open" for each in self.sent)

    async def arrived(self, count):
        """Wait until so many requests came."""
        while len(self.sent) < count:
            self._news = anyio.Event()
            await self._news.wait()

    def release(self):
        """Let go all that is held, and hold no more."""
        self.held = False
        for each in self.sent:
            each.release()

    async def send(self, request, timeouts):
        sent = Sent(len(self.sent), request, timeouts)
        self.sent.append(sent)
        self._news.set()
        step = self.script.pop(0) if self.script else echo
        try:
            if self.held:
                await sent.gate.wait()
            else:
                await anyio.lowlevel.checkpoint()
        except BaseException:
            sent.state = "cancelled"
            raise
        reply = step(sent) if callable(step) else step
        if isinstance(reply, BaseException):
            sent.state = "broken"
            raise reply
        return Answer(reply, sent.end)

    async def aclose(self):
        self.closed += 1


class Answer:
    """A response: a ``Reply`` as it is read. ``on_end`` is told ``read``, ``closed`` (before its end) or ``broken``, once."""

    def __init__(self, reply, on_end=lambda state: None):
        self._reply = reply
        self._on_end = on_end
        self.status = reply.status
        self.headers = reply.headers

    async def chunks(self):
        for chunk in self._reply.chunks:
            if isinstance(chunk, BaseException):
                self._end("broken")
                raise chunk
            if isinstance(chunk, (int, float)):
                await anyio.sleep(chunk)
            elif not isinstance(chunk, bytes):
                await chunk.wait()
            else:
                yield chunk
        self._end("read")

    async def aclose(self):
        self._end("closed")

    def _end(self, state):
        on_end, self._on_end = self._on_end, lambda state: None
        on_end(state)


class Pages:
    """A server's plain pages behind the ``Transport`` seam. A page may be an exception, or ``"hangs"``.

    Args:
        pages: by path.
    """

    takes_s = 0.01

    def __init__(self, pages):
        self.pages = pages
        self.asked_at = []
        self.requests = []
        self.open = self.most_open = self.closed = 0

    @property
    def asked(self):
        """The path of each request."""
        return [path for _, path, _ in self.requests]

    def _page(self, request):
        assert (request.method, request.body) == ("GET", b"")
        assert request.from_root == (request.path != "/models")
        return self.pages.get(request.path, Reply(404))

    async def send(self, request, timeouts):
        self.asked_at.append(anyio.current_time())
        self.requests.append((request.method, request.path, request.body))
        reply = self._page(request)
        self.open += 1
        self.most_open = max(self.most_open, self.open)
        try:
            if isinstance(reply, BaseException):
                raise reply
            if reply == "hangs":
                await anyio.sleep_forever()
            await anyio.sleep(self.takes_s)
        except BaseException:
            self.open -= 1
            raise
        return _Page(self, reply)

    async def aclose(self):
        self.closed += 1


class _Page(Answer):
    """Open until it is closed."""

    def __init__(self, pages, reply):
        super().__init__(reply)
        self._pages = pages

    async def aclose(self):
        self._pages.open -= 1


class MetricsPage(Pages):
    """The page of a server's load. ``script``: what the first questions get; then ``reply``."""

    takes_s = 0.0

    def __init__(self, *script, reply=None):
        super().__init__({})
        self.script = list(script)
        self.reply = reply or Reply(chunks=[BUSY])

    def _page(self, request):
        return self.script.pop(0) if self.script else self.reply

    def intervals(self, since=0):
        times = self.asked_at[since:]
        return [round(after - before, 2) for before, after in zip(times, times[1:], strict=False)]


async def under_way(client, server, seconds, calls=4):
    """Some calls that take so long."""
    async with anyio.create_task_group() as group:
        for number in range(calls):
            group.start_soon(client.complete, f"p{number}")
        await server.arrived(1)
        await anyio.sleep(seconds)
        server.release()


def make_client(transport, **arguments):
    """A client whose every endpoint is the scripted server."""
    defaults = {"model": "m", "probe": False}
    url = arguments.pop("base_url", "http://scripted/v1")
    http = sending_of(arguments.pop("http", None), transport=lambda url, headers: transport)
    return BatchClient(url, http=http, **{**defaults, **arguments})


async def settle(turns=12):
    """Let happen all that can happen now; more turns than any step of ours takes."""
    for _ in range(turns):
        await anyio.lowlevel.checkpoint()
