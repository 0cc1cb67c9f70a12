"""``batchclient map`` as a process: pipes, signals, terminals, disks, its words. Each step waits for the one before."""

import gzip
import json
import os
import pty
import re
import resource
import signal
import subprocess
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from batchclient import BatchClient
from batchclient.cli import _run as run_module
from batchclient.cli._progress import JobProgress
from batchclient.simulator import EmbeddedServer, expected_text

from .conftest import COMMAND, free_port, has_rows, read_rows, rows_of, wait_for, write_rows

# Pipes ---------------------------------------------------------------------------------------------------------------


def test_what_comes_through_a_pipe_goes_through_one(spawn):
    jsonl = b'\xef\xbb\xbf\n{"id": "a", "text": "x"}\r\n{"id": "b", "text": "y \xe2\x80\xa8 z"}'
    inputs = {
        "jsonl": jsonl,
        "gzip": gzip.compress(jsonl[:40]) + gzip.compress(jsonl[40:]),
        "text": "x\ny \u2028 z\n".encode(),
    }
    started = {form: spawn("-", stdin=subprocess.PIPE) for form in inputs}
    for form, process in started.items():
        stdout, stderr = process.communicate(inputs[form])
        assert process.returncode == 0, stderr
        rows = read_rows(stdout)
        assert [row["text"] for row in rows] == ["x", "y \u2028 z"]
        assert rows[0]["completion"] == expected_text("Say x", max_tokens=3, temperature=0)


STEPS = {
    "jsonl": [(b'{"text": "a"}\n', ["a"]), (b'{"text": "b', []), (b'"}\n', ["b"])],
    "csv": [(b'text\n"a\nb"\n', ["a\nb"]), (b'"x\n', []), (b'y"\nz\n', ["x\ny", "z"])],
}
"""What is written, and the texts whose answers come then."""


@pytest.mark.parametrize("form", STEPS)
def test_answers_do_not_wait_for_the_end_of_the_input(spawn, form):
    process = spawn("-", "--format", form, stdin=subprocess.PIPE)
    for piece, texts in STEPS[form]:
        process.stdin.write(piece)
        process.stdin.flush()
        for text in texts:
            assert [row["text"] for row in read_rows(process.stdout.readline())] == [text]
    process.stdin.close()
    assert process.wait() == 0


def test_stdout_that_is_the_input_is_refused(spawn, tmp_path, server):
    source = write_rows(tmp_path / "in.jsonl", rows_of(3))
    with source.open("ab") as stdout:
        process = spawn(source, stdout=stdout)
        _, stderr = process.communicate()
    assert process.returncode == 2
    assert b"same file" in stderr
    assert len(read_rows(source)) == 3
    assert server.requests == 0


def test_the_first_rows_of_a_pipe_that_goes_on_end_it(spawn):
    process = spawn("-", "--first", "2", stdin=subprocess.PIPE)
    process.stdin.write(b'{"id": 0, "text": "x"}\n{"id": 1, "text": "y"}\n{"id": 2, "text": "z"}\n')
    process.stdin.flush()
    # The pipe stays open, and a further read would wait for ever.
    assert process.wait(60) == 0
    assert [row["id"] for row in read_rows(process.stdout.read())] == [0, 1]


def test_a_reader_that_goes_away_ends_it_quietly(spawn, tmp_path):
    source = write_rows(tmp_path / "in.jsonl", [{"text": "x" * 1000, "id": number} for number in range(5000)])
    process = spawn(source)
    process.stdout.readline()
    process.stdout.close()
    assert process.wait() == 1
    assert process.stderr.read() == b""


# Ctrl-C --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "order"), [(signal.SIGINT, []), (signal.SIGTERM, ["--unordered"])])
def test_ctrl_c_keeps_what_is_finished(spawn, server, tmp_path, order, number):
    """One of the first two rows never gets an answer; in input order all later ones wait behind it."""
    server.set_faults("stall,count=1")
    out = tmp_path / "out.jsonl"
    process = spawn(
        write_rows(tmp_path / "in.jsonl", rows_of(10)), "-o", out, "--max-batch-size", 1, "--concurrency", 2, *order
    )
    # Two permits, one of them held for ever: the tenth request is sent when eight rows have their answers.
    wait_for(lambda: server.requests >= 10)
    process.send_signal(number)
    _, stderr = process.communicate()
    assert process.returncode == 128 + number
    written = [row["id"] for row in read_rows(out.with_name("out.jsonl.part"))]
    missing = set(range(10)) - set(written)
    assert len(written) in (8, 9)
    assert len(missing) == 10 - len(written)
    assert missing & {0, 1}
    if not order:
        assert written == sorted(written)
    summary, of_journal = stderr.decode().splitlines()
    assert summary.startswith(f"Interrupted: {len(written)} rows to ")
    assert of_journal.endswith(" has the answers: the same command goes on with them")


