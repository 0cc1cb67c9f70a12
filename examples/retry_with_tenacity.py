"""A retry policy in tenacity's words, on a server that fails now and then.

python examples/retry_with_tenacity.py [BASE_URL MODEL]
"""

import asyncio

from _server import server
from tenacity import retry_if_exception_type, stop_after_attempt, stop_after_delay, wait_random_exponential

from batchclient import BatchClient, Batching, RateLimited, ServerFault, TenacityRetry, TransportError

# Evaluated once per failed request, not per caller; a ``Retry-After`` of the server's is honoured.
POLICY = TenacityRetry(
    stop=stop_after_attempt(8) | stop_after_delay(30),
    wait=wait_random_exponential(multiplier=0.01, max=0.2),
    retry=retry_if_exception_type((ServerFault, RateLimited, TransportError)),
)


async def main(base_url: str, model: str) -> None:
    async with BatchClient(base_url, model=model, retry=POLICY, batching=Batching(max_size=8)) as client:
        calls = [client.complete(f"Question {number}:", max_tokens=4) for number in range(200)]
        answers = await asyncio.gather(*calls)
        statistics = client.statistics()
    attempts = max(answer.attempts for answer in answers)
    print(f"{len(answers)} answers, {statistics.retries} requests sent again, at most {attempts} attempts for one call")


if __name__ == "__main__":
    with server(faults=["status=503,rate=0.3"]) as (base_url, model):
        asyncio.run(main(base_url, model))
