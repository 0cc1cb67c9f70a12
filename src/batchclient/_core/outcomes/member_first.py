"""A list fails without a culprit: one member goes alone before the list is taken apart or given up.

Such a failure is a reply without an answer, and may have any reason. A server is down, takes no
lists, or chokes on a field that only the client adds; or one prompt is indigestible. Answers of
single members tell the reasons apart.

Rules:
- The list goes once more as before, if the retry policy allows. If not, or if no list was ever
  answered here, the second failed list in a row counts instead.
- Then one member goes alone and bare: plain, with its caller's own fields. Another form is no
  retry. One such trial at a time runs per endpoint and kind of call. A list has three trials at
  most, each with another member. Lists that fail meanwhile wait for the trial's end, at most five
  seconds if another endpoint in use may have the list.
- If the member is not answered, the member goes back, and the lists go again by the retry policy.
  Before closed connections would fail them, another member goes at once. So a dead server is asked
  three times more for a list at most.
- If the member is answered, and no batch in the list's form ever was, the rest goes as a bare list
  to the same endpoint. Forms are: streamed, or plain with added fields (see ``abilities``).
- If the member is answered, and no list ever was, or lists are on trial after a refusal, the rest
  goes singly. So do all calls for a while.
- If the member is answered, and lists were before, halves go as for a refused list
  (``Retries.search``), each once. Prompts failing alone are tried again as the policy allows. If
  every prompt alone was answered, but no part of several prompts, the server has stopped taking
  lists. If both halves of two lists in a row were answered, lists were too long.
- A 404, 405, 406, 411, 412 or 415 may mean the list: one member goes at once, and if it is
  answered, the rest goes singly. After a 404 the member also finds out about the model (see
  ``models``).
- A closed connection may mean the list, too, if no list was ever answered, or else before the calls
  would fail.
- A break of the connection during or just after the writing of a long list may be an unstated
  refusal of its length. If a member is answered, the break was a refusal.
- Not all servers have a route for lists. Until a list was answered on the route, any refusal there
  may mean the route.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable

from batchclient._core.granting import Granting
from batchclient._core.kinds import Kind
from batchclient._core.messages import Batch, Failed, Isolation, Request
from batchclient._core.outcomes.retries import Retries, failed_of
from batchclient._core.outcomes.table import FailedBatch
from batchclient._core.servers.abilities import KindAbilities
from batchclient._core.waiting.queue import Group

__all__ = ["MemberFirst"]

_MOST_TRIALS = 3
_LONGEST_WAIT_S = 5.0
"""More than a short answer takes. A longer wait is worse than another endpoint."""


class _Trial:
    """A lone member under way in a batch, and the lists that wait for its answer."""

    def __init__(self, batch: int) -> None:
        self.batch = batch
        self.lists: deque[Group] = deque()

    @property
    def due_at(self) -> float:
        """When the first list has waited long enough: only another endpoint in use may have it."""
        if not self.lists:
            return math.inf
        first, failed = self.lists[0], failed_of(self.lists[0])
        others = failed.fleet.others_in_use(failed.endpoint, failed.batch.requests[0])
        return first.not_before if others else math.inf


class MemberFirst:
    """The trials of one scheduler.

    Args:
        send: sends a batch.
        resend_by_table: sends a failed list again by the table of failures.
    """

    def __init__(
        self,
        retries: Retries,
        granting: Granting,
        send: Callable[[Batch], None],
        resend_by_table: Callable[[FailedBatch], None],
    ) -> None:
        self._retries = retries
        self._granting = granting
        self._send_batch = send
        self._resend_by_table = resend_by_table
        self._under_way: dict[tuple[int, Kind], _Trial] = {}
        """The trials by endpoint and kind of call."""

    def is_trial(self, batch: Batch) -> bool:
        """Whether a batch holds a lone member."""
        trial = self._under_way.get((batch.endpoint, batch.shape.kind))
        return trial is not None and trial.batch == batch.id

    def take(self, failed: FailedBatch) -> bool:
        """Take over a failed list; return false for other batches, and for most first failures.

        Args:
            failed: the list.
        """
        event, batch, failure, abilities = failed.event, failed.batch, failed.failure, failed.abilities
        alive, now = failed.alive, failed.now
        tried_lists, tried_form = abilities.failed(batch)
        refused = failed.is_list and failure.may_mean_lists
        in_doubt = not abilities.lists.is_proven or not abilities.lists.is_closed or event.retry_delay_s is None
        # Lists are in doubt, or their calls would fail.
        closed = failed.is_list and failure.closed and in_doubt
        by_list = refused or closed or _may_be_the_route(event, abilities)
        if not alive or not (failure.unforeseen or failure.while_sending or by_list):
            return False
        if not refused and abilities.form_failed(batch, now, tried=tried_form):
            # The form is known to fail here: the calls go again at once, bare.
            self._retries.again(alive, batch, bare=True)
            return True
        if not failed.is_list:
            return False
        isolation = batch.isolation
        if isolation is not None and isolation.blind:
            self._search(failed)
            return True
        abilities.lists_failed += 1
        if batch.bare and not abilities.lists.is_proven:
            # A member was answered in this form, so the list is to blame.
            abilities.lists.refuse(now)
            self._retries.singly(alive, batch)
            return True
        again = batch.failures > 0 or tried_lists or failure.is_refused
        # A restart closes the connections of all lists at once.
        alone_counts = event.retry_delay_s is None or not (abilities.lists.is_proven or closed)
        if not again and not (alone_counts and abilities.lists_failed > 1):
            return False
        return self._try_one(failed)

    def _try_one(self, failed: FailedBatch) -> bool:
        """Send one member alone, or await another list's trial; return false if neither works."""
        batch, endpoint, now = failed.batch, failed.endpoint, failed.now
        key = (endpoint.id, batch.shape.kind)
        trial = self._under_way.get(key)
        if trial is None:
            isolation = batch.isolation
            if isolation is None:
                batch.isolation = isolation = Isolation(size=len(failed.alive))
            if isolation.trials >= _MOST_TRIALS:
                return False
            sent = self._send(failed.alive[:1], failed)
            if sent is None:
                return False
            if failed.failure.lacks_model:
                # Meanwhile no further list is sent there for the model.
                endpoint.abilities.models.refuse(batch, endpoint.open.values(), now)
                endpoint.abilities.models.begin(sent)
            isolation.trials += 1
            failed.alive = failed.alive[1:]
            self._under_way[key] = trial = _Trial(sent.id)
        trial.lists.append(self._retries.keep(failed.alive, failed, now + _LONGEST_WAIT_S))
        return True

    def _send(self, requests: list[Request], failed: FailedBatch) -> Batch | None:
        batch = failed.batch
        assert batch.isolation is not None, "a list of which a member goes first has one"
        sent = self._granting.grant_bare(requests, failed.endpoint, batch.failures, batch.isolation, failed.now)
        if sent is not None:
            self._send_batch(sent)
        return sent

    def answered(self, batch: Batch, now: float) -> None:
        """Take in the member's answer: the lists waiting for the trial are taken apart."""
        for waiting in self._end(batch, now):
            if waiting.alive:
                self._take_apart(waiting)

    def _end(self, batch: Batch, now: float) -> list[FailedBatch]:
        """End a trial; return the lists that waited for it."""
        trial = self._under_way.pop((batch.endpoint, batch.shape.kind))
        return [self._retries.free(group, now) for group in trial.lists]

    def failed(self, failed: FailedBatch) -> None:
        """Take in the member's failure. The member stays failed if its failure is its own, and final."""
        event, batch, alive = failed.event, failed.batch, failed.alive
        own = event.failure.is_own
        lists = self._end(batch, failed.now)
        if batch.moving:
            for waiting in lists:
                self._retries.move(waiting.alive, waiting.batch)
            return
        if alive and not own and lists:
            # Behind the others: the next trial takes another member. The longer of the two pauses
            # holds for all.
            lists[0].alive += alive
            first = lists[0].event
            if first.retry_delay_s is not None and event.retry_delay_s is not None:
                first.retry_delay_s = max(first.retry_delay_s, event.retry_delay_s)
        for waiting in lists:
            if not waiting.alive:
                continue
            refused = waiting.failure.is_refused
            if refused and alive and not (own or event.failure.is_refused):
                # The route refused the list, and the member was put off: so are the others.
                waiting.event = Failed(waiting.batch, event.failure, event.retry_delay_s)
            # If its caller has left, nothing was found out. If the member was refused for its own
            # sake, the server lives.
            if (alive and not own and not _has_another(waiting)) or not self._try_one(waiting):
                self._resend_by_table(waiting)
        if lists and not own:
            failed.alive = []

    def next_due(self) -> float:
        """When the first list has waited long enough for a member's answer, if another may have it."""
        return min((trial.due_at for trial in self._under_way.values()), default=math.inf)

    def let_go(self, now: float) -> None:
        """Resend by the table lists that have waited long enough for a member's answer."""
        for trial in list(self._under_way.values()):
            while trial.due_at <= now:
                waiting = self._retries.free(trial.lists.popleft(), now)
                if waiting.alive:
                    self._resend_by_table(waiting)

    def _take_apart(self, failed: FailedBatch) -> None:
        batch, alive, failure, abilities = failed.batch, failed.alive, failed.failure, failed.abilities
        if failure.while_sending:
            self._begin_search(failed)
        elif failure.may_mean_lists:
            abilities.lists.refuse(failed.now)
            self._retries.singly(alive, batch)
        elif _differs_bare(batch) and not abilities.form(streamed=batch.streamed).is_proven:
            if batch.isolation is None:
                batch.isolation = Isolation(size=len(alive))
            # To the same endpoint: another server's answer would tell nothing.
            if self._send(alive, failed) is None:
                self._retries.again(alive, batch, bare=True)
        elif not abilities.lists.is_proven or not abilities.lists.is_closed:
            abilities.lists.refuse(failed.now)
            self._retries.singly(alive, batch)
        else:
            self._begin_search(failed)

    def _begin_search(self, failed: FailedBatch) -> None:
        batch = failed.batch
        isolation = batch.isolation
        if isolation is None:
            batch.isolation = isolation = Isolation(size=len(failed.alive))
        isolation.blind = True
        batch.failures += 1
        self._search(failed)

    def _search(self, failed: FailedBatch) -> None:
        if failed.failure.while_sending:
            failed.abilities.shorten_lists(len(failed.batch.requests), None, failed.now)
        self._retries.search(failed.alive, failed.batch)


def _has_another(waiting: FailedBatch) -> bool:
    """Whether a list would fail for closed connections, and has a member that was not tried."""
    isolation = waiting.batch.isolation
    would_fail = waiting.failure.closed and waiting.event.retry_delay_s is None
    return would_fail and isolation is not None and len(waiting.alive) > isolation.trials


def _differs_bare(batch: Batch) -> bool:
    """Whether a bare list would be another request; on a route for lists a member tells nothing."""
    adds_fields = batch.packed or "return_token_ids" not in batch.wire.without
    return not (batch.bare or batch.wire.to_list_route) and (batch.streamed or adds_fields)


def _may_be_the_route(event: Failed, abilities: KindAbilities) -> bool:
    """Whether a list was refused, or failed, on a route for lists which its server may not have."""
    doubted = event.batch.wire.to_list_route and not abilities.lists.is_proven
    return doubted and event.failure.may_mean_the_route
