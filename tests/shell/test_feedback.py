"""Asking servers for their load, in virtual time: when it is done, when it is not, and that no call ever notices."""

import logging

import anyio
import pytest
from tests.inspection import held
from tests.seams import connected
from tests.shell.clocks import count_alive
from tests.shell.scripted import BUSY, MetricsPage, Reply, ScriptedTransport, settle, under_way

from batchclient import (
    AdaptiveLimit,
    BatchClient,
    Batching,
    ConfigError,
    ConnectFailed,
    ConnectionLost,
    ReadTimedOut,
    ResponseTooLarge,
)
from batchclient.transport import root_of


def make(server, page, **arguments):
    defaults = {"model": "m", "limit": 64, "probe": True}
    return connected(calls=lambda url: server, metrics=lambda url: page, **{**defaults, **arguments})


# When ---------------------------------------------------------------------------------------------------------------


async def test_every_half_second_while_calls_are_under_way_and_not_before_a_second():
    server, page = ScriptedTransport(held=True), MetricsPage()
    async with make(server, page) as client:
        started = anyio.current_time()
        await under_way(client, server, 3.2)
    assert [round(at - started, 2) for at in page.asked_at] == [1.0, 1.5, 2.0, 2.5, 3.0]
    assert set(page.requests) == {("GET", "/metrics", b"")}
    assert (page.most_open, page.open, page.closed) == (1, 0, 1)


async def test_between_calls_nothing_is_alive():
    server, page, before = ScriptedTransport(held=True), MetricsPage("hangs"), count_alive()
    async with make(server, page) as client:
        await under_way(client, server, 1.2)
        await settle()
        assert page.open == 0, "the question that was under way has ended with the calls"
        assert count_alive() == before
        await anyio.sleep(100.0)
        assert len(page.asked_at) == 1
        server.held = True
        await under_way(client, server, 1.2)
    assert len(page.asked_at) == 2


# Faults: a missing, slow, renamed or garbled page changes nothing -----------------------------------------------------


def http(status=200, *chunks):
    return Reply(status, {}, list(chunks))


GIVES_UP = {
    "404": http(404, b"not found"),
    "401": http(401, b'{"error":"Unauthorized"}'),
    "redirect": Reply(307, {"location": "http://elsewhere/metrics"}),
    "html": http(200, b"<html>Welcome</html>"),
    "empty": http(200),
    "renamed": http(200, BUSY.replace(b"vllm:", b"vllm2:")),
    "binary": http(200, bytes(range(256)) * 99),
    "too large": http(200, b"x", ResponseTooLarge("the response is over 1 byte")),
}
TRIES_AGAIN = {
    "429": http(429, b"slow down"),
    "500": http(500, b"oops"),
    "503": http(503, b"starting"),
    "refused": ConnectFailed("refused"),
    "broken": ConnectionLost("broke"),
    "silent": ReadTimedOut("silent"),
    "cut off": http(200, BUSY[:9999], ConnectionLost("broke")),
    "mocked": AssertionError("RESPX: not mocked!"),
    "hangs": "hangs",
    "trickles": http(200, *(piece for _ in range(99) for piece in (b"#", 1.0))),
}


