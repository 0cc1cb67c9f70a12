"""A line of a journal: JSON that ends with a checksum of all before it."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

__all__ = ["fields_in", "is_whole", "line_of", "sealed"]

_SEAL = len(b',"crc":"01234567"}\n')


def sealed(body: bytes) -> bytes:
    """Return an object's JSON as a line."""
    return b'%b,"crc":"%08x"}\n' % (body[:-1], zlib.crc32(body[:-1]))


def line_of(fields: Mapping[str, Any]) -> bytes:
    """Return fields as a line."""
    return sealed(json.dumps(fields, separators=(",", ":")).encode())


def is_whole(line: bytes) -> bool:
    """Whether a line is as it was written."""
    return line[-_SEAL:] == b',"crc":"%08x"}\n' % zlib.crc32(line[:-_SEAL])


def fields_in(line: bytes) -> dict[str, Any]:
    """Return a line's fields; none: it is torn, damaged, or no line of a journal."""
    try:
        fields = json.loads(line) if is_whole(line) else None
    except (ValueError, RecursionError):
        return {}
    return fields if isinstance(fields, dict) else {}
