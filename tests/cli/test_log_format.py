"""``map --log-format`` and ``--log-level``: all that stands on stderr, for people and for programs."""

import json
import logging
import re
from datetime import datetime

import pytest

from batchclient.cli._log import JsonLines, TextLines

from .conftest import write_rows

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


def rows_of(count):
    return [{"id": number, "text": f"text {number}"} for number in range(count)]


def record(message="the page %s failed", *args, **fields):
    made = logging.makeLogRecord(
        {"name": "batchclient", "levelno": 30, "levelname": "WARNING", "msg": message} | fields
    )
    made.args, made.created = args, 1767225600.25
    return made


def test_a_record_is_a_line_with_time_level_event_and_fields():
    told = record("the page %s failed", "/metrics", event="page_failed", page="/metrics", error='a "word"', foreign=1)
    assert TextLines().format(told) == (
        "2026-01-01T00:00:00.250Z WARNING event=page_failed page=/metrics"
        ' error="a \\"word\\"" message="the page /metrics failed"'
    )
    assert json.loads(JsonLines().format(told)) == {
        "time": "2026-01-01T00:00:00.250Z",
        "level": "WARNING",
        "event": "page_failed",
        "message": "the page /metrics failed",
        "page": "/metrics",
        "error": 'a "word"',
    }


@pytest.mark.parametrize("form", [TextLines, JsonLines])
def test_a_traceback_and_odd_letters_make_no_second_line(form):
    try:
        raise ZeroDivisionError("of two\nlines")
    except ZeroDivisionError as error:
        told = record("odd\r\n\u2028\x1b[31m", event="progress_failed", exc_info=(ZeroDivisionError, error, None))
    line = form().format(told)
    assert "\n" not in line and "\r" not in line and "\x1b" not in line
    assert "ZeroDivisionError: of two" in line


def failing(cli_map, server, tmp_path, *options):
    """A job with a request that failed, and a row that cannot be used."""
    server.set_faults("status=500,count=1")
    source = write_rows(tmp_path / "in.jsonl", [*rows_of(3), {"other": 1}])
    return cli_map(source, "-o", tmp_path / "out.jsonl", *options)


def test_json_is_all_that_stands_on_stderr(cli_map, server, tmp_path):
    done = failing(cli_map, server, tmp_path, "--log-format", "json", "--log-level", "debug", "--metrics-port", 0)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert done.exit_code == 1
    for line in lines:
        assert list(line)[:4] == ["time", "level", "event", "message"]
        assert re.fullmatch(TIME, line["time"]) and datetime.fromisoformat(line["time"])
    events = [line["event"] for line in lines]
    assert (events[0], events[-1]) == ("notice", "summary")
    [failed] = [line for line in lines if line["event"] == "attempt_failed"]
    assert (failed["endpoint"], failed["status"], failed["level"]) == (server.base_url, 500, "DEBUG")
    summary = lines[-1]
    assert {name: summary[name] for name in ("rows", "failed", "reused", "status")} == {
        "rows": 4, "failed": 1, "reused": 0, "status": 1,
    }  # fmt: skip


def test_text_has_the_events_beside_the_same_summary(cli_map, server, tmp_path):
    done = failing(cli_map, server, tmp_path, "--log-format", "text", "--log-level", "debug")
    failed = rf"^{TIME} DEBUG event=attempt_failed endpoint={server.base_url} batch=\d+ size=\d "
    assert re.search(failed, done.stderr, re.MULTILINE)
    assert re.search(r"^4 rows to ", done.stderr, re.MULTILINE)


def test_without_an_option_nothing_below_a_warning_is_told(cli_map, server, tmp_path):
    done = failing(cli_map, server, tmp_path)
    assert done.stderr.startswith("4 rows to ")
    logger = logging.getLogger("batchclient")
    assert (logger.level, logger.handlers) == (logging.NOTSET, []), "the logger is as it was"


def test_a_level_alone_tells_sentences(cli_map, server, tmp_path):
    done = failing(cli_map, server, tmp_path, "--log-level", "debug")
    assert re.search(r"^<Batch .* failed: .* \(ServerFault, status 500\)", done.stderr, re.MULTILINE)


def test_a_refusal_is_json_too(cli_map, server, tmp_path):
    done = cli_map(write_rows(tmp_path / "in.jsonl", rows_of(1)), "--log-format", "json", "--price", "cheap")
    [line] = map(json.loads, done.stderr.splitlines())
    assert (done.exit_code, line["event"], line["level"]) == (2, "error", "ERROR")
    assert line["message"].startswith("--price")
    # The next command of the process speaks as ever.
    assert cli_map(tmp_path / "in.jsonl", "--price", "cheap").stderr.startswith("Error: --price")


@pytest.mark.parametrize("options", [("--log-format", "xml"), ("--log-level", "loud")])
def test_another_word_is_refused(cli_map, tmp_path, server, options):
    done = cli_map(write_rows(tmp_path / "in.jsonl", rows_of(1)), *options)
    assert (done.exit_code, server.requests) == (2, 0)
    assert done.stderr.startswith(f"Error: {options[0]}: one of ")


def test_what_a_server_quotes_is_in_no_event(cli_map, server, tmp_path):
    server.set_faults("bad_prompt=canary")
    source = write_rows(tmp_path / "in.jsonl", [{"text": "a canary"}, {"text": "fine"}])
    options = [
        "--api-key",
        "canary-key",
        "--header",
        "x: canary-header",
        "--log-format",
        "json",
        "--log-level",
        "debug",
    ]
    done = cli_map(source, "-o", tmp_path / "out.jsonl", *options)
    events = [line for line in done.stderr.splitlines() if json.loads(line)["event"] != "summary"]
    assert events and not [line for line in events if "canary" in line]
