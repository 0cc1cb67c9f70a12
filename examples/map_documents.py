"""A file of documents in, a file of answers out; a document that fails stops no other.

python examples/map_documents.py

`batchclient map` does the same without Python. Write Python where a step before or after is yours.
"""

import asyncio
import json
import os
import tempfile
from pathlib import Path

from batchclient import BatchClient
from batchclient.jobs import read_rows
from batchclient.simulator import EmbeddedServer

REVIEWS = """\
id,product,review
r1,kettle,"Boils fast, pours badly."
r2,lamp,Broke after a week.
r3,chair,
r4,desk,Exactly what I wanted.
"""


async def label(client: BatchClient, source: Path, target: Path) -> None:
    # Rows are read as they are needed, so a file may be larger than the memory.
    labels = client.stream_map(
        read_rows(source),
        "Is this review of a {product} positive? {review}\nOne word:",
        max_tokens=2,
        ordered=True,
        journal=target.with_suffix(".journal"),  # after a kill, answers come from here
    )
    with target.open("w", encoding="utf-8") as file:
        async for row in labels:
            answer = {"label": row.completion.text} if row.completion else {"error": str(row.error)}
            file.write(json.dumps({"id": row.id, **answer}) + "\n")


async def main(base_url: str, folder: Path) -> None:
    source, target = folder / "reviews.csv", folder / "labels.jsonl"
    source.write_text(REVIEWS, encoding="utf-8")
    async with BatchClient(base_url, preset="throughput") as client:
        await label(client, source, target)
    print(target.read_text(encoding="utf-8"), end="")


if __name__ == "__main__":
    with EmbeddedServer() as server, tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(os.environ.get("BATCHCLIENT_BASE_URL", server.base_url), Path(folder)))
