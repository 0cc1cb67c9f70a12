"""What the connections of both ways keep to: times, sizes, options of sockets."""

from __future__ import annotations

import socket
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import NamedTuple

__all__ = ["IDLE_S", "LONG_BODY_BYTES", "SOCKET_OPTIONS", "Place", "Timed"]

IDLE_S = 3.0
"""Servers close idle connections after 5 s (uvicorn's default, so vLLM's and SGLang's), and a
request on a closing connection is lost. So a connection idle for 3 s is used no more.
"""
_CLOSED_WHILE_IDLE_S = 0.05
"""A used connection that breaks so soon, before a byte of the reply, was closed while idle."""
LONG_BODY_BYTES = 64 * 1024
"""Servers read a shorter body before refusing it: the sockets' buffers hold the whole."""
_REFUSED_WITHIN_S = 1.0
"""The last bytes may still be on their way: a server that refuses a request for its length breaks
the connection no later.
"""
SOCKET_OPTIONS = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)] + [
    (socket.IPPROTO_TCP, getattr(socket, name), value)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 20), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)
]
"""Three probes after a minute of silence: load balancers forget silent connections after four."""


class Place(NamedTuple):
    """A base URL, as both ways need to know it.

    Args:
        url_of: gives the URL of a path, and of whether it is from the root.
        headers: sent with every request, by lower-case name.
        tls: for ``https://``.
        address: behind "no connection", in errors.
    """

    url_of: Callable[[str, bool], str]
    headers: Mapping[str, str]
    tls: ssl.SSLContext | None
    address: str


class Timed(ABC):
    """A connection, as far as its times tell what it is fit for, and why it broke.

    Attributes:
        connect_s: how long the connecting took, seconds.
        idle_since: when the last request ended, by the connection's clock.
        wrote_at: when a request was first written.
        sent_at: when all of it was first seen to be in the kernel; ``None``: not yet.
        was_heard: whether a byte of the reply has come.
    """

    connect_s: float = 0.0
    idle_since: float = 0.0
    wrote_at: float = 0.0
    sent_at: float | None = None
    was_heard: bool = False

    @abstractmethod
    def now(self) -> float:
        """Return the time."""

    def is_late(self) -> bool:
        """Whether an idle connection is too old for another request."""
        return self.now() - self.idle_since > IDLE_S

    def was_closed_while_idle(self) -> bool:
        """Whether a used connection broke so soon that the server cannot have read the request."""
        bound_s = max(_CLOSED_WHILE_IDLE_S, 2 * self.connect_s)
        return not self.was_heard and self.now() - self.wrote_at <= bound_s

    def was_writing(self) -> bool:
        """Whether a connection broke before the server had surely read the whole request."""
        is_just_sent = self.sent_at is None or self.now() - self.sent_at < _REFUSED_WITHIN_S
        return is_just_sent and not self.was_heard
