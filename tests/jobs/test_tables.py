"""Parquet and Arrow: values, columns, shards, faults; and tables as a map's documents."""

import asyncio
import datetime
import decimal
import gzip
import importlib.util
import io
import json
import os
import re
import subprocess
import sys

import pyarrow as pa
import pytest
from pyarrow import feather, parquet

from batchclient import BatchClient, ConfigError, SyncBatchClient
from batchclient._maps.arrow import documents_of
from batchclient._maps.fields import encode
from batchclient.jobs import read_rows
from batchclient.jobs.source import Source
from batchclient.simulator import EmbeddedServer
from batchclient.templates import make_prompt

from .conftest import Slow

TABLE = pa.table({"id": range(1000), "text": [None if n % 10 == 0 else f"t{n}" for n in range(1000)], "n": [1] * 1000})
ROWS = TABLE.to_pylist()


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tables")
    parquet.write_table(TABLE, folder / "in.parquet", row_group_size=130)
    parquet.write_table(TABLE, folder / "one.pq")
    feather.write_feather(TABLE, folder / "in.feather", chunksize=130)
    with pa.ipc.new_stream(folder / "stream.arrow", TABLE.schema) as writer:
        writer.write_table(TABLE, max_chunksize=130)
    (folder / "no-ending").write_bytes((folder / "in.parquet").read_bytes())
    return folder


NAMES = ["in.parquet", "one.pq", "in.feather", "stream.arrow", "no-ending"]


@pytest.mark.parametrize("name", NAMES)
def test_rows_shards_and_columns_of_a_table(files, name):
    rows = list(read_rows(files / name))
    assert rows == ROWS
    assert [row.line for row in rows] == list(range(1, 1001))
    for parts in (1, 3, 7, 13):
        shards = [list(read_rows(files / name, shard=(part, parts))) for part in range(parts)]
        assert sorted((row.line, row["id"]) for shard in shards for row in shard) == [(n + 1, n) for n in range(1000)]
        assert min(map(len, shards)) > 500 / parts
    assert list(next(iter(read_rows(files / name, columns=["n", "text"])))) == ["n", "text"]
    with pytest.raises(ConfigError, match="has no 'x'; it has id, text, n") as refused:
        read_rows(files / name, columns=["x"])
    assert refused.value.field == "columns"
    with (files / name).open("rb") as file:
        assert list(read_rows(file)) == ROWS
        assert not file.closed


def test_only_what_is_wanted_is_read(files):
    for wanted, first in [({"text.a", "id"}, ["id", "text"]), ({"n[0]"}, ["n"]), ({"q", "n"}, ["n"]), ({"q"}, [])]:
        for name in NAMES:
            with Source(files / name, wanted=wanted) as source:
                assert list(source.first()) == first
                assert source.names == ["id", "text", "n"]
                assert sum(1 for _ in source.read()) == 1000
    with Source(files / "in.parquet", shard=(1, 4), most=200) as source:
        assert (source.first()["id"], source.expected(), sum(1 for _ in source.read())) == (250, 200, 200)


