"""What both ways to a server keep to: times, sizes, options of sockets."""

from __future__ import annotations

import socket

__all__ = [
    "CLOSED_WHILE_IDLE_S",
    "IDLE_S",
    "LONG_BODY_BYTES",
    "REFUSED_WITHIN_S",
    "SOCKET_OPTIONS",
]

IDLE_S = 3.0
"""Servers close idle connections after 5 s (uvicorn's default, so vLLM's and SGLang's), and a
request on a closing connection is lost. So a connection idle for 3 s is used no more.
"""
CLOSED_WHILE_IDLE_S = 0.05
"""A used connection that breaks so soon, before a byte of the reply, was closed while idle."""
LONG_BODY_BYTES = 64 * 1024
"""Servers read a shorter body before refusing it: the sockets' buffers hold the whole."""
REFUSED_WITHIN_S = 1.0
"""The last bytes may still be on their way: a server that refuses a request for its length breaks
the connection no later.
"""
SOCKET_OPTIONS = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)] + [
    (socket.IPPROTO_TCP, getattr(socket, name), value)
    for name, value in (("TCP_KEEPIDLE", 60), ("TCP_KEEPINTVL", 20), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)
]
"""Three probes after a minute of silence: load balancers forget silent connections after four."""
