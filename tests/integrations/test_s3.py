"""Rows on S3, by s3fs, from moto's server: a file, a folder, a pattern, shards of Parquet; and what is not there."""

import json

import pyarrow
import pytest
from pyarrow import parquet

from batchclient import ConfigError
from batchclient.jobs import read_rows

fsspec = pytest.importorskip("fsspec")
pytest.importorskip("s3fs")
moto_server = pytest.importorskip("moto.server")


@pytest.fixture
def bucket(monkeypatch):
    server = moto_server.ThreadedMotoServer(ip_address="127.0.0.1", port=0)
    server.start()
    _, port = server.get_host_and_port()
    for name, value in {
        "ENDPOINT_URL_S3": f"http://127.0.0.1:{port}",
        "ACCESS_KEY_ID": "k",
        "SECRET_ACCESS_KEY": "s",
    }.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    s3 = fsspec.filesystem("s3", skip_instance_cache=True)
    s3.mkdir("bucket")
    yield s3
    server.stop()


def test_rows_on_s3_go_in(bucket):
    for name, numbers in {"a": (0, 1), "b": (2, 3)}.items():
        bucket.pipe(f"bucket/in/{name}.jsonl", "".join(json.dumps({"n": n}) + "\n" for n in numbers).encode())
    with bucket.open("bucket/t.parquet", "wb") as file:
        parquet.write_table(pyarrow.table({"n": range(100)}), file, row_group_size=10)
    for url in ("s3://bucket/in", "s3://bucket/in/*.jsonl"):
        assert [(row.where, row["n"]) for row in read_rows(url)] == [
            ("a.jsonl line 1", 0),
            ("a.jsonl line 2", 1),
            ("b.jsonl line 1", 2),
            ("b.jsonl line 2", 3),
        ]
    assert [row["n"] for row in read_rows("s3://bucket/t.parquet", shard="3/4")] == list(range(75, 100))
    with pytest.raises(FileNotFoundError):
        read_rows("s3://bucket/none.jsonl")
    with pytest.raises(ConfigError, match=r"s3://bucket/none\*: no file has such a name"):
        read_rows("s3://bucket/none*")
