"""What a plain list costs, seconds = a + b * n for n prompts, and how long it is therefore worth making one.

A plain list answers when all of it is done, so that every prompt beyond what spreads the fixed cost ``a`` makes everyone in it wait
longer for nothing. The cap is the smallest n at which ``a`` is at most a tenth of the whole: ``a <= (a + b * n) / 10``, so ``n = 9 a / b``.

Rules:
- The line is Theil and Sen's: ``b`` is the median slope over all pairs of points of different n, ``a`` the median of what is left. Up to
  29 % of the points may be anything (one hiccup of 30 s is one point of 64), and there is no scale to be tuned, as there is in Huber's
  M-estimate. It costs 0.15 ms for 64 points (measured), so it is fitted at most once a second.
- It has no opinion before it has seen 16 lists of 4 different sizes, the longest at least twice the shortest; nor where time does not
  grow with n. Where its own cap leaves too few sizes to fit again, the last fit holds for a minute; then lists may grow again, and show.
- The cap is never below 8: a list's seconds hold nothing of the client's own cost per request, which a list of 8 spreads.
- One fit per coalescing key (``max_tokens`` is in it), for the keys used last.
- What the fit does to the longest list of its key is told, with ``a`` and ``b``: with the first list that is learnt after a fit, where it is
  more than a third off what was told before, or bounds nothing any more. Noise of a tenth moves the cap by as much: told at a tenth that would
  be every 4 s, at a third every 20 s (128 prompts at most, ten lists a second). That a key was forgotten because 64 others were used
  since is not told.

Sources: H. Theil, "A rank-invariant method of linear and polynomial regression analysis", 1950; P. K. Sen, "Estimates of the regression
coefficient based on Kendall's tau", JASA 63, 1968. The form a + b·n is Clipper's and BentoML's, whose least squares one outlier moves.
"""

from __future__ import annotations

import math
from collections import OrderedDict, deque

__all__ = ["ListCost", "ListCosts"]

_KEPT_LISTS = 64
_LEAST_LISTS = 16
_LEAST_SIZES = 4
_LEAST_SPREAD = 2
_FIT_EVERY_S = 1.0
_FIT_HOLDS_S = 60.0
_FIXED_SHARE = 0.1
_LEAST_CAP = 8
_KEPT_KEYS = 64
_TOLD_SHARE = 1 / 3


