"""Several servers behind one client: engines in virtual time, so that throughput is a number and no guess."""

import anyio
import anyio.lowlevel
import pytest
from tests.inspection import held
from tests.shell.scripted import ScriptedTransport, answer_to, echo, make_client, settle

from batchclient._settings import sending_of
from batchclient import BatchClient, Batching, ClientClosed, ConfigError, ConnectFailed, Http
from batchclient.simulator import Profile, SimulatedServer, SimulatorTransport

LIBRARIES = ("asyncio",)
"""How a call is placed has nothing to do with the event loop."""

# 64 sequences: 10 ms for the memory and 0.1 ms each for the arithmetic, so that the knee is at 100.
COSTS = Profile("t", "", step_s=0.010, sequence_s=0.0001, prefill_token_s=5e-6, max_num_seqs=256, kv_tokens=1_000_000)
LIMIT = 64
SECONDS = 40.0
WARM_UP_S = 4.0


def make_fleet(*servers, **arguments):
    """A client whose endpoints are these simulated servers."""
    return make_over([SimulatorTransport(server) for server in servers], **arguments)


def make_over(transports, **arguments):
    urls = [f"http://server-{number}/v1" for number in range(len(transports))]
    table = dict(zip(urls, transports, strict=True))
    arguments = {"limit": LIMIT, "model": "simulated", **arguments}
    http = sending_of(arguments.pop("http", None), transport=lambda url, headers: table[url])
    return BatchClient(urls, http=http, **arguments)


def server(speed=1.0, **arguments):
    return SimulatedServer(COSTS, speed=speed, output_lengths="lognormal:24:0.5", **arguments)


async def throughput(client, callers, seconds=SECONDS, meanwhile=None):
    """Answers per second of so many callers, each of whom calls again and again."""
    answers = []

    async def caller(number):
        for turn in range(1_000_000):
            await client.complete(f"caller {number}, turn {turn}", max_tokens=64)
            answers.append(anyio.current_time())

    async with client, anyio.create_task_group() as group:
        start = anyio.current_time()
        for number in range(callers):
            group.start_soon(caller, number)
        if meanwhile is not None:
            group.start_soon(meanwhile)
        await anyio.sleep_until(start + seconds)
        group.cancel_scope.cancel()
    counted = [at for at in answers if at >= start + WARM_UP_S]
    return len(counted) / (seconds - WARM_UP_S)


@pytest.mark.long
@pytest.mark.parametrize("preset", ["latency", "balanced"])
async def test_a_replica_three_times_slower_takes_its_share_of_a_deep_queue(preset):
    fast, slow = [await throughput(make_fleet(server(speed), preset=preset), 200, 20.0) for speed in (1.0, 1 / 3)]
    assert fast == pytest.approx(3 * slow, rel=0.1)
    both = await throughput(make_fleet(server(1 / 3), server(), preset=preset), 200, 20.0)
    assert both >= 0.9 * (fast + slow)


