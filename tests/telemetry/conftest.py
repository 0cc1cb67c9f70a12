"""Tests of telemetry run on asyncio and on trio, in real time: spans end in a thread."""

import inspect

import anyio
import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests import bounds
from tests.telemetry.seen import Seen

LONGEST_S = 30.0


def pytest_generate_tests(metafunc):
    if inspect.iscoroutinefunction(metafunc.function):
        metafunc.fixturenames.append("library")
        metafunc.parametrize("library", getattr(metafunc.module, "LIBRARIES", ("asyncio",)))


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem):
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    arguments = {name: pyfuncitem.funcargs[name] for name in inspect.signature(pyfuncitem.obj).parameters}

    async def in_time():
        with anyio.fail_after(LONGEST_S):
            await pyfuncitem.obj(**arguments)

    anyio.run(in_time, backend=pyfuncitem.callspec.params["library"])
    return True


@pytest.fixture(autouse=True)
def bounded():
    """Fail a test that never comes back."""
    with bounds.bounded(60.0, 90.0):
        yield


@pytest.fixture
def seen(caplog):
    """The spans of a test; no span is ended or changed after its end, which the SDK would log."""
    exporter = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    yield Seen(provider, exporter)
    assert [record.message for record in caplog.records if record.name.startswith("opentelemetry")] == []
