"""OpenTelemetry's instrumentation of httpx and of httpx2 sees every request that we send by it: the real packages (``make test-integrations``)."""

import asyncio

import pytest

instrumentation = pytest.importorskip(
    "opentelemetry.instrumentation.httpx", reason="OpenTelemetry is not installed here: make test-integrations"
)

import httpx2
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from batchclient import BatchClient
from batchclient.integrations.httpx2 import BatchTransport
from batchclient.openai import AsyncOpenAI

CALLS = 50


async def by_client(url):
    async with BatchClient(url, model="m", detect=False, server_metrics=False) as client:
        await client.batch_map([f"p{number}" for number in range(CALLS)], "{}", max_tokens=4)


async def by_drop_in(url):
    async with AsyncOpenAI(base_url=url, api_key="k", detect=False, server_metrics=False) as client:
        made = [client.completions.create(model="m", prompt=f"p{number}", max_tokens=4) for number in range(CALLS)]
        await asyncio.gather(*made)


async def by_transport(url):
    async with httpx2.AsyncClient(transport=BatchTransport(detect=False, server_metrics=False), timeout=60) as http:
        bodies = [{"model": "m", "prompt": f"p{number}", "max_tokens": 4} for number in range(CALLS)]
        await asyncio.gather(*[http.post(f"{url}/completions", json=body) for body in bodies])


@pytest.mark.parametrize(
    ("way", "name"),
    [
        (by_client, "HTTPXClientInstrumentor"),
        (by_drop_in, "HTTPX2ClientInstrumentor"),
        (by_transport, "HTTPX2ClientInstrumentor"),
    ],
    ids=["client", "drop-in", "transport"],
)
def test_each_request_has_a_span(way, name, counted, run):
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    instrumentor = getattr(instrumentation, name)()
    instrumentor.instrument(tracer_provider=provider)
    try:
        run(lambda: way(counted.base_url))
    finally:
        instrumentor.uninstrument()
    seen = [(span.attributes["http.url"], span.attributes["http.status_code"]) for span in spans.get_finished_spans()]
    assert seen == [(f"{counted.base_url}/completions", 200)] * counted.requests
    assert 1 <= counted.requests < CALLS
