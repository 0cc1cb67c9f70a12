"""A server's silence: connections are accepted, requests are sent, and nothing comes back.

Rules:
- How long one request is silent proves nothing: a plain request is silent until its answer. A
  server is silent once three of its requests in a row ended without an answer, by their calls'
  deadlines or by ``read_timeout_s``, and nothing at all has come from it for 5 s: no byte of any
  reply, and no page.
- A silence began with the last thing that came, or, if later, when the first of those requests was
  sent. Whatever comes next ends the silence.
- Only an endpoint in use has a silence, while no other endpoint is in use. Else three silences
  eject the endpoint, and its outage says so (see ``health``).
- A silence is words only: a warning at its beginning and at its end, once a minute at most, the
  text of errors, and a number in the statistics. No call, limit or state depends on it.
"""

from __future__ import annotations

from collections.abc import Callable

from batchclient._core.spent import seconds

__all__ = ["Silence"]

_FEWEST_ENDED = 3
"""As many silences in a row eject an endpoint beside others (``health``)."""
_SHORTEST_S = 5.0
"""A choice: calls with shorter timeouts than that may be too short for a server that is well."""
_LOOK_EVERY_S = 0.25
"""Thousands of requests may end together, and a look goes through all that are open."""
_TOLD_AGAIN_AFTER_S = 60.0
"""A choice: a server that answers now and then fills no log."""


class Silence:
    """The silence of one endpoint.

    ``since`` is when the present silence began, in the scheduler's time; ``None``: there is none.
    """

    __slots__ = ("_ended", "_first_end_at", "_first_sent_at", "_heard_at", "_is_told", "_look_at", "_told_at", "since")

    def __init__(self) -> None:
        self.since: float | None = None
        self._heard_at = float("-inf")
        self._ended = 0
        """Requests that ended without an answer since anything came."""
        self._first_sent_at = 0.0
        self._first_end_at = 0.0
        """Of the first of them: when it was sent, and when it ended."""
        self._look_at = float("-inf")
        self._is_told = False
        """Whether a warning told the beginning of the present silence."""
        self._told_at = float("-inf")

    def __repr__(self) -> str:
        return f"<Silence since {self.since}: {self._ended} requests>"

    def end_request(self, sent_at: float, heard_at: Callable[[], float], server: str, now: float) -> str:
        """A request has ended without an answer; return the warning to give, if any.

        Args:
            sent_at: when the request was sent.
            heard_at: looks at all open requests for when anything last came from the server.
            server: the base URL as it may be shown.
        """
        if not self._ended:
            self._first_sent_at, self._first_end_at = sent_at, now
        self._ended += 1
        if self._ended < _FEWEST_ENDED or now < self._look_at:
            return ""
        self._look_at = now + _LOOK_EVERY_S
        heard = heard_at()
        if heard > (self._first_end_at if self.since is None else self.since):
            return self.hear(heard, server, now)
        since = max(self._first_sent_at, self._heard_at, heard)
        if self.since is not None or now - since < _SHORTEST_S:
            return ""
        self.since, self._is_told = since, now - self._told_at >= _TOLD_AGAIN_AFTER_S
        if not self._is_told:
            return ""
        self._told_at = now
        return f"a silence of {server} has begun: {self._seen}; nothing has come for {seconds(now - since)}"

    def hear(self, at: float, server: str, now: float) -> str:
        """Something came from the server at a time; return the warning to give, if any."""
        if at <= (self._heard_at if self.since is None else self.since):
            return ""
        said = ""
        if self.since is not None and self._is_told:
            said = f"a silence of {server} ended after {seconds(now - self.since)}: {self._seen}"
        self.forget()
        self._heard_at = at
        return said

    def forget(self) -> None:
        """The endpoint is out of use, or not silent any more."""
        self.since, self._ended, self._is_told = None, 0, False

    @property
    def _seen(self) -> str:
        return f"{self._ended} requests ended without an answer"
