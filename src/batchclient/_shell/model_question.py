"""A client without a model asks its servers for their model, once, before the first call.

Rules:
- Calls wait for no other question. All share the question, as a rule of one round trip.
- The question goes the calls' way, also through a user's ``http_client``, with their timeouts.
- A single model is taken; of several none is guessed. LoRA adapters do not count beside the base
  model, nor does a second name of a model.
- A failure is retried as a call's would be, by the retry policy. The final error goes to each
  waiting call. A later call asks again.
- A server that is awaited (``_core/arrivals.py``) is asked until it is there, or its wait is over.
- The question ends with its last waiting call, after a deadline or a cancellation.

A call for a model which its server lacks gets an error with the known models: ``name_models``. A
call answered by an HTML page gets an error with the page's place: ``name_place``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from random import Random

import anyio

from batchclient._core.failures import Failure, FailureKind
from batchclient._core.messages import Asked, Event, ModelWanted
from batchclient._core.outcomes.errors import copy_of
from batchclient._core.spent import seconds
from batchclient._shell.asking import OF_GATEWAYS, absence
from batchclient._shell.backend import Backend, Cancellable, Waiter
from batchclient._shell.callbacks import ends_task
from batchclient._shell.dialect_choice import DialectChoice
from batchclient._shell.log import log
from batchclient._shell.pages import BODY_TRICKLES, FetchedPage, StartTask, read_page
from batchclient.dialects._fingerprints import Fingerprint, ServerFacts
from batchclient.dialects._redaction import redact, words_and_shown
from batchclient.dialects._replies import HTML_PAGE, error_in, read_retry_after
from batchclient.dialects._status import failure_of
from batchclient.errors import (
    AuthenticationFailed,
    BatchClientError,
    ClientClosed,
    ConfigError,
    ConnectFailed,
    DeadlineExceeded,
    DialectError,
    NotFound,
    ReadTimedOut,
    TransportError,
)
from batchclient.retry import RetryPolicy
from batchclient.transport import Timeouts, Transport, WireRequest

__all__ = ["ModelQuestion", "name_models", "name_place"]

_REFUSALS_OF_A_STRANGER = 3
"""Refused connections; as in ``_core/servers/health``."""
_TIMEOUT_S = 30.0
"""For one page's headers: a healthy server sends them at once, while a call may take minutes."""
_BODY_TIMEOUT_S = 5.0
"""A body begun is one packet, or a few."""
_LONGEST_PAUSE_S = 5.0
_PAUSE_RATIO = 0.1
_MOST_NAMED = 20
_LONGEST_SHOWN = 100
_Found = Callable[[str, int, Fingerprint], None]


