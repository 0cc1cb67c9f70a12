"""Dialects by name."""

import pytest

from batchclient.dialects import DIALECTS, make_dialect
from batchclient.dialects._servers import SERVERS


@pytest.mark.parametrize("name", [None, "vllm"])
def test_vllm_is_the_default(name):
    assert make_dialect(name).name == "vllm"


def test_every_row_of_the_table_of_servers_is_a_dialect():
    assert tuple(SERVERS) == DIALECTS
    assert all(server.name == name for name, server in SERVERS.items())
