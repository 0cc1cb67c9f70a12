"""The embedded server: a model of vLLM, for tests, the demo and the laboratory.

From the inside out: ``engine`` (continuous batching), ``text`` (the answers), ``validation`` and
``wire`` (vLLM's HTTP bodies), ``faults``, ``exchange`` (one request), ``server`` (the whole,
without sockets or clock), and two shells: ``asgi`` with ``app`` (real sockets) and ``transport``
(in process).
"""

from batchclient.simulator.app import EmbeddedServer
from batchclient.simulator.chat import render_messages
from batchclient.simulator.faults import Fault
from batchclient.simulator.guise_parts import token_ids
from batchclient.simulator.guises import GUISES
from batchclient.simulator.profiles import PROFILES, Profile
from batchclient.simulator.server import SimulatedServer
from batchclient.simulator.text import OutputLengths, count_tokens, expected_text, prompt_digest
from batchclient.simulator.transport import SimulatorTransport
from batchclient.simulator.vectors import probabilities_of, score_of, vector_of

__all__ = [
    "GUISES",
    "PROFILES",
    "EmbeddedServer",
    "Fault",
    "OutputLengths",
    "Profile",
    "SimulatedServer",
    "SimulatorTransport",
    "count_tokens",
    "expected_text",
    "probabilities_of",
    "prompt_digest",
    "render_messages",
    "score_of",
    "token_ids",
    "vector_of",
]
