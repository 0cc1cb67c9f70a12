"""Dialects by name."""

import pytest

from batchclient.dialects import make_dialect
from batchclient.dialects.vllm import VllmDialect
from batchclient.errors import ConfigError


@pytest.mark.parametrize("name", [None, "vllm"])
def test_vllm_is_the_default(name):
    assert type(make_dialect(name, ())) is VllmDialect


def test_an_unknown_dialect_is_refused_with_those_there_are():
    for name in ["tgi2", "", "VLLM", "_server"]:
        with pytest.raises(ConfigError, match="'vllm'") as caught:
            make_dialect(name, ())
        assert caught.value.field == "dialect"
