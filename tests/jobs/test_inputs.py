"""Several files as one input, and files at URLs."""

import errno
import glob
import gzip
import json
import os
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from batchclient import ConfigError
from batchclient.jobs import read_rows
from batchclient.jobs.inputs import shown
from batchclient.jobs.source import Source


def lines(*numbers):
    return "".join(json.dumps({"n": number}) + "\n" for number in numbers).encode()


@pytest.fixture
def folder(tmp_path):
    """Three files of rows in a folder and one below it, beside what is left out."""
    (tmp_path / "in" / "sub").mkdir(parents=True)
    contents = {"b.jsonl": lines(3, 4) + b"{\n", "a.jsonl": lines(0, 1, 2), "sub/c.jsonl.gz": gzip.compress(lines(5))}
    contents |= {"d.ndjson": b"", "_SUCCESS": b"", ".hidden.jsonl": b"x", "_log.jsonl": b"x", "README.md": b"x"}
    for name, content in contents.items():
        (tmp_path / "in" / name).write_bytes(content)
    return tmp_path / "in"


def test_a_folder_is_its_files_in_the_order_of_their_names(folder):
    rows = list(read_rows(folder))
    assert [(row.file, row.line, row.get("n")) for row in rows] == [
        ("a.jsonl", 1, 0),
        ("a.jsonl", 2, 1),
        ("a.jsonl", 3, 2),
        ("b.jsonl", 1, 3),
        ("b.jsonl", 2, 4),
        ("b.jsonl", 3, None),
        ("sub/c.jsonl.gz", 1, 5),
    ]
    assert rows[5].fault.startswith("b.jsonl line 3 is not JSON: ")
    assert rows[5].with_fault("is odd").fault == "b.jsonl line 3 is odd"
    for pattern, numbers in [("[!_]*.jsonl", [0, 1, 2, 3, 4, None]), ("**/*.gz", [5]), ("[a]*", [0, 1, 2])]:
        assert [row.get("n") for row in read_rows(folder / pattern)] == numbers
    # A file whose name is a pattern is that file.
    (folder / "[a].jsonl").write_bytes(lines(9))
    assert list(read_rows(folder / "[a].jsonl")) == [{"n": 9}]


