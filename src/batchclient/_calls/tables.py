"""Tables of other libraries (pandas, polars, pyarrow, numpy): missing values, and whole tables.

Both are known by their behaviour, so that no such library is imported.
"""

from __future__ import annotations

from typing import Any

from batchclient.errors import ConfigError

__all__ = ["kind_of", "missing", "refuse_frame"]


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
