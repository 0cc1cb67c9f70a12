"""``batchclient top``: the numbers of ``/statistics`` in a terminal, and its ends."""

import asyncio
import json
import os
import pty
import select
import signal
import socket
import sys
import time
from contextlib import suppress
from dataclasses import replace
from io import StringIO
from threading import Event, Thread

import pytest

from rich.console import Console
from tests.cli.conftest import free_port
from tests.fakes.pages import serving

from batchclient import BatchClientError
from batchclient._metrics.page import page_of
from batchclient._metrics.snapshots import Snapshot
from batchclient._metrics.worker import WorkerNumbers
from batchclient.cli._top_view import Page, frame_of
from batchclient.integrations.prometheus import serve
from batchclient.testing import MockLLM

LONGEST_S = 60.0


def page(at, **fields):
    """A page read at a time; its numbers are half a second older."""
    made = replace(MockLLM().client().statistics(), **fields)
    return Page(json.loads(page_of(Snapshot(made, 100.0, "balanced", 0.5, 0.02, None))), at)


def drawn(width, *pages):
    console = Console(width=width, color_system=None, record=True, file=StringIO())
    console.print(frame_of(pages[-1], pages[0] if len(pages) > 1 else None, "127.0.0.1:9400", width))
    text = console.export_text()
    assert max(map(len, text.split("\n"))) <= width
    return text


@pytest.mark.parametrize("width", [80, 40])
def test_a_rate_is_the_difference_of_two_pages(width):
    first = page(10.0, succeeded=1234, completion_tokens=1_000, prompt_tokens=50)
    second = page(
        14.0,
        health={"ok": 1600, "truncated": 34, "empty": 0},
        succeeded=1634,
        completion_tokens=121_000,
        prompt_tokens=850,
        in_flight=7,
        queued=3,
    )
    text = drawn(width, first, second)
    assert "100 calls/s" in text and "200 tokens/s in" in text and "30k tokens/s out" in text
    assert "34 truncated" in text and "empty" not in text
    assert "7/256 in flight" in text and "3 queued" in text
    assert "/s" not in drawn(width, second), "a single page has no rates"
    # A new event loop counts anew: there is no rate over its beginning.
    assert "calls/s" not in drawn(width, second, page(18.0, succeeded=5))


def test_a_worker_is_shown():
    worker = WorkerNumbers({"results": 1234, "dead": 3, "left": 0}, pending=8, lag=40, renewals=5, durations={})
    made = page_of(Snapshot(MockLLM().client().statistics(), 100.0, "balanced", 0.5, 0.02, worker=worker))
    assert "worker 40 messages wait · 8 held · 1,234 results · 3 dead · 0 left" in drawn(
        80, Page(json.loads(made), 10.0)
    )


def test_control_characters_of_a_page_are_not_written():
    text = drawn(80, page(10.0, errors={"one\x1b[2J[red]": 2, "A\nB\x07": 1}))
    assert "\x1b" not in text and "\x07" not in text and "[red]" in text


# A running client ------------------------------------------------------------------------------------------------


def test_a_frame_has_what_the_statistics_say(cli, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    mock = MockLLM()
    mock.when("bad").fail(400, "no such thing")

    async def main():
        async with mock.client() as client:
            calls = [client.complete(f"p{number}", max_tokens=4) for number in range(70)]
            with suppress(BatchClientError):
                await client.complete("bad", max_tokens=1)
            await asyncio.gather(*calls)
            with serve(client, 0) as server:
                done = await asyncio.to_thread(cli, "top", server.url, "--once")
                return done, client.statistics()

    done, now = asyncio.run(main())
    assert done.exit_code == 0, done.stderr
    text = done.stdout
    limit = sum(each.limit for each in now.endpoints)
    assert f"{now.in_flight}/{limit} in flight · {now.queued} queued" in text
    assert f"{now.succeeded} succeeded · {now.failed} failed" in text and now.failed == 1
    assert "errors · BadRequest: 1" in text
    by_size = text.partition("requests by prompts · ")[2].splitlines()[0].split(" · ")
    assert sum(int(each.partition(": ")[2]) for each in by_size) == now.batches


@pytest.fixture
def other():
    """A server of another page, its ``reply``."""
    with serving(lambda asked: running.reply) as running:
        yield running


@pytest.mark.parametrize(
    "reply, words",
    [
        ((404, b""), "/statistics answers 404"),
        ((200, b"[" * 200_000), "/statistics is no JSON"),
        ((200, b"null"), "the client is closed"),
        (
            (
                200,
                b'{"statistics": {}, "client": null, "snapshot_age_seconds": 1%s, "event_loop_lag_seconds": 0}'
                % (b"0" * 400),
            ),
            "is not what such a page has",
        ),
    ],
)
def test_a_page_of_another_kind_is_named(cli, other, reply, words):
    other.reply = reply
    done = cli("top", f"http://user:secret@127.0.0.1:{other.port}/?key=secret", "--once")
    assert done.exit_code == 5
    assert done.stderr.startswith(f"Error: 127.0.0.1:{other.port}: ") and words in done.stderr
    assert "secret" not in done.stderr
    # As curl does.
    (asked,) = other.asked
    assert (asked.path, asked.headers["Authorization"]) == ("/statistics?key=secret", "Basic dXNlcjpzZWNyZXQ=")


def test_a_page_of_a_byte_now_and_then_holds_nobody(cli, monkeypatch):
    monkeypatch.setattr("batchclient.cli.top.WAIT_S", 0.15)
    over = Event()

    def trickle(listener):
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n")
            while not over.wait(0.02):
                connection.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = Thread(target=trickle, args=(listener,))
        thread.start()
        done = cli("top", f"127.0.0.1:{listener.getsockname()[1]}")
        over.set()
        thread.join()
    assert done.exit_code == 5 and "/statistics did not come within 0.15 s" in done.stderr


def test_what_is_no_url_is_refused_and_where_nothing_answers_the_status_is_5(cli):
    for url in ("", "secret", "http://x:port", "http://[::1", "file:///etc/passwd"):
        done = cli("top", url)
        assert done.exit_code == 2 and "Error: URL is a URL" in done.stderr
    port = free_port()
    done = cli("top", f"127.0.0.1:{port}")
    assert (done.exit_code, done.stdout) == (5, "")
    assert done.stderr.startswith(f"Error: 127.0.0.1:{port}: nothing answers: ")


@pytest.mark.parametrize("end", ["ctrl-c", "the page goes"])
def test_it_ends_quietly_and_gives_the_cursor_back(end):
    client = MockLLM().client()
    server = serve(client, 0)
    process, terminal = pty.fork()
    if process == 0:
        os.execvpe(
            sys.executable, [sys.executable, "-m", "batchclient", "top", server.url], {**os.environ, "TERM": "xterm"}
        )
    told, until, is_sent = b"", time.monotonic() + LONGEST_S, False
    while time.monotonic() < until:
        if select.select([terminal], [], [], 0.1)[0]:
            try:
                told += os.read(terminal, 65536)
            except OSError:
                break
        # Two frames at least.
        if told.count(b"requests by prompts") >= 2 and not is_sent:
            is_sent = True
            os.kill(process, signal.SIGINT) if end == "ctrl-c" else server.close()
    os.close(terminal)
    status = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
    server.close()
    assert status == (130 if end == "ctrl-c" else 0), told.decode()
    assert b"Traceback" not in told and b"Aborted" not in told
    assert told.rindex(b"\x1b[?25h") > told.rindex(b"\x1b[?25l")
    assert (b"has gone" in told) == (end != "ctrl-c")
