"""The spans of a test."""

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.telemetry.seen import Seen


@pytest.fixture
def seen(caplog):
    """The spans of a test; no span is ended or changed after its end, which the SDK would log."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield Seen(provider, exporter)
    assert [record.message for record in caplog.records if record.name.startswith("opentelemetry")] == []
