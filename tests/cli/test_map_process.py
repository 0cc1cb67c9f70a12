"""``batchclient map`` as a process: pipes, signals, terminals. Each step waits for the one before."""

import contextlib
import json
import gzip
import os
import pty
import re
import signal
import socket
import subprocess
import time

import pytest

from batchclient.simulator import EmbeddedServer, expected_text

from .conftest import COMMAND, free_port, read_rows, rows_of, wait_for, write_rows


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


def test_a_refused_key_is_an_answer(cli, tmp_path):
    source = write_rows(tmp_path / "in.jsonl", rows_of(3))
    with EmbeddedServer("instant", api_key="k") as server:
        options = ["--base-url", server.base_url, "--prompt", "{text}", "--wait-for-server", "60"]
        assert cli("map", source, "-o", tmp_path / "out", *options).exit_code == 2


def test_the_patience_for_outages_does_not_end_the_wait_for_a_server(cli, tmp_path):
    source = write_rows(tmp_path / "in.jsonl", rows_of(3))
    options = ["--base-url", "http://127.0.0.1:1/v1", "--model", "m", "--prompt", "{text}"]
    options += ["--wait-for-server", "0.8", "--outage-patience", "0.1"]
    done = cli("map", source, "-o", tmp_path / "out.jsonl", *options)
    assert done.exit_code == 5 and "Error: no server answered in 0.8" in done.stderr
