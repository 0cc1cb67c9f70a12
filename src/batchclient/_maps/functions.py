"""The rows of a function, the calls that it makes for them, and whose calls go first.

Rules:
- A call is known by its row, what it asks, and how many equal calls of its row came before: in a
  journal its record is found by these, whatever the function's steps are called or ordered like.
- A row is known by its own ``id``, else by its JSON, and by how many rows before have the same.
- The function gets a call's answer at once. Its row ends when the function has ended, and what its
  calls brought is on the disk.
- Calls of rows begun earlier go first: of each model and kind the scheduler has as many as may be
  in flight, and an eighth more to choose from. The others wait here. So do all while the disk is
  too slow for what is answered.
"""

from __future__ import annotations

import heapq
import json
import weakref
from collections import Counter
from collections.abc import Callable
from contextvars import Context, copy_context
from hashlib import sha256
from itertools import count
from typing import TYPE_CHECKING, Any

from batchclient._calls.tables import plain
from batchclient._core.messages import Request, RequestState
from batchclient._maps.occurrences import Occurrences
from batchclient._maps.row import Row, own_id_of
from batchclient._shell.runner import Runner
from batchclient.errors import BatchClientError, ConfigError

if TYPE_CHECKING:
    from batchclient._shell.backend import Cancellable

__all__ = ["FunctionCall", "FunctionRow", "Turns"]

_MORE = 8
"""Calls that wait in the scheduler: one for so many that may be in flight."""
_LOOK_AGAIN_S = 0.1
"""Of a refusal, after which a call waits by itself, nothing is told here."""
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


class FunctionCall(Row):
    """A call that a function makes for its row.

    Args:
        owner: the map, weakly.
        row: whose call it is.
        turns: says when the call goes.
        told: the shell's waiter on which the function sleeps.
    """

    __slots__ = ("_caller", "_sent_with", "_turns", "of", "told")

    def __init__(self, owner: weakref.ref[Any], row: FunctionRow, turns: Turns, told: Any) -> None:
        super().__init__(owner, row.index, None)
        self._caller = copy_context()
        self._turns = turns
        self._sent_with: set[FunctionCall] | None = None
        """The calls that the scheduler has, this one among them."""
        self.of: FunctionRow = row
        self.told: Any = told
        self.id, self.own_id = row.id, row.own_id

    @property
    def caller(self) -> Context | None:
        """The variables of the function where it made the call."""
        return self._caller

    def send(self, runner: Runner, request: Request) -> None:
        """Send the call in its turn."""
        self._turns.add(self, request)

    def submit(self, runner: Runner, request: Request, sent: set[FunctionCall]) -> None:
        """Send the call now, which is one of ``sent`` until it ends."""
        self._sent_with = sent
        sent.add(self)
        super().send(runner, request)

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
        self._turns.open.pop(self, None)
        if self._sent_with is not None:
            self._sent_with.discard(self)

    def _finish(self) -> None:
        self.tell()
        super()._finish()
        self._turns.look_soon()


class Turns:
    """Hands calls to the scheduler, those of the earliest rows first.

    Args:
        runner: has the scheduler.
        holds_back: whether none may go now; ``look_soon`` says when that may be over.

    Attributes:
        open: the calls under way, the earliest first.
    """

    def __init__(self, runner: Runner, holds_back: Callable[[], bool]) -> None:
        self._runner = runner
        self._holds_back = holds_back
        self.open: dict[FunctionCall, None] = {}
        self._held: dict[Any, list[tuple[int, int, int, FunctionCall]]] = {}
        """Calls that wait, by model and kind: a heap, by priority and row."""
        self._sent: dict[Any, set[FunctionCall]] = {}
        """Calls that the scheduler has, by model and kind."""
        self._numbers = count()
        self._looks = False
        self._timer: Cancellable | None = None

    def add(self, call: FunctionCall, request: Request) -> None:
        """Let a call wait for its turn."""
        held = self._held.setdefault(request.shape.subject, [])
        heapq.heappush(held, (-request.shape.priority, call.index, next(self._numbers), call))
        self.look_soon()

    def look_soon(self) -> None:
        """See in the next turn of the event loop who goes: all calls of one turn travel together."""
        if not self._looks and self._held and not self._runner.backend.is_gone():
            self._looks = True
            self._runner.backend.call_soon(self._look)

    def clear(self) -> list[FunctionCall]:
        """Hold no call any more; return those that were held, and that somebody waits for."""
        held = [entry[3] for calls in self._held.values() for entry in calls]
        self._held.clear()
        return [call for call in held if call.request is not None]

    def end(self, error: BatchClientError) -> None:
        """Leave what is under way; a task that a function has left behind gets the error."""
        self._held.clear()
        for call in reversed(list(self.open)):
            if self._runner.ended:
                self.open.pop(call, None)
            else:
                call.leave(self._runner)
            if not call.told.done():
                call.told.set_exception(error)

    def _look(self) -> None:
        self._looks = False
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._holds_back():
            return
        limit = self._runner.core.total_limit
        for subject in list(self._held):
            held = self._held[subject]
            sent = self._sent.setdefault(subject, set())
            # What a server has refused waits by itself, and holds up no other.
            room = limit + max(1, limit // _MORE) - sum(not _is_put_off(call) for call in sent)
            while held and room > 0:
                call = heapq.heappop(held)[3]
                if call.request is not None:
                    room -= 1
                    call.submit(self._runner, call.request, sent)
            if not held:
                self._held.pop(subject, None)
        if self._held:
            backend = self._runner.backend
            self._timer = backend.call_at(backend.now() + _LOOK_AGAIN_S, self._look)


def _is_put_off(call: FunctionCall) -> bool:
    return call.request is not None and call.request.state is RequestState.BACKING_OFF
