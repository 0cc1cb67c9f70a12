"""A key or a prompt in the place of something else is refused with the rest, and nothing that comes out shows it."""

import inspect

import pytest
from tests.outlets import LogOutlet, of_error, shown_in

from batchclient import (
    AdaptiveLimit,
    BatchClient,
    BatchClientError,
    Batching,
    ConfigError,
    Http,
    MapResult,
    Queue,
    Server,
    SyncBatchClient,
)
from batchclient.integrations.httpx import BatchTransport, SyncBatchTransport
from batchclient.openai import AsyncOpenAI, OpenAI
from batchclient.transport import WireRequest

KEY = "sk-canary-4711"
URL = "http://server.test/v1"

URLS = [
    *(KEY, f"#{KEY}", f"?api_key={KEY}", f"/{KEY}", f"//{KEY}/v1", f"ftp://{KEY}/", f"{KEY}://h/v1", f"http:{KEY}"),
    *(f"http:///{KEY}", f"http://{KEY}@h/v1", f"http://user:{KEY}@h/v1", f"http://h:{KEY}/v1", f"http://h:99999/{KEY}"),
    *(
        f"http://[{KEY}]/v1",
        f"http://[{KEY}/v1",
        f"http://h%{KEY}/v1",
        f"http://h_{KEY}!/v1",
        f"http://h\u2100{KEY}/v1",
    ),
    *(
        f"http://1.2.3.999/{KEY}",
        f"http://h/v1#{KEY}",
        f"http://h/{KEY} /v1",
        f"http://h/v1?k={KEY}#x",
        f"Bearer {KEY}",
    ),
]
HEADERS = [
    *({f"Bearer {KEY}": "authorization"}, {f"authorization: Bearer {KEY}": ""}, {KEY: "a\nb"}, {3: KEY}, [KEY], KEY),
    *({"authorization": f"Bearer {KEY}\n"}, {"x-key": f" {KEY}"}, {"x-key": f"{KEY}\u00fc"}, {"x-key": [KEY]}),
    f"authorization: {KEY}",
]
KEYS = [f"{KEY}\n", f" {KEY}", f"{KEY}\u00fc", KEY.encode(), [KEY]]
PROMPTS = [f"{KEY}\ud800", [KEY], [1, KEY], KEY.encode(), {"text": KEY}]
TWICE = f"http://h/v1?k={KEY}"


async def asked(ask):
    """Ask a client for something that must not get as far as its queue."""
    async with BatchClient([URL, "http://second.test/v1"], model="m") as client:
        try:
            return await ask(client)
        finally:
            assert client.statistics().submitted == 0
            assert "canary" not in repr(client)


