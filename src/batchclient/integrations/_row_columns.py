"""Rows of a table as documents, and answers as columns. No table library is imported.

Rules:
- A column is turned into Python values when a row's field is first asked for, as a whole.
- Each call adds the same columns with the same types, whatever its rows have become: the files of a
  data set have one schema.
- An error is told by its class and, where the error is the library's, its message, which holds no
  prompt and no key.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from batchclient.errors import BatchClientError, ConfigError
from batchclient.types import Classification, Completion, Embedding, Usage

__all__ = ["ADDED", "Documents", "added_columns", "named"]

_GENERATED = {
    "completion": "string",
    "finish_reason": "string",
    "health": "string",
    "prompt_tokens": "int64",
    "completion_tokens": "int64",
    "error": "string",
}
ADDED: Mapping[str, Mapping[str, str]] = {
    "complete": _GENERATED,
    "chat": {**_GENERATED, "message": "string"},
    "embed": {"embedding": "list<float>", "prompt_tokens": "int64", "error": "string"},
    "classify": {
        "label": "string",
        "probabilities": "list<double>",
        "prompt_tokens": "int64",
        "error": "string",
    },
}
"""By call: the added columns, and their Arrow types."""
_PLAIN_MESSAGE = frozenset({"role", "content"})
"""A chat's message with these fields alone says no more than its text."""


class Column(Protocol):
    """A column of an Arrow table."""

    def to_pylist(self) -> list[Any]: ...


class Table(Protocol):
    """An Arrow table."""

    @property
    def column_names(self) -> list[str]: ...

    @property
    def num_rows(self) -> int: ...

    def column(self, name: str, /) -> Column: ...


class _Document(Mapping[str, Any]):
    """A row as a mapping from its columns' names to Python values."""

    __slots__ = ("_documents", "_place")

    def __init__(self, documents: Documents, place: int) -> None:
        self._documents = documents
        self._place = place

    def __getitem__(self, name: str) -> Any:
        return self._documents.values_of(name)[self._place]

    def __iter__(self) -> Iterator[str]:
        return iter(self._documents.names)

    def __len__(self) -> int:
        return len(self._documents.names)


class Documents(Sequence[Mapping[str, Any]]):
    """The rows of a table."""

    is_table = True
    """Nulls are gaps."""

    def __init__(self, table: Table) -> None:
        self._table = table
        self.names: Sequence[str] = table.column_names
        self._values: dict[str, list[Any]] = {}

    def __len__(self) -> int:
        return self._table.num_rows

    def __getitem__(self, place: Any) -> Any:
        return _Document(self, range(len(self))[place])

    def values_of(self, name: str) -> list[Any]:
        """Return a column's values.

        Raises:
            KeyError: the table has no such column.
        """
        values = self._values.get(name)
        if values is None:
            if name not in self.names:
                raise KeyError(name)
            values = self._values[name] = self._table.column(name).to_pylist()
        return values


def named(call: str, output: object) -> dict[str, str]:
    """Return the name in the data set of each added column; a column that is left out is absent.

    Args:
        call: a key of ``ADDED``.
        output: other names by column; ``None`` as a name leaves the column out.

    Raises:
        ConfigError: ``output`` is no such mapping, or two columns would have one name.
    """
    names = {name: name for name in ADDED[call]}
    if output is None:
        return names
    if not isinstance(output, Mapping):
        raise ConfigError(f"output: a mapping of added columns to names, not a {type(output).__name__}", field="output")
    for column, name in output.items():
        if column not in names:
            raise ConfigError(
                f"output: {call} adds {', '.join(ADDED[call])}; there is no {column!r:.40}", field="output"
            )
        if name is None:
            del names[column]
        elif not isinstance(name, str) or not name:
            raise ConfigError(f"output: the name of {column} is a text, or None, not {name!r:.40}", field="output")
        else:
            names[column] = name
    if len(set(names.values())) < len(names):
        raise ConfigError("output: two columns would have one name", field="output")
    return names


def added_columns(call: str, results: Sequence[Any]) -> dict[str, list[Any]]:
    """Return the added columns of rows.

    Args:
        call: a key of ``ADDED``.
        results: an answer or an exception per row.
    """
    return {name: [_VALUES[name](result) for result in results] for name in ADDED[call]}


def _of(kind: type, value: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda result: value(result) if isinstance(result, kind) else None


def _tokens(value: Callable[[Usage], int | None]) -> Callable[[Any], int | None]:
    def tokens(result: Any) -> int | None:
        usage = None if isinstance(result, Exception) else result.usage
        return None if usage is None else value(usage)

    return tokens


def _message(completion: Completion) -> str | None:
    message = completion.choices[0].message
    return None if message is None or message.keys() <= _PLAIN_MESSAGE else json.dumps(message, ensure_ascii=False)


def _described(error: Exception) -> str:
    if not isinstance(error, BatchClientError):
        return type(error).__name__
    message = error.message
    if message.startswith("document "):
        # The place within a batch says nothing to the reader of a data set.
        message = message.partition(": ")[2] or message
    return f"{type(error).__name__}: {message}"


_VALUES: Mapping[str, Callable[[Any], Any]] = {
    "completion": _of(Completion, lambda answer: answer.text),
    "finish_reason": _of(Completion, lambda answer: answer.finish_reason),
    "health": _of(Completion, lambda answer: answer.health),
    "message": _of(Completion, _message),
    "embedding": _of(Embedding, lambda answer: answer.vector),
    "label": _of(Classification, lambda answer: answer.label),
    "probabilities": _of(Classification, lambda answer: list(answer.probabilities)),
    "prompt_tokens": _tokens(lambda usage: usage.prompt_tokens),
    "completion_tokens": _tokens(lambda usage: usage.completion_tokens),
    "error": _of(Exception, _described),
}
"""The value of each added column, of an answer or an exception."""
