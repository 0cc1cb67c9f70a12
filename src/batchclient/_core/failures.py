"""Why a batch failed, in the core's words."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from batchclient.errors import BatchClientError, ConnectFailed, ConnectionLost, DialectError, ReadTimedOut

if TYPE_CHECKING:
    from batchclient.types import Reply

__all__ = ["FULL", "Failure", "FailureKind"]

FULL = (503, 529)
"""A full server: service unavailable (RFC 9110, section 15.6), Dynamo's "all workers are busy"."""
_FORESEEN = (501, 502, 503, 504)
"""Not implemented, and gateways which do not reach a server (RFC 9110, section 15.6)."""
_GATEWAYS = (502, 504)
"""Bad gateway, gateway timeout (RFC 9110, section 15.6)."""
_REFUSED_BY_GATEWAYS = (502, 503, 504)
_AT_ONCE_S = 5.0
"""A later 502, 503 or 504 may be the end of some work."""
_SILENCE_S = 20.0
"""Gateways usually give up after 30 or 60 s of silence; an earlier failure has another reason."""


class FailureKind(Enum):
    """The meaning of a failed batch for its requests and for the endpoint."""

    NOT_SENT = "not sent"
    """No connection; the server never saw the request."""
    MAYBE_PROCESSED = "maybe processed"
    """Broken off, timed out, 5xx, an abort: the server may have worked on the request."""
    REJECTED = "rejected"
    """429, 503, 529, or no memory left for a single call: the server refuses work for now."""
    BAD_CALL = "bad call"
    """4xx which a single prompt of the list may have caused: split to find the prompt."""
    REFUSED = "refused"
    """4xx for any call (key, model, route), redirect, certificate, our fault: no split or retry."""
    UNSUPPORTED = "unsupported"
    """Nothing was sent: the endpoint's protocol lacks such calls; another endpoint's may not."""
    LIST_REFUSED = "list refused"
    """The server takes no lists: send the prompts singly."""
    LIST_TOO_LONG = "list too long"
    """The server takes shorter lists only."""
    FIELDS_REFUSED = "fields refused"
    """The server refuses fields which the client added: send at once without them."""
    STREAM_REFUSED = "stream refused"
    """The server does not stream this request: send it plain."""
    PACKING_REFUSED = "packing refused"
    """The server does not write numbers as base64: ask for plain numbers."""
    MISMATCH = "mismatch"
    """Missing, doubled or unknown indices: send the prompts singly."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a batch failed, in a form from which each caller's error is made.

    Args:
        kind: how to go on.
        error: the class of the callers' error.
        message: without keys or prompts.
        status: the HTTP status, if any.
        retry_after_s: the server's wish, seconds.
        code: the server's own code.
        list_cap: with ``LIST_TOO_LONG``, the longest list the server says it takes.
        cause: the exception behind the failure, if any.
        once: a repeat would probably fail alike: try each call again at most once.
        reply: the server's own reply, where callers get it (``Shape.verbatim``).
    """

    kind: FailureKind
    error: type[BatchClientError]
    message: str
    status: int | None = None
    retry_after_s: float | None = None
    code: str | None = None
    list_cap: int | None = None
    cause: BaseException | None = None
    once: bool = False
    reply: Reply | None = None
    out_of_memory: bool = False
    """Whether the server's memory did not hold the work: less work at once helps."""
    while_sending: bool = False
    """Whether the connection broke during or just after the writing of a body of more than 64 KB:
    the server may have refused the length."""
    silent_s: float = 0.0
    """Seconds since the reply's last byte, or since the request was sent; 0: not measured."""

    is_page: bool = False
    """Whether a page for people came instead of a reply, as a gateway sends under maintenance."""

    begun: bool = True
    """Whether sending began at all: a batch may be ended before."""

    seen: str = ""
    """Why there was no connection, in a few words; empty: not known."""

    @property
    def was_sent(self) -> bool:
        """Whether the server may have seen any part of the request."""
        return self.begun and self.kind is not FailureKind.UNSUPPORTED and not issubclass(self.error, ConnectFailed)

    @property
    def taken_on(self) -> bool:
        """Whether the server may have taken the calls on: it got them and did not refuse the load."""
        return self.was_sent and self.kind is not FailureKind.REJECTED

    @property
    def cut_off(self) -> bool:
        """Whether a gateway gave up: 502, 504 or a closed connection after over 20 s of silence."""
        if self.silent_s <= _SILENCE_S:
            return False
        return self.status in _GATEWAYS or (self.status is None and issubclass(self.error, ConnectionLost))

    @property
    def unserved(self) -> bool:
        """Whether a gateway said within 5 s that it reaches no server: 502, 503, 504, or a page."""
        said = (self.status in _REFUSED_BY_GATEWAYS or self.is_page) and self.silent_s <= _AT_ONCE_S
        return said and self.kind in (FailureKind.MAYBE_PROCESSED, FailureKind.REJECTED)

    @property
    def silent(self) -> bool:
        """Whether a gateway (504) or this client gave up, because nothing came for too long."""
        return self.cut_off or self.status == 504 or issubclass(self.error, ReadTimedOut)

    @property
    def unforeseen(self) -> bool:
        """Whether a whole reply is no answer and names no culprit.

        Such are 424, any 5xx but 501 to 504, and a 2xx without an answer.
        """
        if self.kind is not FailureKind.MAYBE_PROCESSED:
            return False
        if issubclass(self.error, DialectError):
            return True
        status = self.status
        return status is not None and (status == 424 or (status >= 500 and status not in _FORESEEN))

    @property
    def final(self) -> bool:
        """Whether no policy may resend; a 4xx is left to the policy (a model may be loading)."""
        if self.kind is FailureKind.UNSUPPORTED:
            return True
        return self.kind is FailureKind.REFUSED and not (self.status is not None and 400 <= self.status < 500)

    @property
    def of_the_server(self) -> Failure:
        """The failure without its reply, which is for the callers of the failed request alone."""
        return self if self.reply is None else replace(self, reply=None)

    def to_error(self, attempt: int) -> BatchClientError:
        """Make a caller's error; callers never share an exception object."""
        error = self.error(self.message)
        error.attempt = attempt
        error.status = self.status
        error.retry_after_s = self.retry_after_s
        error.code = self.code
        error.reply = self.reply
        error.__cause__ = _without_frames(self.cause)
        if self.final:
            error.retryable = False
        return error


def _without_frames(cause: BaseException | None) -> BaseException | None:
    """Drop the frames: their variables hold headers and bodies, and tools show variables."""
    left = [cause]
    seen: set[int] = set()
    while left:
        one = left.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = None
            left += (one.__cause__, one.__context__)
    return cause
