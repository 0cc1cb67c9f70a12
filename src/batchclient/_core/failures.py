"""Why a batch failed, in the core's words, and what that means: classified here, and nowhere else.

For example a 503 without ``Retry-After``: its callers are told of it, another endpoint may not have
it, it counts as ``overloaded``, a limit hears of it as ``DROPPED``, and to the endpoint's health it
is a server error. How the calls go on is in ``outcomes``.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum
from typing import TYPE_CHECKING, ClassVar

from batchclient._core.limits.base import Outcome
from batchclient.errors import (
    BatchClientError,
    CertificateRefused,
    ConnectFailed,
    ConnectionLost,
    DialectError,
    NotFound,
    ReadTimedOut,
    RemoteError,
)

if TYPE_CHECKING:
    from batchclient.types import Reply

__all__ = ["Failure", "FailureKind", "Sign"]

_FORESEEN = (501, 502, 503, 504)
"""Not implemented, and gateways which do not reach a server (RFC 9110, section 15.6)."""
_GATEWAYS = (502, 504)
"""Bad gateway, gateway timeout (RFC 9110, section 15.6)."""
_REFUSED_BY_GATEWAYS = (502, 503, 504)
_OF_MODELS = (401, 403, 404)
_NO_SUCH_CALL = (405, 501)
"""Method not allowed, not implemented (RFC 9110); llama.cpp answers 501 to kinds of calls which it
was not started for."""
_OF_ROUTES = (404, 405, 406, 411, 412, 415)
"""Statuses by which gateways and routers refuse lists (RFC 9110, section 15.5)."""
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
    """The endpoint's protocol lacks such calls; another endpoint's may not."""
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


class Sign(Enum):
    """The meaning of a batch's end for its endpoint. The value is the text in a reason."""

    ALIVE = "an answer"
    REFUSED = "no connection"
    BROKEN = "a broken connection"
    SILENT = "silence"
    STILL = "an engine that stands still"
    FAULTY = "a server error"
    UNSERVED = "a gateway that reaches no server"
    NOTHING = "nothing"


_COUNTED = {
    FailureKind.NOT_SENT: "broken",
    FailureKind.MAYBE_PROCESSED: "broken",
    FailureKind.MISMATCH: "broken",
    FailureKind.REJECTED: "overloaded",
}
"""The outcome of the request in the metrics; of all others ``refused``."""
_OF_LISTS = frozenset({FailureKind.BAD_CALL, FailureKind.LIST_REFUSED, FailureKind.LIST_TOO_LONG})


