"""The sockets of batchclient's own pools, below httpcore or its fork httpcore2.

Rules:
- A socket is read all the time, also while a request is written: an early refusal is read before
  the reset that follows.
- Silence is judged by the clock. It begins with the last write, or with the last whole thing that
  came (``heard``). A byte now and then of a header, an interim reply or a chunk's length does not
  break the silence.
- Between two requests nothing may come. Bytes then belong to another request's reply, and the
  socket is closed unread.
- A tunnel through a proxy is part of the connecting: the wait for the proxy's word is bounded by
  ``connect_s``.
- A stream raises the exceptions of the library above it, which is told at the making: the library
  understands no others.
- On asyncio no cancel scope is opened: httpcore's own streams open one per read and write, which
  costs half of a call.
"""

# ruff: noqa: ASYNC109  # httpcore's signatures

from __future__ import annotations

import asyncio
import math
import os
import select
import ssl
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from ipaddress import ip_address
from typing import Any, cast

__all__ = ["Sockets", "Stream", "is_readable"]

_LONGEST_UNREAD_BYTES = 64 * 1024
"""No more than so many bytes are read ahead."""
_LONGEST_BLIND_WRITE_BYTES = 64 * 1024
"""On trio, a longer buffer is written with an eye on the reply."""
_STATUS_AT = len("HTTP/1.1 ")
_EARLY_S = 0.001
"""A timer may fire a little early."""
_NEXT_ADDRESS_S = 0.25
"""RFC 8305, "Connection Attempt Delay"."""


class Stream:
    """The common part of asyncio's and trio's sockets: when silence began, when nothing may come.

    Args:
        core: httpcore or httpcore2.
        connect_s: the time for the connecting, seconds.
    """

    heard = True
    """Set when something whole has come, or the reader was busy: silence begins anew."""
    _silent_since = 0.0
    _at_rest = False
    _tunnels = False

    def __init__(self, core: Any, connect_s: float | None) -> None:
        self._core = core
        self._connect_s = connect_s

    def rest(self) -> None:
        """End the reply: nothing may come before the next request."""
        self._at_rest = True

    def _wrote(self, buffer: bytes) -> None:
        self.heard = True
        self._tunnels = buffer.startswith(b"CONNECT ")

    def _patience_s(self, timeout: float | None, now: float) -> float:
        """Return how long to wait for bytes, seconds."""
        if self.heard:
            self.heard, self._silent_since = False, now
        if self._tunnels and self._connect_s is not None:
            timeout = self._connect_s
        return math.inf if timeout is None else self._silent_since + timeout - now

    def _silence(self) -> Exception:
        kind: type[Exception] = self._core.ConnectTimeout if self._tunnels else self._core.ReadTimeout
        return kind()


