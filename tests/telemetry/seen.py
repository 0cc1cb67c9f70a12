"""What a test's exporter got: the spans of calls and of requests, and how they hang together."""

from dataclasses import dataclass

from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode

from batchclient import Telemetry
from batchclient._telemetry import conventions as name

__all__ = ["Seen", "hex_id"]


def hex_id(span):
    return f"{span.context.span_id:016x}"


@dataclass
class Seen:
    provider: TracerProvider
    exporter: InMemorySpanExporter

    def telemetry(self, **options):
        return Telemetry(tracer_provider=self.provider, **options)

    @property
    def all(self):
        return self.exporter.get_finished_spans()

    @property
    def requests(self):
        return [span for span in self.all if span.name == name.REQUEST_SPAN]

    @property
    def calls(self):
        return [span for span in self.all if name.OPERATION in span.attributes]

    @property
    def call(self):
        [span] = self.calls
        return span

    @property
    def request(self):
        [span] = self.requests
        return span

    @property
    def errors(self):
        """Of each call: the class of its error, and whether its span has failed."""
        return [(span.attributes.get(name.ERROR), span.status.status_code is StatusCode.ERROR) for span in self.calls]

    def check(self):
        """Every request links to its calls, and each of the calls that it answered names the request."""
        known = name.ATTRIBUTES
        for span in self.all:
            assert span.kind.name == "CLIENT"
            assert span.status.description is None
            of = "request" if span.name == name.REQUEST_SPAN else "call"
            assert set(span.attributes) <= {each.name for each in known if of in each.of}, span.attributes
            for event in span.events:
                assert set(event.attributes) <= {each.name for each in known if "event" in each.of}
        ids = [span.context.span_id for span in self.all]
        assert len(ids) == len(set(ids))
        calls = {(span.context.trace_id, span.context.span_id): span for span in self.calls}
        for request in self.requests:
            linked = [calls[link.context.trace_id, link.context.span_id] for link in request.links]
            assert linked
            if request.parent is None:
                assert request.attributes[name.SIZE] > 1
            else:
                [call] = linked
                assert request.parent.span_id == call.context.span_id
        linked_by = {hex_id(request): request.links for request in self.requests}
        for call in self.calls:
            if name.SPAN_ID in call.attributes:
                links = linked_by[call.attributes[name.SPAN_ID]]
                assert call.context.span_id in {link.context.span_id for link in links}
