"""Tables of other libraries (pandas, polars, pyarrow, numpy): missing values, and whole tables.

Both are known by their behaviour, so that no such library is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from enum import Enum
from typing import Any

from batchclient.errors import ConfigError

__all__ = ["has_words", "kind_of", "listed", "missing", "plain", "refuse_frame"]

_BY_NAME = {"NAType": "NA", "NaTType": "NaT", "MaskedConstant": "masked"}
"""Objects of pandas and numpy. A comparison of two such objects says neither yes nor no."""


def missing(value: Any) -> str | None:
    """Return the name of a missing value (``None``, NaN, ``NaT``, ``NA``, masked); else ``None``."""
    if value is None:
        return "null"
    kind = type(value).__name__
    called = _BY_NAME.get(kind)
    if called is not None:
        return called
    try:
        # Of others' classes such an attribute may mean anything.
        if type(value).__module__.partition(".")[0] == "pyarrow" and getattr(value, "is_valid", True) is False:
            return "null"
        if value == value:  # noqa: PLR0124  # NaN is not
            return None
    except Exception:  # many values: a column, an array
        return None
    return "NaT" if kind in ("datetime64", "timedelta64") else "NaN"


def kind_of(value: object) -> str:
    """Name an unexpected value: the missing value's name, or else the class."""
    return missing(value) or f"a {type(value).__name__}"


def refuse_frame(value: object, field: str) -> None:
    """Refuse a table, whose iteration would give the columns' names.

    Raises:
        ConfigError: the argument is a table; the message says how to give the rows.
    """
    kind = type(value)
    # Looked up in the class: on a lazy table the property itself would compute something.
    columns = getattr(kind, "columns", None)
    if columns is None or callable(columns) or not (hasattr(kind, "dtypes") or hasattr(kind, "schema")):
        return
    if hasattr(kind, "iter_rows"):
        rows = f", {field}.iter_rows(named=True),"
    elif hasattr(kind, "collect"):  # polars' lazy one
        rows = f", {field}.collect(),"
    elif hasattr(kind, "to_pylist"):
        rows = f", {field}.to_pylist(),"
    elif hasattr(kind, "to_dict"):
        rows = f", {field}.to_dict('records'),"
    else:
        rows = " as mappings"
    raise ConfigError(
        f"{field} is a {kind.__name__}, which iterates over columns: give its rows{rows} or one column", field=field
    )


def listed(value: Any) -> Any:
    """Return an array, such as a column of a frame may have in each row, as a list."""
    return value.tolist() if hasattr(value, "tolist") and not isinstance(value, str) else value


def has_words(value: object) -> bool:
    """Whether a value's class says how it is written; all others have Python's own words for it."""
    return type(value).__str__ is not object.__str__


def plain(value: Any) -> Any:
    """Return what JSON has for a value: of a table (a time, a decimal, bytes), or of Python's classes.

    Raises:
        TypeError: JSON has nothing for it.
    """
    from base64 import b64encode  # seldom needed
    from datetime import timedelta

    if isinstance(value, Mapping):
        return dict(value)
    if hasattr(value, "tolist"):
        return value.tolist()
    if hasattr(type(value), "model_dump"):
        return value.model_dump(mode="json")
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, (bytes, bytearray, memoryview)):
        return b64encode(value).decode()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if hasattr(value, "isoformat"):
        return value.isoformat()
    if not has_words(value):
        raise TypeError(f"{kind_of(value)} is nothing that JSON has")
    return str(value)
