"""``read_rows``: forms, encodings, gzip, pipes, files that are refused, and what a map makes of an unusable row."""

import asyncio
import bz2
import fcntl
import gzip
import io
import json
import lzma
import os
import termios
import threading
import tracemalloc

import pyarrow
import pytest

from batchclient import BatchClient, ConfigError, MissingField
from batchclient.jobs import BadRow, Row, read_rows
from batchclient.jobs.source import Source
from batchclient.simulator import EmbeddedServer

from .conftest import Slow

TABLE = "id,text\n1,a\n2,b\n"
JSONL = '{"id": "1", "text": "a"}\n{"id": "2", "text": "b"}\n'
ROWS = [{"id": "1", "text": "a"}, {"id": "2", "text": "b"}]
TEXT = [{"text": line} for line in JSONL.splitlines()]


@pytest.mark.parametrize(
    ("name", "content", "rows"),
    [
        ("in.jsonl", JSONL, ROWS),
        ("in.csv", TABLE, ROWS),
        ("in.txt", JSONL, TEXT),
        ("in", JSONL, ROWS),
        ("in.json", JSONL, ROWS),
        ("in.log", "\ufeff\n" + JSONL, ROWS),
        ("in", f"# {JSONL}", [{"text": f"# {TEXT[0]['text']}"}, TEXT[1]]),
        ("in", "\n \n" * 200_000 + JSONL, ROWS),
        ("in", "", []),
    ],
)
def test_the_ending_decides_else_the_first_line(rows_of, name, content, rows):
    data = content.encode()
    for one, bytes_of in [(name, data), (name, gzip.compress(data)), (f"{name}.gz", gzip.compress(data))]:
        assert [fields for _, fields in rows_of(bytes_of, one)] == rows


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_a_mark_at_the_start_tells_the_encoding(rows_of, encoding):
    for name, text in [("in.jsonl", '{"text": "ä𝄞"}\n\n{"text": "b"}'), ("in.csv", "text\nä𝄞\nb\n"), ("in", "ä𝄞\nb")]:
        for data in (text.encode(encoding), gzip.compress(text.encode(encoding))):
            assert [fields for _, fields in rows_of(data, name)] == [{"text": "ä𝄞"}, {"text": "b"}]


def test_an_encoding_may_be_said_and_must_be_where_bytes_are_no_utf8(rows_of):
    for encoding in ["utf-16-le", "utf-16-be", "utf-32-le", "latin-1", "cp1252", "utf_16", "shift-jis"]:
        text = "text\nb\nc\n" if encoding == "shift-jis" else "text\nä\nc\n"
        assert rows_of(text.encode(encoding), "in.csv", encoding=encoding)[1] == (3, {"text": "c"})
    for encoding in ["utf-16-le", "utf-16-be", "utf-32-be"]:
        with pytest.raises(ConfigError, match="it may be utf-16-le") as refused:
            rows_of('{"text": "a"}'.encode(encoding))
        assert refused.value.field == "encoding"
    assert rows_of(b"text\n\x81\nb\n", "in.csv", encoding="cp1252")[0][1].startswith(
        "line 2 is not UTF-8, or not in the given encoding"
    )
    assert rows_of("a\n".encode("utf-16-le") + b"\x00\xd8b\0\n\0", "in", encoding="utf-16-le")[0] == (1, {"text": "a"})
    with pytest.raises(OSError, match="the bytes are no utf-16: .*BOM"):
        rows_of("a\n".encode("utf-16-le"), "in.txt", encoding="utf-16")


