"""A socket of asyncio's for one HTTP/1.1 exchange after the other, read by httptools (llhttp).

Rules:
- Whatever comes while nobody has asked, or behind a whole reply, belongs to nobody: the connection
  is closed, and no byte is used.
- Silence is judged by the clock: it begins with the last write, or when the reader waits for more.
  A byte of a header, of an interim reply (100, 103) or of a chunk's length ends no silence.
- One timer of the connection's own watches silence, writing and idleness.
- A reply is read while its request is still written: a server may refuse a long request early.
- llhttp is lenient where servers are known to be careless, and nowhere that could shift a reply's
  end: a length beside chunks, or two lengths, breaks the connection.
"""

from __future__ import annotations

import asyncio
import os
import select
from contextlib import suppress
from typing import Any, cast

import httptools

from batchclient.errors import BatchClientError, ConnectionLost, ReadTimedOut
from batchclient.transport import Timeouts
from batchclient.transport._exceptions import SILENT, broken
from batchclient.transport._rules import Timed

__all__ = ["Connection"]

_LONGEST_UNREAD_BYTES = 64 * 1024
"""No more than so many bytes of a body are read ahead."""
_LONGEST_HEAD_BYTES = 128 * 1024
"""Of a reply; h11 takes 100 KB, and llhttp has no bound."""
_TLS_PIECE_BYTES = 64 * 1024
_LONGEST_TICK_S = 1.0
"""Between two looks at the clock; an eighth of a shorter timeout."""
_TLS_ALERT = b"\x15\x03"
_NO_BODY = (204, 304)


