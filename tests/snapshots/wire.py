"""What a client sends and what its callers are told, with the replies recorded in ``tests/wire``.

Hashed are, for each recording, once per dialect and way to call (see ``exchange``):
- every request to the byte, headers included;
- every caller's outcome: an answer, the pieces of a stream or an error, with its public content;
- what is logged.

Each request gets the recorded reply, whatever it asks. A recording that no call of ours brings
about (another route, a broken body) is the reply to a lone completion. Recorded pages are also read
as detection and the load report read them. Servers of which there is no recording are the embedded
server's guises (``simulated/``).
"""

import asyncio
import json
from functools import cache
from pathlib import Path

from tests.core import Kind
from batchclient.dialects._fingerprints import Fingerprint
from batchclient.dialects._metrics import parse_metrics
from batchclient.simulator import SimulatedServer, SimulatorTransport
from batchclient.transport import Timeouts, WireRequest
from tests.guises import GUISES
from tests.mutations.cases import all_cases
from tests.params import as_given
from tests.snapshots.exchange import Calls, http_reply, run_calls
from tests.snapshots.text import text_of

__all__ = ["lines_of_wire", "names_of_wire"]

_FOLDER = Path(__file__).parent.parent / "wire"
_DIALECTS = {
    "vllm": ("vllm", None, "openai"),
    "llamacpp": ("llamacpp", "openai"),
    "transformers": (None, "openai"),
    "litellm": (None, "openai"),
}
"""In which languages a client may bring each recorded server to answer."""
_KINDS = {
    "/completions": ("complete", "prompt"),
    "/completion": ("complete", "prompt"),
    "/chat/completions": ("chat", "messages"),
    "/chat/completions/batch": ("chat", "messages"),
    "/embeddings": ("embed", "input"),
}
"""By path without its ``/v1``: the calls that ask for it, and the field that they are about."""
_OF_THE_SHELL = ("model", "stream", "stream_options", "stream_interval")
_DETECTION = "(detection)"
_BUSY_S = 4.0
"""A reply that takes so long has the client ask for the server's load meanwhile."""
_EPOCH_S = 1.8e9


def names_of_wire():
    """Return the names of recordings, of each server's detection and of simulated servers' cases."""
    files = sorted(path for path in _FOLDER.glob("*/*") if path.suffix in (".json", ".txt"))
    recordings = [f"{path.parent.name}/{path.stem}" for path in files]
    return recordings + [f"{server}/{_DETECTION}" for server in _DIALECTS] + list(_simulated())


def lines_of_wire(name):
    """Return the lines of one of ``names_of_wire``."""
    server, _, stem = name.partition("/")
    if server == "simulated":
        return _lines_of_simulated(*_simulated()[name])
    if stem == _DETECTION:
        return _lines_of_detection(server)
    page = _FOLDER / server / f"{stem}.txt"
    if page.exists():
        return [f"load {text_of(parse_metrics(page.read_bytes(), model))}" for model in (None, "tiny")]
    record = _read(server, stem)
    lines = _lines_of_page(record) if record["request"]["method"] == "GET" else []
    for dialect in _DIALECTS[server]:
        for calls in _ways_to_call(record, dialect):
            lines += run_calls(calls, lambda request: _reply(record))
    return lines


def _read(server, stem):
    return json.loads((_FOLDER / server / f"{stem}.json").read_text("utf-8"))


def _reply(record):
    return http_reply(record["status"], record["headers"], record["body_text"].encode())


def _ways_to_call(record, dialect):
    """The calls that bring a reply: plainly, piece by piece if it is a stream, and by a drop-in."""
    sent = record["request"].get("json")
    path = record["request"]["path"].removeprefix("/v1")
    way, field = _KINDS.get(path, ("complete", None))
    if not isinstance(sent, dict) or field not in sent:
        yield Calls(dialect, "complete", ["a prompt"], {"max_tokens": 6})
        return
    given = sent[field]
    several = isinstance(given, list) and bool(given) and not isinstance(given[0], int)
    if way == "chat" and not path.endswith("/batch"):
        several = False
    items = given if several else [given]
    params = {name: value for name, value in sent.items() if name not in (field, *_OF_THE_SHELL)}
    if "n_predict" in params:
        params["max_tokens"] = params.pop("n_predict")
    named = as_given(params, {"complete": Kind.COMPLETION, "chat": Kind.CHAT, "embed": Kind.EMBEDDING}[way])
    yield Calls(dialect, way, items, named)
    if sent.get("stream") and len(items) == 1:
        yield Calls(dialect, {"complete": "stream", "chat": "stream_chat"}[way], items, named)
    if way == "complete":
        yield Calls(dialect, "drop_in", items, params)


