"""A thousand awaits, a few dozen requests.

python examples/complete.py [BASE_URL MODEL]
"""

import asyncio

from _server import server

from batchclient import BatchClient


async def main(base_url: str, model: str) -> None:
    async with BatchClient(base_url, model=model) as client:

        async def capital(country: int) -> str:
            # Anywhere in an application; nobody here knows of the other callers.
            answer = await client.complete(f"The capital of country {country} is", max_tokens=4, temperature=0)
            return answer.text

        answers = await asyncio.gather(*(capital(number) for number in range(1000)))
        statistics = client.statistics()

    print(f"first answer: {answers[0]!r}")
    print(f"{statistics.succeeded} answers in {statistics.batches} requests")


if __name__ == "__main__":
    with server() as (base_url, model):
        asyncio.run(main(base_url, model))
