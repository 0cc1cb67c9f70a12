"""Maps in Python before a server that refuses what it has served: who waits, and who does not."""

import httpx
import pytest
from tests.fakes.pages import serving

from batchclient import BatchClient, BatchMapFailed
from batchclient.errors import NotFound


def answers(asked):
    prompt = asked.json["prompt"]
    prompts = prompt if isinstance(prompt, list) else [prompt]
    choices = [{"index": index, "text": "yes", "finish_reason": "stop"} for index, _ in enumerate(prompts)]
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return 200, {"id": "1", "choices": choices, "usage": usage}


@pytest.fixture
def server():
    """Answers the first twenty requests; then says 404 to so many as ``refusals`` has."""

    def answer(asked):
        if asked.method == "GET":
            return 404, {}
        server.posts += 1
        if 20 < server.posts <= 20 + server.refusals:
            return 404, {"error": {"message": "no such model"}}
        return answers(asked)

    with serving(answer) as server:
        server.posts, server.refusals = 0, 5
        yield server


@pytest.fixture
def client(server):
    def make(**options):
        return BatchClient(server.url, **{"model": "m", "limit": 1, "dialect": "openai"} | options)

    return make


async def test_rows_of_a_map_wait_and_none_fails(server, client):
    async with client() as own:
        results = await own.batch_map([f"row {number}" for number in range(40)], "{}", max_tokens=500)
    assert (len(results), server.posts) == (40, 45)


async def test_after_the_patience_they_fail_and_those_not_sent_are_not_written_down(server, client, tmp_path):
    server.refusals = 1000
    journal = tmp_path / "j"
    rows = [f"row {number}" for number in range(60)]
    async with client(outage_patience_s=1.0) as own:
        results = [each async for each in own.stream_map(rows, "{}", max_tokens=500, journal=journal)]
    failed = [each for each in results if isinstance(each.error, NotFound)]
    unsent = [each for each in failed if each.attempts == 0]
    assert len(failed) == 40 and len(unsent) > 20
    lines = journal.read_text().splitlines()
    assert sum('"state":"answered"' in line for line in lines) == 20
    assert sum('"state":"failed' in line for line in lines) == len(failed) - len(unsent)
    server.refusals = 0
    async with client() as own:
        results = [each async for each in own.stream_map(rows, "{}", max_tokens=500, journal=journal)]
        assert own.statistics().reused == 20
    assert len(results) == 60 and not any(each.error for each in results)


async def test_a_single_call_fails_at_once(server, client):
    async with client() as own:
        for number in range(20):
            await own.complete(f"call {number}", max_tokens=500)
        with pytest.raises(NotFound):
            await own.complete("one more", max_tokens=500)
    assert server.posts == 21


async def test_rows_of_a_given_http_client_fail_at_once(server, client):
    async with httpx.AsyncClient() as given, client(http=given) as own:
        with pytest.raises(BatchMapFailed):
            await own.batch_map([f"row {number}" for number in range(40)], "{}", max_tokens=500)
    assert server.posts == 22
