"""Why a batch failed, in the core's words."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING

from batchclient.errors import BatchClientError, ConnectFailed, ConnectionLost, DialectError

if TYPE_CHECKING:
    from batchclient.types import Reply

__all__ = ["Failure", "FailureKind"]

_FORESEEN = (501, 502, 503, 504)
"""Not implemented, and what gateways say of servers that they do not reach (RFC 9110, section 15.6)."""
_GATEWAYS = (502, 504)
"""Bad gateway, gateway timeout (RFC 9110, section 15.6)."""
_SILENCE_S = 20.0
"""Gateways give up what is silent for 30 or 60 s as a rule. What fails sooner failed for another reason."""


class FailureKind(Enum):
    """What a failed batch means for its requests, and for the endpoint."""

    NOT_SENT = "not sent"
    """No connection; the server never saw it."""
    MAYBE_PROCESSED = "maybe processed"
    """Broken off, timed out, 5xx, an abort: the server may have worked on it."""
    REJECTED = "rejected"
    """429, 503: the server refuses work for now."""
    BAD_CALL = "bad call"
    """4xx that one prompt of the list may have caused: split to find it."""
    REFUSED = "refused"
    """4xx that concerns every call alike (key, model, route), a redirect, a certificate, a fault of ours: no split, no retry."""
    UNSUPPORTED = "unsupported"
    """This sort of server has no form for such calls; nothing was sent: another endpoint may have one."""
    LIST_REFUSED = "list refused"
    """The server takes no lists: send the prompts one by one."""
    LIST_TOO_LONG = "list too long"
    """The server takes lists, but shorter ones."""
    MIX_REFUSED = "mix refused"
    """The server takes no list whose prompts have parameters of their own: send them one by one."""
    FIELDS_REFUSED = "fields refused"
    """The server refuses fields that we added to the callers' own: send it again at once, without them."""
    STREAM_REFUSED = "stream refused"
    """The server does not stream this request: send it plain."""
    PACKING_REFUSED = "packing refused"
    """The server does not write numbers as base64: ask for plain ones."""
    MISMATCH = "mismatch"
    """Missing, doubled or unknown indices: send the prompts one by one."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a batch failed, in a form that makes one error per caller.

    Args:
        kind: what to do about it.
        error: the class of the callers' error.
        message: without keys or prompts.
        status: the HTTP status, if any.
        retry_after_s: the server's wish, seconds.
        code: the server's own code.
        list_cap: the longest list the server said it takes, with ``LIST_TOO_LONG``.
        cause: the exception behind it, if any.
        once: a repeat would probably fail in the same way, so that each call is tried again at most once after such a failure.
        reply: the server's own reply, where its callers hand it on (``Shape.verbatim``).
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
    """Whether the server says that its memory did not hold the work: less at once is what helps."""
    while_sending: bool = False
    """Whether the connection broke while a body of more than 64 KB was being written, or had just been: the server may have refused its length."""
    silent_s: float = 0.0
    """How long nothing had come of the reply: since its last byte, or since the request was sent; 0 where nobody looked."""

    begun: bool = True
    """Whether sending was begun at all: a batch may be ended before."""

    @property
    def was_sent(self) -> bool:
        """Whether the server may have seen anything of the request."""
        return self.begun and self.kind is not FailureKind.UNSUPPORTED and not issubclass(self.error, ConnectFailed)

    @property
    def cut_off(self) -> bool:
        """Whether a gateway gave up what was silent for too long: 502, 504 or a closed connection after more than 20 s without a byte."""
        if self.silent_s <= _SILENCE_S:
            return False
        return self.status in _GATEWAYS or (self.status is None and issubclass(self.error, ConnectionLost))

    @property
    def unforeseen(self) -> bool:
        """Whether a whole reply is no answer and names no culprit: 500, 424, a 5xx other than 501 to 504, or a 2xx without an answer."""
        if self.kind is not FailureKind.MAYBE_PROCESSED:
            return False
        if issubclass(self.error, DialectError):
            return True
        status = self.status
        return status is not None and (status == 424 or (status >= 500 and status not in _FORESEEN))

    @property
    def final(self) -> bool:
        """Whether no policy may have the calls sent again; a 4xx it may (a model that is being loaded is not found at first)."""
        if self.kind is FailureKind.UNSUPPORTED:
            return True
        return self.kind is FailureKind.REFUSED and not (self.status is not None and 400 <= self.status < 500)

    @property
    def of_the_server(self) -> Failure:
        """The same as others may be told it, whose requests did not fail: a reply belongs to the callers that it was sent to."""
        return self if self.reply is None else replace(self, reply=None)

    def to_error(self, attempt: int) -> BatchClientError:
        """Make one caller's error; callers never share an exception object."""
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
    """The same exception without the frames it passed: their variables hold headers and bodies, and tools show variables."""
    left = [cause]
    seen: set[int] = set()
    while left:
        one = left.pop()
        if one is not None and id(one) not in seen:
            seen.add(id(one))
            one.__traceback__ = None
            left += (one.__cause__, one.__context__)
    return cause
