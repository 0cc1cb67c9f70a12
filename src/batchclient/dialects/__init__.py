"""Dialects: pure functions between our requests and one kind of server's wire bytes.

A dialect knows no clock, no HTTP library and no scheduler. Sibling dialects have the same slots in the same order: ``caps`` and
``length_reach`` (what lists the server takes), ``encode`` (batch to request), ``decoder`` (reply bytes to answers), ``failure``
(error reply to what it means), ``rate_limits`` (what a gateway's headers say is left). What calls may share a request is said
before their server is known, in ``_shapes``. Every endpoint has a dialect of its own.
"""

from __future__ import annotations

from importlib import import_module

from batchclient.dialects._dialect import Decoder, Dialect, OwnFields
from batchclient.errors import ConfigError

__all__ = ["DIALECTS", "ENGINES", "Decoder", "Dialect", "OwnFields", "make_dialect"]

DIALECTS = ("vllm", "sglang", "tgi", "llamacpp", "trtllm", "tei", "openai")
"""The names of all dialects; each is a module here."""
ENGINES = frozenset(("vllm", "sglang", "trtllm"))
"""Those of engines that batch hundreds of sequences continuously, and queue what is beyond."""


def make_dialect(name: str | None, secrets: tuple[str, ...]) -> Dialect:
    """Return a fresh dialect of that name; ``None`` is what is spoken before the server is known.

    Raises:
        ConfigError: there is none of that name.
    """
    if name is None:
        from batchclient.dialects.vllm import VllmDialect

        return VllmDialect(secrets, assumed=True)
    if name not in DIALECTS:
        raise ConfigError(f"there is no dialect {name!r}; there are {', '.join(map(repr, DIALECTS))}", field="dialect")
    # A client speaks few of them: those are loaded.
    module = import_module(f"batchclient.dialects.{name}")
    dialect: Dialect = getattr(module, f"{name.capitalize()}Dialect")(secrets)
    return dialect