def test_values_of_a_table_are_written_as_json(tmp_path):
    nano = 1_700_000_000_123_456_789
    table = pa.table(
        {
            "at": pa.array([nano // 1000], pa.timestamp("us", "UTC")),
            "day": [datetime.date(2024, 2, 29)],
            "ns": pa.array([nano // 1000 * 1000], pa.timestamp("ns")),
            "exact": pa.array([nano], pa.timestamp("ns")),
            "price": [decimal.Decimal("1.10")],
            "took": [datetime.timedelta(seconds=1.5)],
            "bytes": [b"\0\xff"],
            "user": [{"name": "n", "born": datetime.date(2000, 1, 1)}],
            "kind": pa.array(["a"]).dictionary_encode(),
        }
    )
    parquet.write_table(table, tmp_path / "in.parquet")
    [row] = read_rows(tmp_path / "in.parquet")
    assert row["bytes"] == b"\0\xff", "a template refuses it"
    assert json.loads(encode(dict(row))) == {
        "at": "2023-11-14T22:13:20.123456+00:00",
        "day": "2024-02-29",
        "ns": "2023-11-14T22:13:20.123456",
        "exact": "2023-11-14T22:13:20.123456789",
        "price": "1.10",
        "took": 1.5,
        "bytes": "AP8=",
        "user": {"name": "n", "born": "2000-01-01"},
        "kind": "a",
    }


def test_json_of_arrows_own_type_is_what_it_says(tmp_path):
    """As datasets writes ``tools``, and the ``tool_calls`` of messages."""
    kind = pa.json_(pa.string())
    turn = pa.struct([("role", pa.string()), ("tool_calls", kind)])
    calls = pa.array(['[{"id": "a"}]', None, "no JSON"]).cast(kind)
    turns = pa.StructArray.from_arrays([pa.array(["user", "assistant", "user"]), calls], fields=[*turn])
    table = pa.table(
        {"tools": pa.array(["[1]", None]).cast(kind), "messages": pa.ListArray.from_arrays([0, 2, 3], turns)}
    )
    parquet.write_table(table, tmp_path / "in.parquet")
    for rows in (read_rows(tmp_path / "in.parquet"), documents_of(table)):
        assert [dict(row) for row in rows] == [
            {
                "tools": [1],
                "messages": [{"role": "user", "tool_calls": [{"id": "a"}]}, {"role": "assistant", "tool_calls": None}],
            },
            {"tools": None, "messages": [{"role": "user", "tool_calls": "no JSON"}]},
        ]


def test_columns_of_one_name_have_their_places(tmp_path):
    feather.write_feather(pa.table([[1], [2], [3]], names=["a", "a", ""]), tmp_path / "in.arrow", version=2)
    parquet.write_table(pa.table([[1], [2], [3]], names=["a", "a", ""]), tmp_path / "in.parquet")
    for name in ("in.arrow", "in.parquet"):
        assert list(read_rows(tmp_path / name)) == [{"a": 1, "a_2": 2, "column_3": 3}]
        assert list(read_rows(tmp_path / name, columns=["a_2", "a"])) == [{"a_2": 2, "a": 1}]


NANO = pa.timestamp("ns")
UNREADABLE = {
    "OverflowError": [
        pa.array([0, 4_000_000], pa.int32()).view(pa.date32()),
        pa.array([0, 10**17], pa.date64()),
        pa.array([0, 10**12], pa.timestamp("s")),
        pa.array([0, 10**15], pa.duration("s")),
        pa.array([[0], [10**12]], pa.list_(pa.timestamp("s"))),
    ],
    "UnicodeDecodeError": [pa.array([b"a", b"\xff"]).view(pa.string())],
    "(ValueError|ArrowInvalid)": [
        pa.array([None, 1], pa.timestamp("us", "Mars/Olympus")),
        pa.array([[0], [1]], pa.list_(NANO)),
        pa.array([{"a": 0}, {"a": 1}], pa.struct([("a", NANO)])),
        pa.array([0, 1], NANO).dictionary_encode(),
    ],
}


@pytest.mark.parametrize("reason", UNREADABLE)
def test_a_value_that_python_cannot_hold_is_its_rows_fault(tmp_path, reason):
    if reason.startswith("(") and importlib.util.find_spec("pandas"):
        pytest.skip("pandas holds nanoseconds")
    for array in UNREADABLE[reason]:
        table = pa.table({"id": [0, 1, 2], "odd": pa.concat_arrays([array, array[:1]])})
        parquet.write_table(table, tmp_path / "in.parquet")
        with pa.ipc.new_file(tmp_path / "in.arrow", table.schema) as file:
            file.write_table(table)
        # Parquet keeps no dictionary of times.
        for name in ("in.parquet", "in.arrow")[pa.types.is_dictionary(array.type) :]:
            rows = list(read_rows(tmp_path / name))
            assert rows[0]["id"] == 0 and rows[2]["id"] == 2, array.type
            assert rows[0].fault is rows[2].fault is None
            assert re.fullmatch(rf"line 2 has a .* in column 'odd' that Python cannot hold \({reason}\)", rows[1].fault)
            assert [row["id"] for row in read_rows(tmp_path / name, columns=["id"])] == [0, 1, 2]
        documents = list(documents_of(table))
        assert [row["id"] for row in documents] == [0, 1, 2]
        with pytest.raises(ConfigError, match=rf"^the document has a .* 'odd' that .* \({reason}\)$") as caught:
            make_prompt("{odd.x}")(documents[1])
        assert caught.value.field == "odd"
        with pytest.raises(ConfigError, match="no field 'other'"):
            make_prompt("{other}")(documents[1])


def test_nanoseconds_have_one_form_whatever_stands_beside_them():
    nano, zone = 1_700_000_000_123_456_000, "Europe/Berlin"
    table = pa.table(
        {
            "at": pa.array([nano, nano + 7, -1, None], pa.timestamp("ns", zone)),
            "time": pa.array([1000, 1001, 0, None], pa.time64("ns")),
            "took": pa.array([1000, 1_500_000_001, 0, None], pa.duration("ns")),
        }
    )
    assert [json.loads(encode(row)) for row in documents_of(table)] == [
        {"at": "2023-11-14T23:13:20.123456+01:00", "time": "00:00:00.000001", "took": 1e-6},
        {"at": "2023-11-14T23:13:20.123456007+01:00", "time": "00:00:00.000001001", "took": 1.500000001},
        {"at": "1970-01-01T00:59:59.999999999+01:00", "time": "00:00:00", "took": 0.0},
        {"at": None, "time": None, "took": None},
    ]


def test_an_index_without_a_name_is_no_column(tmp_path):
    table = pa.table({"text": ["a"], "__index_level_0__": ["x"]})
    parquet.write_table(table, tmp_path / "in.parquet")
    assert list(documents_of(table)) == list(read_rows(tmp_path / "in.parquet")) == [{"text": "a"}]
    asked = read_rows(tmp_path / "in.parquet", columns=["__index_level_0__"])
    assert list(asked) == [{"__index_level_0__": "x"}]


def test_what_is_damaged_or_cannot_be_sought_says_so(files, tmp_path):
    for name in ["in.parquet", "in.feather", "stream.arrow"]:
        whole = (files / name).read_bytes()
        (tmp_path / name).write_bytes(whole[:-50])
        with pytest.raises(OSError, match="damaged, or of another form"):
            list(read_rows(tmp_path / name))
        packed = io.BytesIO(gzip.compress(whole))
        if name == "stream.arrow":
            assert list(read_rows(packed)) == list(read_rows(Slow(whole, 999))) == ROWS
            continue
        for source in (packed, Slow(whole, 999)):
            with pytest.raises(ConfigError, match="need a plain file, not packed, no pipe"):
                list(read_rows(source))


def test_a_table_that_is_cut_while_it_is_read_does_not_seem_whole(tmp_path):
    path = tmp_path / "in.parquet"
    table = pa.table({"text": [f"{n:01000}" for n in range(2000)]})
    parquet.write_table(table, path, row_group_size=500, compression="none", use_dictionary=False)
    rows = iter(read_rows(path))
    begun = [next(rows)]
    os.truncate(path, 1000)
    with pytest.raises(OSError, match=r"damaged, or of another form: it ended after \d{3} of 2,000 rows"):
        begun.extend(rows)
    assert begun == table.slice(0, len(begun)).to_pylist()


def test_memory_stays_flat_where_texts_are_long(tmp_path):
    path = tmp_path / "in.parquet"
    parquet.write_table(
        pa.table({"text": [f"{n:0100000}" for n in range(300)]}), path, compression="none", write_batch_size=10
    )
    before = pa.total_allocated_bytes()
    peak = max(pa.total_allocated_bytes() for _ in read_rows(path))
    assert peak - before < 15_000_000


def test_pyarrow_is_imported_only_where_a_table_is_read(files):
    program = """if True:
        import sys, batchclient, batchclient.jobs, batchclient.cli.app, batchclient.cli.map
        assert "pyarrow" not in sys.modules
        sys.modules["pyarrow"] = None
        for name in sys.argv[1:]:
            try:
                batchclient.jobs.read_rows(name)
            except batchclient.ConfigError as error:
                print(error)
    """
    done = subprocess.run(
        [sys.executable, "-c", program, files / "in.parquet", files / "in.feather"], capture_output=True, text=True
    )
    assert done.stdout.splitlines() == [
        "Parquet needs pyarrow, of the extra batchclient[data]",
        "Arrow needs pyarrow, of the extra batchclient[data]",
    ], done.stderr


# A map's documents ---------------------------------------------------------------------------------------------------


def test_a_table_is_mapped_row_by_row_in_order_and_lazily():
    read = []

    def batches():
        for start in range(0, 1000, 100):
            read.append(start)
            yield from TABLE.slice(start, 100).to_batches()

    async def main(server):
        async with BatchClient(server.base_url, model=server.model) as client:
            answers = await client.batch_map(TABLE.slice(1, 9), "Say {text}", max_tokens=1, temperature=0)
            stream = pa.RecordBatchReader.from_batches(TABLE.schema, batches())
            rows = client.stream_map(stream, "Say {text}", ordered=True, look_ahead=50, max_tokens=1, temperature=0)
            async with rows:
                first = [await anext(rows) for _ in range(20)]
            with pytest.raises(ConfigError, match="an iterable of documents"):
                client.stream_map(3, "Say {text}")
            column = await client.batch_map(
                TABLE["text"].slice(1, 3).to_pylist(), "Say {}", max_tokens=1, temperature=0
            )
            return answers, first, column

    with EmbeddedServer("instant") as server:
        answers, first, column = asyncio.run(main(server))
        with SyncBatchClient(server.base_url, model=server.model) as client:
            again = client.batch_map(TABLE.slice(1, 9), "Say {text}", max_tokens=1, temperature=0)
    assert [answer.text for answer in again] == [answer.text for answer in answers]
    assert [answer.text for answer in column] == [answer.text for answer in answers[:3]]
    assert [row.document for row in first] == ROWS[:20]
    assert [row.error is not None for row in first] == [n % 10 == 0 for n in range(20)]
    assert read == [0]


def test_a_table_without_pyarrow_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    client = SyncBatchClient("http://127.0.0.1:9/v1", model="m")
    with pytest.raises(ConfigError, match=r"docs is a Table, which needs pyarrow, of the extra batchclient\[data\]"):
        client.stream_map(TABLE, "Say {text}")
    client.close()
