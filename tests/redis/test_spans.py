"""Spans of a worker's calls: each message has one, and its ``traceparent`` is the parent."""

import pytest
from tests.redis.conftest import bench_on, wait_for

pytest.importorskip("opentelemetry.sdk", reason="needs the SDK of OpenTelemetry")

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from batchclient import Telemetry

pytestmark = pytest.mark.redis
LONGEST_S = 60.0
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


async def test_the_span_of_a_message_has_the_parent_that_the_message_names(shared_server, caplog):
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    async with bench_on(shared_server) as bench:
        async with bench.upstream.client(telemetry=Telemetry(tracer_provider=provider)) as client:
            await bench.add("child", traceparent=f"00-{TRACE}-{SPAN}-01")
            await bench.add("unsampled", traceparent=f"00-{TRACE}-{SPAN}-00")
            await bench.add("alone", "too")
            await bench.add("odd", traceparent="no such thing")
            worker, task = await bench.start(client=client)
            await wait_for(lambda: worker.statistics().results == 5)
            worker.stop()
            await task
    spans = {
        span.attributes["batchclient.row.id"]: span
        for span in exporter.get_finished_spans()
        if "m" in span.name.split()
    }
    assert spans.keys() == {"child", "alone", "too", "odd"}
    parent = spans["child"].parent
    assert (f"{parent.trace_id:032x}", f"{parent.span_id:016x}") == (TRACE, SPAN)
    assert spans["alone"].parent is None and spans["odd"].parent is None
    assert caplog.text == ""
