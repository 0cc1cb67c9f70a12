"""A client's calls to a server that is a function: all that was sent, told and logged, as lines.

The client is a whole one. It speaks by httpx's own code over sockets that are pairs in this
process, in virtual time. A request's random id and the versions of other libraries are left out.
"""

import asyncio
import logging
import re
from contextlib import contextmanager
from dataclasses import dataclass

from batchclient import Backoff
from tests.core import Kind
from batchclient.integrations.form import WireCalls, make_calls
from tests.mutations.sockets import PairLoop, on_the_loops_clock
from tests.seams import connected
from tests.snapshots.text import text_of

__all__ = ["Calls", "http_reply", "run_calls"]

_TIMEOUT_S = 100.0
_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)
_VARIES = [
    (re.compile(rb"(x-request-id: )[^\r]*", re.IGNORECASE), rb"\1(id)"),
    (re.compile(rb"(python-httpx/)[^\r ]*"), rb"\1(version)"),
]
"""What of a request is another in each run, or with each version of a library."""


@dataclass(frozen=True)
class Calls:
    """Calls made together.

    Args:
        dialect: what the client speaks.
        way: the client's method (``complete``, ``embed``, ``stream``, …); or ``drop_in``: a
            completion whose caller has the server's own reply.
        items: what each call is about; a tuple is several arguments.
        params: of each.
        model: the client's.
    """

    dialect: str | None
    way: str
    items: list
    params: dict
    model: str = "tiny"


def run_calls(calls, answer, **arguments):
    """Make calls of a server; return the lines.

    Args:
        answer: a function of a request's bytes that returns the reply's, or a coroutine that does.
        arguments: further ones of the client.
    """
    with asyncio.Runner(loop_factory=PairLoop) as runner, _logged() as logged:
        loop = runner.get_loop()
        server = _Server(loop, answer)
        with on_the_loops_clock(loop):
            outcomes, servers = runner.run(_made(calls, arguments))
            runner.run(server.end())
    return [
        f"as {calls.dialect}, {calls.way} of {len(calls.items)}",
        *(f"  sent {text_of(request)}" for request in server.requests),
        *(f"  told {text_of(outcome)}" for outcome in outcomes),
        *(f"  logged {text_of(message)}" for message in logged),
        f"  known {text_of(servers)}",
    ]


def http_reply(status, headers, body):
    """Return a reply as its bytes; its length is told instead of its chunks'."""
    told = {name: value for name, value in headers.items() if name not in ("transfer-encoding", "content-length")}
    lines = [f"HTTP/1.1 {status} Said", *(f"{name}: {value}" for name, value in told.items())]
    return "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode() + body


async def _made(calls, arguments):
    # A recorded reply to a list is for a list: no server is a stranger here.
    client = connected(
        "http://127.0.0.1:8000/v1",
        asks_first=True,
        model=calls.model,
        dialect=calls.dialect,
        api_key="sk-0123456789",
        headers={"x-own": "1"},
        retry=Backoff(max_attempts=1),
        **{"probe": False, **arguments},
    )
    outcomes = await asyncio.gather(*(_outcome(client, calls, item) for item in calls.items))
    servers = [endpoint.server for endpoint in client.statistics().endpoints]
    await client.aclose()
    return outcomes, servers


async def _outcome(client, calls, item):
    """One caller's answer, pieces and answer, or error."""
    way, params = calls.way, calls.params
    try:
        if way == "drop_in":
            return await make_calls(client, WireCalls(Kind.COMPLETION, [item], calls.model, dict(params)))
        given = item if isinstance(item, tuple) else (item,)
        call = getattr(client, way)(*given, timeout_s=_TIMEOUT_S, **params)
        if not way.startswith("stream"):
            return await call
        async with call as pieces:
            return [[piece async for piece in pieces], pieces.completion]
    except Exception as error:
        return error


@contextmanager
def _logged():
    """What users read in their log meanwhile: warnings and errors."""
    log, messages = logging.getLogger("batchclient"), []
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda record: messages.append(f"{record.levelname} {record.getMessage()}")
    log.addHandler(handler)
    try:
        yield messages
    finally:
        log.removeHandler(handler)


class _Server:
    """Answers every request on every connection of a loop, and keeps the requests."""

    def __init__(self, loop, answer):
        self.requests = []
        self._answer = answer
        self._tasks = set()
        self._loop = loop
        loop.serve = self._connected

    async def end(self):
        """Break all connections."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _connected(self, sock):
        self._tasks.add(self._loop.create_task(self._serve(sock)))

    async def _serve(self, sock):
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await self._loop.connect_accepted_socket(lambda: protocol, sock)
        writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
        try:
            while True:
                request = await reader.readuntil(b"\r\n\r\n")
                length = _LENGTH.search(request)
                request += await reader.readexactly(int(length[1])) if length else b""
                self.requests.append(_without_what_varies(request))
                reply = self._answer(request)
                writer.write(reply if isinstance(reply, bytes) else await reply)
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            transport.abort()


def _without_what_varies(request):
    for pattern, instead in _VARIES:
        request = pattern.sub(instead, request)
    return request
