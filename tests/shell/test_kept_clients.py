"""A bounded set of batch clients: which one makes room, which never does, and that each is closed."""

import asyncio
import gc
import weakref
from contextlib import asynccontextmanager

import anyio
import pytest
import sniffio
from tests.shell.clocks import VirtualLoop, run
from tests.shell.scripted import ScriptedTransport, make_client, settle

from batchclient import ClientClosed
from batchclient.integrations.kept_clients import KeptClients

MOST = 3


class Shelf:
    """Kept clients, and the server behind each."""

    def __init__(self, nursery=None):
        self.clients = KeptClients(MOST)
        self.servers = {}
        self.made = []
        self.all = []
        self._nursery = nursery

    def find(self, key):
        return self.clients.find(key, self._make)

    def _make(self, key):
        self.made.append(key)
        self.servers[key] = ScriptedTransport(held=True)
        self.all.append((key, self.servers[key]))
        client = make_client(self.servers[key])
        # What its own ``async with`` would hold.
        client._engine.nursery = client._engine.trio_nursery = self._nursery
        return client

    async def use(self, *keys):
        """A whole call in each."""
        for key in keys:
            async with anyio.create_task_group() as group:
                await self.begin(group, key)
                self.release(key)

    async def begin(self, group, key):
        client = self.find(key)
        group.start_soon(client.complete, key)
        await self.servers[key].arrived(len(self.servers[key].sent) + 1)

    def release(self, key):
        for sent in self.servers[key].sent:
            sent.release()

    @property
    def closed(self):
        """The keys of those whose connections were closed; one that was never used has none."""
        return "".join(sorted(key for key, server in self.all if server.closed))


def is_closed(client):
    return repr(client).endswith(": closed>")


@asynccontextmanager
async def shelf():
    if sniffio.current_async_library() == "asyncio":
        kept = Shelf()
        yield kept
        await kept.clients.aclose()
        return
    import trio

    async with trio.open_nursery() as nursery:
        kept = Shelf(nursery)
        yield kept
        await kept.clients.aclose()


async def test_one_is_made_for_a_key_and_found_again():
    async with shelf() as kept:
        assert kept.find("a") is kept.find("a") is not kept.find("b")
        assert kept.made == ["a", "b"]
        assert len(kept.clients) == len(list(kept.clients)) == 2


async def test_the_one_that_nobody_asked_for_longest_makes_room():
    async with shelf() as kept:
        await kept.use("a", "b", "c")
        oldest = kept.find("b")
        kept.find("c"), kept.find("a"), kept.find("d")
        assert len(kept.clients) == MOST
        assert is_closed(oldest) and oldest not in list(kept.clients)
        assert kept.clients.leaving and kept.closed == ""
        await kept.clients.close_leaving()
        assert not kept.clients.leaving and kept.closed == "b"
        # Asked for again it is another, for which the next makes room.
        assert kept.find("b") is not oldest
        await kept.clients.close_leaving()
        assert kept.closed == "bc"


async def test_whoever_is_cancelled_while_it_closes_others_leaves_them_to_the_next():
    async with shelf() as kept:
        await kept.use("a", "b", "c")
        leaving = [kept.find(key) for key in "abc"]
        kept.find("d"), kept.find("e")

        async def never():
            await anyio.sleep_forever()

        leaving[0].aclose, closes = never, leaving[0].aclose
        with anyio.move_on_after(1.0):
            await kept.clients.close_leaving()
        assert kept.clients.leaving and kept.closed == ""
        leaving[0].aclose = closes
        await kept.clients.close_leaving()
        assert not kept.clients.leaving and kept.closed == "ab"


async def test_one_with_calls_under_way_makes_no_room():
    async with shelf() as kept, anyio.create_task_group() as group:
        await kept.begin(group, "a")
        await kept.use("b", "c")
        assert kept.find("d") is not None
        await kept.clients.close_leaving()
        assert kept.closed == "b"
        await kept.begin(group, "c")
        await kept.begin(group, "d")
        assert kept.find("e") is None, "all are in use"
        assert kept.made == ["a", "b", "c", "d"] and not kept.clients.leaving
        kept.release("c")
        await settle()
        assert kept.find("e") is not None
        await kept.clients.close_leaving()
        assert kept.closed == "bc"
        kept.release("a"), kept.release("d")