async def answers_beside(page, caplog, seconds=130.0):
    server = ScriptedTransport(held=True)
    with caplog.at_level(logging.INFO, "batchclient"):
        async with make(server, page) as client:
            await under_way(client, server, seconds)
            statistics = client.statistics()
    assert (statistics.succeeded, statistics.failed, statistics.retries) == (4, 0, 0)
    assert statistics.endpoints[0].limit == 64
    assert (page.most_open, page.open) == (1, 0)
    return [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize("reply", GIVES_UP.values(), ids=GIVES_UP)
async def test_what_is_no_metrics_page_is_asked_for_once_a_minute_and_said_once(reply, caplog):
    page = MetricsPage(reply=reply)
    said = await answers_beside(page, caplog)
    assert page.intervals() == [60.0, 60.0]
    assert len(said) == 1
    assert said[0].startswith("no metrics page at endpoint 0 (")


@pytest.mark.parametrize("reply", TRIES_AGAIN.values(), ids=TRIES_AGAIN)
async def test_what_may_pass_is_tried_again_after_a_growing_pause(reply, caplog):
    page = MetricsPage(reply=reply)
    assert await answers_beside(page, caplog) == []
    assert page.intervals() in ([2.0, 4.0, 8.0, 16.0, 32.0, 60.0], [2.5, 4.0, 8.0, 16.0, 32.0, 60.0])


# Settings -----------------------------------------------------------------------------------------------------------


async def asks(**arguments):
    """Whether such a client asks for the page while calls are under way."""
    server, page = ScriptedTransport(held=True), MetricsPage()
    async with connected(calls=lambda url: server, metrics=lambda url: page, model="m", **arguments) as client:
        await under_way(client, server, 1.2)
    return page.asked_at != []


async def test_it_is_on_unless_a_dialect_or_a_client_is_given():
    import httpx

    async with httpx.AsyncClient() as own:
        assert await asks()
        assert not await asks(probe=False)
        assert not await asks(dialect="vllm")
        assert await asks(dialect="vllm", probe=True)
        assert not await asks(http=own)
        assert not await asks(http=own, probe=False)
        with pytest.raises(ConfigError) as caught:
            BatchClient("http://server/v1", http=own, probe=True)
    assert caught.value.field == "probe"
    with pytest.raises(ConfigError) as caught:
        BatchClient("http://server/v1", probe="yes")
    assert caught.value.field == "probe"


# A guest, who needs the page ------------------------------------------------------------------------------------------

GUEST = AdaptiveLimit(guest=True)


async def test_a_guest_asks_for_the_page_of_a_server_whose_dialect_is_given_too():
    assert await asks(dialect="vllm", limit=GUEST)


async def test_a_guest_that_may_not_see_the_page_is_refused_where_it_is_made():
    import httpx

    async with httpx.AsyncClient() as own:
        for arguments in ({"probe": False}, {"http": own}):
            with pytest.raises(ConfigError, match=r"limit=8") as caught:
                BatchClient("http://server/v1", limit=GUEST, **arguments)
            assert caught.value.field == "limit.guest"
    client = BatchClient("http://server/v1", probe=False, limit=4)
    with pytest.raises(ConfigError, match=r"limit\.guest: it needs the servers' metrics pages"):
        client.retune(limit=GUEST)
    assert client.statistics().endpoints[0].limit == 4


@pytest.mark.parametrize("reply", GIVES_UP.values(), ids=GIVES_UP)
async def test_a_guest_that_is_not_shown_the_load_has_its_calls_ended_and_is_sent_to_no_more(reply):
    server, page = ScriptedTransport(held=True), MetricsPage(reply=reply)
    async with make(server, page, limit=GUEST, batching=Batching(max_size=1)) as client:
        results = await client.batch_map(range(20), lambda number: f"{number}", max_tokens=9, return_exceptions=True)
        assert {type(each) for each in results} == {ConfigError}
        assert {each.field for each in results} == {"limit.guest"}
        assert results[0].message.startswith("limit.guest: http://scripted/v1 shows no load (")
        assert (len(server.sent), len(page.asked_at)) == (16, 1)
        with pytest.raises(ConfigError):
            await client.complete("one more", max_tokens=9)
        assert len(server.sent) == 16
        client.retune(limit=2)
        server.held = False
        assert (await client.complete("no guest any more", max_tokens=9)).text


async def test_a_page_that_may_come_ends_no_call_of_a_guest():
    server = ScriptedTransport(held=True)
    async with make(server, MetricsPage(reply=TRIES_AGAIN["503"]), limit=GUEST) as client:
        await under_way(client, server, 20.0)
        assert client.statistics().succeeded == 4


@pytest.mark.parametrize(
    ("url", "root"),
    [
        ("http://h:8000/v1", "http://h:8000"),
        ("https://gateway/llm/v1?team=a", "https://gateway/llm?team=a"),
        ("http://h", "http://h"),
        ("http://h/v2", "http://h/v2"),
    ],
)
async def test_the_page_is_at_the_servers_root(url, root):
    assert root_of(url) == root


async def test_nothing_is_kept_of_a_removed_server_that_had_no_metrics_page(caplog):
    server, page = ScriptedTransport(held=True), MetricsPage(reply=http(404))
    async with make(server, page, batching=Batching(max_size=1)) as client:

        async def come_and_go(times):
            for _ in range(times):
                client.add_endpoint("http://pod/v1")
                server.held = True
                await under_way(client, server, 2.5, calls=8)
                await client.remove_endpoint("http://pod/v1")
                # The fakes keep what they were sent.
                for fake in (server.sent, page.asked_at, page.requests):
                    fake.clear()
            return held(client, str)

        with caplog.at_level(logging.INFO, "batchclient"):
            before = await come_and_go(12)
            # One more object somewhere is none for each server.
            assert await come_and_go(12) < before + 12
    absent = [record for record in caplog.records if record.event == "metrics_page_absent"]
    assert len(absent) == 25, "said once of each server"


# Which servers are watched, and how often -----------------------------------------------------------------------------


async def test_a_lone_call_is_not_worth_a_question():
    server, page = ScriptedTransport(held=True), MetricsPage()
    async with make(server, page, batching=Batching(max_size=1)) as client:
        async with anyio.create_task_group() as group:
            group.start_soon(under_way, client, server, 10.0, 1)
            await anyio.sleep(5.0)
            assert page.asked_at == []
            started = anyio.current_time()
            group.start_soon(client.complete, "another")
    assert page.asked_at[0] - started == pytest.approx(1.0)


async def test_a_slow_page_is_asked_for_less_often():
    server, page = ScriptedTransport(held=True), MetricsPage()
    page.takes_s = 0.8
    async with make(server, page, batching=Batching(max_size=1)) as client:
        await under_way(client, server, 6.0)
    assert page.intervals() == [1.6, 1.6, 1.6]
    assert page.most_open == 1


async def test_each_server_is_asked_for_itself():
    server, pages = (
        ScriptedTransport(held=True),
        {"http://a/v1": MetricsPage(reply=http(404)), "http://b/v1": MetricsPage()},
    )
    seams = {"calls": lambda url: server, "metrics": pages.__getitem__}
    async with connected(list(pages), **seams, model="m", limit=4, probe=True) as client:
        await under_way(client, server, 2.2, calls=8)
    assert [len(page.asked_at) for page in pages.values()] == [1, 3]


class SlowToDrop(MetricsPage):
    """A dropped question takes a while to close its connection."""

    async def send(self, request, timeouts):
        try:
            return await super().send(request, timeouts)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(0.5)
            raise


async def test_a_question_that_is_slow_to_end_leaves_one_watch_of_the_calls_that_follow():
    server, page = ScriptedTransport(held=True), SlowToDrop("hangs")
    async with make(server, page) as client:
        await under_way(client, server, 1.2)
        server.held = True
        async with anyio.create_task_group() as group:
            group.start_soon(under_way, client, server, 2.8)
            await anyio.sleep(0.8)
            group.start_soon(client.complete, "another")
    assert page.intervals(since=1) == [0.5, 0.5, 0.5]
