"""Texts sorted by one token each, on a server that generates.

python examples/classify_one_token.py [BASE_URL MODEL]

The server is told which answers there are (vLLM's ``structured_outputs``), and one token is enough
to tell them apart. Such calls are the shortest of all, so sharing requests saves the most.
"""

import asyncio
from collections import Counter

from _server import server

from batchclient import BatchClient

LABELS = ("complaint", "praise", "question")
MESSAGES = [f"message {number}: the parcel came {number % 9} days late" for number in range(300)]


def label_of(text: str) -> str:
    """Return the label that an answer's first token begins.

    Servers that do not know the field may say anything.
    """
    start = text.strip()
    return next((label for label in LABELS if start and label.startswith(start)), "unclear")


async def main(base_url: str, model: str) -> None:
    async with BatchClient(base_url, model=model) as client:

        async def classify(message: str) -> str:
            answer = await client.complete(
                f"{message}\nIs this a complaint, praise, or a question? It is a",
                max_tokens=1,
                temperature=0,
                structured_outputs={"choice": list(LABELS)},
            )
            return label_of(answer.text)

        labels = await asyncio.gather(*[classify(message) for message in MESSAGES])
        statistics = client.statistics()

    print(f"{statistics.succeeded} messages in {statistics.batches} requests")
    print(dict(Counter(labels)))


if __name__ == "__main__":
    with server() as (base_url, model):
        asyncio.run(main(base_url, model))
