"""Every error batchclient raises: first whose fault the error is, then the kind.

The tree::

    BatchClientError
    ├── BatchMapFailed                  documents of a ``batch_map`` failed (``results``);
    │   └── TooManyBadRows              a map has broken a bound of ``fail_if``;
    ├── ConfigError(ValueError)         the caller's arguments, refused where they are given;
    │   └── MissingField                a document lacks a field of its template, or its value;
    ├── LocalError                      this process decided;
    │   ├── QueueFull                   ``when_full="raise"``, and the queue is at ``max_calls``;
    │   ├── ClientClosed                the client is closed or draining, or its event loop is gone;
    │   ├── CallAborted                 ``abort()`` ended the call;
    │   ├── JournalFailed               a map's journal cannot be written; its rows are safe
    │   └── DeadlineExceeded(TimeoutError)  ``timeout_s`` passed, or cannot be met (``is_early``);
    ├── RemoteError                     the server decided;
    │   ├── BadRequest                  4xx, 501: this request never succeeds as it is;
    │   │   ├── AuthenticationFailed    401, 403;
    │   │   └── NotFound                404: the model or the route;
    │   ├── RateLimited                 429 (``retry_after_s``);
    │   ├── ServerFault                 other 5xx, an error event, ``finish_reason: "abort"``;
    │   ├── DemuxError                  a reply whose choices do not match the prompts;
    │   ├── DialectError                a reply that breaks the server's protocol;
    │   └── AnswerInvalid               an answer unlike ``response_model`` (``completion``);
    └── TransportError                  the network decided;
        ├── ConnectFailed               nothing was sent;
        │   ├── NoServerAnswered        none came within ``wait_for_server_s``;
        │   ├── CertificateRefused      the server could not prove its name: never tried again;
        │   └── OutOfSockets            this process has no descriptor or port left;
        ├── ReadTimedOut                silence for ``read_timeout_s``;
        ├── ConnectionLost              broken after the request was (partly) sent;
        └── ResponseTooLarge            over 64 MiB.

No message holds a key or a prompt: a server's own message is shortened, and the prompt and the key
are cut out of the message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import Any

    from batchclient.health import Health
    from batchclient.types import MapResults, Reply

__all__ = [
    "AnswerInvalid",
    "AuthenticationFailed",
    "BadRequest",
    "BatchClientError",
    "BatchMapFailed",
    "CallAborted",
    "CertificateRefused",
    "ClientClosed",
    "ConfigError",
    "ConnectFailed",
    "ConnectionLost",
    "DeadlineExceeded",
    "DemuxError",
    "DialectError",
    "JournalFailed",
    "LocalError",
    "MissingField",
    "NoServerAnswered",
    "NotFound",
    "OutOfSockets",
    "QueueFull",
    "RateLimited",
    "ReadTimedOut",
    "RemoteError",
    "ResponseTooLarge",
    "ServerFault",
    "TooManyBadRows",
    "TransportError",
]


class BatchClientError(Exception):
    """Base of every error of this library.

    Attributes:
        attempt: how many attempts the call had had (0: none), with refused connections.
        retryable: whether the same call may succeed later, unchanged.
        status: the HTTP status, if the server gave a status.
        retry_after_s: the server's wish, seconds, if the server gave a wish.
        code: the server's own ``code`` or ``type`` for the error, if the server gave any.
        reply: the server's reply as it came, for calls made through a drop-in; its texts are the
            server's own.
    """

    retryable: bool = False
    reply: Reply | None = None

    def __init__(
        self,
        message: str,
        *,
        attempt: int = 0,
        status: int | None = None,
        retry_after_s: float | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.attempt = attempt
        self.status = status
        self.retry_after_s = retry_after_s
        self.code = code

    @property
    def message(self) -> str:
        """The message alone."""
        return str(self.args[0])

    def __reduce__(self) -> tuple[object, ...]:
        # Keyword-only fields do not survive Exception's own pickling.
        return (_rebuild, (type(self), self.message, dict(self.__dict__)))


def _rebuild(kind: type[BatchClientError], message: str, state: dict[str, object]) -> BatchClientError:
    error = kind(message)
    error.__dict__.update(state)
    return error


class BatchMapFailed(BatchClientError):
    """Documents of a ``batch_map`` failed, or reading them did. Every document read was run.

    The error's cause is the first failure, or the error of reading. The error is retryable if every
    failure is.

    Attributes:
        results: of each document read, in input order, the answer or the exception.
    """

    def __init__(self, message: str, results: MapResults[Any] | None = None) -> None:
        from batchclient.types import MapResults

        super().__init__(message)
        self.results: MapResults[Any] = MapResults() if results is None else results


class TooManyBadRows(BatchMapFailed):
    """A map has broken a bound of ``fail_if``: at its end, or early, where that was certain to come.

    Attributes:
        results: of a ``batch_map``, as in ``BatchMapFailed``; those of a ``stream_map`` were
            yielded.
        rule: the bound, as it was given.
        count: rows of its kind.
        rows: of all kinds, from the beginning of the input.
        is_early: whether rows are left that were not tried.
    """

    rule: str = ""
    count: int = 0
    rows: int = 0
    is_early: bool = False


class ConfigError(BatchClientError, ValueError):
    """An argument is wrong. Nothing was queued or sent, unless a server was needed to find it out.

    Attributes:
        field: the argument's name, if one argument is to blame.
    """

    def __init__(self, message: str, *, field: str | None = None) -> None:
        super().__init__(message)
        self.field = field


class MissingField(ConfigError):
    """A document has not the field that its template names, or the field has no value."""


class LocalError(BatchClientError):
    """This process ended the call."""


class QueueFull(LocalError):
    """The queue is at ``max_calls`` and the client was made with ``when_full="raise"``."""

    retryable = True


class ClientClosed(LocalError):
    """The client is closed or draining, or the client's event loop is gone."""


