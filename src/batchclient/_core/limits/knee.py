"""The knee of a server that batches continuously, found from what its answers took.

What is measured is the elasticity ``e`` of throughput to load, at the present load: 1 while more load costs nobody any time, 0 on the plateau, negative
where the server thrashes (``elasticity``).

What is done with it:
- The limit moves by ``d ln L / dt = push / pace``, where the pace is a mean latency: up by ``_GAIN · (e - target) ** _POWER`` while
  throughput grows with load (the slow start, where ``e`` is near 1, and the approach), down by ``_RETREAT`` per target's worth where it does not.
- Where answers come piece by piece, once the limit has come down: each turn from up to down or back shortens its stride, and going on lengthens it again.
  An estimate is as old as what it rests on, so that a limit in full stride runs past its aim either way. Turns shorten nothing where answers come
  in one piece: on the plateau of a cache that thrashes noise turns the limit all the time, and it must get down from there.
- It never runs far ahead of the evidence: it is moved neither above 1.4 times nor below 0.85 of the load that the last answers saw (as far as
  they waited, of the queue they met). Once it has come down, its way up is no slow start any more, and on a noisy server it runs less far ahead:
  half of what is taken for growth there is noise.
- So that there is a slope to see, the limit swings a little above and below its base, in turn, a little more than a pace each.
- Where prompts were seen to wait for their first token in the last pace, there probably is a queue, and less load costs nothing: only a clear
  ``e`` raises the limit then, and one that is not clear lowers it, the faster the more of the time is waiting.
- Where answers come in one piece (plain replies, a server that pads) no queue would be seen. There may be one: the limit falls faster there, and
  in whole steps. A server that runs one batch after another shows its queue by how its answers end (``bursts``). Where answers have a few tokens, what each load
  brought is remembered: the limit stays at a peak, without a swing, until one side of it is forgotten, and comes down a plateau by halves (``short``).
- Where the limit is not used (less than 0.8 of it in flight, and room for another call) it stays, but for refusals and late answers, and nothing is
  learnt. The load is then what arrives times what it takes (Little's law again): a server that happens to be slow has more in flight, which looks
  like a plateau whatever the load is. A limit that believed it came down by noise alone, and the next burst waited in the client.
- A refusal that is about load (``refused``) cuts the base once per episode, and for a while bounds it just below where it happened (``bound``).
- Answers that come too late (their callers' deadlines have passed) bound it likewise, once they are more than a few; if all do, the base is
  cut without waiting for a slope.
- Until it first comes down, first tokens raise it before any answer has ended (``opening``).
- After a pause (nothing was sent for three seconds after the last answer), a server of short answers has cold caches: for a second from the first answer on
  nothing is learnt, and what was seen before is not compared with what comes.
- If the server has changed, the base stands still for a pace. Where it became faster, the base also goes back to below the loads it was seen at:
  what the limit has grown by meanwhile had no other reason.

Sources: targets and the cut on refusal as in the design's study of controllers. The other constants were chosen in the
laboratory (``benchmarks/lab``), over all its profiles.
"""

from __future__ import annotations

import math

from batchclient._core.limits.base import LimitChange, Outcome, Sample
from batchclient._core.limits.bound import Bound
from batchclient._core.limits.bursts import Bursts
from batchclient._core.limits.elasticity import Elasticity
from batchclient._core.limits.evidence import Cohort, Point
from batchclient._core.limits.opening import Opening
from batchclient._core.limits.refused import Refusals
from batchclient._core.limits.short import ShortAnswers, Step, short_aim

__all__ = ["KneeLimit"]

OBJECTIVES = {"throughput": 0.05, "balanced": 0.1, "latency": 0.5}
"""The elasticity aimed at. At 0.1, one per cent more load would still bring a tenth of a per cent more throughput."""

