"""Texts in, checked objects out.

python examples/structured_output.py
"""

import asyncio
import os

from pydantic import BaseModel, Field

from batchclient import AnswerInvalid, BatchClient, Batching, Repair
from batchclient.simulator import EmbeddedServer


class Invoice(BaseModel):
    supplier: str = Field(min_length=1, max_length=40)
    cents: int = Field(ge=0)


def ask(text: str) -> list[dict[str, str]]:
    return [{"role": "system", "content": "Extract the invoice."}, {"role": "user", "content": text}]


async def main(base_url: str) -> None:
    texts = [f"Invoice {number}: Smith & Sons, {number * 7} euros." for number in range(100)]
    # Chats above 32 tokens go one by one, unless more are allowed: an invoice has up to 60.
    async with BatchClient(base_url, batching=Batching(chat_list_tokens=64)) as client:
        # The server gets the model's JSON schema, and each answer is checked against the model here.
        # An answer that does not fit is asked for once more; then the row fails.
        rows = client.stream_map(texts, ask, max_tokens=60, response_model=Invoice, repair=Repair(invalid=1))
        invoices = [row.answer.parsed async for row in rows if row.answer]
        print(f"{len(invoices)} invoices in {client.statistics().batches} requests, one of them: {invoices[0]!r}")

        try:
            await client.chat(ask(texts[0]), max_tokens=2, response_model=Invoice)
        except AnswerInvalid as error:
            print(f"cut off: {error}")  # the text itself is in error.completion


if __name__ == "__main__":
    with EmbeddedServer() as server:
        asyncio.run(main(os.environ.get("BATCHCLIENT_BASE_URL", server.base_url)))
