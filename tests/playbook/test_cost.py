"""Thousands of calls in flight end together: the work for each is the same as where there are few."""

import sys

import pytest

from tests.core import (
    AbortBatch,
    AbortRequested,
    Cancelled,
    CloseRequested,
    EndpointRemoved,
    Failed,
    Failure,
    FailureKind,
    FixedLimit,
    Scheduler,
    SchedulerSettings,
    SendBatch,
    Submitted,
    Woke,
)
from batchclient.errors import BadRequest, CallAborted, ConnectFailed, RateLimited, ReadTimedOut, ServerFault
from tests.playbook.playbook import calls, shape

ABORTED = Failure(FailureKind.REFUSED, CallAborted, "aborted")
LOST = FailureKind.MAYBE_PROCESSED
FAILURES = {
    "no connection": Failure(FailureKind.NOT_SENT, ConnectFailed, "no"),
    "silence": Failure(LOST, ReadTimedOut, "no"),
    "a server error": Failure(LOST, ServerFault, "no", 500),
    "a full server": Failure(FailureKind.REJECTED, RateLimited, "no", 429, retry_after_s=1.0),
    "a refused call": Failure(FailureKind.BAD_CALL, BadRequest, "no", 400),
}
EVENTS = {
    "cancelled": lambda everyone: [Cancelled(call) for call in everyone],
    "abort": lambda _: [AbortRequested()],
    "close": lambda _: [CloseRequested()],
    "deadline": lambda _: [Woke()],
    "endpoint removed": lambda _: [EndpointRemoved(1, drain=False)],
}


def lines_run(end, count, size, endpoints):
    """How many lines of Python the end of so many calls in flight takes."""
    settings = SchedulerSettings(max_size=size, trusts_lists=lambda: True)
    core = Scheduler(settings, [FixedLimit(2 * count)] * endpoints)
    everyone = calls(count, deadline=9.0)
    for call in everyone:
        core.handle(Submitted(call), 0.0)
    core.handle(Woke(), 0.0)
    sent = [command.batch for command in core.commands() if isinstance(command, SendBatch)]
    events = EVENTS[end](everyone) if end in EVENTS else [Failed(batch, FAILURES[end], 0.5) for batch in sent]

    def go():
        for event in events:
            core.handle(event, 9.0 if end == "deadline" else 8.0)
            core.next_deadline()
            events.extend(Failed(one.batch, ABORTED, None) for one in core.commands() if isinstance(one, AbortBatch))

    assert events
    return lines_of(go)


def lines_of(function):
    run = 0

    def note(_frame, _event, _argument):
        nonlocal run
        run += 1
        return note

    before = sys.gettrace()
    sys.settrace(note)
    try:
        function()
    finally:
        sys.settrace(before)
    return run


@pytest.mark.parametrize("end", [*EVENTS, *FAILURES])
def test_the_work_grows_as_the_calls_in_flight(end):
    for size, endpoints in ((1, 2),) if end == "endpoint removed" else ((1, 1), (2, 1), (2, 2)):
        few, many = (lines_run(end, count, size, endpoints) for count in (50, 200))
        assert many < 4.1 * few, f"lists of {size}, {endpoints} endpoints: {few} -> {many}"


def test_a_tenant_who_waits_costs_each_call_of_another_next_to_nothing():
    def lines_for(tenants):
        core = Scheduler(SchedulerSettings(max_size=1), [FixedLimit(64)])
        for number in range(tenants):
            core.handle(Submitted(*calls(1, shape(tenant=f"t{number}"))), 0.0)
        run = lines_of(lambda: core.handle(Woke(), 0.0))
        assert sum(isinstance(command, SendBatch) for command in core.commands()) == 64
        return run

    assert (lines_for(300) - lines_for(100)) / 64 / 200 < 25
