"""Whether a server of unknown sort serves requests at once, but a list's prompts in turn.

    LISTS ──now and then──▶ COMPARED ──four pairs of four──▶ SINGLES
      ▲◀──a pair says no────────┘                               │
      └──a list every minute, in half the serial time───────────┘

Rules:
- Lists (L) and singles (S) are compared in four pairs: LS SL LS SL. A side is 16 prompts (the first
  singles: 4), or one longer list, sent after the end of the side before. All other calls go on as
  lists, so both sides meet the same load.
- The *serial time* of singles is the sum of their times. A pair says yes if per output token the
  lists took at least two thirds of the serial time; the singles' load must have been at least four
  fifths of the lists'. Lists served at once take a fraction: 1/n for n answers of equal length.
- At equal load throughput follows the time in flight: after a yes, singles answer at least half as
  many calls again as lists of four.
- Prompts count instead of tokens if nobody counts tokens, or if lists' answers are over three times
  as long or short as singles'. Such tokens are miscounted, as when a list's usage is one answer's.
- The first pair to say no ends the comparison: as a rule a comparison costs four singles.
- Four pairs guard against chance. Take lists served at once, and a hiccup of 30 to 100 % in every
  other request. With answers of equal length no pair says yes. With most unequal answers
  (lognormal, sigma 0.9) a pair of lists of 8 says yes 1 time in 110, all four 1 time in 40 million
  (computed). Lists of 4 are the hardest to tell: 1 comparison in 900 gives up lists, until a list
  is tried again.
- A verdict holds for one key. A list is tried every minute. The first list to take less than half
  of the last 16 singles' serial time ends the verdict.
- The first comparison begins a second after the first list: by then most servers are known. The
  next comparisons come after five minutes, ten, up to an hour. A new comparison also ends an old
  one without result, whose calls failed or ran out.

Lists of two or three prompts are left out: their loss is small, and chance would decide.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple

__all__ = ["COMPARED", "GIVEN_UP", "ListTrial", "Measured"]

COMPARED = "lists are compared with singles"
GIVEN_UP = "lists are served one prompt after another"

_LEAST_LIST = 4
_SIDES = "LSSLLSSL"
_SIDE_PROMPTS = 16
_FIRST_SINGLES = 4
_YES_RATIO = 2 / 3
_BACK_RATIO = 0.5
_LEAST_LOAD = 0.8
_MOST_LONGER = 3.0
_FIRST_AFTER_S = 1.0
_FIRST_PAUSE_S = 300.0
_LONGEST_PAUSE_S = 3600.0
_LIST_AGAIN_S = 60.0
_KEPT_KEYS = 16


class Measured(NamedTuple):
    """A request with all its answers."""

    prompts: int
    tokens: int
    """Output tokens of all its answers; 0 if nobody counted."""
    seconds: float
    load: float
    """Mean sequences in flight at the endpoint meanwhile."""


class _Key:
    """The calls of one coalescing key."""

    def __init__(self, now: float) -> None:
        self.given_up = False
        self.to_send = 0
        """Unsent singles of the side under way."""
        self.next_at = now + _FIRST_AFTER_S
        """When a comparison begins; if lists are given up, when a list is tried."""
        self._pause_s = _FIRST_PAUSE_S
        self._sides: list[list[Measured]] | None = None
        """The requests measured, by side, the side under way last; ``None``: no comparison."""
        self._since = now
        """When the side under way began."""
        self._size = 0
        """The prompts wanted of the side under way."""
        self._singles: list[Measured] = []
        """The last singles, while lists are given up."""

    def take(self, request: Measured, sent_at: float, now: float) -> bool | None:
        is_list = request.prompts > 1
        if self.given_up:
            if is_list and _ratio(request, _added_up(self._singles)) < _BACK_RATIO:
                self.given_up = False
                self._pause(now)
                return False
            if not is_list:
                self._singles = [*self._singles[1 - _SIDE_PROMPTS :], request]
        elif is_list and now >= self.next_at:
            self._pause(now)
            self._sides = []
            self._begin_side(now)
        elif self._sides and sent_at >= self._since and is_list is (_SIDES[len(self._sides) - 1] == "L"):
            self._sides[-1].append(request)
            if sum(each.prompts for each in self._sides[-1]) >= self._size:
                return self._end_side(self._sides, now)
        return None

    def _pause(self, now: float) -> None:
        self.next_at = now + self._pause_s
        self._pause_s = min(_LONGEST_PAUSE_S, 2 * self._pause_s)

    def _begin_side(self, now: float) -> None:
        assert self._sides is not None
        self._size = _FIRST_SINGLES if len(self._sides) == 1 else _SIDE_PROMPTS
        self.to_send = self._size if _SIDES[len(self._sides)] == "S" else 0
        self._since = now
        self._sides.append([])

    def _end_side(self, sides: list[list[Measured]], now: float) -> bool | None:
        if len(sides) % 2 == 0:
            of_lists, of_singles = sides[-2:] if _SIDES[len(sides) - 2] == "L" else sides[:-3:-1]
            lists, singles = _added_up(of_lists), _added_up(of_singles)
            says_yes = _ratio(lists, singles) >= _YES_RATIO and singles.load >= _LEAST_LOAD * lists.load
            if not says_yes or len(sides) == len(_SIDES):
                self._sides, self.to_send = None, 0
                if not says_yes:
                    return None
                self.given_up, self._singles, self.next_at = True, of_singles, now + _LIST_AGAIN_S
                return True
        self._begin_side(now)
        return None


class ListTrial:
    """The comparisons of one endpoint and kind of call."""

    __slots__ = ("_keys",)

    def __init__(self) -> None:
        self._keys: OrderedDict[bytes, _Key] = OrderedDict()

    @property
    def gave_up(self) -> bool:
        """Whether lists of any key are given up."""
        return any(each.given_up for each in self._keys.values())

    def why_single(self, key: bytes, now: float) -> str | None:
        """Return why the next call with this key goes singly, or ``None``."""
        known = self._keys.get(key)
        if known is None or (now >= known.next_at if known.given_up else not known.to_send):
            return None
        return GIVEN_UP if known.given_up else COMPARED

    def sent(self, key: bytes, prompts: int, now: float) -> None:
        """Note a sent request."""
        known = self._keys.get(key)
        if known is None:
            return
        if prompts >= _LEAST_LIST and known.given_up:
            known.next_at = now + _LIST_AGAIN_S
        elif prompts == 1 and known.to_send:
            known.to_send -= 1

    def ended(self, key: bytes, request: Measured, sent_at: float, now: float) -> bool | None:
        """Take in a whole answer; return whether lists are now given up; ``None``: as before."""
        known = self._keys.get(key)
        if 1 < request.prompts < _LEAST_LIST or (known is None and request.prompts == 1):
            return None
        if known is None:
            self._keys[key] = known = _Key(now)
            if len(self._keys) > _KEPT_KEYS:
                self._keys.popitem(last=False)
        self._keys.move_to_end(key)
        return known.take(request, sent_at, now)


def _added_up(requests: Sequence[Measured]) -> Measured:
    prompts, tokens, seconds, load = (sum(column) for column in zip(*requests, strict=True))
    return Measured(prompts, tokens, seconds, load / len(requests))


def _ratio(lists: Measured, singles: Measured) -> float:
    """Return the time of lists as a multiple of singles' serial time for as much work."""
    ratio = lists.seconds / lists.prompts / (singles.seconds / singles.prompts)
    longer = lists.tokens / lists.prompts / (singles.tokens / singles.prompts) if singles.tokens else 0.0
    return ratio / longer if 1 / _MOST_LONGER <= longer <= _MOST_LONGER else ratio
