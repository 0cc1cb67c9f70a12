"""What bounds a whole call and what bounds an attempt, where more calls are made at once than a server takes."""

import pytest

from batchclient import DeadlineExceeded, Http
from batchclient.simulator.profiles import Profile
from batchclient.simulator.server import SimulatedServer
from batchclient.simulator.transport import SimulatorTransport
from tests.shell.scripted import make_client
from tests.shell.test_complete import call_all

PROMPTS = [f"p{number}" for number in range(40)]


async def outcomes_with(**settings):
    """Forty calls of two seconds each, four at a time: twenty seconds."""
    server = SimulatedServer(Profile("slow", "", step_s=0.5), model="m")
    async with make_client(SimulatorTransport(server), limit=4, **settings) as client:
        return list((await call_all(client, PROMPTS, max_tokens=4, temperature=0, ignore_eos=True)).values())


async def test_a_calls_timeout_counts_the_queue_and_the_error_says_so_and_what_helps():
    outcomes = await outcomes_with(timeout_s=5.0)
    late = [one for one in outcomes if isinstance(one, Exception)]
    assert len(late) >= 24
    assert {type(one) for one in late} == {DeadlineExceeded}
    for error in late:
        assert " s in the queue" in str(error)
        assert "calls are queued, and 4 sequences may be in flight" in str(error)
        assert "give more time, or none, and bound the server's silence with http=Http(read_timeout_s=…)" in str(error)
        assert "refuse calls earlier, with a lower max_queued and when_full='raise'" in str(error)


@pytest.mark.parametrize("settings", [{}, {"http": Http(read_timeout_s=5.0)}])
async def test_without_it_or_with_a_bound_on_silence_nothing_fails(settings):
    assert not [one for one in await outcomes_with(**settings) if isinstance(one, Exception)]
