"""The odd servers of the benchmark behave as their rules say, and every row can be run."""

import contextlib
import json
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest
from benchmarks._odd_proxy import MODEL, LoggedProcess, Rules

from batchclient.simulator import EmbeddedServer

BENCHMARKS = Path(__file__).resolve().parents[1] / "benchmarks"

pytestmark = pytest.mark.long


@contextlib.contextmanager
def asking(server):
    """A function that posts a prompt or a list, and one that gets a page."""
    with contextlib.ExitStack() as stack:
        stack.callback(server.end)
        client = stack.enter_context(httpx.Client(base_url=server.base_url, timeout=10))

        def post(prompt="a prompt", model=MODEL, **fields):
            return client.post("/completions", json={"model": model, "prompt": prompt, "max_tokens": 4, **fields})

        yield post, client.get


@contextlib.contextmanager
def odd(**rules):
    with (
        EmbeddedServer("instant", model=MODEL) as upstream,
        asking(LoggedProcess.proxy(upstream.port, Rules(**rules))) as ways,
    ):
        yield ways


def test_one_of_two_models_is_always_refused():
    with odd(refused_model="other") as (post, get):
        assert [post(model=model).status_code for model in (MODEL, "other", MODEL, "other")] == [200, 429, 200, 429]
        assert [each["id"] for each in get("/models").json()["data"]] == [MODEL, "other"]


def test_a_long_prompt_is_refused_on_its_own_account_and_a_list_with_it():
    with odd(longest=100) as (post, _):
        replies = [post("x" * 101), post(["short", "x" * 101]), post(["short", "x" * 100])]
        assert [reply.status_code for reply in replies] == [429, 429, 200]
        assert "Request too large" in replies[0].json()["error"]["message"]


def test_one_request_is_asked_to_rest_and_no_other():
    with odd(rest=(0.2, 7)) as (post, _):
        first = post()
        time.sleep(0.2)
        later = [post(), post(), post()]
        assert [first.status_code, *(reply.status_code for reply in later)] == [200, 429, 200, 200]
        assert later[0].headers["retry-after"] == "7"


def test_a_bucket_of_tokens_tells_its_rest_and_when_it_is_full_enough():
    # A call of 8 characters and at most 98 tokens costs 100; the bucket holds 400, and gets 200 a second.
    with odd(tokens_per_s=200) as (post, _):
        first = post(max_tokens=98)
        assert (first.status_code, first.headers["x-ratelimit-remaining-tokens"]) == (200, "300")
        assert first.headers["x-ratelimit-reset-tokens"] == "500ms"
        refused = next(reply for _ in range(6) if (reply := post(max_tokens=98)).status_code == 429)
        wait_s = int(refused.headers["retry-after-ms"]) / 1000
        assert 0.2 < wait_s <= 0.5
        time.sleep(wait_s)
        assert post(max_tokens=98).status_code == 200
        assert post(["a prompt"] * 4, max_tokens=98).status_code == 429


def test_a_dead_replica_gets_its_share_of_pages_too():
    with odd(dead=0.3) as (post, get):
        said = [post().status_code for _ in range(200)], [get("/models").status_code for _ in range(200)]
        for statuses in said:
            assert set(statuses) == {200, 502}
            assert 40 <= statuses.count(502) <= 80


def test_a_restart_cuts_connections_and_refuses_new_ones_until_it_is_over():
    with odd(down_s=(0.3, 1.0)) as (post, _):
        began = time.monotonic()
        statuses = []
        while not statuses or time.monotonic() < began + 1.5:
            try:
                statuses.append(post().status_code)
            except httpx.TransportError as error:
                statuses.append(type(error))
            time.sleep(0.02)
        assert statuses[0] == statuses[-1] == 200
        down = [index for index, each in enumerate(statuses) if each != 200]
        assert httpx.ConnectError in statuses
        assert down == list(range(down[0], down[-1] + 1))


@pytest.mark.parametrize(("status", "page"), [(502, 502), (404, 200)])
def test_a_server_that_is_away_says_so_and_a_router_has_its_pages(status, page):
    with odd(away=(0.1, 1.0, status)) as (post, get):
        first = post().status_code
        time.sleep(0.2)
        meanwhile = post().status_code, get("/models").status_code
        time.sleep(1.0)
        assert (first, meanwhile, post().status_code) == (200, (status, page), 200)


def test_an_event_is_sent_for_each_token_and_a_request_takes_3_ms():
    with asking(LoggedProcess(BENCHMARKS / "_odd_events.py")) as (post, _):
        events = [line[6:] for line in post(["a", "b"], stream=True).text.splitlines() if line.startswith("data: ")]
        assert events.pop() == "[DONE]"
        choices = [json.loads(event)["choices"][0] for event in events]
        for index in (0, 1):
            mine = [choice["finish_reason"] for choice in choices if choice["index"] == index]
            assert 1 <= len(mine) <= 4
            assert mine[:-1] == [None] * (len(mine) - 1)
            assert mine[-1] == ("length" if len(mine) == 4 else "stop")
        plain = post(["a", "b"]).json()
        assert sum(choice["text"].count(" so") for choice in plain["choices"]) == plain["usage"]["completion_tokens"]
        began = time.monotonic()
        for _ in range(20):
            post(max_tokens=1)
        assert time.monotonic() - began >= 20 * 0.003


def test_every_client_answers_all_that_counts_and_the_page_shows_it(tmp_path):
    given = ["--rows", "model,events", "--runs", "1", "--calls", "120", "--name", tmp_path / "found"]
    subprocess.run(
        [sys.executable, BENCHMARKS / "odd_servers.py", *given], check=True, capture_output=True, timeout=500
    )
    servers = json.loads((tmp_path / "found.json").read_text())["servers"]
    assert list(servers) == ["model", "events"]
    for case in servers.values():
        assert list(case["arms"]) == ["default", "openai", "raw"]
        assert [run["failed"] for arm in case["arms"].values() for run in arm["runs"]] == [0, 0, 0]
    page = (tmp_path / "found.md").read_text()
    assert all(case["label"] in page for case in servers.values())
