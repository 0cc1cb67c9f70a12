"""Servers that take lists: one that serves their prompts one after another, and those that only look so."""

from functools import partial

import anyio
import pytest

from batchclient.simulator.profiles import Profile
from batchclient.simulator.server import SimulatedServer
from batchclient.simulator.text import OutputLengths, expected_text
from batchclient.simulator.transport import SimulatorTransport
from tests.shell.scripted import Reply, ScriptedTransport, make_client, plain, stream, stream_end

LIBRARIES = ("asyncio",)
WHY = "lists are served one prompt after another"


def one_after_another(sent, prompt_s):
    """A list takes as many times as long as it has prompts."""
    if not sent.streamed:
        return Reply(chunks=[prompt_s * len(sent.prompts), plain(sent)])
    chunks = []
    for position in range(len(sent.prompts)):
        chunks += [prompt_s, *stream(sent, [position])]
    return Reply(chunks=chunks + stream_end())


class Serial(ScriptedTransport):
    def __init__(self, prompt_s):
        super().__init__()
        self.prompt_s = prompt_s

    async def send(self, request, timeouts):
        self.script = [partial(one_after_another, prompt_s=self.prompt_s)]
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


@pytest.mark.parametrize(("max_tokens", "limit"), [(1, 8), (16, 32)], ids=["plain", "streamed"])
async def test_a_server_that_serves_lists_one_prompt_after_another_gets_singles(max_tokens, limit):
    server = Serial(0.5)
    changes = []
    async with make_client(server, limit=limit, on_adjustment=changes.append) as client:
        rates = await work(client, 2 * limit, 80.0, max_tokens=max_tokens)
        statistics = client.statistics()
    assert [(change.setting, change.new) for change in changes] == [("max_list", 1)]
    assert "one prompt after another" in changes[0].reason
    assert statistics.alone[WHY] > 100
    assert rates[-2] >= 1.3 * rates[0]
    late = server.sent[-50:]
    assert all(len(each.prompts) == 1 for each in late)


async def test_lists_are_tried_again_and_given_up_again():
    server, changes = Serial(1.0), []
    async with make_client(server, limit=16, on_adjustment=changes.append) as client:
        await work(client, 32, 680.0, max_tokens=1)
    assert [change.new for change in changes] == [1, 1]
    assert 300.0 < changes[1].at - changes[0].at < 800.0


@pytest.mark.parametrize("lengths", ["lognormal:24:0.9", "lognormal:12:1.5"])
async def test_answers_of_all_lengths_do_not_hide_that_lists_are_served_one_prompt_after_another(lengths):
    server = SimulatedServer(PROFILES["as vLLM"], model="m", output_lengths=lengths, faults=["serial"])
    changes, began = [], anyio.current_time()
    async with make_client(SimulatorTransport(server), limit=64, on_adjustment=changes.append) as client:
        await work(client, 128, 60.0, max_tokens=128, temperature=0)
    assert [(change.setting, change.new) for change in changes] == [("max_list", 1)]
    assert changes[0].at < began + 30.0


PROFILES = {
    "as vLLM": Profile("t", "", step_s=0.01, sequence_s=1e-4, prefill_token_s=5e-6, max_num_seqs=256, kv_tokens=1_000_000),
    "arithmetic alone": Profile("t", "", step_s=1e-4, sequence_s=1e-3, prefill_token_s=5e-5, max_num_seqs=256, kv_tokens=1_000_000),
    "one at a time": Profile("t", "", step_s=0.01, sequence_s=1e-4, prefill_token_s=5e-6, max_num_seqs=1, kv_tokens=1_000_000),
    "eight at a time": Profile("t", "", step_s=0.01, sequence_s=1e-4, prefill_token_s=5e-6, max_num_seqs=8, kv_tokens=1_000_000),
}  # fmt: skip


@pytest.mark.parametrize("costs", PROFILES.values(), ids=PROFILES)
@pytest.mark.parametrize("max_tokens", [1, 16], ids=["plain", "streamed"])
@pytest.mark.parametrize("prompt", ["{} {}", "{} {}" + " word" * 400], ids=["short", "long"])
async def test_servers_that_batch_keep_their_lists_whatever_lists_cost(costs, max_tokens, prompt):
    """With a trial or without: where singles are no faster, lists stay."""
    server = SimulatedServer(costs, model="m", output_lengths="lognormal:12:0.5")
    changes = []
    async with make_client(SimulatorTransport(server), limit=32, on_adjustment=changes.append) as client:
        trial = client._runner.core._by_id[0].can().trial
        await work(client, 48, 2.5, prompt, max_tokens=max_tokens)
        assert trial._singles_until < 0
    assert [change for change in changes if change.setting == "max_list"] == []


async def test_a_single_that_had_a_short_answer_does_not_make_lists_look_serial():
    """Of a list of 16 the longest answer takes over ten times as long as one that happened to have three tokens."""
    lengths = OutputLengths.parse("lognormal:24:0.9")
    answer = partial(expected_text, max_tokens=128, temperature=0, lengths=lengths)
    short = next(prompt for prompt in map(str, range(1000)) if len(answer(prompt).split()) <= 2)
    server = SimulatedServer(PROFILES["as vLLM"], model="m", output_lengths="lognormal:24:0.9")
    async with make_client(SimulatorTransport(server), limit=64, preset="throughput") as client:
        alone = await client.complete(short, max_tokens=128, temperature=0)
        assert alone.usage.completion_tokens <= 3
        await work(client, 128, 10.0, max_tokens=128, temperature=0)
        statistics = client.statistics()
    assert sum(count for size, count in statistics.list_sizes.items() if size > 1) > 50
    assert statistics.alone.get(WHY, 0) < 16, "there was a trial"
