"""The embedded server: a model of vLLM, for tests, the demo and the laboratory.

From the inside out: ``engine`` (continuous batching), ``text`` (the answers), ``validation`` and
``wire`` (vLLM's HTTP bodies), ``faults``, ``exchange`` (one request), ``server`` (the whole,
without sockets or clock), and two shells: ``asgi`` with ``app`` (real sockets) and ``transport``
(in process).
"""

from batchclient.simulator.app import EmbeddedServer
from batchclient.simulator.faults import Fault
from batchclient.simulator.profiles import PROFILES, Profile
from batchclient.simulator.server import SimulatedServer
from batchclient.simulator.text import expected_text, prompt_digest
from batchclient.simulator.transport import SimulatorTransport

__all__ = [
    "PROFILES",
    "EmbeddedServer",
    "Fault",
    "Profile",
    "SimulatedServer",
    "SimulatorTransport",
    "expected_text",
    "prompt_digest",
]
