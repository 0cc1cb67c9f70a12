"""Dialects: pure functions between batchclient's requests and the wire bytes of a kind of server.

A dialect knows no clock, no HTTP library and no scheduler. Sibling dialects have the same slots in
the same order: ``caps`` and ``length_reach`` (the lists taken by the server), ``encode`` (batch to
request), ``decoder`` (reply bytes to answers), ``failure`` (error reply to its meaning),
``rate_limits`` (a gateway's headers to the rest of its limits).

Which calls may share a request is decided in ``_shapes``, before the server is known. Every
endpoint has a dialect of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from batchclient.errors import ConfigError

if TYPE_CHECKING:
    from batchclient.dialects._dialect import Dialect

__all__ = ["DIALECTS", "make_dialect"]

DIALECTS = ("vllm", "sglang", "tgi", "llamacpp", "trtllm", "tei", "openai")
"""The names of all dialects: the rows of ``_servers``."""


def make_dialect(
    name: str | None,
    secrets: tuple[str, ...] = (),
    lacks: frozenset[str] = frozenset(),
    has: frozenset[str] = frozenset(),
    thinks_in: str = "",
) -> Dialect:
    """Return a fresh dialect by name; ``None``: the dialect spoken before the server is known.

    Args:
        name: of the dialect.
        secrets: keys to cut out of the server's messages.
        lacks: fields that the server's version refuses or ignores.
        has: fields that the server takes, and others of its sort do not.
        thinks_in: the tag by which its model's thinking begins; empty: not known.

    Raises:
        ConfigError: no dialect has the name.
    """
    from batchclient.dialects import _dialect, _servers  # with the first client

    if name is None:
        return _dialect.Dialect(_servers.SERVERS["vllm"], secrets, assumed=True)
    if name not in DIALECTS:
        raise ConfigError(f"there is no dialect {name!r}; there are {', '.join(map(repr, DIALECTS))}", field="dialect")
    return _dialect.Dialect(_servers.SERVERS[name], secrets, lacks=lacks, has=has, thinks_in=thinks_in)
