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

from .conftest import COMMAND, read_rows, write_rows


def rows_of(count):
    return [{"id": number, "text": f"text {number}"} for number in range(count)]


def wait_for_requests(server, count):
    """Until the server has seen so many requests. A look is a request of its own, so there are few a second."""
    until = time.monotonic() + 60
    while server.requests < count:
        assert time.monotonic() < until, f"the server saw {server.requests} requests, not {count}"
        time.sleep(0.02)


# Pipes ---------------------------------------------------------------------------------------------------------------


def test_from_stdin_to_stdout(spawn):
    data = b'\xef\xbb\xbf\n{"id": "a", "text": "x"}\r\n{"id": "b", "text": "y"}'
    process = spawn("-", stdin=subprocess.PIPE)
    stdout, stderr = process.communicate(data)
    assert process.returncode == 0, stderr
    assert [row["id"] for row in read_rows(stdout)] == ["a", "b"]
    assert read_rows(stdout)[0]["completion"] == expected_text("Say x", max_tokens=3, temperature=0)


def test_text_from_stdin(spawn):
    process = spawn("-", prompt="Say {}", stdin=subprocess.PIPE)
    stdout, _ = process.communicate("eins\nzwei \u2028 drei\n".encode())
    assert process.returncode == 0
    assert [row["text"] for row in read_rows(stdout)] == ["eins", "zwei \u2028 drei"]


def test_a_regular_file_as_stdin_and_stdout(spawn, tmp_path):
    source, out = write_rows(tmp_path / "in", rows_of(3)), tmp_path / "out"
    with source.open("rb") as stdin, out.open("wb") as stdout:
        process = spawn("-", "-o", "-", stdin=stdin, stdout=stdout)
        assert process.wait() == 0
    assert [row["id"] for row in read_rows(out)] == [0, 1, 2]


def test_stdout_that_is_the_input_is_refused(spawn, tmp_path, server):
    source = write_rows(tmp_path / "in.jsonl", rows_of(3))
    with source.open("ab") as stdout:
        process = spawn(source, stdout=stdout)
        _, stderr = process.communicate()
    assert process.returncode == 2
    assert b"same file" in stderr
    assert len(read_rows(source)) == 3
    assert server.requests == 0


def test_a_pipe_without_an_ending_is_an_input(spawn):
    reading, writing = os.pipe()
    process = spawn(f"/dev/fd/{reading}", pass_fds=[reading])
    os.close(reading)
    with open(writing, "wb") as pipe:
        pipe.write(b'{"id": 1, "text": "x"}\n')
    stdout, stderr = process.communicate()
    assert process.returncode == 0, stderr
    assert [row["id"] for row in read_rows(stdout)] == [1]


def test_answers_do_not_wait_for_the_end_of_the_input(spawn):
    process = spawn("-", stdin=subprocess.PIPE)
    for number in range(3):
        # The next line is written only when the answer to this one was read.
        process.stdin.write(b'{"id": %d, "text": "x"}\n' % number)
        process.stdin.flush()
        [row] = read_rows(process.stdout.readline())
        assert row["id"] == number
    process.stdin.close()
    assert process.wait() == 0


def test_answers_to_csv_do_not_wait_for_the_end_of_the_input(spawn):
    process = spawn("-", "--format", "csv", stdin=subprocess.PIPE)
    for piece in (b'id,text\n0,"a\nb"\n', b'1,"x\n', b'y"\n2,z\n'):
        process.stdin.write(piece)
        process.stdin.flush()
        if piece.startswith(b"1"):
            continue
        [row] = read_rows(process.stdout.readline())
        assert (row["id"], row["text"]) in [("0", "a\nb"), ("1", "x\ny")]
    assert read_rows(process.stdout.readline())[0]["text"] == "z"
    process.stdin.close()
    assert process.wait() == 0


def test_a_packed_pipe_is_unpacked(spawn):
    process = spawn("-", stdin=subprocess.PIPE)
    stdout, stderr = process.communicate(
        gzip.compress(b'{"id": 1, "text": "x"}\n') + gzip.compress(b'{"id": 2, "text": "y"}')
    )
    assert process.returncode == 0, stderr
    assert [row["id"] for row in read_rows(stdout)] == [1, 2]


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


def test_stdin_may_be_refused_too(spawn, server):
    process = spawn("-", stdin=subprocess.PIPE)
    stdout, stderr = process.communicate(b'{"txt": "x"}\n')
    assert (process.returncode, stdout) == (2, b"")
    assert b"stdin, line 1" in stderr
    assert server.requests == 0


def test_a_full_disk_is_named(spawn, tmp_path):
    if not os.path.exists("/dev/full"):
        pytest.skip("there is no /dev/full here")
    process = spawn(write_rows(tmp_path / "in.jsonl", rows_of(3)), "-o", "/dev/full")
    _, stderr = process.communicate()
    assert process.returncode == 4
    assert b"Error: /dev/full: the output cannot be written: No space left on device" in stderr


