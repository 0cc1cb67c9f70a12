"""Tools for tests of code that uses batchclient, or any client of an LLM server; with pytest they are fixtures.

- ``MockLLM`` (``mock_llm``): a scripted server in this process, without a socket.
- ``EmbeddedServer`` (``llm_server``): a real HTTP server on a loopback port, modelled on vLLM and others.
- ``VirtualClock`` (``virtual_clock``): time that passes without waiting.
- ``respx_vllm``: a side effect for respx.

General layout: ``_answers`` is what is scripted, ``_calls`` and ``_assertions`` what came, ``_speech`` vLLM's language, ``_mock`` all of it
together, ``_transport`` and ``_httpx`` the ways to it; ``_clock`` stands alone.
"""

from batchclient.simulator.app import EmbeddedServer
from batchclient.testing._answers import Answer, Rule
from batchclient.testing._calls import Call, MockRequest
from batchclient.testing._clock import Stuck, VirtualClock, VirtualLoop
from batchclient.testing._mock import MockLLM
from batchclient.testing._respx import respx_vllm

__all__ = [
    "Answer",
    "Call",
    "EmbeddedServer",
    "MockLLM",
    "MockRequest",
    "Rule",
    "Stuck",
    "VirtualClock",
    "VirtualLoop",
    "respx_vllm",
]