class Connection(asyncio.Protocol, Timed):
    """One socket.

    Args:
        loop: the socket's, and no other's.
        is_tls: whether the bytes are encrypted.
        address: of the server, behind "connection", in errors.

    Attributes:
        status, headers: of the reply; ``headers`` is ``None`` before the head is whole.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, *, is_tls: bool, address: str = "") -> None:
        self._loop = loop
        self._is_tls = is_tls
        self._address = address
        self.status: int = 0
        self._is_open = True
        self._transport = cast("asyncio.Transport", None)
        self._readable: select.poll | None = None
        self._timeouts: Timeouts | None = None
        self._tick_s = _LONGEST_TICK_S
        self._timer: asyncio.TimerHandle | None = None
        self._is_used = self._is_active = self._is_complete = self._is_full = False
        self._pieces: list[bytes] = []
        self._rest = memoryview(b"")
        self._error: BatchClientError | None = None
        self._waiter: asyncio.Future[None] | None = None

    # One exchange ----------------------------------------------------------------------------------------------------

    def start(self, head: bytes, body: bytes, timeouts: Timeouts) -> None:
        """Write a request, and begin to read its reply."""
        self._is_active = True
        self.status = 0
        self.headers: dict[str, str] | None = None
        self.was_heard = False
        self.sent_at = None
        self._fields: dict[str, str] = {}
        self._pieces = []
        self._unread_bytes = self._body_bytes = self._head_bytes = self._field_bytes = 0
        self._is_interim = self._ends_with_the_connection = self._told_head = False
        self._is_complete = self._is_spoilt = False
        self._error = None
        self._unsent_bytes = -1
        self._rest = memoryview(b"")
        self._parser: Any = httptools.HttpResponseParser(self)
        self._parser.set_dangerous_leniencies(
            lenient_headers=True,
            lenient_optional_cr_before_lf=True,
            lenient_spaces_after_chunk_size=True,
            lenient_version=True,
        )
        self.wrote_at: float = self.now()
        if not self._is_open:
            # It was closed since it was made, or taken.
            self._error = broken(None, is_new=not self._is_tls and not self._is_used)
            return
        if self._is_tls and len(body) > _TLS_PIECE_BYTES:
            self._transport.write(head)
            self._rest = memoryview(body)
            self._write_more()
        elif body:
            self._transport.writelines((head, body))
        else:
            self._transport.write(head)
        if not self._unsent():
            self.sent_at = self.wrote_at
        if timeouts is not self._timeouts:
            self._watch(timeouts)

    async def wait_for_head(self) -> dict[str, str]:
        """Return the headers, once they and ``status`` are there.

        Raises:
            ConnectionLost: the connection broke before.
            ReadTimedOut: the server was silent.
        """
        while self.headers is None:
            if self._error is not None:
                raise self._error
            await self._wait()
        return self.headers

    async def next_piece(self) -> bytes:
        """Return what has come of the body; empty: the body has ended.

        Raises:
            ConnectionLost: the connection broke before the body's end.
            ReadTimedOut: the server was silent.
        """
        while not self._pieces:
            if self._error is not None:
                raise self._error
            if self._is_complete:
                return b""
            await self._wait()
        pieces = self._pieces
        data = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        pieces.clear()
        if self._unread_bytes > _LONGEST_UNREAD_BYTES and self._is_open:
            self._transport.resume_reading()
        self._unread_bytes = 0
        return data

    async def finish(self, *, reuse: bool) -> bool:
        """End the exchange; return whether another may follow. If not, the connection is closed.

        Args:
            reuse: whether the caller finds nothing against it.
        """
        self._is_active, self._is_used = False, True
        # They hold the connection, and the connection them; the error's frames hold the request.
        self._parser = self._error = None
        whole = self._is_open and self._is_complete and not self._is_spoilt
        # What was not read may have stopped the reading.
        if reuse and whole and not self._pieces and not self._unsent():
            self.idle_since: float = self.now()
            return True
        self._close()
        return False

    def now(self) -> float:
        """Return the time of the loop."""
        return self._loop.time()

    def is_fit(self) -> bool:
        """Whether an idle connection may carry a request, by a look into the kernel, too."""
        if not self._is_open or self.is_late() or self._loop is not asyncio._get_running_loop():
            return False
        return self._readable is None or not self._readable.poll(0)

    async def aclose(self) -> None:
        """Close the socket, unless its loop is closed or is another thread's."""
        is_ours = self._loop is asyncio._get_running_loop() or not self._loop.is_running()
        if is_ours and not self._loop.is_closed():
            self._fail(ConnectionLost("the client was closed"))

    def _close(self) -> None:
        """Close the socket without a word."""
        self._is_open = False
        self._transport.abort()

    def _fail(self, error: BatchClientError) -> None:
        """Close the socket; the reader gets what came, and then the error."""
        if self._error is None and not self._is_complete:
            self._error = error
        self._close()
        self._wake()

    def _watch(self, timeouts: Timeouts) -> None:
        """Look at the clock from time to time, as often as the timeouts need."""
        self._timeouts = timeouts
        shortest_s = min(filter(None, (timeouts.read_s, timeouts.write_s, 8 * _LONGEST_TICK_S))) / 8
        if self._timer is None or shortest_s < self._tick_s:
            self._tick_s = shortest_s
            self._look()

    def _look(self) -> None:
        """End the exchange if the server took or said nothing for too long; close an idle socket."""
        if self._timer is not None:
            self._timer.cancel()
        if not self._is_open:
            return
        now = self.now()
        self._timer = self._loop.call_later(self._tick_s, self._look)
        if not self._is_active:
            if self.is_late():
                self._close()
            return
        unsent = self._unsent()
        if unsent != self._unsent_bytes:
            self._unsent_bytes, self._silent_since = unsent, now
            if not unsent and self.sent_at is None:
                self.sent_at = now
        timeouts = cast("Timeouts", self._timeouts)
        bound_s = timeouts.write_s if unsent else timeouts.read_s
        if self._waiter is not None and bound_s is not None and now - self._silent_since > bound_s:
            lost = ConnectionLost("the server took no bytes of the request for the write timeout")
            self._fail(lost if unsent else ReadTimedOut(SILENT))

    def _unsent(self) -> int:
        """Return how many bytes of the request the kernel has not taken."""
        return len(self._rest) + self._transport.get_write_buffer_size()

    def _write_more(self) -> None:
        """Write a long body through TLS in pieces: what TLS has passed on is in no count of asyncio's."""
        while self._rest and not self._is_full and self._is_open:
            self._transport.write(bytes(self._rest[:_TLS_PIECE_BYTES]))
            self._rest = self._rest[_TLS_PIECE_BYTES:]

    async def _wait(self) -> None:
        self._silent_since = self.now()
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    # asyncio's side --------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        file = transport.get_extra_info("socket").fileno()
        if hasattr(select, "poll") and file >= 0:
            self._readable = select.poll()
            self._readable.register(file, select.POLLIN)

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        if self._is_active:
            self._write_more()

    def data_received(self, data: bytes) -> None:
        if not self._is_active or self._is_complete:
            self._close()
            return
        is_first = not self.was_heard
        self.was_heard: bool = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            if not self._is_complete:
                alert = is_first and data.startswith(_TLS_ALERT)
                why = "the server answers in TLS; does it speak https://?" if alert else type(error).__name__
                self._fail(self._error or ConnectionLost(f"the reply is no HTTP ({why})"))
                return
            self._is_spoilt = True
        if self._error is not None:
            self._close()
            self._wake()
            return
        if self.headers is None:
            self._head_bytes += len(data)
            if self._head_bytes > _LONGEST_HEAD_BYTES:
                self._fail(_too_long())
            return
        if self._pieces or self._is_complete or not self._told_head:
            self._told_head = True
            self._wake()

    def eof_received(self) -> bool:
        self._end(None)
        # asyncio closes the socket.
        return False

    def connection_lost(self, error: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if error is not None and self._is_open:
            self._read_what_is_left()
        self._end(error)

    def _end(self, error: Exception | None) -> None:
        self._is_open = False
        if not self._is_active or self._is_complete or self._error is not None:
            return
        if error is None and self._ends_with_the_connection:
            self._is_complete = self._is_spoilt = True
        else:
            is_new = not (self._is_used or self.was_heard or self._is_tls)
            self._error = broken(error, self._address, self._body_bytes, is_new=is_new)
            self._error.__cause__ = error
        self._wake()

    def _read_what_is_left(self) -> None:
        """Read the kernel's bytes: asyncio closes a socket after a failed write without a look."""
        if type(self._transport).__module__ == "asyncio.selector_events" and self._is_active:
            file = self._transport.get_extra_info("socket").fileno()
            with suppress(OSError):
                while file >= 0 and self._is_open and (data := os.read(file, _LONGEST_UNREAD_BYTES)):
                    self.data_received(data)

    # httptools' side -------------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        """Note a second reply."""
        if self._is_complete:
            self._is_spoilt = True

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a field of the head; of several of one name all. Fields behind the body are dropped."""
        if self.headers is not None:
            return
        self._field_bytes += len(name) + len(value)
        if self._field_bytes > _LONGEST_HEAD_BYTES and self._error is None:
            self._error = _too_long()
        key, text = name.decode("latin-1").lower(), value.strip(b" \t").decode("latin-1")
        before = self._fields.get(key)
        self._fields[key] = text if before is None else f"{before}, {text}"

    def on_headers_complete(self) -> None:
        """Take the head, unless it is an interim reply's, or unfit."""
        if self.headers is not None or self._error is not None:
            return
        status = self._parser.get_status_code()
        if 100 <= status < 200:
            self._is_interim, self._fields = True, {}
            return
        coding = self._fields.get("transfer-encoding", "").lower()
        if coding not in ("", "chunked", "identity"):
            self._error = ConnectionLost("the reply's transfer-encoding was not asked for")
            return
        self._ends_with_the_connection = (
            coding != "chunked" and "content-length" not in self._fields and status not in _NO_BODY
        )
        self.status, self.headers = status, self._fields

    def on_body(self, body: bytes) -> None:
        """Keep a piece of the body; ask for no more while the reader has enough."""
        if self._is_complete or self._error is not None:
            return
        self._pieces.append(body)
        self._body_bytes += len(body)
        self._unread_bytes += len(body)
        if self._unread_bytes > _LONGEST_UNREAD_BYTES and self._is_open:
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        """Note the reply's end."""
        if self._is_interim:
            self._is_interim = False
        elif self._error is None:
            self._is_complete = True
            if not self._parser.should_keep_alive():
                self._is_spoilt = True


def _too_long() -> ConnectionLost:
    return ConnectionLost(f"the reply's head is over {_LONGEST_HEAD_BYTES // 1024} KB")
