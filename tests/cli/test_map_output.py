"""``batchclient map``: its output, its ends and its words, as a process with real pipes and signals."""

import json
import os
import re
import resource
import signal
import subprocess
import threading
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest

from batchclient import BatchClient
from batchclient.cli import _run as run_module
from batchclient.cli._failures import Failures
from batchclient.cli._log import log_to_stderr
from batchclient.cli._progress import JobProgress, Meter, Snapshot
from batchclient.errors import BadRequest
from batchclient.jobs.statuses import Status, of_signal
from batchclient.types import MapResult

from .conftest import COMMAND, read_rows, write_rows


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out.jsonl"


def rows_of(count, text="text"):
    return [{"id": number, "text": f"{text} {number}"} for number in range(count)]


def wait_for(condition, seconds=30):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "it takes too long"
        time.sleep(0.01)


@pytest.fixture
def shell(server):
    """Run ``map`` below a line of shell, such as one that closes a stream."""

    def run(line, *args):
        command = [*COMMAND, "map", *map(str, args), "--base-url", server.base_url, "--model", server.model]
        command += ["--prompt", "{text}", "--max-tokens", "3"]
        return subprocess.run(["sh", "-c", line, "sh", *command], capture_output=True, stdin=subprocess.DEVNULL)

    return run


# Pipes that are read slowly, or never --------------------------------------------------------------------------------


def test_no_row_is_read_while_the_output_is_full(cli_map, tmp_path, monkeypatch, server):
    """A reader that never reads: the pipe, a write and the look-ahead are full, and Ctrl-C ends it."""

    class Near(BatchClient):
        def stream_map(self, *args, **options):
            return super().stream_map(*args, look_ahead=64, **options)

    monkeypatch.setattr(run_module, "BatchClient", Near)
    os.mkfifo(tmp_path / "pipe")
    reading = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    requests = []

    def interrupt():
        before = -1
        while before != (before := server.requests) or not before:
            time.sleep(0.15)
        requests.append(before)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    source = write_rows(tmp_path / "in.jsonl", rows_of(1000, "x" * 1000))
    result = cli_map(source, "-o", tmp_path / "pipe", "--max-batch-size", 8)
    thread.join()
    os.close(reading)
    assert result.exit_code == 130
    assert requests[0] * 8 < 800


def test_ctrl_c_ends_a_command_whose_pipe_nobody_reads(spawn, server, tmp_path):
    process = spawn(write_rows(tmp_path / "in.jsonl", rows_of(300, "x" * 500)))
    process.stdout.read(1)
    # Five requests of 64 rows: the answers are three times what the pipe holds.
    wait_for(lambda: server.requests >= 5)
    process.send_signal(signal.SIGINT)
    sent = time.monotonic()
    assert process.wait(10) == 130
    # It takes half a second; the rest is for a busy machine.
    assert time.monotonic() - sent < 3
    assert b"Interrupted: " in process.stderr.read()


def test_ctrl_c_ends_a_command_whose_named_pipe_nobody_opens(spawn, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    process = spawn("-", "-o", tmp_path / "pipe", stdin=subprocess.PIPE)
    process.stdin.write(b'{"text": "x"}\n')
    process.stdin.flush()
    # A thread waits for a reader from now on, or does so soon.
    wait_for(lambda: catches(process.pid, signal.SIGTERM))
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 143


def catches(pid, number):
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.search(r"SigCgt:\s*(\w+)", status)[1], 16) >> (number - 1) & 1


# Signals -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def hang_up():
    """Send SIGHUP to this process when a condition holds. ``ignored``: as below ``nohup``."""
    before = signal.getsignal(signal.SIGHUP)
    threads = []

    def start(condition, *, ignored):
        signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else lambda *_: None)

        def run():
            wait_for(condition)
            os.kill(os.getpid(), signal.SIGHUP)

        threads.append(threading.Thread(target=run))
        threads[-1].start()

    yield start
    for thread in threads:
        thread.join()
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(("ignored", "status", "rows"), [(False, 129, 3), (True, 1, 4)])
def test_a_hangup_keeps_what_is_finished_and_below_nohup_is_nothing(
    cli_map, hang_up, server, tmp_path, out, ignored, status, rows
):
    server.set_faults("stall,count=1")
    part = tmp_path / "out.jsonl.part"
    hang_up(lambda: part.exists() and part.read_bytes().count(b"\n") == 3, ignored=ignored)
    options = ["--unordered", "--max-batch-size", 1, "--concurrency", 2, "--timeout", 0.5]
    result = cli_map(write_rows(tmp_path / "in.jsonl", rows_of(4)), "-o", out, *options)
    assert (result.exit_code, len(read_rows(out if ignored else part))) == (status, rows)
    assert result.stderr.startswith(f"{'' if ignored else 'Interrupted: '}{rows} rows to ")


