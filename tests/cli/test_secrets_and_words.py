"""What goes to whom: no program sends secrets elsewhere, none repeats them, and words of others steer no terminal."""

import asyncio
import json
import logging
import re
import socket
from contextlib import suppress

import openai
import pytest
from tests import command_line
from tests.cli.conftest import write_rows
from tests.fakes.pages import serving
from tests.shell.test_keys_in_wrong_places import KEY, URLS

from batchclient.bench.openai_process import openai_client
from batchclient.cli._log import log_to_stderr
from batchclient.cli._progress import JobProgress
from batchclient.cli._words import say
from batchclient.integrations.prometheus import serve
from batchclient.testing import MockLLM

ORDINARY = "日本 é שלום 👩‍💻 می‌خواهم"
FOREIGN = f"{ORDINARY}\x1b[2J\x07\x9b31m\r\nforged\x85\u2028forged\u202egnp\u2067\x7f\t."
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
SAID = "déjà\x1b[2J\x07\x9b31m\u202e"
"""A server's words, unlike the prompts: those are cut out of them."""


@pytest.fixture
def elsewhere(monkeypatch):
    """A server that sends every request to another host, and is the proxy of all."""

    def send_away(asked):
        return 307, b"", {"location": f"http://localhost:{running.port}{asked.path}"}

    with serving(send_away) as running:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
            monkeypatch.setenv(name, f"http://localhost:{running.port}")
        yield running


def was_asked(server):
    """The host that each request was for, and its path."""
    return [(asked.headers["host"].partition(":")[0], asked.path) for asked in server.asked]


def test_top_sends_its_user_to_no_other_host(cli, elsewhere):
    done = cli("top", f"http://user:secret@127.0.0.1:{elsewhere.port}", "--once")
    assert was_asked(elsewhere) == [("127.0.0.1", "/statistics")]
    assert done.exit_code == 5 and done.stderr.endswith("/statistics answers 307\n")


def test_the_rival_of_bench_and_demo_goes_nowhere_else(elsewhere):
    async def call():
        async with openai_client(f"http://127.0.0.1:{elsewhere.port}/v1", "secret", {"x-key": "secret"}) as client:
            with suppress(openai.OpenAIError):
                await client.completions.create(model="m", prompt="secret")

    asyncio.run(call())
    assert was_asked(elsewhere) == [("127.0.0.1", "/v1/completions")]


@pytest.mark.parametrize(
    "command",
    [
        "KEY", "bench KEY", "job KEY", "dead KEY", "metrics KEY",
        "map in.jsonl KEY", "map in.jsonl --header Authorization: Bearer KEY", "doctor http://x/v1 KEY", "work KEY",
        "top x KEY", "simulate KEY", "demo KEY", "dead list KEY", "enqueue in.jsonl KEY", "bench compare a.json KEY x",
        "map KEY -o out.jsonl --base-url http://x/v1 --model m --prompt {text}", "enqueue KEY", "job status KEY",
        "bench compare KEY KEY", "bench report KEY -o r.html", "doctor KEY", "top KEY",
        *(f"map in.jsonl -o out.jsonl --model m --prompt {{text}} --base-url {url}" for url in URLS[:20:5]),
    ],
)  # fmt: skip
def test_no_complaint_repeats_a_key_in_a_wrong_place(cli, tmp_path, monkeypatch, command):
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "in.jsonl", [{"id": "1", "text": "x"}])
    done = cli(*command.replace("KEY", KEY).split(), env={"REDIS_URL": "redis://127.0.0.1:1"})
    assert done.exit_code == 2 and "Error: " in done.stderr
    assert KEY not in done.output
    assert "--base-url" not in command.split()[-2:] or "--base-url" in done.output


@pytest.fixture
def foreign():
    """The URL of a server whose model has a foreign name, and which refuses every call with foreign words."""

    def answer(asked):
        if asked.method == "POST":
            return 400, {"error": {"message": SAID, "type": "BadRequestError"}}
        page = {"object": "list", "data": [{"id": FOREIGN, "object": "model"}]}
        return 200 if asked.path == "/v1/models" else 404, page

    with serving(answer) as running:
        yield running.url


