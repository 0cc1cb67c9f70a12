"""Each backend."""

import pytest


@pytest.fixture(params=["httpx", "aiohttp"])
def backend(request):
    """Not httpx2, which fails as httpx does: tests/transport has it."""
    return request.param
