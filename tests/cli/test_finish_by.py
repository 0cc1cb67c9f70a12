"""``map --finish-by``: the time of day, the journal that keeps it, and what the line says."""

import os
import re
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import pytest

from batchclient._maps.finish_by import Pace
from batchclient._maps.forecast import Interval
from batchclient.cli import _kept, _run
from batchclient.cli._finish_by import manner_in_words, next_time, time_from
from batchclient.cli._progress import Meter, Snapshot
from batchclient.cli._refusal import Refusal

from .conftest import rows_of, write_rows


@pytest.mark.parametrize(
    ("zone", "now", "text", "then"),
    [
        ("UTC", "2026-01-10T22:00", "06:00", "2026-01-11T06:00"),
        ("UTC", "2026-01-10T05:59:59", "06:00", "2026-01-10T06:00"),
        ("UTC", "2026-01-10T06:00", "06:00", "2026-01-11T06:00"),
        ("UTC", "2026-01-10T06:00:30", "06:00", "2026-01-11T06:00"),
        ("UTC", "2026-01-10T23:59:30", "00:00", "2026-01-11T00:00"),
        ("Asia/Kolkata", "2026-01-10T22:00", "06:00", "2026-01-11T00:30"),
        # A night of 7 hours, and one of 9.
        ("Europe/Berlin", "2026-03-28T21:00", "06:00", "2026-03-29T04:00"),
        ("Europe/Berlin", "2026-10-24T20:00", "06:00", "2026-10-25T05:00"),
        # 02:30 does not exist: the clocks go from 02:00 to 03:00 at 01:00 UTC.
        ("Europe/Berlin", "2026-03-28T21:00", "02:30", "2026-03-29T01:00"),
        ("Europe/Berlin", "2026-03-28T21:00", "02:00", "2026-03-29T01:00"),
        ("Europe/Berlin", "2026-03-28T21:00", "03:00", "2026-03-29T01:00"),
        # 02:30 comes twice, at 00:30 and 01:30 UTC; between the two the second one is the next.
        ("Europe/Berlin", "2026-10-24T20:00", "02:30", "2026-10-25T00:30"),
        ("Europe/Berlin", "2026-10-25T00:45", "02:30", "2026-10-25T01:30"),
        ("Europe/Berlin", "2026-10-25T00:15", "02:00", "2026-10-25T01:00"),
        # The gap begins at midnight, and half an hour is left out.
        ("America/Sao_Paulo", "2018-11-03T20:00", "00:30", "2018-11-04T03:00"),
        ("Australia/Lord_Howe", "2026-10-03T10:00", "02:15", "2026-10-03T15:30"),
    ],
)
def test_it_is_the_next_such_time_of_the_zone(zone, now, text, then):
    def seconds(utc):
        return datetime.fromisoformat(utc).replace(tzinfo=UTC).timestamp()

    def local(at):
        return datetime.fromtimestamp(at, ZoneInfo(zone)).timetuple()

    found = next_time(text, seconds(now), local)
    assert datetime.fromtimestamp(found, UTC).isoformat()[:16] == then


@pytest.mark.parametrize("text", ["", "6", "24:00", "06:60", "6:5", "06:00:00", "6 am", "-1:00", "０6:00"])
def test_what_is_no_time_of_day_is_refused(text):
    with pytest.raises(Refusal, match="--finish-by: a time of day such as 06:00, not "):
        time_from(text)


def test_a_time_may_have_one_digit():
    assert (time_from("6:05"), time_from("23:59"), time_from(None)) == ("06:05", "23:59", None)


@pytest.mark.parametrize(
    ("is_guest", "ends", "is_kept", "said"),
    [
        (True, None, False, "guest"),
        (True, (500, 900), True, "guest · finishes by 06:00"),
        (False, None, False, "as usual"),
        (False, (900, 1000), True, "as usual · finishes by 06:00"),
        (False, (900, 1100), False, "as usual"),
        (False, (1400, 3600), False, "as usual · will be late by 0:25:00"),
    ],
)
def test_the_line_says_the_manner_and_what_is_known_of_the_end(is_guest, ends, is_kept, said):
    pace = Pace(1000.0)
    pace.is_guest, pace.ends, pace.is_kept = is_guest, ends and Interval(*ends), is_kept
    assert manner_in_words(pace, "06:00") == said
    assert manner_in_words(None, None) == ""


