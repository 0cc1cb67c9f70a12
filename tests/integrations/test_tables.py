"""Files that pandas, polars, DuckDB and pyarrow write with their defaults go in, and their tables are mapped."""

import asyncio
import datetime

import pytest

from batchclient import BatchClient, ConfigError, SyncBatchClient
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


WITH_GAPS = [{"text": "a", "n": 1}, {"text": None, "n": 2}, {"text": "c", "n": 3}]


@pytest.mark.parametrize("call", ["complete", "embed", "classify"])
def test_a_frame_takes_its_answers_as_columns(call):
    table, frame = pyarrow.Table.from_pylist(WITH_GAPS), pandas.DataFrame(WITH_GAPS, index=[7, 8, 9])
    of_polars, relation = polars.DataFrame(WITH_GAPS), duckdb.from_arrow(table)
    arguments = {"prompt": "{text}", "call": call, "return_exceptions": True}
    with EmbeddedServer("instant") as server, SyncBatchClient(server.base_url, model=server.model) as client:
        mapped = [client.batch_map(each, **arguments) for each in (table, frame, of_polars, relation)]
        clashing = client.batch_map(of_polars.rename({"n": "error"}), **arguments)
        nullable = client.batch_map(frame.convert_dtypes(), **arguments)
    columns = [each.columns() for each in mapped]
    names = ["text", "n", *columns[0]]
    of_pandas = frame.assign(**columns[1])
    made = [
        pyarrow.table(dict(zip(table.column_names, table.columns, strict=True)) | columns[0]).to_pylist(),
        of_pandas.to_dict("records"),
        of_polars.with_columns(**columns[2]).to_dicts(),
        [row | {name: values[place] for name, values in columns[3].items()} for place, row in enumerate(WITH_GAPS)],
    ]
    first, why = next(iter(columns[0])), "MissingField: document 1: 'text' is empty"
    assert list(of_pandas.index) == [7, 8, 9]
    for rows in made:
        assert [list(row) for row in rows] == [names] * 3
        assert [row["n"] for row in rows] == [1, 2, 3]
        assert [row["prompt_tokens"] for row in rows[::2]] == [1, 1]
        assert rows[1]["error"] == why
        assert not isinstance(rows[1][first], (str, list))
        assert [type(row[first]) in (str, list) for row in rows[::2]] == [True, True]
    assert str(nullable[1]) == why.partition(": ")[2]
    with pytest.raises(ConfigError, match="has a column 'error' of its own"):
        clashing.columns()
    assert clashing.columns("answer_")["answer_error"].to_list() == [None, why, None]


def test_a_relation_that_is_to_be_finished_by_a_time_is_counted_before_it_is_read():
    relation = duckdb.from_arrow(pyarrow.Table.from_pylist(ROWS))
    with EmbeddedServer("instant") as server, SyncBatchClient(server.base_url, model=server.model) as client:
        arguments = {"prompt": "Say {text}", "max_tokens": 2, "finish_by_s": 60.0}
        assert len(client.batch_map(relation, **arguments)) == len(ROWS)

        async def of_async_client():
            async with BatchClient(server.base_url, model=server.model) as client:
                return await client.batch_map(duckdb.from_arrow(pyarrow.Table.from_pylist(ROWS)), **arguments)

        assert len(asyncio.run(of_async_client())) == len(ROWS)
