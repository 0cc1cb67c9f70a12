"""The search for a limit: a start by evidence, then trials of more or less, each checked.

Rules (the guide *Settings* tells them to users):
- Where the server's page shows this client's sequences alone, the page's steps decide (``page``).
  Elsewhere every change is a trial (``trial``), judged by useful tokens per second.
- If sequences of this client wait in the server, by its page (``queue``) or by the time before
  first tokens, a limit without these is tried. Else 1.4 times is tried.
- Half is tried with and without a page if calls share prefixes: a small cache shows in no queue.
- A reason that did not pay is silent for a minute, then two, up to fifteen; a new server ends the
  silence, as do prompts or outputs twice or half as long.
- Nothing is tried in a job's first ten seconds; nor if a window of a minute (or a tenth of the job
  so far) cannot tell a tenth from noise; nor at an unused limit, unless over 32 calls that share
  prefixes are always in flight: a cache may hold fewer.
- A refusal, late answers, a pause and an unused limit end a trial and restore the limit; from the
  second in a row on its reason is silent. If the wait is the harm, less needs no second measure.
"""

from __future__ import annotations

import math

from batchclient._core.limits.base import REFUSALS, USED_RATIO, Answers, Cooldown, Outcome, Sample, ServerLoad
from batchclient._core.limits.evidence import Window
from batchclient._core.limits.guest import GUEST_START
from batchclient._core.limits.page import PageSteps
from batchclient._core.limits.reports import Report
from batchclient._core.limits.trial import LOSS, SHARED, Trial, Turn

__all__ = ["START", "Search"]

START = 256
"""vLLM's default number of running sequences on small GPUs."""

_LESS = ("queue", "wait", "half")
"""The reasons for less."""
_WAITS = ("queue", "wait")
_QUIET_S = 10.0
_ERROR = 0.03
"""A window's error; ``LOSS`` is enough if calls share prefixes, or after the longest window."""
_MANY = 32
_MINUTE_S = 60.0
"""The longest window of a short job. Classes and cut off calls are remembered as long."""
_JOB_SHARE = 0.1
_MORE = 1.4
_WAITING_SHARE = 0.1
"""A shorter wait may be for the step under way."""
_MARGIN = 0.1
_ALIKE = 1.2


