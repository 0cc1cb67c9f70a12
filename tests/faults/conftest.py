"""Each way of sending."""

import pytest


@pytest.fixture(params=[None, "httpx"], ids=["direct", "httpx"])
def backend(request):
    """Not httpx2, which fails as httpx does: tests/transport has it."""
    return request.param
