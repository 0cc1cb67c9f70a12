"""The answers of a map as columns, for the frame whose rows were its documents.

Rules:
- The names are those of ``as_dict()``. ``usage`` is a column for the prompt's tokens and one for
  the answer's; ``probabilities`` by label are a column each.
- A cell is a text, a number, or a list of numbers. Anything else, such as a chat's ``message``, is
  JSON as a text, as in a table that ``batchclient map`` writes.
- The columns of a call are there whatever has become of its rows.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from batchclient._calls.labels import field_of
from batchclient._maps.fields import encode
from batchclient.dialects._labels import LABELS, OTHER, PROBABILITIES
from batchclient.errors import ConfigError
from batchclient.types import Embedding

__all__ = ["columns_for"]

_OF_TEXTS = ("completion", "finish_reason", "health", "prompt_tokens", "completion_tokens")
_OF_CALLS: Mapping[str, Sequence[str]] = {
    "embed": ("embedding", "prompt_tokens"),
    "classify": ("label", "probabilities", "prompt_tokens"),
}


def columns_for(docs: Any, call: str, params: Mapping[str, Any]) -> Callable[[Sequence[Any], str], dict[str, Any]]:
    """Return what makes columns of a map's answers and errors.

    Args:
        docs: the documents, which may be a frame.
        call: of a document that names no other.
        params: of the call; with ``labels`` there is a column ``label``, and with ``probabilities``
            one for each label and what is none.
    """
    names: Any = ()
    if hasattr(type(docs), "__arrow_c_stream__"):
        # What pyarrow calls columns are the values. A column by itself has no names.
        names = getattr(docs, "column_names", None) or getattr(docs, "columns", ())
    # Where polars takes a column, a list is one value, for all rows.
    is_of_polars = type(docs).__module__.partition(".")[0] == "polars"
    labels = field_of(params, LABELS)
    of_labels = [] if labels is None else ["label"]
    if labels is not None and field_of(params, PROBABILITIES):
        of_labels += [f"probability_{label}" for label in (*labels, OTHER)]
    always = (*_OF_CALLS.get(call, _OF_TEXTS), *of_labels, "error")
    return partial(_columns_of, always, frozenset(names), sys.modules["polars"].Series if is_of_polars else None)


def _columns_of(
    always: Sequence[str],
    names: Collection[Any],
    make: Callable[[str, list[Any]], Any] | None,
    results: Sequence[Any],
    prefix: str,
) -> dict[str, Any]:
    """Return the columns.

    Args:
        always: names of columns that there are, whatever has become of the rows.
        names: of the frame's own columns.
        make: makes a column of a name and its values; ``None``: a list is one.
        results: an answer or an error for each row.
        prefix: before each name.

    Raises:
        ConfigError: the frame has a column of such a name.
    """
    columns: dict[str, list[Any]] = {}
    for name in always:
        columns[name] = [None] * len(results)
    for place, result in enumerate(results):
        for name, value in _cells_of(result).items():
            columns.setdefault(name, [None] * len(results))[place] = value
    columns["error"] = columns.pop("error")  # the last
    taken = next((name for name in columns if prefix + name in names), None)
    if taken is not None:
        way = f"give another prefix, such as columns(prefix={f'answer_{prefix}'!r})"
        raise ConfigError(f"the frame has a column {prefix + taken!r} of its own; {way}", field="prefix")
    return {prefix + name: each if make is None else make(prefix + name, each) for name, each in columns.items()}


def _cells_of(result: Any) -> dict[str, Any]:
    if isinstance(result, Exception):
        health = getattr(result, "health", None)
        cells: dict[str, Any] = {} if health is None else {"health": health}
        return cells | {"error": f"{type(result).__name__}: {result}".removesuffix(": ")}
    cells = {}
    told = result.as_dict(raw=True) if isinstance(result, Embedding) else result.as_dict()
    for name, value in told.items():
        if name == "usage":
            cells |= {each: tokens for each, tokens in (value or {}).items() if type(tokens) is int}
        elif name == "probabilities" and isinstance(value, Mapping):
            cells |= {f"probability_{label}": probability for label, probability in value.items()}
        elif hasattr(value, "tolist"):
            cells[name] = value.tolist()
        else:
            cells[name] = value if _is_plain(value) else encode(value).decode()
    return cells


def _is_plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(isinstance(each, (int, float)) for each in value)
    return value is None or isinstance(value, (str, int, float))