class _Is:
    """Whether a field of a failure has one of some values: an attribute of ``Failure``."""

    def __init__(self, name: str, *values: object) -> None:
        self._name = name
        self.values: tuple[object, ...] = values

    def __get__(self, failure: Failure, _owner: type[Failure] | None = None) -> bool:
        return getattr(failure, self._name) in self.values


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
        out_of_memory: whether the server's memory did not hold the work: less work at once helps.
        while_sending: whether the connection broke during or just after the writing of a body of
            more than 64 KB: the server may have refused the length.
        silent_s: seconds since the reply's last byte, or since the request was sent; 0: not
            measured.
        is_page: whether a page for people came instead of a reply, as a gateway sends under
            maintenance.
        begun: whether sending began at all: a batch may be ended before, or have no form.
        seen: why there was no connection, in a few words; empty: not known.
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
    while_sending: bool = False
    silent_s: float = 0.0
    is_page: bool = False
    begun: bool = True
    seen: str = ""

    refuses_load: ClassVar[_Is] = _Is("kind", FailureKind.REJECTED)
    """Whether the server refuses work for now."""
    may_be_lost: ClassVar[_Is] = _Is("kind", FailureKind.MAYBE_PROCESSED)
    """Whether the server may have worked in vain."""
    is_of_the_server: ClassVar[_Is] = _Is(
        "kind", FailureKind.NOT_SENT, FailureKind.MAYBE_PROCESSED, FailureKind.REJECTED
    )
    """Whether it may be a part of an outage."""
    is_of_the_endpoint: ClassVar[_Is] = _Is("kind", *is_of_the_server.values, FailureKind.MISMATCH)
    """Whether another endpoint may not have it."""
    is_refused: ClassVar[_Is] = _Is("kind", FailureKind.REFUSED)
    """Whether the server refuses the request, for whatever reason but load."""
    is_told: ClassVar[_Is] = _Is("kind", *is_of_the_endpoint.values, FailureKind.REFUSED)
    """Whether it concerns a caller; after any other the call is sent again in another form."""
    is_own: ClassVar[_Is] = _Is("kind", FailureKind.BAD_CALL)
    """Whether it is the fault of a call, whoever sends it."""
    lacks_form: ClassVar[_Is] = _Is("kind", FailureKind.UNSUPPORTED)
    """Whether the server, or its dialect, has no form for the calls."""
    is_full: ClassVar[_Is] = _Is("status", 503, 529)
    """Whether it is full: RFC 9110, section 15.6; Dynamo's "all workers are busy"."""
    lacks_model: ClassVar[_Is] = _Is("status", 404)
    """Whether it may be the model that the server has not."""
    may_mean_the_prompt: ClassVar[_Is] = _Is("status", 403)
    """Whether it may be a firewall's word on one prompt."""

    # How far the request came -----------------------------------------------------------------------------------

    @property
    def was_sent(self) -> bool:
        """Whether the server may have seen any part of the request."""
        return self.begun and not issubclass(self.error, ConnectFailed)

    @property
    def taken_on(self) -> bool:
        """Whether the server may have taken the calls on: it got them and did not refuse the load."""
        return self.was_sent and self.kind is not FailureKind.REJECTED

    @property
    def is_said(self) -> bool:
        """Whether the server itself said it, by a status."""
        return self.status is not None

    @property
    def cut_off(self) -> bool:
        """Whether a gateway gave up: 502, 504 or a closed connection after over 20 s of silence."""
        if self.silent_s <= _SILENCE_S:
            return False
        return self.status in _GATEWAYS or self.closed

    @property
    def closed(self) -> bool:
        """Whether the connection closed, and nothing was said."""
        return self.status is None and issubclass(self.error, ConnectionLost)

    @property
    def unserved(self) -> bool:
        """Whether a gateway said within 5 s that it reaches no server: 502, 503, 504, or a page."""
        said = (self.status in _REFUSED_BY_GATEWAYS or self.is_page) and self.silent_s <= _AT_ONCE_S
        return said and self.kind in (FailureKind.MAYBE_PROCESSED, FailureKind.REJECTED)

    @property
    def silent(self) -> bool:
        """Whether a gateway (504) or this client gave up, because nothing came for too long."""
        return self.cut_off or self.status == 504 or issubclass(self.error, ReadTimedOut)

    # What it says of the server ---------------------------------------------------------------------------------

    @property
    def sign(self) -> Sign:
        """What it means for the endpoint's health, whoever is to blame."""
        may_be_processed = self.kind is FailureKind.MAYBE_PROCESSED
        if self.kind is FailureKind.NOT_SENT:
            return Sign.REFUSED
        if self.cut_off:
            return Sign.FAULTY
        if self.unserved:
            return Sign.UNSERVED
        if self.status is not None:
            return Sign.FAULTY if self.status >= 500 and self.status != 501 else Sign.ALIVE
        if issubclass(self.error, RemoteError):
            # The error came whole: no connection is to blame.
            return Sign.FAULTY if may_be_processed else Sign.NOTHING
        if may_be_processed:
            return Sign.SILENT if issubclass(self.error, ReadTimedOut) else Sign.BROKEN
        # With a wrong certificate no call is sent there again, but the next calls go elsewhere.
        return Sign.BROKEN if issubclass(self.error, CertificateRefused) else Sign.NOTHING

    @property
    def load(self) -> Outcome:
        """What it means for the limit, where load may be the cause."""
        if self.out_of_memory:
            return Outcome.OUT_OF_MEMORY
        if self.refuses_load:
            return Outcome.DROPPED
        return Outcome.CUT_OFF if self.cut_off else Outcome.IGNORED

    @property
    def counted(self) -> str:
        """The outcome of the request in the metrics."""
        if self.out_of_memory:
            return "overloaded"
        return "timed_out" if issubclass(self.error, ReadTimedOut) else _COUNTED.get(self.kind, "refused")

    # What it says of the calls ----------------------------------------------------------------------------------

    @property
    def final(self) -> bool:
        """Whether no policy may resend; a 4xx is left to the policy (a model may be loading)."""
        return self.lacks_form or (self.is_refused and not (self.is_said and 400 <= (self.status or 0) < 500))

    @property
    def unforeseen(self) -> bool:
        """Whether a whole reply is no answer and names no culprit.

        Such are 424, any 5xx but 501 to 504, and a 2xx without an answer.
        """
        if not self.may_be_lost:
            return False
        status = self.status or 0
        return issubclass(self.error, DialectError) or status == 424 or (status >= 500 and status not in _FORESEEN)

    @property
    def refuses_model(self) -> bool:
        """Whether it concerns every call for the model alike."""
        return self.is_refused and (self.status in _OF_MODELS or self.error is NotFound)

    @property
    def refuses_key(self) -> bool:
        """Whether it concerns every call with the key."""
        return self.is_refused and self.status in (401, 403)

    @property
    def says_nothing(self) -> bool:
        """Whether it tells nothing of a model that is asked for again."""
        return self.refuses_load or self.status is None or self.status in _GATEWAYS

    @property
    def refuses_shape(self) -> bool:
        """Whether it concerns every call of the shape on this server, and no other."""
        return self.lacks_form or self.status in _NO_SUCH_CALL

    @property
    def may_mean_lists(self) -> bool:
        """Whether a refusal of every call alike may be one of the list."""
        return self.is_refused and self.status in _OF_ROUTES

    @property
    def may_mean_the_route(self) -> bool:
        """Whether a list on a route of its own may have failed for want of it."""
        return self.is_said and (self.is_refused or self.may_be_lost)

    def changes_form(self, *, streamed: bool, packed: bool, listed: bool) -> bool:
        """Whether calls are sent again in another form, whatever the retry policy says.

        Args:
            streamed: whether the batch was asked for as a stream.
            packed: whether numbers were asked for as base64.
            listed: whether it was a list.
        """
        asked_for = {
            FailureKind.FIELDS_REFUSED: True,
            FailureKind.STREAM_REFUSED: streamed,
            FailureKind.PACKING_REFUSED: packed,
        }
        return asked_for.get(self.kind, listed and self.kind in _OF_LISTS)

    # Errors -----------------------------------------------------------------------------------------------------

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
