"""Examinations in virtual time: a simulated server, or pages as they were recorded."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing
from tests.guises import GUISES
from tests.seams import connected
from tests.shell.scripted import Answer, Reply

from batchclient import Backoff, ReadTimedOut
from batchclient._doctor.examination import Target, examine
from batchclient._doctor.report import report_on
from batchclient._shell.pages import read_page
from batchclient.simulator import SimulatedServer, SimulatorTransport
from batchclient.transport import Timeouts

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
            status, body, *own = self.pages[path]
            return answer(status, body, {**self.headers, **(own[0] if own else {})})
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

    @property
    def prompts(self):
        """The number of prompts of each request."""
        told = [body.get("prompt", body.get("text", "")) for body in self.bodies]
        return [len(each) if isinstance(each, list) else 1 for each in told]


class Below:
    """The same server, for requests below another path."""

    def __init__(self, transport, prefix):
        self.transport, self.prefix = transport, prefix

    async def send(self, request, timeouts):
        path = request.path if request.from_root else self.prefix + request.path
        return await self.transport.send(replace(request, path=path, from_root=True), timeouts)

    async def aclose(self):
        pass


def answer(status, body, headers):
    kind = "text/html" if body[:1] == b"<" else "application/json" if body[:1] in b"{[" else "text/plain"
    return Answer(Reply(status, {"content-type": kind, **headers}, [body]))


def see(transport, url=URL, **given):
    """Examine a server in virtual time, and return the report."""

    def connect(its):
        way = transport if its == url else Below(transport, "/v1")
        ways = {"calls": lambda _: way, "detection": lambda _: way, "metrics": lambda _: Below(transport, "")}
        key = "sk-canary" if given.get("has_key") else None
        arguments = {
            "model": given.get("model"),
            "api_key": key,
            "retry": Backoff(max_attempts=1),
            "trusts_lists": False,
        }
        return connected(its, **ways, asks_first=True, **arguments)

    async def fetch(request):
        try:
            return await read_page(transport, request, Timeouts(read_s=10.0), 10.0, 10.0)
        except TimeoutError:
            raise ReadTimedOut("no whole page within 10 s") from None

    async def story():
        return report_on(await examine(Target(url, url, connect, fetch, **given)))

    return trio.run(story, clock=trio.testing.MockClock(autojump_threshold=0))


@pytest.fixture
def look():
    """Examine a simulated server; return the report and the watched transport."""

    def run(profile="gpu", *, pages=None, headers=None, prefix="/v1", url=URL, target=None, **options):
        guise = options.pop("guise", "vllm")
        server = SimulatedServer(profile, guise=GUISES[guise] if isinstance(guise, str) else guise, **options)
        transport = Watched(SimulatorTransport(server, prefix=prefix), pages, headers, prefix)
        return see(transport, url, **(target or {})), transport

    return run


def recorded(name):
    """The status and the body of a recorded page."""
    if name.endswith(".txt"):
        return 200, (WIRE / name).read_bytes()
    page = json.loads((WIRE / name).read_text())
    return page["status"], page["body_text"].encode()


def ids(report):
    return [finding.id for finding in report.findings]
