"""``batchclient doctor`` on real servers, most of which have nothing wrong with them."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
from tests.live.fixtures import LiveServer


def doctor(*arguments: str) -> tuple[int, dict[str, Any]]:
    """The status and the diagnosis."""
    command = [sys.executable, "-m", "batchclient", "doctor", *arguments, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    assert done.stderr == ""
    return done.returncode, json.loads(done.stdout)


def findings(told: dict[str, Any]) -> set[str]:
    return {finding["id"] for finding in told["findings"]}


@pytest.mark.vllm
def test_a_vllm(vllm_server: LiveServer) -> None:
    status, told = doctor(vllm_server.base_url)
    assert status in (0, 1)
    assert findings(told) <= {"model-length-high"}
    assert told["server"]["name"].startswith("vllm 0.")
    assert told["server"]["model"] == vllm_server.model
    assert told["server"]["kv_tokens"] > 0
    assert "how many events a streamed answer has" not in told["not_known"]


@pytest.mark.vllm
def test_a_url_of_a_vllm_without_v1(vllm_server: LiveServer) -> None:
    status, told = doctor(vllm_server.base_url.removesuffix("/v1"))
    assert status == 5
    assert findings(told) - {"model-length-high"} == {"url-without-v1"}


@pytest.mark.vllm
def test_a_model_that_a_vllm_lacks(vllm_server: LiveServer) -> None:
    status, told = doctor(vllm_server.base_url, "--model", "other")
    assert status == 5
    assert findings(told) >= {"model-unknown"}


@pytest.mark.llamacpp
def test_a_llama_server(llamacpp_server: LiveServer) -> None:
    status, told = doctor(llamacpp_server.base_url)
    assert status in (0, 1)
    # Tests before this one have made sequences of any length.
    assert findings(told) <= {"few-sequences"}
    assert told["server"]["sequences"] == 4


@pytest.mark.transformers
def test_a_server_without_lists_and_without_metrics(transformers_server: LiveServer) -> None:
    status, told = doctor(transformers_server.base_url, "--model", transformers_server.model)
    # Nobody can change what this server is; whether it takes lists is for calls to find out.
    assert (status, findings(told)) == (0, {"no-metrics"})
