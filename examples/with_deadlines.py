"""Callers that give up, one by one, without harm to the others.

python examples/with_deadlines.py [BASE_URL MODEL]
"""

import asyncio

from _server import server

from batchclient import BatchClient, Completion, DeadlineExceeded


async def main(base_url: str, model: str) -> None:
    async with BatchClient(base_url, model=model) as client:
        calls = [
            # A deadline covers everything: the queue, the server's work, retries.
            asyncio.create_task(client.complete("I have little time:", max_tokens=200, timeout_s=0.05)),
            # Cancelling a caller is always allowed, whatever its call is doing.
            asyncio.create_task(client.complete("Forget it:", max_tokens=200)),
            # Patient callers with the same parameters may share a request with those two.
            *(asyncio.create_task(client.complete(f"Question {n}:", max_tokens=200)) for n in range(8)),
        ]
        asyncio.get_running_loop().call_later(0.1, calls[1].cancel)
        results = await asyncio.gather(*calls, return_exceptions=True)

        # ``asyncio.timeout`` works too: it cancels.
        try:
            async with asyncio.timeout(0.05):
                await client.complete("And another thing:", max_tokens=200)
        except TimeoutError:
            print("asyncio.timeout ended a call")

    print(f"deadline passed: {isinstance(results[0], DeadlineExceeded)}")
    print(f"cancelled: {isinstance(results[1], asyncio.CancelledError)}")
    print(f"answered: {sum(isinstance(result, Completion) for result in results)}")


if __name__ == "__main__":
    with server() as (base_url, model):
        asyncio.run(main(base_url, model))
