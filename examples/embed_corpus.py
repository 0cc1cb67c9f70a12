"""A corpus in, vectors out, and the documents nearest to a question.

python examples/embed_corpus.py [BASE_URL MODEL]
"""

import asyncio

from _server import server

from batchclient import BatchClient, Embedding

THINGS = ("a copper kettle", "a reading lamp", "an oak chair", "a standing desk", "a wool blanket")
TROUBLES = ("leaks at the spout", "flickers at night", "wobbles on its legs", "smells of glue", "arrived scratched")
CORPUS = [f"ticket {number}: {THINGS[number % 5]} that {TROUBLES[number // 5 % 5]}" for number in range(1000)]


def nearness(one: Embedding, other: Embedding) -> float:
    # numpy.asarray(one.vector) takes the numbers without a copy, should they be many.
    return sum(a * b for a, b in zip(one.vector, other.vector, strict=True))


async def main(base_url: str, model: str) -> None:
    async with BatchClient(base_url, model=model, preset="throughput") as client:
        vectors = await client.batch_map(CORPUS, "{}", call="embed")
        requests = client.statistics().batches
        question = await client.embed("the reading lamp flickers")
        nearest = sorted(range(len(CORPUS)), key=lambda place: nearness(vectors[place], question), reverse=True)
        # A second look at the best, by a model that reads both texts, where the server has one.
        ranked = await client.rerank("the reading lamp flickers", [CORPUS[place] for place in nearest[:20]], top_n=3)

    print(f"{len(vectors)} vectors of {len(question.vector)} numbers in {requests} requests")
    for document in ranked:
        print(f"{document.score:.2f} {document.document}")


if __name__ == "__main__":
    with server() as (base_url, model):
        asyncio.run(main(base_url, model))
