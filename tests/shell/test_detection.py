"""Finding out which server it is, in virtual time: when it is asked, what becomes of it, and that no call ever notices."""

import json
import logging

import anyio
import pytest
from tests.seams import connected
from tests.shell.scripted import Pages, Reply, ScriptedTransport, under_way

from batchclient import ConfigError, ConnectFailed, ConnectionLost, ResponseTooLarge

FIRST_AFTER_S = 0.25


def ok(**body):
    return Reply(chunks=[json.dumps(body).encode()])


def models(*ids, owned_by="vllm", **more):
    return ok(object="list", data=[{"id": name, "object": "model", "owned_by": owned_by, **more} for name in ids])


VLLM = {"/models": models("m", max_model_len=2048), "/version": ok(version="0.32.0")}
TGI = {
    "/models": models("org/m", owned_by="org/m"),
    "/info": ok(max_concurrent_requests=128, max_total_tokens=4096, max_client_batch_size=4, version="3.3.6"),
}
LLAMACPP = {
    "/models": models("m", owned_by="llamacpp"),
    "/props": ok(total_slots=4, default_generation_settings={"n_ctx": 512}),
}


def make(server, pages, **arguments):
    defaults = {"model": "m", "probe": True}
    return connected(calls=lambda url: server, detection=lambda url: pages, **{**defaults, **arguments})


def language(sent):
    """What a request is written in: its path, and its fields without the prompt."""
    return sent.request.path, json.dumps({name: value for name, value in sent.body.items() if name != "prompt"})


def shown(client):
    return [endpoint.server for endpoint in client.statistics().endpoints]


# When ---------------------------------------------------------------------------------------------------------------


async def test_beside_the_calls_a_quarter_of_a_second_after_the_first_was_sent_and_once(caplog):
    server, pages = ScriptedTransport(held=True), Pages(VLLM)
    with caplog.at_level(logging.INFO, "batchclient"):
        async with make(server, pages) as client:
            await anyio.sleep(5.0)
            assert pages.asked == [], "nothing is asked before there is a call"
            started = anyio.current_time()
            await under_way(client, server, 100.0, calls=1)
            assert shown(client) == ["vllm 0.32.0"]
            await client.complete("another")
    assert pages.asked == ["/models", "/version"]
    assert pages.asked_at[0] - started == pytest.approx(FIRST_AFTER_S)
    assert (pages.most_open, pages.open, pages.closed) == (1, 0, 1)
    said = [record.message for record in caplog.records if "endpoint 0 is" in record.message]
    assert said == ["endpoint 0 is vllm 0.32.0; models 1; length 2048"]


@pytest.mark.parametrize(
    "arguments",
    [{"dialect": "vllm"}, {"probe": False}, {"http": "own"}],
    ids=str,
)
async def test_who_is_not_to_be_asked_is_not(arguments):
    import httpx

    if "http" in arguments:
        arguments = {"http": httpx.AsyncClient()}
    server, pages = ScriptedTransport(held=True), Pages(VLLM)
    seams = {"calls": lambda url: server, "metrics": lambda url: Pages({}), "detection": lambda url: pages}
    async with connected(**seams, model="m", **arguments) as client:
        await under_way(client, server, 10.0, calls=1)
        assert shown(client) == [None]
    assert pages.asked == []


# What changes nothing -----------------------------------------------------------------------------------------------

TROUBLE = {
    "404": Reply(404),
    "401": Reply(401, {}, [b'{"error":"Unauthorized"}']),
    "500": Reply(500, {}, [b"Internal Server Error"]),
    "503": Reply(503),
    "redirect": Reply(302, {"location": "http://elsewhere"}),
    "html": Reply(200, {"content-type": "text/html"}, [b"<html>Welcome</html>"]),
    "binary": Reply(chunks=[b"\xff\x00" * 1000]),
    "empty": Reply(),
    "hangs": "hangs",
    "trickles": Reply(chunks=[b"{", 1.9, b'"data"', 1.9, b":"]),
    "refused": ConnectFailed("refused"),
    "cut off": Reply(chunks=[b'{"data":[{"id":"m","owned', ConnectionLost("broken")]),
    "too large": Reply(chunks=[ResponseTooLarge("too large")]),
    "mocked": AssertionError("no route for this request"),
}


@pytest.mark.parametrize("name", TROUBLE)
async def test_whatever_goes_wrong_changes_nothing_and_is_three_questions_at_most(name, caplog):
    trouble = TROUBLE[name]
    server, pages = ScriptedTransport(held=True), Pages(dict.fromkeys(("/models", "/info", "/version"), trouble))
    with caplog.at_level(logging.INFO, "batchclient"):
        async with make(server, pages) as client:
            await under_way(client, server, 1000.0, calls=1)
            for _ in range(3):
                server.held = True
                await under_way(client, server, 100.0, calls=1)
            assert len({language(sent) for sent in server.sent}) == 1
            assert shown(client) == [None]
            assert client.statistics().failed == 0
    assert 1 <= len(pages.asked) <= 3
    assert pages.open == 0
    assert [record for record in caplog.records if "endpoint 0 is" in record.message] == []


# Before the first list ------------------------------------------------------------------------------------------------


async def test_each_page_has_two_seconds():
    server, pages = ScriptedTransport(held=True), Pages({"/models": "hangs"})
    async with make(server, pages, asks_first=True) as client, anyio.create_task_group() as group:
        group.start_soon(under_way, client, server, 4.0, 1)
        await anyio.sleep(1.99)
        assert (pages.asked, pages.open) == (["/models"], 1)
        await anyio.sleep(0.02)
        assert pages.open == 0


