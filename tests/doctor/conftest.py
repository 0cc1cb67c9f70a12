"""Visits in virtual time: a simulated server, or pages as they were recorded."""

import json
from pathlib import Path

import pytest
import trio
import trio.testing

from batchclient._doctor.diagnosis import diagnose
from batchclient._doctor.visit import Patient, visit
from batchclient.simulator import SimulatedServer, SimulatorTransport
from tests.guises import GUISES
from tests.shell.scripted import Answer, Reply

URL = "http://llm:8000/v1"
WIRE = Path(__file__).parents[1] / "wire"


class Watched:
    """A transport that notes each request, and lays pages over a server's own."""

    def __init__(self, transport=None, pages=None, headers=None, prefix="/v1"):
        self.transport, self.pages, self.headers, self.prefix = transport, pages or {}, headers or {}, prefix
        self.asked = []
        self.bodies = []

    async def send(self, request, timeouts):
        path = request.path if request.from_root else self.prefix + request.path
        self.asked.append((request.method, path))
        if request.method == "POST":
            self.bodies.append(json.loads(request.body))
        if path in self.pages:
            return answer(*self.pages[path], self.headers)
        if self.transport is None:
            return answer(404, b'{"detail":"Not Found"}', self.headers)
        reply = await self.transport.send(request, timeouts)
        reply.headers = {**reply.headers, **self.headers}
        return reply

    async def aclose(self):
        pass

    @property
    def pages_asked(self):
        return [path for method, path in self.asked if method == "GET"]

    @property
    def requests(self):
        return [path for method, path in self.asked if method == "POST"]


def answer(status, body, headers):
    kind = "text/html" if body[:1] == b"<" else "application/json" if body[:1] in b"{[" else "text/plain"
    return Answer(Reply(status, {"content-type": kind, **headers}, [body]))


def see(transport, url=URL, **given):
    """Visit a server in virtual time, and return the diagnosis."""

    async def story():
        return diagnose(await visit(Patient(url, url, transport, **given)))

    return trio.run(story, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.fixture
def look():
    """Visit a simulated server; return the diagnosis and the watched transport."""

    def run(profile="gpu", *, pages=None, headers=None, prefix="/v1", url=URL, patient=None, **options):
        guise = options.pop("guise", "vllm")
        server = SimulatedServer(profile, guise=GUISES[guise] if isinstance(guise, str) else guise, **options)
        transport = Watched(SimulatorTransport(server, prefix=prefix), pages, headers, prefix)
        return see(transport, url, **(patient or {})), transport

    return run


def recorded(name):
    """The status and the body of a recorded page."""
    if name.endswith(".txt"):
        return 200, (WIRE / name).read_bytes()
    page = json.loads((WIRE / name).read_text())
    return page["status"], page["body_text"].encode()


def ids(diagnosis):
    return [finding.id for finding in diagnosis.findings]
