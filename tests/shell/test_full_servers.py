"""Servers that say in other words than 429 and 503 that they are full: every call is answered in the end, with fewer at once."""

import anyio
import pytest
from tests.shell.scripted import Answer, Sent, echo, error, make_client

from batchclient import Batching
from batchclient.errors import ServerFault

LIBRARIES = ("asyncio",)
SINGLY = Batching(max_size=1)
OUT_OF_MEMORY = [
    "Context size has been exceeded.",
    "Invalid input batch.",
    "input prompt is too big compared to KV size. please try increasing KV size.",
    "CUDA out of memory. Tried to allocate 2.00 GiB",
]


class Slots:
    """Four slots, each of which takes a second; ``refusal`` for whatever comes when all are taken."""

    def __init__(self, refusal):
        self.refusal = refusal
        self.requests = self.running = 0

    async def send(self, request, timeouts):
        self.requests += 1
        if self.running == 4:
            return Answer(self.refusal)
        self.running += 1
        await anyio.sleep(1.0)
        self.running -= 1
        return Answer(echo(Sent(0, request, timeouts)))

    async def aclose(self):
        pass


class SharedCache:
    """Four slots that share a cache, as llama.cpp's do: once the running calls have too many tokens together, all of them end with a 500.

    A call has 10 tokens, and makes one in each hundredth of a second. Calls without a slot wait.

    Args:
        words: of the 500.
        room: tokens of the cache.
        longer: how many tokens calls with these prompts make; others make 90.
    """

    def __init__(self, words=OUT_OF_MEMORY[0], *, room=220, longer=None):
        self.words = words
        self.room = room
        self.longer = longer or {}
        self.requests = 0
        self._slots = anyio.Semaphore(4)
        self._running = {}

    async def send(self, request, timeouts):
        sent = Sent(self.requests, request, timeouts)
        self.requests += 1
        ended = []
        async with anyio.create_task_group() as group:
            for prompt in sent.prompts:
                group.start_soon(self._run, self.longer.get(prompt, 90), ended)
        return Answer(error(500, self.words) if any(ended) else echo(sent))

    async def _run(self, tokens, ended):
        async with self._slots:
            self._running[over := anyio.Event()] = 10
            for _ in range(tokens):
                await anyio.sleep(0.01)
                if over.is_set():
                    break
                self._running[over] += 1
                if sum(self._running.values()) > self.room:
                    for each in self._running:
                        each.set()
                    break
            ended.append(over.is_set())
            del self._running[over]

    async def aclose(self):
        pass


async def ends(server, prompts, **settings):
    """The answers or errors of calls made at once, by prompt, and the limit afterwards."""
    outcomes = {}
    async with make_client(server, **settings) as client:

        async def call(prompt):
            try:
                outcomes[prompt] = (await client.complete(prompt, max_tokens=90)).text
            except ServerFault as fault:
                outcomes[prompt] = fault

        async with anyio.create_task_group() as group:
            for prompt in prompts:
                group.start_soon(call, prompt)
        return outcomes, client.statistics().endpoints[0].limit


def answers(prompts):
    return {prompt: f"<{prompt}|0>" for prompt in prompts}


PROMPTS = [f"p{number}" for number in range(30)]


@pytest.mark.parametrize(
    "refusal",
    [
        error(529, "All workers are busy, please retry later"),
        error(500, "Overloaded", kind="overloaded_error"),
        error(
            500, "HTTPStatusError: Server error '503 Service Unavailable' for url 'http://127.0.0.1:8085/predictions/m'"
        ),
        error(500, "Request queue is full."),
    ],
    ids=["529", "overloaded_error", "a 503 within a 500", "a full queue"],
)
async def test_a_full_server_is_one_whatever_its_status(refusal):
    server = Slots(refusal)
    prompts = [f"p{number}" for number in range(300)]
    began_at = anyio.current_time()
    outcomes, limit = await ends(server, prompts, batching=SINGLY)
    assert outcomes == answers(prompts)
    assert limit < 32
    # It takes four a second.
    assert anyio.current_time() - began_at < 1.2 * 300 / 4
    assert server.requests < 4 * 300


@pytest.mark.parametrize("words", OUT_OF_MEMORY)
@pytest.mark.parametrize(
    "settings", [{"batching": SINGLY}, {"limit": 4, "batching": SINGLY}, {}], ids=["singly", "few", "lists"]
)
async def test_calls_that_share_a_memory_are_all_answered_with_fewer_at_once(words, settings):
    outcomes, limit = await ends(SharedCache(words), PROMPTS, **settings)
    assert outcomes == answers(PROMPTS)
    # There is room for two.
    assert limit <= 4


@pytest.mark.parametrize(
    "settings", [{"batching": SINGLY}, {"limit": 4, "batching": SINGLY}, {}], ids=["singly", "few", "lists"]
)
async def test_a_call_that_never_fits_fails_in_its_own_words_and_the_others_are_answered(settings):
    server = SharedCache(longer={"p7": 400})
    outcomes, _ = await ends(server, PROMPTS, **settings)
    fault = outcomes.pop("p7")
    assert (fault.status, fault.message) == (500, "500: Context size has been exceeded.")
    assert outcomes == answers(prompt for prompt in PROMPTS if prompt != "p7")
