"""First tokens that a server sends open the limit before any call is answered."""

import anyio
import pytest

from tests.shell.scripted import Reply, ScriptedTransport, echo, make_client, stream, stream_end
from batchclient import AdaptiveLimit, Batching

CALLS = 150


class Holding(ScriptedTransport):
    """Each reply says what ``parts`` says, one wait between two of them; ``prompts_begun`` is how much had come by then."""

    def __init__(self, *parts):
        super().__init__()
        self.gates = [anyio.Event() for _ in parts[1:]]
        self.script = [lambda sent: Reply(chunks=self.pieces(sent, parts))] * CALLS

    def pieces(self, sent, parts):
        chunks = list(parts[0](sent))
        for gate, part in zip(self.gates, parts[1:], strict=True):
            chunks += [gate, *part(sent)]
        return chunks


def first_tokens(sent):
    return stream(sent, last=False)


def some_first_tokens(sent):
    return stream(sent, range(len(sent.prompts) - 1), last=False)


def ends(sent):
    return stream(sent, first=False) + stream_end()


async def asked(client, group, **arguments):
    for number in range(CALLS):
        group.start_soon(lambda number=number: client.complete(f"p{number}", **{"max_tokens": 64, **arguments}))
    await anyio.sleep(1.0)


def client_of(server, **arguments):
    return make_client(server, **{"limit": "auto", "batching": Batching(max_size=8), **arguments})


def in_flight(server):
    return sum(len(prompts) for prompts in server.prompts)


async def test_a_burst_is_sent_as_its_prompts_begin():
    server = Holding(first_tokens, ends)
    client = client_of(server)
    async with client, anyio.create_task_group() as group:
        await asked(client, group)
        assert in_flight(server) == CALLS, "although none has been answered"
        assert client.statistics().succeeded == 0
        assert "were being answered at once" in client.statistics().endpoints[0].limit_reason
        server.gates[0].set()


async def test_a_batch_with_a_prompt_that_waits_has_not_begun():
    server = Holding(some_first_tokens, lambda sent: stream(sent, [len(sent.prompts) - 1], last=False), ends)
    client = client_of(server)
    async with client, anyio.create_task_group() as group:
        await asked(client, group)
        assert in_flight(server) == 64
        server.gates[0].set()
        await anyio.sleep(1.0)
        assert in_flight(server) == CALLS
        server.gates[1].set()


async def test_plain_replies_open_it_when_a_limits_worth_is_answered():
    seen = []
    server = Holding(lambda sent: [], lambda sent: [b"".join(echo(sent).chunks)])
    client = client_of(server, on_adjustment=seen.append)
    async with client, anyio.create_task_group() as group:
        await asked(client, group, max_tokens=1)
        assert in_flight(server) == 64
        server.gates[0].set()
    assert client.statistics().succeeded == CALLS
    assert [(each.old, each.new, each.reason) for each in seen] == [(64, 128, "64 calls were answered")]


@pytest.mark.parametrize(
    ("arguments", "sent"),
    [
        ({"preset": "latency"}, 64),
        ({"limit": AdaptiveLimit(time_to_first_token_s=1.0)}, 64),
        ({"limit": AdaptiveLimit(start=10)}, 10),
    ],
)
async def test_where_latency_is_wanted_or_a_start_was_given_a_burst_waits(arguments, sent):
    server = Holding(first_tokens, ends)
    client = client_of(server, **arguments)
    async with client, anyio.create_task_group() as group:
        await asked(client, group)
        assert in_flight(server) == sent
        server.gates[0].set()
