"""Questions beside the calls, when something goes wrong around them: a close, a cancellation by others, pages that do not end."""

import asyncio

import anyio
import pytest
from tests.seams import connected
from tests.shell.scripted import MetricsPage, Pages, Reply, ScriptedTransport, make_client, under_way
from tests.shell.test_detection import VLLM, models
from tests.shell.test_feedback import make

from batchclient import Queue, BatchClientError, Batching, ResponseTooLarge


class SlowToCancel(ScriptedTransport):
    """A cancelled request takes a while to close its connection."""

    async def send(self, request, timeouts):
        try:
            return await super().send(request, timeouts)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await anyio.sleep(4.0)
            raise


async def ignoring(call):
    with pytest.raises(BatchClientError):
        await call


async def closed_while_calls_are_under_way(client, server, after_s):
    """Close the client; return when that began and how long it took."""
    async with anyio.create_task_group() as group:
        for number in range(4):
            group.start_soon(ignoring, client.complete(f"p{number}"))
        await server.arrived(1)
        await anyio.sleep(after_s)
        began = anyio.current_time()
        await client.aclose()
        return began, anyio.current_time() - began


async def test_a_client_that_closes_asks_nothing_more():
    server, page = SlowToCancel(held=True), MetricsPage()
    async with make(server, page) as client:
        began, _ = await closed_while_calls_are_under_way(client, server, 1.2)
    assert page.asked_at
    assert all(at <= began for at in page.asked_at)


async def test_closing_waits_for_no_question():
    server, pages = SlowToCancel(held=True), Pages({"/models": "hangs"})
    async with connected(
        calls=lambda url: server, detection=lambda url: pages, model="m", limit=64, probe=True
    ) as client:
        _, took_s = await closed_while_calls_are_under_way(client, server, 0.2)
    assert pages.asked == [], "its time comes while the client closes"
    assert took_s == pytest.approx(4.0)


async def test_a_question_that_others_have_cancelled_is_asked_again():
    """A program's own clean-up cancels every task that it finds."""
    if not hasattr(anyio.get_current_task(), "coro") or asyncio._get_running_loop() is None:
        pytest.skip("asyncio's own tasks")
    server, pages = ScriptedTransport(held=True), Pages({**VLLM, "/models": "hangs"})
    async with connected(
        calls=lambda url: server, detection=lambda url: pages, model="m", limit=64, probe=True
    ) as client:
        call = asyncio.create_task(client.complete("p"))
        await server.arrived(1)
        before = asyncio.all_tasks()
        await anyio.sleep(0.5)
        assert pages.asked == ["/models"]
        for task in asyncio.all_tasks() - before:
            task.cancel()
        await anyio.sleep(0.1)
        pages.pages = VLLM
        server.release()
        await call
        server.held = True
        await anyio.sleep(100.0)
        await under_way(client, server, 1.0)
    assert len(pages.asked) > 1


async def test_the_body_of_a_404_is_not_waited_for():
    server, page = ScriptedTransport(held=True), MetricsPage(reply=Reply(404, chunks=[b"x", 1000.0]))
    async with make(server, page) as client:
        await under_way(client, server, 50.0)
    assert len(page.asked_at) == 1


async def test_a_page_that_reading_empties_is_left_to_others():
    server, page, known = (
        ScriptedTransport(held=True),
        MetricsPage(),
        Pages({"/models": models("m", owned_by="tensorrt_llm")}),
    )
    async with connected(
        calls=lambda url: server, metrics=lambda url: page, detection=lambda url: known, model="m", limit=64
    ) as client:
        await under_way(client, server, 100.0)
    assert known.asked and page.asked_at == []


async def test_a_500_of_any_length_may_pass():
    server, page = ScriptedTransport(held=True), MetricsPage(Reply(500, chunks=[b"x", ResponseTooLarge("big")]))
    async with make(server, page) as client:
        await under_way(client, server, 10.0)
    assert len(page.asked_at) > 1


class FailsToClose(MetricsPage):
    async def aclose(self):
        await super().aclose()
        raise RuntimeError("it does not close")


async def test_one_page_that_fails_to_close_leaves_no_other_open():
    server, made = ScriptedTransport(), []

    def detection(url):
        made.append(Pages(VLLM))
        return made[-1]

    client = connected(
        calls=lambda url: server, metrics=lambda url: FailsToClose(), detection=detection, model="m", limit=64
    )
    with pytest.raises(RuntimeError, match="does not close"):
        async with client:
            await client.complete("p")
            client.add_endpoint("http://other/v1")
            with pytest.raises(RuntimeError, match="does not close"):
                await client.remove_endpoint("http://other/v1")
            assert [each.closed for each in made] == [0, 1]
    assert [each.closed for each in made] == [1, 1]


def test_callers_tidy_up_when_a_program_ends_though_calls_come_in_from_outside_the_queue():
    """A second ``SystemExit`` would break into the tidying."""
    tidied = []

    def ends(depth):
        raise SystemExit(3)

    async def caller(client, number):
        try:
            await client.complete(f"p{number}", max_tokens=1)
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
            tidied.append(number)

    async def main():
        client = make_client(
            ScriptedTransport(held=True),
            limit=1,
            queue=Queue(max_calls=2, when_full="wait"),
            batching=Batching(max_size=ends),
        )
        await asyncio.gather(*[caller(client, number) for number in range(9)])

    with pytest.raises(SystemExit):
        asyncio.run(main())
    assert len(tidied) == 9
