"""Real sockets and mocked httpx, by each way."""

import pytest


@pytest.fixture(params=[None, "httpx"], ids=["direct", "httpx"])
def backend(request):
    """``Http(backend=…)``; ``None``: over connections of batchclient's own. httpx2 does as httpx does."""
    return request.param
