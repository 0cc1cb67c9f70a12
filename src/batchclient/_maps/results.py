"""``batch_map``'s outcome: a list of answers, or one error that holds the answers and the errors.

Rules:
- Every document read is run, whatever becomes of the others.
- If errors are raised, documents of a list that cannot fill the template, and so would fail, are
  refused before anything is sent. An empty field is no such fault: frames have empty cells, and
  each of these is its own row's failure.
- Messages name documents by their place. They show batchclient's own errors, which hold no prompt
  or key. Of other errors only the class is shown, and of a ``KeyError`` a key that may be a field's
  name.
"""

from __future__ import annotations

import re
from bisect import insort
from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import itemgetter
from typing import Any

from batchclient._calls.inputs import is_conversation
from batchclient._calls.unsendable import lone_surrogate, unsendable
from batchclient._maps.columns import columns_for
from batchclient._maps.reader import SLICE_S
from batchclient._maps.row_calls import RowCall, RowCalls, RowForm, RowParams
from batchclient._shell.clock import now
from batchclient.errors import BatchClientError, BatchMapFailed, ConfigError, MissingField, TooManyBadRows
from batchclient.health import Health
from batchclient.templates import value_of
from batchclient.types import MapResult, MapResults

__all__ = ["Results", "check_documents"]

_SHOWN = 3
"""Failures described in a message; the others are counted."""
_LONGEST_SHOWN = 200
"""Characters of each."""
_MISSING: Any = object()
"""Stands for a row that has not come."""
_FIELD = re.compile(r"[A-Za-z_][\w.-]{0,39}", re.ASCII)
"""A name without spaces: a key of a function's own table may be a document's text."""


def check_documents(
    documents: Sequence[Any],
    template: str | None,
    rows: RowForm | None = None,
    row_params: RowParams | None = None,
    call: str = "complete",
) -> Iterator[None]:
    """Check that every document fills a template, or is a request.

    It is an iterator, so that others have turns. The arguments are those of ``batch_map``.

    Raises:
        ConfigError: some do not; with the number of such documents, and the first.
    """
    read = RowCalls(rows, call=call, template=template, row_params=row_params).read
    faults = _Failures()
    turn_ends = now() + SLICE_S
    for place, document in enumerate(documents):
        if now() >= turn_ends:
            yield
            turn_ends = now() + SLICE_S
        fault = _fault(read, document)
        if fault is not None:
            faults.add(place, fault)
    if faults:
        first = faults.first[0][1]
        assert isinstance(first, ConfigError)
        message = f"{faults.of(len(documents))} cannot be used, and nothing was sent: {faults.shown()}"
        raise ConfigError(message, field=first.field)


def _fault(read: Callable[[Any], RowCall], document: Any) -> ConfigError | None:
    try:
        item = read(document).item
        if is_conversation(item) and len(item) == 1:
            item = item[0].get("content")
        if is_conversation(item):
            why = unsendable(item, "messages")
            return None if why is None else ConfigError(why, field="prompt")
        why = lone_surrogate(item) if isinstance(item, str) else None
    except ConfigError as error:
        return None if isinstance(error, MissingField) and _has(document, error.field) else error
    except Exception:  # a document's own code: if it fails again, that is its row's failure
        return None
    return None if why is None else ConfigError(f"the prompt {why}", field="prompt")


def _has(document: Any, name: str | None) -> bool:
    """Whether a document has a field, or is itself the cell of a column."""
    if isinstance(document, Mapping):
        try:
            value_of(document, str(name))
        except KeyError:
            return False
    return True


class Results:
    """Gathers the rows of a ``batch_map``, which come as they finish: a slow one holds up no other.

    Args:
        docs: the documents, which may be a frame.
        call, params: of a document that names no other.
        return_exceptions: whether failures are results like any other.
    """

    def __init__(self, docs: Any, call: str, params: Mapping[str, Any], *, return_exceptions: bool) -> None:
        self._return_exceptions = return_exceptions
        self._results: MapResults[Any] = MapResults()
        self._results._columns_of = columns_for(docs, call, params)
        self._failures = _Failures()

    def add(self, row: MapResult) -> None:
        """Take in a row, in its place."""
        if row.error is not None:
            self._failures.add(row.index, row.error)
        results = self._results
        results.extend([_MISSING] * (row.index + 1 - len(results)))
        results[row.index] = row.answer if row.error is None else row.error

    def into(self, error: TooManyBadRows, health: Mapping[Health, int]) -> TooManyBadRows:
        """Return an error that ended the map, with the results before the first row that has none."""
        self._results.health = health
        if _MISSING in self._results:
            del self._results[self._results.index(_MISSING) :]
        error.results = self._results
        return error

    def all(self, health: Mapping[Health, int], source_error: Exception | None = None) -> MapResults[Any]:
        """Return the results of all documents.

        Args:
            health: of the answers, counted.
            source_error: the error that ended the reading of documents early.

        Raises:
            BatchMapFailed: there is a ``source_error``, or an unreturned failure.
        """
        failures, count = self._failures, len(self._results)
        self._results.health = health
        if source_error is not None:
            message = f"reading the documents failed after {count:,}: {_described(source_error)}"
            if failures:
                message += f". Of these {failures.count:,} failed: {failures.shown()}"
        elif failures and not self._return_exceptions:
            message = f"{failures.of(count)} failed: {failures.shown()}"
        else:
            return self._results
        failed = BatchMapFailed(f"{message}. All answers and errors are in its results", self._results)
        failed.retryable = source_error is None and failures.retryable
        try:
            raise failed from (source_error or failures.first[0][1])
        finally:
            del failed  # the error holds this frame: a circle would wait for the garbage collector


class _Failures:
    """The number of failed documents, and the first failures.

    Attributes:
        first: (place, error), in the order of the documents.
        retryable: whether each may succeed later, unchanged.
    """

    def __init__(self) -> None:
        self.count = 0
        self.first: list[tuple[int, Exception]] = []
        self.retryable = True

    def __bool__(self) -> bool:
        return self.count > 0

    def add(self, place: int, error: Exception) -> None:
        """Count another failure."""
        self.count += 1
        insort(self.first, (place, error), key=itemgetter(0))
        del self.first[_SHOWN:]
        self.retryable = self.retryable and isinstance(error, BatchClientError) and error.retryable

    def of(self, count: int) -> str:
        """Tell how many of all documents failed."""
        return f"{self.count:,} of {count:,} documents"

    def shown(self) -> str:
        """Describe the first failures, with their places and each fault once, and count the rest."""
        more = f"; and {self.count - len(self.first):,} more" if self.count > len(self.first) else ""
        places: dict[str, list[str]] = {}
        for place, error in self.first:
            places.setdefault(_described(error, place), []).append(str(place))
        told = [f"document{'s' if each[1:] else ''} {', '.join(each)}: {fault}" for fault, each in places.items()]
        return "; ".join(told) + more


def _described(error: Exception, place: int | None = None) -> str:
    kind = type(error).__name__
    key = error.args[0] if isinstance(error, KeyError) and error.args else None
    if isinstance(key, str) and _FIELD.fullmatch(key):
        return f"{kind}: {key!r}"
    if not isinstance(error, BatchClientError):
        return kind
    message = f"{error.message.removeprefix(f'document {place}: '):.{_LONGEST_SHOWN}}"
    return message if isinstance(error, ConfigError) else f"{kind}: {message}"
