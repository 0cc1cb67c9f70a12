"""Fields as a line of JSON.

Rules:
- Values of tables are written as texts: times as ISO 8601, decimals with all their digits, bytes as
  base64; a length of time as its seconds.
- The line is JSON by the standard: no NaN, no infinity. Where a server sends one, such as a logprob
  of ``-Infinity``, the line has ``null``.
"""

from __future__ import annotations

import json
import math
from typing import Any

from batchclient._calls.tables import plain

__all__ = ["encode"]


def _written(value: Any) -> Any:
    """Return what JSON has for a value, or Python's words for it: no field of a row is lost."""
    try:
        return plain(value)
    except TypeError:
        return str(value)


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=_written).encode
_encode_ascii = json.JSONEncoder(ensure_ascii=True, allow_nan=False, default=_written).encode


def encode(fields: dict[str, Any]) -> bytes:
    """Write fields as JSON, without a line end."""
    try:
        return _encode(fields).encode()
    except UnicodeEncodeError:
        # A lone surrogate in a field outside the prompt: escaped, the field leaves as it came.
        return _encode_ascii(fields).encode()
    except ValueError:
        return _encode_ascii(_without_infinities(fields)).encode()


def _without_infinities(value: Any) -> Any:
    """Return a value of JSON with ``None`` for each number that JSON cannot write."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _without_infinities(each) for name, each in value.items()}
    return [_without_infinities(each) for each in value] if isinstance(value, (list, tuple)) else value
