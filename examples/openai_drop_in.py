"""A program written for openai's client, with one import changed.

python examples/openai_drop_in.py [BASE_URL MODEL]
"""

import asyncio

import openai
from _server import server
from pydantic import BaseModel

from batchclient.openai import AsyncOpenAI  # was: from openai import AsyncOpenAI


class Ticket(BaseModel):
    subject: str
    urgent: bool


async def main(base_url: str, model: str) -> None:
    async with AsyncOpenAI(base_url=base_url, api_key="none") as client:
        answers = await asyncio.gather(
            *[client.completions.create(model=model, prompt=f"Summarise ticket {n}:", max_tokens=8) for n in range(500)]
        )
        batches = client.batch_client
        assert batches is not None, "only where requests are signed one by one"
        print(
            len({each.choices[0].text for each in answers}),
            "different summaries in",
            batches.statistics().batches,
            "requests",
        )

        chat = await client.chat.completions.parse(
            model=model,
            messages=[{"role": "user", "content": "The lamp flickers at night. Make a ticket of it."}],
            response_format=Ticket,
            max_tokens=100,
        )
        print("a ticket:", type(chat.choices[0].message.parsed).__name__)

        vectors = await client.embeddings.create(model=model, input=[f"ticket {n}" for n in range(100)])
        print(len(vectors.data), "vectors,", vectors.usage.prompt_tokens, "tokens")

        try:
            await client.completions.create(model="another", prompt="p", max_tokens=1)
        except openai.NotFoundError as error:
            print("refused:", error.status_code)


if __name__ == "__main__":
    with server() as (base_url, model):
        asyncio.run(main(base_url, model))