# Streams, names, disks -----------------------------------------------------------------------------------------------


def test_nothing_else_comes_into_an_output_where_streams_are_closed(shell, tmp_path, out):
    """The file might have had the number of a stream."""
    done = shell('exec "$@" <&- >&- 2>&-', write_rows(tmp_path / "in.jsonl", rows_of(2)), "-o", out)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    assert [row["id"] for row in read_rows(out)] == [0, 1]


def test_a_closed_stream_that_is_needed_is_named(shell, cli_map, monkeypatch, tmp_path, server, out):
    source = write_rows(tmp_path / "in.jsonl", rows_of(2))
    done = shell('exec "$@" >&-', source)
    assert (done.returncode, done.stderr) == (2, b"Error: stdout is closed; give -o OUT\n")
    monkeypatch.setattr(run_module, "CLOSED", {0})
    result = cli_map("-", "-o", out)
    assert (result.exit_code, result.stderr) == (2, "Error: stdin is closed; give a path as IN\n")
    assert server.requests == 0


def test_help_with_closed_streams_is_no_error():
    done = subprocess.run(["sh", "-c", 'exec "$@" >&- 2>&-', "sh", *COMMAND, "--help"], check=False)
    assert done.returncode == 0


@pytest.mark.parametrize("options", [["-o", "x" * 300], ["-o", "x" * 252], ["-o", "missing/out"]])
def test_a_name_that_cannot_be_is_refused_in_a_line(cli_map, tmp_path, server, monkeypatch, options):
    monkeypatch.chdir(tmp_path)
    result = cli_map(write_rows(tmp_path / "in.jsonl", rows_of(1)), *options)
    assert (result.exit_code, result.stderr.count("\n"), server.requests) == (2, 1, 0)
    assert result.stderr.startswith(f"Error: {options[1]}")


def test_a_full_disk_has_its_status_and_the_same_command_goes_on(cli_map, tmp_path, out):
    """A bound on the size of files stands for the disk."""
    source = write_rows(tmp_path / "in.jsonl", rows_of(500, "x" * 200))
    bounds = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, bounds[1]))
    try:
        done = cli_map(source, "-o", out, "--max-batch-size", 4)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, bounds)
    assert done.exit_code == 4, done.stderr
    assert "File too large" in done.stderr and not out.exists()
    assert cli_map(source, "-o", out, "--max-batch-size", 4).exit_code == 0
    assert len(read_rows(out)) == 500


# Words ---------------------------------------------------------------------------------------------------------------


def test_an_outage_is_told_and_outlasts_no_patience(spawn, server, out):
    process = spawn("-", "-o", out, "--outage-patience", 0.6, stdin=subprocess.PIPE)
    process.stdin.write(b'{"id": 0, "text": "x"}\n')
    process.stdin.flush()
    part = out.with_name("out.jsonl.part")
    wait_for(lambda: part.exists() and part.read_bytes())
    server.stop()
    process.stdin.write(b'{"id": 1, "text": "x"}\n')
    process.stdin.flush()
    outage = f"an outage of {server.base_url} has "
    began, gave_up, summary, way_on = [line.decode() for line in process.stderr]
    assert process.wait() == 5
    assert began.startswith(outage)
    assert gave_up.startswith(f"Error: gave up: {outage}lasted ")
    assert summary.startswith("1 row to ") and "the same command goes on" in way_on
    assert len(read_rows(part)) == 1


