"""A function's keys, and what else picks a call's server side: no call goes out with another thread's."""

import asyncio
import itertools
import threading
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar

import openai
import pytest

from batchclient import ConfigError, Server
from batchclient.openai import AsyncOpenAI, OpenAI
from tests.drop_in.test_sync import recorder  # noqa: F401

THREADS, TURNS = 4, 6


class AnyonesKey:
    """A client whose ``api_key`` is, whenever it is read, the answer that another caller has had meanwhile."""

    _keys = itertools.cycle(f"key-{number}" for number in range(THREADS))

    @property
    def api_key(self):
        return next(self._keys)

    @api_key.setter
    def api_key(self, key):
        """Another caller's comes at once."""


WAYS = {
    "shared": {},
    "a stream": {"stream": True},
    "a query of its own": {"extra_query": {"a": "1"}},
    "a header of its own": {"extra_headers": {"x-mine": "1"}},
    "raw": {},
}


def ask(client, way, prompt):
    resource = client.completions.with_raw_response if way == "raw" else client.completions
    return resource.create(model="m", prompt=prompt, max_tokens=1, **WAYS[way])


def strangers(seen):
    """The calls that went with another's key."""
    return [(key, prompt) for key, prompt in seen if key != f"Bearer key-{prompt.split()[0]}"]


@pytest.mark.parametrize("way", WAYS)
def test_no_call_of_a_thread_goes_with_another_threads_key(way, recorder):  # noqa: F811
    class Client(AnyonesKey, OpenAI):
        pass

    mine = threading.local()
    with Client(base_url=recorder.url, api_key=lambda: mine.key, dialect="vllm", max_retries=0) as client:

        def work(number):
            mine.key = f"key-{number}"
            for turn in range(TURNS):
                answer = ask(client, way, f"{number} {turn}")
                if way == "a stream":
                    answer.close()
                if way == "raw":
                    assert answer.http_request.headers["authorization"] == f"Bearer key-{number}"

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(work, range(THREADS)))
    assert len(recorder.seen) == THREADS * TURNS
    assert strangers(recorder.seen) == []


@pytest.mark.parametrize("way", WAYS)
async def test_no_call_of_a_task_goes_with_another_tasks_key(way, recorder):  # noqa: F811
    class Client(AnyonesKey, AsyncOpenAI):
        pass

    mine = ContextVar("mine")

    async def key():
        await asyncio.sleep(0)
        return mine.get()

    async with Client(base_url=recorder.url, api_key=key, dialect="vllm", max_retries=0) as client:

        async def work(number):
            mine.set(f"key-{number}")
            for turn in range(TURNS):
                answer = await ask(client, way, f"{number} {turn}")
                if way == "a stream":
                    await answer.close()

        await asyncio.gather(*[asyncio.create_task(work(number)) for number in range(THREADS)])
    assert len(recorder.seen) == THREADS * TURNS
    assert strangers(recorder.seen) == []


def test_what_a_thread_has_set_goes_with_its_calls(recorder):  # noqa: F811
    """Who asks is looked up in the thread that calls, and not where the requests are sent."""
    mine = threading.local()

    class Client(OpenAI):
        api_key = property(lambda self: f"key-{getattr(mine, 'number', 0)}", lambda self, value: None)

    with Client(base_url=recorder.url, api_key="key", dialect="vllm", max_retries=0) as client:

        def work(number):
            mine.number = number
            for turn in range(TURNS):
                ask(client, "shared", f"{number} {turn}")

        with ThreadPoolExecutor(THREADS) as pool:
            list(pool.map(work, range(THREADS)))
        assert client.batch_client.statistics().submitted == TURNS, "each of the four has a batch client of its own"
    assert strangers(recorder.seen) == []


def test_a_call_without_any_credentials_is_openais_to_judge(recorder):  # noqa: F811
    """Later versions refuse it, earlier ones send it."""
    outcomes = []
    for kind in (openai.OpenAI, OpenAI):
        with kind(base_url=recorder.url, api_key=lambda: "", max_retries=0) as client:
            try:
                outcomes.append(ask(client, "shared", "p").choices[0].text)
            except (TypeError, openai.OpenAIError) as error:
                outcomes.append(repr(error))
    assert outcomes[0] == outcomes[1]


ASKED = {
    "shared": lambda client: ask(client, "shared", "p"),
    "refused": lambda client: client.completions.create(model="m", prompt="p", n=0),
    "refused, of another resource": lambda client: client.post(
        "/completions", cast_to=object, body={"model": "m", "prompt": "p", "n": 0}, options={}
    ),
    "not plain": lambda client: ask(client, "a query of its own", "p"),
}


@pytest.mark.parametrize("call", ASKED.values(), ids=ASKED)
async def test_a_call_asks_for_a_key_once(call, recorder):  # noqa: F811
    """The next call asks again, also where the one before went openai's own way."""
    asked = []

    def answer():
        asked.append(f"key-{len(asked)}")
        return asked[-1]

    async def answer_async():
        return answer()

    def threads():
        with OpenAI(base_url=recorder.url, api_key=answer, max_retries=0, dialect="vllm") as client:
            for _ in range(2):
                call(client)

    await asyncio.to_thread(threads)
    async with AsyncOpenAI(base_url=recorder.url, api_key=answer_async, max_retries=0, dialect="vllm") as client:
        for _ in range(2):
            await call(client)
    assert [key for key, _ in recorder.seen] == [f"Bearer key-{number}" for number in range(4)]
    assert len(asked) == 4


async def test_there_is_no_batch_client_before_a_key_was_answered(recorder):  # noqa: F811
    async def key():
        return "key"

    async with AsyncOpenAI(base_url=recorder.url, api_key=key, dialect="vllm") as client:
        assert client.batch_client is None
        await ask(client, "shared", "p")
        assert client.batch_client.statistics().submitted == 1


WRONG = {
    "api_key": {"api_key": "a\nb"},
    "organization": {"organization": "a\nb"},
    "project": {"project": "a\nb"},
    "default_headers": {"default_headers": {"x-mine": "a\nb"}},
    "default_headers that hold the key": {"default_headers": {"Authorization": "a\nb"}},
    "refill_s": {"refill_s": 3},
    "base_url with keys of their own": {"base_url": [Server("http://a/v1", api_key="b"), "http://c/v1"]},
}


@pytest.mark.parametrize("given", WRONG.values(), ids=WRONG)
def test_what_is_wrong_is_refused_by_its_own_name(given):
    with pytest.raises(ConfigError) as caught:
        AsyncOpenAI(**{"base_url": "http://server.test/v1", "api_key": "key", **given})
    assert caught.value.field in given
    assert caught.value.message.startswith(caught.value.field)


def test_wrong_settings_are_refused_at_once_where_a_function_answers_the_key():
    with pytest.raises(ConfigError) as caught:
        OpenAI(base_url="http://server.test/v1", api_key=lambda: "key", limit=0)
    assert caught.value.field == "limit"
