"""A client without a model asks its servers for their model, once, before the first call.

Rules:
- Calls wait for no other question. All share the question, as a rule of one round trip.
- The question goes the calls' way, also through a user's own HTTP client, with their timeouts.
- A single model is taken; of several none is guessed. LoRA adapters do not count beside the base
  model, nor does a second name of a model.
- A failure is retried as a call's would be, by the retry policy. The final error goes to each
  waiting call. A later call asks again.
- A server that is awaited (``_core/asking.py``) is asked until it is there, or its wait is over.
- The question ends with its last waiting call, after a deadline or a cancellation.
"""

from __future__ import annotations

import math
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
from batchclient._shell.callbacks import ends_task
from batchclient._shell.faults import absence, name_place, shown_names
from batchclient._shell.pages import BODY_TRICKLES, FetchedPage, StartTask, read_page
from batchclient._shell.servers import DialectChoice
from batchclient.dialects._fingerprints import Fingerprint
from batchclient.dialects._redaction import redact, words_and_shown
from batchclient.dialects._replies import error_in, read_retry_after
from batchclient.dialects._status import failure_of
from batchclient.errors import (
    AuthenticationFailed,
    BatchClientError,
    ClientClosed,
    ConfigError,
    ConnectFailed,
    DeadlineExceeded,
    ReadTimedOut,
    TransportError,
)
from batchclient.retry import RetryPolicy
from batchclient.transport import Timeouts, Transport, WireRequest

__all__ = ["ModelQuestion"]

_REFUSALS_OF_A_STRANGER = 3
"""Refused connections; as in ``_core/servers/health``."""
_TIMEOUT_S = 30.0
"""For one page's headers: a healthy server sends them at once, while a call may take minutes."""
_BODY_TIMEOUT_S = 5.0
"""A body begun is one packet, or a few."""
_LONGEST_PAUSE_S = 5.0
_PAUSE_RATIO = 0.1
_Found = Callable[[str, int, Fingerprint], None]


class _Round:
    """One question under way, from its first waiting call to its end."""

    def __init__(self) -> None:
        self.over = anyio.Event()
        self.error: BatchClientError | None = None
        """Of the end."""
        self.stop: Callable[[], object] | None = None
        self.attempts = 0
        self.failure: BatchClientError | None = None
        """Of the last failed attempt."""
        self.has_trickled = False


