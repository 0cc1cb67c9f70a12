"""Servers with models of their own, and prices: which name a call goes by, and what it costs."""

import math

import anyio
import pytest

from batchclient import BatchClient, Batching, ConfigError, Price, Queue, Server
from batchclient._settings import sending_of
from batchclient.simulator import SimulatedServer, SimulatorTransport

OWN, HOSTED = "http://own/v1", "http://hosted/v1"


def make(*servers, models=("mine", "hosted"), **arguments):
    """A client of two simulated servers, each of which refuses any other model than its own."""
    simulated = [SimulatedServer(model=model) for model in models]
    table = {url: SimulatorTransport(one) for url, one in zip((OWN, HOSTED), simulated, strict=True)}
    http = sending_of(None, transport=lambda url, headers: table[url])
    return BatchClient(list(servers), http=http, from_environment=False, **arguments)


def hosted(**arguments):
    return Server(HOSTED, model="hosted", **arguments)


async def models_of(client, count=8, **arguments):
    answers = await client.batch_map([f"text {n}" for n in range(count)], "{}", max_tokens=2, **arguments)
    return {answer.model for answer in answers}


async def test_a_call_that_names_no_model_asks_each_server_for_its_own():
    async with make(Server(OWN, model="mine"), hosted(), limit=4, batching=None) as client:
        assert await models_of(client, 64) == {"mine", "hosted"}
        by_model = {(url, model) for url, model, _ in client.statistics().tokens}
        assert by_model == {(OWN, "mine"), (HOSTED, "hosted")}


async def test_beside_a_server_of_its_own_model_one_without_has_the_clients():
    async with make(OWN, hosted(), model="mine", limit=4) as client:
        assert await models_of(client, 64) == {"mine", "hosted"}


async def test_the_servers_without_a_model_of_their_own_are_asked_for_it():
    async with make(OWN, hosted(), limit=4) as client:
        assert await models_of(client, 64) == {"mine", "hosted"}


async def test_a_call_that_names_a_model_goes_where_that_is():
    async with make(Server(OWN, model="mine"), hosted()) as client:
        assert await models_of(client, 64, model="hosted") == {"hosted"}
        assert (await client.chat([{"role": "user", "content": "x"}], model="mine", max_tokens=2)).model == "mine"


async def test_a_model_that_no_server_has_is_refused_by_the_names_of_those_that_are_there():
    async with make(Server(OWN, model="mine"), hosted()) as client:
        with pytest.raises(ConfigError, match="no server has the model 'other'; they have hosted, mine") as refused:
            await client.complete("x", model="other")
        assert refused.value.field == "model"
        with pytest.raises(ConfigError, match="no server has the model"):
            client.stream_map(["x"], "{}", model="other")


async def test_a_call_that_names_no_model_shares_no_answer_with_one_that_does():
    async with make(OWN, hosted(), model="mine", batching=Batching(single_flight=True)) as client:
        async with anyio.create_task_group() as group:
            for named in ({}, {}, {"model": "mine"}):
                group.start_soon(lambda named=named: client.complete("x", max_tokens=2, temperature=0, **named))
        assert client.statistics().shared == 1


async def test_what_is_cheaper_answers_and_the_dear_server_costs_nothing():
    async with make(OWN, hosted(price=Price(input=1, output=2)), model="mine") as client:
        assert await models_of(client, 64) == {"mine"}
        assert client.statistics().costs == {}


async def test_the_statistics_say_what_each_server_cost_and_why():
    dear = hosted(price=Price(input=1, output=2))
    async with make(OWN, dear, model="mine", limit=1, queue=Queue(max_wait_s=0.0)) as client:
        answers = await client.batch_map([f"text {n}" for n in range(64)], "{}", max_tokens=2)
        now = client.statistics()
        paid = [answer.usage for answer in answers if answer.model == "hosted"]
        cost = sum(usage.prompt_tokens + 2 * usage.completion_tokens for usage in paid) / 1e6
        assert paid
        assert now.costs == {(HOSTED,): pytest.approx(cost)}
        assert now.overflows == {(HOSTED, "would wait for longer than max_wait_s"): len(paid)}


async def test_a_map_spends_no_more_than_its_max_cost():
    dear = hosted(price=Price(input=1, output=2))
    async with make(OWN, dear, model="mine", limit=1, queue=Queue(max_wait_s=0.0)) as client:
        await client.batch_map([f"text {n}" for n in range(64)], "{}", max_tokens=2, max_cost=40e-6)
        assert 0 < client.statistics().costs[HOSTED,] <= 40e-6
        with pytest.raises(ConfigError, match="max_cost: a number above 0"):
            await client.batch_map(["x"], "{}", max_cost=0)


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        ({"model": ""}, "model: the server's name of its model"),
        ({"price": 1.0}, "price: a Price"),
        ({"price": Price(per_hour=2)}, "price: per_hour: a call costs none of it"),
    ],
)
def test_what_a_server_cannot_have_is_refused(arguments, why):
    with pytest.raises(ConfigError, match=why):
        Server(OWN, **arguments)


def test_the_old_names_of_a_price_say_the_new_ones():
    with pytest.raises(ConfigError, match=r"per_million_in is input now: Price\(input=…\)"):
        Price(per_million_in=1)
    with pytest.raises(ConfigError, match=r"per_million_out is output now"):
        Price(per_million_out=1)


def test_a_wait_may_be_endless_and_no_word():
    assert Queue(max_wait_s=math.inf).max_wait_s == math.inf
    with pytest.raises(ConfigError, match="queue.max_wait_s"):
        Queue(max_wait_s="long")
