"""The in-process transport, on asyncio and trio."""

import json

import anyio
import pytest

from batchclient.errors import ConnectFailed, ConnectionLost, ReadTimedOut
from batchclient.simulator import Profile, SimulatedServer, SimulatorTransport, expected_text
from batchclient.transport import Timeouts, Transport, WireRequest

STEPS = Profile("t", "", step_s=0.002, max_num_seqs=8, kv_tokens=10_000)


@pytest.fixture(params=["asyncio", "trio"])
def anyio_backend(request):
    return request.param


pytestmark = pytest.mark.anyio


def wire(**fields):
    body = {"prompt": ["a", "b"], "max_tokens": 6, "temperature": 0} | fields
    return WireRequest("POST", "/completions", json.dumps(body).encode())


async def body_of(transport, request, timeouts=Timeouts()):
    response = await transport.send(request, timeouts)
    try:
        return response.status, b"".join([chunk async for chunk in response.chunks()])
    finally:
        await response.aclose()


async def test_plain_and_streamed():
    transport: Transport = SimulatorTransport(SimulatedServer(STEPS))
    status, body = await body_of(transport, wire())
    assert status == 200
    assert json.loads(body)["choices"][1]["text"] == expected_text("b", max_tokens=6, temperature=0)
    response = await transport.send(wire(stream=True), Timeouts())
    assert response.headers["content-type"].startswith("text/event-stream")
    chunks = [chunk async for chunk in response.chunks()]
    assert len(chunks) == 2 * 6 + 1
    status, body = await body_of(transport, WireRequest("GET", "/models"))
    assert json.loads(body)["object"] == "list"


async def test_a_key_is_sent():
    server = SimulatedServer("instant", api_key="k")
    assert (await body_of(SimulatorTransport(server, api_key="k"), wire()))[0] == 200
    assert (await body_of(SimulatorTransport(server), wire()))[0] == 401


async def test_many_at_once():
    transport = SimulatorTransport(SimulatedServer(STEPS))
    found = {}

    async def one(i):
        fields = {"prompt": f"prompt {i}", "max_tokens": 1 + i % 7, "stream": bool(i % 2)}
        found[i] = (await body_of(transport, wire(**fields)))[1]

    async with anyio.create_task_group() as tasks:
        for i in range(60):
            tasks.start_soon(one, i)
    for i in range(60):
        assert expected_text(f"prompt {i}", max_tokens=1, temperature=0).encode() in found[i]
    assert repr(transport).startswith("<SimulatorTransport 0 open")


@pytest.mark.parametrize(("kind", "error"), [("refuse", ConnectFailed), ("disconnect", ConnectionLost)])
async def test_no_reply(kind, error):
    transport = SimulatorTransport(SimulatedServer("instant", faults=[f"{kind},count=1"]))
    with pytest.raises(error):
        await transport.send(wire(), Timeouts())
    assert (await body_of(transport, wire()))[0] == 200


@pytest.mark.parametrize(
    ("kind", "error"), [("cut", ConnectionLost), ("stall_body", ReadTimedOut), ("stall", ReadTimedOut)]
)
@pytest.mark.parametrize("stream", [False, True])
async def test_broken_bodies(kind, error, stream):
    server = SimulatedServer("instant", faults=[kind])
    with pytest.raises(error):
        await body_of(SimulatorTransport(server), wire(stream=stream), Timeouts(read_s=0.05))
    assert server.statistics()["open_requests"] == 0


async def test_silence_is_counted_from_the_last_byte():
    transport = SimulatorTransport(SimulatedServer(Profile("t", "", step_s=0.03)))
    # 6 steps of 30 ms: each gap is short, the whole is long.
    status, _ = await body_of(transport, wire(stream=True), Timeouts(read_s=0.12))
    assert status == 200
    with pytest.raises(ReadTimedOut):
        await body_of(transport, wire(), Timeouts(read_s=0.12))


async def test_who_leaves_frees_the_server_and_the_others_go_on():
    server = SimulatedServer(STEPS)
    transport = SimulatorTransport(server)
    found = []

    async def short():
        await anyio.sleep(0.005)
        found.append((await body_of(transport, wire(max_tokens=10)))[0])

    async def long():
        # It leads the wait, and is cancelled.
        with anyio.move_on_after(0.012):
            await body_of(transport, wire(max_tokens=5000))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(long)
        tasks.start_soon(short)
    assert found == [200]
    assert (server.engine.running, server.engine.waiting) == (0, 0)
    assert server.statistics()["aborted_sequences"] == 2


async def test_one_woken_to_lead_may_have_a_reply_of_its_own():
    # All replies are due at once: whoever hands them out must not wake one that leaves, while others sleep on.
    transport = SimulatorTransport(SimulatedServer(Profile("t", "", step_s=0.001, max_num_seqs=3)))
    done = []

    async def one(i):
        await body_of(transport, wire(prompt=["a"] * (1 + i % 3), max_tokens=1 + i % 2))
        done.append(i)

    with anyio.fail_after(20):
        for _ in range(20):
            async with anyio.create_task_group() as tasks:
                for i in range(12):
                    tasks.start_soon(one, i)
    assert len(done) == 240


async def test_aclose_of_a_response_and_of_the_transport():
    server = SimulatedServer(STEPS)
    transport = SimulatorTransport(server)
    response = await transport.send(wire(stream=True, max_tokens=5000), Timeouts())
    await response.aclose()
    await response.aclose()
    assert server.engine.running == 0
    errors = []

    async def waiting():
        try:
            await body_of(transport, wire(max_tokens=5000))
        except ConnectionLost:
            errors.append("lost")

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(waiting)
        await anyio.sleep(0.01)
        await transport.aclose()
    assert errors == ["lost"]
    assert server.engine.running == 0
