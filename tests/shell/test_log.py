"""Records of a client at work: their fields, and handlers that raise or block."""

import logging
import time

import anyio
import pytest
from tests.core import Scheduler
from tests.shell.scripted import ScriptedTransport, answer_to, error, make_client
from tests.shell.test_complete import call_all
from tests.unit.test_log import STANDARD, records

from batchclient import Backoff, ConnectFailed
from batchclient._common.log import EVENTS

URL = "http://scripted/v1"


async def eventful(client):
    """A failed request, an outage, its end, a change of the limit; return the answers."""
    client.retune(limit=4)
    return await call_all(client, ["a", "b", "c"])


def eventful_server():
    return ScriptedTransport(error(500), error(503), *[ConnectFailed("refused")] * 3)


async def test_every_record_has_the_fields_of_its_event():
    with records() as kept:
        async with make_client(eventful_server(), retry=Backoff(max_attempts=9)) as client:
            await eventful(client)
    assert {"attempt_failed", "endpoint_state", "outage_began", "outage_ended", "adjusted"} <= {
        record.event for record in kept
    }
    for record in kept:
        own = set(vars(record)) - STANDARD - {"event", "left_out"}
        assert own == set(EVENTS[record.event].fields), record.event
        assert record.endpoint == URL
    [began] = [record for record in kept if record.event == "outage_began"]
    assert began.levelname == "WARNING" and began.reason in began.getMessage()
    # Five requests failed within ten seconds or so.
    assert len([record for record in kept if record.event == "attempt_failed"]) < 5


async def test_a_record_of_a_server_takes_no_snapshot_of_the_whole_client(monkeypatch):
    snapshots, whole = [], Scheduler.statistics
    monkeypatch.setattr(Scheduler, "statistics", lambda self: snapshots.append(1) or whole(self))
    with records() as kept:
        async with make_client(eventful_server(), retry=Backoff(max_attempts=9)) as client:
            await eventful(client)
    assert {record.endpoint for record in kept} == {URL}
    assert snapshots == []


@pytest.mark.parametrize("kind", ["raises", "blocks"])
async def test_a_handler_that_raises_or_blocks_changes_no_answer(kind):
    emitted = []

    def emit(record):
        emitted.append(record)
        if kind == "raises":
            raise ZeroDivisionError
        time.sleep(0.01)

    handler = logging.Handler()
    handler.emit = emit
    logger = logging.getLogger("batchclient")
    logger.addHandler(handler)
    try:
        with records():
            async with make_client(eventful_server(), retry=Backoff(max_attempts=9)) as client:
                outcomes = await eventful(client)
                assert client.statistics().succeeded == 3
    finally:
        logger.removeHandler(handler)
    assert {prompt: done.text for prompt, done in outcomes.items()} == {each: answer_to(each) for each in "abc"}
    assert len(emitted) > 3


async def test_a_storm_of_failures_makes_few_records():
    server = ScriptedTransport(*[error(500)] * 40)
    with records() as kept:
        async with make_client(server, retry=Backoff(base_s=0.1, cap_s=0.1, max_attempts=99)) as client:
            began = anyio.current_time()
            await client.complete("p")
            seconds = anyio.current_time() - began
    told = [record for record in kept if record.event == "attempt_failed"]
    assert 1 <= len(told) <= 2 + seconds / 10


async def test_it_is_logged_that_a_refusing_server_is_sent_less():
    rest = {"retry-after": "0.1"}
    server = ScriptedTransport(error(429, headers=rest), error(429, headers=rest))
    with records() as kept:
        async with make_client(server, retry=Backoff(base_s=0.01, max_attempts=9)) as client:
            client.retune(limit=1)
            await call_all(client, ["a", "b", "c"])
    held = [record for record in kept if record.event == "calls_held"]
    assert [(record.levelname, record.endpoint, record.reason) for record in held] == [
        ("INFO", URL, "the server's Retry-After")
    ]
    assert held[0].getMessage() == f"endpoint 0 ({URL}) is sent less, and calls wait: the server's Retry-After"
