"""Who answers: the embedded server behind HTTP on the loop's sockets, and one reply of its own making that is mutated.

``arm`` has the next reply mutated; every other one is whole and right.
"""

import asyncio
import json
import re
from dataclasses import dataclass

from batchclient.simulator import SimulatedServer, SimulatorTransport
from tests.guises import GUISES
from batchclient.transport import Timeouts, WireRequest
from tests.mutations.answers import Owner, owners_in, write_answers
from tests.mutations.cases import DONE, parse_body

__all__ = ["Reply", "Server", "encode"]

_LENGTH = re.compile(rb"content-length: *(\d+)", re.IGNORECASE)


@dataclass
class Reply:
    """A whole reply that nothing was done to.

    Args:
        owners: of each choice.
        events: its JSON values; one if it is plain.
        streamed: whether it is a stream.
        content_type: as a header says it.
        status: 200, unless the request was refused.
        handed_on: whether its callers are given the server's own words.
    """

    owners: list[Owner]
    events: list
    streamed: bool
    content_type: str
    status: int = 200
    handed_on: bool = False

    @property
    def pieces(self):
        """Each event as bytes, in any JSON a server may write."""
        return [encode(event, streamed=self.streamed) for event in self.events]


def encode(event, *, streamed, ascii_only=False):
    text = DONE if event is DONE else json.dumps(event, ensure_ascii=ascii_only, separators=(",", ":"))
    return (f"data: {text}\n\n" if streamed else text).encode()


class Server:
    """One server.

    Args:
        loop: whose sockets it serves.
        case: whose reply is mutated, and who answers everything else.
    """

    def __init__(self, loop, case):
        self.case = case
        self.requests = []
        """The calls of each request, in order."""
        self.problems = []
        self.open = 0
        self.tasks = set()
        self.then = None
        """What is done to the next reply beside; ``(reply) -> steps``."""
        self._mutate = None
        self._loop = loop
        guise = SimulatedServer("instant", guise=GUISES[case.guise], model="tiny", max_model_len_tokens=2048)
        self._guise = SimulatorTransport(guise)
        loop.serve = self._connected

    def arm(self, mutate):
        """Answer the next request with what ``mutate(reply)`` returns: bytes to write, seconds to wait, or ``None`` to close."""
        self._mutate = mutate

    @property
    def is_armed(self):
        return self._mutate is not None

    def _connected(self, sock):
        task = self._loop.create_task(self._serve(sock))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _serve(self, sock):
        reader = asyncio.StreamReader()
        protocol = asyncio.StreamReaderProtocol(reader)
        transport, _ = await self._loop.connect_accepted_socket(lambda: protocol, sock)
        writer = asyncio.StreamWriter(transport, protocol, reader, self._loop)
        self.open += 1
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                body = await reader.readexactly(int(_LENGTH.search(head)[1]))
                steps = await self._steps(head.split(b" ", 2)[1].decode(), body)
                for step in steps:
                    if step is None:
                        return
                    if isinstance(step, bytes):
                        writer.write(step)
                        await writer.drain()
                    else:
                        await asyncio.sleep(step)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        except Exception as error:
            self.problems.append(f"the server failed: {error!r}")
        finally:
            self.open -= 1
            transport.abort()

    async def _steps(self, path, body):
        n = json.loads(body).get("n") or 1
        owners = owners_in(body, n)
        self.requests.append([call for call, k in owners if k == 0])
        mutate, self._mutate = self._mutate, None
        if mutate is not None and self.case.body:
            reply = self._recorded(owners)
        else:
            reply = await self._asked(path, body, owners)
        if mutate is not None and (
            reply.streamed != self.case.streamed or len(set(owners)) != self.case.size * self.case.n
        ):
            self.problems.append(f"{self.case.name}: the client asked otherwise: {path} {body[:200]!r}")
        if reply.status == 200:
            write_answers(reply.events, owners)
        reply.handed_on = self.case.kind == "drop_in"
        if mutate is not None:
            return mutate(reply)
        if self.then is not None and reply.status == 200:
            then, self.then = self.then, None
            return then(reply)
        return [whole(reply)]

    def _recorded(self, owners):
        case = self.case
        return Reply(owners, parse_body(case.body, streamed=case.streamed), case.streamed, case.content_type)

    async def _asked(self, path, body, owners):
        request = WireRequest("POST", path, from_root=True, body=body)
        response = await self._guise.send(request, Timeouts())
        whole = b"".join([chunk async for chunk in response.chunks()]).decode()
        content_type = {name.lower(): value for name, value in response.headers.items()}["content-type"]
        streamed = content_type.startswith("text/event-stream")
        return Reply(owners, parse_body(whole, streamed=streamed), streamed, content_type, response.status)


def whole(reply):
    """A reply as it should be."""
    body = b"".join(reply.pieces)
    head = f"HTTP/1.1 {reply.status} OK\r\ncontent-type: {reply.content_type}\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body
