"""Tests here talk to a real vLLM; without BATCHCLIENT_TEST_VLLM they skip."""

from tests.live.fixtures import vllm_server

__all__ = ["vllm_server"]
