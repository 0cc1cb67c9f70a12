"""What a failure means for its calls, its endpoint, the limit and the counts: decided here, once.

A row per kind of failure says most; status and error say the rest. For example a 503: its callers
are told of it, another endpoint may not have it, it counts as ``overloaded``, a limit hears of it
as ``DROPPED``, and to the endpoint's health it is a server error.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from batchclient._core.failures import FULL, Failure, FailureKind
from batchclient._core.limits.base import Outcome
from batchclient.errors import CertificateRefused, ConnectionLost, NotFound, ReadTimedOut, RemoteError

__all__ = ["Sign", "Verdict", "changes_form", "verdict_of"]

_OF_MODELS = (401, 403, 404)
_NO_SUCH_CALL = (405, 501)
"""Method not allowed, not implemented (RFC 9110); llama.cpp answers 501 to kinds of calls which it
was not started for."""
_OF_ROUTES = (404, 405, 406, 411, 412, 415)
"""Statuses by which gateways and routers refuse lists (RFC 9110, section 15.5)."""
_SILENT_GATEWAYS = (502, 504)
_OF_FIREWALLS = 403
"""Their status for a body with words that they do not let through."""
_NO_MODEL = 404
_SPLIT = frozenset({FailureKind.BAD_CALL, FailureKind.LIST_REFUSED, FailureKind.LIST_TOO_LONG})


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


class _Kind(NamedTuple):
    """What a kind of failure means, whatever its status.

    Args:
        counted: the outcome of the request in the metrics.
        is_told: whether it concerns a caller; after any other the call is sent again in another
            form.
        is_of_the_endpoint: whether another endpoint may not have it.
        is_of_the_server: whether it may be a part of an outage.
    """

    counted: str = "refused"
    is_told: bool = False
    is_of_the_endpoint: bool = False
    is_of_the_server: bool = False


_KINDS = {
    FailureKind.NOT_SENT: _Kind("broken", is_told=True, is_of_the_endpoint=True, is_of_the_server=True),
    FailureKind.MAYBE_PROCESSED: _Kind("broken", is_told=True, is_of_the_endpoint=True, is_of_the_server=True),
    FailureKind.REJECTED: _Kind("overloaded", is_told=True, is_of_the_endpoint=True, is_of_the_server=True),
    FailureKind.MISMATCH: _Kind("broken", is_told=True, is_of_the_endpoint=True),
    FailureKind.REFUSED: _Kind(is_told=True),
}
_OTHER = _Kind()


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a failure means.

    Args:
        failure: the failure itself.
        counted: the outcome of the request in the metrics.
        sign: for the endpoint's health, whoever is to blame.
        load: for the limit, where load may be the cause.
        is_told, is_of_the_endpoint, is_of_the_server: as the kind's.
        refuses_load: whether the server refuses work for now.
        is_full: whether it says that it is full: 503, 529.
        is_said: whether the server itself said it, by a status.
        is_own: whether it is the fault of a call, whoever sends it.
        is_refused: whether the server refuses the request, for whatever reason but load.
        is_unsent: whether the dialect has no form for the calls, and nothing was sent.
        may_be_lost: whether the server may have worked in vain.
        refuses_model: whether it concerns every call for the model alike.
        refuses_shape: whether it concerns every call of the shape on this server, and no other.
        may_mean_lists: whether a refusal of every call alike may be one of the list.
        may_mean_the_route: whether a list on a route of its own may have failed for want of it.
        may_mean_the_prompt: whether it may be a firewall's word on one prompt.
        lacks_model: whether it may be the model that the server has not.
        closed: whether the connection closed, and nothing was said.
        says_nothing: whether it tells nothing of a model that is asked for again.
    """

    failure: Failure
    counted: str
    sign: Sign
    load: Outcome
    is_told: bool
    is_of_the_endpoint: bool
    is_of_the_server: bool
    refuses_load: bool
    is_full: bool
    is_said: bool
    is_own: bool
    is_refused: bool
    is_unsent: bool
    may_be_lost: bool
    refuses_model: bool
    refuses_shape: bool
    may_mean_lists: bool
    may_mean_the_route: bool
    may_mean_the_prompt: bool
    lacks_model: bool
    closed: bool
    says_nothing: bool


def verdict_of(failure: Failure) -> Verdict:
    """Return what a failure means."""
    kind, status, error = failure.kind, failure.status, failure.error
    row = _KINDS.get(kind, _OTHER)
    refuses_load, is_refused = kind is FailureKind.REJECTED, kind is FailureKind.REFUSED
    counted = row.counted
    if failure.out_of_memory:
        counted = "overloaded"
    elif issubclass(error, ReadTimedOut):
        counted = "timed_out"
    load = Outcome.LATE if failure.cut_off else Outcome.IGNORED
    return Verdict(
        failure,
        counted,
        _sign_of(failure),
        Outcome.DROPPED if refuses_load or failure.out_of_memory else load,
        row.is_told,
        row.is_of_the_endpoint,
        row.is_of_the_server,
        refuses_load,
        is_full=status in FULL,
        is_said=status is not None,
        is_own=kind is FailureKind.BAD_CALL,
        is_refused=is_refused,
        is_unsent=kind is FailureKind.UNSUPPORTED,
        may_be_lost=kind is FailureKind.MAYBE_PROCESSED,
        refuses_model=is_refused and (status in _OF_MODELS or error is NotFound),
        refuses_shape=kind is FailureKind.UNSUPPORTED or status in _NO_SUCH_CALL,
        may_mean_lists=is_refused and status in _OF_ROUTES,
        may_mean_the_route=status is not None and kind in (FailureKind.REFUSED, FailureKind.MAYBE_PROCESSED),
        may_mean_the_prompt=status == _OF_FIREWALLS,
        lacks_model=status == _NO_MODEL,
        closed=status is None and issubclass(error, ConnectionLost),
        says_nothing=refuses_load or status is None or status in _SILENT_GATEWAYS,
    )


def _sign_of(failure: Failure) -> Sign:
    if failure.kind is FailureKind.NOT_SENT:
        return Sign.REFUSED
    if failure.cut_off:
        return Sign.FAULTY
    if failure.unserved:
        return Sign.UNSERVED
    if failure.status is not None:
        return Sign.FAULTY if failure.status >= 500 and failure.status != 501 else Sign.ALIVE
    if issubclass(failure.error, RemoteError):
        # The error came whole: no connection is to blame.
        return Sign.FAULTY if failure.kind is FailureKind.MAYBE_PROCESSED else Sign.NOTHING
    if failure.kind is FailureKind.MAYBE_PROCESSED:
        return Sign.SILENT if issubclass(failure.error, ReadTimedOut) else Sign.BROKEN
    if issubclass(failure.error, CertificateRefused):
        # No call is sent there again, but the next calls go to another endpoint if there is one.
        return Sign.BROKEN
    return Sign.NOTHING


def changes_form(failure: Failure, *, streamed: bool, packed: bool, listed: bool) -> bool:
    """Whether calls are sent again in another form, whatever the retry policy says.

    Args:
        failure: of a batch.
        streamed: whether it was asked for as a stream.
        packed: whether numbers were asked for as base64.
        listed: whether it was a list.
    """
    if failure.kind is FailureKind.FIELDS_REFUSED:
        return True
    if failure.kind is FailureKind.STREAM_REFUSED:
        return streamed
    if failure.kind is FailureKind.PACKING_REFUSED:
        return packed
    return failure.kind in _SPLIT and listed
