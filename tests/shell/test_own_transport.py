"""``BatchClient(http=function)``: sending by one's own way."""

import anyio
import pytest

from batchclient import Backoff, BatchClient, ConfigError, ConnectionLost, Server
from tests.shell.scripted import ScriptedTransport, make_client, settle


async def test_each_server_gets_one_with_the_headers_to_send():
    asked, made = [], []

    def make(base_url, headers):
        asked.append((base_url, headers.get("authorization"), headers["x-own"]))
        made.append(ScriptedTransport())
        return made[-1]

    async with BatchClient(
        ["http://a/v1", "http://b/v1"], model="m", http=make, api_key="k", headers={"x-own": "1"}, limit=1
    ) as client:
        answer = await client.complete("p", max_tokens=1)
        client.add_endpoint(Server("http://c/v1", api_key="c"))
    assert answer.text == "<p|0>"
    assert asked == [(f"http://{host}/v1", f"Bearer {key}", "1") for host, key in zip("abc", "kkc", strict=True)]
    assert [each.closed for each in made] == [1, 1, 1], "they are closed with the client"


async def test_nothing_but_the_calls_is_sent(monkeypatch):
    # Pages about the server would be asked for on connections of the client's own.
    monkeypatch.setattr("batchclient.transport.http.HttpTransport", None)
    transport = ScriptedTransport(held=True)
    async with BatchClient("http://a/v1", model="m", http=lambda url, headers: transport) as client:
        with pytest.raises(TimeoutError):
            # Long enough for a look at the server's pages.
            await client.complete("p", max_tokens=1, timeout_s=5)
        await settle()
    assert [each.request.method for each in transport.sent] == ["POST"]


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ({"http": ScriptedTransport()}, "http"),
        ({"http": "http://a"}, "http"),
        ({"http": lambda url, headers: None, "probe": True}, "probe"),
    ],
)
async def test_what_cannot_work_is_refused(arguments, field):
    with pytest.raises(ConfigError) as caught:
        BatchClient("http://a/v1", model="m", **arguments)
    assert caught.value.field == field


def test_a_transport_of_httpx_is_sent_to_where_it_is_taken():
    import httpx

    with pytest.raises(ConfigError, match=r"go into an AsyncClient\(transport=…\)"):
        BatchClient("http://a/v1", http=httpx.MockTransport(lambda request: None))


class Unclosable:
    """A response in which something is raised while its reading ends."""

    def __init__(self, response):
        self.status, self.headers, self.aclose = response.status, {"content-type": "text/event-stream"}, response.aclose
        self.all = response.chunks

    async def chunks(self):
        try:
            yield b"".join([chunk async for chunk in self.all()])
            await anyio.sleep(5.0)
        finally:
            raise RuntimeError("of the user's")


async def test_what_is_raised_after_the_last_answer_is_no_failure(caplog):
    class Transport(ScriptedTransport):
        async def send(self, request, timeouts):
            return Unclosable(await super().send(request, timeouts))

    async with BatchClient("http://a/v1", model="m", dialect="vllm", http=lambda url, headers: Transport()) as client:
        answers = [await client.complete(f"p{number}", max_tokens=2000) for number in range(4)]
        await anyio.sleep(1.0)
        statistics = client.statistics()
    assert [answer.text for answer in answers] == [f"<p{number}|0>" for number in range(4)]
    assert (statistics.succeeded, statistics.failed, statistics.in_flight, statistics.retries) == (4, 0, 0, 0)
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_an_exception_of_its_own_is_shown_by_its_class_alone():
    async with make_client(ScriptedTransport(RuntimeError("canary")), retry=Backoff(max_attempts=1)) as client:
        with pytest.raises(ConnectionLost, match="the transport raised RuntimeError") as caught:
            await client.complete("p")
    assert "canary" not in str(caught.value)


async def test_a_transport_that_returns_no_response_is_told_so():
    class Transport(ScriptedTransport):
        async def send(self, request, timeouts):
            return None

    async with BatchClient(
        "http://a/v1", model="m", http=lambda url, headers: Transport(), retry=Backoff(max_attempts=1)
    ) as client:
        with pytest.raises(ConnectionLost, match="the transport returned a NoneType, which is no response"):
            await client.complete("p", max_tokens=1)
