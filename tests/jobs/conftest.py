"""What the tests of files share."""

import pytest

from batchclient.jobs import read_rows


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out.jsonl"


@pytest.fixture
def rows_of(tmp_path):
    """Write bytes into a file and read the rows: (line, fields or why not)."""

    def read(content, name="in.jsonl", **options):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return [(row.line, row.fault or dict(row)) for row in read_rows(path, **options)]

    return read


class Slow:
    """A file that gives a few bytes at a time, as a pipe does."""

    name = "slow"

    def __init__(self, data, size):
        self.data, self.size = data, size

    def read(self, size=-1):
        chunk, self.data = self.data[: self.size], self.data[self.size :]
        return chunk
