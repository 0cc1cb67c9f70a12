"""Files other than JSONL and text: a command to copy from the complaint makes JSONL of them.

Rules:
- A command needs Python and the program to unpack the file. A needed package is named.
- A command is named only where the endings tell enough: ``.csv.gz`` is unpacked and read as CSV,
  ``.tar.gz`` is not.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

__all__ = ["ARRAY_ADVICE", "advice_for", "begins_array"]

_UNPACKED_BY = {".gz": "gzip -dc", ".bz2": "bzip2 -dc", ".xz": "xz -dc", ".zst": "zstd -dc"}
_STDIN = 'open(0, encoding="utf-8-sig", newline="")'
_CSV = f"import csv, json; [print(json.dumps(row)) for row in csv.DictReader({_STDIN}%s)]"
_READ_BY = {
    ".csv": _CSV % "",
    ".tsv": _CSV % r', delimiter="\t"',
    ".json": f"import json; [print(json.dumps(row)) for row in json.load({_STDIN})]",
}
_PARQUET = (
    "import json, sys, pyarrow.parquet as p; [print(json.dumps(row, default=str))"
    " for batch in p.ParquetFile(sys.argv[1]).iter_batches() for row in batch.to_pylist()]"
)
ARRAY_ADVICE = (
    "it is a JSON array, and rows are lines; make JSONL of it: "
    f"python3 -c '{_READ_BY['.json']}' < FILE | batchclient map - …"
)
"""For a file named as JSONL, and for stdin."""
_NAMES = {".csv": "CSV", ".tsv": "TSV", ".json": "JSON"}


def begins_array(line: bytes) -> bool:
    """Whether a first line begins a JSON array of objects, as hardly any line of text does."""
    start = b"".join(line.split(maxsplit=2)[:2])
    return start == b"[" or start.startswith(b"[{")


def advice_for(path: str, formats: Mapping[str, str]) -> str | None:
    """Return how a file gets into ``batchclient map``; ``None`` where its endings do not tell.

    Args:
        path: of the file.
        formats: the formats of ``map`` itself, by ending.
    """
    *_, inner, ending = ["", "", *(suffix.lower() for suffix in Path(path).suffixes)]
    name = shlex.quote(path)
    if ending == ".parquet":
        command = f"python3 -c '{_PARQUET}' {name}"
        return f"it is Parquet; make JSONL of it (pip install pyarrow): {command} | batchclient map - …"
    if ending in _READ_BY:
        hint = "; or, if each of its lines is an object, give --format jsonl" if ending == ".json" else ""
        command = f"python3 -c '{_READ_BY[ending]}' < {name}"
        return f"it is {_NAMES[ending]}; make JSONL of it: {command} | batchclient map - …{hint}"
    if ending not in _UNPACKED_BY:
        return None
    unpack = f"{_UNPACKED_BY[ending]} {name}"
    if inner in _READ_BY:
        command = f"{unpack} | python3 -c '{_READ_BY[inner]}'"
        return f"it is packed {_NAMES[inner]}; make JSONL of it: {command} | batchclient map - …"
    if inner in formats:
        return f"it is packed; unpack it: {unpack} | batchclient map - --format {formats[inner]} …"
    return None
