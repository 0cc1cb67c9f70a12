"""The blocking drop-in: threads share requests, answers and errors are openai's."""

import threading
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from batchclient.openai import OpenAI
from batchclient.simulator import EmbeddedServer
from tests.drop_in.test_same_answers import CASES, REFUSED, plain, without_estimates
from tests.faults.faultserver import nobody_listens

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
    with EmbeddedServer() as server, make(server.base_url, preset="throughput") as client:
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