def test_bytes_that_are_no_text_are_the_fault_of_their_row_in_each_encoding(rows_of):
    odd = {"utf-16": b"\0", "utf-32": b"\xff" * 4, "utf-16-le": b"\0\xd8", "shift-jis": b"\x81"}
    for encoding, bytes_of in odd.items():
        given = None if encoding in ("utf-16", "utf-32") else encoding
        for text in ("a\nb\n", "a\nb"):
            rows = rows_of(text.encode(encoding) + bytes_of, "in.txt", encoding=given)
            assert rows[0] == (1, {"text": "a"}), encoding
            assert rows[-1][1].startswith(f"line {len(rows)} is not UTF-8, or not in the given encoding"), encoding
    assert rows_of("a\n".encode("utf-32") + b"\xff" * 4 + "\nb".encode("utf-32-le"), "in")[2] == (3, {"text": "b"})


def test_gzip_is_known_by_its_bytes_and_may_have_several_members(rows_of):
    assert [fields for _, fields in rows_of(JSONL, "in.jsonl.gz")] == ROWS
    packed = gzip.compress(JSONL[:30].encode()) + gzip.compress(JSONL[30:].encode())
    assert [fields for _, fields in rows_of(packed, "in.jsonl")] == ROWS


def test_damaged_gzip_ends_the_reading_with_its_reason(tmp_path):
    path = tmp_path / "in.jsonl.gz"
    packed = gzip.compress(b'{"text": "%b"}\n' % os.urandom(500_000).hex().encode() + JSONL.encode() * 9)
    for damaged, named in ((packed[:-9], "early"), (packed[:-8] + b"x" * 8, "damaged")):
        path.write_bytes(damaged)
        with pytest.raises(OSError, match=f"the gzip data .* ?{named}"):
            list(read_rows(path))


PACKERS = {
    "gz": gzip.compress,
    "bz2": bz2.compress,
    "xz": lzma.compress,
    "zst": lambda data: pyarrow.Codec("zstd").compress(data, asbytes=True),
}


@pytest.mark.parametrize("ending", PACKERS)
def test_what_is_packed_is_known_by_its_bytes_and_its_end_is_looked_for(tmp_path, ending):
    for name, content in (("in.csv", TABLE), ("in.jsonl", JSONL)):
        packed = PACKERS[ending](content.encode())
        for path in (tmp_path / f"{name}.{ending}", tmp_path / name):
            path.write_bytes(packed)
            assert list(read_rows(path)) == ROWS
        assert list(read_rows(Slow(packed, 1), format=name[3:])) == ROWS
    (tmp_path / "cut").write_bytes(packed[:-6])
    with pytest.raises(OSError, match="(early|damaged)"):
        list(read_rows(tmp_path / "cut", format="jsonl"))
    (tmp_path / "in.txt").write_text("BZh is no bzip2\n")
    assert list(read_rows(tmp_path / "in.txt")) == [{"text": "BZh is no bzip2"}]


@pytest.mark.parametrize("name", ["in.csv", "in.csv.gz", "in.jsonl.xz", "folder"])
def test_the_number_of_rows_is_estimated_by_the_bytes(tmp_path, name):
    rows = [{"id": str(number), "text": os.urandom(20 + number % 9).hex()} for number in range(40_000)]
    if name == "folder":
        (tmp_path / name).mkdir()
    for number in range(4 if name == "folder" else 1):
        path = tmp_path / (f"folder/{number}.csv.gz" if name == "folder" else name)
        part = rows[number * 10_000 :][:10_000] if name == "folder" else rows
        lines = ["id,text\n", *(f"{row['id']},{row['text']}\n" for row in part)]
        if "jsonl" in name:
            lines = [json.dumps(row) + "\n" for row in part]
        pack = PACKERS.get(path.suffix[1:], bytes)
        path.write_bytes(pack("".join(lines).encode()))
    with Source(tmp_path / name) as source:
        source.first()
        assert source.expected() is None
        estimates = [source.estimated() for number, _ in enumerate(source.read(), 1) if number % 4000 == 0]
    assert all(36_000 < each < 46_000 for each in estimates)
    assert estimates[-1] == 40_000