async def test_one_that_is_held_makes_no_room():
    async with shelf() as kept:
        await kept.use("a", "b", "c")
        with kept.clients.hold("a"):
            kept.find("d")
            await kept.clients.close_leaving()
            assert kept.closed == "b"
        kept.find("e"), kept.find("f")
        await kept.clients.close_leaving()
        assert kept.closed == "abc"


async def test_a_key_without_a_client_is_remembered_and_takes_a_place():
    async with shelf() as kept:
        asked = []
        for _ in range(2):
            assert kept.clients.find("none", asked.append) is None
        assert asked == ["none"]
        assert len(kept.clients) == 1 and list(kept.clients) == []
        kept.find("a"), kept.find("b"), kept.find("c")
        assert len(kept.clients) == MOST and not kept.clients.leaving
        assert kept.clients.find("none", asked.append) is None
        assert asked == ["none", "none"]


async def test_one_that_cannot_be_made_is_not_kept_and_costs_nobody_a_place():
    def fail(key):
        raise ValueError(key)

    async with shelf() as kept:
        with pytest.raises(ValueError, match="a"):
            kept.clients.find("a", fail)
        assert len(kept.clients) == 0
        assert kept.find("a") is not None
        await kept.use("b", "c")
        with pytest.raises(ValueError, match="d"):
            kept.clients.find("d", fail)
        assert len(kept.clients) == MOST and not kept.clients.leaving


async def test_in_the_end_all_are_closed_and_stay_known():
    async with shelf() as kept:
        await kept.use("a", "b", "c", "d")
        assert kept.clients.leaving
        last = kept.find("d")
        await kept.clients.aclose()
        assert kept.closed == "abcd" and not kept.clients.leaving
        assert kept.find("d") is last
        with pytest.raises(ClientClosed):
            await last.complete("too late")


async def test_the_end_ends_calls():
    async with shelf() as kept:
        with pytest.RaisesGroup(ClientClosed):
            async with anyio.create_task_group() as group:
                await kept.begin(group, "a")
                await kept.clients.aclose()
        assert kept.closed == "a"


async def test_one_that_leaves_may_be_closed_beside_the_caller(library):
    async with shelf() as kept:
        await kept.use("a", "b", "c")
        kept.find("d")
        kept.clients.close_leaving_soon()
        if library == "asyncio":
            assert not kept.clients.leaving or kept.closed == ""
            await settle()
            assert kept.closed == "a"
        else:
            assert kept.clients.leaving, "its owner awaits close_leaving"
        kept.find("e")
        kept.clients.close_leaving_soon()
        await kept.clients.aclose()
        assert kept.closed == "abc", "what is being closed is waited for"


def test_without_an_event_loop_one_leaves_and_is_closed_in_the_next():
    kept = Shelf()
    for key in "abcd":
        kept.find(key)
    kept.clients.close_leaving_soon()
    assert kept.clients.leaving
    run(kept.clients.aclose)
    assert not kept.clients.leaving and all(is_closed(client) for client in kept.clients)


def test_calls_in_an_event_loop_that_has_gone_hold_no_place():
    kept = Shelf()
    loop = VirtualLoop()
    # asyncio complains of tasks that are destroyed pending, which is not what this is about.
    loop.set_exception_handler(lambda loop, context: None)

    async def leave_calls():
        tasks = [asyncio.ensure_future(kept.find(key).complete(key)) for key in "abc"]
        for key in "abc":
            await kept.servers[key].arrived(1)
        return tasks

    tasks = loop.run_until_complete(leave_calls())  # noqa: F841 - somebody holds them
    assert kept.find("d") is None
    loop.close()
    assert all(client.statistics().in_flight for client in kept.clients)
    assert kept.find("d") is not None
    run(kept.clients.aclose)


def test_it_keeps_nobody_alive_that_made_its_clients():
    kept = Shelf()
    kept.find("a")
    clients, owner = kept.clients, weakref.ref(kept)
    del kept
    gc.collect()
    assert owner() is None
    assert len(clients) == 1
