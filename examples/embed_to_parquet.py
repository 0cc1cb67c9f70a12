"""A corpus in, a Parquet file of vectors out, at any size (pip install '.[server,data]').

python examples/embed_to_parquet.py
"""

import asyncio
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from batchclient import BatchClient
from batchclient.simulator import EmbeddedServer

ROWS_IN_A_GROUP = 1000


def corpus() -> Iterator[dict[str, object]]:
    for number in range(5000):
        yield {"id": number, "text": f"ticket {number}: the lamp flickers"}


async def main(base_url: str, target: Path) -> None:
    schema = pa.schema({"id": pa.int64(), "text": pa.string(), "vector": pa.list_(pa.float32())})
    async with BatchClient(base_url, preset="throughput") as client:
        with pq.ParquetWriter(target, schema) as writer:
            group, failed = [], 0
            async for row in client.stream_map(corpus(), "{text}", call="embed", ordered=True):
                if row.answer is None:
                    failed += 1
                    continue
                group.append({**row.document, "vector": row.answer.vector})
                if len(group) == ROWS_IN_A_GROUP:
                    writer.write_table(pa.Table.from_pylist(group, schema))
                    group = []
            writer.write_table(pa.Table.from_pylist(group, schema))
        requests = client.statistics().batches
    table = pq.read_table(target)
    print(f"{table.num_rows} vectors of {len(table['vector'][0])} numbers in {requests} requests, {failed} failed")


if __name__ == "__main__":
    with EmbeddedServer() as server, tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(os.environ.get("BATCHCLIENT_BASE_URL", server.base_url), Path(folder) / "vectors.parquet"))
