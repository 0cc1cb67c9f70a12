"""A real Prometheus scrapes a client and recorded pages: no panel is empty, and every rule is evaluated."""

import asyncio

import pytest

pytest.importorskip(
    "prometheus_client",
    reason="prometheus_client is not installed here: make setup, or make test-extra WHICH=integrations",
)

from batchclient import BatchClient
from batchclient.simulator import EmbeddedServer
from tests.prometheus.programs import needs_prometheus
from tests.prometheus.scraping import recorded, watched


@needs_prometheus
def test_no_panel_is_empty_beside_the_embedded_server_and_recorded_pages(tmp_path):
    async def main(server):
        async with BatchClient(server.base_url, model=server.model) as client:
            client.retune(limit=64)
            with recorded("vllm", "dcgm") as address:
                return await watched(client, {"servers": address}, tmp_path, "vllm", "dcgm")

    with EmbeddedServer("instant", faults=["status=429,rate=0.02"]) as server:
        assert asyncio.run(main(server)) == []
