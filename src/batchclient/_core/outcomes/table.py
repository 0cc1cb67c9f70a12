"""What becomes of a failed batch's calls, as a table: the first row that applies.

The order: another server or another form, then what costs no attempt, then the retry policy.

``python scripts/tables.py recovery`` shows the same rows. A row has the kinds of failure, a
condition, the way in which the calls go again, and what is learnt of the endpoint. The docstring of
a condition, or of what is learnt, is its text there. ``outcomes`` carries the rows out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import TypeVar

from batchclient._core.fleet import Fleet
from batchclient._core.messages import Batch, Failed, Failure, FailureKind, Request
from batchclient._core.requests import Endured
from batchclient._core.servers.abilities import KindAbilities
from batchclient._core.servers.endpoint import Endpoint

_Of = TypeVar("_Of")

__all__ = ["TABLE", "FailedBatch", "Row", "Way", "row_for"]

_UNSERVED_S = 15.0
"""Where one of several replicas is dead, so many tries meet another."""


class Way(Enum):
    """The way in which calls go again."""

    AT_ONCE = "together, at once"
    BARE = "together, at once: plain and without our fields"
    SINGLY = "one by one, at once"
    HALVES = "in two halves, at once"
    SEARCH = "in halves, and those again, until the guilty are alone"
    ASIDE = "by themselves, after a pause that doubles; lists in halves"
    ASK = "to a server that may have the model; else one call finds out for all"
    LATER = "together, when the retry policy says"
    NOT = "they fail"


@dataclass(slots=True, eq=False)
class FailedBatch:
    """A failed batch.

    Args:
        event: the failure, and the retry policy's decision.
        alive: the requests whose callers still wait.
        endpoint: where the batch failed.
        fleet: all of them.
        now: when the way of the calls is chosen.
    """

    event: Failed
    alive: list[Request]
    endpoint: Endpoint
    fleet: Fleet
    now: float

    @property
    def batch(self) -> Batch:
        return self.event.batch

    @property
    def failure(self) -> Failure:
        return self.event.failure

    @property
    def is_list(self) -> bool:
        return len(self.batch.requests) > 1

    @property
    def abilities(self) -> KindAbilities:
        """The endpoint's abilities for such calls."""
        return self.endpoint.abilities.of(self.batch.shape.kind)

    @property
    def may_be_retried(self) -> bool:
        """Whether the retry policy wants another try."""
        return self.event.retry_delay_s is not None

    @property
    def others_take(self) -> bool:
        """Whether another endpoint is in use that has not refused such calls."""
        return self.fleet.others_take(self.batch.requests[0], self.endpoint, self.now)

    @property
    def pasts(self) -> list[Endured]:
        """The pasts of these calls, each of which has one."""
        return [request.endured for request in self.alive if request.endured is not None]

    @property
    def refusals(self) -> int:
        """How often each of the calls was refused for load, at least."""
        return min((past.refusals for past in self.pasts), default=0)

    @property
    def refuses_model(self) -> bool:
        """Whether key or model are refused, and the retry policy gives up."""
        return self.failure.refuses_model and not self.may_be_retried

    @property
    def steps_aside(self) -> bool:
        """Whether the server refuses these calls, and takes others or other work."""
        return self.batch.refusal.is_alone or self.batch.refusal.is_free

    @property
    def has_price(self) -> bool:
        """Whether the retry budget pays for another attempt, if no refusal turns out to be free."""
        served = self.endpoint.life.served_at > -math.inf
        unserved = served and self.failure.unserved and self.batch.refusal.seconds is None
        return not (self.steps_aside or unserved or self.refuses_model)

    def tokens_of(self, calls: int) -> float:
        """Return the tokens at risk in sending so many of the calls again, by what is known now."""
        prompt_tokens = sum(request.prompt_tokens for request in self.batch.requests) / len(self.batch.requests)
        return calls * (prompt_tokens + self.batch.shape.weight * self.fleet.lengths.expected(self.batch.shape))


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table.

    Args:
        kinds: the kinds of failure; empty: any.
        way: how the calls go again.
        when: the condition; ``None``: always.
        learn: changes the endpoint's abilities; ``None``: nothing is learnt.
        is_retry: whether the row counts as a retry, of calls that were sent.
        is_attempt: whether it does, and as a failed attempt, for the calls and the endpoint's
            retry budget. A free refusal never is an attempt.
    """

    kinds: tuple[FailureKind, ...]
    way: Way
    when: Callable[[FailedBatch], bool] | None = None
    learn: Callable[[FailedBatch], None] | None = None
    is_retry: bool = False
    is_attempt: bool = False


def row_for(failed: FailedBatch) -> Row:
    """Return the first row that applies; the last row always does."""
    kind = failed.failure.kind
    rows = (row for row in TABLE if not row.kinds or kind in row.kinds)
    return next(row for row in rows if row.when is None or row.when(failed))


# When -----------------------------------------------------------------------------------------------------------------


def _said(words: str, of: Callable[[FailedBatch], _Of]) -> Callable[[FailedBatch], _Of]:
    """Give what fits into a line its words."""
    of.__doc__ = words
    return of


_server_is_removed = _said("Its server was removed.", lambda failed: failed.batch.moving)
_is_denied = _said(
    "401, 403 or 404 for key or model, and the retry policy gives up.", lambda failed: failed.refuses_model
)
_is_wrong_address = _said(
    "Nothing was ever reached at this address.", lambda failed: failed.endpoint.health.is_wrong_address
)
_stream_ended_early = _said(
    "A stream of several ended without all of them, for the first time.",
    lambda failed: failed.batch.streamed and failed.failure.once and not failed.abilities.stream_doubted,
)
_is_stream = _said("It was asked for as a stream.", lambda failed: failed.batch.streamed)
_is_packed = _said("Numbers were asked for as base64.", lambda failed: failed.batch.packed)
_is_list = _said("A list.", lambda failed: failed.is_list)
_is_first_list = _said(
    "A list, and no list was ever answered.", lambda failed: failed.is_list and not failed.abilities.lists.is_proven
)
_is_list_to_be_retried = _said(
    "A list, and the retry policy allows it.", lambda failed: failed.is_list and failed.may_be_retried
)
_lacks_such_calls = _said(
    "The server has no such calls (no form for them, 405, 501), and another in use may have them.",
    lambda failed: failed.failure.refuses_shape and failed.others_take,
)
_is_free = _said(
    "A free refusal: the server takes other work, and the retry policy does not give up.",
    lambda failed: failed.steps_aside and failed.may_be_retried,
)


def _waits_for_a_server(failed: FailedBatch) -> bool:
    """No connection, and another server is in use or one has ever answered;
    or 502, 503 or 504 within 5 s, and the server is away.
    """
    fleet, endpoint = failed.fleet, failed.endpoint
    if failed.failure.kind is FailureKind.NOT_SENT:
        return fleet.others_in_use(endpoint, failed.batch.requests[0]) or fleet.outage.is_known(failed.batch.shape)
    return failed.failure.unserved and not endpoint.health.in_use


def _is_too_long_for_its_queue(failed: FailedBatch) -> bool:
    """503, 529, or 429 without `Retry-After`, for the second time; nothing else is in flight there,
    and no list as long was ever answered.
    """
    # The server's queue is shorter than the list. A 429 that names a rest is about a rate.
    batch, failure = failed.batch, failed.failure
    full = failure.is_full or (failure.status == 429 and failure.retry_after_s is None)
    longer = len(batch.requests) > failed.abilities.longest_list
    again = batch.failures > 0 or any(past.refusals > 1 for past in failed.pasts)
    return full and again and longer and not failed.endpoint.in_flight


def _is_taken_elsewhere(failed: FailedBatch) -> bool:
    """Another server in use, not at rest, which has not refused the calls."""
    fleet = failed.fleet
    if not failed.may_be_retried or failed.refusals >= len(fleet.serving):
        return False
    return fleet.take_now(failed.batch.requests[0], failed.endpoint, failed.now)


def _lists_are_refused(failed: FailedBatch) -> bool:
    """A list, the third in a row; free, or nothing was ever answered and there is no `Retry-After`."""
    # Of a list without any call that is always refused one as long is taken soon.
    batch, failure = failed.batch, failed.failure
    unknown = not batch.pace.is_known and failure.retry_after_s is None and not failure.out_of_memory
    refused = batch.pace.refuses_lists and (batch.refusal.is_free or unknown)
    return failed.is_list and refused and failed.may_be_retried


def _is_unserved_lately(failed: FailedBatch) -> bool:
    """502, 503 or 504 within 5 s, from the second on, for 15 s; the server has served calls, and
    the retry policy allows it.
    """
    if not failed.batch.failures or not failed.failure.unserved or not failed.may_be_retried:
        return False
    past = failed.pasts[0]
    return failed.endpoint.life.served_at > -math.inf and past.in_attempts_s + past.in_pauses_s < _UNSERVED_S


def _is_worth_another_try(failed: FailedBatch) -> bool:
    """The retry policy allows it; once at most where the same would happen again."""
    failure = failed.failure
    if not failed.may_be_retried or failure.final:
        return False
    # A server that has answered calls is behind that page.
    once = failure.once and not (failure.is_page and failed.endpoint.life.served_at > -math.inf)
    return not (once and all(past.met_before for past in failed.pasts))


# What is learnt -------------------------------------------------------------------------------------------------------

_no_streams = _said("No streams.", lambda failed: failed.abilities.streaming.refuse(failed.now))
_no_base64 = _said("No base64.", lambda failed: failed.abilities.packing.refuse(failed.now))
_no_such_calls = _said(
    "No such calls for 30 s.", lambda failed: failed.endpoint.abilities.lack(failed.batch.shape, failed.now)
)
_no_lists = _said("No lists.", lambda failed: failed.abilities.lists.refuse(failed.now))


def _no_such_fields(_failed: FailedBatch) -> None:
    """Such fields are left out."""
    # By the endpoint's dialect. Its optional fields are few, so the row comes to an end.


def _doubt_streams(failed: FailedBatch) -> None:
    """Streams are in doubt."""
    failed.abilities.stream_doubted = True


def _shorter_lists(failed: FailedBatch) -> None:
    """Shorter lists."""
    failed.abilities.shorten_lists(len(failed.batch.requests), failed.failure.list_cap, failed.now)


TABLE = (
    Row((), Way.AT_ONCE, _server_is_removed, is_retry=True),
    Row((FailureKind.REFUSED,), Way.ASK, _is_denied),
    Row((), Way.AT_ONCE, _lacks_such_calls, _no_such_calls, is_retry=True),
    Row((), Way.AT_ONCE, _waits_for_a_server, is_retry=True),
    Row((FailureKind.NOT_SENT,), Way.NOT, _is_wrong_address),
    Row((FailureKind.FIELDS_REFUSED,), Way.AT_ONCE, None, _no_such_fields),
    Row((FailureKind.STREAM_REFUSED,), Way.BARE, _stream_ended_early, _doubt_streams),
    Row((FailureKind.STREAM_REFUSED,), Way.AT_ONCE, _is_stream, _no_streams),
    Row((FailureKind.PACKING_REFUSED,), Way.AT_ONCE, _is_packed, _no_base64),
    # Each prompt then has a shape of its own, which any server takes.
    Row((FailureKind.LIST_REFUSED,), Way.SINGLY, _is_first_list, _no_lists),
    Row((FailureKind.LIST_TOO_LONG,), Way.HALVES, _is_list, _shorter_lists),
    Row((FailureKind.BAD_CALL, FailureKind.LIST_REFUSED), Way.SEARCH, _is_list),
    # A server that answers only the first prompt of a list does so every time. The first list was
    # the probe: unserved prompts are sent again, whatever the retry policy says.
    Row((FailureKind.MISMATCH,), Way.SINGLY, _is_first_list, _no_lists),
    Row((), Way.HALVES, _is_too_long_for_its_queue, _shorter_lists),
    Row((FailureKind.REJECTED,), Way.AT_ONCE, _is_taken_elsewhere, is_attempt=True),
    Row((FailureKind.REJECTED,), Way.HALVES, _lists_are_refused, _shorter_lists),
    Row((FailureKind.REJECTED,), Way.ASIDE, _is_free, is_attempt=True),
    # At once, since the form is another; but the failure is an attempt.
    Row((FailureKind.MISMATCH,), Way.SINGLY, _is_list_to_be_retried, is_attempt=True),
    Row((), Way.LATER, _is_unserved_lately, is_retry=True),
    Row((), Way.LATER, _is_worth_another_try, is_attempt=True),
    Row((), Way.NOT),
)
"""The rows, in order."""
