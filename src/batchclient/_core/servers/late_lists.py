"""Whether plain lists miss the deadlines of calls that would meet them singly, at one endpoint.

A plain list is answered as a whole, so its calls wait for the slowest. For example 24 calls with
two seconds each, on a server of 16 places and 1.3 s an answer: singly 16 are in time, as a list
none. But where a server stood still, is overloaded, or no call had time enough, singles are no
better, and cost more. So each shape is tried:

    LISTS ──most in lists are late──▶ COMPARED ──more of the singles are in time──▶ SINGLY
      ▲◀───────────── else ──────────────┘                                            │
      ▲◀─────── a list that tries it again is in time; or singles are no better ──────┘

Rules:
- Most are late: of the last 64 to 256 calls in plain lists, since one was late, fewer than half
  were in time. Without a late call nothing is remembered.
- Compared: the next four calls go singly, the others in lists as before. It ends once the four, and
  a list that was sent beside them, have ended. The next comparison comes 10 s later, or twice the
  pause each time, up to five minutes.
- Singly: as long as more of the singles are in time than of the calls in lists before. After the
  same pauses one list tries it again.
- Calls without a deadline count for nothing.
"""

from __future__ import annotations

from batchclient._core.requests import Batch, Shape
from batchclient._core.servers.pause import Pause

__all__ = ["MISSED", "LateLists"]

MISSED = "lists miss the calls' deadlines"
"""Why such a call goes alone."""
_MOST_LATE = 0.5
_LEAST_ENDED = 64
_REMEMBERED = 256
_COMPARED = 4
_PAUSE_S, _LONGEST_PAUSE_S = 10.0, 300.0
_MOST_SHAPES = 1024


class _Share:
    """How many of some calls were in time; the older ones count less and less."""

    __slots__ = ("ended", "in_time")

    def __init__(self) -> None:
        self.ended = self.in_time = 0.0

    def note(self, in_time: int, late: int) -> None:
        """Count calls."""
        self.in_time += in_time
        self.ended += in_time + late
        if self.ended > _REMEMBERED:
            self.ended, self.in_time = self.ended / 2, self.in_time / 2

    @property
    def ratio(self) -> float:
        return self.in_time / self.ended if self.ended else 0.0


class _Trial:
    """What is known of the lists and the singles of one shape."""

    __slots__ = ("_pause", "before", "is_singly", "list_id", "lists", "since", "singles", "to_compare", "until")

    def __init__(self) -> None:
        self._pause = Pause(_PAUSE_S, _LONGEST_PAUSE_S)
        self.lists, self.singles = _Share(), _Share()
        self.before = 0.0
        """The share of calls in lists that were in time, when singles began to be compared."""
        self.since: float | None = None
        """When singles began to be compared; ``None``: they are not."""
        self.to_compare = 0
        """How many calls are still to go singly for it."""
        self.is_singly = False
        self.until = 0.0
        """When singles may be compared, or a list tries again."""
        self.list_id: int | None = None
        """The list that tries."""

    def judge(self, now: float) -> None:
        """Conclude from what was counted."""
        if self.is_singly:
            if self.singles.ratio <= self.before:
                self._rest(now)
        elif self.since is None:
            if self.lists.ended >= _LEAST_ENDED and self.lists.ratio < _MOST_LATE and now >= self.until:
                self.since, self.to_compare, self.before = now, _COMPARED, self.lists.ratio
                self.lists, self.singles = _Share(), _Share()
        elif self.lists.ended and self.singles.ended >= _COMPARED:
            self.before = max(self.before, self.lists.ratio)
            if self.singles.ratio > self.before:
                self._pause.forget()
                self.is_singly, self.until = True, now + self._pause.take()
            else:
                self._rest(now)

    def _rest(self, now: float) -> None:
        """Lists go on."""
        self.since, self.to_compare, self.is_singly, self.list_id = None, 0, False, None
        self.until = now + self._pause.take()

    def list_ended(self, batch: Batch, in_time: int, late: int, now: float) -> bool:
        """Count a list; return whether nothing is to be remembered any more."""
        if not self.is_singly:
            if self.since is None or batch.sent_at >= self.since:
                self.lists.note(in_time, late)
        elif batch.id == self.list_id:
            self.list_id = None
            if not late:
                return True
            if not in_time:
                self.until = now + self._pause.take()
        return False


class LateLists:
    """What deadlines have told of plain lists, by the ``answer_key`` of their shape."""

    def __init__(self) -> None:
        self.shapes: dict[bytes, _Trial] = {}
        """Empty until a call in a plain list is late."""

    def sends_singly(self, shape: Shape, now: float) -> bool:
        """Whether the next call of a shape that has a deadline goes singly."""
        seen = self.shapes.get(shape.answer_key)
        if seen is None:
            return False
        return (now < seen.until or seen.list_id is not None) if seen.is_singly else seen.to_compare > 0

    def sent(self, batch: Batch) -> None:
        """Note a sent batch."""
        seen = self.shapes.get(batch.shape.answer_key)
        if seen is None:
            return
        if batch.alone == MISSED:
            seen.to_compare = max(0, seen.to_compare - 1)
        elif (
            seen.is_singly and len(batch.requests) > 1 and not batch.streamed and batch.requests[0].deadline is not None
        ):
            seen.list_id = batch.id

    def ended(self, batch: Batch, now: float, *, answered: bool) -> None:
        """Note a batch that was answered, perhaps too late for some, or that its callers have left."""
        key, is_list = batch.shape.answer_key, len(batch.requests) > 1
        seen = self.shapes.get(key)
        if is_list and batch.streamed:
            return
        if not is_list and (seen is None or seen.since is None or batch.alone != MISSED or batch.sent_at < seen.since):
            return
        late = sum(request.deadline is not None and request.deadline <= now for request in batch.requests)
        timed = sum(request.deadline is not None for request in batch.requests)
        in_time = timed - late if answered else 0
        if seen is None:
            if not late:
                return
            if len(self.shapes) >= _MOST_SHAPES:
                del self.shapes[next(iter(self.shapes))]
            seen = self.shapes[key] = _Trial()
        if not is_list:
            seen.singles.note(in_time, late)
        elif seen.list_ended(batch, in_time, late, now):
            del self.shapes[key]
            return
        seen.judge(now)

    def failed(self, batch: Batch) -> None:
        """Note a batch that failed for another reason: one that tries is followed by another."""
        seen = self.shapes.get(batch.shape.answer_key)
        if seen is not None and seen.list_id == batch.id:
            seen.list_id = None
