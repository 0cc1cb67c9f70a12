"""One batch on the wire: its request, its reply, and why some of its calls have no answer.

Rules:
- Answers are told before a failure: a stream that breaks keeps its finished answers.
- A reply without an event for ``read_timeout_s`` is given up, however many bytes come.
- For a caller who takes an answer piece by piece, nothing is read ahead.
- An answered batch is over. The end of its body is awaited, so that the connection can be used
  again. The wait is half a second at most, for no more requests than were ever under way at the
  server at once.
- A failure tells the silence before: the core judges whether a gateway cut it off.
- A reply meant for another request of the client is no attempt, once: the request is sent again.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import anyio

from batchclient._core.messages import Answered, Batch, Event, Failure, RatesReported
from batchclient._shell.backend import Backend
from batchclient._shell.faults import from_transport
from batchclient._shell.log import EndpointLog
from batchclient._shell.thinking import ThinkingWatch
from batchclient.errors import (
    BatchClientError,
    ConnectionLost,
    ReadTimedOut,
    TransportError,
)
from batchclient.transport import Timeouts, WireResponse
from batchclient.transport._deadline import deadline
from batchclient.types import Completion, Delta, Reply

if TYPE_CHECKING:
    from batchclient._shell.pieces import Pieces
    from batchclient._shell.servers import Server
    from batchclient.dialects._decoder import ReplyDecoder

__all__ = ["BodyTimeouts", "Exchanges"]

_LONGEST_ERROR_BODY = 65_536
_SHORTEST_CONNECT_S = 1.0
_SAYS_NOTHING = (204, 205)
_Look = Callable[[list[tuple[int, Completion]]], None]


@dataclass(frozen=True, slots=True)
class BodyTimeouts:
    """How long the rest of a body is awaited once the reply is known, seconds.

    Attributes:
        error_s: an error's body. The status decides; the body only explains.
        usage_s: a usage behind the last choice. A proxy adds the usage after passing on the reply.
        end_s: a body's end, which comes with the last event, or in the next packet.
    """

    error_s: float = 5.0
    usage_s: float = 2.0
    end_s: float = 0.5


class Exchanges:
    """The exchanges of a runner.

    Args:
        backend: the loop's clock.
        servers: by endpoint; the runner's own, and changed by the runner.
        timeouts: of each request.
        bounds_connect: whether a connection gets half of its calls' time, a second at least, where
            that is less than ``timeouts`` say: another server may then still have them.
        tell: tells the core of an event.
        body_timeouts: for the rest of a known reply.
        endpoint_log: logs events of endpoints.
        thinking: looks at the answers to calls with a budget for thinking.
    """

    def __init__(
        self,
        backend: Backend,
        servers: Mapping[int, Server],
        timeouts: Timeouts,
        tell: Callable[[Event], None],
        body_timeouts: BodyTimeouts,
        endpoint_log: EndpointLog,
        thinking: ThinkingWatch,
        *,
        bounds_connect: bool = False,
    ) -> None:
        self._bounds_connect = bounds_connect
        self._log = endpoint_log
        self._thinking = thinking
        self._backend = backend
        self._body_timeouts = body_timeouts
        self._servers = servers
        self._timeouts = timeouts
        self._tell = tell
        self._has_said = False
        self.over: set[int] = set()
        """Batches whose end was told to the core before the end of their bodies."""

    async def run(self, batch: Batch) -> Failure | None:
        """Send a batch, tell the core its answers as they come; return why some have none."""
        server = self._servers[batch.endpoint]
        server.under_way += 1
        server.most = max(server.most, server.under_way)
        try:
            try:
                return await self._exchange(batch, server)
            except ConnectionLost as error:
                if not error.misdelivered or batch.id in self.over:
                    raise
                return await self._exchange(batch, server)
        except BatchClientError as error:
            failure = from_transport(error, listed=len(batch.requests) > 1)
            return replace(failure, silent_s=self._backend.now() - batch.wire.read_at)
        finally:
            server.under_way -= 1

    def _is_patient(self, server: Server, since: float) -> bool:
        """Whether a silent server is asked further which it is: not while another is known."""
        longest_s = self._timeouts.read_s
        is_late = longest_s is not None and self._backend.now() - since >= longest_s
        return not is_late and all(each.is_unheard for each in self._servers.values() if each is not server)

    async def _exchange(self, batch: Batch, server: Server) -> Failure | None:
        dialect, now = server.dialect, self._backend.now
        sent_at = batch.wire.read_at = now()
        asked = batch if server.model is None else server.asked(batch, server.model)
        look: _Look | None = None
        if batch.shape.thinking_tokens is not None:
            if dialect.is_assumed:
                unmet = await server.watcher.meet(partial(self._is_patient, server, sent_at))
                if unmet is not None:
                    return unmet
                dialect = server.dialect
            in_its_fields = dialect.asked(asked)
            if isinstance(in_its_fields, Failure):
                return in_its_fields
            asked, look = in_its_fields, partial(self._thinking.look, batch, dialect=dialect)
        request = dialect.encode(asked)
        if isinstance(request, Failure):
            return request
        session = batch.shape.session
        if session is not None and server.session_header is not None:
            request = replace(request, headers=(*request.headers, (server.session_header, session)))
        timeouts = self._connecting(batch, sent_at) if self._bounds_connect else self._timeouts
        response = await server.transport.send(request, timeouts)
        batch.wire.read_at, batch.wire.replied = now(), True
        windows = dialect.rate_limits(response.headers)
        if windows:
            self._tell(RatesReported(batch.endpoint, windows))
        pending = _Pending(self._backend, self._tell, batch, server.model, look)
        verbatim = batch.shape.verbatim
        decoder: ReplyDecoder | None = None
        try:
            if not 200 <= response.status < 300 or response.status in _SAYS_NOTHING:
                body = await self._read_some(response, batch)
                failed = dialect.failure(asked, response.status, response.headers, body, time.time())
                failed = replace(failed, silent_s=batch.wire.read_at - sent_at)
                if look is not None:
                    failed = dialect.refused_budget(asked, failed, now())
                if not verbatim:
                    return failed
                # The body of a failed list may speak of others' prompts.
                alone = body if len(batch.requests) == 1 else None
                return replace(failed, reply=Reply(alone, response.headers, response.status))
            decoder = dialect.decoder(asked, response.headers.get("content-type", ""))
            async with aclosing(response.chunks()) as chunks:
                await self._read(batch, decoder, pending, response, chunks)
                batch.wire.events = decoder.events
                if not self._has_said and decoder.events > 2 * len(batch.requests) * batch.shape.weight:
                    self._tell_events(batch, decoder, server)
                if decoder.complete and not decoder.failed:
                    if pending.added == len(batch.requests):
                        self.over.add(batch.id)
                        self._tell(Answered(batch, pending.take(), ended=True))
                        if not decoder.cut:
                            await self._await_end(batch, chunks, None, pending, server)
                        return None
                    await self._await_end(batch, chunks, decoder, pending, server)
            answers, failure = decoder.end(now())
            if server.model is not None:
                _name(answers, server.model)
            if look is not None:
                look(answers)
                failure = None if failure is None else dialect.refused_budget(asked, failure, now())
            if batch.shape.to_caller:
                # The last event may have come without its blank line.
                await self._hand_out(decoder, batch.requests[0].waiter, ended=True)
            if verbatim:
                _add_head(answers, response)
        finally:
            # Also after a break of the stream: finished answers are told before the rest fails.
            pending.flush()
            if decoder is not None:
                batch.wire.lost_tokens = decoder.lost_tokens()
            try:
                await response.aclose()
            except Exception as error:  # a socket that fails to close is closed; the answers are none the worse
                self._note("connection_close_failed", batch, "a connection failed to close: %s", error)
        if failure is None:
            self._tell(Answered(batch, answers, ended=True))
            return None
        if answers:
            self._tell(Answered(batch, answers))
        return replace(failure, silent_s=now() - batch.wire.read_at)

    def _connecting(self, batch: Batch, now: float) -> Timeouts:
        """Return the timeouts of a request, with a connect timeout that its calls have the time for."""
        ends = [request.deadline for request in batch.requests if request.deadline is not None]
        connect_s = self._timeouts.connect_s
        if not ends or connect_s is None or min(ends) - now >= 2 * connect_s:
            return self._timeouts
        return replace(self._timeouts, connect_s=max(_SHORTEST_CONNECT_S, (min(ends) - now) / 2))

    async def _read(
        self,
        batch: Batch,
        decoder: ReplyDecoder,
        pending: _Pending,
        response: WireResponse,
        chunks: AsyncGenerator[bytes],
    ) -> None:
        """Read until the reply has ended, has failed, or is complete."""
        now = self._backend.now
        sink: Pieces | None = batch.requests[0].waiter if batch.shape.to_caller else None
        verbatim = batch.shape.verbatim
        silence_s = self._timeouts.read_s if batch.streamed else None
        heard, heard_at = decoder.events, now()
        async for chunk in chunks:
            batch.wire.heard = True
            arrived_at = now()
            answers = decoder.feed(chunk, arrived_at)
            if sink is not None:
                arrived_at = await self._hand_out(decoder, sink, ended=bool(answers))
            if answers:
                if verbatim:
                    _add_head(answers, response)
                pending.add(answers)
            if decoder.failed or decoder.complete:
                # The rest, perhaps endless, is not awaited.
                return
            # While a caller took its time, nothing was read.
            batch.wire.read_at = arrived_at
            if decoder.events != heard:
                heard, heard_at = decoder.events, arrived_at
            elif silence_s is not None and arrived_at - heard_at > silence_s:
                # Pings, or an event byte by byte: each read is in time, and nothing is said.
                raise ReadTimedOut("the server sent bytes, but no event for read_timeout_s")

    async def _await_end(
        self,
        batch: Batch,
        chunks: AsyncGenerator[bytes],
        decoder: ReplyDecoder | None,
        pending: _Pending,
        server: Server,
    ) -> None:
        """Read on after the last choice: to a usage, with a decoder, and to the end."""
        if decoder is None and server.ending >= server.most:
            # A call with a usage to come still has its permit, and is counted by the permit.
            return
        timeouts = self._body_timeouts
        server.under_way -= 1
        server.ending += 1
        try:
            async with deadline(timeouts.end_s if decoder is None else timeouts.usage_s):
                async for chunk in chunks:
                    if decoder is not None:
                        pending.add(decoder.feed(chunk, self._backend.now()))
                        if decoder.failed:
                            return
        except (TransportError, TimeoutError) as error:
            # The reply is whole: nothing is lost but a connection.
            self._note("reply_end_failed", batch, "a reply that was whole did not end: %s", error)
        finally:
            server.ending -= 1
            server.under_way += 1

    def _tell_events(self, batch: Batch, decoder: ReplyDecoder, server: Server) -> None:
        """Log a server which sends many more events than asked for."""
        choices = len(batch.requests) * batch.shape.weight
        # By now the server may be known as unable to send fewer.
        most = (1 + server.dialect.events_per_choice(batch.shape)) * choices
        if decoder.events > most and not batch.shape.to_caller:
            self._has_said = True
            message = (
                "the server sends an event per token: it ignores stream_interval (vLLM before 0.27 does), which costs"
                " this client about five times the CPU per streamed call"
            )
            self._log("event_per_token", batch.endpoint, message)

    async def _read_some(self, response: WireResponse, batch: Batch) -> bytes:
        """Read an error's body up to a size worth showing, or the part that came in time."""
        body = b""
        try:
            with anyio.move_on_after(self._body_timeouts.error_s):
                async with aclosing(response.chunks()) as chunks:
                    async for chunk in chunks:
                        body += chunk
                        if len(body) > _LONGEST_ERROR_BODY:
                            break
        except TransportError as error:
            self._note("error_body_broken", batch, "the body of an error broke off: %s", error)
        return body

    async def _hand_out(self, decoder: ReplyDecoder, sink: Pieces, *, ended: bool) -> float:
        """Pass pieces on to a caller; read no more while none are taken. Return the time."""
        # Decoders of kinds never streamed have no pieces.
        deltas: list[Delta] = getattr(decoder, "deltas", [])
        if deltas:
            sink.put(deltas)
            deltas.clear()
            if not ended:
                await sink.wait_for_room()
        return self._backend.now()

    def _note(self, event: str, batch: Batch, message: str, error: Exception) -> None:
        """Log what is no failure of any call."""
        kind = type(error).__name__
        self._log(event, batch.endpoint, message, kind, error=kind)