class Search:
    """The search for the limit of one endpoint; it moves ``limit`` and says why.

    Args:
        ceiling: the highest limit.
        turn: shared by the limits of one client's servers.
        guest_start: where a guest begins, at most.
    """

    def __init__(
        self, start: int = START, ceiling: int = 1024, turn: Turn | None = None, *, guest_start: int = GUEST_START
    ) -> None:
        if not 1 <= start <= ceiling:
            raise ValueError(f"1 <= start <= ceiling, got {start}, {ceiling}")
        self.limit: int = start
        self.reason: str = "the start"
        self.answers: Answers = Answers()
        """Kept by the limit in force, for itself as well."""
        self._start = start
        self._guest_start = guest_start
        self._ceiling = self._most = ceiling
        """The highest limit; the server's own bound may lower ``_most``."""
        self._turn = turn or Turn()
        self._cooldowns = {reason: Cooldown() for reason in (*_LESS, "more")}
        self._page = PageSteps(self.answers, self._cooldowns)
        self._class: int | None = None
        """The priority class of the last answer."""
        self._harmed_at = -math.inf
        """When a wait in the server last did harm: to a higher class, or by a gateway's cut."""
        self._forget()

    def _forget(self) -> None:
        self._trial: Trial | None = None
        self._window = Window(self.limit, 1)
        self._least_first_s = math.inf
        self._usual: Window | None = None
        """The work when a trial began last; before any, and after it has changed, the first seen."""
        self._voids = False
        """Whether the last trial said nothing."""
        self._left = 1.0
        """The share left, after descents since the last raise, of the yield at the raise."""

    # What it is told -----------------------------------------------------------------------------------------------

    def on_sample(self, sample: Sample) -> None:
        now, outcome = sample.now, sample.outcome
        if self._trial is not None and now > self._trial.until:
            self._voids = True
            self._end_trial(now)
        elif outcome in REFUSALS:
            self._end_trial(now)
        elif outcome is not Outcome.IGNORED and now > sample.sent_at:
            # A sample of no duration (a mocked server's answer) has no rate.
            if sample.first_tokens_s:
                self._least_first_s = min(self._least_first_s, sample.first_tokens_s / sample.sequences)
            if outcome is Outcome.CUT_OFF or self._class not in (None, sample.priority):
                self._harmed_at = now
            self._class = sample.priority
            if self._window.take_in(sample):
                self._look(self._window, now)

    def on_load(self, load: ServerLoad, in_flight: int, now: float, took_s: float = 0.0) -> None:
        report = Report(now, load, in_flight)
        if self._trial is not None:
            self._page.reports.add(report, self.limit)
        elif (step := self._page.on_report(report, took_s, self.limit, self._most)) is not None:
            self._move(*step)

    def on_known(self, slots: int | None, now: float) -> None:
        self.interrupt(now)
        bounded = self.limit == self._most < self._start
        self._most = self._ceiling if slots is None else min(self._ceiling, max(1, slots))
        if self.limit > self._most:
            self._move(self._most, f"the server allows {slots} calls at once")
        elif bounded and self.limit < self._most:
            self._move(min(self._start, self._most), "the server that allowed fewer has gone")

    def on_restart(self, guess: int | None) -> None:
        if guess is not None and guess < self.limit:
            self.limit, self.reason = guess, "the server was started anew"
        self._page.forget()
        for cooldown in self._cooldowns.values():
            cooldown.forget()
        self._forget()

    def interrupt(self, now: float) -> None:
        self._end_trial(now)
        self._window = Window(self.limit, 1)

    def be_guest(self, on: bool, capacity: float = 0.0) -> None:  # noqa: FBT001
        """Heed the page beside others, too, from a small start; or as usual again."""
        self._page.beside_others = on
        if on and self.answers.began == math.inf and self.limit > self._guest_start:
            self._move(self._guest_start, "a guest begins with few")
        elif not on and self.limit < (usual := math.ceil(1.1 * capacity) if capacity else self._start):
            self._move(min(usual, self._most), "no guest any more")

    def rest(self, now: float) -> None:
        """Another bound is in force: try nothing, and keep the number."""
        if self._trial is not None:
            self.interrupt(now)
        self._page.rest()

    # Windows and trials --------------------------------------------------------------------------------------------

    def _move(self, limit: int, reason: str, rounds: int = 1) -> None:
        """Set the limit, and measure once the sequences sent before have ended."""
        self._window = Window(limit, rounds)
        if limit != self.limit:
            self.limit, self.reason = limit, reason

    def _look(self, window: Window, now: float) -> None:
        """Tell whether a window is over, and act on it."""
        if now - window.began < window.latency_s:
            return
        error = window.error
        clear = self._trial is not None and self._trial.is_clear(window, error)
        noisy = error > (LOSS if window.shared > SHARED else _ERROR) and not clear
        if noisy and now - window.began < self._longest_s(now):
            return
        self._window = Window(self.limit, began=now)
        used = window.peak >= USED_RATIO * self.limit or window.peak + window.heaviest > self.limit
        steady = window.shared > SHARED and window.load > max((1 - LOSS) * window.peak, _MANY)
        if not (used or steady) or (noisy and error > LOSS):
            self._end_trial(now)
        elif self._trial is None:
            self._consider(window, now)
        else:
            self._judge(self._trial, window, now)

    def _consider(self, window: Window, now: float) -> None:
        """Begin a trial if anything speaks for one."""
        if self._usual is None:
            self._usual = window
        elif window.times_as_long(self._usual) > 2:
            self._usual = window
            self._least_first_s = math.inf
            for cooldown in self._cooldowns.values():
                cooldown.forget()
            self._page.work_changed()
        trusted = now - self._harmed_at < _MINUTE_S
        quiet = now - self.answers.began < _QUIET_S
        wanted = self._less(window, now, trusted=trusted) if trusted or not quiet else None
        if wanted is None and not quiet:
            wanted = self._more(window, now)
        if wanted is None or not self._turn.take(self, now + self._longest_s(now), now):
            return
        limit, reason, why = wanted
        self._usual = window
        self._trial = Trial(self.limit, window, reason, limit, trusted and reason in _WAITS, self._left, self.limit)
        self._try(self._trial, limit, why, window, now)

    def _try(self, trial: Trial, limit: int, why: str, window: Window, now: float) -> None:
        """Go on with a trial at another limit."""
        trial.until = now + 2 * self._longest_s(now) + 2 * window.latency_s
        self._turn.take(self, trial.until, now)
        # Calls that share prefixes must have come twice before a limit shows its yield.
        self._move(limit, why, 2 if window.shared > SHARED else 1)

    def _longest_s(self, now: float) -> float:
        """How long a window may last."""
        return max(_MINUTE_S, _JOB_SHARE * (now - self.answers.began))

    def _less(self, window: Window, now: float, *, trusted: bool) -> tuple[int, str, str] | None:
        """The lowest limit that anything speaks for, its reason, and the reason in words."""
        lower = self._waits(window, now, trusted=trusted)
        if self.limit > 1 and window.shared > SHARED and not self._cooldowns["half"].lasts(now):
            half = min(self.limit, window.peak) // 2
            lower.append((half, "half", "calls share prefixes: fewer may fit the server's cache"))
        # A smaller step would be lost in the noise.
        most = (1 - _MARGIN) * self.limit
        # Below the heaviest call a limit changes nothing.
        lower = [(max(limit, window.heaviest), reason, why) for limit, reason, why in lower]
        return min((one for one in lower if one[0] <= most), default=None)

    def _waits(self, window: Window, now: float, *, trusted: bool) -> list[tuple[int, str, str]]:
        """Limits without the calls that seem to wait in the server, where the page's steps see to none."""
        lower: list[tuple[int, str, str]] = []
        if self._page.decides(now):
            return lower
        if not self._cooldowns["queue"].lasts(now) and (waits := self._page.reports.our_waiting(now)):
            served = max(1.0, window.load - waits)
            lower.append((_above(served), "queue", f"{waits:.0f} calls waited in the server all the time"))
        waiting = window.waiting(self._least_first_s)
        if not self._cooldowns["wait"].lasts(now) and waiting > _WAITING_SHARE:
            served = max(1.0, window.load * (1 - waiting), 0.0 if trusted else window.load / 2)
            lower.append((_above(served), "wait", f"calls spent {waiting:.0%} of their time waiting for a first token"))
        return lower

    def _more(self, window: Window, now: float) -> tuple[int, str, str] | None:
        if self.limit >= self._most or window.peak < USED_RATIO * self.limit or self._cooldowns["more"].lasts(now):
            return None
        if self._page.decides(now) or self._waits(window, now, trusted=False):
            # Less is tried first. If less did not pay, a queue is no reason against more.
            return None
        limit = min(self._most, math.ceil(_MORE * self.limit))
        return limit, "more", "to see whether more calls at once bring more"

    def _judge(self, trial: Trial, window: Window, now: float) -> None:
        """Take in a window of a trial, and go on with the trial or end it."""
        if window.times_as_long(trial.before) > _ALIKE or not trial.shows(window):
            self._end_trial(now)
            return
        if trial.again:
            self._conclude(trial, trial.kept if trial.confirms(window) else trial.first, now)
            return
        step = None
        if trial.judge(window):
            step = self._less(window, now, trusted=trial.trusted) if trial.other < trial.first else None
        elif trial.may_be_before_a_peak(window) and trial.other // 2 >= window.heaviest:
            step = trial.other // 2, trial.reason, "a cache that fits fewer calls may make up for it"
        elif trial.kept != trial.first:
            # The reason of a trial without a change cools down at the trial's end.
            self._cooldowns[trial.reason].begin(now)
        if step is not None:
            trial.other, trial.reason, why = step
            self._try(trial, trial.other, why, window, now)
            return
        if trial.certain:
            self._conclude(trial, trial.kept, now)
        else:
            trial.again = True
            self._try(trial, trial.first, f"to compare with {trial.kept} once more", window, now)

    def _conclude(self, trial: Trial, limit: int, now: float) -> None:
        """End the trial at a limit."""
        self._trial, self._voids = None, False
        self._turn.give_back(self)
        if limit < trial.first:
            self._left = min(1.0, trial.left * trial.gain)
            self._cooldowns["more"].rest(now)
        elif limit > trial.first:
            self._left = 1.0
            for reason in _LESS:
                self._cooldowns[reason].rest(now)
        else:
            self._cooldowns[trial.reason].begin(now)
        if limit != trial.first:
            why = f"{limit} in flight bring {trial.gain:.0%} of what {trial.first} did"
        elif trial.again:
            why = f"{trial.kept} in flight brought {1 - trial.gain:.0%} less"
        elif round(trial.lost, 2) > 0:
            why = f"{trial.other} in flight brought {trial.lost:.0%} less"
        else:
            why = f"{trial.other} in flight brought no more to speak of"
        self._move(limit, why)

    def _end_trial(self, now: float) -> None:
        """End a trial that says nothing: the limit is back. A second such end begins a cooldown."""
        trial, self._trial = self._trial, None
        if trial is None:
            return
        self._turn.give_back(self)
        if self._voids:
            self._cooldowns[trial.reason].begin(now)
        self._voids = True
        self._move(trial.first, f"the trial of {trial.other} says nothing")


def _above(served: float) -> int:
    """A limit for so many that are served: a small queue refills a place the moment it comes free."""
    return math.ceil(served + max(1.0, _MARGIN * served))