def test_what_follows_gzip_is_refused_behind_the_rows_but_for_zeros(tmp_path):
    (tmp_path / "in.jsonl").write_bytes(gzip.compress(JSONL.encode()) + b"\0" * 100)
    assert list(read_rows(tmp_path / "in.jsonl")) == ROWS
    (tmp_path / "in.jsonl").write_bytes(gzip.compress(JSONL.encode()) + b"more")
    rows = iter(read_rows(tmp_path / "in.jsonl"))
    assert [next(rows), next(rows)] == ROWS
    with pytest.raises(OSError, match="the gzip data is damaged"):
        next(rows)


def test_the_first_bytes_tell_where_a_pipe_gives_one_at_a_time(tmp_path):
    for data in (gzip.compress(JSONL.encode()), JSONL.encode("utf-16"), JSONL.encode("utf-32"), JSONL.encode()):
        assert list(read_rows(Slow(data, 1), format="jsonl")) == ROWS
        os.mkfifo(tmp_path / "pipe")

        def write(data=data):
            with (tmp_path / "pipe").open("wb", buffering=0) as pipe:
                for part in (data[:1], data[1:3], data[3:]):
                    pipe.write(part)
                    while any(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4))):
                        pass  # it is still to be read

        # It is opened when rows are asked for.
        rows = read_rows(tmp_path / "pipe", format="jsonl")
        writer = threading.Thread(target=write)
        writer.start()
        assert list(rows) == ROWS
        writer.join()
        (tmp_path / "pipe").unlink()


@pytest.mark.parametrize(
    ("name", "content", "options", "field", "named"),
    [
        ("in.log", "x", {}, "format", "the ending '.log' tells no form; one of jsonl, text, csv, parquet"),
        ("in", '[{"a": 1}]', {}, None, "it is a JSON array, and rows are lines: jq -c '.[]' makes JSONL of it"),
        ("in.jsonl", '[\n{"a": 1}]', {"shard": "1/2"}, None, "it is a JSON array"),
        ("in.json", '{\n "a": 1\n}', {}, None, "its JSON goes over several lines: jq -c . makes JSONL of it"),
        ("in", "PK\x03\x04", {}, None, "it is a zip archive or a spreadsheet: unpack it, or save it as CSV"),
        ("in.jsonl", "", {"format": "xml"}, "format", "format: one of jsonl, text, csv, parquet, arrow, not 'xml'"),
        ("in.jsonl", "", {"columns": "a"}, "columns", "columns: a list of names, not 'a'"),
        ("in.jsonl", "", {"columns": ["a", "a"]}, "columns", "columns: 'a' comes twice"),
        ("in.txt", "x", {"columns": ["a"]}, "columns", "columns: a line of text has the field 'text' alone, not 'a'"),
        ("in.csv", "a\n1\n", {"delimiter": "ab"}, "delimiter", r"delimiter: one character, such as ; or \t, not 'ab'"),
        ("in.csv", "a\n1\n", {"escape": '"'}, "escape", "escape: one character"),
        ("in.csv", "a\n1\n", {"encoding": "rot13"}, "encoding", "encoding: 'rot13' is no encoding of texts"),
    ],
)
def test_what_is_not_read_is_refused_at_once_in_a_sentence(tmp_path, name, content, options, field, named):
    (tmp_path / name).write_text(content)
    with pytest.raises(ConfigError) as refused:
        read_rows(str(tmp_path / name), **options)
    assert named in str(refused.value)
    assert refused.value.field == field
    assert len(str(refused.value)) < 150 + len(str(tmp_path))


