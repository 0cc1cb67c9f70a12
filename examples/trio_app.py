"""The same client under trio (pip install trio).

python examples/trio_app.py [BASE_URL MODEL]
"""

import trio
from _server import server

from batchclient import BatchClient


async def main(base_url: str, model: str) -> None:
    answers: dict[int, str] = {}
    # On trio the client needs ``async with``: it holds the nursery in which requests are sent.
    async with BatchClient(base_url, model=model) as client:

        async def ask(number: int) -> None:
            answers[number] = (await client.complete(f"Question {number}:", max_tokens=4)).text

        async with trio.open_nursery() as nursery:
            for number in range(100):
                nursery.start_soon(ask, number)
        print(f"{len(answers)} answers in {client.statistics().batches} requests")


if __name__ == "__main__":
    with server() as (base_url, model):
        trio.run(main, base_url, model)
