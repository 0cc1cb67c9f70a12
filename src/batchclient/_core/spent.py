"""How a call's time was spent, and outages of servers, as text for errors, logs and statistics.

Rules:
- Times are the scheduler's, in seconds. No text is made before an error, a log line or a snapshot
  needs it.
- A call's time has three parts: in attempts, in pauses between attempts, and, for the rest, in the
  queue.
- A server's outage begins with the first failure after the last answer. It is announced once the
  server is ejected, and ends when the server is in use again.
- A call has waited for servers if each of them had an outage during the call. If a server was in
  use throughout, the call waited its turn.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from batchclient._core.failures import Failure
from batchclient._core.requests import Batch, Endured, Request, RequestState
from batchclient.errors import BatchClientError

__all__ = [
    "ServerOutage", "note_attempt", "note_pause", "seconds", "time_spent", "was_mostly_queued", "with_cause",
]  # fmt: skip

_JUST_BEGAN_S = 0.001
_Error = TypeVar("_Error", bound=BatchClientError)


def seconds(value: float) -> str:
    """A time as text: to a tenth of a second, below one second to a thousandth."""
    return f"{round(value, 1 if value >= 1 else 3):g} s"


@dataclass(slots=True, eq=False)
class ServerOutage:
    """A present or past outage of a server.

    Args:
        server: the base URL as it may be shown.
        seen: the scheduler's view of the outage, in a few words.
        began_at: when the first failure after the last answer was.
        failure: the latest failure.
        ended_at: when the server was in use again; ``None``: not yet.
        awaited: whether the server has never answered, and is waited for.
    """

    server: str
    seen: str
    began_at: float
    failure: Failure
    ended_at: float | None = None
    awaited: bool = False

    def sentence(self, now: float) -> str:
        """Describe the outage, in the same words everywhere."""
        if self.awaited:
            return self._wait(now)
        if self.ended_at is not None:
            lasted = f"ended after {seconds(self.ended_at - self.began_at)}"
        elif now - self.began_at < _JUST_BEGAN_S:
            lasted = "has begun"
        else:
            lasted = f"has lasted {seconds(now - self.began_at)}"
        return f"an outage of {self.server} {lasted}: {self.seen}"

    def _wait(self, now: float) -> str:
        if self.ended_at is not None:
            return f"{self.server} has answered, after a wait of {seconds(self.ended_at - self.began_at)}"
        age_s = now - self.began_at
        so_far = "" if age_s < _JUST_BEGAN_S else f", for {seconds(age_s)} by now"
        return f"waiting for {self.server}, which has not answered yet{so_far}: {self.seen}"

    def opening(self, now: float) -> str:
        """Announce the outage. The words before the colon are the same at every beginning."""
        age_s = now - self.began_at
        age = "" if age_s < _JUST_BEGAN_S else f"; the first failure was {seconds(age_s)} ago"
        return f"an outage of {self.server} has begun: {self.seen}{age}"

    def fell_after(self, since: float) -> bool:
        """Whether any part of the outage was after a time."""
        return self.ended_at is None or self.ended_at > since


def note_attempt(requests: Iterable[Request], batch: Batch, failure: Failure, now: float) -> None:
    """An attempt at some calls has failed."""
    is_told = failure.is_told and not batch.moving
    for request in requests:
        endured = request.endured
        if endured is None:
            request.endured = endured = Endured()
        endured.in_attempts_s += now - batch.sent_at
        endured.paused_since = now
        if failure.refuses_load:
            endured.refusals += 1
            if endured.refusals == 1:
                endured.refused_first = batch.id
        if is_told:
            endured.failure = failure


def note_pause(requests: Iterable[Request], now: float) -> None:
    """A pause after the last attempt at some calls is over; another may follow at once."""
    for request in requests:
        endured = request.endured
        if endured is not None:
            endured.in_pauses_s += now - endured.paused_since
            endured.paused_since = now


def time_spent(request: Request, outages: Iterable[ServerOutage], now: float, since: float | None = None) -> str:
    """Say how a call's time was spent; empty for a call without any.

    ``outages`` are those waited for; ``since`` is when the call, by default its request, was made.
    """
    since = request.queued_at if since is None else since
    whole, queued, attempts, pauses = _parts(request, now, since)
    if whole <= 0:
        return ""
    parts = [f"{seconds(queued)} in the queue"]
    if request.attempts:
        parts.append(f"{seconds(attempts)} in {request.attempts} attempt{'s' if request.attempts > 1 else ''}")
    if pauses:
        parts.append(f"{seconds(pauses)} between attempts")
    said = "".join(f"; {outage.sentence(now)}" for outage in outages)
    return f"{', '.join(parts)}{said}"


def was_mostly_queued(request: Request, now: float) -> bool:
    """Whether more than half of a call's time was spent in the queue."""
    whole, queued, _, _ = _parts(request, now, request.queued_at)
    return queued * 2 > whole


def with_cause(error: _Error, request: Request, outages: Iterable[ServerOutage]) -> _Error:
    """Give an error a cause: the call's last failure, else that of an outage waited for."""
    failure = None if request.endured is None else request.endured.failure
    failure = failure or next((outage.failure for outage in outages), None)
    if failure is not None and error.__cause__ is None:
        error.__cause__ = failure.to_error(request.attempts)
    return error


def _parts(request: Request, now: float, since: float) -> tuple[float, float, float, float]:
    """Seconds of a call: all, in the queue, in attempts, in pauses."""
    whole, attempts, pauses, endured = now - since, 0.0, 0.0, request.endured
    if endured is not None:
        attempts, pauses = endured.in_attempts_s, endured.in_pauses_s
        if request.state is RequestState.BACKING_OFF:
            pauses += now - endured.paused_since
    if request.batch is not None:
        attempts += now - request.batch.sent_at
    # A call may have joined a generation which was already part done.
    attempts = min(attempts, whole)
    pauses = min(pauses, whole - attempts)
    return whole, whole - attempts - pauses, attempts, pauses