def test_what_is_not_there_is_the_systems_error(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_rows(tmp_path / "none.jsonl")
    with pytest.raises(ConfigError, match=r"the folder has no file of rows by its ending"):
        read_rows(tmp_path)
    with pytest.raises(ConfigError, match="no file has such a name"):
        read_rows(tmp_path / "*.jsonl")
    with pytest.raises(ConfigError, match=r"s3://bucket/in\.jsonl"):
        read_rows("s3://bucket/in.jsonl")
    with pytest.raises(ConfigError, match="mode 'rb'"):
        list(read_rows(io.StringIO(JSONL)))
    for source in [3, None, ""]:
        with pytest.raises(ConfigError, match="source is"):
            read_rows(source)


def test_a_path_is_read_anew_each_time_and_a_file_once(tmp_path):
    path = tmp_path / "in.jsonl"
    path.write_text(JSONL)
    rows = read_rows(path)
    assert list(rows) == list(rows) == ROWS
    with path.open("rb") as file:
        assert list(read_rows(file)) == ROWS
        assert not file.closed
    row = next(iter(rows))
    assert isinstance(row, (dict, Row))
    assert (row.line, row.fault, row["text"]) == (1, None, "a")


@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_rows_of_a_pipe_come_as_they_are_written_and_its_error_after_them(tmp_path, pack):
    os.mkfifo(tmp_path / "pipe")

    async def main():
        loop = asyncio.get_running_loop()
        # For reading, too: it waits for no reader.
        pipe = os.open(tmp_path / "pipe", os.O_RDWR)
        with os.fdopen(pipe, "wb", buffering=0) as writer, Source(tmp_path / "pipe") as source:
            rows = aiter(source.rows())
            for name in "ab":
                writer.write(pack(b'{"text": "%b"}\n' % name.encode()))
                assert (await asyncio.wait_for(anext(rows), 5))["text"] == name
            end = pack(b'{"text": "c"}\n' * 2000)[:-1]
            writing = loop.run_in_executor(None, lambda: (writer.write(end), writer.close()))
            left = []
            try:
                async for row in rows:
                    left.append(row["text"])
            finally:
                await writing
                assert (set(left), len(left)) == ({"c"}, 2000)

    if pack is bytes:
        asyncio.run(main())
    else:
        with pytest.raises(OSError, match="ends early"):
            asyncio.run(main())


async def test_a_map_yields_an_unusable_row_with_its_reason(tmp_path):
    path = tmp_path / "in.csv"
    path.write_text("id,a text\n1,a\n2\n3,\n4,d\n")
    with EmbeddedServer("instant") as server:
        async with BatchClient(server.base_url, model=server.model) as client:
            by_template = client.stream_map(read_rows(path), "Say {a text}", ordered=True, max_tokens=1)
            rows = [row async for row in by_template]
            by_function = client.stream_map(
                read_rows(path), lambda row: row["a text"] or "-", ordered=True, max_tokens=1
            )
            by_template = rows
            by_function = [row async for row in by_function]
    assert [type(row.error) for row in by_template] == [type(None), BadRow, MissingField, type(None)]
    assert str(by_template[1].error) == "line 3 has 1 field, and the header has 2"
    assert "'a text' is empty" in str(by_template[2].error)
    assert [row.id for row in by_template if row.answer] == ["1", "4"]
    assert [type(row.error) for row in by_function] == [type(None), BadRow, type(None), type(None)]


@pytest.mark.parametrize("form", ["jsonl", "csv", "text"])
def test_memory_does_not_grow_with_the_file(tmp_path, form):
    line = {"jsonl": '{"text": "%0200d"}\n', "csv": '1,"a\n%0190d"\n', "text": "%0200d\n"}[form]
    peaks = []
    for count in (3_000, 15_000):
        path = tmp_path / f"{count}"
        path.write_text(("id,text\n" if form == "csv" else "") + "".join([line % number for number in range(count)]))
        tracemalloc.start()
        with Source(path, form) as source:
            assert sum(1 for _ in source.read()) == count
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < peaks[0] + 1_500_000


def test_a_line_without_end_that_is_packed_takes_no_more_memory_than_a_row_may(tmp_path):
    """A bomb: 128 MiB in a file of half a megabyte."""
    (tmp_path / "in.jsonl.gz").write_bytes(gzip.compress(b"x" * (128 << 20), 1))
    tracemalloc.start()
    (row,) = read_rows(tmp_path / "in.jsonl.gz", format="jsonl")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert row.fault == "line 1 is longer than 16 MiB"
    assert peak < 80 << 20
