"""Servers that take lists: one that serves their prompts one after another, and those that only look so."""

from functools import partial

import anyio
import pytest

from batchclient._core.learnt.list_trial import COMPARED, GIVEN_UP
from batchclient.simulator.profiles import Profile
from batchclient.simulator.server import SimulatedServer
from batchclient.simulator.transport import SimulatorTransport
from tests.shell.scripted import Reply, ScriptedTransport, make_client, plain, stream, stream_end

LIBRARIES = ("asyncio",)


def one_after_another(sent, prompt_s):
    """A list takes as many times as long as it has prompts."""
    if not sent.streamed:
        return Reply(chunks=[prompt_s * len(sent.prompts), plain(sent)])
    chunks = []
    for position in range(len(sent.prompts)):
        chunks += [prompt_s, *stream(sent, [position])]
    return Reply(chunks=chunks + stream_end())


def at_once(sent, prompt_s):
    """A list takes as long as one prompt."""
    return Reply(chunks=[prompt_s, *stream(sent), *stream_end()] if sent.streamed else [prompt_s, plain(sent)])


class Serial(ScriptedTransport):
    def __init__(self, prompt_s):
        super().__init__()
        self.prompt_s = prompt_s
        self.answer = one_after_another

    async def send(self, request, timeouts):
        self.script = [partial(self.answer, prompt_s=self.prompt_s)]
        return await super().send(request, timeouts)


async def work(client, callers, seconds, prompt="{} {}", **params):
    """So many callers call for so long, with pauses of their own; return the answers per second of each tenth of it."""
    answers = []
    start = anyio.current_time()

    async def caller(number):
        turn = 0
        while anyio.current_time() < start + seconds:
            turn += 1
            await client.complete(prompt.format(number, turn), **params)
            answers.append(anyio.current_time() - start)
            await anyio.sleep(0.001 * ((number * 7 + turn * 13) % 29))

    async with anyio.create_task_group() as group:
        for number in range(callers):
            group.start_soon(caller, number)
    tenth = seconds / 10
    return [sum(tenth * k <= at < tenth * (k + 1) for at in answers) / tenth for k in range(10)]


@pytest.mark.parametrize(("max_tokens", "limit"), [(1, 64), (16, 32)], ids=["plain", "streamed"])
async def test_a_server_that_serves_lists_one_prompt_after_another_gets_singles(max_tokens, limit):
    server = Serial(0.5)
    changes = []
    async with make_client(server, limit=limit, on_adjustment=changes.append) as client:
        rates = await work(client, 2 * limit, 120.0, max_tokens=max_tokens)
        statistics = client.statistics()
    assert [(change.setting, change.new) for change in changes] == [("batch_size_cap", 1)]
    assert "one prompt after another" in changes[0].reason
    assert statistics.alone[GIVEN_UP] > 100
    assert statistics.alone[COMPARED] == 52
    assert rates[-2] >= 1.3 * rates[0]
    late = server.sent[-50:]
    assert all(len(each.prompts) == 1 for each in late)


@pytest.mark.long
async def test_a_list_a_minute_is_tried_and_brings_lists_back_once_they_are_served_at_once():
    server, changes = Serial(1.0), []
    async with make_client(server, limit=32, on_adjustment=changes.append) as client:
        await work(client, 64, 240.0, max_tokens=16)
        assert [change.new for change in changes] == [1]
        later = server.sent[len(server.sent) // 2 :]
        assert 1 <= sum(len(each.prompts) >= 4 for each in later) <= 3, "one a minute"
        server.answer = at_once
        await work(client, 64, 120.0, max_tokens=16)
    assert [(change.old, change.new) for change in changes] == [(32, 1), (1, 32)]
    assert changes[1].reason == "a list was as fast as singles again (max_tokens=16)"


async def test_calls_with_other_parameters_keep_their_lists():
    server, changes = Serial(0.5), []
    async with make_client(server, limit=32, on_adjustment=changes.append) as client:
        await work(client, 64, 60.0, max_tokens=16)
        assert [change.new for change in changes] == [1]
        server.sent.clear()
        await work(client, 64, 1.0, max_tokens=17)
    assert max(len(each.prompts) for each in server.sent) >= 4


@pytest.mark.parametrize("dialect", ["vllm", "openai"])
async def test_a_server_that_is_named_is_not_tried(dialect):
    server, changes = Serial(0.5), []
    async with make_client(server, limit=32, on_adjustment=changes.append, dialect=dialect) as client:
        await work(client, 64, 60.0, max_tokens=16)
        alone = client.statistics().alone
    # "openai" is any server.
    assert bool(alone.get(COMPARED)) is bool(changes) is (dialect == "openai")


@pytest.mark.long
@pytest.mark.parametrize("lengths", ["lognormal:24:0.9", "lognormal:12:1.5"])
async def test_answers_of_all_lengths_do_not_hide_that_lists_are_served_one_prompt_after_another(lengths):
    server = SimulatedServer(PROFILES["as vLLM"], model="m", output_lengths=lengths, faults=["serial"])
    changes, began = [], anyio.current_time()
    async with make_client(SimulatorTransport(server), limit=64, on_adjustment=changes.append) as client:
        await work(client, 128, 60.0, max_tokens=128, temperature=0)
    assert [(change.setting, change.new) for change in changes] == [("batch_size_cap", 1)]
    assert changes[0].at < began + 30.0


PROFILES = {
    "as vLLM": Profile("t", "", step_s=0.01, sequence_s=1e-4, prefill_token_s=5e-6, max_num_seqs=256, kv_tokens=1_000_000),
    "arithmetic alone": Profile("t", "", step_s=1e-4, sequence_s=1e-3, prefill_token_s=5e-5, max_num_seqs=256, kv_tokens=1_000_000),
    "one at a time": Profile("t", "", step_s=0.01, sequence_s=1e-4, prefill_token_s=5e-6, max_num_seqs=1, kv_tokens=1_000_000),
    "eight at a time": Profile("t", "", step_s=0.01, sequence_s=1e-4, prefill_token_s=5e-6, max_num_seqs=8, kv_tokens=1_000_000),
}  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("costs", PROFILES.values(), ids=PROFILES)
@pytest.mark.parametrize("max_tokens", [1, 16], ids=["plain", "streamed"])
@pytest.mark.parametrize("prompt", ["{} {}", "{} {}" + " word" * 400], ids=["short", "long"])
async def test_servers_that_batch_keep_their_lists_whatever_lists_cost(costs, max_tokens, prompt):
    """With a trial or without: where singles are no faster, lists stay."""
    server = SimulatedServer(costs, model="m", output_lengths="lognormal:12:0.5")
    changes = []
    async with make_client(SimulatorTransport(server), limit=32, on_adjustment=changes.append) as client:
        await work(client, 48, 5.0, prompt, max_tokens=max_tokens)
        alone = client.statistics().alone
    assert [change for change in changes if change.setting == "batch_size_cap"] == []
    assert GIVEN_UP not in alone


async def test_a_comparison_costs_as_a_rule_four_singles():
    server = SimulatedServer(PROFILES["as vLLM"], model="m", output_lengths="lognormal:24:0.9")
    async with make_client(SimulatorTransport(server), limit=64, preset="throughput") as client:
        await work(client, 128, 10.0, max_tokens=128, temperature=0)
        statistics = client.statistics()
    assert sum(count for size, count in statistics.list_sizes.items() if size > 1) > 50
    assert statistics.alone[COMPARED] == 4
