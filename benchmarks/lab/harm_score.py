"""How much harm the default does on one draw, beside the naive client; and the bars over many draws.

Rules:
- The reference is the naive client with 64 calls at once, the number that people write. 16 and 256
  stand beside it: the best of the three is the one that loses least, and then ends first.
- The score of a draw is the worst of makespan, mean latency and 95th percentile, each the naive
  client's time over ours. What takes at most ``GRACE_S`` longer counts as equal: one rest after a
  refusal is not harm. With deadlines the score is the share met over the naive client's.
- Where the naive client lost calls, its time says nothing: the score is 1, and only losses count.
- A manner has *acted* where a client was refused, slowed or lost something by it. Bars are over
  draws in which any has.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.lab.drawn_check import Finding
from benchmarks.lab.drawn_table import percentile
from benchmarks.lab.harm_clients import Run, run_naive, run_ours
from benchmarks.lab.harm_draws import MANNERS, draw

__all__ = ["GRACE_S", "HARMED", "REFERENCE", "Score", "check", "check_alone", "judge", "score_of", "table"]

GRACE_S = 0.8
HARMED = 0.8
"""A lower score is harm."""
REFERENCE = 64
_AT_ONCE = (16, REFERENCE, 256)
_NEVER_BELOW = 0.5


@dataclass(frozen=True, slots=True)
class Score:
    """What one draw came to.

    Args:
        number, only: what is drawn again.
        manners: of the draw.
        about: the draw, in words.
        naive: by calls at once.
        ours: the default's.
        is_timed: whether the calls have deadlines.
    """

    number: int
    only: tuple[str, ...]
    manners: tuple[str, ...]
    about: str
    naive: Mapping[int, Run]
    ours: Run
    is_timed: bool

    @property
    def acted(self) -> frozenset[str]:
        """The manners that did anything."""
        return self.naive[REFERENCE].acted | self.ours.acted

    @property
    def ratio(self) -> float:
        """The score."""
        return score_of(self.naive[REFERENCE], self.ours, is_timed=self.is_timed)

    @property
    def lost_more(self) -> int:
        """Chains that the naive client would not have lost; with deadlines the score counts them."""
        return 0 if self.is_timed else max(0, self.ours.lost - self.naive[REFERENCE].lost)

    @property
    def is_harmed(self) -> bool:
        """Whether it is."""
        return self.ratio < HARMED or self.lost_more > 0 or self.ours.hasty > 0

    @property
    def best(self) -> int:
        """The calls at once of the best naive client."""
        if self.is_timed:
            return max(self.naive, key=lambda at_once: self.naive[at_once].met)
        return min(self.naive, key=lambda at_once: (self.naive[at_once].lost, self.naive[at_once].last_s))

    @property
    def to_best(self) -> float:
        """The best naive client's makespan over ours, or our share of deadlines over its."""
        best = self.naive[self.best]
        if self.is_timed:
            return self.ours.met / best.met if best.met else 1.0
        return 1.0 if best.lost else best.last_s / self.ours.last_s

    def __str__(self) -> str:
        runs = {
            "ours": self.ours,
            f"naive {REFERENCE}": self.naive[REFERENCE],
            f"best {self.best}": self.naive[self.best],
        }
        only = f" --only {','.join(self.only)}" if self.only else ""
        told = "; ".join(f"{name} {_shown(run, is_timed=self.is_timed)}" for name, run in runs.items())
        more = [f"lost {self.lost_more} more ({self.ours.why:.80})"] if self.lost_more else []
        more += [f"{self.ours.hasty} given up too early"] if self.ours.hasty else []
        more += [] if self.acted else ["nothing acted"]
        return f"--draw {self.number}{only}: {', '.join([f'{self.ratio:.2f}', *more])}: {self.about}: {told}"