class _AsyncioStream(Stream, asyncio.Protocol):
    def __init__(self, core: Any, connect_s: float | None) -> None:
        super().__init__(core, connect_s)
        self._loop = asyncio.get_running_loop()
        self._transport = cast("asyncio.Transport", None)
        self._unread: deque[bytes] = deque()
        self._unread_bytes = 0
        self._ended = False
        """Whether nothing more will come."""
        self._lost = False
        self._error: Exception | None = None
        self._full = False
        self._waiter: asyncio.Future[None] | None = None

    # asyncio's side ------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        if self._at_rest:
            self._drop()
            return
        self._unread.append(data)
        self._unread_bytes += len(data)
        if self._unread_bytes > _LONGEST_UNREAD_BYTES:
            self._transport.pause_reading()
        self._wake()

    def eof_received(self) -> bool:
        if self._at_rest:
            self._drop()
            return False
        self._ended = True
        self._wake()
        # asyncio must not close the socket: unread bytes would be lost with the unwritten. TLS ends
        # both ways at once.
        return self._transport.get_extra_info("ssl_object") is None

    def connection_lost(self, error: Exception | None) -> None:
        if error is not None and not self._lost:
            self._save_unread()
        self._ended = self._lost = True
        self._error = error
        self._full = False
        self._wake()

    def pause_writing(self) -> None:
        self._full = True

    def resume_writing(self) -> None:
        self._full = False
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _save_unread(self) -> None:
        """Take the kernel's bytes: asyncio closes a socket after a failed write without a look."""
        if type(self._transport).__module__ == "asyncio.selector_events" and not self._at_rest:
            file = self._transport.get_extra_info("socket").fileno()
            with suppress(OSError):
                while file >= 0 and (data := os.read(file, _LONGEST_UNREAD_BYTES)):
                    self._unread.append(data)
                    self._unread_bytes += len(data)

    def _drop(self) -> None:
        self._unread.clear()
        self._unread_bytes = 0
        self._ended = self._lost = True
        self._transport.abort()

    # httpcore's side -----------------------------------------------------------------------------------------------

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if not self._unread:
            left_s = self._patience_s(timeout, self._loop.time())
            if not self._ended and not await self._something(left_s, self._still_to_come):
                raise self._silence()
            if not self._unread:
                if self._error is not None:
                    raise self._core.ReadError(str(self._error)) from self._error
                return b""
        data = self._unread.popleft()
        if len(data) > max_bytes:
            self._unread.appendleft(data[max_bytes:])
            data = data[:max_bytes]
        paused = self._unread_bytes > _LONGEST_UNREAD_BYTES
        self._unread_bytes -= len(data)
        if paused and self._unread_bytes <= _LONGEST_UNREAD_BYTES and not self._ended:
            self._transport.resume_reading()
        return data

    def _still_to_come(self) -> bool:
        return not self._unread and not self._ended

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if not buffer:
            return
        if self._at_rest:
            self._at_rest = False
            if self._unread or self._ended:
                self._drop()
        self._wrote(buffer)
        if self._lost or self._refused_early():
            raise self._core.WriteError("the connection was closed")
        self._transport.write(buffer)
        if self._full:
            left_s = math.inf if timeout is None else timeout
            if not await self._something(left_s, self._still_to_write):
                raise self._core.WriteError if self._unread else self._core.WriteTimeout
            self.heard = True
            if self._full or self._lost:
                raise self._core.WriteError(str(self._error or "the server answered before it had read the request"))

    def _still_to_write(self) -> bool:
        return self._full and not self._ended and not self._refused_early()

    def _refused_early(self) -> bool:
        """Whether the bytes that came are an error's reply; an interim reply (103) is none."""
        return bool(self._unread) and self._unread[0][_STATUS_AT : _STATUS_AT + 1] in (b"4", b"5")

    async def _something(self, left_s: float, waits: Callable[[], bool]) -> bool:
        """Sleep while there is something to wait for; return whether the wait ended in time."""
        timer = None
        until = math.inf
        if left_s < math.inf:
            until = self._loop.time() + left_s
            timer = self._loop.call_at(until, self._wake)
        try:
            while waits():
                if self._loop.time() >= until - _EARLY_S:
                    return False
                self._waiter = self._loop.create_future()
                await self._waiter
        finally:
            self._waiter = None
            if timer is not None:
                timer.cancel()
        return True

    async def aclose(self) -> None:
        self._at_rest = True
        self._transport.abort()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> Stream:
        if self._unread:
            self._drop()
            raise self._core.ConnectError("the server spoke before the TLS handshake")
        try:
            async with asyncio.timeout(timeout):
                transport = await self._loop.start_tls(
                    self._transport, self, ssl_context, server_hostname=server_hostname
                )
        except TimeoutError as error:
            self._transport.abort()
            raise self._core.ConnectTimeout from error
        except OSError as error:
            self._transport.abort()
            raise self._core.ConnectError(str(error)) from error
        self._transport = cast("asyncio.Transport", transport)
        self._tunnels = False
        return self

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable":
            return bool(self._unread) or self._ended or is_readable(self._transport.get_extra_info("socket").fileno())
        names = {"client_addr": "sockname", "server_addr": "peername"}
        return self._transport.get_extra_info(names.get(info, info))


