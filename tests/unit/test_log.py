"""The log's events: what each record has beside its sentence, and which records are left out."""

import ast
import logging
from contextlib import contextmanager
from pathlib import Path
from typing import get_args

import pytest

import batchclient
from tests.core import Notice
from batchclient._common.log import EVENTS, Recent, log
from batchclient._shell.log import EndpointLog

SOURCE = Path(batchclient.__file__).parent
NOTICES = set(get_args(Notice))
HOOKS = {"progress_failed", "max_size_failed"}
"""Of users' functions, whose guard makes the event's name of the function's."""
STANDARD = set(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


@contextmanager
def records(level=logging.DEBUG):
    """The records of the logger, at any level."""
    logger, kept = logging.getLogger("batchclient"), []
    handler = logging.Handler()
    handler.emit = kept.append
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(level)
    try:
        yield kept
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


def test_every_event_of_the_code_is_in_the_table_and_the_other_way_round():
    logged = set()
    for path in SOURCE.rglob("*.py"):
        text = path.read_text("utf-8")
        if path.name != "log.py" and 'getLogger("batchclient")' in text:
            assert path.name == "_log.py", f"{path}: records are written by one function"
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Call) and node.args and isinstance(node.args[0], ast.Constant):
                called = getattr(node.func, "id", None) or getattr(node.func, "attr", None)
                if called in ("log", "_log", "_note"):
                    event = EVENTS[node.args[0].value]
                    named = {keyword.arg for keyword in node.keywords} - {None, "exc_info", "level", "left_out"}
                    assert named <= set(event.fields), f"{path.name}: {event.name}"
                    logged.add(event.name)
    assert logged | NOTICES | HOOKS == set(EVENTS)


def test_no_field_takes_the_place_of_one_of_the_standard_librarys():
    for event in EVENTS.values():
        assert not set(event.fields) & STANDARD, event.name
        assert event.says and not event.says.endswith(".")


def test_a_record_has_its_facts_beside_the_sentence():
    with records() as kept:
        log("page_failed", "the page %s failed: %s", "/metrics", "KeyError", page="/metrics", error="KeyError")
    [record] = kept
    assert (record.getMessage(), record.levelname) == ("the page /metrics failed: KeyError", "WARNING")
    assert (record.event, record.page, record.error) == ("page_failed", "/metrics", "KeyError")
    assert record.filename == "test_log.py", "a record names the place that it is about"


def test_of_a_repeated_event_an_endpoint_has_a_record_in_ten_seconds():
    recent = Recent()
    assert recent.left_out("e", 0, 100.0) == 0
    assert [recent.left_out("e", 0, at) for at in (100.0, 105.0, 109.9)] == [None] * 3
    # Another endpoint and another event have records of their own.
    assert (recent.left_out("e", 1, 105.0), recent.left_out("f", 0, 105.0)) == (0, 0)
    assert recent.left_out("e", 0, 110.0) == 3
    assert recent.left_out("e", 0, 119.9) is None
    assert recent.left_out("e", 0, 130.0) == 1
    assert recent.left_out("e", 0, 140.0) == 0


def test_thousands_of_endpoints_are_forgotten_again():
    recent = Recent()
    assert {recent.left_out("e", number, number / 100) for number in range(5000)} == {0}
    # The last thousand came within ten seconds, and are known.
    assert recent.left_out("e", 4999, 50.0) is None
    assert recent.left_out("e", 0, 50.0) == 0


def test_the_number_left_out_is_in_the_next_record():
    now = [0.0]
    tell = EndpointLog(lambda: now[0], lambda endpoint: f"http://server-{endpoint}/v1")
    facts = {"page": "/metrics", "error": "OSError"}
    with records() as kept:
        for at in (0.0, 1.0, 2.0, 12.0):
            now[0] = at
            tell("question_failed", 3, "asking for %s failed", "/metrics", **facts)
            tell("adjusted", 3, "changed", setting="limit", old=1, new=2, reason="r")
    failed = [record for record in kept if record.event == "question_failed"]
    assert [record.getMessage() for record in failed] == [
        "asking for /metrics failed",
        "asking for /metrics failed (2 more like it in the time before)",
    ]
    assert [record.endpoint for record in failed] == ["http://server-3/v1"] * 2
    assert [getattr(record, "left_out", None) for record in failed] == [None, 2]
    # What says where something stands is never left out.
    assert len(kept) - len(failed) == 4


def test_a_record_below_the_level_costs_no_look_at_the_endpoint():
    tell = EndpointLog(lambda: 0.0, lambda endpoint: pytest.fail("the endpoint was looked up"))
    with records(logging.INFO) as kept:
        tell("question_failed", 0, "asking failed", page="/", error="OSError")
    assert kept == []


def test_a_handler_that_raises_ends_nothing():
    def fail(record):
        raise ZeroDivisionError("the handler's own fault")

    with records() as kept:
        handler = logging.Handler()
        handler.emit = fail
        logging.getLogger("batchclient").addHandler(handler)
        try:
            log("page_reader_left", "a reader went away")
        finally:
            logging.getLogger("batchclient").removeHandler(handler)
    assert len(kept) == 1
