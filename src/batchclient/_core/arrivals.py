"""Servers that are not there yet: each is asked whether it is there, and gets no calls before.

    AWAITED ──its question is answered──▶ HEALTHY
    AWAITED ──no server answered within ``wait_for_server_s``──▶ HEALTHY, as without a wait

Rules:
- With ``wait_for_server_s``, every server is awaited until its first answer, one that joins later,
  too. It gets no call, not even as a probe, and so no call uses up an attempt there.
- The question is a GET beside the calls (``Page.PRESENCE``). A pause of 1 s follows each failure,
  later a tenth of the time waited, at most 5 s.
- While no server has answered, the wait has an end. It begins with the first call, or with whoever
  wants a server outside the queue. At its end all waiting calls fail, and calls made later are
  tried as without a wait.
- Once one server has answered, the others are asked while calls are under way, without an end.
- A wait for a server is an outage in errors and statistics. It is told at its first failure, and
  then once a minute.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from batchclient._core.messages import Ask, Asked, Command, DropAsk, HealthChanged, Page, ServerFound
from batchclient._core.servers.endpoint import Endpoint
from batchclient._core.servers.endpoints import Endpoints
from batchclient._core.spent import ServerOutage, seconds
from batchclient.errors import BatchClientError, NoServerAnswered

__all__ = ["Arrivals"]

_SHORTEST_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 5.0
_PAUSE_RATIO = 0.1
_TOLD_EVERY_S = 60.0


@dataclass(slots=True)
class _Absent:
    """The questions whether a server is there."""

    asking: bool = False
    ask_at: float = 0.0
    since: float | None = None
    """When it was asked first."""
    tell_at: float = 0.0


class Arrivals:
    """The servers of a scheduler that have not answered yet.

    Args:
        wait_s: how long calls wait for a first server, seconds; 0: no server is awaited.
        command: takes a command.
    """

    __slots__ = ("_began_at", "_command", "_endpoints", "_wait_s", "absent", "due", "wanted")

    def __init__(self, endpoints: Endpoints, wait_s: float, command: Callable[[Command], None]) -> None:
        self._endpoints = endpoints
        self._wait_s = wait_s
        self._command = command
        self._began_at: float | None = None
        """When calls began to wait for a first server."""
        self.absent: dict[int, _Absent] = {}
        """By the id of an awaited endpoint."""
        self.wanted = False
        """Whether somebody outside the queue waits for a first server."""
        self.due: float | None = None
        """When to look again."""
        for endpoint in endpoints:
            self.add(endpoint)

    def add(self, endpoint: Endpoint) -> None:
        """Await the first answer of an endpoint."""
        if self._wait_s:
            endpoint.health.await_answer()
            self.absent[endpoint.id] = _Absent()

    def remove(self, number: int) -> None:
        """Await an endpoint no longer."""
        absent = self.absent.pop(number, None)
        if absent is not None and absent.asking:
            self._command(DropAsk(number, Page.PRESENCE))

    def want(self) -> None:
        """Somebody outside the queue waits for a first server."""
        self.wanted = True
        if not self.absent:
            self._tell_found(None)

    def close(self, error: BatchClientError) -> None:
        """Ask nothing more; whoever wanted a server gets the error."""
        for number in list(self.absent):
            self.remove(number)
        self.due = None
        self._tell_found(error)

    def look(self, now: float, *, busy: bool) -> NoServerAnswered | None:
        """Ask the servers due now, or end the wait for a first one.

        Args:
            busy: whether calls are under way.

        Returns:
            The error of all waiting calls, if no server came in time.
        """
        self.due = None
        if any(endpoint.id not in self.absent for endpoint in self._endpoints.serving):
            self._began_at = None
            self._tell_found(None)
        elif self._began_at is None and (busy or self.wanted):
            self._began_at = now
        if self._began_at is None:
            ends = []
            if not busy:
                return None
        else:
            ends = [self._began_at + self._wait_s]
            if now >= ends[0]:
                return self._give_up(now)
        for number, absent in self.absent.items():
            if not absent.asking and absent.ask_at <= now:
                absent.asking = True
                absent.since = now if absent.since is None else absent.since
                self._command(Ask(number, Page.PRESENCE))
        self.due = min([*ends, *(each.ask_at for each in self.absent.values() if not each.asking)], default=None)
        return None

    def asked(self, event: Asked, now: float) -> None:
        """A question has ended."""
        absent, endpoint = self.absent.get(event.endpoint), self._endpoints.by_id.get(event.endpoint)
        if absent is None or endpoint is None:
            return
        absent.asking = False
        assert absent.since is not None, "what was asked has a time"
        failure, outage = event.failure, endpoint.outage
        if failure is None:
            del self.absent[endpoint.id]
            endpoint.answered_at = now
            self._end(endpoint, now, "it has answered", answered=True)
            return
        absent.ask_at = now + min(_LONGEST_PAUSE_S, max(_SHORTEST_PAUSE_S, (now - absent.since) * _PAUSE_RATIO))
        endpoint.health.reason = failure.seen or failure.message
        if outage is None:
            outage = ServerOutage(endpoint.shown_name, "", absent.since, failure, awaited=True)
            words, endpoint.outage = outage.opening, outage
        else:
            words = outage.sentence
        outage.seen, outage.failure = endpoint.health.reason, failure
        if now >= absent.tell_at:
            absent.tell_at = now + _TOLD_EVERY_S
            self._tell(endpoint, words(now))

    def _end(self, endpoint: Endpoint, now: float, reason: str, *, answered: bool) -> None:
        """Use an endpoint from now on."""
        endpoint.health.end_wait(reason, answered=answered)
        words = ""
        if endpoint.outage is not None:
            endpoint.outage.ended_at = now
            words = endpoint.outage.sentence(now) if answered else ""
        self._tell(endpoint, words)

    def _give_up(self, now: float) -> NoServerAnswered:
        awaited = [self._endpoints.by_id[number] for number in self.absent]
        told = ", ".join(f"{endpoint.shown_name} ({endpoint.health.reason})" for endpoint in awaited)
        error = NoServerAnswered(f"no server answered in {seconds(self._wait_s)}: {told}")
        for endpoint in awaited:
            self.remove(endpoint.id)
            self._end(endpoint, now, "it is waited for no longer", answered=False)
        self._began_at = None
        self._tell_found(error)
        return error

    def _tell_found(self, error: BatchClientError | None) -> None:
        if self.wanted:
            self.wanted = False
            self._command(ServerFound(error))

    def _tell(self, endpoint: Endpoint, words: str) -> None:
        health = endpoint.health
        self._command(HealthChanged(endpoint.id, endpoint.name, health.state.value, health.reason, words))
