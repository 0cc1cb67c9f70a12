"""The embedded server: a model of vLLM, for tests, the demo and the laboratory.

From the inside out: ``engine`` (continuous batching), ``text`` (the answers), ``requests`` and
``replies`` (HTTP bodies), ``vllm`` and ``tgi`` (guises), ``faults``, ``open_request`` (one
request), ``server`` (the whole, without sockets or clock), and two shells: ``asgi`` with ``app``
(real sockets) and ``transport`` (in process).
"""

from batchclient.simulator.app import EmbeddedServer
from batchclient.simulator.faults import Fault
from batchclient.simulator.guise import Guise
from batchclient.simulator.guises import GUISES
from batchclient.simulator.profiles import PROFILES, Profile
from batchclient.simulator.requests import render_messages
from batchclient.simulator.server import SimulatedServer
from batchclient.simulator.text import OutputLengths, count_tokens, expected_text, prompt_digest, token_ids
from batchclient.simulator.transport import SimulatorTransport
from batchclient.simulator.vectors import probabilities_of, score_of, vector_of

__all__ = [
    "GUISES",
    "PROFILES",
    "EmbeddedServer",
    "Fault",
    "Guise",
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
