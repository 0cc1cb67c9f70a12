"""Whether plain lists miss the deadlines of calls that would meet them singly, at one endpoint.

A plain list is answered as a whole, so its calls wait for the slowest. For example 24 calls with
two seconds each, on a server of 16 places and 1.3 s an answer: singly 16 are in time, as a list
none. Each shape is judged by itself:

    LISTS ──deadlines cut a list──▶ COMPARED ──singles in time, a list beside them cut──▶ SINGLY
      ▲◀──────── a list in time ────────┘                                                   │
      ▲◀─────────── after a pause a list in time; or hardly a single is in time ────────────┘

Rules:
- Deadlines cut a list if the time of each member without an answer ran out.
- Compared: the next four calls with a deadline go singly, the others in lists as before. A server
  that stood still, and a deadline that nothing can meet, are the same for both. The singles have
  shown more if most of them were in time when a list is cut that was sent beside or after them.
- Singly: for 10 s, then one list tries it again (twice the pause each time, up to five minutes). It
  ends at once where seven of eight singles are too late.
"""

from __future__ import annotations

from batchclient._core.requests import Batch, Shape
from batchclient._core.servers.breaker import Breaker

__all__ = ["LateLists"]

_COMPARED = 4
_HARDLY = 8
_PAUSE_S, _LONGEST_PAUSE_S = 10.0, 300.0
"""What made lists late may last a moment only, so the first trial comes soon."""
_MOST_SHAPES = 1024


class _Comparison:
    """Lists and singles of one shape, since deadlines cut a list."""

    __slots__ = ("in_time", "late", "lists", "since", "to_compare")

    def __init__(self, now: float) -> None:
        self.lists = Breaker(_PAUSE_S, _LONGEST_PAUSE_S)
        """Open: calls go singly."""
        self.begin(now, _COMPARED)

    def begin(self, now: float, to_compare: int) -> None:
        """Count what is sent from now on; so many calls are to go singly for it."""
        self.since, self.to_compare = now, to_compare
        self.in_time = self.late = 0
        """Singles."""

    def cut_list(self, sent_at: float, now: float) -> None:
        """Deadlines cut another list."""
        if not self.lists.is_closed:
            self.lists.refuse(now)
        elif sent_at >= self.since:
            is_better = self.in_time > self.late
            if is_better:
                self.lists.refuse(now)
            self.begin(now, 0 if is_better else _COMPARED)


class LateLists:
    """What deadlines have told of plain lists, by the ``answer_key`` of their shape."""

    def __init__(self) -> None:
        self._shapes: dict[bytes, _Comparison] = {}
        """Empty as a rule."""

    def __bool__(self) -> bool:
        return bool(self._shapes)

    def clear(self) -> None:
        """Forget what another start of the server may change."""
        self._shapes.clear()

    def sends_singly(self, shape: Shape, now: float) -> bool:
        """Whether the next call of a shape that has a deadline goes singly."""
        seen = self._shapes.get(shape.answer_key)
        return seen is not None and (seen.to_compare > 0 or not seen.lists.allows(now))

    def sent(self, batch: Batch) -> None:
        """Note a sent batch."""
        seen = self._shapes.get(batch.shape.answer_key)
        if seen is None or batch.requests[0].deadline is None:
            return
        if len(batch.requests) > 1:
            if not batch.streamed:
                seen.lists.begin(batch.id)
        elif seen.to_compare:
            seen.to_compare -= 1

    def answered(self, batch: Batch) -> None:
        """Note answers to a batch, which came too late for some of its callers if it ``expired``."""
        seen = self._shapes.get(batch.shape.answer_key)
        if seen is None:
            return
        if batch.expired:
            # A list that tries, and tells nothing, is followed by another.
            seen.lists.end(batch.id)
        elif batch.requests[0].deadline is not None and not batch.streamed and len(batch.requests) > 1:
            del self._shapes[batch.shape.answer_key]
        elif len(batch.requests) == 1 and batch.sent_at >= seen.since:
            seen.in_time += 1

    def cut(self, batch: Batch, now: float) -> None:
        """Note a batch that ended with its callers' deadlines."""
        key = batch.shape.answer_key
        seen = self._shapes.get(key)
        if len(batch.requests) > 1:
            if batch.streamed:
                return
            if seen is not None:
                seen.cut_list(batch.sent_at, now)
                return
            if len(self._shapes) >= _MOST_SHAPES:
                del self._shapes[next(iter(self._shapes))]
            self._shapes[key] = _Comparison(now)
        elif seen is not None and batch.sent_at >= seen.since:
            seen.late += 1
            is_hopeless = seen.late >= _HARDLY and seen.late > (_HARDLY - 1) * seen.in_time
            if is_hopeless and not seen.lists.is_closed:
                del self._shapes[key]

    def end(self, batch: Batch) -> None:
        """Note a batch that failed for another reason: it tells nothing."""
        seen = self._shapes.get(batch.shape.answer_key)
        if seen is not None:
            seen.lists.end(batch.id)