# Ctrl-C --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("order", [[], ["--unordered"]])
def test_ctrl_c_keeps_what_is_finished(spawn, server, tmp_path, order, number):
    """One of the first two rows never gets an answer; in input order all later ones wait behind it."""
    server.set_faults("stall,count=1")
    out = tmp_path / "out.jsonl"
    process = spawn(
        write_rows(tmp_path / "in.jsonl", rows_of(10)), "-o", out, "--max-batch-size", 1, "--concurrency", 2, *order
    )
    # Two permits, one of them held for ever: the tenth request is sent when eight rows have their answers.
    wait_for_requests(server, 10)
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
    wait_for_requests(server, 100)
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


def test_ctrl_c_before_the_first_row(spawn):
    process = spawn("-", stdin=subprocess.PIPE, stderr=subprocess.PIPE)
    # It waits for its first line when the interpreter has imported everything, so a line that is refused is not sent.
    wait_until_it_reads(process)
    process.send_signal(signal.SIGINT)
    assert process.wait() == 130
    assert process.stderr.read() == b""


def wait_until_it_reads(process):
    """A pipe that is empty again has been read."""
    import array
    import fcntl
    import termios

    process.stdin.write(b"\n")
    process.stdin.flush()
    left = array.array("i", [1])
    while left[0]:
        fcntl.ioctl(process.stdin, termios.FIONREAD, left)


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
    shown = on_terminal(
        spawn, source, "-o", tmp_path / "out.jsonl", env={**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    )
    for part in ("30/30", "100%", "rows/s", "in flight", "\x1b["):
        assert part in shown
    assert "30 rows to " in shown


def test_the_cursor_comes_back_after_every_end(spawn, tmp_path):
    source, terminal = write_rows(tmp_path / "in.jsonl", rows_of(3)), {**os.environ, "TERM": "xterm"}
    refused = on_terminal(spawn, source, "-o", tmp_path / "missing" / "out", env=terminal, status=2)
    failed = on_terminal(spawn, source, "-o", tmp_path / "out", "--model", "nosuch", env=terminal, status=1)
    done = on_terminal(spawn, source, "-o", tmp_path / "out.jsonl", env=terminal)
    for shown in (refused, failed, done):
        assert shown.count("\x1b[?25l") == shown.count("\x1b[?25h") <= 1
    assert "\x1b[?25l" in done and "Error: " in failed


@pytest.mark.parametrize(("first", "total"), [("5", "5"), ("90", "30")])
def test_progress_of_the_first_rows_has_their_number(spawn, tmp_path, first, total):
    source = write_rows(tmp_path / "in.jsonl", rows_of(30))
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    shown = on_terminal(spawn, source, "-o", tmp_path / "out.jsonl", "--first", first, env=environment)
    assert f"{total}/{total}" in shown


def test_progress_from_a_pipe_has_no_total(spawn, tmp_path):
    source = write_rows(tmp_path / "in", rows_of(30))
    with subprocess.Popen(["cat", str(source)], stdout=subprocess.PIPE) as cat:
        environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
        shown = on_terminal(spawn, "-", "-o", tmp_path / "out", stdin=cat.stdout, env=environment)
    assert "30/?" in shown


def test_quiet_on_a_terminal(spawn, tmp_path):
    source = write_rows(tmp_path / "in.jsonl", rows_of(3))
    assert on_terminal(spawn, source, "-o", tmp_path / "out.jsonl", "--quiet") == ""


def test_no_progress_where_nobody_looks(spawn, tmp_path):
    process = spawn(write_rows(tmp_path / "in.jsonl", rows_of(30)), "-o", tmp_path / "out.jsonl")
    _, stderr = process.communicate()
    assert stderr.count(b"\n") == 1
    assert b"\x1b" not in stderr
    assert b"\r" not in stderr


def test_it_works_without_a_terminal_variable(tmp_path, server):
    source = write_rows(tmp_path / "in.jsonl", rows_of(3))
    command = [*COMMAND, "map", source, "--base-url", server.base_url, "--model", server.model, "--prompt", "{text}"]
    environment = {name: value for name, value in os.environ.items() if name != "TERM"}
    done = subprocess.run(command, capture_output=True, env=environment, stdin=subprocess.DEVNULL)
    assert done.returncode == 0, done.stderr


# A server that is not there yet --------------------------------------------------------------------------------------


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return taken.getsockname()[1]


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("model", [["--model", "m"], []])
def test_a_job_may_begin_before_its_servers(tmp_path, count, model):
    """Of two servers the second never comes. No row is used up, and none is lost."""
    source, out, port = write_rows(tmp_path / "in.jsonl", rows_of(300)), tmp_path / "out.jsonl", free_port()
    urls = [f"--base-url=http://127.0.0.1:{each}/v1" for each in (port, 1)[:count]]
    command = [
        *COMMAND,
        "map",
        str(source),
        "-o",
        str(out),
        *urls,
        *model,
        "--prompt",
        "{text}",
        "--log-format",
        "json",
    ]
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


def test_a_dry_run_may_begin_before_its_server(tmp_path):
    source, port = write_rows(tmp_path / "in.jsonl", rows_of(3)), free_port()
    command = [
        *COMMAND,
        "map",
        str(source),
        f"--base-url=http://127.0.0.1:{port}/v1",
        "--prompt",
        "{text}",
        "--dry-run",
    ]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL)
    assert b"has not answered yet" in process.stderr.readline()
    with EmbeddedServer("instant", model="m", port=port):
        stdout, _ = process.communicate(timeout=60)
    assert process.returncode == 0 and b"counted by the server" in stdout
