"""Each call has one span, ended once, however the call ends; each request has one; links go both ways."""

import asyncio
import gc
import time

import anyio
import pytest
from opentelemetry.sdk.trace import SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from tests.shell.scripted import Reply, ScriptedTransport, echo, error, make_client, settle, stream
from tests.shell.test_cancellation import start
from tests.telemetry.seen import hex_id

import batchclient
from batchclient import (
    Queue,
    Backoff,
    BadRequest,
    BatchClient,
    Batching,
    CallAborted,
    ClientClosed,
    ConnectFailed,
    ConnectionLost,
    DeadlineExceeded,
    QueueFull,
    Telemetry,
)
from batchclient._telemetry import conventions as name

LIBRARIES = ("asyncio", "trio")
QUICK = Backoff(base_s=0.001, cap_s=0.002)


async def gathered(client, *prompts, **params):
    """What became of calls made at once."""
    async with anyio.create_task_group() as group:
        calls = start(group, client, list(prompts), **params)
        for call in calls:
            await call.over.wait()
    return [call.outcome for call in calls]


async def test_a_list_has_a_span_linked_to_each_call_and_each_call_names_it(seen):
    server = ScriptedTransport()
    async with make_client(server, telemetry=seen.telemetry(client_name="mine")) as client:
        await gathered(client, "a", "b", "c", max_tokens=1, temperature=0.5, top_p=0.9, seed=7, n=2, priority=3)
    assert len(server.sent) == len(seen.requests) == 1
    assert len(seen.calls) == 3
    seen.check()
    request = seen.request
    assert request.parent is None
    assert {link.context.span_id for link in request.links} == {call.context.span_id for call in seen.calls}
    assert dict(request.attributes) == {
        "batchclient.request.size": 3,
        "batchclient.client": "mine",
        "server.address": "scripted",
        "server.port": 80,
    }
    for call in seen.calls:
        assert call.name == "text_completion m"
        assert call.parent is None
        attributes = dict(call.attributes)
        assert 0 <= attributes.pop("batchclient.queue_s") < 1
        assert attributes == {
            "gen_ai.operation.name": "text_completion",
            "gen_ai.provider.name": "openai",
            "gen_ai.request.model": "m",
            "gen_ai.request.max_tokens": 1,
            "gen_ai.request.temperature": 0.5,
            "gen_ai.request.top_p": 0.9,
            "gen_ai.request.seed": 7,
            "gen_ai.request.choice.count": 2,
            "gen_ai.response.model": "m",
            "gen_ai.response.id": "cmpl-0",
            "gen_ai.response.finish_reasons": ("length", "length"),
            "gen_ai.usage.input_tokens": 1,
            "gen_ai.usage.output_tokens": 4,
            "server.address": "scripted",
            "server.port": 80,
            "batchclient.priority": 3,
            "batchclient.client": "mine",
            "batchclient.request.size": 3,
            "batchclient.request.span_id": hex_id(request),
            "batchclient.request.trace_id": f"{request.context.trace_id:032x}",
        }


async def test_the_request_of_one_call_is_its_child(seen):
    async with make_client(ScriptedTransport(), telemetry=seen.telemetry(), dialect="vllm") as client:
        await client.complete("p", max_tokens=500)
    seen.check()
    call, request = seen.call, seen.request
    assert request.parent.span_id == call.context.span_id
    assert call.attributes[name.SPAN_ID] == hex_id(request)
    assert name.TRACE_ID not in call.attributes
    assert call.attributes[name.PROVIDER] == "vllm"
    assert call.attributes[name.STREAMED] is request.attributes[name.STREAMED] is True
    assert call.attributes[name.ALONE] == request.attributes[name.ALONE] == "no company"
    assert 0 <= call.attributes[name.FIRST_CHUNK_S] < 1


