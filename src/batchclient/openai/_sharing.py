"""Counts of an openai client's calls: shared, and not shared by reason.

Rules:
- A call is counted once: when openai's own code gets the call, or at its end. Of a call without an
  answer it is not known whether it would have shared: it has a count of its own.
- A reason is a ``Past``, or a reason of the scheduler's (``Statistics.alone``). No reason holds a
  value of the caller's, so there are few reasons.
- If none of the first hundred calls shared, the log says so, once, with the way out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from batchclient._common.forks import ForkLock
from batchclient._common.log import log
from batchclient.types import Reply

__all__ = ["SECTION", "WAYS_OUT", "Past", "Sharing", "SharingStatistics"]

_ENOUGH_TO_TELL = 100


class Past(StrEnum):
    """The reason for a call's way past the scheduler, through openai's own code."""

    STREAM = "stream=True"
    RESPONSES = "the Responses API"
    HEADERS = "extra_headers that count"
    QUERY = "extra_query"
    OPTIONS = "a request option that is not known"
    BODY = "a body that batchclient does not read"
    REFUSED = "an argument that batchclient refuses"
    TIMEOUT = "a timeout beyond the client's"
    NO_TIMEOUT = "a timeout with a part that is no positive number"
    SUBCLASS = "a subclass that overrides how requests are sent"
    REPLACED = "a replaced method that shared requests do not pass"
    BLOCKING = "a blocking http_client"
    NO_CLIENT = "no batch client for these credentials and headers"
    LOOP = "another event loop uses the client now"
    TRIO = "trio"


SECTION = "Why calls go alone"
"""Of the documentation's page about the drop-in."""
_FEWER = " (give a smaller max_tokens, or batching=Batching(list_tokens=…, chat_list_tokens=…))"
WAYS_OUT = {
    "no company": " (make calls at the same time, with equal parameters, through one client)",
    "long output expected": _FEWER,
    "long output expected, and the list cannot stream": _FEWER,
    Past.STREAM.value: " (a stream is its caller's alone)",
    Past.RESPONSES.value: " (use chat completions)",
    Past.HEADERS.value: " (give ignored_headers=[…], or default_headers)",
    Past.QUERY.value: " (give default_query)",
    Past.TIMEOUT.value: " (give the client a larger timeout)",
    Past.SUBCLASS.value: " (use the drop-in itself)",
    Past.BLOCKING.value: " (leave http_client out)",
    Past.LOOP.value: " (make a client for each event loop)",
}
"""By reason, in a few words; the page's table has all reasons."""


@dataclass(frozen=True, slots=True)
class SharingStatistics:
    """The calls of an openai client and its copies: completions, chats, embeddings, responses.

    Args:
        calls: all counted calls. Each prompt or input of a body is a call.
        shared: calls answered by a request that held another call, too.
        alone: the other answered ones, by reason: those of ``Statistics.alone``, and why calls
            passed the batch client by.
        failed: calls that the batch client did not answer: refused, timed out or cancelled.
    """

    calls: int
    shared: int
    alone: Mapping[str, int]
    failed: int = 0


class Sharing:
    """Counts the calls of an openai client and its copies, in any thread."""

    def __init__(self) -> None:
        self._shared = 0
        self._alone: Counter[str] = Counter()
        self._calls = 0
        self._failed = 0
        self._lock = ForkLock()

    def passed(self, reason: Past) -> None:
        """Count a call through openai's own code."""
        self._count(reason.value, 1)

    def answered(self, reply: Reply, calls: int) -> None:
        """Count the calls of a body that the scheduler answered."""
        self._count(reply.alone, calls)

    def failed(self, calls: int) -> None:
        """Count the calls of a body that the scheduler did not answer."""
        with self._lock:
            self._failed += calls

    def _count(self, alone: str, calls: int) -> None:
        with self._lock:
            before, self._calls = self._calls, self._calls + calls
            if alone:
                self._alone[alone] += calls
            else:
                self._shared += calls
            is_told = before < _ENOUGH_TO_TELL <= self._calls and not self._shared
        if is_told:
            reason, count = self._alone.most_common(1)[0]
            log(
                "nothing_shared",
                'none of the first %d calls shared a request; %d of them: %s%s; see "%s" in the documentation',
                self._calls, count, reason, WAYS_OUT.get(reason, ""), SECTION,
                calls=self._calls, reason=reason,
            )  # fmt: skip

    def statistics(self) -> SharingStatistics:
        """Return a frozen snapshot."""
        with self._lock:
            return SharingStatistics(self._calls + self._failed, self._shared, dict(self._alone), self._failed)
