"""Through the simulation's faults, cancellations and closings: one span for each call and request, each ended once."""

from collections import Counter

import pytest
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.trace import StatusCode
from tests.simulation import run as simulation
from tests.simulation.watch import WatchedCore

from tests.core import SendBatch, Submitted
from batchclient._telemetry import conventions as name
from batchclient._telemetry.spans import Spans
from batchclient._telemetry.traced import TracedCore

SEEDS = range(16)
AT_A_TIME = 8


class Counting(SpanProcessor):
    def __init__(self):
        self.begun, self.ended, self.errors = Counter(), Counter(), Counter()
        self.links = self.open = 0

    def on_start(self, span, parent_context=None):
        self.begun[span.name == name.REQUEST_SPAN] += 1
        self.open += 1

    def on_end(self, span):
        is_request = span.name == name.REQUEST_SPAN
        self.ended[is_request] += 1
        self.open -= 1
        assert span.end_time >= span.start_time
        if is_request:
            self.links += len(span.links)
            assert 1 <= len(span.links) <= span.attributes[name.SIZE] + 128
        else:
            failed = span.status.status_code is StatusCode.ERROR
            self.errors["failed" if failed else span.attributes.get(name.ERROR, "succeeded")] += 1


class Told(TracedCore):
    """Counts what goes in and out."""

    submitted = sent = 0

    def handle(self, event, now):
        self.submitted += type(event) is Submitted
        super().handle(event, now)

    def commands(self):
        commands = super().commands()
        self.sent += sum(type(command) is SendBatch for command in commands)
        return commands


@pytest.mark.parametrize("first", SEEDS[::AT_A_TIME])
def test_each_call_and_each_request_has_one_span_ended_once(first, monkeypatch, caplog):
    made = 0
    for seed in range(first, first + AT_A_TIME):
        counting, cores = Counting(), []
        provider = TracerProvider()
        provider.add_span_processor(counting)

        def watched(core, world, seed, provider=provider, cores=cores):
            names = [endpoint.base_url for endpoint in core.statistics().endpoints]
            cores.append(Told(core, Spans(provider), names, None, None))
            return WatchedCore(cores[-1], world, seed)

        with monkeypatch.context() as patch:
            patch.setattr(simulation, "WatchedCore", watched)
            outcome = simulation.run_seed(seed)
        assert not outcome.wrong, outcome.wrong
        [core] = cores
        statistics = core.statistics()
        assert counting.open == 0
        for counted in (counting.begun, counting.ended):
            assert (counted[False], counted[True]) == (core.submitted, core.sent)
        made += core.submitted
        assert counting.errors["succeeded"] == statistics.succeeded
        assert counting.errors["failed"] == statistics.failed
        assert counting.errors["cancelled"] == statistics.cancelled
        assert counting.links >= core.sent
    assert made > 100
    told = [record.message for record in caplog.records]
    assert [message for message in told if "telemetry" in message or "span" in message] == []