class ModelQuestion:
    """Asks a runner's servers for the model.

    Args:
        now: the time, seconds.
        transports: (endpoint's id, transport) of the endpoints served now.
        start_task: starts a task that ends with the runner.
        policy: when to try again; guarded.
        timeouts: of each request.
        choice: holds the keys to cut out of servers' messages, and the hint for a missing key.
        found: told of the model's name, its endpoint, and the pages read there.
        url_of: returns an endpoint's base URL as it may be shown, or an empty text.
        hear: told which server does not seem to be there.
        is_awaited: whether an endpoint's first answer is awaited.
    """

    def __init__(
        self,
        now: Callable[[], float],
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
        self._now = now
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
        self._round: _Round | None = None
        self._waiting = 0
        self._nobody_waits: anyio.Event | None = None

    def __repr__(self) -> str:
        return f"<ModelQuestion, {self._waiting} wait>"

    async def wait(self, deadline: float | None) -> None:
        """Sleep until the model is known.

        Raises:
            ConfigError: the servers name no model, or several.
            DeadlineExceeded: ``deadline`` came first.
            BatchClientError: the servers cannot be asked; the same error as of an unsent call.
        """
        began_at = self._now()
        self._waiting += 1
        try:
            asked = self._round
            if asked is None:
                asked = self._round = _Round()
                asked.stop = self._start_task(partial(self._ask, asked), self.close)
            with anyio.CancelScope(deadline=math.inf if deadline is None else deadline):
                await asked.over.wait()
            is_over = asked.over.is_set()
        finally:
            self._waiting -= 1
            if not self._waiting:
                self._end(self._round, None)
                if self._nobody_waits is not None:
                    self._nobody_waits.set()
                    self._nobody_waits = None
        if not is_over:
            raise self._too_late(asked, began_at)
        if asked.error is not None:
            raise copy_of(asked.error)

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
        self._end(self._round, error)

    def _too_late(self, asked: _Round, began_at: float) -> DeadlineExceeded:
        tries = f" in {asked.attempts} attempt{'s' if asked.attempts > 1 else ''}" if asked.attempts else ""
        waited = f"{seconds(self._now() - began_at)}{tries}"
        error = DeadlineExceeded(f"the call's timeout_s passed while the server was asked for its model: {waited}")
        error.__cause__ = None if asked.failure is None else copy_of(asked.failure)
        return error

    def _end(self, asked: _Round | None, error: BatchClientError | None) -> None:
        """End the present question, unless another was asked since."""
        if asked is None or asked is not self._round:
            return
        self._round = None
        asked.error = error
        asked.over.set()
        if asked.stop is not None:
            asked.stop()
        self._hear(ModelWanted(wanted=False))

    async def _ask(self, asked: _Round) -> None:
        try:
            await self._try(asked)
        except BaseException as error:  # a transport may be the user's code
            failed = error
            if not isinstance(failed, BatchClientError):
                failed = BatchClientError(f"asking for the server's model failed: {type(error).__name__}")
                failed.__cause__ = error
            asked.stop = None
            self._end(asked, failed)
            if ends_task(error):
                raise
        else:
            asked.stop = None
            self._end(asked, None)

    async def _try(self, asked: _Round) -> None:
        """Ask until a server has answered.

        Raises:
            BatchClientError: the last server's error, once the policy gives up.
        """
        began, strangers = self._now(), 0
        self._hear(ModelWanted())
        while True:
            places = list(self._transports())
            number, transport = places[asked.attempts % len(places)]
            asked.attempts += 1
            fingerprint = Fingerprint()
            try:
                return await self._read(number, transport, asked, fingerprint)
            except ConfigError:
                raise
            except BatchClientError as raised:
                error = asked.failure = _as_of_a_call(raised, asked.attempts)
                failure = absence(raised, heard=fingerprint.heard)
                if self._is_awaited(number) and (failure is not None or raised.status is not None):
                    self._hear(Asked(number, answered=False, failure=failure))
                    if failure is not None:
                        await anyio.sleep(min(_LONGEST_PAUSE_S, max(1.0, asked.attempts * _PAUSE_RATIO)) / len(places))
                        continue
                strangers = strangers + 1 if isinstance(error, ConnectFailed) else 0
                if isinstance(raised, ReadTimedOut) and not raised.retryable:
                    raise error from None
            if strangers >= _REFUSALS_OF_A_STRANGER * len(places):
                raise error
            delay_s = self._policy.decide(error, asked.attempts, self._now() - began, self._rng)
            if delay_s is None:
                raise error
            await anyio.sleep(delay_s)

    async def _fetch(self, transport: Transport, request: WireRequest, asked: _Round) -> FetchedPage:
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
            began.retryable = not asked.has_trickled
            asked.has_trickled = True
            raise began from None

    async def _read(self, number: int, transport: Transport, asked: _Round, fingerprint: Fingerprint) -> None:
        """Ask one server.

        Raises:
            ConfigError: the server names no model, or several.
            BatchClientError: the server cannot be asked.
        """
        first_status, server = 0, "the server"
        while not fingerprint.names_models and (request := fingerprint.next()) is not None:
            status, headers, body = await self._fetch(transport, request, asked)
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
                raise replace(failure, message=message).to_error(asked.attempts)
        names = [redact(name, (), self._choice.secrets) for name in fingerprint.facts().base_models()]
        if not names:
            # The list of models is asked for first.
            hint = "; does base_url end in /v1, and in nothing more?" if first_status == 404 else ""
            why = "" if 200 <= first_status < 300 else f" ({first_status}{hint})"
            message = f"no model, and {server} does not say which it serves{why}: BatchClient(…, model=…)"
            raise ConfigError(message, field="model")
        if len(names) > 1:
            message = f"no model, and the server has several: {shown_names(names)}; name one: BatchClient(…, model=…)"
            raise ConfigError(message, field="model")
        self._found(fingerprint.facts().base_models()[0], number, fingerprint)


def _as_of_a_call(error: BatchClientError, attempt: int) -> BatchClientError:
    """Return the error of a call whose request fails in the same way."""
    if not isinstance(error, TransportError):
        return error
    # Without the frames of the original: keys are among their variables.
    return Failure(FailureKind.NOT_SENT, type(error), error.message, cause=error.__cause__).to_error(attempt)
