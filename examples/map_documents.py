"""A list of documents in, their answers out, in order.

python examples/map_documents.py [BASE_URL MODEL]
"""

import asyncio

from _server import server

from batchclient import BatchClient, Completion

REVIEWS = [
    {"id": "r1", "product": "kettle", "text": "Boils fast, pours badly."},
    {"id": "r2", "product": "lamp", "text": "Broke after a week."},
    {"id": "r3", "product": "chair", "text": None},  # a row that cannot be used
    {"id": "r4", "product": "desk", "text": "Exactly what I wanted."},
]


async def main(base_url: str, model: str) -> None:
    async with BatchClient(base_url, model=model, preset="throughput") as client:
        answers = await client.batch_map(
            REVIEWS,
            "Is this review of a {product} positive? {text}",
            max_tokens=8,
            temperature=0,
            return_exceptions=True,  # without it the row is refused before anything is sent
        )
    for review, answer in zip(REVIEWS, answers, strict=True):
        shown = answer.text if isinstance(answer, Completion) else f"failed: {answer}"
        print(f"{review['id']}: {shown}")


if __name__ == "__main__":
    with server() as (base_url, model):
        asyncio.run(main(base_url, model))
