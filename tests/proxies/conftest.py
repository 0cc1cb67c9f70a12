"""LiteLLM's proxy and its upstreams, once per session; without the proxy's package the tests here skip."""

import pytest

from batchclient import BatchClient
from batchclient.simulator import EmbeddedServer
from tests.integrations.conftest import Counted
from tests.proxies.litellm_proxy import MASTER_KEY, LitellmProxy, installed, models
from tests.proxies.tool_upstream import answer
from tests.fakes.pages import serving


@pytest.fixture(scope="session")
def tool_upstream():
    with serving(answer) as upstream:
        yield upstream


@pytest.fixture(scope="session")
def _upstream():
    with EmbeddedServer("instant", model="m") as upstream:
        yield upstream


@pytest.fixture(scope="session")
def proxy(tmp_path_factory, _upstream, tool_upstream):
    """A proxy that does not come up is an error, never a skip."""
    if not installed():
        pytest.skip("LiteLLM's proxy is not installed here: make test-extra WHICH=proxies")
    served = models(_upstream.base_url, tool_upstream.url)
    with LitellmProxy(tmp_path_factory.mktemp("litellm"), served) as proxy:
        yield proxy


@pytest.fixture
def upstream(proxy, _upstream):
    """What the embedded server was sent since the test began."""
    yield Counted(_upstream)
    _upstream.set_faults()


@pytest.fixture
def connect(proxy):
    """Makes a client of the proxy."""

    def make(**settings):
        # The embedded servers behind it serve lists at once.
        return BatchClient(proxy.base_url, **({"model": "m", "api_key": MASTER_KEY, "dialect": "openai"} | settings))

    return make