async def test_a_call_is_the_child_of_its_callers_span(seen):
    tracer = seen.provider.get_tracer("mine")
    async with make_client(ScriptedTransport(), telemetry=seen.telemetry()) as client:
        with tracer.start_as_current_span("mine") as mine:
            await gathered(client, "a", "b", max_tokens=5)
            async with client.stream("c", max_tokens=5) as pieces:
                async for _ in pieces:
                    pass
    assert {call.parent.span_id for call in seen.calls} == {mine.get_span_context().span_id}
    streamed = seen.calls[-1]
    assert streamed.attributes[name.STREAM] is True
    # A list is nobody's child.
    assert [request.parent for request in seen.requests if request.attributes[name.SIZE] == 2] == [None]


async def test_times_are_the_schedulers(seen):
    """The time in the queue and the request's are the call's, for a call that went once."""
    server = ScriptedTransport(held=True)
    async with (
        make_client(server, telemetry=seen.telemetry(), limit=2, batching=Batching(linger_s=0.0)) as client,
        anyio.create_task_group() as group,
    ):
        calls = start(group, client, ["a", "b"], max_tokens=5)
        await server.arrived(1)
        calls += start(group, client, ["c", "d"], max_tokens=5)
        await anyio.sleep(0.02)
        server.release()
        for call in calls:
            await call.over.wait()
        histograms = client.statistics().histograms
        observed = sum(each.sum for each in histograms["call_duration_seconds"].values())
    requests = {hex_id(request): request for request in seen.requests}
    waited = 0.0
    for call in seen.calls:
        request = requests[call.attributes[name.SPAN_ID]]
        took_s = (call.end_time - call.start_time) / 1e9
        queue_s = call.attributes[name.QUEUE_S]
        assert queue_s + (request.end_time - request.start_time) / 1e9 == pytest.approx(took_s, abs=1e-3)
        waited += queue_s
        observed -= took_s
    assert waited > 0.01
    assert abs(observed) < 1e-3


async def test_a_cancelled_call(seen):
    server = ScriptedTransport(held=True)
    async with make_client(server, telemetry=seen.telemetry()) as client, anyio.create_task_group() as group:
        [stays, leaves] = start(group, client, ["stays", "leaves"], max_tokens=5)
        await server.arrived(1)
        leaves.scope.cancel()
        # Now, and not with the end of its request or of the client.
        with anyio.fail_after(10):
            while not seen.calls:
                await anyio.sleep(0.001)
        server.release()
        await stays.over.wait()
    assert sorted(seen.errors, key=str) == [("cancelled", False), (None, False)]
    assert [request.attributes.get(name.ERROR) for request in seen.requests] == [None]
    seen.check()


async def test_a_request_that_all_callers_have_left(seen):
    server = ScriptedTransport(held=True)
    async with make_client(server, telemetry=seen.telemetry()) as client, anyio.create_task_group() as group:
        calls = start(group, client, ["a", "b"], max_tokens=5)
        await server.arrived(1)
        for call in calls:
            call.scope.cancel()
        await settle()
    assert seen.errors == [("cancelled", False)] * 2
    assert seen.request.attributes[name.ERROR] == "cancelled"
    assert seen.request.status.is_ok


async def test_an_expired_call_and_a_call_refused_by_the_queue(seen):
    server = ScriptedTransport(held=True)
    async with (
        make_client(server, telemetry=seen.telemetry(), limit=1, queue=Queue(max_calls=1, when_full="raise")) as client,
        anyio.create_task_group() as group,
    ):
        calls = start(group, client, ["in flight"], max_tokens=5, timeout_s=0.5)
        await server.arrived(1)
        calls += start(group, client, ["queued", "refused"], max_tokens=5, timeout_s=0.02)
        for call in calls:
            await call.over.wait()
    assert {type(call.outcome) for call in calls} == {DeadlineExceeded, QueueFull}
    assert sorted(seen.errors) == [("DeadlineExceeded", True)] * 2 + [("QueueFull", True)]
    assert len(seen.requests) == 1
    seen.check()