def test_bar_and_line_have_the_manner_behind_the_time_that_is_left():
    now = [0.0]
    meter = Meter(60.0, clock=lambda: now[0])
    now[0] = 60.0
    told = meter.describe(Snapshot(600, 0, 8, 64, 0, 0, manner="guest · finishes by 06:00"), 1200)
    assert told == "50% 600/1,200 rows · 10 rows/s · ETA 0:01:00 · guest · finishes by 06:00 · 8/64 in flight"


ROWS = 120
WORDS = re.compile(r"--finish-by 06:00: that time, (\d{4}-\d\d-\d\d \d\d:\d\d), has passed; the job goes as usual")


@pytest.fixture
def ask(cli_map, tmp_path, out, monkeypatch):
    """Run the command; ``next``: how many seconds from now the next such time is, which it may not ask where that is
    ``None``. Returns its status and the time that has passed."""
    source = write_rows(tmp_path / "in.jsonl", rows_of(ROWS))

    def run(*options, next, source=source, text="06:00"):
        def next_time(text, now):
            assert next is not None, "the time is known"
            return now + next

        monkeypatch.setattr(_kept, "next_time", next_time)
        done = cli_map(source, "-o", out, "--max-tokens", 8, "--finish-by", text, *options)
        said = WORDS.findall(done.stderr)
        return done.exit_code, said[0] if said else None

    return run


STOPPED = ["--pilot", 60, "--fail-if", "truncated>1%"]


def test_the_time_is_fixed_when_the_job_began_and_kept_in_its_journal(ask, out, tmp_path):
    # A job that is not finished, of two hours ago; then the same command, as after a kill.
    status, then = ask(*STOPPED, next=-7200)
    assert (status, out.exists()) == (3, False) and then is not None
    assert ask(*STOPPED, next=None) == (3, then)
    assert ask(next=None) == (0, then)
    # It is finished. What is asked of it now is another job.
    more = write_rows(tmp_path / "more.jsonl", rows_of(ROWS + 1))
    assert ask(*STOPPED, next=7200, source=more) == (3, None)


def test_another_time_and_another_job_are_fixed_anew(ask):
    assert ask(*STOPPED, next=-60)[0] == 3
    assert ask(*STOPPED, next=7200, text="05:00") == (3, None)
    assert ask(*STOPPED, next=None, text="5:00") == (3, None)
    assert ask(next=7200, text="06:00") == (0, None)
    assert ask("--new", *STOPPED, next=-60)[0] == 3


def test_quiet_says_nothing_of_it(ask):
    assert ask("--quiet", next=-60) == (0, None)


def test_without_a_journal_it_is_the_next_such_time(cli_map, tmp_path, monkeypatch):
    source = write_rows(tmp_path / "in.jsonl", rows_of(ROWS))
    monkeypatch.setattr(_run, "next_time", lambda text, now: now - 60)
    done = cli_map(source, "-o", "/dev/null", "--finish-by", "06:00")
    assert done.exit_code == 0 and WORDS.search(done.stderr)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--concurrency", 8], "--finish-by finds how many rows may be in flight: leave --concurrency out"),
        (["--guest"], "--finish-by is a guest while that keeps the time: leave --guest out"),
        (["--finish-by", "noon"], "--finish-by: a time of day such as 06:00, not 'noon'"),
    ],
)
def test_what_leaves_nothing_to_decide_is_refused(cli_map, tmp_path, out, options, said):
    source = write_rows(tmp_path / "in.jsonl", rows_of(2))
    done = cli_map(source, "-o", out, "--finish-by", "06:00", *options)
    assert (done.exit_code, done.stderr) == (2, f"Error: {said}\n") and not out.exists()


def test_a_pipe_is_read_once(cli_map, tmp_path, out):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    writer = os.open(pipe, os.O_RDWR)
    os.write(writer, b'{"text": "a"}\n')
    done = cli_map(pipe, "-o", out, "--finish-by", "06:00")
    os.close(writer)
    said = "--finish-by reads all rows beforehand, and a pipe is read once: put them into a file"
    assert (done.exit_code, done.stderr) == (2, f"Error: {said}\n")
