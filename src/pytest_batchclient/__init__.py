"""The pytest plugin of batchclient: ``llm_server``, ``llm_server_factory``, ``mock_llm`` and ``virtual_clock``.

Rules:
- It is loaded in every run of pytest wherever batchclient is installed, so it imports nothing but pytest; that is why it is no module of
  ``batchclient``, which would be imported with it. What a fixture needs is imported when a test asks for it.
- The fixtures are ordinary ones: they work in plain functions, with pytest-asyncio and with anyio's plugin.
- Settings are given with ``@pytest.mark.parametrize(NAME, [{…}], indirect=True)``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from batchclient.testing import EmbeddedServer, MockLLM, VirtualClock

__all__ = ["llm_server", "llm_server_factory", "mock_llm", "virtual_clock"]


@pytest.fixture
def llm_server(request: pytest.FixtureRequest) -> Iterator[EmbeddedServer]:
    """A real HTTP server on a free loopback port that behaves as vLLM; see ``batchclient.testing.EmbeddedServer``."""
    from batchclient.testing import EmbeddedServer

    with EmbeddedServer(**_settings(request)) as server:
        yield server


@pytest.fixture
def llm_server_factory() -> Iterator[Callable[..., EmbeddedServer]]:
    """Starts servers with settings of their own, such as ``guise="tgi"``; they stop after the test."""
    from batchclient.testing import EmbeddedServer

    with ExitStack() as stack:
        yield lambda *args, **settings: stack.enter_context(EmbeddedServer(*args, **settings))


@pytest.fixture
def mock_llm(request: pytest.FixtureRequest) -> Iterator[MockLLM]:
    """A scripted server in this process, without a socket; see ``batchclient.testing.MockLLM``."""
    from batchclient.testing import MockLLM

    with MockLLM(**_settings(request)) as mock:
        yield mock


@pytest.fixture
def virtual_clock(request: pytest.FixtureRequest) -> Iterator[VirtualClock]:
    """Time that passes without waiting, in the test's event loop; see ``batchclient.testing.VirtualClock``."""
    from batchclient.testing import VirtualClock

    with VirtualClock(**_settings(request)) as clock:
        yield clock


def _settings(request: pytest.FixtureRequest) -> dict[str, Any]:
    """What ``parametrize(…, indirect=True)`` gives.

    Raises:
        pytest.UsageError: it gives no settings by name.
    """
    settings = getattr(request, "param", {})
    if not isinstance(settings, dict):
        message = f"{request.fixturename} is parametrized with settings by name, as [{{…}}]; not with {settings!r:.60}"
        raise pytest.UsageError(message)
    return settings
