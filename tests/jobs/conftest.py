"""What the tests of files share."""

import pytest

from batchclient.jobs import read_rows


@pytest.fixture
def rows_of(tmp_path):
    """Write bytes into a file and read the rows: (line, fields or why not)."""

    def read(content, name="in.jsonl", **options):
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return [(row.line, row.fault or dict(row)) for row in read_rows(path, **options)]

    return read
