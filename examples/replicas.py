"""One client, several servers, not all of one sort.

python examples/replicas.py [BASE_URL MODEL]

With a BASE_URL, that server is one of them: it must know the model by the name that is given.
"""

import asyncio
import contextlib

from _server import server

from batchclient import BatchClient
from batchclient.simulator import EmbeddedServer

CALLS = 600


async def main(base_urls: list[str], model: str) -> None:
    # The client finds out which server is behind a URL, and speaks to each in its own language.
    # Each has a limit of its own.
    async with BatchClient(base_urls, model=model, preset="throughput") as client:
        prompts = (f"Summarise document {number}: …" for number in range(CALLS))
        answers = await asyncio.gather(
            *(client.complete(prompt, max_tokens=16, temperature=0, timeout_s=60) for prompt in prompts)
        )
        statistics = client.statistics()

    for endpoint in statistics.endpoints:
        print(f"{endpoint.server or endpoint.base_url}: {endpoint.state}, limit {endpoint.limit}")
    print(f"{len({answer.text for answer in answers})} different answers in {statistics.batches} requests")


if __name__ == "__main__":
    with contextlib.ExitStack() as stack:
        base_url, model = stack.enter_context(server())
        others = [EmbeddedServer("gpu", model=model, guise=guise) for guise in ("sglang", "llamacpp")]
        asyncio.run(main([base_url, *(stack.enter_context(other).base_url for other in others)], model))