class CallAborted(LocalError):
    """``BatchClient.abort`` ended the call."""

    retryable = True


class JournalFailed(LocalError):
    """A map's journal cannot be written: the disk is full or failed, or another process has it now.

    The map ends. All answers handed out are in the journal, and the same map goes on from there.
    """

    retryable = True


class DeadlineExceeded(LocalError, TimeoutError):
    """``timeout_s`` passed: in the queue, in backoff or while the server worked.

    The message says how many seconds went where, and which server's outage the call waited for
    since when. ``__cause__`` is the last failure: the call's own, else the failure of the server
    that the call waited for.

    Attributes:
        is_early: whether the call was refused at its turn, before its time had passed: less of its
            time was left than such calls take.
    """

    retryable = True
    is_early: bool = False


class RemoteError(BatchClientError):
    """The server answered, and the answer is no answer."""


class BadRequest(RemoteError):
    """A 4xx status, or 501 (the server lacks the feature): the call never succeeds as it is."""


class AuthenticationFailed(BadRequest):
    """401 or 403: the key is missing, wrong or not allowed."""


class NotFound(BadRequest):
    """404: the server has no such model or route."""


class RateLimited(RemoteError):
    """429: the server refuses work for now."""

    retryable = True


class ServerFault(RemoteError):
    """A 5xx status but 501, an error event in a stream, or a generation the server aborted.

    408, 409, 424 and 425 count as such: the server gave up, and the call may succeed later.
    """

    retryable = True


class DemuxError(RemoteError):
    """A reply with missing, doubled or unknown indices. No part of the reply was handed out."""

    retryable = True


class DialectError(RemoteError):
    """A reply that the server's protocol does not allow (not JSON, no ``choices``, …)."""

    retryable = True


class AnswerInvalid(RemoteError):
    """The answer does not fit ``response_model``, or is none of ``labels``; it is not shown.

    Attributes:
        completion: the ``Completion``; choices that fit have their ``parsed``.
        health: the completion's where that says why, such as ``"truncated"``, else ``"invalid"``.
    """

    completion: Any = None
    health: Health = "invalid"


class TransportError(BatchClientError):
    """The network failed."""

    retryable = True


class ConnectFailed(TransportError):
    """No connection could be made; nothing was sent."""


class NoServerAnswered(ConnectFailed):
    """No server gave a first answer within the client's ``wait_for_server_s``.

    The message names each server with its last failure.
    """


class CertificateRefused(ConnectFailed):
    """The server's TLS certificate is not trusted, has expired, or is another host's.

    Verification is never turned off.
    """

    retryable = False


class OutOfSockets(ConnectFailed):
    """This process has no file descriptor or local port left for a connection.

    The server is not to blame.
    """


class ReadTimedOut(TransportError):
    """The server was silent for longer than the read timeout."""


class ConnectionLost(TransportError):
    """The connection broke after the request was sent or partly sent.

    Attributes:
        while_sending: a body of more than 64 KB was being written, or had just been written: the
            server may have refused the body for its length.
        misdelivered: the server sent the reply to another request of ours.
    """

    while_sending: bool = False
    misdelivered: bool = False


class ResponseTooLarge(TransportError):
    """The decoded response has over 64 MiB."""

    retryable = False
