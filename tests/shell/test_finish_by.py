"""Maps that have to end in time, on a simulated server in virtual time: guests for as long as that keeps the time."""

from dataclasses import replace

import anyio
import pytest
from tests.core import GuestChanged
from tests.seams import connected, watch_cores
from tests.shell.scripted import MetricsPage, Reply, ScriptedTransport, make_client
from tests.unit.test_log import records

from batchclient import AdaptiveLimit, ConfigError, SyncBatchClient
from batchclient._maps.forecast import Look
from batchclient.maps import map_of
from batchclient.simulator import SimulatedServer, SimulatorTransport

TEXTS = [f"Document {number}" for number in range(200)]
ANSWER = {"max_tokens": 40}
"""An answer takes 24 s. A guest that is alone has 63 of the server's 64 places: 200 rows take 100 s."""


class Shown:
    """The pages of a simulated server."""

    def __init__(self, transport):
        self.transport = transport

    async def send(self, request, timeouts):
        return await self.transport.send(replace(request, from_root=True), timeouts)

    async def aclose(self):
        pass


@pytest.fixture
def turned(monkeypatch):
    """How the clients of the test were turned, in order."""
    events = []

    def told(event):
        if isinstance(event, GuestChanged):
            events.append(event.on)

    watch_cores(monkeypatch, told=told)
    return events


def make(pages=None, **arguments):
    transport = SimulatorTransport(SimulatedServer("max-seqs-64", speed=0.02))
    page = Shown(transport) if pages is None else pages
    return connected(
        calls=lambda url: transport,
        metrics=lambda url: page,
        model="simulated",
        probe=True,
        dialect="vllm",
        **arguments,
    )


async def mapped(client, finish_by_s, texts=TEXTS, **arguments):
    """Map the texts; return what ``progress`` was told."""
    told = []
    await client.batch_map(texts, "{}", finish_by_s=finish_by_s, progress=told.append, **{**ANSWER, **arguments})
    return told


async def test_a_map_with_time_is_a_guest_to_its_end_and_then_the_client_is_as_it_was(turned):
    async with make() as client:
        told = await mapped(client, 600.0)
        assert {each.is_guest for each in told} == {True}
        assert turned == [True, False]
        ends = [each.ends_s for each in told if each.seconds > 60]
        took_s = told[-1].seconds
        assert all(low < took_s + 24 and high > took_s - 24 for low, high in ends) and type(ends[0]) is tuple
        assert {each.ends_s for each in told if each.seconds < 59} == {None}
        told = []
        await client.batch_map(TEXTS[:4], "{}", max_tokens=4, progress=told.append)
        assert (told[-1].is_guest, told[-1].ends_s, turned) == (None, None, [True, False])


async def test_a_map_without_time_goes_as_usual_and_says_that_it_will_be_late_and_how_late_it_was(turned):
    with records() as kept:
        async with make() as client:
            told = await mapped(client, 80.0, TEXTS + TEXTS)
    assert {each.is_guest for each in told} == {False} and turned == []
    named = [record for record in kept if record.event in ("manner_changed", "map_late")]
    assert [record.event for record in named] == ["map_late", "map_late"]
    late_s = told[-1].seconds - 80
    # An answer takes 24 s, and the forecast is of the first minute.
    assert named[0].late_s == pytest.approx(late_s, abs=36) and named[1].late_s == round(late_s)


async def test_a_pilots_rows_count_from_the_start(turned):
    async with make() as client:
        now, told = anyio.current_time(), []
        rows = client.stream_map(TEXTS, "{}", finish_by_s=300.0, progress=told.append, **ANSWER)
        looks = [Look(now - 30, 0, 0), *[Look(now - 30 + at, 32, 9) for at in range(30)], Look(now, 0, 0)]
        map_of(rows).finish_by.pilot = looks, [(12.0, 40.0)] * 40
        await anext(rows)
        # 32 in flight were 40 rows in 30 s.
        low, high = told[0].ends_s
        assert told[0].seconds < 1 and low < 150 < high < 160 and turned == [True]
        await rows.aclose()