async def test_among_servers_that_do_not_say_which_they_are_the_first_call_waits_a_quarter_of_a_second():
    """One may lack what another has. To a lone server a single call goes at once."""
    for count, waits_s in ((1, 0.0), (2, 0.25)):
        server, urls = ScriptedTransport(), [f"http://{name}/v1" for name in "ab"[:count]]
        async with connected(
            urls,
            calls=lambda url, server=server: server,
            detection=lambda url: Pages({"/models": "hangs"}),
            model="m",
            probe=True,
            asks_first=True,
        ) as client:
            answer = await client.complete("p", max_tokens=1)
            assert round(answer.queued_s, 2) == waits_s


# What it changes ----------------------------------------------------------------------------------------------------


async def test_slots_bound_a_limit_that_is_found_and_not_one_that_was_given():
    for known, limit, expected in ((LLAMACPP, "auto", 4), (LLAMACPP, 64, 64), (TGI, "auto", 112)):
        server, pages = ScriptedTransport(held=True), Pages(known)
        async with make(server, pages, limit=limit) as client:
            await under_way(client, server, 1.0, calls=1)
            (endpoint,) = client.statistics().endpoints
            assert (endpoint.limit, endpoint.server) == (expected, "llamacpp" if known is LLAMACPP else "tgi 3.3.6")
            if limit == "auto":
                assert endpoint.limit_reason == f"the server allows {expected} calls at once"


async def test_the_servers_own_cap_shortens_lists():
    server, pages = ScriptedTransport(held=True), Pages(TGI)
    async with make(server, pages, limit=64) as client:
        await under_way(client, server, 1.0, calls=1)
        async with anyio.create_task_group() as group:
            for number in range(10):
                group.start_soon(client.complete, f"{number}")
        assert [len(prompts) for prompts in server.prompts[1:]] == [4, 4, 2]
        assert client.statistics().endpoints[0].batch_size_cap == 4


async def test_a_prompt_over_the_servers_length_is_refused_here_once_it_is_known():
    server, pages = ScriptedTransport(held=True), Pages(VLLM)
    async with make(server, pages) as client:
        await under_way(client, server, 1.0, calls=1)
        with pytest.raises(ConfigError, match="2048") as caught:
            await client.complete([1] * 2048)
        # The server may be another by then.
        assert caught.value.retryable
        await client.complete([1] * 2047)
        await client.complete([1] * 2048, truncate_prompt_tokens=100)
        await client.complete([1] * 2048, model="another")
        sent = len(server.sent)
        await anyio.sleep(290.0)
        with pytest.raises(ConfigError, match="2048"):
            await client.complete([1] * 2048)
        await anyio.sleep(11.0)
        await client.complete([1] * 2048)
        assert len(server.sent) == sent + 1, "what was said five minutes ago may be wrong"


async def test_of_several_servers_the_longest_counts_and_an_unknown_one_may_take_anything():
    server = ScriptedTransport(held=True)
    pages = {
        "http://a/v1": Pages({**VLLM, "/models": models("m", max_model_len=100)}),
        "http://b/v1": Pages({**VLLM, "/models": models("m", max_model_len=200)}),
        "http://c/v1": Pages({}),
    }
    seams = {"calls": lambda url: server, "detection": pages.__getitem__}
    urls = ["http://a/v1", "http://b/v1"]
    async with connected(urls, **seams, model="m", limit=2, probe=True) as client:
        await under_way(client, server, 1.0, calls=4)
        assert shown(client) == ["vllm 0.32.0"] * 2
        await client.complete([1] * 150)
        with pytest.raises(ConfigError, match="200"):
            await client.complete([1] * 200)
        client.add_endpoint("http://c/v1")
        await client.complete([1] * 200)
        await client.remove_endpoint("http://c/v1")
        with pytest.raises(ConfigError, match="200"):
            await client.complete([1] * 200)


async def test_another_server_behind_the_url_after_an_outage_is_noticed():
    refused = ConnectFailed("refused")
    small = {**TGI, "/info": ok(max_concurrent_requests=4, max_total_tokens=4096, max_client_batch_size=4)}
    server, pages = ScriptedTransport(held=True), Pages(small)
    async with make(server, pages, limit="auto") as client:
        await under_way(client, server, 1.0, calls=1)
        assert client.statistics().endpoints[0].limit == 4
        server.script = [refused, refused, refused]
        pages.pages = VLLM
        await client.complete("during the outage")
        await anyio.sleep(1.0)
        (endpoint,) = client.statistics().endpoints
        assert endpoint.server == "vllm 0.32.0"
        assert pages.asked == ["/models", "/info", "/models", "/version"]
        assert endpoint.limit == 256, "the bound has gone with the server that had named it"


async def test_a_gateway_is_spoken_to_as_before_and_what_was_learnt_of_it_stays():
    gateway = {"/models": models("m", owned_by="openai")}
    server, pages = ScriptedTransport(held=True), Pages(gateway)
    async with make(server, pages) as client:
        await under_way(client, server, 1.0, calls=1)
        assert pages.asked == ["/models", "/info"]
        assert shown(client) == [None]
        # It becomes a vLLM, and then a gateway again.
        for pages.pages, name in ((VLLM, "vllm 0.32.0"), (gateway, None)):
            server.script = [ConnectFailed("refused")] * 3
            await client.complete("during the outage")
            await anyio.sleep(1.0)
            assert shown(client) == [name]
            await client.complete("after it")
        assert len({language(sent) for sent in server.sent}) == 1