def check(done, *, status=None):
    """Each line is the command's own, and steers nothing; other letters are as they were."""
    text = done if isinstance(done, str) else done.output
    assert not OBEYED.search(text) and not [line for line in text.split("\n") if line.startswith("forged")], text
    assert "日本" in text or "déjà" in text, text
    assert status is None or done.exit_code == status, text


def test_foreign_words_are_text_in_every_command(cli, foreign, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    source, out, base = f"{FOREIGN}in.jsonl", f"{FOREIGN}out.jsonl", ["--base-url", foreign]
    write_rows(tmp_path / source, [{"id": FOREIGN, "text": FOREIGN}, {"id": FOREIGN, FOREIGN: 1}])
    job = ["map", source, "-o", out, *base, "--prompt", "{text}"]
    check(cli(*job), status=1)
    for form in ("text", "json"):
        done = cli(*job, "--retry-failed", "--log-format", form)
        check(done, status=1)
        assert [json.loads(line) for line in done.stderr.splitlines()] if form == "json" else "forged" in done.stderr
    check(cli(*job[:2], "--dry-run", *job[4:]), status=1)
    for asked in (["status"], ["status", "--json"]):
        check(told := cli("job", *asked, f"{out}.journal"), status=0)
        assert "\\u009b" in told.stdout and ORDINARY in told.stdout
    assert FOREIGN in "".join(map(str, json.loads(told.stdout).values()))
    for command, status in (
        (["map", f"absent{FOREIGN}txt", "-o", "new", *base, "--prompt", "x"], 2),
        (["map", source, "-o", "new", *base, "--prompt", f"{{{FOREIGN.replace(chr(91), chr(32))}}}"], 2),
        (["job", "status", f"absent{FOREIGN}job"], 2),
        (["bench", *base, "--quick"], 1),
        (["bench", "report", f"absent{FOREIGN}json", "-o", "page"], 2),
        (["bench", "compare", source, source], 2),
        (["doctor", foreign], 5),
        (["doctor", foreign, "--json"], 5),
        (["simulate", "--profile", FOREIGN], 2),
        (["metrics", "list", "--server", FOREIGN], 2),
        (["enqueue", f"absent{FOREIGN}txt", "--redis", "redis://127.0.0.1:1"], 2),
        (["work", "--results", FOREIGN, *base, "--redis", "redis://127.0.0.1:1"], 2),
        ([f"--{FOREIGN}"], 2),
    ):
        check(cli(*command), status=status)


def test_the_librarys_records_are_text_in_commands_without_a_log_of_their_own(cli, monkeypatch):
    log = logging.getLogger("batchclient")
    monkeypatch.setattr("batchclient.cli.metrics.put", lambda *_lines: log.warning(FOREIGN))
    check(cli("metrics", "list"))


def test_what_is_written_above_the_bar_is_text(capsys, monkeypatch):
    monkeypatch.setenv("TERM", "dumb")
    with log_to_stderr(""), JobProgress(shown=True, draws=True, total=lambda: None).running():
        say(f":warning: {FOREIGN}", "and more")
    said = capsys.readouterr().err
    check(said)
    assert said.startswith(":warning: ") and "\nand more" in said


@pytest.mark.parametrize("line", ["<script>alert(1)</script> / HTTP/1.1", "GET / <script>", "<script>"])
def test_the_metrics_port_repeats_nothing_of_a_request(line):
    client = MockLLM().client()
    with serve(client, 0) as pages, socket.create_connection(("127.0.0.1", pages.port), 5) as connection:
        connection.sendall(f"{line}\r\nHost: x\r\n\r\n".encode())
        connection.shutdown(socket.SHUT_WR)
        answer = connection.makefile("rb").read()
    assert b"script" not in answer.lower() and b"html" not in answer
    assert re.match(rb"HTTP/1.\d (501|400) |Bad", answer)


@pytest.mark.parametrize("charset", ["ascii", "latin-1"])
def test_letters_that_the_terminal_lacks_end_nothing(foreign, charset):
    client = MockLLM().client()
    with serve(client, 0) as pages:
        for command in (["top", pages.url, "--once"], ["doctor", foreign], ["metrics", "list"]):
            done = command_line.run(*command, charset=charset)
            assert done.stdout and (done.exception is None or isinstance(done.exception, SystemExit)), done.exception