def test_without_a_terminal_there_is_a_line_a_minute(cli_map, tmp_path, out, server, monkeypatch):
    """The minute is a twentieth of a second here, and the line comes with the tick."""
    monkeypatch.setattr(run_module, "JobProgress", partial(JobProgress, every_s=0.05))
    server.set_faults("stall,count=1")
    source = write_rows(tmp_path / "in.jsonl", rows_of(5))
    options = ["--timeout", 0.4, "--max-batch-size", 1, "--unordered"]
    *lines, summary, error, _ = cli_map(source, "-o", out, *options).stderr.splitlines()
    told = r"80% 4/5 rows · [\d.]+ rows/s · ETA 0:00:0\d · tokens/s \d+ in \d+ out · 1/\d+ in flight"
    assert any(re.fullmatch(told, line) for line in lines), lines
    assert re.match(
        r"5 rows to .* in [\d.]+ s, \d+ rows/s, requests sent: 5, tokens: \d+ in, \d+ out; failed: 1", summary
    )
    assert re.match(r"  1 DeadlineExceeded, such as line \d: ", error)


def test_after_a_long_stop_one_line_is_due(monkeypatch, capsys):
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    lines = JobProgress(shown=True, draws=False, total=lambda: None)
    with log_to_stderr(""):
        for now[0] in (60, 3600, 3601, 3602):
            lines.update(Snapshot(1, 0, 0, 0, 0, 0))
    assert capsys.readouterr().err.count("\n") == 2


@pytest.mark.parametrize("value", ["0", "-1", "nan", "inf"])
def test_a_patience_is_a_number_of_seconds(cli_map, tmp_path, server, value):
    result = cli_map(write_rows(tmp_path / "in.jsonl", rows_of(1)), "--outage-patience", value)
    assert (result.exit_code, server.requests) == (2, 0)
    assert result.stderr.startswith("Error: --outage-patience: ")


def test_rates_are_those_of_the_window():
    now = [0.0]
    meter = Meter(60, clock=lambda: now[0])
    snapshot = Snapshot(0, 0, 3, 8, 0, 0)
    assert meter.describe(snapshot, None) == "0/? rows · 0 rows/s · 3/8 in flight"
    for second in range(1, 121):
        now[0] = second
        done = 10 * second if second <= 60 else 600 + (second - 60)
        text = meter.describe(Snapshot(done, 1, 3, 8, 100 * done, 5 * done), 1000)
    assert text == "66% 660/1,000 rows · 1 rows/s · ETA 0:05:40 · tokens/s 100 in 5 out · 1 failed · 3/8 in flight"


def failed(number, message):
    return MapResult(str(number), number, SimpleNamespace(where=f"line {number + 1}"), None, BadRequest(message))


def test_errors_that_differ_in_numbers_are_one_and_five_are_told():
    failures = Failures()
    for number in range(40):
        failures.add(failed(number, f"400: prompt of {number} tokens is too long"))
    for number in range(40, 47):
        failures.add(failed(number, f"400: {'abcdefghi'[number - 40]} is wrong"))
    first, *others, rest = failures.lines()
    assert first == "  40 BadRequest, such as line 1: 400: prompt of 0 tokens is too long"
    assert others[0] == "  1 BadRequest, such as line 41: 400: a is wrong"
    assert (len(others), rest) == (4, "  3 of other kinds")
    assert failures.total == 47


def test_errors_of_a_million_kinds_take_little_memory():
    failures = Failures()
    for number in range(1000):
        failures.add(failed(number, "error " + "".join(chr(97 + int(digit)) for digit in f"{number:03}")))
    assert failures.total == 1000
    assert failures.lines()[0].startswith("  744 BadRequest, such as line 257: ")


def test_the_table_of_the_docs_has_every_status(repository=os.path.join(os.path.dirname(__file__), "..", "..")):
    with open(os.path.join(repository, "docs", "reference", "map.md"), encoding="utf-8") as page:
        documented = {
            int(number) for number in re.findall(r"^\| (\d+) \|", page.read().partition("## Exit statuses")[2], re.M)
        }
    signals = {of_signal(number) for number in (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)}
    assert documented == {*map(int, Status)} | signals
    assert json.dumps(Status.OK) == "0"
