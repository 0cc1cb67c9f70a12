"""A plain call goes from ``create`` straight to the scheduler, and costs little more than a call of ``BatchClient``."""

import asyncio
import gc

import pytest
from tests.drop_in.test_behaviour import make
from tests.fakes.raw import RawServer, hang

SUBJECTS = {
    "completions": [{"prompt": f"p{n}"} for n in range(500)],
    "chats": [{"messages": [{"role": "user", "content": f"p{n}"}]} for n in range(500)],
}


@pytest.mark.parametrize("kind", SUBJECTS)
async def test_a_call_that_waits_holds_at_most_ten_objects_for_the_garbage_collector(kind):
    """Each collection looks at all of them. A call of ``BatchClient`` holds eight."""
    async with RawServer(then=hang()) as server, make(server.url) as client:
        resource = client.completions if kind == "completions" else client.chat.completions
        gc.collect()
        gc.disable()
        try:
            before = len(gc.get_objects())
            tasks = [asyncio.create_task(resource.create(model="m", max_tokens=1, **each)) for each in SUBJECTS[kind]]
            await asyncio.sleep(0)
            held = len(gc.get_objects()) - before
        finally:
            gc.enable()
        assert client.batch_client.statistics().submitted == 500
        assert held <= 500 * 10
        await client.close()
        await asyncio.gather(*tasks, return_exceptions=True)
