"""One client for people who wait and work that does not.

python examples/chat_service.py [BASE_URL MODEL]

Questions are streamed to whoever asked, with a higher priority. Summaries run behind them in lists
of chats.
"""

import asyncio
import time

from _server import server

from batchclient import BatchClient

INTERACTIVE, BACKGROUND = 10, 0


async def answer(client: BatchClient, question: str) -> float:
    """Answer one question piece by piece; return how long its first piece took."""
    asked = time.perf_counter()
    first_s = 0.0
    messages = [{"role": "system", "content": "Answer briefly."}, {"role": "user", "content": question}]
    async with client.stream_chat(messages, max_tokens=40, priority=INTERACTIVE, timeout_s=30) as pieces:
        async for piece in pieces:
            if piece.text and not first_s:
                first_s = time.perf_counter() - asked
            # Here a service would send piece.text on; a caller who leaves ends the generation.
    return first_s


def summary(document: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"Summarise in five words: {document}"}]


async def main(base_url: str, model: str) -> None:
    documents = [f"document {number}" for number in range(200)]
    async with BatchClient(base_url, model=model) as client:
        background = asyncio.create_task(client.batch_map(documents, summary, max_tokens=16, priority=BACKGROUND))
        waits = await asyncio.gather(*[answer(client, f"What is {number} times two?") for number in range(20)])
        summaries = await background
        statistics = client.statistics()
    print(f"{len(waits)} questions answered, slowest first piece after {max(waits):.2f} s")
    # Each question was a request of its own.
    print(f"{len(summaries)} summaries in {statistics.batches - len(waits)} requests")


if __name__ == "__main__":
    with server() as (base_url, model):
        asyncio.run(main(base_url, model))
