"""``map --log-format``: all that stands on stderr, for people and for programs."""

import json
import logging
import re
from datetime import datetime

import pytest

from batchclient.cli._log import JsonLines, TextLines

from .conftest import rows_of, write_rows

TIME = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z"


def record(message="the page %s failed", *args, **fields):
    made = logging.makeLogRecord(
        {"name": "batchclient", "levelno": 30, "levelname": "WARNING", "msg": message} | fields
    )
    made.args, made.created = args, 1767225600.25
    return made


@pytest.mark.parametrize("form", [TextLines, JsonLines])
def test_a_traceback_and_odd_letters_make_no_second_line(form):
    try:
        raise ZeroDivisionError("of two\nlines")
    except ZeroDivisionError as error:
        told = record("odd\r\n\u2028\x1b[31m", event="progress_failed", exc_info=(ZeroDivisionError, error, None))
    line = form().format(told)
    assert "\n" not in line and "\r" not in line and "\x1b" not in line
    assert "ZeroDivisionError: of two" in line


def failing(cli_map, tmp_path, *options):
    """A job with a row that cannot be used."""
    source = write_rows(tmp_path / "in.jsonl", [*rows_of(3), {"other": 1}])
    return cli_map(source, "-o", tmp_path / "out.jsonl", *options)


def test_json_is_all_that_stands_on_stderr(cli_map, server, tmp_path):
    done = failing(cli_map, tmp_path, "--log-format", "json", "--metrics-port", 0)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert done.exit_code == 1
    for line in lines:
        assert list(line)[:4] == ["time", "level", "event", "message"]
        assert re.fullmatch(TIME, line["time"]) and datetime.fromisoformat(line["time"])
    assert [line["event"] for line in lines] == ["notice", "summary"]
    summary = {name: lines[-1][name] for name in ("rows", "failed", "reused", "status")}
    assert summary == {"rows": 4, "failed": 1, "reused": 0, "status": 1}


def test_text_has_a_line_an_event_too(cli_map, tmp_path):
    [summary] = failing(cli_map, tmp_path, "--log-format", "text").stderr.splitlines()
    assert re.match(rf"{TIME} INFO event=summary rows=4 failed=1 reused=0 seconds=[\d.]+ status=1 message=", summary)


def test_wrong_usage_is_json_too(cli_map, tmp_path):
    source = write_rows(tmp_path / "in.jsonl", rows_of(1))
    for *options, said in [
        ("--price", "cheap", "--log-format", "json", "--price: "),
        ("--prmpt", "x", "--log-format", "json", "No such option: --prmpt"),
        ("--max-tokens", "many", "--log-format=json", "'--max-tokens'"),
    ]:
        done = cli_map(source, *options)
        [line] = map(json.loads, done.stderr.splitlines())
        assert (done.exit_code, line["event"], line["level"]) == (2, "error", "ERROR")
        assert said in line["message"]
        # The next command of the process speaks as ever.
        assert cli_map(source, *options[:2]).stderr.splitlines()[-1].startswith("Error: ")


def test_what_a_server_quotes_is_in_no_event(cli_map, server, tmp_path):
    server.set_faults("bad_prompt=canary")
    source = write_rows(tmp_path / "in.jsonl", [{"text": "a canary"}, {"text": "fine"}])
    options = ["--api-key", "canary-key", "--header", "x: canary-header", "--log-format", "json", "--price", "1/1"]
    done = cli_map(source, "-o", tmp_path / "out.jsonl", *options)
    events = [line for line in done.stderr.splitlines() if json.loads(line)["event"] != "summary"]
    assert done.exit_code == 1 and not [line for line in events if "canary" in line]
