"""The guises of the embedded server, by name: vLLM's and TGI's.

The engine, its costs, the API server's queue and the faults are the same in every guise. A guise is
everything a client can see: paths, fields, bodies, statuses, the order of choices, limits.
"""

from __future__ import annotations

from importlib import import_module

from batchclient.simulator.guise import Guise
from batchclient.simulator.tgi import TGI
from batchclient.simulator.vllm import VLLM

__all__ = ["GUISES", "guise_of"]

_GUISES = {guise.name: guise for guise in (VLLM, TGI)}
GUISES = tuple(_GUISES)


def guise_of(given: str | Guise) -> Guise:
    """Return a guise: itself, by name, or from where ``module:NAME`` says.

    Raises:
        ValueError: no guise has the name, or there is none in that place.
    """
    if isinstance(given, Guise):
        return given
    if given in _GUISES:
        return _GUISES[given]
    module, _, name = given.partition(":")
    if name:
        try:
            found = getattr(import_module(module), name)
        except (ImportError, AttributeError, ValueError) as error:
            raise ValueError(f"guise {given!r}: {error}") from None
        if isinstance(found, Guise):
            return found
    raise ValueError(f"no guise {given!r}; there are {', '.join(GUISES)}, or module:NAME of your own")
