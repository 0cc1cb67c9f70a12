"""Refusals for load (429, 503, 529): what calls of one kind for one model are sent after one.

A gateway refuses one call in a hundred because that call is too large. The refused call waits by
itself, and the next call takes its place. If the next two were refused as well, the server would be
full, and all calls would be held back.

Rules:
- Each endpoint has a pace for each kind of call and model: a *flow*. One flow's refusals hold no
  other flow.
- A server *takes other work* if it answered a call in the last 10 s, or has held a request of ours
  for ten times as long as the refusal took, or ran out of memory with others under way. If it
  takes other work, the refusal is *free*: it is no failed attempt, and the retry budget knows
  nothing of it. A call that pauses after a refusal is judged once more when the pause is over: the
  first calls of a job are refused before anything is answered.
- Not free are a 503 or 529 later than 5 s (the server may have worked), and each refusal from a
  call's twentieth on.
- While the server takes other work, a call is *refused alone* in three cases: nothing of its flow
  is taken; fewer than three requests of the flow were refused in a row, in the order in which they
  were sent; or the call was refused four times, and what was sent after the first time was
  answered. Such calls step aside: for 0.1 s, doubled each time up to 8 s. Six refusals of a call
  are free, and all in its first 6 s; then each is a failed attempt. No other call is held, and the
  limit hears nothing.
- Any other free refusal begins a *spell*; so do three in a row before the flow's first answer, with
  others of it under way, though they are not free. In a spell the flow is sent one request for each
  that ended with an answer. It lasts a quarter of a second, twice as long each time that the next
  one comes soon, up to 8 s; it ends early when 32 were answered for each that was refused. After it
  the flow *grows*: each answer brings two, until the limit is reached. If one is refused then, and
  a quarter of the latest calls were, another spell begins. After each further time of a spell a
  quarter more may be sent, also without an answer.
- A flow to a stranger, a server that has not said which it is, starts growing: 64 requests go at
  first, and what was not used does not add up to more. So no server gets several times as much as
  it was ever seen to bear. A quarter more each quarter of a second, without an answer, too.
- Memory that runs out lowers the limit (see ``bounds``). The flow grows to that limit at once.
- A long list ends with its longest answer. So a request may also go while the sequences under way
  are less than three quarters of those which the server held when it refused.
- A ``Retry-After`` is a *rest*. It holds the refused call, if that is refused alone; else the flow,
  unless others are under way and fewer than three were refused in a row.
- In a rest one request finds out whether the rest holds, once a quarter of those under way have
  ended. If it is answered, the rest is over. If it is refused, the next one goes when half of the
  others have ended; with no others after 0.25 s, eight times as long each time, up to a minute.
- Calls that step aside with a ``Retry-After`` find out likewise, one at an answer. If it is
  answered, two follow at each answer, until one is refused.
- After a rest as many requests are sent as were answered in it, at least one. Then the flow grows.
- A request that its caller left, or that was to blame itself, gives its place back. One that was
  lost does not.
- With none under way one is sent after a pause of 0.1 s, doubled each time, up to 2 s. A random
  part of the pause, half at most, is left out: clients refused together come back apart. It is one
  that was not refused before, if such a call waits.

Source: a request for each answer is the conservation of packets, and two for each the slow start
(V. Jacobson, "Congestion avoidance and control", SIGCOMM 1988).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from batchclient._core.failures import Failure
from batchclient._core.messages import Failed
from batchclient._core.requests import NO_REFUSAL, Batch, Endured, Refusal, Request
from batchclient._core.servers.hold import REFUSALS, REST, SLOW_START, Hold
from batchclient._core.servers.pause import Pause

__all__ = ["ANSWERED_S", "HELD_RATIO", "LONGEST_REST_S", "Pace", "aside_s"]

ANSWERED_S = 10.0
HELD_RATIO = 10.0
LONGEST_REST_S = 60.0
"""A server may ask for a longer rest. Its refused calls then fail; later calls find out anew."""
_LATEST_S = 5.0
_MOST_FREE = 19
_MOST_FREE_ASIDE, _FREE_ASIDE_S = 6, 6.0
_RUN = 3
_SHARE_OF, _SHARE = 16, 0.25
_ALWAYS = 4
_FIRST_PAUSE_S = 0.1
_LONGEST_PAUSE_S = 2.0
_LONGEST_ASIDE_S = 8.0
_SHORTEST_SPELL_S = 0.25
_LONGEST_SPELL_S = 8.0
_ANSWERS = 32
_HELD_SHARE = 0.75
_FIRST_BELIEVED_S, _BELIEVED_S = 0.25, 60.0
_FIRST = 64
"""Requests that a stranger is sent at first: as many as people send by hand."""
_NONE, _NEXT = -1, -2


def _may_be_free(failure: Failure, refusals: int, seconds: float) -> bool:
    """Whether a failure is a refusal for load which is free if the server takes other work.

    Args:
        failure: of a batch.
        refusals: how often its calls were refused, this time included.
        seconds: how long the refusal took.
    """
    if not failure.refuses_load or not failure.is_said or refusals > _MOST_FREE:
        return False
    return not failure.is_full or seconds <= _LATEST_S


def _is_free_aside(pasts: Collection[Endured]) -> bool:
    """Whether the latest refusal of calls with these pasts, refused alone, is free."""
    return any(
        past.refusals <= _MOST_FREE_ASIDE or past.in_attempts_s + past.in_pauses_s < _FREE_ASIDE_S for past in pasts
    )


def aside_s(refusals: int, jitter: float) -> float:
    """How long a call steps aside after so many refusals; ``jitter`` is random, from 0 to 1."""
    return (1 - jitter / 4) * min(_LONGEST_ASIDE_S, _FIRST_PAUSE_S * 2.0 ** min(max(0, refusals - 2), 10))


class _Run:
    """Refused requests in a row, in the order in which they were sent.

    Between two that were refused none was answered, and none is under way.
    """

    __slots__ = ("_refused", "answered", "length")

    def __init__(self) -> None:
        self._refused = self.answered = _NONE
        """The ids of the latest requests, by their sending, that were refused and answered."""
        self.length = 0

    def count(self, batch: int, under_way: Iterable[int]) -> None:
        """Count a refused request; ``under_way`` are the ids of the others, the earliest first."""
        low, high = sorted((self._refused, batch))
        taken = next((one for one in under_way if one > low), high) < high
        self.length = 1 if taken or low < self.answered < high else self.length + 1
        self._refused = high


class Pace:
    """What one endpoint may be sent of one flow; ``of_stranger``: it has not said which it is."""

    __slots__ = (
        "_answers_to_go", "_are_void", "_belief", "_believed_until", "_ended_at", "_grows", "_held", "_lists", "_pause",
        "_paused_until", "_run", "_served_at", "_share", "_spell", "_trial", "_tries_at", "_until", "answered_from",
        "credits", "in_flight", "is_open", "refusal", "rest_until", "under_way",
    )  # fmt: skip

    def __init__(self, *, of_stranger: bool = False) -> None:
        self.is_open = True
        """Whether any number of requests may be sent: there is neither a spell, nor growth, nor a rest."""
        self.under_way = self.in_flight = 0
        """Requests under way, and their sequences."""
        self._served_at = -math.inf
        """When a call was last answered."""
        self.answered_from = -math.inf
        """When the latest answered request was sent."""
        self.credits: int | None = None
        """Requests that may be sent now, with none under way one more; ``None``: any number."""
        self.rest_until: float | None = None
        """The end of a rest."""
        self.refusal: Failure | None = None
        """The refusal that asked for the last rest."""
        self._share = 0.0
        """The share of the latest calls that were refused; a refused list counts as one of them."""
        self._run, self._lists = _Run(), _Run()
        """Refused requests in a row; and refused lists, of which single calls say nothing."""
        self._trial = _NONE
        """The id of the request that finds out whether a rest holds; ``_NEXT``: the next one."""
        self._belief, self._believed_until = Pause(_FIRST_BELIEVED_S, _BELIEVED_S, 8.0), -math.inf
        """Until when rests are not tried."""
        self._are_void = False
        """Whether the latest such request was answered, and none was refused since."""
        self._tries_at = math.inf
        """The most sequences beside which another such request goes: a full server takes none."""
        self._grows = False
        """Whether each answer brings two until the limit is reached: after a spell, or at a stranger."""
        self._until = self._paused_until = -math.inf
        self._ended_at = -math.inf
        """When the last spell was over."""
        self._held = 0.0
        """Sequences which the server held beside those that it refused; without a rest only."""
        self._answers_to_go = 0.0
        """Answered requests which are due before the spell ends early."""
        self._spell = Pause(_SHORTEST_SPELL_S, _LONGEST_SPELL_S)
        self._pause = Pause(_FIRST_PAUSE_S, _LONGEST_PAUSE_S)
        if of_stranger:
            self._start_over(-math.inf)
            self.credits = _FIRST

    def __repr__(self) -> str:
        return f"<Pace: {self.credits} until {self._until:.3f} s>"

    # Refusals ------------------------------------------------------------------------------------------------------

    def failed(
        self,
        event: Failed,
        left: list[Request],
        alive: list[Request],
        under_way: Collection[Batch],
        now: float,
        *,
        takes_work: bool,
    ) -> Refusal:
        """A request has ended without an answer: it was lost, refused, or to blame itself.

        Return what its refusal for load says, if it is one.

        Args:
            event: the failure.
            left, alive: the calls without an answer, and those of them whose callers wait.
            under_way: all other requests of the endpoint, the earliest first.
            now: the time.
            takes_work: whether the server takes other work than this.
        """
        batch, failure = event.batch, event.failure
        tried = self._ended(batch, failure, len(left) * batch.shape.weight, now)
        if not (failure.refuses_load or failure.out_of_memory):
            return NO_REFUSAL
        pasts = [request.endured for request in alive if request.endured is not None]
        seconds, weight = now - batch.sent_at, batch.shape.weight
        is_free = is_alone = False
        is_of_load = True
        may_be_free = _may_be_free(failure, max((past.refusals for past in pasts), default=0), seconds)
        if may_be_free:
            beside = len(under_way) > 0 or batch.load.in_flight > weight
            is_free = takes_work or (failure.out_of_memory and beside)
        if failure.refuses_load and not failure.out_of_memory:
            if not all(past.is_refused_alone for past in pasts):
                self._count(batch, under_way)
            in_time = _may_be_free(failure, 0, seconds)
            is_alone = in_time and self._refuses_alone(pasts, now, takes_work=takes_work)
            # Where nothing of the kind was ever answered, nobody knows whether load was the reason.
            # But if no socket is left, there are too many at once.
            beside = self.is_known and batch.load.in_flight > len(batch.requests) * weight
            met_load = beside or not failure.is_said
            is_of_load = met_load and not is_alone and not self._takes_others
        if is_alone:
            is_free = is_free and _is_free_aside(pasts)
        else:
            self._hold_flow(event, now, is_free=is_free, tried=tried)
        return Refusal(seconds if may_be_free else None, is_free, is_alone, is_of_load)

    def _hold_flow(self, event: Failed, now: float, *, is_free: bool, tried: bool) -> None:
        """A request was refused, and not alone; ``tried``: it was to find out if a rest holds."""
        failure = event.failure
        rest_s = 0.0 if self._takes_others else self._rest(failure.of_the_server, now)
        # None was ever answered, and others are under way: the server is full at first.
        is_full = self.under_way > 0 and not self.is_known and self._refuses_in_a_row
        if failure.out_of_memory and is_free:
            self._start_over(now)
        elif (is_free or is_full) and not tried:
            self._begin_spell(rest_s, now)
        if is_free and not self.under_way:
            self._hold_all(event.jitter, now)

    def _count(self, batch: Batch, under_way: Collection[Batch]) -> None:
        """Count a refused request."""
        size = len(batch.requests)
        self._share += (1 - self._share) / _SHARE_OF
        # Thousands may be under way: each row is read as far as it must be.
        self._run.count(batch.id, (one.id for one in under_way if one.pace is self))
        if size > 1:
            longer = (one.id for one in under_way if one.pace is self and len(one.requests) >= size)
            self._lists.count(batch.id, longer)

    @property
    def is_known(self) -> bool:
        """Whether any call was ever answered."""
        return self._run.answered != _NONE

    @property
    def refuses_lists(self) -> bool:
        """Whether the latest lists were refused, three in a row."""
        return self._lists.length >= _RUN

    @property
    def _refuses_in_a_row(self) -> bool:
        return self._run.length >= _RUN

    @property
    def _takes_others(self) -> bool:
        """Whether others are under way that were sent beside the last refused requests."""
        return self.under_way > 0 and not self._refuses_in_a_row

    def _refuses_alone(self, pasts: Collection[Endured], now: float, *, takes_work: bool) -> bool:
        """Whether calls with these pasts are refused alone."""
        refusals = min((past.refusals for past in pasts), default=1)
        known = bool(pasts) and all(past.is_refused_alone for past in pasts)
        if not (known or takes_work):
            return False
        always = refusals >= _ALWAYS and self._run.answered > min(past.refused_first for past in pasts)
        takes_nothing = not self.under_way and now - self._served_at > ANSWERED_S
        if not (known or always or takes_nothing or not self._refuses_in_a_row):
            return False
        if self.credits is not None and always:
            # Load was not the reason: the places are free again.
            self.credits += 1 if refusals > _ALWAYS else refusals
        elif self._grows and self._share > _SHARE:
            self._begin_spell(0.0, now)
        for past in pasts:
            past.is_refused_alone = True
        return True

    # Spells --------------------------------------------------------------------------------------------------------

    def _begin_spell(self, rest_s: float, now: float) -> None:
        """A request was refused, and not alone; ``rest_s`` is the rest that is kept, 0 if none."""
        if self.credits is None or self._grows:
            if now < self._ended_at + 2 * self._spell.s:
                self._spell.take()
            else:
                self._spell.forget()
            self._answers_to_go, self._held, self._grows = 0.0, math.inf, False
        self.credits, self.is_open = 0, False
        self._held = 0.0 if rest_s else min(self._held, self.in_flight)
        self._answers_to_go += _ANSWERS
        self._until = max(self._until, now + self._spell.s)

    def _start_over(self, now: float) -> None:
        """Grow from what is under way: memory ran out, or a first rest is over. Each answer brings two."""
        self.credits, self._grows, self.is_open = 0, True, False
        self._held, self._ended_at, self._until = 0.0, now, now + self._spell.s

    def _hold_all(self, jitter: float, now: float) -> None:
        """Nothing is under way any more in a spell."""
        self._paused_until = now + (1 - jitter / 2) * self._pause.take()
        self._until = max(self._until, self._paused_until + self._spell.s)

    # Rests ---------------------------------------------------------------------------------------------------------

    def _rest(self, refusal: Failure, now: float) -> float:
        """The server may wish a rest; return how long it is to be, 0 if there is no such wish."""
        if refusal.retry_after_s is None:
            return 0.0
        rest_s = min(refusal.retry_after_s, LONGEST_REST_S)
        if self.rest_until is None:
            self.rest_until = now + rest_s
            self._tries_at = _HELD_SHARE * self.in_flight
        self.rest_until = max(self.rest_until, now + rest_s)
        self.refusal = refusal
        self.is_open = False
        return rest_s

    @property
    def _may_try(self) -> bool:
        return self._trial == _NONE and self.is_known and self.in_flight <= self._tries_at

    def lets_go(self, now: float) -> bool:
        """Whether a call need not wait for its ``Retry-After``; it then goes at once."""
        may_go = self._are_void or (self._may_try and now >= self._believed_until)
        if self.rest_until is not None or not may_go:
            return False
        if not self._are_void:
            self._trial = _NEXT
        return True

    def is_at_rest(self, now: float) -> bool:
        """Whether a rest lasts. Ends a rest that is over."""
        if self.rest_until is not None and now >= self.rest_until:
            self._end_rest(now)
            self.credits = max(1, self.credits or 0)
        return self.rest_until is not None

    def _end_rest(self, now: float) -> None:
        answered = self.credits or 0
        self.rest_until, self._trial = None, _NONE
        self._start_over(now)
        self.credits = answered

    def trust(self) -> None:
        """The server has said which it is: it may be sent any number, unless it has refused some."""
        if self.rest_until is None and not self._run.length:
            self.credits, self.is_open = None, True

    # Requests ------------------------------------------------------------------------------------------------------

    def sent(self, batch: int, sequences: int) -> None:
        """A request is sent."""
        self.under_way += 1
        self.in_flight += sequences
        if self.credits:
            self.credits -= 1
        if self._trial == _NEXT or (self._trial == _NONE and self.rest_until is not None):
            self._trial = batch

    def served(self, batch: Batch, sequences: int, now: float) -> None:
        """Some sequences of a request have their answers."""
        self.in_flight -= sequences
        self._served_at = now
        if batch.id > self._run.answered:
            self._run.answered = batch.id
            self.answered_from = max(self.answered_from, batch.sent_at)
        if len(batch.requests) > 1:
            self._lists.answered = max(self._lists.answered, batch.id)

    def answered(self, batch: Batch, limit: int, now: float) -> None:
        """A request has ended with an answer, under the endpoint's limit."""
        self.under_way -= 1
        self._share *= (1 - 1 / _SHARE_OF) ** len(batch.requests)
        if batch.id == self._trial:
            self._rest_was_void(now)
        if self.is_open:
            return
        if self.credits is not None:
            # What goes unused shows nothing of what the server can bear.
            if not self._grows or self.credits < max(_FIRST, self.under_way):
                self.credits += 2 if self._grows else 1
            self._answers_to_go -= 1
            self._pause.forget()
            if self._grows and self.under_way + self.credits >= limit:
                self.credits = None
                self.is_open = self.rest_until is None

    def _rest_was_void(self, now: float) -> None:
        self._belief.forget()
        self._are_void = True
        if self.rest_until is not None:
            self._end_rest(now)
        self._trial = _NONE

    def _ended(self, batch: Batch, failure: Failure, sequences: int, now: float) -> bool:
        """A request has ended without an answer; return whether it was to find out if a rest holds."""
        self.under_way -= 1
        self.in_flight -= sequences
        tried, refused = batch.id == self._trial, failure.refuses_load
        if refused and (tried or self._are_void):
            self._tries_at = self.in_flight / 2
            self._are_void = False
        if tried:
            self._trial = _NONE
            if refused and not self.under_way:
                self._believed_until = now + self._belief.take()
        if failure.may_be_lost:
            self._held -= sequences
        elif self.credits is not None and (tried or not refused):
            self.credits += 1
        return tried

    def sendable(self, now: float) -> Hold | None:
        """Move on with time; return what holds the next request back, ``None``: it may go now."""
        if self.is_open:
            return None
        if not self.is_at_rest(now) and self.credits is not None and now >= self._paused_until:
            self._end_spell(now)
        hold = self.hold(now)
        return hold if hold is not None and hold.next_at > now else None

    def _end_spell(self, now: float) -> None:
        """End a spell that is over; let more go after each further time of a spell."""
        assert self.credits is not None
        if not self._grows and (now >= self._until or self._answers_to_go <= 0):
            self._grows, self._ended_at = True, now
            self.credits += 1
        elif now >= self._until:
            # Answers that take minutes say nothing meanwhile.
            self.credits = max(self.credits, 1, self.under_way // 4)
        if now >= self._until:
            self._until = now + self._spell.s

    @property
    def _is_full(self) -> bool:
        """Whether nothing more may be sent in a spell before an answer."""
        return not self.credits and self.in_flight > 0 and self.in_flight >= _HELD_SHARE * self._held

    def hold(self, now: float) -> Hold | None:
        """What holds calls back, unless an answer comes; ``None``: nothing. Changes nothing."""
        if self.rest_until is not None and now < self.rest_until:
            tries_at = max(self._believed_until, self._paused_until) if self._may_try else self.rest_until
            return Hold(self.rest_until, REST, min(tries_at, self.rest_until), self.refusal)
        until = self._paused_until if now < self._paused_until else self._until
        if self.credits is None or now >= until or not (now < self._paused_until or self._is_full):
            return None
        return Hold(until, REFUSALS if self._run.length else SLOW_START, until)