class _TrioStream(Stream):
    """A stream around httpcore's own: trio reads on request, so the kernel has unread bytes."""

    def __init__(self, core: Any, connect_s: float | None, inner: Any) -> None:
        import trio

        super().__init__(core, connect_s)
        self._trio = trio
        self._inner = inner
        self._lost = False

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if self._lost:
            return b""
        left_s = max(0.0, self._patience_s(timeout, self._trio.current_time()))
        try:
            data: bytes = await self._inner.read(max_bytes, left_s)
        except self._core.ReadTimeout:
            raise self._silence() from None
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        if not buffer:
            return
        if self._at_rest:
            self._at_rest = False
            if self.get_extra_info("is_readable"):
                self._lost = True
                await self._inner.aclose()
        if self._lost:
            raise self._core.WriteError("the connection was closed")
        self._wrote(buffer)
        if len(buffer) <= _LONGEST_BLIND_WRITE_BYTES or self._inner.get_extra_info("ssl_object") is not None:
            await self._inner.write(buffer, timeout)
        else:
            await self._write_unless_refused(buffer, timeout)
        self.heard = True

    async def _write_unless_refused(self, buffer: bytes, timeout: float | None) -> None:
        refused = False
        failed: Exception | None = None

        async def watch() -> None:
            nonlocal refused
            with suppress(OSError):
                head = await self._inner.get_extra_info("socket").recv(_STATUS_AT + 1, self._trio.socket.MSG_PEEK)
                if head[_STATUS_AT:] in (b"4", b"5"):
                    refused = True
                    nursery.cancel_scope.cancel()

        async with self._trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            try:
                await self._inner.write(buffer, timeout)
            except (self._core.NetworkError, self._core.TimeoutException) as error:
                failed = error
            nursery.cancel_scope.cancel()
        if refused:
            raise self._core.WriteError("the server answered before it had read the request")
        if failed is not None:
            raise failed

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> Stream:
        inner = await self._inner.start_tls(ssl_context, server_hostname, timeout)
        return _TrioStream(self._core, self._connect_s, inner)

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable":
            return self._lost or self._inner.get_extra_info(info) or _holds_more(self._inner)
        return self._inner.get_extra_info(info)


class Sockets:
    """Makes streams on asyncio and trio; ``core`` is httpcore or httpcore2."""

    def __init__(self, core: Any) -> None:
        self._core = core

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> Stream:
        loop = asyncio._get_running_loop()
        if loop is None:
            inner = await self._core.TrioBackend().connect_tcp(host, port, timeout, local_address, socket_options)
            return _TrioStream(self._core, timeout, inner)
        local = None if local_address is None else (local_address, 0)
        try:
            async with asyncio.timeout(timeout):
                transport, stream = await loop.create_connection(
                    partial(_AsyncioStream, self._core, timeout), host, port, local_addr=local, **_racing(loop, host)
                )
        except TimeoutError as error:
            raise self._core.ConnectTimeout from error
        except OSError as error:
            raise self._core.ConnectError(str(error)) from error
        # Written bytes are then in the kernel: silence begins when a request is sent, not when it
        # is queued here.
        transport.set_write_buffer_limits(0)
        for option in socket_options or ():
            transport.get_extra_info("socket").setsockopt(*option)
        return stream

    async def sleep(self, seconds: float) -> None:
        """Do nothing: httpcore sleeps between two tries of a connection, and makes one try here."""


def _racing(loop: asyncio.AbstractEventLoop, host: str) -> dict[str, Any]:
    """Return arguments to try a name's next address before the first failed, if the loop can."""
    # uvloop cannot. Before 3.13.1 asyncio cannot with a task factory of the user's (gh-124309).
    if not isinstance(loop, asyncio.BaseEventLoop) or loop.get_task_factory() is not None:
        return {}
    try:
        ip_address(host)
    except ValueError:
        return {"happy_eyeballs_delay": _NEXT_ADDRESS_S}
    return {}


def is_readable(file: int) -> bool:
    """Whether a read would return at once; false where the kernel cannot be asked.

    The event loop's own reading then has to do.
    """
    if file < 0:
        return True
    if not hasattr(select, "poll"):
        return False
    poll = select.poll()
    poll.register(file, select.POLLIN)
    return bool(poll.poll(0))


def _holds_more(stream: Any) -> bool:
    """Whether TLS holds unread bytes."""
    tls = stream.get_extra_info("ssl_object")
    if tls is None:
        return False
    try:
        return bool(tls.read(1))
    except ssl.SSLError:
        return False