# Pages ---------------------------------------------------------------------------------------------------------------


def _lines_of_page(record):
    """What detection makes of a page, whichever page it had asked for."""
    lines = []
    for pages_before in range(3):
        found = Fingerprint()
        for _ in range(pages_before):
            found.next()
            found.take(404, {}, b"")
        asked = found.next()
        if asked is not None:
            says = found.take(record["status"], record["headers"], record["body_text"].encode())
            facts = found.facts()
            lines.append(f"page {asked.path}: {facts}, {text_of([says, found.open, facts, facts.base_models()])}")
    return lines


def _lines_of_detection(server):
    """A client finds out who its server is, and asks for its load while calls are under way."""
    pages, answer = _pages_of(server), _read(server, "plain_single")

    def reply(request):
        if request.startswith(b"POST"):
            return _late(_reply(answer))
        path = request.split(b" ", 2)[1].decode()
        return pages.get(path, http_reply(404, {"content-type": "application/json"}, b'{"detail":"Not Found"}'))

    # The load is asked for where more than one sequence is in flight.
    lines = []
    for items in (["def f("], ["def f(", "import os"]):
        lines += run_calls(Calls(None, "complete", items, {"max_tokens": 6}), reply, probe=True)
    return lines


def _pages_of(server):
    """By path: a server's reply to whoever asks for one of its recorded pages."""
    pages = {}
    for path in sorted((_FOLDER / server).glob("*.txt")):
        pages["/metrics"] = http_reply(200, {"content-type": "text/plain; version=0.0.4"}, path.read_bytes())
    for path in sorted((_FOLDER / server).glob("*.json")):
        record = _read(server, path.stem)
        if record["request"]["method"] == "GET" and record["status"] == 200:
            pages.setdefault(record["request"]["path"], _reply(record))
    return pages


async def _late(reply):
    await asyncio.sleep(_BUSY_S)
    return reply


# Simulated servers ---------------------------------------------------------------------------------------------------

_GUISES = ("vllm", "sglang", "tgi", "llamacpp", "trtllm", "tei", "openai")
_MORE = (
    ("rerank", ("which", ["this", "that"]), {}),
    ("tokenize", "a b c", {}),
    ("log_likelihood", " b c", {"given": "a"}),
)
"""Asked of every guise beside the cases of ``tests/mutations``: way to call, item, parameters."""


@cache
def _simulated():
    """By name: a guise, and the calls that it answers."""
    found = {}
    for case in all_cases():
        if not case.body:
            calls = Calls(case.dialect, case.kind, _items(case), case.params, case.model)
            params = "".join(f" {name}={value}" for name, value in case.params.items())
            found[f"simulated/{case.guise} as {case.dialect} {case.kind} of {case.size}{params}"] = case.guise, calls
    for guise in _GUISES:
        for way, item, params in _MORE:
            model = "tgi" if guise == "tgi" else "tiny"
            found[f"simulated/{guise} as {guise} {way}"] = guise, Calls(guise, way, [item], params, model)
    return found


def _items(case):
    items = [f"call-{number}" for number in range(case.size)]
    if "chat" in case.kind:
        return [[{"role": "user", "content": item}] for item in items]
    return [("which", item) for item in items] if case.kind == "score" else items


def _lines_of_simulated(guise, calls):
    server = SimulatedServer("instant", guise=GUISES[guise], model="tiny", max_model_len_tokens=2048, epoch_s=_EPOCH_S)
    transport = SimulatorTransport(server)

    async def reply(request):
        head, _, body = request.partition(b"\r\n\r\n")
        method, path, _ = head.decode().split(" ", 2)
        response = await transport.send(WireRequest(method, path, from_root=True, body=body), Timeouts())
        whole = b"".join([chunk async for chunk in response.chunks()])
        return http_reply(response.status, {name.lower(): value for name, value in response.headers.items()}, whole)

    return run_calls(calls, reply)
