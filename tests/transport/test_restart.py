"""One of two servers is killed and started anew on the same port, over real sockets."""

import asyncio

from batchclient import BatchClient
from batchclient.simulator import EmbeddedServer, Profile

COSTS = Profile("t", "", step_s=0.002, max_num_seqs=64, kv_tokens=1_000_000)
CALLS = 3000


async def test_no_call_fails_when_one_of_two_servers_is_killed_and_started_anew():
    with EmbeddedServer(COSTS, model="m") as first, EmbeddedServer(COSTS, model="m") as second:
        async with BatchClient([first.base_url, second.base_url], model="m", limit=32) as client:
            work = asyncio.create_task(client.batch_map([f"text {n}" for n in range(CALLS)], "{}", max_tokens=24))

            async def until(what):
                while not what(client.statistics()) and not work.done():
                    await asyncio.sleep(0.01)

            await until(lambda now: now.succeeded > CALLS // 10)
            await asyncio.to_thread(first.stop)
            await until(lambda now: now.endpoints[0].state == "ejected")
            assert not work.done()
            await asyncio.to_thread(first.start)
            await until(lambda now: now.endpoints[0].state == "healthy")
            assert not work.done(), "it is noticed while there is work left for it"
            answers = await work
    assert len(answers) == CALLS
    assert max(answer.attempts for answer in answers) <= 4
    assert [endpoint.base_url for endpoint in client.statistics().endpoints] == [first.base_url, second.base_url]
