"""``session=``: which server is told, who shares a request, which server gets the calls, and what is refused."""

import json
from contextlib import AsyncExitStack
from functools import partial

import anyio
import pytest

from batchclient import BatchClient, Batching, ConfigError, Server, SyncBatchClient
from batchclient._settings import sending_of
from batchclient.rows import RowCall, read_call
from tests.shell.scripted import ScriptedTransport, make_client

URLS = [f"http://s{number}/v1" for number in range(3)]
TELLS = Server("http://scripted/v1", session_header="X-Session-ID")


def told(server):
    """Of each request: the session that its header tells, and how many prompts it has."""
    return [
        (dict(sent.request.headers).get("X-Session-ID"), len(json.loads(sent.request.body)["prompt"]))
        if isinstance(json.loads(sent.request.body)["prompt"], list)
        else (dict(sent.request.headers).get("X-Session-ID"), 1)
        for sent in server.sent
    ]


async def together(calls):
    """Make calls at the same time."""
    async with anyio.create_task_group() as group:
        for call in calls:
            group.start_soon(call)


def several(urls=URLS, **arguments):
    """A client of several servers, and what each was sent."""
    servers = {url: ScriptedTransport() for url in urls}
    http = sending_of(lambda url, _: servers[url])
    return BatchClient(urls, model="m", http=http, probe=False, from_environment=False, **arguments), servers


async def test_a_server_with_a_header_is_told_and_calls_share_lists_within_their_session_alone():
    server = ScriptedTransport()
    client = make_client(server, base_url=TELLS)
    sessions = ["a", "b", "a", None, "b", "a", "c", None]
    async with client:
        await together(partial(client.complete, f"p{n}", max_tokens=4, session=each) for n, each in enumerate(sessions))
        alone = dict(client.statistics().alone)
    assert sorted(told(server), key=str) == [("a", 3), ("b", 2), ("c", 1), (None, 2)]
    assert alone == {"session": 1}


async def test_without_a_header_nobody_is_told_and_lists_mix_sessions():
    server = ScriptedTransport()
    async with make_client(server) as client:
        await together(partial(client.complete, f"p{n}", max_tokens=4, session=f"s{n}") for n in range(4))
    assert told(server) == [(None, 4)]


async def test_of_several_servers_a_session_has_one_and_moves_when_that_one_leaves():
    homes = {}
    for _ in range(2):
        client, servers = several()
        async with client:
            for turn in range(2):
                for n in range(12):
                    await client.complete("p", max_tokens=4, session=f"s{n}")
                    (url,) = [url for url, server in servers.items() if len(server.sent) > homes.get(("seen", url), 0)]
                    homes["seen", url] = len(servers[url].sent)
                    assert homes.setdefault(n, url) == url, "the same in each client and turn"
            left = homes[0]
            await client.remove_endpoint(left)
            sent = {url: len(server.sent) for url, server in servers.items()}
            for n in range(12):
                await client.complete("p", max_tokens=4, session=f"s{n}")
                (url,) = [url for url, server in servers.items() if len(server.sent) > sent[url]]
                sent[url] += 1
                assert url == homes[n] or homes[n] == left
        homes = {n: url for n, url in homes.items() if isinstance(n, int)}
    assert set(homes.values()) == set(URLS)


async def test_sessions_of_one_server_share_its_lists():
    client, servers = several(batching=Batching(linger_s=0.0))
    async with client:
        await together(partial(client.complete, f"p{n}", max_tokens=4, session=f"s{n}") for n in range(60))
    assert sum(len(server.sent) for server in servers.values()) < 12


