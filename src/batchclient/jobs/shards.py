"""Which rows of a file are read: a shard of it, a sample of it.

Rules:
- The shards of a file are disjoint, and together they are the whole file.
- JSONL and text in a file are cut into ranges of bytes, at line ends: a worker reads its own range.
- CSV, gzip and streams are cut by a hash of the row's number: each worker reads everything and
  parses its share. In CSV a byte tells not whether it stands within quotes. Counting the quotes
  before it would tell only where each quote is in its place; elsewhere rows would be lost.
- A row is in a sample if the sha256 of its bytes is low enough. So a sample of 1 % is part of the
  sample of 10 %, in every run, and equal rows are in it together or not at all.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from fractions import Fraction
from typing import BinaryIO

from batchclient._client.parts import Shard, shard_from
from batchclient.errors import ConfigError
from batchclient.jobs.rows import Keep

__all__ = ["Shard", "make_keep", "range_of", "sample_from", "shard_from"]

_CHUNK_BYTES = 64 * 1024
_KEYS = 1 << 64
_GOLDEN = 0x9E3779B97F4A7C15
"""2 to the 64th, divided by the golden ratio (Knuth, The Art of Computer Programming, 6.4)."""


def sample_from(text: str) -> Fraction:
    """Read a share such as ``1%``.

    Raises:
        ConfigError: the text is no share above 0 % and up to 100 %.
    """
    found = re.fullmatch(r"(\d{1,3}(?:\.\d{1,12})?) ?%", text, re.ASCII)
    share = Fraction(found[1]) / 100 if found is not None else Fraction(0)
    if not 0 < share <= 1:
        raise ConfigError(f"sample: a share above 0% and up to 100%, such as 1%, not {text!r:.40}", field="sample")
    return share


def make_keep(shard: Shard | None, sample: Fraction | None) -> Keep | None:
    """Return whether a row is wanted, by its number and its bytes; ``None``: every row is.

    Args:
        shard: the part, where a hash of the row's number decides.
        sample: the share of the rows.
    """
    keeps: list[Callable[[int, bytes], bool]] = []
    if shard is not None:
        part, parts = shard
        keeps.append(lambda number, _: ((number * _GOLDEN >> 32) & 0xFFFFFFFF) % parts == part)
    if sample is not None:
        bound = int(sample * _KEYS)
        keeps.append(lambda _, row: int.from_bytes(hashlib.sha256(row).digest()[:8], "big") < bound)
    if len(keeps) == 2:
        in_shard, in_sample = keeps
        return lambda number, row: in_shard(number, row) and in_sample(number, row)
    return keeps[0] if keeps else None


def range_of(file: BinaryIO, size: int, shard: Shard) -> tuple[int, int]:
    """Return the part of a file whose lines begin in the part's share of the bytes: start and end.

    Args:
        file: open; it is read elsewhere afterwards.
        size: of the file.
        shard: the part.
    """
    part, parts = shard
    return _line_from(file, size, size * part // parts), _line_from(file, size, size * (part + 1) // parts)


def _line_from(file: BinaryIO, size: int, offset: int) -> int:
    """Return where the first line begins that does not begin before an offset."""
    if offset <= 0:
        return 0
    at = offset - 1
    file.seek(at)
    while at < size and (chunk := file.read(_CHUNK_BYTES)):
        place = chunk.find(b"\n")
        if place >= 0:
            return min(at + place + 1, size)
        at += len(chunk)
    return size
