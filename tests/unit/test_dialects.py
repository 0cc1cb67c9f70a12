"""Dialects by name."""

import pytest

from batchclient.dialects import make_dialect
from batchclient.dialects._shapes import Shapes
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


def test_a_dialect_is_told_the_keys_it_must_not_show():
    from tests.unit.golden import make_batch, make_request

    dialect = make_dialect("vllm", ("sk-very-secret",))
    shape, _ = Shapes().shape({}, "m")
    batch = make_batch(shape, [make_request(shape, "p")], streamed=False)
    failure = dialect.failure(batch, 400, {}, b'{"error": "key sk-very-secret is no good"}', 0.0)
    assert "sk-very-secret" not in failure.message