_GAIN = 0.6
_LATER_GAIN = 0.85
"""Once it has come down, where answers come piece by piece: turns shorten what it comes to."""
_POWER = 0.68
"""A power below 1 is eager where little is to be gained (a server shared with others), without being faster where everything is."""
_RETREAT = 0.1
"""Down by this share of the logarithm per pace at ``e = 0``. At the default target that is about as fast as it comes up from as far on the other
side: on a noisy server what goes down faster than it comes up goes down."""
_STEEPEST = 2.0
"""At most so many times as fast: what seems to be much below 0 is half noise, as a rule."""
_UNSEEN_RETREAT = 0.2
_UNSEEN_STEEPEST = 3.0
"""The same where answers come in one piece: much of their time may be a wait in a queue, and the plateau of a cache that thrashes must be left
although its noise is often taken for growth."""
_AHEAD = 1.4
_LEAST_AHEAD = 1.2
_QUIET_NOISE = 0.025
"""On servers whose points are noisier than this the limit runs less far ahead, by the root of how much noisier they are, but 1.2 times at least: a limit
that callers use up to 0.85 or so must still be able to grow. With 1.4 on all servers single runs overshot a cliff again and again, at worst for a quarter
of the throughput."""
_BEHIND = 0.85
_SWING_RATIO = 0.12
_SWING_PACES = 2.3
_QUEUE_RETREAT = 1.75
"""Down by this times the share of time that is waiting, per pace: by Little's law that share of what is in flight waits. With more than about 2 the
limit comes back too far, again and again."""
_POINTS_PER_PACE = 4
_SHORTEST_PACE_S = 1.0
"""On a fast server: enough answers per decision, rather than more decisions than anybody needs."""
_HIDDEN_QUEUE = 0.5
"""Where answers come in one piece, half of their time is taken for a wait when the limit is about to grow."""
_TURN_RATIO = 0.6
_STRIDE_GROWTH = 1.1
_SHORTEST_STRIDE = 0.4
"""Of the stride, at each turn; per pace in one direction; at least. An adaptive step size (Riedmiller and Braun 1993), with a shortest one that still
reaches what has moved. In the laboratory without it (``--set _TURN_RATIO=1``, ten seeds): latency of ``A`` 1.21 for 1.13, of ``B`` 1.29 for 1.27, throughput of
``agents`` 0.79 for 0.86."""
_PAUSE_S = 3.0
_COLD_S = 1.0
"""Where answers take less than this: of slower ones a whole burst would say nothing."""
_BACK_RATIO = 0.8
"""Where a server became faster, back to this share of the least load that was looked at: while the change was taken for growth the limit rose with it,
in one run of eight up to the ceiling."""
_USED_RATIO = 0.8
_CUT_RATIO = 0.8
_SHORTEST_COOLDOWN_S = 1.0
_LATE_RATIO = 0.02
_FUTILE_CUT_RATIO = 0.7