TAKE_URLS = {
    "a client": lambda url: BatchClient(url, model="m"),
    "a client of several servers": lambda url: BatchClient([URL, url], model="m"),
    "a blocking client": lambda url: SyncBatchClient(url, model="m"),
    "a server that joins": lambda url: BatchClient(URL, model="m").add_endpoint(url),
    "a server that leaves": lambda url: asked(lambda client: client.remove_endpoint(url)),
    "a transport": lambda url: BatchTransport(base_url=url),
    "a blocking transport": lambda url: SyncBatchTransport(base_url=url),
    "a drop-in": lambda url: AsyncOpenAI(base_url=[URL, url], api_key="none"),
    "a blocking drop-in": lambda url: OpenAI(base_url=[URL, url], api_key="none"),
}
REFUSALS = {
    # Making an openai client takes most of its test's time.
    **{f"base_url of {what}": (make, URLS[:: 6 if "drop-in" in what else 1]) for what, make in TAKE_URLS.items()},
    "base_url of no server": (TAKE_URLS["a server that leaves"], [f"http://other/{KEY}", f"http://other/v1?k={KEY}"]),
    "base_url given twice": (lambda url: BatchClient([url, url], model="m"), [TWICE]),
    "base_url of a server that is there": (lambda url: BatchClient(url, model="m").add_endpoint(url), [TWICE]),
    "headers of a client": (lambda headers: BatchClient(URL, model="m", headers=headers), HEADERS),
    "api_key of a client": (lambda key: BatchClient(URL, model="m", api_key=key), KEYS),
    **{
        f"{name} of a client": (lambda key, name=name: BatchClient(URL, model="m", **{name: key}), [KEY])
        for name in ("limit", "http", "queue", "batching", "retry")
    },
    **{
        f"{name} beside a key": (
            lambda wrong, name=name: BatchClient(URL, api_key=KEY, headers={"x": KEY}, **{name: wrong}), [-1]
        )
        for name in ("limit", "timeout_s", "nonsense")
    },
    **{
        f"{kind.__name__.lower()}.{name} of a group": (lambda key, kind=kind, name=name: kind(**{name: key}), [KEY])
        for kind, name in ((Http, "backend"), (Queue, "order"), (Batching, "max_size"))
    },
    "limit.start of a group": (lambda key: AdaptiveLimit(start=key), [KEY]),
    "prompt of a call": (lambda prompt: asked(lambda client: client.complete(prompt)), PROMPTS),
    **{
        f"{name} of a call": (
            lambda wrong, name=name: asked(lambda client: client.complete(f"{KEY}", **{name: wrong})), [wrong]
        )
        for name, wrong in {
            "temperature": float("nan"), "stream": True, "suffix": f"{KEY}\ud800",
            "api_key": KEY, "headers": {"authorization": KEY}, "base_url": f"http://{KEY}/",
        }.items()
    },
    "prompt of a map": (
        lambda given: asked(lambda client: client.batch_map([given[0]], given[1])),
        [({"text": KEY}, "{}"), (KEY, "{text}")],
    ),
    "other of a map": (lambda document: asked(lambda client: client.batch_map([document], "{other}")), [{"text": KEY}]),
}  # fmt: skip


@pytest.mark.parametrize("place", REFUSALS)
async def test_what_is_refused_is_not_shown(place, caplog):
    log = LogOutlet(caplog)
    make, values = REFUSALS[place]
    for value in values:
        with pytest.raises(ConfigError) as caught:
            made = make(value)
            assert inspect.isawaitable(made), f"{value!r} was taken"
            await made
        assert not (shown := shown_in({**of_error(caught.value), "log": log.text}, ["canary"])), (value, shown)
        assert caught.value.field == place.partition(" ")[0], value
        # Pydantic's error shows what was given.
        assert "of a map" in place or (caught.value.__context__, caught.value.__cause__) == (None, None), value


async def test_a_server_that_is_not_there_is_named_without_its_query(caplog):
    caplog.set_level("DEBUG", "batchclient")
    url = f"http://127.0.0.1:1/v1?api_key={KEY}"
    async with BatchClient(url, model="m", api_key=KEY, headers={"x-key": KEY}) as client:
        with pytest.raises(BatchClientError) as caught:
            await client.complete("p", timeout_s=3.0)
        seen = repr(client.statistics()) + repr(client)
    assert "http://127.0.0.1:1/v1" in caplog.text, "the log names the server"
    assert not shown_in({**of_error(caught.value), "repr": seen, "log": caplog.text}, ["canary"])


def test_the_plain_name_of_a_header_is_shown():
    with pytest.raises(ConfigError, match="the value of the header 'X-Api-Key' is printable ASCII"):
        BatchClient(URL, model="m", headers={"X-Api-Key": "a\nb"})


def test_what_has_a_key_does_not_show_it():
    url, sent = f"{URL}?k={KEY}", WireRequest("POST", "/completions", KEY.encode(), headers=(("x", KEY),))
    server = Server(URL, api_key=KEY, headers={"x": KEY})
    transport, drop_in = BatchTransport(base_url=url), AsyncOpenAI(base_url=url, api_key=KEY)
    for each in (server, BatchClient(server, model="m"), transport, drop_in, MapResult("id", 0, KEY), sent):
        assert "canary" not in repr(each)
