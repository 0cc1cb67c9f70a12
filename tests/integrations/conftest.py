"""A server for the libraries' tests, and how many requests it was sent."""

import asyncio

import pytest

from batchclient.simulator import EmbeddedServer

LONGEST_S = 120.0


class Counted:
    """The embedded server; ``requests`` counts from here on."""

    def __init__(self, embedded):
        self.base_url = embedded.base_url
        self.embedded = embedded
        self._before = embedded.requests

    @property
    def requests(self):
        return self.embedded.requests - self._before


@pytest.fixture(scope="module")
def _embedded():
    with EmbeddedServer("instant", model="m") as embedded:
        yield embedded


@pytest.fixture
def counted(_embedded):
    return Counted(_embedded)


@pytest.fixture
def run():
    """Runs a coroutine function in an event loop of its own."""
    return lambda main: asyncio.run(asyncio.wait_for(main(), LONGEST_S))
