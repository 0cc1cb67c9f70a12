"""More documents than fit in memory, results as they come.

python examples/stream_results.py [BASE_URL MODEL]
"""

import asyncio
from collections.abc import Iterator

from _server import server

from batchclient import BatchClient


def documents() -> Iterator[dict[str, str]]:
    """Stands for a file or a cursor: it is read only as far ahead as needed."""
    for number in range(5000):
        yield {"id": f"doc-{number}", "text": f"text number {number}"}


async def main(base_url: str, model: str) -> None:
    done = failed = 0
    async with BatchClient(base_url, model=model, preset="throughput") as client:
        async for row in client.stream_map(documents(), "Shorten: {text}", max_tokens=2):
            done += 1
            if row.error is not None:
                failed += 1
                print(f"{row.id} failed: {row.error}")
            elif done % 1000 == 0:
                # Rows come as they end. ``row.index`` is the place in the input; ``ordered=True``
                # keeps that order.
                print(f"{done} done; just now {row.id}: {row.completion.text!r}")
    print(f"{done} results, {failed} failed")


if __name__ == "__main__":
    with server("instant") as (base_url, model):
        asyncio.run(main(base_url, model))
