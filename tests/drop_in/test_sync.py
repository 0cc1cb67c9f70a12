"""The blocking drop-in: threads share requests, answers and errors are openai's."""

import gc
import threading
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from batchclient import ConfigError, Server
from batchclient.openai import OpenAI
from batchclient.simulator import EmbeddedServer
from tests.drop_in.test_same_answers import CASES, REFUSED, plain, without_estimates
from tests.fakes.pages import serving
from tests.fakes.raw import nobody_listens

HTTP = __import__("httpx2" if openai.__version__ >= "3" else "httpx")


def make(url, **arguments):
    return OpenAI(**{"base_url": url, "api_key": "key", "max_retries": 0, "dialect": "vllm", **arguments})


@pytest.fixture(scope="module")
def both(server):
    theirs = openai.OpenAI(base_url=server.base_url, api_key="key", max_retries=0)
    with make(server.base_url, preset="throughput") as ours, theirs:
        yield ours, theirs


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_alone(both, server, case):
    ours, theirs = (case(client, server.model) for client in both)
    assert type(ours) is type(theirs)
    assert without_estimates(plain(ours)) == without_estimates(plain(theirs))


@pytest.mark.parametrize("case", REFUSED.values(), ids=REFUSED)
def test_refused_alike(both, server, case):
    errors = []
    for client in both:
        with pytest.raises((openai.OpenAIError, TypeError)) as caught:
            case(client, server.model)
        errors.append(caught.value)
    assert type(errors[0]) is type(errors[1])
    assert str(errors[0]) == str(errors[1])


def test_a_thousand_threads_share_requests():
    # A server whose answers take a while, as a GPU's do: nothing ends before the last thread has begun.
    with EmbeddedServer("gpu") as server, make(server.base_url, preset="throughput") as client:
        ready = threading.Barrier(1000)

        def ask(number):
            ready.wait()
            answer = client.completions.create(model=server.model, prompt=f"p{number}", max_tokens=1)
            return answer.choices[0].text

        with ThreadPoolExecutor(1000) as pool:
            texts = list(pool.map(ask, range(1000)))
        assert len(set(texts)) == 1000
        assert server.requests <= 125


def test_raw_and_streamed_responses(both, server):
    asked = {"model": server.model, "prompt": "hello", "max_tokens": 3, "temperature": 0}
    raws = [client.completions.with_raw_response.create(**asked) for client in both]
    assert plain(raws[0].parse()) == plain(raws[1].parse())
    assert type(raws[0]) is type(raws[1])
    streams = [[plain(chunk) for chunk in client.completions.create(**asked, stream=True)] for client in both]
    assert streams[0] == streams[1]


def test_errors_of_the_network():
    with make(nobody_listens()) as client, pytest.raises(openai.APIConnectionError):
        client.completions.create(model="m", prompt="p", max_tokens=1)


def test_a_blocking_client_of_the_users_own_is_used_call_by_call(caplog):
    seen = []

    def answer(request):
        seen.append(request.url.path)
        choices = [{"index": 0, "text": "x", "finish_reason": "stop", "logprobs": None}]
        return HTTP.Response(200, json={"id": "1", "object": "text_completion", "choices": choices, "model": "m"})

    own = HTTP.Client(transport=HTTP.MockTransport(answer))
    with make("http://server.test/v1", http_client=own) as client:
        assert client.completions.create(model="m", prompt="p", max_tokens=1).choices[0].text == "x"
        assert client.batch_client is None
    assert seen == ["/v1/completions"]
    assert "share no requests" in caplog.text


def test_copies_share_the_loop_and_the_scheduler(server):
    with make(server.base_url) as client:
        copy = client.with_options(timeout=9)
        copy.completions.create(model=server.model, prompt="p", max_tokens=1)
        assert copy.batch_client is client.batch_client
        assert client.batch_client.statistics().succeeded == 1
    with pytest.raises(openai.APIConnectionError):
        copy.completions.create(model=server.model, prompt="p", max_tokens=1)


def test_a_key_that_is_asked_for():
    with EmbeddedServer() as server, make(server.base_url, api_key=lambda: "asked") as client:
        assert client.completions.create(model=server.model, prompt="p", max_tokens=1).choices
        assert client.api_key == "asked"


@pytest.fixture
def recorder():
    """A server that answers lists of completions, and keeps who asked what."""

    def answer(asked):
        prompts = asked.json["prompt"] if isinstance(asked.json["prompt"], list) else [asked.json["prompt"]]
        server.seen += [(asked.headers["authorization"], prompt) for prompt in prompts]
        choices = [{"index": n, "text": prompt, "finish_reason": "stop"} for n, prompt in enumerate(prompts)]
        return 200, {"id": "1", "object": "text_completion", "model": "m", "choices": choices}

    with serving(answer) as server:
        server.seen = []
        yield server


def test_each_call_goes_with_the_key_that_was_asked_for_it(recorder):
    """The key's function answers for the thread that calls; no other thread's prompt may go with it."""
    mine = threading.local()
    with make(recorder.url, api_key=lambda: mine.key, preset="throughput") as client:

        def ask(number):
            for turn in range(10):
                mine.key = f"key-{number}"
                client.completions.create(model="m", prompt=f"{number} {turn}", max_tokens=1)

        with ThreadPoolExecutor(8) as pool:
            list(pool.map(ask, range(8)))
    assert len(recorder.seen) == 80
    assert [(key, prompt) for key, prompt in recorder.seen if key != f"Bearer key-{prompt.split()[0]}"] == []


@pytest.mark.parametrize(
    ("wrong", "field"), [({"limit": "foo"}, "limit"), ({"preset": "nope"}, "preset"), ({"http": "bad"}, "http")]
)
def test_wrong_settings_are_refused_also_where_nothing_is_shared(wrong, field):
    with HTTP.Client() as blocking, pytest.raises(ConfigError) as caught:
        OpenAI(base_url="http://a.test/v1", api_key="key", http_client=blocking, **wrong)
    assert caught.value.field == field


def test_copies_with_other_keys_from_many_threads(recorder):
    with make(recorder.url) as client:

        def ask(number):
            copy = client.with_options(api_key=f"key-{number % 50}")
            return copy.completions.create(model="m", prompt=f"{number % 50}", max_tokens=1).choices[0].text

        with ThreadPoolExecutor(16) as pool:
            assert list(pool.map(ask, range(200))) == [str(number % 50) for number in range(200)]
    assert all(key == f"Bearer key-{prompt}" for key, prompt in recorder.seen)


def test_a_client_that_is_dropped_takes_its_thread_along(server):
    def threads():
        return {thread for thread in threading.enumerate() if thread.name.startswith("batchclient")}

    before = threads()
    client = make(server.base_url)
    client.completions.create(model=server.model, prompt="p", max_tokens=1)
    (made,) = threads() - before
    del client
    gc.collect()
    made.join(5)
    assert not made.is_alive()


def test_a_stream_goes_to_the_server_of_its_model():
    with EmbeddedServer("instant", model="small") as small, EmbeddedServer("instant", model="large") as large:
        servers = [Server(small.base_url, model="small"), Server(large.base_url, model="large")]
        with OpenAI(base_url=servers, api_key="key", max_retries=0) as client:
            for model in ("large", "small"):
                pieces = list(client.completions.create(model=model, prompt="x", max_tokens=3, stream=True))
                assert {piece.model for piece in pieces} == {model}