class _Pending:
    """Answers of one read of the socket, told to the core together.

    A read brings many events, each in an HTTP chunk of its own. Telling the core once per event
    would cost more than parsing the event. The loop's next turn comes when the socket is empty.
    """

    __slots__ = ("_answers", "_backend", "_batch", "_look", "_model", "_tell", "added")

    def __init__(
        self,
        backend: Backend,
        tell: Callable[[Event], None],
        batch: Batch,
        model: str | None,
        look: _Look | None,
    ) -> None:
        self._backend = backend
        self._tell = tell
        self._batch = batch
        self._model = model
        self._look = look
        self._answers: list[tuple[int, Completion]] = []
        self.added = 0
        """Answers so far, told or not."""

    def add(self, answers: list[tuple[int, Completion]]) -> None:
        if not self._answers and answers:
            self._backend.call_soon(self.flush)
        if self._model is not None:
            _name(answers, self._model)
        if self._look is not None:
            self._look(answers)
        self._answers += answers
        self.added += len(answers)

    def take(self) -> list[tuple[int, Completion]]:
        """Return the untold answers, for a caller who tells them now."""
        answers, self._answers = self._answers, []
        return answers

    def flush(self) -> None:
        answers = self.take()
        if answers:
            self._tell(Answered(self._batch, answers))


def _name(answers: list[tuple[int, Completion]], model: str) -> None:
    """Note the server's own model in answers that do not name theirs."""
    for _, answer in answers:
        answer.extra = {"model": model, **answer.extra}


def _add_head(answers: list[tuple[int, Completion]], response: WireResponse) -> None:
    for _, answer in answers:
        if answer.reply is not None:
            answer.reply.headers, answer.reply.status = response.headers, response.status