async def test_of_two_maps_one_that_has_no_time_is_enough(turned):
    async with make() as client, anyio.create_task_group() as group:
        group.start_soon(mapped, client, 5000.0)
        await anyio.sleep(30.0)
        assert turned == [True]

        async def urgent():
            await client.batch_map(TEXTS, "{}", finish_by_s=299.0, priority=1, **ANSWER)
            # The other one has time: a guest again, to its end.
            assert turned == [True, False, True]

        group.start_soon(urgent)
        await anyio.sleep(1.0)
        assert turned == [True, False], "it has less than five minutes"
    assert turned == [True, False, True, False]


async def test_a_map_that_is_left_turns_the_client_back(turned):
    async with make() as client:
        rows = client.stream_map(TEXTS, "{}", finish_by_s=600.0, **ANSWER)
        async for _ in rows:
            break
        assert turned == [True]
        await rows.aclose()
        assert turned == [True, False]
        rows = client.stream_map(TEXTS, "{}", finish_by_s=600.0, **ANSWER)
        await anext(rows)
        del rows
        await anyio.sleep(2.0)
        assert turned == [True, False, True, False], "nobody holds it any more"


async def test_where_a_server_shows_no_load_the_map_goes_as_usual_and_says_so_once():
    with records() as kept:
        async with make(MetricsPage(reply=Reply(404))) as client:
            told = await mapped(client, 600.0)
            assert client.statistics().failed == 0
    assert {each.is_guest for each in told if each.seconds > 3} == {False}
    [said] = [record for record in kept if record.event == "no_guest"]
    assert said.levelname == "WARNING" and "shows no load" in said.reason
    assert not [record for record in kept if record.event == "manner_changed" and record.guest]


async def test_where_no_page_is_asked_for_the_map_goes_as_usual():
    with records() as kept:
        async with make_client(ScriptedTransport()) as client:
            told = await mapped(client, 600.0, TEXTS[:10])
    assert told[-1].answered == 10 and told[-1].is_guest is False
    assert [record.event for record in kept if record.event == "no_guest"] == ["no_guest"]


@pytest.mark.parametrize(
    ("limit", "said"),
    [(8, "limit=8 is fixed; leave limit out"), (AdaptiveLimit(guest=True), "leave AdaptiveLimit\\(guest=True\\) out")],
)
def test_a_limit_that_leaves_nothing_to_decide_is_refused(limit, said):
    client = make(limit=limit)
    with pytest.raises(ConfigError, match=f"finish_by_s: .*{said}") as raised:
        client.stream_map(TEXTS, "{}", finish_by_s=60.0)
    assert raised.value.field == "finish_by_s"


@pytest.mark.parametrize("finish_by_s", [0, -1, "06:00", float("nan"), float("inf"), True])
def test_what_is_no_time_is_refused(finish_by_s):
    with pytest.raises(ConfigError, match="finish_by_s"):
        make().stream_map(TEXTS, "{}", finish_by_s=finish_by_s)


def test_documents_that_nobody_can_count_are_refused_with_what_to_do():
    words = r"finish_by_s: it needs the number of documents, .*; give a list, a table, or an object with len\(\)"
    with pytest.raises(ConfigError, match=words):
        make().stream_map(iter(TEXTS), "{}", finish_by_s=60.0)
    with SyncBatchClient("http://localhost:1/v1", model="m") as client:
        with pytest.raises(ConfigError, match=words):
            client.stream_map(iter(TEXTS), "{}", finish_by_s=60.0)
        client.stream_map(TEXTS, "{}", finish_by_s=60.0).close()


def test_functions_of_rows_have_no_such_time():
    async def function(row, client): ...

    with pytest.raises(TypeError, match="finish_by_s"):
        make().run(function, TEXTS, finish_by_s=60.0)