async def test_a_call_refused_at_once_has_no_span(seen):
    async with make_client(ScriptedTransport(), telemetry=seen.telemetry()) as client:
        with pytest.raises(Exception, match="max_tokens"):
            await client.complete("p", max_tokens=-1)
    assert seen.all == ()


@pytest.mark.parametrize("end", ["abort", "aclose"])
async def test_calls_that_the_client_ends(end, seen):
    server = ScriptedTransport(held=True)
    async with make_client(server, telemetry=seen.telemetry(), limit=1) as client, anyio.create_task_group() as group:
        calls = start(group, client, ["in flight", "queued"], max_tokens=5)
        await server.arrived(1)
        client.abort() if end == "abort" else await client.aclose()
        for call in calls:
            await call.over.wait()
    expected = CallAborted if end == "abort" else ClientClosed
    assert seen.errors == [(expected.__name__, True)] * 2
    assert seen.request.attributes[name.ERROR] == "cancelled"
    seen.check()


async def test_a_failed_list_and_its_calls(seen):
    server = ScriptedTransport(error(400, "the words of the server"))
    async with make_client(server, telemetry=seen.telemetry()) as client:
        with pytest.raises(BadRequest):
            await client.complete("p", max_tokens=5)
    assert seen.errors == [("BadRequest", True)]
    assert seen.request.attributes[name.ERROR] == "BadRequest"
    assert not seen.request.status.is_ok
    assert seen.call.attributes[name.SPAN_ID] == hex_id(seen.request)
    seen.check()


async def test_a_retry_is_an_event(seen):
    server = ScriptedTransport(error(500), ConnectionLost("away"))
    async with make_client(server, telemetry=seen.telemetry(), retry=QUICK) as client:
        await client.complete("p", max_tokens=5)
    assert len(server.sent) == len(seen.requests) == 3
    assert [(event.name, event.attributes[name.ERROR]) for event in seen.call.events] == [
        ("batchclient.retry", "ServerFault"),
        ("batchclient.retry", "ConnectionLost"),
    ]
    assert seen.call.attributes[name.ATTEMPTS] == 3
    assert seen.call.attributes[name.SPAN_ID] == hex_id(seen.requests[-1])
    assert seen.errors == [(None, False)]
    times = [event.timestamp for event in seen.call.events]
    assert seen.call.start_time < times[0] < times[1] < seen.call.end_time
    seen.check()


async def test_a_split_is_an_event_and_each_call_has_one_span(seen):
    def answer(sent):
        return error(400) if "bad" in sent.prompts else echo(sent)

    server = ScriptedTransport(*[answer] * 20)
    prompts = ["a", "b", "bad", "c"]
    async with make_client(server, telemetry=seen.telemetry(), retry=QUICK, dialect="openai") as client:
        outcomes = await gathered(client, *prompts, max_tokens=5)
    assert [type(outcome).__name__ for outcome in outcomes] == ["Completion", "Completion", "BadRequest", "Completion"]
    assert len(seen.calls) == 4
    assert len(seen.requests) == len(server.sent)
    for call in seen.calls:
        assert call.events
        assert {event.name for event in call.events} == {"batchclient.split"}
    seen.check()


async def test_another_server_is_an_event(seen):
    away = ScriptedTransport(*[ConnectFailed("refused")] * 9)
    there = ScriptedTransport()
    by_url = {"http://away:1/v1": away, "http://there:2/v1": there}
    async with BatchClient(
        list(by_url), model="m", http=lambda url, _: by_url[url], telemetry=seen.telemetry(), retry=QUICK
    ) as client:
        for number in range(3):
            await client.complete(f"p{number}", max_tokens=5)
    moved = [call for call in seen.calls if call.events]
    assert moved
    for call in moved:
        assert [event.name for event in call.events] == ["batchclient.retry", "batchclient.failover"]
        assert dict(call.events[1].attributes) == {"server.address": "there", "server.port": 2}
        assert call.attributes[name.PORT] == 2
    seen.check()


