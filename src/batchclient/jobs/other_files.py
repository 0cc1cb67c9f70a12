"""Files that are not read here: a command to copy from the complaint makes JSONL of them.

Rules:
- A file is known by its ending, by its first bytes, or by a name given as its form.
- A command needs Python and the program to unpack or to fetch the file. A needed package is named.
- A command is named only where the endings tell enough: ``.json.bz2`` is unpacked and read as JSON,
  ``.tar.gz`` is not.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from pathlib import Path

__all__ = [
    "OTHER_FORMATS",
    "advice_for",
    "advice_for_array",
    "advice_for_content",
    "advice_for_format",
    "advice_for_openai_batch",
    "advice_for_separator",
    "advice_for_url",
    "begins_array",
    "is_openai_batch",
]

_UNPACKED_BY = {".bz2": "bzip2 -dc", ".xz": "xz -dc", ".zst": "zstd -dc"}
_STDIN = 'open(0, encoding="utf-8-sig", newline="")'
_CSV = f"import csv, json; [print(json.dumps(row)) for row in csv.DictReader({_STDIN}%s)]"
_READ_BY = {
    ".tsv": _CSV % r', delimiter="\t"',
    ".json": f"import json; [print(json.dumps(row)) for row in json.load({_STDIN})]",
}
_TO_ROWS = "[print(json.dumps(row, default=str)) for batch in %s for row in batch.to_pylist()]"
_PARQUET = f"import json, sys, pyarrow.parquet as p; {_TO_ROWS % 'p.ParquetFile(sys.argv[1]).iter_batches()'}"
_BATCHES = "((b.get_batch(i) for i in range(b.num_record_batches)) if g else b)"
_ARROW = (
    "import json, sys, pyarrow as p, pyarrow.ipc; f = p.memory_map(sys.argv[1]); "
    'g = f.read(6) == b"ARROW1"; f.seek(0); b = p.ipc.open_file(f) if g else p.ipc.open_stream(f); '
    f"{_TO_ROWS % _BATCHES}"
)
"""A file and a stream of Arrow; the former begins with ``ARROW1``."""
_OPENAI_BATCH = (
    'import json; [print(json.dumps({"id": row["custom_id"], **row["body"]})) '
    'for row in map(json.loads, open(0, encoding="utf-8-sig"))]'
)
_NAMES = {".tsv": "TSV", ".json": "JSON"}
_COLUMNAR = {
    ".parquet": ("Parquet", _PARQUET),
    ".arrow": ("Arrow", _ARROW),
    ".feather": ("Arrow", _ARROW),
    ".ipc": ("Arrow", _ARROW),
}
OTHER_FORMATS = {"parquet": ".parquet", "arrow": ".arrow", "openai-batch": "", "json": ".json", "tsv": ".tsv"}
"""Forms that are not read, with an ending that such a file has."""
_MAGIC = {
    b"PAR1": ".parquet",
    b"ARROW1": ".arrow",
    b"BZh": ".bz2",
    b"\xfd7zXZ\0": ".xz",
    b"\x28\xb5\x2f\xfd": ".zst",
    b"PK\x03\x04": ".zip",
}
"""The ending that goes with a file's first bytes."""
_URL = re.compile(r"[a-z][a-z0-9+.-]+://", re.IGNORECASE)
_FETCHED_BY = {
    "s3": "aws s3 cp {} -",
    "gs": "gcloud storage cat {}",
    "http": "curl -fsSL {}",
    "https": "curl -fsSL {}",
    "hf": "",
    "abfs": "",
    "abfss": "",
    "az": "",
}
"""Commands that write an object to stdout, by scheme. Without one, fsspec's packages do."""
_FSSPEC = (
    "python3 -c 'import fsspec, shutil, sys; shutil.copyfileobj(fsspec.open(sys.argv[1]).open(), sys.stdout.buffer)' {}"
)


def begins_array(line: bytes) -> bool:
    """Whether a first line begins a JSON array of objects, as hardly any line of text does."""
    start = b"".join(line.split(maxsplit=2)[:2])
    return start == b"[" or start.startswith(b"[{")


def is_openai_batch(row: Mapping[str, object]) -> bool:
    """Whether a row is a request of an OpenAI batch file."""
    return "custom_id" in row and isinstance(row.get("body"), dict)