@pytest.mark.long
@pytest.mark.parametrize("callers", [4, 16, 48])
async def test_a_shallow_queue_stays_on_the_fast_replica(callers):
    """The ideal split is the best of all fixed ones: for these servers it is to leave the slow one alone."""
    ideal = 0.0
    for on_slow in (0, callers // 8, callers // 4, callers // 2):
        parts = [await throughput(make_fleet(server()), callers - on_slow, 20.0)]
        if on_slow:
            parts.append(await throughput(make_fleet(server(1 / 3)), on_slow, 20.0))
        ideal = max(ideal, sum(parts))
    both = await throughput(make_fleet(server(1 / 3), server()), callers)
    assert both >= 0.9 * ideal


@pytest.mark.long
@pytest.mark.parametrize("callers", [16, 200])
async def test_a_replica_that_becomes_three_times_slower_is_given_less(callers):
    first, second = server(), server()

    async def degrade():
        await anyio.sleep(WARM_UP_S)
        first.engine.slowdown = 3.0

    both = await throughput(make_fleet(first, second), callers, meanwhile=degrade)
    if callers > 2 * LIMIT:
        fast, slow = [await throughput(make_fleet(server(speed)), 100, 20.0) for speed in (1.0, 1 / 3)]
        ideal = fast + slow
    else:
        ideal = await throughput(make_fleet(server()), callers, 20.0)
    assert both >= 0.9 * ideal


class Killable:
    """A simulated server that can be killed and started anew."""

    def __init__(self, transport):
        self._transport = transport
        self.down = False
        self.refused = 0
        self.requests = []

    async def send(self, request, timeouts):
        if self.down:
            self.refused += 1
            await anyio.lowlevel.checkpoint()
            raise ConnectFailed("the connection was refused")
        self.requests.append(anyio.current_time())
        return await self._transport.send(request, timeouts)

    async def kill(self):
        self.down = True
        await self._transport.aclose()

    async def aclose(self):
        await self._transport.aclose()


def make_killable(*servers, **arguments):
    transports = [Killable(SimulatorTransport(server)) for server in servers]
    return make_over(transports, **arguments), transports


@pytest.mark.parametrize(
    "preset", ["balanced", *(pytest.param(other, marks=pytest.mark.long) for other in ("latency", "throughput"))]
)
async def test_no_call_fails_when_a_replica_is_killed_and_started_anew(preset):
    client, (first, second) = make_killable(server(), server(), preset=preset)
    states = set()
    async with client, anyio.create_task_group() as group:

        async def kill_and_start():
            await anyio.sleep(1.0)
            await first.kill()
            for _ in range(30):
                await anyio.sleep(0.25)
                states.add(client.statistics().endpoints[0].state)
            first.down = False
            first.requests.clear()

        group.start_soon(kill_and_start)
        answers = await client.batch_map([f"document {number}" for number in range(4000)], "{}", max_tokens=64)
    assert len(answers) == 4000
    # Broken once by the kill, and perhaps once more as a probe.
    assert max(answer.attempts for answer in answers) <= 4
    assert "ejected" in states
    # Refused when it died, and then one probe at a time with growing pauses.
    assert first.refused < 12
    assert len(first.requests) > 5
    assert client.statistics().endpoints[0].state == "healthy"


async def test_a_replica_that_accepts_and_never_answers_is_left_alone():
    silent = SimulatedServer(COSTS, faults=["stall"])
    client, (first, second) = make_killable(silent, server(), http=Http(read_timeout_s=2.0))
    async with client:
        answers = await client.batch_map([f"document {number}" for number in range(3000)], "{}", max_tokens=32)
    assert len(answers) == 3000
    endpoint = client.statistics().endpoints[0]
    assert endpoint.state in ("ejected", "probing")
    assert "silence" in endpoint.reason


def make_scripted(**servers):
    """A client with one endpoint per name; further servers can be added under other names."""
    first = list(servers)[:2]
    urls = [f"http://{name}/v1" for name in first]
    return BatchClient(
        urls, http=lambda url, headers: servers[url.split("/")[2]], model="m", batching=Batching(max_size=1)
    )


async def test_a_server_that_is_added_takes_its_share():
    one, two, three = (ScriptedTransport(held=True) for _ in range(3))
    client = make_scripted(one=one, two=two, three=three)
    async with client, anyio.create_task_group() as group:
        for number in range(6):
            group.start_soon(client.complete, f"call {number}")
        await settle()
        client.add_endpoint("http://three/v1/")
        for number in range(3):
            group.start_soon(client.complete, f"late call {number}")
        await three.arrived(3)
        assert [endpoint.base_url for endpoint in client.statistics().endpoints] == [
            "http://one/v1",
            "http://two/v1",
            "http://three/v1",
        ]
        for server in (one, two, three):
            server.release()
    assert (one.closed, two.closed, three.closed) == (1, 1, 1)


async def test_a_server_that_is_removed_finishes_what_it_has():
    one, two = ScriptedTransport(held=True), ScriptedTransport()
    client = make_scripted(one=one, two=two)
    async with client, anyio.create_task_group() as group:
        call = group.start_soon
        call(client.complete, "first")
        await one.arrived(1)
        call(client.remove_endpoint, "http://one/v1")
        await settle()
        await client.complete("second")
        assert (len(one.sent), len(two.sent), one.closed) == (1, 1, 0)
        one.release()
        await settle()
        assert one.closed == 1
        assert one.states == ["read"]
        assert [endpoint.base_url for endpoint in client.statistics().endpoints] == ["http://two/v1"]
        assert repr(client).startswith("<BatchClient for http://two/v1:")
    assert one.closed == 1


async def test_without_drain_its_calls_go_to_the_others():
    one, two = ScriptedTransport(held=True), ScriptedTransport()
    client = make_scripted(one=one, two=two)
    answers = []

    async def call():
        answers.append(await client.complete("moved"))

    async with client, anyio.create_task_group() as group:
        group.start_soon(call)
        await one.arrived(1)
        await client.remove_endpoint("http://one/v1", drain=False)
        assert one.states == ["cancelled"]
        assert one.closed == 1
    assert two.prompts == [["moved"]]
    assert (answers[0].text, answers[0].attempts) == (answer_to("moved"), 2)


async def test_one_that_hangs_while_it_drains_can_be_ended():
    one, two = ScriptedTransport(held=True), ScriptedTransport()
    client = make_scripted(one=one, two=two)
    async with client, anyio.create_task_group() as group:
        group.start_soon(client.complete, "hangs")
        await one.arrived(1)
        with anyio.move_on_after(60.0) as patience:
            await client.remove_endpoint("http://one/v1")
        assert patience.cancelled_caught
        await client.remove_endpoint("http://one/v1", drain=False)
    assert (one.states, one.closed) == (["cancelled"], 1)
    assert two.prompts == [["hangs"]]


async def test_a_server_can_be_removed_and_added_again():
    one, two = ScriptedTransport(), ScriptedTransport()
    client = make_scripted(one=one, two=two)
    async with client:
        await client.complete("a")
        await client.remove_endpoint("http://one/v1")
        client.add_endpoint("http://one/v1")
        assert [endpoint.id for endpoint in client.statistics().endpoints] == [1, 2]
        await client.remove_endpoint("http://two/v1")
        await client.complete("b")
    assert one.prompts == [["a"], ["b"]]


async def test_a_removed_server_whose_connections_do_not_close_is_gone_all_the_same():
    one = ScriptedTransport()

    async def fail():
        raise OSError("busy")

    one.aclose = fail
    async with make_scripted(one=one, two=ScriptedTransport()) as client:
        await client.complete("a")
        with pytest.raises(OSError, match="busy"):
            await client.remove_endpoint("http://one/v1")
        with pytest.raises(ConfigError, match="none of the client's servers"):
            await client.remove_endpoint("http://one/v1")


async def test_servers_may_come_and_go_before_the_first_call():
    one, two, three = ScriptedTransport(), ScriptedTransport(), ScriptedTransport()
    client = make_scripted(one=one, two=two, three=three)
    client.add_endpoint("http://three/v1")
    await client.remove_endpoint("http://one/v1")
    await client.remove_endpoint("http://two/v1")
    async with client:
        await client.complete("a")
    assert three.prompts == [["a"]]


async def test_what_cannot_be_added_or_removed_is_refused():
    client = make_scripted(one=ScriptedTransport(), two=ScriptedTransport())
    async with client:
        for url in ("nonsense", 7, "http://user:secret@one/v1"):
            with pytest.raises(ConfigError) as refusal:
                client.add_endpoint(url)
            assert refusal.value.field == "base_url"
            assert "secret" not in str(refusal.value)
        with pytest.raises(ConfigError, match="already"):
            client.add_endpoint("http://one/v1/")
        with pytest.raises(ConfigError, match="none of the client's"):
            await client.remove_endpoint("http://three/v1")
        await client.remove_endpoint("http://one/v1")
        with pytest.raises(ConfigError, match="last server"):
            await client.remove_endpoint("http://two/v1")
    with pytest.raises(ClientClosed):
        client.add_endpoint("http://four/v1")


async def test_a_gateway_with_nothing_left_is_left_alone_until_its_reset():
    def exhausted(sent):
        reply = echo(sent)
        reply.headers = {"x-ratelimit-remaining-requests": "0", "x-ratelimit-reset-requests": "1m30s"}
        return reply

    server = ScriptedTransport(exhausted)
    async with make_client(server) as client:
        start = anyio.current_time()
        await client.complete("first")
        await client.complete("second")
        # A minute is the longest, whatever it says.
        assert anyio.current_time() - start == pytest.approx(60.0, abs=0.05)


async def test_of_a_server_that_is_gone_nothing_is_kept_but_its_counts():
    one, pod = ScriptedTransport(), ScriptedTransport()
    async with make_scripted(one=one, pod=pod) as client:

        async def come_and_go(times):
            for _ in range(times):
                await client.batch_map(["a", "b", "c"], "{}")
                await client.remove_endpoint("http://pod/v1")
                client.add_endpoint("http://pod/v1")
            # The fakes keep what they were sent.
            one.sent.clear()
            pod.sent.clear()
            return held(client, anyio.Event)

        before = await come_and_go(3)
        assert await come_and_go(10) == before