async def test_calls_that_share_a_generation_have_a_span_each(seen):
    server = ScriptedTransport(held=True)
    async with (
        make_client(server, telemetry=seen.telemetry(), batching=Batching(single_flight=True)) as client,
        anyio.create_task_group() as group,
    ):
        calls = start(group, client, ["p", "p", "leaves"], max_tokens=5, temperature=0)
        calls += start(group, client, ["p"], max_tokens=5, temperature=0)
        await server.arrived(1)
        calls += start(group, client, ["p"], max_tokens=5, temperature=0)
        await settle()
        calls[2].scope.cancel()
        await settle()
        server.release()
        for call in calls:
            await call.over.wait()
    assert len(seen.calls) == 5
    assert sorted(seen.errors, key=str) == [("cancelled", False)] + [(None, False)] * 4
    # Three callers of one generation were there when it was sent; the last has joined it.
    assert len(seen.request.links) == 4
    named = [call for call in seen.calls if call.attributes.get(name.SPAN_ID) == hex_id(seen.request)]
    assert len(named) == 5
    assert all(call.attributes[name.QUEUE_S] >= 0 for call in seen.calls)


async def test_a_call_that_joins_another_s_request_names_its_span_and_its_trace(seen):
    server = ScriptedTransport(held=True)
    tracer = seen.provider.get_tracer("mine")
    async with (
        make_client(server, telemetry=seen.telemetry(), batching=Batching(single_flight=True)) as client,
        anyio.create_task_group() as group,
    ):
        with tracer.start_as_current_span("mine"):
            start(group, client, ["p"], max_tokens=5, temperature=0)
            await server.arrived(1)
            # One of the first caller's own, and one of another's.
            start(group, client, ["p"], max_tokens=5, temperature=0)
            await settle()
        start(group, client, ["p"], max_tokens=5, temperature=0)
        await settle()
        server.release()
    of = seen.request.context
    assert [call.attributes[name.SPAN_ID] for call in seen.calls] == [hex_id(seen.request)] * 3
    told = {call.context.trace_id: call.attributes.get(name.TRACE_ID) for call in seen.calls}
    assert len(told) == 2 and told.pop(of.trace_id) is None
    assert [*told.values()] == [f"{of.trace_id:032x}"]


async def test_other_kinds_of_calls(seen):
    def answer(sent):
        if "input" in sent.body:
            return Reply(
                chunks=[b'{"data":[{"index":0,"embedding":[1.0]}],"usage":{"prompt_tokens":3,"total_tokens":3}}']
            )
        return echo(sent)

    server = ScriptedTransport(answer)
    async with make_client(server, telemetry=seen.telemetry(), dialect="openai") as client:
        await client.embed("p", encoding_format="float")
    assert seen.call.name == "embeddings m"
    assert seen.call.attributes[name.INPUT_TOKENS] == 3
    seen.check()


async def test_no_more_than_128_links(seen):
    server = ScriptedTransport()
    options = {"limit": 200, "batching": Batching(max_size=200)}
    # The limit of the SDK is the same by default.
    provider = TracerProvider(span_limits=SpanLimits(max_links=1000))
    provider.add_span_processor(SimpleSpanProcessor(seen.exporter))
    telemetry = Telemetry(tracer_provider=provider)
    async with make_client(server, telemetry=telemetry, dialect="openai", **options) as client:
        await gathered(client, *map(str, range(140)), max_tokens=5)
    [largest] = [request for request in seen.requests if request.attributes[name.SIZE] > 128]
    assert len(largest.links) == 128
    assert len(seen.calls) == 140


async def test_a_servers_name_and_a_server_that_joins(seen):
    joined = ScriptedTransport()
    client = BatchClient("http://first/v1", model="m", http=lambda url, _: joined, telemetry=seen.telemetry(), limit=1)
    async with client:
        await client.complete("p", max_tokens=5)
        client.add_endpoint("https://second/v1")
        await client.remove_endpoint("http://first/v1")
        await client.complete("p", max_tokens=5)
    assert [(call.attributes[name.ADDRESS], call.attributes[name.PORT]) for call in seen.calls] == [
        ("first", 80),
        ("second", 443),
    ]


