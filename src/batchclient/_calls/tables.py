"""Tables of other libraries (pandas, polars, pyarrow, numpy): values that stand for none, and whole tables.

Both are known by how they behave, so that none of the libraries is imported.
"""

from __future__ import annotations

from typing import Any

from batchclient.errors import ConfigError

__all__ = ["kind_of", "missing", "refuse_frame"]


_BY_NAME = {"NAType": "NA", "NaTType": "NaT", "MaskedConstant": "masked"}
"""Objects of pandas and numpy. Compared with themselves, two of them say neither yes nor no."""


def missing(value: Any) -> str | None:
    """Return the name of what stands for no value (``None``, NaN, ``NaT``, ``NA``, masked); else ``None``."""
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
    """Say what was given where something else was expected: its name if it stands for no value, else its class."""
    return missing(value) or f"a {type(value).__name__}"


def refuse_frame(value: object, field: str) -> None:
    """Refuse a table that would be read as its columns' names.

    Raises:
        ConfigError: it is one; the message says how to give its rows.
    """
    kind = type(value)
    # Looked up in the class: on a lazy table the property itself would compute something.
    columns = getattr(kind, "columns", None)
    if columns is None or callable(columns) or not (hasattr(kind, "dtypes") or hasattr(kind, "schema")):
        return
    if hasattr(kind, "iter_rows"):
        rows = f", {field}.iter_rows(named=True),"
    elif hasattr(kind, "to_pylist"):
        rows = f", {field}.to_pylist(),"
    elif hasattr(kind, "to_dict"):
        rows = f", {field}.to_dict('records'),"
    else:
        rows = " as mappings"
    raise ConfigError(
        f"{field} is a {kind.__name__}, which iterates over columns: give its rows{rows} or one column", field=field
    )