class ListCost:
    """The line through the last lists of one key."""

    __slots__ = ("_fit", "_fitted_at", "_fresh", "_points", "_told", "_tried_at", "has_news")

    def __init__(self) -> None:
        self._points: deque[tuple[int, float]] = deque(maxlen=_KEPT_LISTS)
        self._fresh = False
        self._tried_at = -math.inf
        self._fitted_at = -math.inf
        self._fit: tuple[float, float] | None = None
        self._told: int | None = None
        """The cap that was told last; ``None``: none, or that there is none any more."""
        self.has_news = False
        """Whether the fit was made anew or dropped since ``change`` looked at it."""

    def __repr__(self) -> str:
        return f"<ListCost of {len(self._points)} lists: {self._fit}>"

    def learn(self, prompts: int, seconds: float) -> None:
        """A plain list of so many prompts took so long, from sending to answer."""
        self._points.append((prompts, seconds))
        self._fresh = True

    def fit(self, now: float) -> tuple[float, float] | None:
        """Seconds of a list without a prompt, and seconds per prompt; ``None``: not known."""
        if self._fresh and now - self._tried_at >= _FIT_EVERY_S:
            self._tried_at = now
            self._fresh = False
            if self._says_enough():
                self._fit = _theil_sen(self._points)
                self._fitted_at = now
                self.has_news = True
        if self._fit is not None and now - self._fitted_at > _FIT_HOLDS_S:
            self._fit = None
            self.has_news = True
        return self._fit

    def cap(self, now: float) -> int | None:
        """The longest plain list that is worth it; ``None``: no opinion."""
        return self._cap_of(self.fit(now))

    @staticmethod
    def _cap_of(fit: tuple[float, float] | None) -> int | None:
        if fit is None:
            return None
        fixed_s, prompt_s = fit
        if prompt_s <= 0:
            return None
        # A bound, so that a slope of next to nothing is no overflow.
        return max(_LEAST_CAP, math.ceil(min((1 / _FIXED_SHARE - 1) * fixed_s / prompt_s, 1e9) - 1e-9))

    def change(self, list_cap: int) -> tuple[int, int, str] | None:
        """The longest list of this key as it was told before, as it is by the last fit, and why; ``None`` where that is nothing new.

        It fits nothing itself: the last points are fitted when somebody asks for the cap, however much later that is.

        Args:
            list_cap: the longest list whatever it costs. That it changes is told by whoever changes it.
        """
        self.has_news = False
        cap = self._cap_of(self._fit)
        before = list_cap if self._told is None else min(self._told, list_cap)
        after = list_cap if cap is None else min(cap, list_cap)
        is_back = before < after == list_cap
        if abs(after - before) <= _TOLD_SHARE * before and not is_back:
            return None
        self._told = after if after < list_cap else None
        return before, after, self._reason(cap)

    def forget(self) -> None:
        """The server was started anew, or is another; what was told is yet to be taken back."""
        self._points.clear()
        self._fresh, self._fit, self.has_news = False, None, True
        self._tried_at = self._fitted_at = -math.inf

    def _reason(self, cap: int | None) -> str:
        if self._fit is None:
            return "what a list costs is not known any more"
        fixed_s, prompt_s = self._fit
        if cap is None:
            return "a list takes no longer for its prompts"
        return (
            f"a list costs {_ms(max(0.0, fixed_s))} and {_ms(prompt_s)} a prompt: beyond {cap:,} prompts it only waits"
        )

    def _says_enough(self) -> bool:
        sizes = {prompts for prompts, _ in self._points}
        enough = len(self._points) >= _LEAST_LISTS and len(sizes) >= _LEAST_SIZES
        return enough and max(sizes) >= _LEAST_SPREAD * min(sizes)


class ListCosts:
    """One endpoint's, by coalescing key."""

    __slots__ = ("_by_key",)

    def __init__(self) -> None:
        self._by_key: OrderedDict[bytes, ListCost] = OrderedDict()

    def learn(self, key: bytes, prompts: int, seconds: float) -> ListCost:
        """A plain list with this key took so long; return what is known of its like."""
        cost = self._by_key.get(key)
        if cost is None:
            self._by_key[key] = cost = ListCost()
            if len(self._by_key) > _KEPT_KEYS:
                self._by_key.popitem(last=False)
        else:
            self._by_key.move_to_end(key)
        cost.learn(prompts, seconds)
        return cost

    def cap(self, key: bytes, now: float) -> int | None:
        """The longest plain list with this key that is worth it; ``None``: no opinion."""
        cost = self._by_key.get(key)
        return None if cost is None else cost.cap(now)

    def forget(self) -> None:
        """The server was started anew, or is another."""
        for cost in self._by_key.values():
            cost.forget()


def _theil_sen(points: deque[tuple[int, float]]) -> tuple[float, float]:
    ordered = sorted(points)
    slopes = [
        (seconds - before_s) / (prompts - before)
        for place, (before, before_s) in enumerate(ordered)
        for prompts, seconds in ordered[place + 1 :]
        if prompts != before
    ]
    prompt_s = _median(slopes)
    return _median([seconds - prompt_s * prompts for prompts, seconds in ordered]), prompt_s


def _ms(seconds: float) -> str:
    ms = 1000 * seconds
    return f"{ms:,.0f} ms" if ms >= 100 else f"{ms:.3g} ms"


def _median(values: list[float]) -> float:
    values.sort()
    middle = len(values) // 2
    return values[middle] if len(values) % 2 else (values[middle - 1] + values[middle]) / 2
