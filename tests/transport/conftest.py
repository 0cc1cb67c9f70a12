"""Real sockets and mocked httpx: each test has a few seconds, or its module's own LONGEST_S, and none of them waits for a clock."""

import asyncio
import inspect

import pytest

from tests import bounds

LONGEST_S = 15.0


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}
    asyncio.run(pyfuncitem.obj(**arguments))
    return True


@pytest.fixture(autouse=True)
def bounded(request):
    longest_s = getattr(request.module, "LONGEST_S", LONGEST_S)
    with bounds.bounded(longest_s, longest_s):
        yield


two_backends = pytest.mark.parametrize("backend", ["httpx", "aiohttp"])
"""For tests that take long: httpx2 does there as httpx does."""


@pytest.fixture(params=["httpx", "httpx2", "aiohttp"])
def backend(request):
    return request.param
