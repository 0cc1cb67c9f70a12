"""Tools for tests of code that uses batchclient, or any client of an LLM server.

With pytest each tool is a fixture, whose name stands in brackets:

- ``MockLLM`` (``mock_llm``): a scripted server in the test's own process, without a socket.
- ``EmbeddedServer`` (``llm_server``): a real HTTP server on a loopback port, modelled on vLLM and
  other servers.
- ``VirtualClock`` (``virtual_clock``): time that passes without waiting.
- ``respx_vllm``: a side effect for respx; no fixture.

General layout: ``_answers`` holds the script, ``_calls`` the records, ``_assertions`` the questions
about the records. ``_speech`` reads and writes vLLM's language, and ``_mock`` joins all four.
``_transport`` and ``_httpx`` are the ways to a ``MockLLM``. ``_clock`` stands alone.
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
