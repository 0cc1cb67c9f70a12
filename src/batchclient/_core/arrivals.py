"""Servers that are not there yet: each is asked which it is, and gets no call before it answers.

    AWAITED ──its question is answered──▶ HEALTHY
    AWAITED ──no server answered within ``wait_for_server_s``──▶ HEALTHY, as without a wait

Rules:
- With ``wait_for_server_s`` every server is awaited at first, one that joins later, too. It gets no
  call, not even as a probe, and so no call uses up an attempt there.
- The wait for a first server begins with the first call, unless the client pauses, or with the
  question for the model. It ends when nobody waits any more: a later call has the whole time.
  When its time is over, all waiting calls fail; later calls are tried as without a wait.
- Once one server has answered, the others are asked while calls are under way, without an end.
- A wait counts as an outage in errors and statistics; it is told at its first failure, then once a
  minute.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from batchclient._core.messages import Failure, Notice
from batchclient._core.servers.endpoint import Endpoint
from batchclient._core.servers.health import HealthState
from batchclient._core.spent import ServerOutage, seconds
from batchclient.errors import NoServerAnswered

__all__ = ["Arrivals"]

_TOLD_EVERY_S = 60.0


class Arrivals:
    """The wait of a scheduler for servers that have not answered yet.

    Args:
        serving: the endpoints that may be granted on; the first are there.
        wait_s: how long calls wait for a first server, seconds; 0: no server is awaited.
        tell: announces an endpoint's state, with its reason, and a warning with what it is of.
    """

    def __init__(
        self, serving: Sequence[Endpoint], wait_s: float, tell: Callable[[Endpoint, str, Notice, str], None]
    ) -> None:
        self._serving = serving
        self._wait_s = wait_s
        self._tell = tell
        self._tell_at: dict[int, float] = {}
        """When a wait is told next, by endpoint."""
        self.due: float | None = None
        """When the wait for a first server ends; ``None``: no call waits for one."""
        for endpoint in serving:
            self.add(endpoint)

    def add(self, endpoint: Endpoint) -> None:
        """Await the first answer of an endpoint."""
        if self._wait_s:
            endpoint.health.wait()

    def look(self, now: float, *, busy: bool) -> NoServerAnswered | None:
        """Begin the wait for a first server if somebody waits, else end it; return its error in the end."""
        awaited = [each for each in self._serving if each.health.state is HealthState.AWAITED]
        if len(awaited) < len(self._serving) or not busy:
            self.due = None
        elif self.due is None:
            self.due = now + self._wait_s
        elif now >= self.due:
            told = ", ".join(f"{endpoint.shown_name} ({endpoint.health.reason})" for endpoint in awaited)
            for endpoint in awaited:
                endpoint.outage = None
                self._end(endpoint, "it is waited for no longer", now)
            self.due = None
            return NoServerAnswered(f"no server answered in {seconds(self._wait_s)}: {told}")
        return None

    def asked(self, endpoint: Endpoint, failure: Failure | None, now: float) -> bool:
        """A question has ended, perhaps with a failure; return whether its server was awaited."""
        if endpoint.health.state is not HealthState.AWAITED:
            return False
        if failure is None:
            self._end(endpoint, "it has answered", now)
            endpoint.health.answered_once = True
            return True
        outage = endpoint.outage
        if outage is None:
            endpoint.outage = outage = ServerOutage(endpoint.shown_name, "", now, failure, awaited=True)
        outage.seen = endpoint.health.reason = failure.seen or failure.message
        outage.failure = failure
        if now >= self._tell_at.get(endpoint.id, now):
            self._tell_at[endpoint.id] = now + _TOLD_EVERY_S
            is_bound = self.due is not None and self.due < math.inf
            bound = f"; calls wait {seconds(self._wait_s)} at most" if is_bound else ""
            self._tell(endpoint, outage.seen, "server_awaited", f"{outage.sentence(now)}{bound}")
        return True

    def _end(self, endpoint: Endpoint, reason: str, now: float) -> None:
        endpoint.health.end_wait(reason)
        self._tell(endpoint, reason, "server_arrived", endpoint.end_outage(now))
