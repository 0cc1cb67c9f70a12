"""A tracer, a span or a span processor that raises changes no answer."""

import asyncio
import threading

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from tests.shell.scripted import ScriptedTransport, answer_to, echo, error, make_client
from tests.telemetry.test_spans import QUICK, gathered

from batchclient import Telemetry

WORDS = "the words of the tracer"


class Broken(Exception):
    pass


def broken(*_args, **_options):
    raise Broken(WORDS)


def cancelled(*_args, **_options):
    raise asyncio.CancelledError(WORDS)


class Span(trace.NonRecordingSpan):
    """Records nothing, and says that it does."""

    def __init__(self):
        super().__init__(trace.SpanContext(1, 2, is_remote=False))

    def is_recording(self):
        return True


class Tracer(trace.Tracer):
    def start_span(self, *_args, **_options):
        return Span()

    def start_as_current_span(self, *_args, **_options):
        raise NotImplementedError


class Provider(trace.TracerProvider):
    def get_tracer(self, *_args, **_options):
        return Tracer()


PLACES = {
    "the tracer": (Tracer, "start_span"),
    **{
        f"the span's {method}": (Span, method)
        for method in ("is_recording", "get_span_context", "set_attributes", "set_status", "add_event", "end")
    },
}


@pytest.mark.parametrize("fault", [broken, cancelled])
@pytest.mark.parametrize("place", PLACES)
async def test_what_raises_costs_no_answer_and_is_told_once_by_its_class(place, fault, monkeypatch, caplog):
    owner, method = PLACES[place]
    server = ScriptedTransport(error(500), echo, error(400))
    monkeypatch.setattr(owner, method, fault)
    async with make_client(server, telemetry=Telemetry(tracer_provider=Provider()), retry=QUICK) as client:
        await client.complete("again", max_tokens=5)
        [failed] = await gathered(client, "fails", max_tokens=5)
        assert type(failed).__name__ == "BadRequest"
        for _ in range(3):
            answers = await gathered(client, "a", "b", max_tokens=5)
            assert [answer.text for answer in answers] == [answer_to("a"), answer_to("b")]
    told = [record.getMessage() for record in caplog.records if record.name == "batchclient"]
    assert [message for message in told if "telemetry" in message]
    assert len(told) == len(set(told))
    assert {message.rpartition(": ")[2] for message in told} == {"Broken" if fault is broken else "CancelledError"}
    assert WORDS not in caplog.text


class Processor(SimpleSpanProcessor):
    def __init__(self, on_start=None, on_end=None):
        self.at_start, self.at_end = on_start, on_end

    def on_start(self, span, parent_context=None):
        if self.at_start:
            self.at_start()

    def on_end(self, span):
        if self.at_end:
            self.at_end()

    def shutdown(self):
        pass


@pytest.mark.parametrize("options", [{"on_start": broken}, {"on_end": broken}], ids=["start", "end"])
async def test_a_processor_that_raises(options, caplog):
    provider = TracerProvider()
    provider.add_span_processor(Processor(**options))
    async with make_client(ScriptedTransport(), telemetry=Telemetry(tracer_provider=provider)) as client:
        assert [answer.text for answer in await gathered(client, "a", "b", max_tokens=5)] == ["<a|0>", "<b|0>"]
    assert caplog.text.count("Broken") == 1
    assert WORDS not in caplog.text


async def test_without_an_sdk_the_answers_are_the_same_and_no_thread_is_begun():
    before = {*threading.enumerate()}
    async with make_client(ScriptedTransport(), telemetry=Telemetry()) as client:
        assert [answer.text for answer in await gathered(client, "a", "b", max_tokens=5)] == ["<a|0>", "<b|0>"]
        # A thread of the test before may end meanwhile.
        assert {*threading.enumerate()} <= before
