"""Tests here talk to real servers; without BATCHCLIENT_TEST_VLLM or BATCHCLIENT_TEST_SERVERS they skip."""

from tests.live.fixtures import (
    llamacpp_server,
    shared_vllm_lives,
    transformers_cb_server,
    transformers_server,
    vllm_server,
)

__all__ = ["llamacpp_server", "shared_vllm_lives", "transformers_cb_server", "transformers_server", "vllm_server"]
