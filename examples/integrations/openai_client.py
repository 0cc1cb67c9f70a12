"""openai's own client over BatchTransport.

python examples/integrations/openai_client.py [BASE_URL MODEL]

Nothing changes but the HTTP client. Calls made at the same time share requests; streams go past.
"""

import asyncio

import httpx2
from _server import server
from openai import AsyncOpenAI

from batchclient.integrations.httpx2 import BatchTransport


async def main(base_url: str, model: str) -> None:
    transport = BatchTransport(preset="throughput")
    async with httpx2.AsyncClient(transport=transport, timeout=600) as http:
        client = AsyncOpenAI(base_url=base_url, api_key="none", http_client=http)
        answers = await asyncio.gather(
            *[client.completions.create(model=model, prompt=f"Question {i}:", max_tokens=8) for i in range(300)]
        )
        print(f"{len(answers)} answers in {transport.clients[0].statistics().batches} requests")
        async for _ in await client.completions.create(model=model, prompt="Once", max_tokens=8, stream=True):
            pass  # each piece as it comes
        print(f"{transport.passed_on} streamed")


if __name__ == "__main__":
    with server() as (base_url, model):
        asyncio.run(main(base_url, model))
