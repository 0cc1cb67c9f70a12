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

pytest.importorskip("prometheus_client", reason="prometheus_client is not installed here: make setup")

from rich.console import Console
from tests.fakes.pages import serving

from batchclient import BatchClientError
from batchclient._core.statistics import EndpointStatistics, LaneStatistics
from batchclient._metrics.job import JobNumbers
from batchclient._metrics.page import page_of
from batchclient._metrics.snapshots import Snapshot
from batchclient.cli._top_view import Page, frame_of
from batchclient.integrations.prometheus import serve
from batchclient.testing import MockLLM

LONGEST_S = 60.0


def endpoint(name, **fields):
    given = {"limit": 64, "limit_reason": "", "in_flight": 0, "abandoned": 0, "batch_size_cap": 32}
    given |= {"lists_refused": False, "streams_refused": False, "blocked_until": None, "id": 0}
    return EndpointStatistics(**given | {"base_url": f"http://{name}/v1", "state": "healthy", "reason": ""} | fields)


def page(at, job=None, **fields):
    """A page read at a time; its numbers are half a second older."""
    made = replace(MockLLM().client().statistics(), **fields)
    return Page(json.loads(page_of(Snapshot(made, 100.0, "balanced", 0.5, 0.02, job))), at)


def drawn(width, *pages):
    console = Console(width=width, color_system=None, record=True, file=StringIO())
    console.print(frame_of(pages[-1], pages[0] if len(pages) > 1 else None, "127.0.0.1:9400", width))
    lines = console.export_text().rstrip("\n").split("\n")
    assert max(map(len, lines)) <= width
    return [line.rstrip() for line in lines]


def busy(at=10.0, **fields):
    servers = (
        endpoint("one:8000", in_flight=48, server="vllm 0.32.0"),
        endpoint("a-server-with-a-very-long-name.example.org:8000", limit=8, state="ejected", silent_since=3.0),
    )
    classes = {1: LaneStatistics(queued=2, oldest_since=98.5), 0: LaneStatistics(in_flight=48)}
    given = {"endpoints": servers, "priorities": classes, "queued": 2, "in_flight": 48, "succeeded": 1234}
    return page(at, JobNumbers(1200, 4, 30, 5000, None), **given | {"errors": {"ServerFault": 4}} | fields)


def test_a_frame_of_80_columns():
    lines = drawn(80, busy())
    assert lines[:4] == [
        "127.0.0.1:9400 · 0.5 s old · loop lag 0.02 s",
        "48/72 in flight · 2 queued · 0 waiting · 0 backing off · 1,234 succeeded",
        "0 failed · 0 cancelled · 0 retries",
        "job 1,234/5,000 rows · 4 failed · 30 reused",
    ]
    [header, one, long] = [line.split() for line in lines[5:8]]
    assert header == ["server", "in", "flight", "state", "batch", "is"]
    assert one == ["one:8000/v1", "48/64", "healthy", "32", "vllm", "0.32.0"]
    assert long[0].startswith("a-server-with-a-very-long-name") and long[1:] == ["0/8", "silent", "32"]
    assert [line.split() for line in lines[9:12]] == [
        ["priority", "queued", "oldest", "in", "flight"], ["1", "2", "1.5", "s", "0"], ["0", "0", "48"],
    ]  # fmt: skip
    assert lines[-2:] == ["requests by prompts · none", "errors · ServerFault: 4"]


def test_a_frame_of_40_columns_leaves_the_least_out():
    lines = drawn(40, busy())
    assert "server                 in flight state" in lines
    assert "one:8000/v1                48/64 healthy" in lines
    assert not [line for line in lines if "vllm" in line]
    assert "0 backing off · 1,234 succeeded" in lines, "a line is broken between two parts"


def test_a_rate_is_the_difference_of_two_pages():
    first = busy(at=10.0, completion_tokens=1_000, prompt_tokens=50)
    second = busy(at=14.0, succeeded=1634, completion_tokens=121_000, prompt_tokens=850)
    text = "\n".join(drawn(80, first, second))
    assert "100 calls/s" in text and "200 tokens/s in" in text and "30k tokens/s out" in text
    assert "/s" not in "\n".join(drawn(80, second)), "a single page has no rates"
    # A new event loop counts anew: there is no rate over its beginning.
    assert "calls/s" not in "\n".join(drawn(80, second, busy(at=18.0, succeeded=5)))


def test_control_characters_of_a_page_are_not_written():
    text = "\n".join(drawn(80, busy(endpoints=(endpoint("one\x1b[2J[red]"),), errors={"A\nB\x07": 1})))
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
        ((200, b"<html>"), "/statistics is no JSON"),
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
        ((200, b"[1]"), "is not what such a page has"),
        ((200, b'{"statistics": {}}'), "is not what such a page has"),
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


def test_where_nothing_answers_the_status_is_5(cli):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    done = cli("top", f"127.0.0.1:{port}")
    assert (done.exit_code, done.stdout) == (5, "")
    assert done.stderr.startswith(f"Error: 127.0.0.1:{port}: nothing answers: ")


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n"])
def test_a_page_of_a_byte_now_and_then_holds_nobody(cli, monkeypatch, head):
    monkeypatch.setattr("batchclient.cli.top.PATIENCE_S", 0.15)
    over = Event()

    def trickle(listener):
        connection, _ = listener.accept()
        with connection, suppress(OSError):
            connection.sendall(head)
            while not over.wait(0.02):
                connection.sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = Thread(target=trickle, args=(listener,))
        thread.start()
        done = cli("top", f"127.0.0.1:{listener.getsockname()[1]}")
        over.set()
        thread.join()
    assert done.exit_code == 5 and "/statistics did not come within 0.15 s" in done.stderr


@pytest.mark.parametrize(
    "url", ["", "secret", "ftp://x", "http://", "http://x:port", "http://[::1", "file:///etc/passwd"]
)
def test_what_is_no_url_is_refused(cli, url):
    done = cli("top", url)
    assert done.exit_code == 2 and "Error: URL is a URL" in done.stderr


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