@pytest.mark.parametrize("begun", [False, True], ids=["before the first call", "later"])
async def test_a_stream_goes_to_the_server_that_its_session_has_when_it_is_sent(begun):
    """Servers may join after it was made; and before the first call their numbers are not final."""
    for n in range(6):
        servers = {url: ScriptedTransport() for url in URLS}
        http = sending_of(lambda url, _, servers=servers: servers[url])
        client = BatchClient(URLS[:2], model="m", http=http, probe=False, from_environment=False)
        async with AsyncExitStack() as stack:
            if begun:
                await stack.enter_async_context(client)
            before = client.stream("p", session=f"s{n}")
            client.add_endpoint(URLS[2])
            streams = before, client.stream("p", session=f"s{n}")
            if not begun:
                await stack.enter_async_context(client)
            await client.complete("p", session=f"s{n}")
            for stream in streams:
                assert [piece.text async for piece in stream]
        assert sorted(len(server.sent) for server in servers.values()) == [0, 0, 3]


NO_SESSIONS = [
    ("", "an empty text"), ("x" * 257, "one of 257 characters"), ("a\nb", "one with others"), (" a", "one with others"),
    ("ü", "one with others"), (5, "a int"), (b"a", "a bytes"), (True, "a bool"),
]  # fmt: skip


@pytest.mark.parametrize(("session", "words"), NO_SESSIONS, ids=repr)
async def test_what_is_no_session_is_refused(session, words):
    async with make_client(ScriptedTransport()) as client:
        for ask in (client.complete, client.embed, client.classify, client.tokenize):
            with pytest.raises(ConfigError) as caught:
                await ask("p", session=session)
            assert caught.value.field == "session"
            assert caught.value.message.endswith(f"without spaces around them, not {words}")
        with pytest.raises(ConfigError):
            client.stream("p", session=session)
        with pytest.raises(ConfigError):
            client.stream_map(["a"], "{}", session=session)


@pytest.mark.parametrize("name", ["", "a b", "a\n", 5], ids=repr)
def test_what_is_no_header_is_refused(name):
    with pytest.raises(ConfigError) as caught:
        Server("http://a/v1", session_header=name)
    assert caught.value.field == "session_header"


def test_a_row_says_its_session_in_params_and_a_column_of_that_name_is_data():
    messages = [{"role": "user", "content": "hi"}]
    made = read_call({"messages": messages, "params": {"session": "s", "max_tokens": 2}, "session": "data"})
    assert (made.session, made.params, made.own) == ("s", {"max_tokens": 2}, {"session", "max_tokens"})
    assert read_call({"messages": messages, "session": "data"}).session is None
    line = {"url": "/v1/chat/completions", "body": {"messages": messages, "session": "the server's own"}}
    assert read_call(line).session is None
    assert read_call(line).params == {"extra_body": {"session": "the server's own"}}
    assert read_call(line | {"params": {"session": "s"}}).session == "s"
    for wrong in ("", 5):
        with pytest.raises(ConfigError) as caught:
            read_call({"messages": messages, "params": {"session": wrong}})
        assert caught.value.field == "session"


async def test_rows_and_maps_and_functions_of_rows_have_sessions():
    server = ScriptedTransport()
    rows = [{"prompt": "a", "params": {"session": "row"}}, {"prompt": "b"}]

    async def ask(row, client):
        return await client.complete(row, session="function")

    async with make_client(server, base_url=TELLS) as client:
        await client.batch_map(rows, session="map", max_tokens=2)
        await client.batch_map(["c"], lambda text: RowCall("complete", text, {}, session="made"), max_tokens=2)
        async for result in client.run(ask, ["d"]):
            assert result.error is None
    assert sorted(told(server)) == [("function", 1), ("made", 1), ("map", 1), ("row", 1)]


def test_threads_have_sessions():
    server = ScriptedTransport()
    http = sending_of(lambda url, headers: server)
    with SyncBatchClient(TELLS, model="m", http=http, probe=False) as client:
        client.complete("p", max_tokens=2, session="a")
        client.batch_map(["p"], "{}", max_tokens=2, session="b")
    assert sorted(told(server)) == [("a", 1), ("b", 1)]