def _shown(run: Run, *, is_timed: bool) -> str:
    if is_timed:
        return f"met {run.met:.3f}, {run.refused}/{run.requests} refused"
    times = f"{run.last_s:.1f} s, mean {run.mean_s:.1f}, p95 {run.p95_s:.1f}"
    return f"{times}, lost {run.lost}, {run.refused}/{run.requests} refused"


def score_of(naive: Run, ours: Run, *, is_timed: bool) -> float:
    """Return the score of two runs."""
    if is_timed:
        return ours.met / naive.met if naive.met else 1.0
    if naive.lost:
        return 1.0
    times = ((naive.last_s, ours.last_s), (naive.mean_s, ours.mean_s), (naive.p95_s, ours.p95_s))
    return min(
        naive_s / ours_s if ours_s <= naive_s else min(1.0, (naive_s + GRACE_S) / ours_s) for naive_s, ours_s in times
    )


def judge(number: int, only: tuple[str, ...] = ()) -> Score:
    """Run all clients on a draw."""
    naive = {at_once: run_naive(draw(number, only), at_once) for at_once in _AT_ONCE}
    drawn = draw(number, only)
    return Score(number, only, tuple(drawn.manners), str(drawn), naive, run_ours(drawn), drawn.work == "deadlines")


def table(scores: Sequence[Score]) -> str:
    """The scores by manner, as a table in Markdown; a manner's are those in which it acted."""
    lines = [
        "| manner | draws | acted | below 0.8 | median | tenth | worst | of the best of three | lost more |",
        "| - | - | - | - | - | - | - | - | - |",
    ]
    for name, words in MANNERS.items():
        drawn = [score for score in scores if name in score.manners]
        if drawn:
            lines.append(_line(f"`{name}`: {words}", drawn, [score for score in drawn if name in score.acted]))
    lines.append(_line("all", scores, [score for score in scores if score.acted]))
    return "\n".join(lines)


def _line(name: str, drawn: Sequence[Score], acted: Sequence[Score]) -> str:
    cells = [name, f"{len(drawn)}", f"{len(acted)}"]
    if acted:
        ratios = [score.ratio for score in acted]
        cells += [f"{sum(ratio < HARMED for ratio in ratios)}", f"{statistics.median(ratios):.2f}"]
        cells += [f"{percentile(ratios, 0.1):.2f}", f"{min(ratios):.2f}"]
        cells += [f"{statistics.median(score.to_best for score in acted):.2f}"]
        cells += [f"{sum(score.lost_more > 0 for score in acted)}"]
    return f"| {' | '.join(cells)} |"


def check(scores: Sequence[Score]) -> Iterator[Finding]:
    """The bars of draws of one to three manners."""
    acted = [score for score in scores if score.acted]
    ratios = [score.ratio for score in acted]
    if not acted:
        return
    below = sum(ratio < HARMED for ratio in ratios) / len(ratios)
    yield Finding("draws", f"share below {HARMED}", below, 0.02, at_most=True)
    yield Finding("draws", "worst", min(ratios), _NEVER_BELOW)
    yield Finding("draws", "that lose more calls", sum(score.lost_more > 0 for score in scores), 0, at_most=True)
    yield Finding("draws", "that give up too early", sum(score.ours.hasty > 0 for score in scores), 0, at_most=True)
    yield Finding("draws", "median", statistics.median(ratios), 1.0)
    yield Finding("draws", "median of the best of three", statistics.median(score.to_best for score in acted), 0.95)


def check_alone(scores: Sequence[Score]) -> Iterator[Finding]:
    """The bars of draws of one manner each."""
    for name in MANNERS:
        acted = [score for score in scores if score.only == (name,) and name in score.acted]
        if acted:
            yield Finding(f"{name} alone", "tenth", percentile([score.ratio for score in acted], 0.1), 0.9)
            lost = sum(score.lost_more > 0 for score in acted)
            yield Finding(f"{name} alone", "that lose more calls", lost, 0, at_most=True)
            hasty = sum(score.ours.hasty > 0 for score in acted)
            yield Finding(f"{name} alone", "that give up too early", hasty, 0, at_most=True)
