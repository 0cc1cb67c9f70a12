"""LiteLLM over BatchTransport.

python examples/integrations/litellm_calls.py [BASE_URL MODEL]
"""

import asyncio

import httpx
import litellm
from _server import server

from batchclient.integrations.httpx import BatchTransport


async def main(base_url: str, model: str) -> None:
    transport = BatchTransport(preset="throughput")
    async with httpx.AsyncClient(transport=transport, timeout=600) as http:
        litellm.aclient_session = http  # before the first call: LiteLLM keeps the clients it has made
        answers = await asyncio.gather(
            *[
                litellm.acompletion(
                    model=f"openai/{model}",
                    messages=[{"role": "user", "content": f"Question {i}?"}],
                    max_tokens=8,
                    api_base=base_url,
                    api_key="none",
                )
                for i in range(200)
            ]
        )
        tokens = sum(answer.usage.total_tokens for answer in answers)
        print(f"{len(answers)} answers in {transport.clients[0].statistics().batches} requests, {tokens} tokens")


if __name__ == "__main__":
    with server() as (base_url, model):
        asyncio.run(main(base_url, model))
