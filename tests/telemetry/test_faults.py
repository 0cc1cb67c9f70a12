"""A tracer, a span, a span processor or an exporter that raises or blocks changes no answer."""

import asyncio
import threading
import time

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from tests.shell.scripted import ScriptedTransport, answer_to, echo, error, make_client
from tests.telemetry.test_spans import QUICK, gathered

from batchclient import Telemetry
from batchclient._telemetry.ending import Ending

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
    "the provider": (Provider, "get_tracer"),
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


class Blocks(SpanExporter):
    """Blocks until it is let go."""

    def __init__(self):
        self.go = threading.Event()
        self.names = []

    def export(self, spans):
        self.go.wait(30)
        self.names += [span.name for span in spans]
        return SpanExportResult.SUCCESS


async def test_an_exporter_that_blocks_holds_up_no_call_and_not_the_end(caplog):
    exporter = Blocks()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    client = make_client(ScriptedTransport(), telemetry=Telemetry(tracer_provider=provider))
    try:
        async with client:
            for number in range(20):
                await client.complete(f"p{number}", max_tokens=5, timeout_s=5)
            began = time.monotonic()
        # The end of the client waits for a second.
        assert time.monotonic() - began < 10
        assert exporter.names == []
        assert caplog.text.count("too slow") == 1
    finally:
        exporter.go.set()
    until = time.monotonic() + 10
    while len(exporter.names) < 40 and time.monotonic() < until:
        await asyncio.sleep(0.005)
    assert len(exporter.names) == 40


async def test_the_end_of_a_client_waits_for_its_spans():
    """A program may shut the provider down right after."""
    exporter = Blocks()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    async with make_client(ScriptedTransport(), telemetry=Telemetry(tracer_provider=provider)) as client:
        await client.complete("p", max_tokens=5)
        asyncio.get_running_loop().call_later(0.05, exporter.go.set)
    assert exporter.names == ["text_completion m", "batchclient.request"]


async def test_a_tracer_that_is_slow_makes_no_spans_for_a_minute(caplog):
    taken = []

    def slowly():
        taken.append(1)
        time.sleep(0.01)

    provider = TracerProvider()
    provider.add_span_processor(Processor(on_start=slowly))
    async with make_client(ScriptedTransport(), telemetry=Telemetry(tracer_provider=provider)) as client:
        for number in range(20):
            await client.complete(f"p{number}", max_tokens=5)
    assert len(taken) == 3
    assert caplog.text.count("too slow") == 1


async def test_slow_begins_now_and_then_are_no_slow_tracer():
    taken = []

    def sometimes():
        taken.append(1)
        time.sleep(0.0 if len(taken) % 3 else 0.02)

    provider = TracerProvider()
    provider.add_span_processor(Processor(on_start=sometimes))
    async with make_client(ScriptedTransport(), telemetry=Telemetry(tracer_provider=provider)) as client:
        for number in range(6):
            await client.complete(f"p{number}", max_tokens=5)
    assert len(taken) == 12  # of each call and its request


async def test_without_an_sdk_the_answers_are_the_same_and_no_thread_is_begun():
    before = {*threading.enumerate()}
    async with make_client(ScriptedTransport(), telemetry=Telemetry()) as client:
        assert [answer.text for answer in await gathered(client, "a", "b", max_tokens=5)] == ["<a|0>", "<b|0>"]
        # A thread of the test before may end meanwhile.
        assert {*threading.enumerate()} <= before


async def test_no_thread_is_left():
    provider = TracerProvider()
    provider.add_span_processor(Processor())
    async with make_client(ScriptedTransport(), telemetry=Telemetry(tracer_provider=provider)) as client:
        await client.complete("p", max_tokens=5)
    until = time.monotonic() + 10
    while any(thread.name == "batchclient spans" for thread in threading.enumerate()) and time.monotonic() < until:
        await asyncio.sleep(0.005)
    assert not any(thread.name == "batchclient spans" for thread in threading.enumerate())


def test_ends_that_wait_are_bounded():
    """A processor that blocks for ever lets no memory grow."""
    said, ended, go = [], [], threading.Event()

    class Blocking(Span):
        def end(self, end_time=None):
            go.wait(30)
            ended.append(end_time)

    ending = Ending(lambda *told: said.append(told), most_waiting=3)
    for number in range(10):
        ending.end([(Blocking(), number)])
    assert ending.is_full
    over = threading.Event()
    ending.then(over.set)
    go.set()
    assert over.wait(30)
    ending.stop()
    assert ended == [0, 1, 2]
    assert len(said) == 7
    assert not ending.is_full
