"""Replies with halves of surrogate pairs: JSON can escape a lone half, but no file can hold it.

A server escapes UTF-16, and cuts between two tokens. Halves that came in two pieces are joined once
the pieces are. A lone half becomes U+FFFD, as on servers that decode bytes. pydantic's parser
refuses such a reply whole; ``json`` reads it.
"""

from __future__ import annotations

import json
from typing import Any

__all__ = ["ends_in_half", "mend", "read_odd"]


def read_odd(text: bytes) -> Any:
    """Parse JSON that pydantic's parser refuses: lone surrogates, a byte-order mark.

    Raises:
        ValueError: no JSON, or nested too deeply. ``json``'s own error would hold the whole text.
    """
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        pass
    raise ValueError("no JSON, or nested too deeply")


def ends_in_half(text: str) -> bool:
    """Whether the last character is the first half of one."""
    return "\ud800" <= text[-1:] <= "\udbff"


def mend(value: Any) -> Any:
    """Return a JSON value whose texts can be written; raise ``ValueError`` if nested too deeply."""
    try:
        return _mend(value)
    except RecursionError:
        raise ValueError("JSON that is nested too deeply") from None


def _mend(value: Any) -> Any:
    if isinstance(value, str):
        return value if value.isascii() else _joined(value)
    if isinstance(value, list):
        return [_mend(each) for each in value]
    if isinstance(value, dict):
        return {_mend(name): _mend(each) for name, each in value.items()}
    return value


def _joined(text: str) -> str:
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