def _by(program: str, name: str) -> str:
    """Return the command in which a program of Python reads a file; stdin has no name to show."""
    if name in ("stdin", "-"):
        return f"python3 -c '{program}' < FILE"
    if name.lower().endswith(".gz"):
        return f"gzip -dc {shlex.quote(name)} | python3 -c '{program}'"
    return f"python3 -c '{program}' < {shlex.quote(name)}"


def advice_for_array(name: str) -> str:
    """Return how a JSON array gets in, for a file named as JSONL and for stdin."""
    command = _by(_READ_BY[".json"], name)
    return f"it is a JSON array, and rows are lines; make JSONL of it: {command} | batchclient map - …"


def advice_for_openai_batch(name: str) -> str:
    """Return how an OpenAI batch file of chats gets in."""
    command = _by(_OPENAI_BATCH, name)
    template = "batchclient map - --call chat --prompt '{messages}' …"
    return f"it is an OpenAI batch file; make JSONL of it: {command} | {template}"


def advice_for_separator(name: str, separator: str) -> str:
    """Return how a table with another separator than the comma gets in."""
    program = _CSV % f', delimiter="{separator}"'.replace("\t", r"\t")
    return f"make JSONL of it: {_by(program, name)} | batchclient map - …"


def advice_for_url(source: str) -> str | None:
    """Return how an object of a store or of the web gets in; ``None`` for a path."""
    if _URL.match(source) is None:
        return None
    scheme = source.partition(":")[0].lower()
    if scheme not in _FETCHED_BY:
        return None
    command = (_FETCHED_BY[scheme] or _FSSPEC).format(shlex.quote(source))
    return f"object stores and URLs are not read; fetch it: {command} | batchclient map - --format jsonl …"


def advice_for_content(name: str, start: bytes) -> str | None:
    """Return how a file gets in whose first bytes tell its kind; ``None`` where they do not."""
    ending = next((ending for magic, ending in _MAGIC.items() if start.startswith(magic)), None)
    if ending is None:
        return None
    if ending == ".zip":
        return "it is a zip archive (or a spreadsheet); unpack it, or save it as CSV"
    path = "FILE" if name == "stdin" else name
    if ending in _COLUMNAR:
        return _columnar(ending, path)
    return f"it is packed; unpack it: {_UNPACKED_BY[ending]} {shlex.quote(path)} | batchclient map - …"


def advice_for_format(text: str, path: str) -> str | None:
    """Return how a file of a form that is not read gets in; ``None`` for an unknown form."""
    ending = OTHER_FORMATS.get(text)
    if ending is None:
        return None
    if not ending:
        return advice_for_openai_batch(path)
    return advice_for(f"FILE{ending}", {}, shown="FILE" if path == "-" else path)


def _columnar(ending: str, path: str) -> str:
    kind, program = _COLUMNAR[ending]
    return (
        f"it is {kind}; make JSONL of it (pip install pyarrow): "
        f"python3 -c '{program}' {shlex.quote(path)} | batchclient map - …"
    )


def advice_for(path: str, formats: Mapping[str, str], *, shown: str | None = None) -> str | None:
    """Return how a file gets into ``batchclient map``; ``None`` where its endings do not tell.

    Args:
        path: of the file.
        formats: the formats of ``map`` itself, by ending.
        shown: the path to show, if another one.
    """
    *_, inner, ending = ["", "", *(suffix.lower() for suffix in Path(path).suffixes)]
    name = shlex.quote(shown or path)
    if ending in _COLUMNAR:
        return _columnar(ending, shown or path)
    if ending in _READ_BY:
        hint = "; or, if each of its lines is an object, give --format jsonl" if ending == ".json" else ""
        command = f"python3 -c '{_READ_BY[ending]}' < {name}"
        return f"it is {_NAMES[ending]}; make JSONL of it: {command} | batchclient map - …{hint}"
    unpack_by = {**_UNPACKED_BY, ".gz": "gzip -dc"}
    if ending not in unpack_by:
        return None
    unpack = f"{unpack_by[ending]} {name}"
    if inner in _READ_BY:
        command = f"{unpack} | python3 -c '{_READ_BY[inner]}'"
        return f"it is packed {_NAMES[inner]}; make JSONL of it: {command} | batchclient map - …"
    if inner in formats and ending in _UNPACKED_BY:
        return f"it is packed; unpack it: {unpack} | batchclient map - --format {formats[inner]} …"
    return None
