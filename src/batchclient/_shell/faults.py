"""What went wrong, as a failure of calls: a transport's error, a page of a server that is away; and
what is added to a server's words for whoever reads them.

The dialects' modules are imported where they are used: within ``import batchclient`` they would
take a tenth of the time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from http import HTTPStatus
from typing import TYPE_CHECKING

from batchclient._core.messages import Failure, FailureKind
from batchclient._shell.pages import FetchedPage
from batchclient.errors import (
    BatchClientError,
    CertificateRefused,
    ConnectFailed,
    ConnectionLost,
    DialectError,
    NotFound,
    OutOfSockets,
    ReadTimedOut,
    ResponseTooLarge,
    TransportError,
)
from batchclient.transport._exceptions import unconnected

if TYPE_CHECKING:
    from batchclient.dialects._fingerprints import ServerFacts

__all__ = ["absence", "from_transport", "name_models", "name_place", "shown_names", "unheard"]

_OF_GATEWAYS = (502, 503, 504)
_LOADING = "Loading model"
_MOST_NAMED = 20
_LONGEST_SHOWN = 100


def from_transport(error: BatchClientError, *, listed: bool) -> Failure:
    """Return the meaning of a transport's error for the requests sent; ``listed``: several in one."""
    if isinstance(error, ConnectFailed) and not error.retryable:
        kind = FailureKind.REFUSED
    elif isinstance(error, OutOfSockets):
        # As if the server had refused work: fewer at once help, and the server is not to blame.
        kind = FailureKind.REJECTED
    elif isinstance(error, ConnectFailed):
        kind = FailureKind.NOT_SENT
    elif isinstance(error, ResponseTooLarge):
        kind = FailureKind.LIST_TOO_LONG if listed else FailureKind.REFUSED
    elif isinstance(error, TransportError):
        kind = FailureKind.MAYBE_PROCESSED
    else:
        kind = FailureKind.REFUSED
    while_sending = isinstance(error, ConnectionLost) and error.while_sending
    seen = unconnected(error.__cause__) if isinstance(error, ConnectFailed) else ""
    return Failure(kind, type(error), error.message, cause=error.__cause__, while_sending=while_sending, seen=seen)


def absence(came: FetchedPage | BaseException, *, heard: bool) -> Failure | None:
    """Return why a server does not seem to be there; ``None``: it is.

    ``heard``: it has answered another page; a gateway may let that one through alone. llama.cpp
    lists its models while it loads one, and answers 503 with ``_LOADING`` to all else.
    """
    if isinstance(came, (ConnectFailed, ConnectionLost)) and not isinstance(came, CertificateRefused):
        return None if heard else from_transport(came, listed=False)
    status = getattr(came, "status", None) if isinstance(came, BaseException) else came[0]
    loads = status in _OF_GATEWAYS and _LOADING in str(came)
    if status not in _OF_GATEWAYS or (heard and not loads):
        return None
    from batchclient.dialects._status import failure_of

    why = _LOADING if loads else HTTPStatus(status).phrase
    return failure_of(status, why, None, streamed=False, retry_after_s=None)


def unheard(came: FetchedPage | BatchClientError | TimeoutError) -> Failure:
    """Return why a server has not said which it is, of the page that came or did not."""
    if isinstance(came, (TimeoutError, ReadTimedOut)):
        # No call was sent.
        came = ConnectFailed("the server is silent: it does not say which it is")
    if isinstance(came, BatchClientError):
        return from_transport(came, listed=False)
    from batchclient.dialects._status import failure_of

    return failure_of(came[0], "it does not say which server it is", None, streamed=False, retry_after_s=None)


def name_models(failure: Failure, model: str, facts: ServerFacts | None, secrets: tuple[str, ...]) -> Failure:
    """Add the names of a server's models to its failure for want of a model."""
    from batchclient.dialects._redaction import redact

    names = [served.id for served in facts.models] if facts is not None else []
    if failure.error is not NotFound or not names or model in names:
        return failure
    shown = shown_names([redact(name, (), secrets) for name in names])
    return replace(failure, message=f"{failure.message} (model={model[:_LONGEST_SHOWN]!r}; the server has {shown})")


def name_place(failure: Failure, url_of: Callable[[int], str], endpoint: int) -> Failure:
    """Add the URL to a failure for an HTML page, and ask whether the URL is right.

    A gateway in front of the right server sends such pages with 502, 503 or 504.
    """
    from batchclient.dialects._replies import HTML_PAGE

    page = failure.message == f"{failure.status}: {HTML_PAGE}"
    if not page and not (failure.error is DialectError and "text/html" in failure.message):
        return failure
    came = " from " if page else "; it came from "
    question = "" if failure.status in _OF_GATEWAYS else " (is base_url right, and an LLM server's?)"
    return replace(failure, message=f"{failure.message}{came}{url_of(endpoint) or 'the server'}{question}")


def shown_names(names: list[str]) -> str:
    """Return models' names as an error has them."""
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(repr(name[:_LONGEST_SHOWN]) for name in names[:_MOST_NAMED]) + more