def test_a_client_that_is_left_with_its_event_loop_ends_its_spans(seen):
    """Nobody cancels anything here: the loop is closed over the call."""
    server = ScriptedTransport(held=True)
    client = make_client(server, telemetry=seen.telemetry())
    loop = asyncio.new_event_loop()
    # asyncio complains of tasks that are destroyed pending, which is not what this is about.
    loop.set_exception_handler(lambda loop, context: None)

    async def begin():
        task = asyncio.ensure_future(client.complete("p", max_tokens=5))
        await server.arrived(1)
        return task

    task = loop.run_until_complete(begin())
    loop.close()
    del task
    server.held = False
    # Its gates would hold the tasks.
    server.sent.clear()

    async def again():
        await client.complete("again", max_tokens=5)
        await client.aclose()

    asyncio.run(again())
    gc.collect()
    until(lambda: len(seen.all) == 4)
    assert sorted(seen.errors, key=str) == [("cancelled", False), (None, False)]
    assert sorted([request.attributes.get(name.ERROR) for request in seen.requests], key=str) == [None, "cancelled"]


def test_a_client_whose_loop_ends_without_a_close(seen):
    server = ScriptedTransport(held=True)

    async def main():
        client = make_client(server, telemetry=seen.telemetry())
        asyncio.ensure_future(client.complete("p", max_tokens=5))
        await server.arrived(1)

    asyncio.run(main())
    until(lambda: len(seen.all) == 2)
    # The loop cancels the caller's task first, or that of the request.
    assert seen.errors in ([("cancelled", False)], [("CallAborted", True)])


def until(holds):
    end = time.monotonic() + 10
    while not holds() and time.monotonic() < end:
        time.sleep(0.005)
    assert holds()


async def test_the_answers_are_the_same_with_and_without(seen):
    async def answers(**options):
        async with make_client(ScriptedTransport(), **options) as client:
            return [answer.text for answer in await gathered(client, "a", "b", "c", max_tokens=5)]

    assert await answers() == await answers(telemetry=seen.telemetry())


async def test_a_half_streamed_list_that_breaks(seen):
    """Some calls have their answers, and the rest go again: one span each."""

    def half(sent):
        return Reply(
            chunks=[*stream(sent, positions=[0]), *stream(sent, positions=[1], last=False), ConnectionLost("away")]
        )

    server = ScriptedTransport(half)
    async with make_client(server, telemetry=seen.telemetry(), retry=QUICK) as client:
        await gathered(client, "a", "b", max_tokens=100)
    assert len(seen.calls) == 2
    assert sorted(len(call.events) for call in seen.calls) == [0, 1]
    assert {event.name for call in seen.calls for event in call.events} == {"batchclient.retry"}
    assert [request.attributes.get(name.ERROR) for request in seen.requests] == ["ConnectionLost", None]
    seen.check()


def test_the_version_of_the_package_is_in_the_scope(seen):
    async def main():
        async with make_client(ScriptedTransport(), telemetry=seen.telemetry()) as client:
            await client.complete("p", max_tokens=5)

    asyncio.run(main())
    scope = seen.call.instrumentation_scope
    assert (scope.name, scope.version) == ("batchclient", batchclient.__version__)


def test_a_server_that_is_found_out_is_named(seen):
    from batchclient.simulator import EmbeddedServer

    async def main(url):
        async with BatchClient(url, model="m", telemetry=seen.telemetry()) as client:
            await client.complete("before", max_tokens=5)
            with anyio.fail_after(20):
                while client.statistics().endpoints[0].server is None:
                    await client.complete("meanwhile", max_tokens=5)
            await client.complete("after", max_tokens=5)

    with EmbeddedServer("instant", model="m") as server:
        asyncio.run(main(server.base_url))
    assert seen.calls[-1].attributes[name.PROVIDER] == "vllm"
    assert {call.attributes[name.PROVIDER] for call in seen.calls} <= {"openai", "vllm"}