class ModelQuestion:
    """Asks a runner's servers for the model.

    Args:
        backend: the loop's clock, waiters and timer.
        transports: (endpoint's id, transport) of the endpoints served now.
        start_task: starts a task that ends with the runner.
        policy: when to try again.
        timeouts: of each request.
        choice: holds the keys to cut out of servers' messages, and the hint for a missing key.
        found: told of the model's name, its endpoint, and the pages read there.
        url_of: returns an endpoint's base URL as it may be shown, or an empty text.
        hear: told which server does not seem to be there.
        is_awaited: whether an endpoint's first answer is awaited.
    """

    def __init__(
        self,
        backend: Backend,
        transports: Callable[[], Sequence[tuple[int, Transport]]],
        start_task: StartTask,
        policy: RetryPolicy,
        timeouts: Timeouts,
        choice: DialectChoice,
        found: _Found,
        url_of: Callable[[int], str],
        hear: Callable[[Event], None],
        is_awaited: Callable[[int], bool],
    ) -> None:
        self._backend = backend
        self._hear = hear
        self._is_awaited = is_awaited
        self._transports = transports
        self._start_task = start_task
        self._policy = policy
        self._timeouts = timeouts
        self._choice = choice
        self._found = found
        self._url_of = url_of
        self._rng = Random()  # jitter only  # noqa: S311
        self._waiting: dict[Waiter, None] = {}
        self._stop: Callable[[], object] | None = None
        self._nobody_waits: anyio.Event | None = None
        self._round = 0
        self._trickled = False
        self._tried: tuple[int, BatchClientError | None] = (0, None)
        """Of the question under way: attempts, and the error of the last failed attempt."""

    def __repr__(self) -> str:
        return f"<ModelQuestion, {len(self._waiting)} wait>"

    async def wait(self, deadline: float | None) -> None:
        """Sleep until the model is known.

        Raises:
            ConfigError: the servers name no model, or several.
            DeadlineExceeded: ``deadline`` came first.
            BatchClientError: the servers cannot be asked; the same error as of an unsent call.
        """
        waiter = self._backend.waiter()
        self._waiting[waiter] = None
        timer: Cancellable | None = None
        if deadline is not None:
            timer = self._backend.call_at(deadline, partial(self._expire, waiter, self._backend.now()))
        try:
            if self._stop is None:
                self._stop = _nothing
                self._round += 1
                stop = self._start_task(partial(self._ask, self._round), self.close)
                # An eager task may be over already.
                if self._stop is _nothing:
                    self._stop = stop
            await self._backend.wait(waiter)
        finally:
            if timer is not None:
                timer.cancel()
            self._waiting.pop(waiter, None)
            if not self._waiting:
                self._end()

    async def settled(self) -> None:
        """Return once no call waits any more."""
        if self._waiting:
            if self._nobody_waits is None:
                self._nobody_waits = anyio.Event()
            await self._nobody_waits.wait()

    def close(self) -> None:
        """End every waiting call: the client closes."""
        self.fail(ClientClosed("the client was closed while the call was under way"))

    def fail(self, error: BatchClientError) -> None:
        """End every waiting call with an error."""
        for waiter in self._waiting:
            if not waiter.done():
                waiter.set_exception(copy_of(error))

    def _expire(self, waiter: Waiter, since: float) -> None:
        if waiter.done():
            return
        attempts, failure = self._tried
        tries = f" in {attempts} attempt{'s' if attempts > 1 else ''}" if attempts else ""
        asked = f"{seconds(self._backend.now() - since)}{tries}"
        error = DeadlineExceeded(f"the call's timeout_s passed while the server was asked for its model: {asked}")
        error.__cause__ = None if failure is None else copy_of(failure)
        waiter.set_exception(error)

    def _end(self) -> None:
        stop, self._stop = self._stop, None
        if stop is not None:
            stop()
        if self._nobody_waits is not None:
            self._nobody_waits.set()
            self._nobody_waits = None

    async def _ask(self, number: int) -> None:
        try:
            await self._try()
        except BaseException as error:  # a policy and a transport may be the user's code
            failed = error
            if not isinstance(failed, BatchClientError):
                failed = BatchClientError(f"asking for the server's model failed: {type(error).__name__}")
                failed.__cause__ = error
            # After an ended question the next may have begun, and the calls waiting now wait for
            # the next.
            if self._round == number:
                self.fail(failed)
            if ends_task(error):
                raise
        else:
            for waiter in self._waiting:
                if not waiter.done():
                    waiter.set_result(None)
        finally:
            if self._round == number:
                self._stop = None
                self._hear(ModelWanted(wanted=False))

    async def _try(self) -> None:
        """Ask until a server has answered.

        Raises:
            BatchClientError: the last server's error, once the policy gives up.
        """
        began, attempt, strangers, self._trickled = self._backend.now(), 0, 0, False
        self._tried = (0, None)
        self._hear(ModelWanted())
        while True:
            places = list(self._transports())
            number, transport = places[attempt % len(places)]
            attempt += 1
            self._tried = (attempt, self._tried[1])
            fingerprint = Fingerprint()
            try:
                return await self._read(number, transport, attempt, fingerprint)
            except ConfigError:
                raise
            except BatchClientError as raised:
                error = _as_of_a_call(raised, attempt)
                self._tried = (attempt, error)
                failure = absence(raised, heard=fingerprint.heard)
                if self._is_awaited(number) and (failure is not None or raised.status is not None):
                    self._hear(Asked(number, answered=False, failure=failure))
                    if failure is not None:
                        await anyio.sleep(min(_LONGEST_PAUSE_S, max(1.0, attempt * _PAUSE_RATIO)) / len(places))
                        continue
                strangers = strangers + 1 if isinstance(error, ConnectFailed) else 0
                if isinstance(raised, ReadTimedOut) and not raised.retryable:
                    raise error from None
            if strangers >= _REFUSALS_OF_A_STRANGER * len(places):
                raise error
            try:
                delay_s = self._policy.decide(error, attempt, self._backend.now() - began, self._rng)
            except Exception:  # a policy is the user's code
                message = "the retry policy failed; the question for the model ends"
                log("retry_policy_failed", message, exc_info=True, batch=None)
                delay_s = None
            if delay_s is None:
                raise error
            await anyio.sleep(delay_s)

    async def _fetch(self, transport: Transport, request: WireRequest) -> FetchedPage:
        silence_s = self._timeouts.read_s
        headers_s = _TIMEOUT_S if silence_s is None else min(_TIMEOUT_S, silence_s)
        body_s = min(_BODY_TIMEOUT_S, headers_s)
        try:
            return await read_page(transport, request, self._timeouts, headers_s, body_s)
        except TimeoutError as error:
            if error.args != (BODY_TRICKLES,):
                message = f"the server did not say within {headers_s:g} s which model it serves"
                raise ReadTimedOut(message) from None
            began = ReadTimedOut(f"the server began to say which model it serves, and had not ended {body_s:g} s later")
            # A starting server says nothing: this server may have paused once.
            began.retryable = not self._trickled
            self._trickled = True
            raise began from None

    async def _read(self, number: int, transport: Transport, attempt: int, fingerprint: Fingerprint) -> None:
        """Ask one server.

        Raises:
            ConfigError: the server names no model, or several.
            BatchClientError: the server cannot be asked.
        """
        first_status, server = 0, "the server"
        while not fingerprint.names_models and (request := fingerprint.next()) is not None:
            status, headers, body = await self._fetch(transport, request)
            first_status = first_status or status
            if "html" in headers.get("content-type", ""):
                server = f"{self._url_of(number) or server}, which sends HTML pages,"
            if not fingerprint.take(status, headers, body) or status in (401, 403):
                message, code = error_in(body)
                words, shown = words_and_shown(message, (), self._choice.secrets)
                wish_s = read_retry_after(headers, time.time())
                failure = failure_of(status, words, code, shown=shown, streamed=False, retry_after_s=wish_s)
                failure = name_place(failure, self._url_of, number)
                hint = self._choice.key_hint if status == 401 else ""
                # A key that is refused is refused of every call.
                way_out = "" if failure.error is AuthenticationFailed else "; with model=… nothing is asked"
                message = f"{failure.message}{hint} (asked for its model{way_out})"
                raise replace(failure, message=message).to_error(attempt)
        names = [redact(name, (), self._choice.secrets) for name in fingerprint.facts().base_models()]
        if not names:
            # The list of models is asked for first.
            hint = "; does base_url end in /v1, and in nothing more?" if first_status == 404 else ""
            why = "" if 200 <= first_status < 300 else f" ({first_status}{hint})"
            message = f"no model, and {server} does not say which it serves{why}: BatchClient(…, model=…)"
            raise ConfigError(message, field="model")
        if len(names) > 1:
            message = f"no model, and the server has several: {_shown(names)}; name one: BatchClient(…, model=…)"
            raise ConfigError(message, field="model")
        self._found(fingerprint.facts().base_models()[0], number, fingerprint)


