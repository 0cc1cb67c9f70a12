"""The search for a limit: a start by evidence, then trials of more or less, each checked.

Rules (the design's, ``docs/explanation/limits.md`` has them for users):
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

from batchclient._core.limits.base import NEWEST_SHARE, USED_RATIO, Limit, LimitChange, Outcome, Sample, ServerLoad
from batchclient._core.limits.evidence import Settling, Window
from batchclient._core.limits.page import PageSteps
from batchclient._core.limits.trial import LOSS, SHARED, Silence, Trial, Turn, Verdict

__all__ = ["START", "Search"]

START = 256
"""vLLM's default number of running sequences on small GPUs."""

_LESS = ("queue", "wait", "half")
"""The reasons for less."""
_WAITS = ("queue", "wait")
_QUIET_S = 10.0
_PAUSE_S = 3.0
"""So long without an answer, beyond the time of answers, ends a job."""
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
"""A small queue refills a place the moment it comes free."""
_ALIKE = 1.2


class Search(Limit):
    """A limit found by search.

    Args:
        ceiling: the highest limit.
        turn: shared by the limits of one client's servers.
    """

    __slots__ = (
        "_ceiling", "_class", "_cut_off_at", "_ended_at", "_latency_s", "_least_first_s", "_left", "_most",
        "_other_class_at", "_page", "_settling", "_silences", "_start", "_trial", "_turn", "_usual", "_voids",
        "_window", "_work_since",
    )  # fmt: skip

    def __init__(self, start: int = START, ceiling: int = 1024, turn: Turn | None = None) -> None:
        if not 1 <= start <= ceiling:
            raise ValueError(f"1 <= start <= ceiling, got {start}, {ceiling}")
        super().__init__(start, "the start")
        self._start = start
        self._ceiling = self._most = ceiling
        """The highest limit; the server's own bound may lower ``_most``."""
        self._turn = turn or Turn()
        self._page = PageSteps()
        self._latency_s = 0.0
        self._ended_at = self._work_since = math.inf
        self._class: int | None = None
        self._other_class_at = -math.inf
        """The priority class of the last answer, and when the class last changed."""
        self._cut_off_at = -math.inf
        self._forget()

    def _forget(self) -> None:
        self._trial: Trial | None = None
        self._window = Window(-math.inf)
        self._settling: Settling | None = Settling(self.limit, 1)
        self._least_first_s = math.inf
        self._silences = {reason: Silence() for reason in (*_LESS, "more")}
        self._usual: Window | None = None
        """The work when a trial began last; before any, and after it has changed, the first seen."""
        self._voids = False
        """Whether the last trial said nothing."""
        self._left = 1.0
        """The share left, after descents since the last raise, of the yield at the raise."""

    # What it is told -----------------------------------------------------------------------------------------------

    def on_sample(self, sample: Sample) -> LimitChange | None:
        now = sample.now
        if self._trial is not None and now > self._trial.until:
            self._voids = True
            return self._end_trial(now)
        if sample.cut_off:
            self._cut_off_at = now
        if sample.outcome is Outcome.DROPPED:
            return self._end_trial(now)
        if sample.outcome is Outcome.IGNORED or now <= sample.sent_at:
            # A sample of no duration (a mocked server's answer) has no rate.
            return None
        change = self._follow(sample)
        self._page.on_sample(sample)
        if self._settling is not None:
            if not self._settling.is_over(sample):
                return change
            self._settling = None
            self._window = Window(now)
        return (self._look(self._window, now) if self._window.take_in(sample) else None) or change

    def on_load(self, load: ServerLoad, in_flight: int, now: float, took_s: float = 0.0) -> LimitChange | None:
        if self._trial is not None:
            self._page.queue.on_load(load, in_flight, now)
            return None
        step = self._page.on_load(load, in_flight, took_s, self.limit, self._most, now)
        if step is None:
            return None
        return self._move(*step)

    def on_known(self, slots: int | None, now: float) -> LimitChange | None:
        change = self.interrupt(now)
        bounded = self.limit == self._most < self._start
        self._most = self._ceiling if slots is None else min(self._ceiling, max(1, slots))
        if self.limit > self._most:
            return self._move(self._most, f"the server allows {slots} calls at once")
        if bounded and self.limit < self._most:
            return self._move(min(self._start, self._most), "the server that allowed fewer has gone")
        return change

    def on_resume(self, now: float) -> LimitChange | None:
        return self._end_trial(now) if now - self._ended_at > _PAUSE_S else None

    def on_restart(self, now: float, guess: int | None = None) -> LimitChange | None:
        change = self._end_trial(now)
        if guess is not None and guess < self.limit:
            change = self._set(guess, "the server was started anew")
        self._page.forget()
        self._forget()
        return change

    def interrupt(self, now: float) -> LimitChange | None:
        change = self._end_trial(now)
        self._settling = Settling(self.limit, 1)
        return change

    def on_bound(self, now: float) -> LimitChange | None:
        return self._end_trial(now)

    # The job and its pauses ----------------------------------------------------------------------------------------

    def _follow(self, sample: Sample) -> LimitChange | None:
        """Tell whether the job is the same, and follow its answers."""
        now, seconds = sample.now, sample.now - sample.sent_at
        change = None
        if sample.sent_at - self._ended_at > _PAUSE_S + self._latency_s or self._work_since == math.inf:
            change = self._end_trial(now)
            self._work_since = sample.sent_at
            self._settling = Settling(self.limit, 1)
        self._ended_at = now
        self._latency_s += NEWEST_SHARE * (seconds - self._latency_s) if self._latency_s else seconds
        if sample.first_tokens_s:
            self._least_first_s = min(self._least_first_s, sample.first_tokens_s / sample.sequences)
        if self._class not in (None, sample.priority):
            self._other_class_at = now
        self._class = sample.priority
        return change

    def _wait_is_harm(self, now: float) -> bool:
        """Whether a wait in the server does harm: to a higher class, or by a gateway's cut."""
        return now - max(self._cut_off_at, self._other_class_at) < _MINUTE_S

    # Windows and trials --------------------------------------------------------------------------------------------

    def _move(self, limit: int, reason: str, generations: int = 1) -> LimitChange | None:
        """Set the limit, and measure once the sequences sent before have ended."""
        self._settling = Settling(limit, generations)
        self._page.queue.restart()
        return self._set(limit, reason)

    def _look(self, window: Window, now: float) -> LimitChange | None:
        """Tell whether a window is over, and act on it."""
        seconds = now - window.began
        if seconds < window.latency_s:
            return None
        error = window.error
        clear = self._trial is not None and self._trial.is_clear(window, error)
        noisy = error > (LOSS if window.shared > SHARED else _ERROR) and not clear
        if noisy and seconds < self._longest_s(now):
            return None
        self._window = Window(now)
        used = window.peak >= USED_RATIO * self.limit or window.peak + window.heaviest > self.limit
        steady = window.shared > SHARED and window.load > max((1 - LOSS) * window.peak, _MANY)
        if not (used or steady) or (noisy and error > LOSS):
            return self._end_trial(now)
        return self._consider(window, now) if self._trial is None else self._judge(self._trial, window, now)

    def _consider(self, window: Window, now: float) -> LimitChange | None:
        """Begin a trial if anything speaks for one."""
        if self._usual is None:
            self._usual = window
        elif window.times_as_long(self._usual) > 2:
            self._usual = window
            self._least_first_s = math.inf
            for silence in self._silences.values():
                silence.end()
            self._page.work_changed()
        trusted = self._wait_is_harm(now)
        quiet = now - self._work_since < _QUIET_S
        wanted = self._less(window, now, trusted=trusted) if trusted or not quiet else None
        if wanted is None and not quiet:
            wanted = self._more(window, now)
        if wanted is None:
            return None
        limit, reason, why = wanted
        if not self._turn.take(self, now + self._longest_s(now), now):
            return None
        self._usual = window
        self._trial = Trial(self.limit, window, reason, limit, trusted and reason in _WAITS, self.limit, self._left)
        return self._try(self._trial, limit, why, window, now)

    def _try(self, trial: Trial, limit: int, why: str, window: Window, now: float) -> LimitChange | None:
        """Go on with a trial at another limit."""
        trial.until = now + 2 * self._longest_s(now) + 2 * window.latency_s
        self._turn.take(self, trial.until, now)
        # Calls that share prefixes must have come twice before a limit shows its yield.
        return self._move(limit, why, 2 if window.shared > SHARED else 1)

    def _longest_s(self, now: float) -> float:
        """How long a window may last."""
        return max(_MINUTE_S, _JOB_SHARE * (now - self._work_since))

    def _less(self, window: Window, now: float, *, trusted: bool) -> tuple[int, str, str] | None:
        """The lowest limit that anything speaks for, its reason, and the reason in words."""
        said: list[tuple[float, str, str]] = []
        alone = self._page.speaks(now)
        if not alone and (waits := self._page.queue.ours(now)):
            served = max(1.0, window.load - waits)
            said.append((served, "queue", f"{waits:.0f} calls waited in the server all the time"))
        waiting = window.waiting(self._least_first_s)
        if not alone and waiting > _WAITING_SHARE:
            served = max(1.0, window.load * (1 - waiting), 0.0 if trusted else window.load / 2)
            said.append((served, "wait", f"calls spent {waiting:.0%} of their time waiting for a first token"))
        lower = [(math.ceil(load + max(1.0, _MARGIN * load)), reason, why) for load, reason, why in said]
        if self.limit > 1 and window.shared > SHARED:
            half = min(self.limit, window.peak) // 2
            lower.append((half, "half", "calls share prefixes: fewer may fit the server's cache"))
        # A smaller step would be lost in the noise.
        most = (1 - _MARGIN) * self.limit
        # Below the heaviest call a limit changes nothing.
        lower = [(max(limit, window.heaviest), reason, why) for limit, reason, why in lower]
        return min((one for one in lower if one[0] <= most and not self._silences[one[1]].lasts(now)), default=None)

    def _more(self, window: Window, now: float) -> tuple[int, str, str] | None:
        if self.limit >= self._most or window.peak < USED_RATIO * self.limit or self._silences["more"].lasts(now):
            return None
        if self._page.speaks(now):
            return None
        waits = window.waiting(self._least_first_s) > _WAITING_SHARE and not self._silences["wait"].lasts(now)
        if waits or (self._page.queue.ours(now) and not self._silences["queue"].lasts(now)):
            # Less is tried first. If less did not pay, a queue is no reason against more.
            return None
        limit = min(self._most, math.ceil(_MORE * self.limit))
        return limit, "more", "to see whether more calls at once bring more"

    def _judge(self, trial: Trial, window: Window, now: float) -> LimitChange | None:
        """Take in a window of a trial, and go on with the trial or end it."""
        if window.times_as_long(trial.before) > _ALIKE or not trial.shows(window):
            return self._end_trial(now)
        if trial.again:
            return self._conclude(trial, trial.kept if trial.confirms(window) else trial.first, now)
        verdict = trial.judge(window)
        if verdict is Verdict.PERHAPS and trial.other // 2 >= window.heaviest:
            trial.other //= 2
            return self._try(trial, trial.other, "a cache that fits fewer calls may make up for it", window, now)
        if verdict is not Verdict.HOLDS:
            if trial.kept != trial.first:
                # The reason of a trial without a change is silenced at the trial's end.
                self._silences[trial.reason].begin(now)
        elif trial.other < trial.first:
            further = self._less(window, now, trusted=trial.trusted)
            if further is not None:
                trial.other, trial.reason, why = further
                return self._try(trial, trial.other, why, window, now)
        if not trial.certain:
            trial.again = True
            return self._try(trial, trial.first, f"to compare with {trial.kept} once more", window, now)
        return self._conclude(trial, trial.kept, now)

    def _conclude(self, trial: Trial, limit: int, now: float) -> LimitChange | None:
        """End the trial at a limit."""
        self._trial, self._voids = None, False
        self._turn.give_back(self)
        if limit < trial.first:
            self._left = min(1.0, trial.left * trial.gain)
            self._silences["more"].rest(now)
            self._page.rest(now)
        elif limit > trial.first:
            self._left = 1.0
            for reason in _LESS:
                self._silences[reason].rest(now)
        else:
            self._silences[trial.reason].begin(now)
        if limit != trial.first:
            why = f"{limit} in flight bring {trial.gain:.0%} of what {trial.first} did"
        elif trial.again:
            why = f"{trial.kept} in flight brought {1 - trial.gain:.0%} less"
        elif round(trial.lost, 2) > 0:
            why = f"{trial.other} in flight brought {trial.lost:.0%} less"
        else:
            why = f"{trial.other} in flight brought no more to speak of"
        return self._move(limit, why)

    def _end_trial(self, now: float) -> LimitChange | None:
        """End a trial that says nothing: the limit is back. A second such end begins a silence."""
        trial, self._trial = self._trial, None
        if trial is None:
            return None
        self._turn.give_back(self)
        if self._voids:
            self._silences[trial.reason].begin(now)
        self._voids = True
        return self._move(trial.first, f"the trial of {trial.other} says nothing")