def test_what_a_folder_or_a_pattern_has_and_nobody_can_read_is_named(folder, monkeypatch):
    os.mkfifo(folder / "sub" / "p.jsonl")
    for source in (folder, folder / "**" / "*.jsonl"):
        with pytest.raises(OSError, match=r"sub/p.jsonl: it is no regular file"):
            Source(source)
    (folder / "sub" / "p.jsonl").unlink()
    (folder / "sub" / "p.jsonl").symlink_to("nowhere")
    for source in (folder, folder / "sub" / "p*"):
        with pytest.raises(OSError, match=r"p.jsonl: No such file or directory"):
            read_rows(source)
    scandir = os.scandir

    def closed(path):
        if os.fspath(path).endswith("sub"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", closed)
    with pytest.raises(OSError, match=r"sub: Permission denied"):
        read_rows(folder)


def test_tables_without_a_row_tell_the_columns(tmp_path):
    for name in "ab":
        parquet.write_table(pa.table({"n": pa.array([], pa.int8())}), tmp_path / f"{name}.parquet")
    for form in (None, "parquet"):
        with Source(tmp_path, form) as source:
            assert (source.first(), source.form, source.schema.names, source.names) == (None, "parquet", ["n"], ["n"])


def test_shards_of_several_files_are_disjoint_and_even(tmp_path):
    for number in range(12):
        (tmp_path / f"{number:02}.jsonl").write_bytes(lines(number))
    (tmp_path / "99.jsonl").write_bytes(lines(*range(100, 400)))
    whole = [row["n"] for row in read_rows(tmp_path)]
    for parts in (1, 3, 20):
        shards = [[row["n"] for row in read_rows(tmp_path, shard=(part, parts))] for part in range(parts)]
        assert Counter(n for shard in shards for n in shard) == Counter(whole)
        assert max(map(len, shards)) <= len(whole) / parts + 3
        sizes = []
        for part in range(parts):
            with Source(tmp_path, shard=(part, parts)) as source:
                source.first()
                sizes.append(source.expected())
        assert sizes == [len(shard) for shard in shards]


def test_several_files_have_one_form(folder):
    (folder / "t.csv").write_text("n\n7\n")
    with pytest.raises(ConfigError, match="have several forms") as refused:
        read_rows(folder)
    assert str(refused.value).endswith(": t.csv is csv, a.jsonl is jsonl")
    assert list(read_rows(folder, format="csv")) == [{"n": "7"}]
    # A later file that is not what its ending says ends the reading, by name.
    parquet.write_table(pa.table({"n": [1]}), folder / "z.jsonl")
    with pytest.raises(OSError, match=r"z\.jsonl: it is parquet, and the files before are jsonl"):
        list(read_rows(folder / "*.jsonl"))
    (folder / "u.csv").write_text("m\n7\n")
    with pytest.raises(OSError, match=r"u\.csv: columns: .* has no 'n'; it has m"):
        list(read_rows(folder / "*.csv", columns=["n"]))


def test_an_input_knows_which_new_files_would_be_a_part_of_it(folder):
    for pattern in ("**/*.jsonl", "**/sub/*", "s*/*.gz", "**/[a-z]*.??onl", "*/../a*", "[!.]*", "**"):
        with Source(folder / pattern, "jsonl") as opened:
            found = {os.path.realpath(each) for each in glob.glob(str(folder / pattern), recursive=True)}
            for path in filter(Path.is_file, folder.rglob("*")):
                assert opened.reads(str(path)) == (str(path) in found), (pattern, path)
            assert not opened.reads(str(folder / ".x" / "new.jsonl"))
    for source in (folder, folder / "*.jsonl", folder / "[a-z]*"):
        with Source(source) as opened:
            names = ("a.jsonl", "sub/../new.jsonl", "new.jsonl.part", "../new.jsonl", "sub/new.jsonl")
            assert [opened.reads(str(folder / name)) for name in names] == [
                True,
                True,
                source.name == "[a-z]*",
                False,
                source == folder,
            ]


def test_urls_are_read_by_fsspec(folder):
    fsspec = pytest.importorskip("fsspec")
    parquet.write_table(pa.table({"n": range(100)}), folder / "t.parquet", row_group_size=10)
    memory = fsspec.filesystem("memory")
    for path in folder.rglob("*.*"):
        if path.is_file():
            memory.pipe(f"/rows/{path.relative_to(folder)}", path.read_bytes())
    for root in ("memory://rows", f"file://{folder}"):
        assert [row["n"] for row in read_rows(f"{root}/t.parquet", shard="1/4")] == list(range(25, 50))
        assert [row.where for row in read_rows(f"{root}/a.jsonl")] == ["line 1", "line 2", "line 3"]
        rows = list(read_rows(f"{root}/", format="jsonl"))
        assert [(row.where, row.get("n")) for row in rows[-2:]] == [
            ("b.jsonl line 3", None),
            ("sub/c.jsonl.gz line 1", 5),
        ]
        assert len(rows) == 7
        shards = [[row.where for row in read_rows(f"{root}/[ab].jsonl", shard=(part, 2))] for part in range(2)]
        assert sorted(sum(shards, [])) == [f"{name}.jsonl line {line}" for name in "ab" for line in (1, 2, 3)]
        with pytest.raises(FileNotFoundError):
            read_rows(f"{root}/none.jsonl")
        with pytest.raises(ConfigError, match="no file has such a name"):
            read_rows(f"{root}/none*.jsonl")
    with pytest.raises(ConfigError, match="nowhere://rows: Protocol not known: nowhere"):
        read_rows("nowhere://rows")
    for odd in (f"zip://x.jsonl::file://{folder}/README.md", "reference://x"):
        with pytest.raises(OSError, match="BadZipFile|TypeError"):
            read_rows(odd)


def test_no_message_has_the_secrets_of_a_url():
    for url, told in {
        "https://user:key@host/a/b.jsonl?X-Sig=key&c=d": "https://host/a/b.jsonl",
        "zip://in.jsonl::ftp://u:key@host/a.zip": "zip://in.jsonl::ftp://host/a.zip",
        "hf://datasets/me/it@main/a?.jsonl": "hf://datasets/me/it@main/a?.jsonl",
        "http://user:p@key@127.0.0.1:80/a.jsonl?key": "http://127.0.0.1:80/a.jsonl",
        "ftp://u:k/e:y@host/a": "ftp://host/a",
        "simplecache::https://u:k@host/a?key=::x::y": "simplecache::https://host/a",
        "https://host:80/a@b?key?k=ey&@": "https://host:80/a@b",
        "zip://a.jsonl::https://[::1]:80/a.zip?key": "zip://a.jsonl::https://[::1]:80/a.zip",
        "s3://b/part-?/day=1/*.jsonl": "s3://b/part-?/day=1/*.jsonl",
        "abfs://c/a.jsonl?sig=key": "abfs://c/a.jsonl",
    }.items():
        assert shown(url) == told
