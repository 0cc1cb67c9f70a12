"""Real sockets, as in ``tests/transport``: each test is a coroutine of its own loop and has a few seconds."""

import pytest

from tests.transport.conftest import bounded, pytest_pyfunc_call  # noqa: F401


@pytest.fixture(params=["httpx", "aiohttp"])
def backend(request):
    """Not httpx2, which fails as httpx does: tests/transport has it."""
    return request.param
