"""Servers as the embedded server plays them for this suite: the guises that are no part of the product.

``SimulatedServer(guise=GUISES["sglang"])``. They are the test bed of the dialects: what no real
server was recorded to say is written from the server's source.
"""

from batchclient.simulator.tgi import TGI
from batchclient.simulator.vllm import VLLM
from tests.guises.llamacpp import LLAMACPP
from tests.guises.openai import OPENAI, STRICT, TRANSFORMERS
from tests.guises.sglang import SGLANG
from tests.guises.tei import TEI
from tests.guises.trtllm import TRTLLM

__all__ = ["GUISES", "LLAMACPP", "OPENAI", "SGLANG", "STRICT", "TEI", "TGI", "TRANSFORMERS", "TRTLLM", "VLLM"]

GUISES = {guise.name: guise for guise in (VLLM, SGLANG, TGI, LLAMACPP, TRTLLM, TEI, OPENAI, STRICT, TRANSFORMERS)}
"""By name, the product's own two too. Each name is a dialect's as well, except ``strict`` and
``transformers``, whose dialect is ``openai``.
"""
