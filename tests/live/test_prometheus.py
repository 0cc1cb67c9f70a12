"""A real Prometheus scrapes a real client and a real vLLM: no panel of the dashboard is empty."""

import asyncio
from pathlib import Path

import pytest

from batchclient import BatchClient
from tests.live.fixtures import LiveServer
from tests.prometheus.programs import needs_prometheus
from tests.prometheus.scraping import watched

pytestmark = pytest.mark.vllm


@needs_prometheus
def test_no_panel_is_empty_beside_a_real_vllm(vllm_server: LiveServer, tmp_path: Path) -> None:
    async def story() -> list[str]:
        async with BatchClient(vllm_server.base_url, model=vllm_server.model) as client:
            client.retune(limit=64)
            address = vllm_server.base_url.removeprefix("http://").removesuffix("/v1")
            return await watched(client, {"vllm": address}, tmp_path, "vllm")

    assert asyncio.run(story()) == []
