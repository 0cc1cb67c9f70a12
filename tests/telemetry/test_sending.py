"""The server is told of the span, by the propagator that is set; the request's span is current while it is sent."""

import anyio
import httpx
import pytest
from opentelemetry import baggage, context, propagate, trace
from opentelemetry.propagators.textmap import TextMapPropagator
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from tests.shell.scripted import ScriptedTransport, echo, make_client
from tests.telemetry.seen import hex_id
from tests.telemetry.test_spans import gathered

from batchclient import BatchClient, Server, Telemetry

LIBRARIES = ("asyncio", "trio")


def headers_of(sent):
    return dict(sent.request.headers)


def traceparent(span, flags="03"):
    """The SDK's ids are random, which the second bit says."""
    return f"00-{span.context.trace_id:032x}-{hex_id(span)}-{flags}"


async def test_of_one_call_the_server_is_told_the_calls_span(seen):
    server = ScriptedTransport()
    async with make_client(server, telemetry=seen.telemetry()) as client:
        await client.complete("p", max_tokens=5)
    assert headers_of(server.sent[0]) == {"traceparent": headers_of(server.sent[0])["traceparent"]}
    assert headers_of(server.sent[0])["traceparent"][:52] == traceparent(seen.call)[:52]


async def test_of_a_list_the_server_is_told_the_requests_span(seen):
    server = ScriptedTransport()
    async with make_client(server, telemetry=seen.telemetry()) as client:
        await gathered(client, "a", "b", max_tokens=5)
    assert headers_of(server.sent[0])["traceparent"][:52] == traceparent(seen.request)[:52]


async def test_a_trace_that_nobody_sees_is_told_as_such():
    """So that the server makes no spans of its own."""
    server = ScriptedTransport()
    telemetry = Telemetry(tracer_provider=TracerProvider(sampler=ALWAYS_OFF))
    async with make_client(server, telemetry=telemetry) as client:
        await client.complete("p", max_tokens=5)
    told = headers_of(server.sent[0])["traceparent"]
    assert int(told[-2:], 16) & 1 == 0


@pytest.mark.parametrize("where", ["client", "server", "upper case"])
async def test_a_header_of_the_users_own_wins(where, seen):
    server = ScriptedTransport()
    own = {"Traceparent" if where == "upper case" else "traceparent": "mine"}
    given = []

    def transport(url, headers):
        given.append(dict(headers))
        return server

    url = Server("http://scripted/v1", headers=own) if where == "server" else "http://scripted/v1"
    headers = None if where == "server" else own
    async with BatchClient(url, model="m", http=transport, telemetry=seen.telemetry(), headers=headers) as client:
        await client.complete("p", max_tokens=5)
    assert given == [{"traceparent": "mine"}]
    assert headers_of(server.sent[0]) == {}
    assert len(seen.calls) == 1


async def test_a_header_of_the_users_own_http_client_wins(seen):
    told = []

    def answer(request):
        told.append(request.headers.get_list("traceparent"))
        choice = {"index": 0, "text": "x", "finish_reason": "stop"}
        return httpx.Response(200, json={"id": "1", "model": "m", "choices": [choice]})

    async with httpx.AsyncClient(transport=httpx.MockTransport(answer), headers={"Traceparent": "mine"}) as http_client:
        async with BatchClient(
            "http://h/v1", model="m", http=http_client, telemetry=seen.telemetry(), dialect="openai"
        ) as client:
            await client.complete("p", max_tokens=1)
    assert told == [["mine"]]


class OneHeader(TextMapPropagator):
    """As a company's own."""

    fields = frozenset({"x-trace"})

    def inject(self, carrier, context=None, setter=None):
        carrier["x-trace"] = f"{trace.get_current_span(context).get_span_context().span_id:016x}"

    def extract(self, carrier, context=None, getter=None):
        return context


class Raises(OneHeader):
    def inject(self, carrier, context=None, setter=None):
        raise RuntimeError("the words of the propagator")


@pytest.fixture
def use():
    """Sets the propagator of the process."""
    before = propagate.get_global_textmap()
    yield propagate.set_global_textmap
    propagate.set_global_textmap(before)


async def test_the_propagator_that_is_set_is_used(use, seen):
    use(OneHeader())
    server = ScriptedTransport()
    async with make_client(server, telemetry=seen.telemetry()) as client:
        await client.complete("p", max_tokens=5)
    assert headers_of(server.sent[0]) == {"x-trace": hex_id(seen.call)}


async def test_a_propagator_that_raises_costs_its_headers_alone(use, seen, caplog):
    use(Raises())
    server = ScriptedTransport()
    async with make_client(server, telemetry=seen.telemetry()) as client:
        for _ in range(3):
            await client.complete("p", max_tokens=5)
    assert [headers_of(sent) for sent in server.sent] == [{}] * 3
    assert caplog.text.count("RuntimeError") == 1
    assert "the words" not in caplog.text


async def test_no_baggage_of_a_caller_goes_to_the_server(seen):
    """Neither of the calls', nor of whoever made the client."""
    server = ScriptedTransport()
    token = context.attach(baggage.set_baggage("user", "canary"))
    try:
        async with make_client(server, telemetry=seen.telemetry()) as client:
            await client.complete("p", max_tokens=5)
            await gathered(client, "a", "b", max_tokens=5)
    finally:
        context.detach(token)
    assert {name for sent in server.sent for name in headers_of(sent)} == {"traceparent"}


async def test_the_requests_span_is_current_while_it_is_sent(seen):
    current = []

    def answer(sent):
        current.append(trace.get_current_span().get_span_context().span_id)
        return echo(sent)

    server = ScriptedTransport(*[answer] * 3)
    async with make_client(server, telemetry=seen.telemetry()) as client:
        await gathered(client, "a", "b", max_tokens=5)
        await client.complete("c", max_tokens=5)
        await client.complete("d", max_tokens=5)
        # The caller's own context is left alone.
        assert trace.get_current_span() is trace.INVALID_SPAN
    assert current == [request.context.span_id for request in seen.requests]


async def test_without_telemetry_nothing_is_added(seen):
    server = ScriptedTransport()
    async with make_client(server) as client:
        with seen.provider.get_tracer("mine").start_as_current_span("mine"):
            await client.complete("p", max_tokens=5)
    assert headers_of(server.sent[0]) == {}
    assert [span.name for span in seen.all] == ["mine"]
