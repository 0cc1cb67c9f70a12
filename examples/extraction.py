"""Documents in, validated objects out.

python examples/extraction.py [BASE_URL MODEL]
"""

import asyncio

from _server import server
from pydantic import BaseModel, Field

from batchclient import AnswerInvalid, BatchClient


class Invoice(BaseModel):
    supplier: str = Field(min_length=1)
    cents: int = Field(ge=0)


def messages(text: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": "Extract the invoice."}, {"role": "user", "content": text}]


async def main(base_url: str, model: str) -> None:
    texts = [f"Invoice {number}: Smith & Sons, {number * 7} euros." for number in range(12)]
    async with BatchClient(base_url, model=model) as client:
        read = await client.batch_map(texts, messages, max_tokens=60, temperature=0, response_model=Invoice)
        for number, answer in enumerate(read[:2]):
            print(f"invoice {number}: {answer.parsed.supplier}, {answer.parsed.cents}")
        print(f"{len(read)} invoices read, {sum(bool(answer.parsed.supplier) for answer in read)} with a supplier")

        try:
            await client.chat(messages(texts[0]), max_tokens=2, response_model=Invoice)
        except AnswerInvalid as error:
            # The message shows nothing of the answer; ``completion`` has it.
            print(f"cut off: {error} ({error.completion.output_tokens} tokens)")


if __name__ == "__main__":
    with server() as (base_url, model):
        asyncio.run(main(base_url, model))
