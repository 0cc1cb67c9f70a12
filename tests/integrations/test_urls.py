"""Rows on S3, by s3fs, from moto's server: a file, a folder, a pattern, shards of Parquet; and what is not there.

The command of the page about rows runs, too. Last, a file of a web server.
"""

import functools
import http.server
import json
import re
import shlex
import threading
from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet
from tests import command_line

from batchclient import ConfigError
from batchclient.jobs import read_rows

fsspec = pytest.importorskip("fsspec")
pytest.importorskip("s3fs")
moto_server = pytest.importorskip("moto.server")
PAGE = Path(__file__).parents[2] / "docs/reference/rows.md"


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


def test_rows_on_s3_go_in(bucket, counted, tmp_path, monkeypatch):
    for name, numbers in {"a": (0, 1), "b": (2, 3)}.items():
        bucket.pipe(
            f"bucket/in/{name}.jsonl", "".join(json.dumps({"k": n, "text": "a"}) + "\n" for n in numbers).encode()
        )
    with bucket.open("bucket/t.parquet", "wb") as file:
        parquet.write_table(pyarrow.table({"n": range(100)}), file, row_group_size=10)
    for url in ("s3://bucket/in", "s3://bucket/in/*.jsonl"):
        assert [(row.where, row["k"]) for row in read_rows(url)] == [
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
    # The page's own command.
    [command] = re.findall(r"^batchclient (map .*s3://.*)", PAGE.read_text(), re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BATCHCLIENT_BASE_URL", counted.base_url)
    done = command_line.run(*shlex.split(command))
    assert done.exit_code == 0, done.output
    assert [json.loads(line)["k"] for line in Path("out.jsonl").read_text().splitlines()] == [0, 1, 2, 3]


def test_a_page_goes_in(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"k": 1}\n{"k": 2}\n')
    parquet.write_table(pyarrow.table({"k": [3, 4]}), tmp_path / "t.parquet")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        pages = [f"http://127.0.0.1:{server.server_port}/{name}" for name in ("a.jsonl?key=x", "t.parquet")]
        assert [row["k"] for page in pages for row in read_rows(page)] == [1, 2, 3, 4]
        server.shutdown()
