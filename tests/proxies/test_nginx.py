"""A real nginx before a server whose answers show whose they are (``make test-extra WHICH=proxies``)."""

import asyncio

import pytest

from batchclient import BatchClient, Usage
from batchclient.errors import BadRequest, ServerFault
from batchclient.retry import Backoff
from batchclient.simulator import EmbeddedServer, expected_text
from tests.guises import GUISES
from tests.live.server_process import NotInstalled
from tests.proxies.litellm_proxy import installed
from tests.proxies.nginx_proxy import SILENCE_S, NginxProxy

# Ten seconds, which `make test` is not to take because an nginx is about.
pytestmark = pytest.mark.skipif(not installed(), reason="in the environment of make test-extra WHICH=proxies only")
LONGEST_S = 60.0
COUNT = 100
LONG = "word" * 75_000  # 300 KB; nginx takes bodies of 1 MB


def says(prompt, tokens):
    return expected_text(prompt, max_tokens=tokens, temperature=0)


def user(text):
    return [{"role": "user", "content": text}]


def together(calls):
    return asyncio.gather(*calls, return_exceptions=True)


@pytest.fixture(scope="module")
def upstream():
    with EmbeddedServer("instant", model="m", max_model_len_tokens=1_000_000, kv_tokens=8_000_000) as upstream:
        yield upstream


@pytest.fixture(scope="module")
def nginx(tmp_path_factory, upstream):
    """Skipped where there is no nginx, an error where it does not come up."""
    try:
        with NginxProxy(tmp_path_factory.mktemp("nginx"), upstream.root_url) as nginx:
            yield nginx
    except NotInstalled as missing:
        pytest.skip(str(missing))


@pytest.fixture(autouse=True)
def _no_faults(nginx, upstream):
    yield
    upstream.set_faults()


async def test_what_passes_is_as_without_it(nginx, upstream):
    before = upstream.requests
    async with BatchClient(nginx.base_url, model="m") as client:
        short = await together(client.complete(f"word {i}", max_tokens=4, temperature=0) for i in range(COUNT))
        longer = await together(client.complete(f"word {i}", max_tokens=12, temperature=0) for i in range(COUNT))
        chats = await together(client.chat(user(f"word {i}"), max_tokens=4, temperature=0) for i in range(COUNT))
        vectors = await together(client.embed(f"word {i}") for i in range(COUNT))
        assert upstream.requests - before <= 30
        async with client.stream("word 7", max_tokens=12, temperature=0) as pieces:
            deltas = [delta.text async for delta in pieces]
    assert [each.text for each in short] == [says(f"word {i}", 4) for i in range(COUNT)]
    assert [each.text for each in longer] == [says(f"word {i}", 12) for i in range(COUNT)]
    assert [each.usage for each in longer] == [Usage(3, 12)] * COUNT
    assert [each.text for each in chats] == [says(f"user: word {i}\nassistant:", 4) for i in range(COUNT)]
    assert len({tuple(each.vector) for each in vectors}) == COUNT
    assert "".join(deltas) == pieces.completion.text == says("word 7", 12)


@pytest.mark.parametrize("guise", ["llamacpp", "sglang"])
async def test_a_server_with_routes_below_the_root_is_called_at_v1(tmp_path, guise):
    """This nginx lets ``/v1`` alone through, and the server's ``owned_by`` names it all the same."""
    with (
        EmbeddedServer("instant", model="m", guise=GUISES[guise]) as server,
        NginxProxy(tmp_path, server.root_url) as proxy,
    ):
        async with BatchClient(proxy.base_url, model="m") as client:
            for number in range(3):  # also once the server is found out
                answers = await together(client.complete(f"word {i}", max_tokens=9, temperature=0) for i in range(20))
                assert [each.text for each in answers] == [says(f"word {i}", 9) for i in range(20)], number
            assert client.statistics().failed == 0


async def test_a_list_over_its_body_limit_goes_in_shorter_ones(nginx, upstream):
    """413 comes before the body was read: 2.4 MB twice too long, then what nginx takes."""
    before = upstream.requests
    async with BatchClient(nginx.base_url, model="m") as client:
        answers = await together(client.complete(f"{i} {LONG}", max_tokens=4, temperature=0) for i in range(8))
        first = client.statistics()
        await together(client.complete(f"{i} {LONG}", max_tokens=4, temperature=0) for i in range(8))
        second = client.statistics()
    assert [each.text for each in answers] == [says(f"{i} {LONG}", 4) for i in range(8)]
    assert first.list_sizes == {8: 1, 4: 2, 2: 4}
    assert second.list_sizes == {8: 1, 4: 2, 2: 8}
    assert upstream.requests - before == 8


async def test_one_prompt_over_its_body_limit_fails_alone(nginx):
    async with BatchClient(nginx.base_url, model="m") as client:
        outcomes = await together(
            client.complete(LONG * 4 if i == 2 else f"word {i}", max_tokens=4, temperature=0) for i in range(8)
        )
    culprit = outcomes.pop(2)
    assert (type(culprit), culprit.status, culprit.retryable) == (BadRequest, 413, False)
    assert [each.text for each in outcomes] == [says(f"word {i}", 4) for i in range(8) if i != 2]


async def test_an_upstream_that_is_not_there(nginx):
    async with BatchClient(nginx.dead_url, model="m", dialect="openai", retry=Backoff(max_attempts=2)) as client:
        failed = await together(client.complete(f"word {i}", max_tokens=4) for i in range(20))
        batches = client.statistics().batches
    assert {(type(each), each.status, each.attempt) for each in failed} == {(ServerFault, 502, 2)}
    assert batches == 2


async def test_an_upstream_that_is_too_slow_once(nginx, upstream):
    upstream.set_faults(f"slow={SILENCE_S + 2},count=1")
    async with BatchClient(nginx.base_url, model="m") as client:
        answers = await together(client.complete(f"word {i}", max_tokens=4, temperature=0) for i in range(20))
    assert [(each.text, each.attempts) for each in answers] == [(says(f"word {i}", 4), 2) for i in range(20)]


async def test_calls_outlive_an_upstream_that_is_started_again(nginx, upstream):
    upstream.stop()
    try:
        async with BatchClient(nginx.base_url, model="m") as client:
            calls = asyncio.ensure_future(
                together(client.complete(f"word {i}", max_tokens=12, temperature=0) for i in range(20))
            )
            while not client.statistics().backing_off:
                await asyncio.sleep(0.01)
            upstream.start()
            answers = await calls
    finally:
        upstream.stop()
        upstream.start()
    assert [each.text for each in answers] == [says(f"word {i}", 12) for i in range(20)]