def test_a_second_ctrl_c_quits_at_once(spawn, server, tmp_path):
    """The process takes long to end in good order: the reader of its output is slow."""
    reading, writing = os.pipe()
    server.set_faults("stall,count=1")
    source = write_rows(tmp_path / "in.jsonl", [{"text": "x" * 4000, "id": number} for number in range(100)])
    process = spawn(source, "--max-batch-size", 1, "--concurrency", 2, stdout=writing)
    os.close(writing)
    wait_for(lambda: server.requests >= 100)
    # Some 400 kB of finished rows go into a pipe of 64 kB.
    process.send_signal(signal.SIGINT)
    got = turns = 0
    while chunk := os.read(reading, 16_384):
        got, turns = got + len(chunk), turns + 1
        if turns == 4:
            process.send_signal(signal.SIGINT)
        time.sleep(0.05)
    assert process.wait(10) == 130
    assert 100_000 < got < 250_000
    os.close(reading)


def test_ctrl_c_while_the_input_is_silent(spawn):
    process = spawn("-", stdin=subprocess.PIPE)
    process.stdin.write(b'{"id": 0, "text": "x"}\n')
    process.stdin.flush()
    assert read_rows(process.stdout.readline())
    # The next read waits in a thread that will never end by itself.
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    assert process.stderr.read().startswith(b"Interrupted: 1 row to stdout")


def test_ctrl_c_ends_the_question_for_the_model(models, tmp_path):
    models.holds, out = True, tmp_path / "out.jsonl"
    source = write_rows(tmp_path / "in.jsonl", [{"text": "x"}])
    command = [*COMMAND, "map", str(source), "-o", str(out), "--base-url", models.url, "--prompt", "{text}"]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as job:
        assert models.was_asked.wait(30)
        assert job.stderr.readline().startswith(b"waiting for the server")
        job.send_signal(signal.SIGINT)
        said = job.stderr.read().decode()
        assert job.wait(30) == 130
    assert said.startswith("Interrupted: 0 rows")
    assert "Traceback" not in said
    assert not out.exists()


# Terminals -----------------------------------------------------------------------------------------------------------


def on_terminal(spawn, *args, status=0, **options):
    """Run with a terminal as stderr; return what it showed."""
    leader, follower = pty.openpty()
    process = spawn(*args, stderr=follower, **options)
    os.close(follower)
    shown = b""
    while True:
        try:
            chunk = os.read(leader, 4096)
        except OSError:  # how Linux says that the other end is closed
            break
        if not chunk:
            break
        shown += chunk
    os.close(leader)
    assert process.wait() == status
    return shown.decode()


def test_progress_on_a_terminal(spawn, tmp_path):
    source = write_rows(tmp_path / "in.jsonl", rows_of(30))
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    shown = on_terminal(spawn, source, "-o", tmp_path / "out.jsonl", "--first", 20, env=environment)
    for part in ("20/20", "100%", "rows/s", "in flight", "\x1b["):
        assert part in shown
    assert "20 rows to " in shown


def test_the_cursor_comes_back_after_every_end(spawn, tmp_path):
    source, terminal = write_rows(tmp_path / "in.jsonl", rows_of(3)), {**os.environ, "TERM": "xterm"}
    refused = on_terminal(spawn, source, "-o", tmp_path / "missing" / "out", env=terminal, status=2)
    failed = on_terminal(spawn, source, "-o", tmp_path / "out", "--model", "nosuch", env=terminal, status=1)
    done = on_terminal(spawn, source, "-o", tmp_path / "out.jsonl", env=terminal)
    for shown in (refused, failed, done):
        assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") <= 1
    assert "\x1b[?25l" in done and "Error: " in failed


# A server that is not there yet --------------------------------------------------------------------------------------


