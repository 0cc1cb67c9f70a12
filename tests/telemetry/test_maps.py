"""A map's rows have spans as the sampler says, and are children of the span that was current at its begin."""

import anyio
import anyio.lowlevel
import pytest
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF, TraceIdRatioBased
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from tests.shell.scripted import ScriptedTransport, echo, make_client

from batchclient import Repair, SyncBatchClient, Telemetry
from batchclient._telemetry import conventions as name

MANY = 1000


def documents(count=MANY):
    return [{"id": f"row {number}"} for number in range(count)]


async def arriving(count=MANY):
    for document in documents(count):
        yield document


def rows_with_spans(seen):
    return [call.attributes[name.ROW_ID] for call in seen.calls]


@pytest.mark.parametrize(("share", "rows"), [(0.0, 0), (1.0, 100)])
async def test_rows_have_spans_as_the_sampler_says(share, rows, seen):
    provider = TracerProvider(sampler=TraceIdRatioBased(share))
    provider.add_span_processor(SimpleSpanProcessor(seen.exporter))
    async with make_client(ScriptedTransport(), telemetry=Telemetry(tracer_provider=provider)) as client:
        await client.batch_map(documents(100), "{id}", max_tokens=1)
    assert len(rows_with_spans(seen)) == rows
    seen.check()


@pytest.mark.parametrize("source", [documents, arriving], ids=["list", "async"])
@pytest.mark.parametrize("journal", [False, True], ids=["no journal", "journal"])
async def test_under_a_parent_that_records_every_row_is_its_child(source, journal, seen, tmp_path):
    """Rows are sent from the caller's task, from the reader's, and after a look into the journal."""
    tracer = seen.provider.get_tracer("mine")
    options = {"journal": tmp_path / "journal"} if journal else {}
    async with make_client(ScriptedTransport(), telemetry=seen.telemetry()) as client:
        if journal:
            # So that the rows of the second map are looked up.
            await client.batch_map(source(5), "{id}", max_tokens=1, **options)
        seen.exporter.clear()
        with tracer.start_as_current_span("job") as job:
            await client.batch_map(source(40), "{id}", max_tokens=1, **options)
    assert sorted(rows_with_spans(seen)) == sorted(document["id"] for document in documents(40)[5 if journal else 0 :])
    assert {call.parent.span_id for call in seen.calls} == {job.get_span_context().span_id}


async def test_maps_at_the_same_time_have_a_parent_each(seen):
    tracer = seen.provider.get_tracer("mine")
    parents = {}

    async def job(number):
        async def slowly():
            for row in range(10):
                yield {"id": f"{number} {row}"}
                await anyio.lowlevel.checkpoint()

        with tracer.start_as_current_span("job") as span:
            parents[number] = span.get_span_context().span_id
            await client.batch_map(slowly(), "{id}", max_tokens=1)

    async with make_client(ScriptedTransport(), telemetry=seen.telemetry()) as client:
        async with anyio.create_task_group() as group:
            group.start_soon(job, 0)
            group.start_soon(job, 1)
    assert len(seen.calls) == 20
    for call in seen.calls:
        assert call.parent.span_id == parents[int(call.attributes[name.ROW_ID][0])]


async def test_under_a_parent_that_does_not_record_no_row_has_a_span(seen):
    """The caller's sampler has dropped the trace."""
    provider = TracerProvider(sampler=ALWAYS_OFF)
    async with make_client(ScriptedTransport(), telemetry=seen.telemetry()) as client:
        with provider.get_tracer("mine").start_as_current_span("job"):
            await client.batch_map(documents(), "{id}", max_tokens=1)
    assert seen.all == ()


def test_threads_hand_on_their_own_parents(seen):
    server = ScriptedTransport()
    tracer = seen.provider.get_tracer("mine")
    with (
        SyncBatchClient("http://scripted/v1", model="m", http=lambda *_: server, telemetry=seen.telemetry()) as client,
        tracer.start_as_current_span("job") as job,
    ):
        client.complete("p", max_tokens=1)
        client.batch_map(documents(20), "{id}", max_tokens=1)
        for _ in client.stream_map(documents(20), "{id}", max_tokens=1):
            pass
        for _ in client.stream("p", max_tokens=1):
            pass
    assert len(seen.calls) == 42
    assert {call.parent.span_id for call in seen.calls} == {job.get_span_context().span_id}


async def test_a_row_that_is_asked_again_has_a_span_for_each_call(seen):
    from pydantic import BaseModel

    class Form(BaseModel):
        number: int

    server = ScriptedTransport()
    tracer = seen.provider.get_tracer("mine")
    async with make_client(server, telemetry=seen.telemetry()) as client:
        with tracer.start_as_current_span("job") as job:
            rows = await client.batch_map(
                documents(1),
                "{id}",
                max_tokens=1,
                response_model=Form,
                repair=Repair(invalid=2),
                return_exceptions=True,
            )
    assert len(rows) == 1
    # The answers are cut off, and so are not asked again.
    assert rows_with_spans(seen) == ["row 0"]
    assert {call.parent.span_id for call in seen.calls} == {job.get_span_context().span_id}
