"""Real sockets and mocked httpx, with each backend."""

import pytest

two_backends = pytest.mark.parametrize("backend", ["httpx", "aiohttp"])
"""For tests that take long: httpx2 does there as httpx does."""


@pytest.fixture(params=["httpx", "httpx2", "aiohttp"])
def backend(request):
    return request.param
