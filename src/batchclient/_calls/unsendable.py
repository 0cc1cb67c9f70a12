"""Where in a value JSON fails, and why: looked for once writing the value has failed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchclient._calls.tables import missing

__all__ = ["lone_surrogate", "unsendable"]

_DEEPEST = 100
_LONGEST_SHOWN = 40


def lone_surrogate(text: str) -> str | None:
    """Say at which character a text has a lone surrogate; ``None``: nowhere."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"holds a lone surrogate at character {error.start}, which no UTF-8 can carry"
    return None


def unsendable(value: Any, path: str, depth: int = 0) -> str | None:
    """Say where the first part of a value is that cannot be sent, and why; ``None``: there is none.

    The sentence shows names of fields and types, and no values.
    """
    if depth > _DEEPEST:
        return f"{path:.200}… is nested too deeply, or within itself"
    if isinstance(value, str):
        why = lone_surrogate(value)
        return f"{path} {why}" if why else None
    if isinstance(value, dict) or (depth == 1 and isinstance(value, Mapping)):
        return _in_mapping(value, path, depth)
    if isinstance(value, (list, tuple)) or depth == 0:
        found = (unsendable(each, f"{path}[{place}]", depth + 1) for place, each in enumerate(value))
        return next(filter(None, found), None)
    if value is None or isinstance(value, int):
        return None
    called = missing(value)
    if called is not None:
        return f"{path} is {called}"
    if isinstance(value, float):
        return f"{path} is infinite" if value in (float("inf"), float("-inf")) else None
    return f"{path} is a {type(value).__name__}, which JSON has no form for"


def _in_mapping(value: Mapping[Any, Any], path: str, depth: int) -> str | None:
    for name, each in value.items():
        if not isinstance(name, str):
            if name is None or isinstance(name, (int, float)):
                continue
            return f"{path} has a name that is a {type(name).__name__}"
        why = lone_surrogate(name)
        if why:
            return f"{path} has a name that {why}"
        found = unsendable(each, f"{path}.{name:.{_LONGEST_SHOWN}}", depth + 1)
        if found:
            return found
    return None