class KneeLimit:
    """Throughput's elasticity to load, aimed just past the knee.

    Args:
        start: the first limit.
        floor: never below this.
        ceiling: never above this.
        target: the elasticity aimed at (``OBJECTIVES``).
        opens: whether first tokens may raise it before any answer has ended.
    """

    __slots__ = (
        "_base", "_bound", "_bursts", "_came_down", "_ceiling", "_cohort", "_elasticity", "_ended_at", "_floor", "_hold_until", "_latency_s", "_learns_from", "_opening", "_opens", "_pace_s",
        "_phase", "_refusals", "_short", "_steered_at", "_stride", "_target", "_upward", "limit",
    )  # fmt: skip

    def __init__(
        self, start: int = 64, floor: int = 1, ceiling: int = 1024, target: float = 0.1, *, opens: bool = True
    ) -> None:
        if not 1 <= floor <= start <= ceiling:
            raise ValueError(f"1 <= floor <= start <= ceiling, got {floor}, {start}, {ceiling}")
        if not 0 < target < 1:
            raise ValueError(f"the target elasticity lies between 0 and 1, got {target}")
        self.limit = start
        """Sequences that may be in flight."""
        self._base = float(start)
        self._floor = float(floor)
        self._ceiling = float(ceiling)
        self._target = target
        self._cohort = Cohort()
        self._bursts = Bursts()
        self._refusals = Refusals()
        self._elasticity = Elasticity()
        self._short = ShortAnswers()
        self._latency_s = 0.0
        self._pace_s = _SHORTEST_PACE_S
        self._steered_at: float | None = None
        self._phase = 0.0
        """Of the swing, in turns."""
        self._came_down = False
        """Whether the limit has fallen since the start: until then growth is no mistake."""
        self._opens = opens
        self._opening = Opening()
        self._hold_until = -math.inf
        self._ended_at = math.inf
        """When an answer ended last."""
        self._learns_from = -math.inf
        self._stride = 1.0
        """How much of a move is made."""
        self._upward = True
        """Which way the last one went."""
        self._bound = Bound()

    def __repr__(self) -> str:
        return f"<KneeLimit {self.limit}: elasticity {self.elasticity:.2f}>"

    @property
    def elasticity(self) -> float:
        """The last estimate."""
        return self._elasticity.value

    def on_sample(self, sample: Sample) -> LimitChange | None:
        """Take in one observation."""
        self._refusals.on_sample(sample)
        if sample.outcome is Outcome.DROPPED:
            return self._cut(sample)
        if sample.outcome is Outcome.IGNORED or sample.now <= sample.sent_at:
            # What took no time (a mocked server's answer) has no rate.
            return None
        if self._latency_s > 0 and sample.sent_at - self._ended_at > _PAUSE_S:
            self._bursts = Bursts()
            self._short.descent.interrupt()
            if self._latency_s < _COLD_S:
                self._learns_from = sample.now + _COLD_S
                self._elasticity.forget_points()
                self._cohort = Cohort()
        self._ended_at = sample.now
        cohort = self._cohort
        cohort.add(sample)
        self._bursts.add(sample)
        enough = max(4, self.limit // 8)
        if cohort.sequences < enough or sample.now - cohort.began < self._pace_s / _POINTS_PER_PACE:
            return None
        self._cohort = Cohort()
        return self._steer(cohort, sample.now)

    @property
    def opening(self) -> bool:
        """Whether first tokens may still raise it."""
        return self._opens and not self._came_down and not self._opening.over

    def on_begun(self, running: int, hurry: float, now: float) -> LimitChange | None:
        """All prompts of a batch have their first token, and none has ended; return the change it caused, if any.

        Args:
            running: sequences that were in flight when it was sent, and of which none has ended.
            hurry: the share of the time that their callers give which it took; 0: they give any time.
            now: the time.
        """
        if not self.opening or now < self._hold_until:
            return None
        base = self._opening.raised(self._base, running, hurry)
        if base <= self._base:
            return None
        self._base = base
        return self._set(f"{running} sequences have begun to be answered")

    def on_restart(self, now: float) -> LimitChange | None:
        """The server was started anew: what was learnt of it is void.

        The number stays: it is the best guess there is, and slow start (``health``) keeps a cold server from getting all of it at once.
        """
        self._elasticity.forget_all()
        self._short.forget()
        self._stride = 1.0
        self._came_down = False
        self._opening = Opening()
        self._refusals = Refusals()
        self._bursts = Bursts()
        self._bound.let_go()
        return None

    def hold(self, limit: int) -> None:
        """Something else keeps the limit in force at ``limit``: run no further ahead of it than of what was seen."""
        if self._base > _AHEAD * limit:
            self._base = _AHEAD * limit
            self._short.descent.give_up()
            self._set("held")

    # One step of the loop ------------------------------------------------------------------------------------------

    def _steer(self, cohort: Cohort, now: float) -> LimitChange | None:
        paces = self._passed(cohort, now)
        if cohort.late > max(1.0, _LATE_RATIO * cohort.sequences) and not self._bound.is_cooling(now):
            self._bound_below(min(self._short.descent.kept or self._base, cohort.late_load), now)
            self._base = min(self._base, self._bound.load)
            if cohort.answered:
                # A cliff has no slope: the points on it would only say how deep it is.
                return self._set("answers came too late")
        if not cohort.answered:
            self._short.give_up()
            self._base = max(self._floor, self._base * _FUTILE_CUT_RATIO**paces)
            return self._set("no answer came in time")
        if cohort.peak < _USED_RATIO * self.limit and cohort.peak + cohort.heaviest <= self.limit:
            # The load was not ours to set: it follows the time that answers take, rather than the other way round.
            self._short.descent.interrupt()
            return None
        if now < self._learns_from:
            self._bound.expire(now)
            return None
        # A call of many sequences that does not fit any more leaves that much of the limit empty.
        step = Step(cohort.point(now), cohort.peak, cohort.heaviest - 1, self._base, paces, self._pace_s)
        reason = self._move(step)
        self._bound.expire(now)
        self._base = max(self._floor, min(self._base, self._ceiling, self._bound.load))
        self._phase = (self._phase + paces / _SWING_PACES) % 1.0
        return self._set(reason if self._short.settled else f"{reason}, swinging about {self._base:.0f}")

    def _passed(self, cohort: Cohort, now: float) -> float:
        """Take in the latency; return how many paces have passed since the last step, at most one."""
        latency_s = cohort.seconds / cohort.sequences
        self._latency_s += 0.3 * (latency_s - self._latency_s) if self._latency_s else latency_s
        self._pace_s = max(self._latency_s, _SHORTEST_PACE_S)
        since, self._steered_at = self._steered_at, now
        return 1 / _POINTS_PER_PACE if since is None else min(1.0, (now - since) / self._pace_s)

    def _move(self, step: Step) -> str:
        """Take in answers and move the base; return why."""
        base = step.base
        change = self._elasticity.take_in(step.newest, base, step.pace_s, step.newest.at, self._bursts)
        if change is not None and not (self._short.descent.under_way and self._elasticity.short):
            self._hold_until = step.newest.at + step.pace_s
            self._stride = 1.0
            self._short.forget()
            if self._came_down and change.faster:
                self._base = base = min(base, _BACK_RATIO * change.least_load)
        bounds = self._floor, min(self._ceiling, self._bound.load)
        wanted = self._short.take_in(step._replace(base=base), self._elasticity, self._aim, bounds)
        if wanted is not None:
            self._came_down = True
            if wanted.looked_at:
                self._base = wanted.load
            else:
                self._stride = _SHORTEST_STRIDE
                self._base = max(_BEHIND * base, min(wanted.load + step.empty, _AHEAD * base))
            return wanted.reason
        if step.newest.at < self._hold_until:
            return "the server has changed"
        base = self._moved(step.newest, step.empty, step.paces)
        reason = f"elasticity {self.elasticity:.2f}, aiming at {self._aim:.2g}"
        if self._elasticity.queued:
            reason += f" ({self._elasticity.clear:.2g} with a queue of {self._elasticity.queued:.0%})"
        if self._opening.used and self._came_down:
            base = self._opening.drained(base, self._elasticity.points)
        self._base = base
        return reason

    @property
    def _aim(self) -> float:
        """The elasticity aimed at, of such answers."""
        return short_aim(self._target) if self._elasticity.short else self._target

    def _moved(self, newest: Point, empty: int, paces: float) -> float:
        """Where the elasticity has the base go."""
        elasticity = self._elasticity
        error = elasticity.value - self._aim
        upward = error >= 0 and elasticity.value >= elasticity.clear
        paces *= self._taken(paces, upward=upward)
        if not upward:
            self._came_down = True
            least = _BEHIND * (newest.load + empty)
            if self._base <= least:
                return self._base
            fallen = self._base * math.exp(-self._retreat(error / self._aim) * paces)
            return fallen if elasticity.unseen else max(fallen, least)
        # Answers that waited tell of the queue they met, not of the load since.
        felt = newest.felt(_HIDDEN_QUEUE if elasticity.unseen else elasticity.queued)
        gain = _LATER_GAIN if self._came_down and not elasticity.unseen else _GAIN
        grown = self._base * math.exp(gain * min(1.0, error) ** _POWER * paces)
        return max(self._base, min(grown, self._most_ahead() * (felt + empty)))

    def _taken(self, paces: float, *, upward: bool) -> float:
        """The stride, that way."""
        turned, self._upward = upward != self._upward, upward
        if turned and self._came_down and not self._elasticity.unseen:
            self._stride = max(_SHORTEST_STRIDE, _TURN_RATIO * self._stride)
        else:
            self._stride = min(1.0, self._stride * _STRIDE_GROWTH**paces)
        return self._stride

    def _most_ahead(self) -> float:
        """How far above the load that was seen the limit may lie and still grow."""
        if not self._came_down:
            return _LEAST_AHEAD if self._opening.used else _AHEAD
        return max(_LEAST_AHEAD, 1 + (_AHEAD - 1) * math.sqrt(_QUIET_NOISE / max(_QUIET_NOISE, self._elasticity.noise)))

    def _retreat(self, missed: float) -> float:
        elasticity = self._elasticity
        retreat, steepest = (_UNSEEN_RETREAT, _UNSEEN_STEEPEST) if elasticity.unseen else (_RETREAT, _STEEPEST)
        down = retreat * min(steepest, -missed)
        if elasticity.value >= elasticity.clear:
            return down
        return max(down, _RETREAT, _QUEUE_RETREAT * elasticity.queued)

    # Refusals ------------------------------------------------------------------------------------------------------

    def _cut(self, sample: Sample) -> LimitChange | None:
        if sample.admitted_at > self.limit:
            return None
        if self._bound.is_cooling(sample.now):
            return self._tighten(sample)
        if not self._refusals.about_load(sample.in_flight_at_sent):
            self._bound.let_go()
            return None
        self._bound_below(float(sample.in_flight), sample.now)
        self._base = max(self._floor, min(self._base * _CUT_RATIO, self._bound.load))
        return self._set("the server refused work")

    def _tighten(self, sample: Sample) -> LimitChange | None:
        """What is refused after the cut, though less is in flight, shows that it was too small."""
        load = self._bound.tightened(sample.in_flight_at_sent)
        if load >= self._bound.load or not self._refusals.about_load(sample.in_flight_at_sent):
            return None
        self._bound.load = load
        self._base = min(self._base, load)
        return self._set("the server refused work")

    def _bound_below(self, load: float, now: float) -> None:
        self._opening.over = True
        self._short.give_up()
        self._bound.set_below(load, self._floor, max(self._latency_s, _SHORTEST_COOLDOWN_S), now)

    def _set(self, reason: str) -> LimitChange | None:
        swing = (
            0.0 if self._short.settled else max(1.0, _SWING_RATIO * self._base) * (1.0 if self._phase < 0.5 else -1.0)
        )
        limit = round(max(self._floor, min(self._base + swing, self._bound.load, self._ceiling)))
        if limit == self.limit:
            return None
        self.limit = limit
        return LimitChange(limit, reason)