@pytest.mark.parametrize(("count", "model"), [(1, []), (2, ["--model", "m"]), (2, [])])
def test_a_job_may_begin_before_its_servers(tmp_path, count, model):
    """Of two servers the second never comes. No row is used up, and none is lost."""
    source, out, port = write_rows(tmp_path / "in.jsonl", rows_of(300)), tmp_path / "out.jsonl", free_port()
    urls = [f"--base-url=http://127.0.0.1:{each}/v1" for each in (port, 1)[:count]]
    command = [*COMMAND, "map", source, "-o", out, *urls, *model, "--prompt", "{text}", "--log-format", "json"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    told = json.loads(process.stderr.readline())
    assert (told["event"], told["level"]) == ("server_awaited", "WARNING") and "127.0.0.1" in told["endpoint"]
    assert told["message"].endswith("; calls wait 600 s at most"), "without a terminal"
    assert process.poll() is None
    with EmbeddedServer("instant", model="m", port=port):
        _, stderr = process.communicate(timeout=60)
    summary = json.loads(stderr.splitlines()[-1])
    assert (process.returncode, summary["rows"], summary["failed"]) == (0, 300, 0), stderr
    assert "sent again" not in summary["message"]
    assert [row["id"] for row in read_rows(out)] == list(range(300))


@pytest.mark.parametrize("model", [["--model", "m"], []])
def test_a_server_that_does_not_come_ends_it_with_a_status_of_its_own(cli, tmp_path, model):
    source = write_rows(tmp_path / "in.jsonl", rows_of(3))
    urls = [f"--base-url=http://127.0.0.1:{port}/v1" for port in (1, 2)]
    options = [*urls, *model, "--prompt", "{text}", "--wait-for-server", "0.3"]
    done = cli("map", source, "-o", tmp_path / "out.jsonl", *options)
    assert done.exit_code == 5
    assert re.match(
        r"Error: no server answered in 0\.3.* s: http://127.0.0.1:1/v1 \(.*, http://127.0.0.1:2/v1 \(",
        done.stderr.splitlines()[-1],
    )
    assert os.listdir(tmp_path) == ["in.jsonl"]


def test_the_patience_for_outages_does_not_end_the_wait_for_a_server(cli, tmp_path):
    source = write_rows(tmp_path / "in.jsonl", rows_of(3))
    options = ["--base-url", "http://127.0.0.1:1/v1", "--model", "m", "--prompt", "{text}"]
    options += ["--wait-for-server", "0.8", "--outage-patience", "0.1"]
    done = cli("map", source, "-o", tmp_path / "out.jsonl", *options)
    assert done.exit_code == 5 and "Error: no server answered in 0.8" in done.stderr


def test_a_dry_run_may_begin_before_its_server(tmp_path):
    source, port = write_rows(tmp_path / "in.jsonl", rows_of(3)), free_port()
    command = [*COMMAND, "map", source, f"--base-url=http://127.0.0.1:{port}/v1", "--prompt", "{text}", "--dry-run"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert b"has not answered yet" in process.stderr.readline()
    with EmbeddedServer("instant", model="m", port=port):
        stdout, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and b"counted by the server" in stdout


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
    """A reader that never reads: the pipe, a write and the look-ahead are full. Ctrl-C ends it, also with rows for two writes."""

    class Near(BatchClient):
        def stream_map(self, *args, **options):
            return super().stream_map(*args, look_ahead=512, **options)

    monkeypatch.setattr(run_module, "BatchClient", Near)
    os.mkfifo(tmp_path / "pipe")
    reading = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    requests, ended, late = [], threading.Event(), []

    def interrupt():
        before = -1
        while before != (before := server.requests) or not before:
            time.sleep(0.15)
        requests.append(before)
        os.kill(os.getpid(), signal.SIGINT)
        while not ended.wait(0.01 if late else 20):
            late.append(os.read(reading, 1 << 20))

    thread = threading.Thread(target=interrupt)
    thread.start()
    source = write_rows(tmp_path / "in.jsonl", rows_of(1500, "x" * 1000))
    result = cli_map(source, "-o", tmp_path / "pipe", "--max-batch-size", 8)
    ended.set()
    thread.join()
    os.close(reading)
    assert (result.exit_code, late) == (130, [])
    assert requests[0] * 8 < 1200


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
    cli_map, hang_up, server, tmp_path, out, part, ignored, status, rows
):
    server.set_faults("stall,count=1")
    hang_up(lambda: has_rows(part, 3), ignored=ignored)
    options = ["--unordered", "--max-batch-size", 1, "--concurrency", 2, "--timeout", 0.8 if ignored else 30]
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


def test_an_outage_is_told_and_outlasts_no_patience(spawn, server, out, part):
    process = spawn("-", "-o", out, "--outage-patience", 0.6, stdin=subprocess.PIPE)
    process.stdin.write(b'{"id": 0, "text": "x"}\n')
    process.stdin.flush()
    wait_for(lambda: has_rows(part, 1))
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
    options = ["--timeout", 0.9, "--max-batch-size", 1, "--unordered"]
    *lines, summary, error, _ = cli_map(source, "-o", out, *options).stderr.splitlines()
    # Rows may be written a line later than their tokens came.
    told = r"\d+% \d/5 rows · [\d.]+ rows/s (· ETA \d:\d\d:\d\d )?· tokens/s \d+ in \d+ out · \d/\d+ in flight"
    assert any(re.fullmatch(told, line) for line in lines), lines
    assert any(re.match(r"80% 4/5 rows · .* · 1/\d+ in flight", line) for line in lines), lines
    assert re.match(
        r"5 rows to .* in [\d.]+ s, \d+ rows/s, requests sent: 5, tokens: \d+ in, \d+ out; failed: 1", summary
    )
    assert re.match(r"  1 DeadlineExceeded, such as line \d: ", error)
