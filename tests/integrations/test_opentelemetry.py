"""OpenTelemetry's instrumentation of httpx and of httpx2 sees every request that we send by it, under our own span: the real packages (``make test-extra WHICH=integrations``)."""

import asyncio

import pytest

instrumentation = pytest.importorskip(
    "opentelemetry.instrumentation.httpx",
    reason="OpenTelemetry is not installed here: make test-extra WHICH=integrations",
)

import httpx2
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from batchclient import BatchClient, Telemetry
from batchclient.integrations.httpx2 import BatchTransport
from batchclient.openai import AsyncOpenAI

CALLS = 50


async def by_client(url, **options):
    async with BatchClient(url, model="m", probe=False, **options) as client:
        await client.batch_map([f"p{number}" for number in range(CALLS)], "{}", max_tokens=4)


async def by_drop_in(url, **options):
    async with AsyncOpenAI(base_url=url, api_key="k", probe=False, **options) as client:
        made = [client.completions.create(model="m", prompt=f"p{number}", max_tokens=4) for number in range(CALLS)]
        await asyncio.gather(*made)


async def by_transport(url, **options):
    transport = BatchTransport(probe=False, **options)
    async with httpx2.AsyncClient(transport=transport, timeout=60) as http:
        bodies = [{"model": "m", "prompt": f"p{number}", "max_tokens": 4} for number in range(CALLS)]
        await asyncio.gather(*[http.post(f"{url}/completions", json=body) for body in bodies])


WAYS = pytest.mark.parametrize(
    ("way", "name"),
    [
        (by_client, "HTTPXClientInstrumentor"),
        (by_drop_in, "HTTPX2ClientInstrumentor"),
        (by_transport, "HTTPX2ClientInstrumentor"),
    ],
    ids=["client", "drop-in", "transport"],
)


@WAYS
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


@WAYS
def test_it_is_the_child_of_the_span_of_our_request(way, name, counted, run):
    spans = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    instrumentor = getattr(instrumentation, name)()
    instrumentor.instrument(tracer_provider=provider)
    try:
        run(lambda: way(counted.base_url, telemetry=Telemetry(tracer_provider=provider)))
    finally:
        instrumentor.uninstrument()
    seen = spans.get_finished_spans()
    requests = {span.context.span_id for span in seen if span.name == "batchclient.request"}
    sent = [span for span in seen if span.attributes.get("http.status_code") == 200]
    assert len(requests) == len(sent) == counted.requests
    assert {span.parent.span_id for span in sent} == requests
    assert sum(span.name == "text_completion m" for span in seen) == CALLS
