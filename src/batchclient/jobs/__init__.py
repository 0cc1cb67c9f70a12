"""Files of rows: ``read_rows`` reads JSONL, text and CSV, also packed, Parquet and Arrow.

Rules:
- Nothing is read whole: memory does not grow with the file.
- An unusable row stops nothing. The row says why and in which line, once a field is asked for.
- A wrong argument and a wrong file are refused with an error that names them.
"""

from __future__ import annotations

from batchclient.jobs.readers import read_rows
from batchclient.jobs.rows import BadRow, Row

__all__ = ["BadRow", "Row", "read_rows"]
