"""When anything came from a server: whether it is silent, or lives and generates nothing.

For example three plain requests to a wedged server: it takes them, and all three end at their
calls' deadlines. From then on errors, log and statistics say since when nothing came.

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
- An engine is dead behind a living HTTP server if for a minute sequences ran, the count of
  generated tokens stood still, and no answer came: only the server's own report is believed
  (``ServerLoad``). A prompt is read before its first token is made, and no count moves meanwhile.
  So the minute grows by a hundredth of a second per token in flight, the pace of a slow CPU.
- Reports more than 10 s apart show nothing. Without reports, ``read_timeout_s`` bounds each
  request's silence.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from batchclient._core.failures import Failure, FailureKind
from batchclient._core.limits import ServerLoad
from batchclient._core.spent import seconds
from batchclient.errors import ReadTimedOut

__all__ = ["STILL", "Life"]

STILL = Failure(
    FailureKind.MAYBE_PROCESSED, ReadTimedOut, "the server lives but generates nothing: its engine stands still"
)
"""The failure of the requests of a server whose engine is dead behind a living HTTP server."""

_FEWEST_ENDED = 3
"""As many silences in a row eject an endpoint beside others (``health``)."""
_SHORTEST_S = 5.0
"""A choice: calls with shorter timeouts than that may be too short for a server that is well."""
_LOOK_EVERY_S = 0.25
"""Thousands of requests may end together, and a look goes through all that are open."""
_TOLD_AGAIN_AFTER_S = 60.0
"""A choice: a server that answers now and then fills no log."""
_STILL_AFTER_S = 60.0
_PER_TOKEN_S = 0.01
_LONGEST_GAP_S = 10.0


class Life:
    """The signs of life of one server. Times are the scheduler's; ``-inf``: never."""

    def __init__(self) -> None:
        self.served_at = -math.inf
        """When the server last answered a call."""
        self.answered_at = -math.inf
        """When it last answered anything, also with an error."""
        self._read_at = -math.inf
        """When a page or a part of a reply last came, as far as was noted."""
        self.silent_since: float | None = None
        """When the present silence began; ``None``: there is none."""
        self._unanswered = 0
        """Requests that ended without an answer since anything came."""
        self._first_sent_at = self._first_end_at = -math.inf
        """When the first of them was sent, and when it ended."""
        self._look_at = self._told_at = -math.inf
        self._is_told = False
        """Whether a warning told the beginning of the present silence."""
        self._generated: float | None = None
        self._reported_at = self._still_since = -math.inf

    def __repr__(self) -> str:
        return f"<Life: answered at {self.answered_at:.3f} s, silent since {self.silent_since}>"

    @property
    def heard_at(self) -> float:
        """When anything last came, as far as was noted."""
        return max(self.answered_at, self._read_at)

    def hear(self, at: float, server: str, now: float) -> str:
        """Something came from the server at a time; return the words on a silence that ends, if any."""
        self._read_at = max(self._read_at, at)
        if self.silent_since is None or at <= self.silent_since:
            return ""
        lasted = seconds(now - self.silent_since)
        words = f"a silence of {server} ended after {lasted}: {self._seen}" if self._is_told else ""
        self.end_silence()
        return words

    def end_request(self, sent_at: float, read_at: Callable[[], float], server: str, now: float) -> str:
        """A request has ended without an answer; return the words on a silence that begins or ends.

        Args:
            sent_at: when the request was sent.
            read_at: looks at all open requests for when anything last came from the server.
            server: the base URL as it may be shown.
            now: the time.
        """
        if not self._unanswered or (self.silent_since is None and self.heard_at > self._first_end_at):
            self._unanswered, self._first_sent_at, self._first_end_at = 0, sent_at, now
        self._unanswered += 1
        if self._unanswered < _FEWEST_ENDED or now < self._look_at:
            return ""
        self._look_at = now + _LOOK_EVERY_S
        words = self.hear(max(self.heard_at, read_at()), server, now)
        since = max(self._first_sent_at, self.heard_at)
        if self.silent_since is not None or self.heard_at > self._first_end_at or now - since < _SHORTEST_S:
            return words
        self.silent_since, self._is_told = since, now - self._told_at >= _TOLD_AGAIN_AFTER_S
        if not self._is_told:
            return ""
        self._told_at = now
        return f"a silence of {server} has begun: {self._seen}; nothing has come for {seconds(now - since)}"

    def end_silence(self) -> None:
        """The server is silent no more, or out of use."""
        self.silent_since, self._unanswered = None, 0

    @property
    def _seen(self) -> str:
        return f"{self._unanswered} requests ended without an answer"

    def stands_still(self, load: ServerLoad, tokens_in_flight: int, now: float) -> bool:
        """Take in a report; return whether the engine must be dead. Then it has a minute of its own again.

        Args:
            load: the report.
            tokens_in_flight: prompt and expected output of the calls in flight there.
            now: the time.
        """
        generated = load.generation_tokens
        moves = generated != self._generated or not load.running or now - self._reported_at > _LONGEST_GAP_S
        self._generated, self._reported_at = generated, now
        if generated is None or moves:
            self._still_since = now
            return False
        still_s = now - max(self._still_since, self.answered_at)
        if still_s < _STILL_AFTER_S + _PER_TOKEN_S * tokens_in_flight:
            return False
        self._generated = None
        return True
