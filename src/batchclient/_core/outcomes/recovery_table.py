"""The way of a failed batch's calls, as a table: the first row that applies.

``docs/explanation/batching.md`` shows the same rows (``python scripts/tables.py recovery``). A row
has the kinds of failure, a condition, the way in which the calls go again, and the endpoint's
abilities from then on. ``recovery`` carries the rows out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from batchclient._core.learnt.abilities import Abilities
from batchclient._core.messages import Batch, Failed, Failure, FailureKind, Request
from batchclient._core.servers.endpoint import Endpoint

__all__ = ["TABLE", "Case", "Row", "Way", "row_for"]


class Way(Enum):
    """The way in which calls go again."""

    AT_ONCE = "together, at once"
    BARE = "together, at once: plain and without our fields"
    SINGLY = "one by one, at once"
    HALVES = "in two halves, at once"
    SEARCH = "in halves, and those again, until the guilty are alone"
    ASIDE = "by themselves, after a pause that doubles; lists in halves"
    LATER = "together, when the retry policy says"
    NOT = "they fail"


@dataclass(frozen=True, slots=True)
class Case:
    """A failed batch, as seen by the rows.

    Args:
        event: the failure, and the retry policy's decision.
        alive: the requests whose callers still wait.
        endpoint: where the batch failed.
        others: whether another endpoint is in use.
        known: whether any endpoint has ever answered.
        elsewhere: whether another endpoint may be sent refused calls now.
    """

    event: Failed
    alive: list[Request]
    endpoint: Endpoint
    others: bool
    known: bool
    elsewhere: bool = False

    @property
    def batch(self) -> Batch:
        return self.event.batch

    @property
    def failure(self) -> Failure:
        return self.event.failure

    @property
    def listed(self) -> bool:
        """Whether the batch was a list."""
        return len(self.batch.requests) > 1

    @property
    def abilities(self) -> Abilities:
        """The endpoint's abilities for such calls."""
        return self.endpoint.can(self.batch.shape.kind)

    @property
    def may_be_retried(self) -> bool:
        """Whether the retry policy wants another try."""
        return self.event.retry_delay_s is not None


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table.

    Args:
        kinds: the kinds of failure; empty: any.
        applies: the condition; ``None``: always.
        when: the condition in words.
        way: how the calls go again.
        learn: changes the endpoint's abilities, by the case and the time; ``None``: no change.
        learnt: the change in words.
        is_retry: whether the row counts as a retry.
        is_attempt: whether the row counts as a failed attempt, for the calls and the endpoint's
            retry budget. A free refusal never does.
    """

    kinds: tuple[FailureKind, ...]
    way: Way
    applies: Callable[[Case], bool] | None = None
    when: str = ""
    learn: Callable[[Case, float], None] | None = None
    learnt: str = ""
    is_retry: bool = False
    is_attempt: bool = False

    def is_for(self, case: Case) -> bool:
        """Whether the row applies to a case."""
        if self.kinds and case.failure.kind not in self.kinds:
            return False
        return self.applies is None or self.applies(case)


def row_for(case: Case) -> Row:
    """Return the first row that applies; the last row always does."""
    return next(row for row in TABLE if row.is_for(case))


_UNSERVED_S = 15.0
"""Where one of several replicas is dead, so many tries meet another."""

# When -----------------------------------------------------------------------------------------------------------------


def _waits_for_a_server(case: Case) -> bool:
    if case.failure.kind is FailureKind.NOT_SENT:
        return case.others or case.known
    return case.failure.unserved and not case.endpoint.health.in_use


def _of_one_reply(case: Case) -> bool:
    return case.batch.streamed and case.failure.once and not case.abilities.stream_doubted


def _first_list(case: Case) -> bool:
    return case.listed and not case.abilities.lists_proven


def _too_long_for_its_queue(case: Case) -> bool:
    # The server's queue is shorter than the list. A 429 that names a rest is about a rate.
    batch, failure = case.batch, case.failure
    full = failure.is_full or (failure.status == 429 and failure.retry_after_s is None)
    longer = len(batch.requests) > case.abilities.longest_list
    again = batch.failures > 0 or any(one.endured is not None and one.endured.refusals > 1 for one in case.alive)
    return full and again and longer and not case.endpoint.in_flight


def _lists_are_refused(case: Case) -> bool:
    # Of a list without any call that is always refused one as long is taken soon.
    batch = case.batch
    unknown = not batch.pace.is_known and case.failure.retry_after_s is None and not case.failure.out_of_memory
    return case.listed and batch.pace.refuses_lists and (batch.refused_freely or unknown)


def _steps_aside(case: Case) -> bool:
    return case.batch.refused_alone or case.batch.refused_freely


def _unserved_lately(case: Case) -> bool:
    past = case.alive[0].endured
    if past is None or not case.batch.failures or not case.failure.unserved or not case.may_be_retried:
        return False
    now = past.paused_since
    takes_others = case.endpoint.takes_work(now - case.batch.sent_at, now)
    return takes_others and past.in_attempts_s + past.in_pauses_s < _UNSERVED_S


def _worth_another_try(case: Case) -> bool:
    if not case.may_be_retried or case.failure.final:
        return False
    # A server that has answered calls is behind that page.
    once = case.failure.once and not (case.failure.is_page and case.endpoint.life.served_at > -math.inf)
    return not (once and all(request.met_before for request in case.alive))


# What is learnt -------------------------------------------------------------------------------------------------------


def _doubt_streams(case: Case, _now: float) -> None:
    case.abilities.stream_doubted = True


def _streams_refused(case: Case, now: float) -> None:
    case.abilities.streaming.refuse(now)


def _base64_refused(case: Case, now: float) -> None:
    case.abilities.packing.refuse(now)


def _lists_refused(case: Case, now: float) -> None:
    case.abilities.lists.refuse(now)


def _shorter_lists(case: Case, now: float) -> None:
    case.abilities.shorten_lists(len(case.batch.requests), case.failure.list_cap, now)


TABLE = (
    Row(
        (),
        Way.AT_ONCE,
        _waits_for_a_server,
        "no connection, and another server is in use or one has ever answered;"
        " or 502, 503 or 504 within 5 s, and the server is away",
        is_retry=True,
    ),
    Row(
        (FailureKind.NOT_SENT,),
        Way.NOT,
        lambda case: case.endpoint.health.is_wrong_address,
        "nothing was ever reached at this address",
    ),
    # The endpoint's dialect leaves the fields out from now on. Its optional fields are few, so the
    # row comes to an end.
    Row((FailureKind.FIELDS_REFUSED,), Way.AT_ONCE, learnt="such fields are left out"),
    Row(
        (FailureKind.STREAM_REFUSED,),
        Way.BARE,
        _of_one_reply,
        "a stream of several ended without all of them, for the first time",
        _doubt_streams,
    ),
    Row(
        (FailureKind.STREAM_REFUSED,),
        Way.AT_ONCE,
        lambda case: case.batch.streamed,
        "it was asked for as a stream",
        _streams_refused,
        "no streams",
    ),
    Row(
        (FailureKind.PACKING_REFUSED,),
        Way.AT_ONCE,
        lambda case: case.batch.packed,
        "numbers were asked for as base64",
        _base64_refused,
        "no base64",
    ),
    # Each prompt then has a shape of its own, which any server takes.
    Row(
        (FailureKind.LIST_REFUSED,),
        Way.SINGLY,
        _first_list,
        "a list, and no list was ever answered",
        _lists_refused,
        "no lists",
    ),
    Row((FailureKind.LIST_TOO_LONG,), Way.HALVES, lambda case: case.listed, "a list", _shorter_lists, "shorter lists"),
    Row(
        (),
        Way.HALVES,
        _too_long_for_its_queue,
        "503, 529, or 429 without `Retry-After`, for the second time; nothing else is in flight there,"
        " and no list as long was ever answered",
        _shorter_lists,
        "shorter lists",
    ),
    Row(
        (FailureKind.REJECTED,),
        Way.AT_ONCE,
        lambda case: case.elsewhere and case.may_be_retried,
        "another server in use, not at rest, which has not refused the calls",
        is_retry=True,
        is_attempt=True,
    ),
    Row(
        (FailureKind.REJECTED,),
        Way.HALVES,
        lambda case: _lists_are_refused(case) and case.may_be_retried,
        "a list, the third in a row; free, or nothing was ever answered and there is no `Retry-After`",
        _shorter_lists,
        "shorter lists",
    ),
    Row(
        (FailureKind.REJECTED,),
        Way.ASIDE,
        lambda case: _steps_aside(case) and case.may_be_retried,
        "a free refusal: the server takes other work, and the retry policy does not give up",
        is_retry=True,
        is_attempt=True,
    ),
    Row((FailureKind.BAD_CALL, FailureKind.LIST_REFUSED), Way.SEARCH, lambda case: case.listed, "a list"),
    # A server that answers only the first prompt of a list does so every time. The first list was
    # the probe: unserved prompts are sent again, whatever the retry policy says.
    Row(
        (FailureKind.MISMATCH,),
        Way.SINGLY,
        _first_list,
        "a list, and no list was ever answered",
        _lists_refused,
        "no lists",
    ),
    # At once, since the form is another; but the failure is an attempt and has its price.
    Row(
        (FailureKind.MISMATCH,),
        Way.SINGLY,
        lambda case: case.listed and case.may_be_retried,
        "a list, and the retry policy allows it",
        is_retry=True,
        is_attempt=True,
    ),
    Row(
        (),
        Way.LATER,
        _unserved_lately,
        "502, 503 or 504 within 5 s, from the second on, for 15 s; the server takes other work, and the"
        " retry policy allows it",
        is_retry=True,
    ),
    Row(
        (),
        Way.LATER,
        _worth_another_try,
        "the retry policy allows it; once at most where the same would happen again",
        is_retry=True,
        is_attempt=True,
    ),
    Row((), Way.NOT),
)
"""The rows, in order."""
