"""instructor over BatchTransport.

python examples/integrations/instructor_extraction.py [BASE_URL MODEL]
"""

import asyncio

import httpx2
import instructor
from _server import server
from openai import AsyncOpenAI
from pydantic import BaseModel

from batchclient import Batching
from batchclient.integrations.httpx2 import BatchTransport


class Person(BaseModel):
    name: str
    age: int


async def main(base_url: str, model: str) -> None:
    # Chats share up to an eighth of this many expected tokens.
    transport = BatchTransport(preset="throughput", batching=Batching(alone_above_tokens=512))
    async with httpx2.AsyncClient(transport=transport, timeout=600) as http:
        openai = AsyncOpenAI(base_url=base_url, api_key="none", http_client=http)
        client = instructor.from_openai(openai, mode=instructor.Mode.JSON_SCHEMA)

        async def extract(text: str) -> Person:
            messages = [{"role": "user", "content": f"Who is this about? {text}"}]
            person: Person = await client.chat.completions.create(
                model=model, messages=messages, response_model=Person, max_tokens=60
            )
            return person

        people = await asyncio.gather(*[extract(f"report {i}") for i in range(100)])
        print(f"{len(people)} people in {transport.clients[0].statistics().batches} requests: {people[0]!r}")


if __name__ == "__main__":
    with server() as (base_url, model):
        asyncio.run(main(base_url, model))
