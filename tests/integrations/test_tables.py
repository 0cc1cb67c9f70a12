"""Files that pandas, polars, DuckDB and pyarrow write with their defaults go in, and their tables are mapped."""

import asyncio
import datetime

import pytest

from batchclient import BatchClient, SyncBatchClient
from batchclient.jobs import read_rows
from batchclient.simulator import EmbeddedServer

duckdb = pytest.importorskip("duckdb")
pandas = pytest.importorskip("pandas")
polars = pytest.importorskip("polars")
pyarrow = pytest.importorskip("pyarrow")
from pyarrow import csv, feather, parquet

DAY = datetime.datetime(2024, 2, 29, 12, 30)
ROWS = [{"text": 'a, "b"\nc;d', "n": 1.5, "at": DAY}, {"text": "ä", "n": None, "at": DAY}]


@pytest.fixture
def path(tmp_path):
    return lambda ending: str(tmp_path / f"in.{ending}")


def texts_of(path):
    rows = list(read_rows(path))
    assert [row["n"] in (None, "") for row in rows] == [False, True]
    assert [float(row["n"]) for row in rows[:1]] == [1.5]
    assert [str(row["at"]).replace("T", " ")[:16] for row in rows] == [str(DAY)[:16]] * 2
    return [row["text"] for row in rows]


def test_what_pandas_writes_goes_in(path):
    frame = pandas.DataFrame(ROWS)
    frame.to_csv(path("csv"))
    frame.to_csv(path("tsv"), sep="\t", index=False)
    frame.to_csv(path("csv.gz"), index=False)
    frame.to_parquet(path("parquet"))
    frame.set_index("text").to_parquet(path("pq"))
    frame.to_feather(path("feather"))
    frame.to_json(path("jsonl"), orient="records", lines=True, date_format="iso")
    for ending in ("csv", "tsv", "csv.gz", "parquet", "pq", "feather", "jsonl"):
        assert texts_of(path(ending)) == [row["text"] for row in ROWS], ending


def test_what_polars_writes_goes_in(path):
    frame = polars.DataFrame(ROWS)
    frame.write_csv(path("csv"))
    frame.write_ndjson(path("ndjson"))
    frame.write_parquet(path("parquet"))
    frame.write_ipc(path("arrow"))
    frame.write_ipc_stream(path("ipc"))
    for ending in ("csv", "ndjson", "parquet", "arrow", "ipc"):
        assert texts_of(path(ending)) == [row["text"] for row in ROWS], ending


def test_what_duckdb_and_pyarrow_write_goes_in(path):
    table = pyarrow.Table.from_pylist(ROWS)
    for ending in ("csv", "parquet", "json"):
        duckdb.from_arrow(table).query("rows", f"COPY rows TO '{path(ending)}'")
        assert texts_of(path(ending)) == [row["text"] for row in ROWS], ending
    csv.write_csv(table, path("csv"))
    parquet.write_table(table, path("parquet"))
    feather.write_feather(table, path("feather"))
    for ending in ("csv", "parquet", "feather"):
        assert texts_of(path(ending)) == [row["text"] for row in ROWS], ending


def test_tables_are_mapped_by_their_rows_and_columns_by_their_values():
    table = pyarrow.Table.from_pylist(ROWS)
    frames = [table, pandas.DataFrame(ROWS), polars.DataFrame(ROWS), duckdb.from_arrow(table), table.to_reader()]
    with EmbeddedServer("instant") as server, SyncBatchClient(server.base_url, model=server.model) as client:
        # A row that is no table's says by its field n that it is a parameter.
        plain = client.batch_map(ROWS, "Say {text}", row_params="ignore", max_tokens=2, temperature=0)
        for frame in frames:
            mapped = client.batch_map(frame, "Say {text}", max_tokens=2, temperature=0)
            assert [answer.text for answer in mapped] == [answer.text for answer in plain], type(frame)
        for column in (pandas.Series(["a", "b"]), polars.Series(["a", "b"])):
            assert len(client.batch_map(column, "Say {}", max_tokens=2)) == 2


def test_a_relation_that_is_to_be_finished_by_a_time_is_counted_before_it_is_read():
    relation = duckdb.from_arrow(pyarrow.Table.from_pylist(ROWS))
    with EmbeddedServer("instant") as server, SyncBatchClient(server.base_url, model=server.model) as client:
        arguments = {"prompt": "Say {text}", "max_tokens": 2, "finish_by_s": 60.0}
        assert len(client.batch_map(relation, **arguments)) == len(ROWS)

        async def of_async_client():
            async with BatchClient(server.base_url, model=server.model) as client:
                return await client.batch_map(duckdb.from_arrow(pyarrow.Table.from_pylist(ROWS)), **arguments)

        assert len(asyncio.run(of_async_client())) == len(ROWS)
