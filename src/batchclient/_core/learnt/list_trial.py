"""Whether a server of no known sort serves a list's prompts one after another, while it does serve requests at once.

    LISTS ──now and then──▶ COMPARED ──four pairs of four──▶ SINGLES
      ▲◀──a pair says no────────┘                               │
      └──one list a minute, half as long as its prompts alone───┘

Rules:
- Compared are lists (L) and singles (S) in four pairs: LS SL LS SL. A side is 16 prompts (the first singles: 4), or one longer
  list. It is sent after the side before it has ended. All other calls go on as lists, so that both meet the same load.
- A pair says yes where the lists took at least two thirds of what the singles took one by one, per output token, and the
  singles' load was no less than four fifths of the lists'. Lists served at once take a fraction: 1/n for n answers of one length.
- At one load throughput goes by the time in flight: such singles answer half as many again as lists of four, or more.
- Prompts count instead of tokens where nobody counts these, or where lists' answers are over three times as long or short as
  singles'. They are then miscounted, as where a list's usage is one answer's.
- The first pair that says no ends it: as a rule a comparison costs four singles.
- Why four pairs: lists are served at once, and every other request has a hiccup of 30 to 100 %. With answers of one length no
  pair says yes. With most unequal ones (lognormal, sigma 0.9) a pair of lists of 8 says yes 1 time in 110; all four do 1 time
  in 40 million (computed). Lists of 4 are the hardest to tell: 1 comparison in 900 gives them up, until one is tried again.
- A verdict holds for one key. It is taken back at the first list that took less than half of what the last 16 singles took one
  by one. One a minute is tried.
- The first comparison begins a second after the first list: by then most servers are known. The next come after five minutes,
  ten, up to an hour. Then also ends what came to nothing, because its calls failed or no more came.

Lists of two or three prompts say nothing: they lose little, and chance would decide.
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
    """A request that was answered whole."""

    prompts: int
    tokens: int
    """Output tokens of all its answers; 0 if nobody counted them."""
    seconds: float
    load: float
    """Sequences in flight at the endpoint meanwhile, on average."""


class _Key:
    """The calls of one coalescing key."""

    def __init__(self, now: float) -> None:
        self.given_up = False
        self.to_send = 0
        """Singles of the side under way that were not sent yet."""
        self.next_at = now + _FIRST_AFTER_S
        """When a comparison begins; where lists are given up, when one is tried."""
        self._pause_s = _FIRST_PAUSE_S
        self._sides: list[list[Measured]] | None = None
        """What was measured of the comparison, the side under way last; ``None``: there is no comparison."""
        self._since = now
        """When the side under way began."""
        self._size = 0
        """How many prompts it is to have."""
        self._singles: list[Measured] = []
        """The last ones, where lists are given up."""

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
    """Of one endpoint and kind of call."""

    __slots__ = ("_keys",)

    def __init__(self) -> None:
        self._keys: OrderedDict[bytes, _Key] = OrderedDict()

    @property
    def gave_up(self) -> bool:
        """Whether lists of any key are given up."""
        return any(each.given_up for each in self._keys.values())

    def why_single(self, key: bytes, now: float) -> str | None:
        """Why the next call with this key goes singly, or ``None``."""
        known = self._keys.get(key)
        if known is None or (now >= known.next_at if known.given_up else not known.to_send):
            return None
        return GIVEN_UP if known.given_up else COMPARED

    def sent(self, key: bytes, prompts: int, now: float) -> None:
        """A request has gone."""
        known = self._keys.get(key)
        if known is None:
            return
        if prompts >= _LEAST_LIST and known.given_up:
            known.next_at = now + _LIST_AGAIN_S
        elif prompts == 1 and known.to_send:
            known.to_send -= 1

    def ended(self, key: bytes, request: Measured, sent_at: float, now: float) -> bool | None:
        """A request was answered whole; return whether lists of its key are given up from now on, or ``None`` where that stays as it was."""
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
    """How long lists took, as a multiple of what singles took one by one for as much."""
    ratio = lists.seconds / lists.prompts / (singles.seconds / singles.prompts)
    longer = lists.tokens / lists.prompts / (singles.tokens / singles.prompts) if singles.tokens else 0.0
    return ratio / longer if 1 / _MOST_LONGER <= longer <= _MOST_LONGER else ratio