def name_models(failure: Failure, model: str, facts: ServerFacts | None, secrets: tuple[str, ...]) -> Failure:
    """Add the names of a server's models to its failure for want of a model."""
    names = [served.id for served in facts.models] if facts is not None else []
    if failure.error is not NotFound or not names or model in names:
        return failure
    shown = _shown([redact(name, (), secrets) for name in names])
    return replace(failure, message=f"{failure.message} (model={model[:_LONGEST_SHOWN]!r}; the server has {shown})")


def name_place(failure: Failure, url_of: Callable[[int], str], endpoint: int) -> Failure:
    """Add the URL to a failure for an HTML page, and ask whether the URL is right.

    A gateway in front of the right server sends such pages with 502, 503 or 504.
    """
    page = failure.message == f"{failure.status}: {HTML_PAGE}"
    if not page and not (failure.error is DialectError and "text/html" in failure.message):
        return failure
    came = " from " if page else "; it came from "
    question = "" if failure.status in OF_GATEWAYS else " (is base_url right, and an LLM server's?)"
    return replace(failure, message=f"{failure.message}{came}{url_of(endpoint) or 'the server'}{question}")


def _shown(names: list[str]) -> str:
    more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    return ", ".join(repr(name[:_LONGEST_SHOWN]) for name in names[:_MOST_NAMED]) + more


def _as_of_a_call(error: BatchClientError, attempt: int) -> BatchClientError:
    """Return the error of a call whose request fails in the same way."""
    if not isinstance(error, TransportError):
        return error
    # Without the frames of the original: keys are among their variables.
    return Failure(FailureKind.NOT_SENT, type(error), error.message, cause=error.__cause__).to_error(attempt)


def _nothing() -> None:
    """Stand for the cancellation of a task being started."""
