"""The rows of a function, the calls that it makes for them, and whose calls go first.

Rules:
- A call is known by its row, what it asks, and how many equal calls of its row came before: in a
  journal its record is found by these, whatever the function's steps are called or ordered like.
- A row is known by its own ``id``, else by its JSON, and by how many rows before have the same.
- The function gets a call's answer at once. Its row ends when the function has ended, and what its
  calls brought is on the disk.
- Calls of rows begun earlier go first (``turns``). All wait while the disk is too slow for what is
  answered.
"""

from __future__ import annotations

import json
import weakref
from collections import Counter
from collections.abc import Callable
from contextvars import Context, copy_context
from hashlib import sha256
from typing import Any

from batchclient._calls.tables import plain
from batchclient._maps.occurrences import Occurrences
from batchclient._maps.row import Row, own_id_of
from batchclient._maps.turns import TurnRow, Turns
from batchclient._shell.runner import Runner
from batchclient.errors import BatchClientError, ConfigError

__all__ = ["FunctionCall", "FunctionRow", "FunctionTurns"]

_KEY_BYTES = 16


class FunctionRow(Row):
    """A row that a function works on."""

    __slots__ = ("asked", "is_cut", "kept", "seen", "unwritten")

    def __init__(self, owner: weakref.ref[Any], index: int, document: Any) -> None:
        super().__init__(owner, index, document)
        self.asked: int = 0
        """Calls that were made."""
        self.kept: int = 0
        """Of these: answered by the journal."""
        self.unwritten: int = 0
        """Calls that have ended, and are not on the disk yet."""
        self.is_cut: bool = False
        """Whether the client was closed before the row had ended."""
        self.seen: Counter[bytes] = Counter()
        """How often each call was made."""

    def identify(self, seen: Occurrences, *, needs_key: bool) -> None:
        """Give the row its key and its id.

        Args:
            seen: the rows before.
            needs_key: whether a journal knows the row by its key.

        Raises:
            ConfigError: the row has no ``id``, and is no JSON.
        """
        own = own_id_of(self.document)
        self.own_id: str | None = own
        try:
            text = own or json.dumps(self.document, sort_keys=True, default=plain)
        except (TypeError, ValueError, RecursionError):
            if needs_key:
                message = "the row has no id and is no JSON, so a journal cannot know it again; give it a field id"
                raise ConfigError(message, field="rows") from None
            self.id: str = f"row-{self.index}"
            return
        digest = sha256(text.encode("utf-8", "surrogatepass")).digest()
        self.n: int = seen.number(int.from_bytes(digest[:8], "big"))
        self.key: bytes = sha256(b"%b %d" % (digest, self.n)).digest()
        self.id = own or f"{digest[:8].hex()}-{self.n}"

    def key_of(self, *asked: bytes) -> tuple[bytes, int]:
        """Return the key of a call, and how many equal calls the row has made before."""
        digest = sha256(getattr(self, "key", b""))
        for each in asked:
            digest.update(sha256(each).digest())
        key = digest.digest()[:_KEY_BYTES]
        self.seen[key] += 1
        return key, self.seen[key] - 1

    def end(self, answer: Any, error: Exception | None) -> None:
        """Take what the function has returned or raised."""
        self.answer: Any = answer
        self.error: Exception | None = error
        self.reused: bool = 0 < self.asked == self.kept
        self._finish()


class FunctionCall(TurnRow):
    """A call that a function makes for its row.

    Args:
        owner: the map, weakly.
        row: whose call it is.
        turns: says when the call goes.
        told: the shell's waiter on which the function sleeps.
    """

    __slots__ = ("_caller", "_open", "of", "told")

    def __init__(self, owner: weakref.ref[Any], row: FunctionRow, turns: FunctionTurns, told: Any) -> None:
        super().__init__(owner, row.index, None, turns)
        self._caller = copy_context()
        self._open = turns.open
        self.of: FunctionRow = row
        self.told: Any = told
        self.id, self.own_id = row.id, row.own_id

    @property
    def caller(self) -> Context | None:
        """The variables of the function where it made the call."""
        return self._caller

    def tell(self) -> None:
        """Give the function its answer, or raise the error there."""
        self._forget()
        if self.told.done():
            return
        if self.error is not None:
            self.told.set_exception(self.error)
        else:
            self.told.set_result(self.answer)

    def leave(self, runner: Runner) -> bool:
        """Wait no more; return whether the call was under way."""
        self._forget()
        if self.ended or self.request is None:
            return False
        requests = [self.request, *self.others]
        self.ended, self.request, self.others = True, None, ()
        for request in reversed(requests):
            runner.leave(request)
        self._turns.look_soon()
        return True

    def _forget(self) -> None:
        self._open.pop(self, None)
        super()._forget()

    def _finish(self) -> None:
        self.tell()
        super()._finish()


class FunctionTurns(Turns):
    """Hands the calls of functions to the scheduler.

    Attributes:
        open: the calls under way, the earliest first.
    """

    def __init__(self, runner: Runner, holds_back: Callable[[], bool]) -> None:
        super().__init__(runner, holds_back)
        self.open: dict[FunctionCall, None] = {}

    def end(self, error: BatchClientError) -> None:
        """Leave what is under way; a task that a function has left behind gets the error."""
        self.clear()
        for call in reversed(list(self.open)):
            if self._runner.ended:
                self.open.pop(call, None)
            else:
                call.leave(self._runner)
            if not call.told.done():
                call.told.set_exception(error)
