"""Real sockets and mocked httpx, by each way."""

import pytest

two_backends = pytest.mark.parametrize("backend", [None, "httpx"], ids=["direct", "httpx"])
"""For tests that take long: httpx2 does there as httpx does."""


@pytest.fixture(params=[None, "httpx", "httpx2"], ids=["direct", "httpx", "httpx2"])
def backend(request):
    """``Http(backend=…)``; ``None``: over connections of batchclient's own."""
    return request.param
