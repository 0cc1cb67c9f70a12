"""``batchclient map`` on files: what goes in, what comes out, what is refused. Processes are in ``test_map_process``."""

import asyncio
import json
import os
import re
from array import array
from functools import partial

import pytest

from batchclient import BatchClient
from batchclient.cli import _run as run_module
from batchclient.cli._failures import kind_of
from batchclient.cli._job import Job
from batchclient.errors import BadRequest
from batchclient.simulator import EmbeddedServer, expected_text

from tests.fakes.raw import nobody_listens

from .conftest import read_rows, write_rows


@pytest.fixture
def out(tmp_path):
    return tmp_path / "out.jsonl"


def rows_of(count):
    return [{"id": f"r{number}", "text": f"text {number}"} for number in range(count)]


# Rows that succeed ---------------------------------------------------------------------------------------------------


def test_each_row_gets_its_own_answer_in_input_order(cli_map, tmp_path, out):
    rows = rows_of(300)
    result = cli_map(write_rows(tmp_path / "in.jsonl", rows), "-o", out)
    assert result.exit_code == 0, result.output
    written = read_rows(out)
    assert [row["id"] for row in written] == [row["id"] for row in rows]
    for row in written:
        assert row["completion"] == expected_text(f"Say {row['text']}", max_tokens=3, temperature=0)
        assert row["finish_reason"] == "length"
        assert row["usage"]["completion_tokens"] == 3
    assert result.stdout == ""
    [summary] = result.stderr.splitlines()
    assert summary.startswith("300 rows to ")


def test_unordered_loses_nothing(cli_map, tmp_path, out):
    result = cli_map(write_rows(tmp_path / "in.jsonl", rows_of(300)), "-o", out, "--unordered")
    assert result.exit_code == 0
    assert {row["id"] for row in read_rows(out)} == {row["id"] for row in rows_of(300)}


def test_text_lines(cli_map, tmp_path, out):
    source = tmp_path / "in.txt"
    source.write_bytes("\ufeffone\r\n\r\n  {two}\u2028still two\n".encode())
    for prompt in ("Say {text}", "Say {}"):
        result = cli_map(source, "-o", out, "--new", prompt=prompt)
        assert result.exit_code == 0, result.output
        one, two = read_rows(out)
        assert one["text"] == "one"
        assert two["text"] == "  {two}\u2028still two"
        assert two["completion"] == expected_text(f"Say {two['text']}", max_tokens=3, temperature=0)


def test_the_format_may_be_said(cli_map, tmp_path, out):
    source = tmp_path / "in.dat"
    source.write_text('{"text": "x"}\n')
    assert cli_map(source, "-o", out, "--format", "text").exit_code == 0
    assert read_rows(out)[0]["text"] == '{"text": "x"}'
    assert cli_map(source, "-o", out, "--format", "jsonl").exit_code == 0
    assert read_rows(out)[0]["text"] == "x"


@pytest.mark.parametrize(("line", "text"), [('{"text": "x"}', "x"), ("x", "x")])
def test_without_an_ending_the_first_line_decides(cli_map, tmp_path, out, line, text):
    source = tmp_path / "in"
    source.write_text(f"\n\n{line}\n")
    assert cli_map(source, "-o", out).exit_code == 0
    assert read_rows(out)[0]["text"] == text


def test_unicode_line_ends_do_not_split_a_row(cli_map, tmp_path, out):
    rows = [{"id": 1, "text": "a\u2028b\u2029c\x85d\x0b"}, {"id": 2, "text": "日本 𝄞"}]
    assert cli_map(write_rows(tmp_path / "in.jsonl", rows), "-o", out).exit_code == 0
    assert [{name: row[name] for name in ("id", "text")} for row in read_rows(out)] == rows
    assert "日本 𝄞" in out.read_text("utf-8")


def test_an_empty_input_makes_an_empty_output(cli_map, tmp_path, out, server):
    result = cli_map(write_rows(tmp_path / "in.jsonl", []), "-o", out, "--wait-for-server", 60)
    assert result.exit_code == 0 and result.stderr.endswith("requests sent: 0\n")
    assert out.read_bytes() == b""
    assert server.requests == 0


def test_rows_without_an_id_get_one_that_lasts(cli_map, tmp_path, out):
    source = write_rows(tmp_path / "in.jsonl", [{"text": "a"}, {"text": "a"}, {"text": "b"}])
    cli_map(source, "-o", out)
    first = [row["id"] for row in read_rows(out)]
    cli_map(source, "-o", out, "--new")
    assert first == [row["id"] for row in read_rows(out)]
    assert len(set(first)) == 3


def test_fields_reach_the_server(cli_map, tmp_path, out):
    source = write_rows(tmp_path / "in.jsonl", [{"text": "x"}])
    assert cli_map(source, "-o", out, "--param", 'stop=[" "]', "--param", "seed=1").exit_code == 0
    [row] = read_rows(out)
    assert row["finish_reason"] == "stop"
    assert " " not in row["completion"]


def test_quiet(cli_map, tmp_path, out):
    result = cli_map(write_rows(tmp_path / "in.jsonl", rows_of(2)), "-o", out, "--quiet")
    assert (result.exit_code, result.output) == (0, "")
    # Why rows failed is a complaint.
    source = write_rows(tmp_path / "bad.jsonl", [*rows_of(1), {"text": None}])
    result = cli_map(source, "-o", tmp_path / "bad", "--quiet")
    assert (result.exit_code, result.stderr.count("\n")) == (1, 2)
    assert result.stderr.startswith("failed: 1\n  1 ConfigError, such as line 2: ")


@pytest.mark.parametrize(
    "options",
    [
        ["--concurrency", 1],
        ["--concurrency", "auto"],
        ["--max-batch-size", 1],
        ["--dialect", "vllm"],
        ["--p95-latency", 5, "--time-to-first-token", 1],
        ["--priority", -1],
    ],
)
def test_settings_reach_the_client(cli_map, tmp_path, out, options, server):
    assert cli_map(write_rows(tmp_path / "in.jsonl", rows_of(20)), "-o", out, *options).exit_code == 0
    assert len(read_rows(out)) == 20
    if options in (["--concurrency", 1], ["--max-batch-size", 1]):
        assert server.requests == 20


def test_the_key_is_sent_and_never_shown(cli, tmp_path, out):
    source = write_rows(tmp_path / "in.jsonl", [{"text": "x"}])
    with EmbeddedServer("instant", api_key="hush-hush") as server:
        command = [
            "map",
            source,
            "-o",
            out,
            "--base-url",
            server.base_url,
            "--model",
            server.model,
            "--prompt",
            "{text}",
        ]
        assert cli(*command, env={"BATCHCLIENT_API_KEY": "hush-hush"}).exit_code == 0
        assert cli(*command, "--api-key", "hush-hush").exit_code == 0
        assert cli(*command, "--header", "Authorization: Bearer hush-hush").exit_code == 0
        before = out.read_bytes()
        wrong = cli(*command, "--api-key", "wrong-key", "--new")
        assert wrong.exit_code == 2
        assert wrong.stderr == "Error: 401: Unauthorized; the --api-key that was given was refused\n"
        assert "wrong-key" not in wrong.output
    assert out.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir()} == {"in.jsonl", "out.jsonl", "out.jsonl.journal"}


@pytest.mark.parametrize("count", [20, 3000])
def test_a_wrong_model_writes_nothing_also_beside_unusable_rows(cli_map, tmp_path, out, count):
    rows = [{"text": f"text {number}" if number % 10 else None} for number in range(count)]
    source = write_rows(tmp_path / "in.jsonl", rows)
    result = cli_map(source, "-o", out, "--model", "nosuch")
    assert result.exit_code == 1
    assert "NotFound, such as line 2: 404: The model `nosuch` does not exist" in result.stderr
    assert os.listdir(tmp_path) == ["in.jsonl"]


# Rows that fail ------------------------------------------------------------------------------------------------------


def test_a_malformed_line_names_its_number_and_loses_no_other(cli_map, tmp_path, out):
    source = tmp_path / "in.jsonl"
    source.write_bytes(b'{"text": "a"}\n\n{"text": \n\xff\n{"text": "b"}\n{"other": 1}\n{"text": null}\n')
    result = cli_map(source, "-o", out)
    assert result.exit_code == 1
    first, malformed, undecodable, second, without, null = read_rows(out)
    assert "completion" in first
    assert "completion" in second
    assert malformed["line"] == 3
    assert malformed["error"]["message"].startswith("line 3 is not JSON")
    assert undecodable["line"] == 4
    assert without["other"] == 1
    assert "line 6: " in without["error"]["message"]
    assert "'text'" in without["error"]["message"]
    assert "'text'" in null["error"]["message"]
    first, *errors, _ = result.stderr.splitlines()
    assert first.endswith("; failed: 4")
    assert [error.partition(":")[0] for error in errors] == [
        "  1 BadRow, such as line 3",
        "  1 BadRow, such as line 4",
        "  1 ConfigError, such as line 6",
        "  1 ConfigError, such as line 7",
    ]


def test_a_malformed_first_line_does_not_hide_a_wrong_column(cli_map, tmp_path, out):
    source = tmp_path / "in.jsonl"
    source.write_text('{"text": \n{"txt": "a"}\n')
    result = cli_map(source, "-o", out)
    assert result.exit_code == 2
    assert "line 2" in result.stderr


def test_a_file_of_malformed_lines_alone(cli_map, tmp_path, out, server):
    source = tmp_path / "in.jsonl"
    source.write_text('{"\n' * 250)
    assert cli_map(source, "-o", out).exit_code == 1
    assert [row["line"] for row in read_rows(out)] == list(range(1, 251))
    assert server.requests == 0


def test_what_the_server_refuses_is_written_into_the_row(cli_map, tmp_path, out, server):
    server.set_faults("bad_prompt=poison")
    rows = [{"text": "fine"}, {"text": "poison"}, {"text": "fine too"}]
    result = cli_map(write_rows(tmp_path / "in.jsonl", rows), "-o", out)
    assert result.exit_code == 1
    fine, bad, fine_too = read_rows(out)
    assert "completion" in fine
    assert "completion" in fine_too
    assert bad["text"] == "poison"
    assert bad["error"]["type"] == "BadRequest"
    assert bad["error"]["message"]


@pytest.mark.parametrize("count", [1, 3])
def test_servers_that_are_not_there_end_it_and_use_up_no_row(cli, tmp_path, out, count):
    urls = [nobody_listens() for _ in range(count)]
    source = write_rows(tmp_path / "in.jsonl", rows_of(2000))
    result = cli("map", source, "-o", out, *[f"--base-url={url}" for url in urls], "--model", "m", "--prompt", "{text}")
    assert result.exit_code == 5
    told = result.stderr.splitlines()[-1]
    assert told.startswith("Error: no server is there: ") and told.endswith("; --wait-for-server waits for one")
    assert all(url in told for url in urls)
    assert os.listdir(tmp_path) == ["in.jsonl"]


def test_the_timeout_is_a_rows(cli_map, tmp_path, out, server):
    server.set_faults("stall")
    result = cli_map(write_rows(tmp_path / "in.jsonl", [{"text": "x"}]), "-o", out, "--timeout", 0.05)
    assert result.exit_code == 1
    assert read_rows(out)[0]["error"]["type"] == "DeadlineExceeded"


def test_a_later_row_whose_fields_would_be_overwritten_fails_alone(cli_map, tmp_path, out):
    source = write_rows(tmp_path / "in.jsonl", [{"text": "x"}, {"text": "y", "usage": 1}])
    assert cli_map(source, "-o", out).exit_code == 1
    good, taken = read_rows(out)
    assert "completion" in good
    assert taken == {"line": 2, "error": {"type": "BadRow", "message": taken["error"]["message"]}}
    assert "'usage'" in taken["error"]["message"]


# Refusals ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--prompt", "Say {txt}"], "{txt}"),
        (["--prompt", "Say {}"], "{}"),
        (["--prompt", "Say {"], "--prompt"),
        (["--prompt", "Say {text!r}"], "--prompt"),
        (["--prompt", "Say nothing"], "--prompt"),
        (["--base-url", "nowhere"], "--base-url"),
        (["--dialect", "curl"], "'--dialect': "),
        (["--p95-latency", "0"], "--p95-latency: "),
        (["--p95-latency", "1", "--concurrency", "3"], "--concurrency: a number leaves nothing to find"),
        (["--priority", "101"], "--priority: a whole number from -100 to 100, not 101"),
        (["--wait-for-server", "-1"], "--wait-for-server: "),
        (["--param", "x=" + "[" * 100_000], "--param x: the value is not JSON"),
        (["--concurrency", "0"], "--concurrency: a whole number of at least 1, or auto, not '0'"),
        (["--concurrency", "many"], "--concurrency: a whole number of at least 1, or auto, not 'many'"),
        (["--concurrency", "9" * 5000], "--concurrency: a whole number of at least 1, or auto, not '999"),
        (["--max-batch-size", "-1"], "--max-batch-size: "),
        (["--first", "0"], "--first"),
        (["--timeout", "0"], "--timeout"),
        (["--timeout", "nan"], "--timeout"),
        (["--temperature", "nan"], "--temperature"),
        (["--param", "top_p"], "--param 'top_p'"),
        (["--param", "top_p=high"], "--param top_p"),
        (["--param", "top_p=NaN"], "top_p"),
        (["--param", "stream=true"], "--param stream: "),
        (["--param", "timeout=1"], "--param timeout: give --timeout"),
        (["--param", "topp=1"], "--param topp: no argument of "),
        (["--param", "topp=1"], "Did you mean top_p? If yours does, give --param extra_body='{\"topp\": …}'"),
        (["--param", "limit=1"], "--param limit: give --concurrency"),
        (["--param", "schedule=1"], "--param schedule: no field of the server's"),
        (["--param", "tools=[]"], "It is a field of chats: --call chat takes it."),
        (["--param", "model=1"], "--param model"),
        (["--param", "n=2"], "--param n"),
        (["--param", "max_tokens=1"], "--param max_tokens"),
        (["--param", "ordered=true"], "--param ordered"),
        (["--header", "secret-without-colon"], "--header number 1"),
        (["--header", "Content-Length: 3"], "--header: 'Content-Length' is not for you to give"),
        (["--param", "response_model=1"], "--param response_model: give --schema"),
        (["--api-key", "a b"], "--api-key"),
        (["--format", "csv"], "in.jsonl: the header begins a JSON object: the file is JSONL"),
        (["--format", "xml"], "'xml' is not one of 'jsonl', 'text', 'csv', 'parquet', 'arrow'"),
        (["--call", "summarise"], "'summarise' is not one of 'complete', 'chat', 'embed', 'classify'"),
        (["--call", "embed"], "--max-tokens: --call embed generates nothing"),
        (["--dedupe", "-o", "/dev/null"], "--dedupe needs a journal"),
        (["--max-tokens", "many"], "--max-tokens"),
        (["-o", "{dir}/none/out.jsonl"], "none"),
        (["-o", "{dir}"], "Is a directory"),
        (["-o", ""], "--output is empty"),
        (["-o", "{dir}/in.jsonl"], "same file"),
        (["-o", "{dir}/link.jsonl"], "a link to "),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_usage_is_refused_before_anything_happens(cli_map, tmp_path, out, server, options, named):
    source = write_rows(tmp_path / "in.jsonl", [{"text": "x"}])
    (tmp_path / "link.jsonl").symlink_to(source)
    before = source.read_bytes()
    out.write_text("precious")
    result = cli_map(source, "-o", out, "--new", *(option.replace("{dir}", str(tmp_path)) for option in options))
    assert result.exit_code == 2
    complaint = result.stderr.rstrip("\n").splitlines()[-1]
    assert complaint.startswith("Error: ")
    assert named in complaint
    assert "secret" not in result.output
    assert server.requests == 0
    assert out.read_text() == "precious"
    assert source.read_bytes() == before


def test_rows_that_all_fail_alike_stop_it(cli_map, tmp_path, out):
    result = cli_map(write_rows(tmp_path / "in.jsonl", rows_of(6000)), "-o", out, "--model", "nosuch")
    assert result.exit_code == 1
    assert "stopped: no row succeeded, and 256 failed alike with NotFound; rows left out: 5,744\n" in result.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


@pytest.fixture
def soon(monkeypatch):
    """A job gives up after 8 refusals."""
    monkeypatch.setattr(run_module, "Job", partial(Job, refusals=8))


@pytest.mark.parametrize("options", [[], ["--unordered"]])
def test_a_parameter_that_the_server_refuses_is_not_tried_on_every_row(soon, cli, tmp_path, out, options):
    source = write_rows(tmp_path / "in.jsonl", rows_of(2000))
    with EmbeddedServer("instant", guise="trtllm") as server:
        command = ["--base-url", server.base_url, "--model", server.model, "--prompt", "{text}", "--concurrency", 4]
        result = cli("map", source, "-o", out, *command, *options, "--param", 'extra_body={"nonsense": 1}')
        refused = server.statistics()["statuses"]["400"]
    assert result.exit_code == 1
    assert not out.exists()
    assert "extra_forbidden" in result.stderr
    # Few where the machine is quiet. With a journal a row has failed once it is committed, 0.2 s later.
    assert refused < 1500
    left = re.search(r" 8 failed alike with BadRequest; rows left out: ([\d,]+)\n", result.stderr)
    assert 500 <= int(left[1].replace(",", "")) <= 1992


def test_refusals_that_differ_in_the_names_of_requests_are_alike():
    names = ("req-1a2b", "req-ffee", "9b1deb4d-3b7d-4bad-9bdd-2b0d7b3dcb6d")
    errors = [
        BadRequest(f"400: no field ({5000 + number} tokens, request {name}7)") for number, name in enumerate(names)
    ]
    assert len({kind_of(error, str(error)) for error in errors}) == 1


@pytest.mark.parametrize("first", [0, 7])
def test_rows_that_are_refused_alike_stop_nothing_where_one_has_succeeded(soon, cli_map, tmp_path, out, server, first):
    server.set_faults("bad_prompt=poison")
    rows = [{"text": "poison"}] * first + [{"text": "fine"}] + [{"text": "poison"}] * 20
    result = cli_map(write_rows(tmp_path / "in.jsonl", rows), "-o", out)
    assert result.exit_code == 1
    assert ["error" in row for row in read_rows(out)] == [row["text"] == "poison" for row in rows]
    assert "stopped" not in result.stderr


@pytest.mark.parametrize(
    ("name", "content", "named"),
    [
        ("missing.jsonl", None, "missing.jsonl: No such file"),
        ("", None, "the folder has no file of rows by its ending"),
        ("notes.log", "text\nx\n", "the ending '.log' tells no form"),
        ("rows.tar.gz", "x", "the ending '.tar' tells no form"),
        ("taken.jsonl", json.dumps({"text": "x", "completion": "y"}) + "\n", "'completion'"),
    ],
)
def test_an_input_that_cannot_be_is_refused(cli_map, tmp_path, out, server, name, content, named):
    source = tmp_path / name
    if content is not None:
        source.write_text(content)
    result = cli_map(source, "-o", out)
    assert result.exit_code == 2, result.output
    assert result.stderr.count("\n") == 1
    assert named in result.stderr
    assert server.requests == 0
    assert not out.exists()


def test_without_a_model_the_servers_own_is_taken(cli, server, tmp_path, out):
    source = write_rows(tmp_path / "in.jsonl", [{"text": "x"}])
    result = cli("map", source, "-o", out, "--base-url", server.base_url, "--prompt", "{text}")
    assert result.exit_code == 0, result.output
    assert read_rows(out)[0]["finish_reason"]


def test_without_a_model_none_of_several_is_guessed(cli, models, tmp_path, out):
    source = write_rows(tmp_path / "in.jsonl", [{"text": "x"}])
    result = cli("map", source, "-o", out, "--base-url", models.url, "--prompt", "{text}")
    told = "Error: --model (BATCHCLIENT_MODEL): no model, and the server has several: 'one', 'two'; name one\n"
    assert (result.exit_code, result.stderr) == (2, told)
    assert not out.exists()


@pytest.mark.parametrize(
    ("status", "exit_code", "told"),
    [
        (404, 2, "does --base-url end in /v1"),
        (500, 2, "which sends HTML pages, does not say which it serves (500)"),
        (401, 2, "Error: the server was asked for its model (--model names one): 401"),
    ],
)
def test_why_a_server_does_not_say_which_model_it_has(cli, models, tmp_path, out, status, exit_code, told):
    models.status = status
    source = write_rows(tmp_path / "in.jsonl", [{"text": "x"}])
    result = cli("map", source, "-o", out, "--base-url", models.url, "--prompt", "{text}")
    assert result.exit_code == exit_code
    assert told in result.stderr
    assert result.stderr.count("\n") == 1
    assert "model=" not in result.stderr
    assert not out.exists()


def test_the_timeout_bounds_the_question_for_the_model(cli, models, tmp_path, out):
    models.holds = True
    source = write_rows(tmp_path / "in.jsonl", [{"text": "x"}])
    result = cli("map", source, "-o", out, "--base-url", models.url, "--prompt", "{text}", "--timeout", 0.2)
    assert (result.exit_code, out.exists()) == (5, False)
    assert "(--model names one): the call's --timeout passed while the server was asked for its model" in result.stderr


def test_a_server_that_cannot_be_asked_for_its_model_is_said_in_a_line(cli, tmp_path, out):
    source = write_rows(tmp_path / "in.jsonl", [{"text": "x"}])
    result = cli("map", source, "-o", out, "--base-url", "http://127.0.0.1:1/v1", "--prompt", "{text}")
    assert result.exit_code == 5
    assert result.stderr.count("\n") == 1
    assert "--model" in result.stderr
    assert "http://127.0.0.1:1/v1" in result.stderr
    assert not out.exists()


@pytest.mark.parametrize(
    ("content", "prompt", "named"),
    [
        ('[\n {"text": "a"}\n]', "{text}", "it is a JSON array"),
        ('[{"text": "a"}]', "{}", "it is a JSON array"),
        ('{"talk": [{"role": "user"}]}', "{talk}", "a conversation, which goes with --call chat"),
        ('{"talk": [{"role": "user"}]}', "Go on: {talk}", "and a template of that field alone"),
    ],
)
def test_an_input_that_would_be_sent_as_it_is_not_meant_is_refused(cli_map, tmp_path, server, content, prompt, named):
    (tmp_path / "in").write_text(content)
    result = cli_map(tmp_path / "in", "-o", tmp_path / "out", prompt=prompt)
    assert (result.exit_code, server.requests) == (2, 0)
    assert named in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_line_of_text_may_begin_with_a_bracket(cli_map, tmp_path, out):
    source = tmp_path / "in"
    source.write_text("[1] first\n[2] second\n")
    assert cli_map(source, "-o", out).exit_code == 0
    assert [row["text"] for row in read_rows(out)] == ["[1] first", "[2] second"]


@pytest.mark.parametrize("options", [[], ["--model", "m"]])
def test_without_a_key_it_is_said_where_one_is_given(cli, tmp_path, out, options):
    source = write_rows(tmp_path / "in.jsonl", rows_of(1))
    with EmbeddedServer("instant", api_key="k") as server:
        command = ["map", source, "-o", out, "--base-url", server.base_url, "--prompt", "{text}", *options]
        told = cli(*command).stderr
        assert told.count("no key was given") == 1
        assert told.endswith(
            "; no key was given: give --api-key=… or set BATCHCLIENT_API_KEY (OPENAI_API_KEY is not read)\n"
        )
        for given in (
            ["--api-key", "wrong"],
            ["--header", "Authorization: Bearer wrong"],
            ["--header", "X-Api-Key: w"],
        ):
            assert "no key" not in cli(*command, *given).stderr
        assert "no key" not in cli(*command, env={"BATCHCLIENT_API_KEY": "wrong"}).stderr


def test_what_the_library_says_is_told_in_the_options_names(cli, server, tmp_path, out):
    source = write_rows(tmp_path / "in.jsonl", rows_of(1))
    url = server.base_url.removesuffix("/v1")
    told = cli("map", source, "-o", out, "--base-url", url, "--model", "m", "--prompt", "{text}").stderr
    assert "does --base-url end in /v1" in told
    told = cli("map", source, "-o", out, "--base-url", url.replace("//", "//u:p@"), "--prompt", "{text}").stderr
    assert (
        told
        == "Error: --base-url (BATCHCLIENT_BASE_URL): the URL has a user or password in it; give --api-key or --header\n"
    )


def test_a_prompt_must_be(cli, tmp_path):
    result = cli("map", tmp_path / "in.jsonl", "--base-url", "http://127.0.0.1:1/v1")
    assert (result.exit_code, result.stderr.count("\n"), "--prompt" in result.stderr) == (2, 1, True)


@pytest.mark.parametrize("variable", [None, "", "  "])
def test_without_a_server_the_option_and_the_variable_are_named(cli, tmp_path, variable):
    env = {} if variable is None else {"BATCHCLIENT_BASE_URL": variable}
    result = cli("map", tmp_path / "in.jsonl", "--prompt", "{text}", env=env)
    told = "Error: no server: give --base-url, such as http://localhost:8000/v1, or set BATCHCLIENT_BASE_URL\n"
    assert (result.exit_code, result.stderr) == (2, told)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("--max-tokens", "abc"),
        ("--max-tokens", "-1"),
        ("--temperature", "hot"),
        ("--first", "0"),
        ("--timeout", "soon"),
        ("--timeout", "-1"),
        ("--max-batch-size", "0"),
        ("--max-batch-size", "many"),
        ("--outage-patience", "nan"),
    ],
)
def test_a_value_of_another_kind_is_refused_with_its_option(cli_map, tmp_path, out, server, option, value):
    result = cli_map(write_rows(tmp_path / "in.jsonl", rows_of(1)), "-o", out, f"{option}={value}")
    assert (result.exit_code, server.requests) == (2, 0)
    (told,) = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert option in told


# The environment -----------------------------------------------------------------------------------------------------


def test_server_model_and_key_may_come_from_the_environment(cli, tmp_path, out):
    source = write_rows(tmp_path / "in.jsonl", rows_of(40))
    servers = [EmbeddedServer("instant", model="theirs", api_key="hush-hush") for _ in range(2)]
    with servers[0] as one, servers[1] as other:
        variables = {
            "BATCHCLIENT_BASE_URL": f" {one.base_url}  {other.base_url} ",
            "BATCHCLIENT_MODEL": "theirs",
            "BATCHCLIENT_API_KEY": "hush-hush",
        }
        result = cli("map", source, "-o", out, "--prompt", "{text}", "--concurrency", 1, env=variables)
        assert result.exit_code == 0, result.output
        assert one.requests
        assert other.requests
        # An option goes before a variable.
        given = ["--base-url", one.base_url, "--model", "another", "--new"]
        result = cli("map", source, "-o", out, "--prompt", "{text}", *given, env=variables)
    assert result.exit_code == 1
    assert "another" in result.stderr


def test_a_key_of_the_environment_does_not_replace_a_header(cli, tmp_path, out):
    source = write_rows(tmp_path / "in.jsonl", rows_of(1))
    with EmbeddedServer("instant", api_key="right") as server:
        command = ["map", source, "-o", out, "--base-url", server.base_url, "--prompt", "{text}"]
        header = ["--header", "authorization: Bearer right"]
        assert cli(*command, *header, env={"BATCHCLIENT_API_KEY": "wrong"}).exit_code == 0


@pytest.mark.parametrize(
    ("variable", "value"), [("BASE_URL", "http://canary@h/v1"), ("BASE_URL", "canary"), ("API_KEY", "canary canary")]
)
def test_a_wrong_variable_is_named_and_not_shown(cli, tmp_path, out, variable, value):
    source = write_rows(tmp_path / "in.jsonl", rows_of(1))
    variables = {"BATCHCLIENT_BASE_URL": "http://127.0.0.1:1/v1", f"BATCHCLIENT_{variable}": value}
    result = cli("map", source, "-o", out, "--prompt", "{text}", env=variables)
    assert result.exit_code == 2
    assert f"(BATCHCLIENT_{variable}): " in result.stderr
    assert result.stderr.count("\n") == 1
    assert "canary" not in result.output


# The first rows ------------------------------------------------------------------------------------------------------


def test_the_first_rows_alone_are_mapped(cli_map, tmp_path, out):
    source = write_rows(tmp_path / "in.jsonl", rows_of(300))
    result = cli_map(source, "-o", out, "--first", 7)
    assert result.exit_code == 0, result.output
    assert [row["id"] for row in read_rows(out)] == [f"r{number}" for number in range(7)]
    assert result.stderr.startswith("7 rows to ")


@pytest.mark.parametrize("first", [1, 2, 5, 6])
def test_a_malformed_row_is_one_of_the_first_and_a_blank_line_is_none(cli_map, tmp_path, out, first):
    source = tmp_path / "in.jsonl"
    source.write_text('\n{"text": \n\n{"text": "a"}\n{"text": "b"}\n{"text": "c"}\n[]\n')
    result = cli_map(source, "-o", out, "--first", first)
    rows = read_rows(out)
    assert len(rows) == min(first, 5)
    assert "error" in rows[0]
    assert [row["text"] for row in rows[1:4]] == ["a", "b", "c"][: first - 1]
    assert result.exit_code == 1


def test_more_than_there_are_is_all(cli_map, tmp_path, out):
    assert cli_map(write_rows(tmp_path / "in.jsonl", rows_of(3)), "-o", out, "--first", 10).exit_code == 0
    assert len(read_rows(out)) == 3


def test_rows_left_out_are_counted_among_the_first(soon, cli_map, tmp_path, out):
    source = write_rows(tmp_path / "in.jsonl", rows_of(4000))
    told = cli_map(source, "-o", out, "--model", "nosuch", "--first", 2000).stderr
    assert "rows left out: 1,992\n" in told


# Other calls than completions ----------------------------------------------------------------------------------------


@pytest.fixture
def cli_call(cli, server, out):
    """Run ``map --call`` on the server in this process; the rows of the output and the result."""

    def run(call, source, *args, prompt="{text}"):
        options = ["--base-url", server.base_url, "--model", server.model, "--call", call, "--prompt", prompt]
        result = cli("map", source, "-o", out, *options, *args)
        return (read_rows(out) if out.exists() else None), result

    return run


def test_chats_of_texts_and_of_conversations(cli_call, tmp_path, server):
    rows = [{"talk": f"hello {i}"} for i in range(4)] + [
        {"talk": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": f"hello {i}"}]}
        for i in range(4)
    ]
    source = write_rows(tmp_path / "in.jsonl", rows)
    made, result = cli_call("chat", source, "--max-tokens", 4, "--temperature", 0, prompt="{talk}")
    assert result.exit_code == 0, result.output
    assert [row["talk"] for row in made] == [row["talk"] for row in rows]
    assert all(set(row) == {"talk", "id", "completion", "finish_reason", "usage"} for row in made)

    async def one(row):
        messages = [{"role": "user", "content": row["talk"]}] if isinstance(row["talk"], str) else row["talk"]
        async with BatchClient(server.base_url, model=server.model) as client:
            return (await client.chat(messages, max_tokens=4, temperature=0)).text

    assert [row["completion"] for row in made] == [asyncio.run(one(row)) for row in rows]


def test_a_conversation_that_is_none_fails_its_row_alone(cli_call, tmp_path):
    rows = [{"talk": [{"role": "user", "content": "hello"}]}, {"talk": [{"content": "who?"}]}, {"talk": [1]}]
    made, result = cli_call("chat", write_rows(tmp_path / "in.jsonl", rows), "--max-tokens", 2, prompt="{talk}")
    assert result.exit_code == 1
    assert [sorted(row.keys() & {"completion", "error"}) for row in made] == [["completion"], ["error"], ["error"]]
    assert made[1]["error"]["message"].startswith("line 2: ")


def test_embeddings_read_back_as_they_were(cli_call, tmp_path, server):
    rows = [{"id": str(i), "text": f"document {i}"} for i in range(40)]
    made, result = cli_call("embed", write_rows(tmp_path / "in.jsonl", rows))
    assert result.exit_code == 0, result.output

    async def embeddings():
        async with BatchClient(server.base_url, model=server.model) as client:
            return await client.batch_map(rows, "{text}", call="embed")

    for row, own, embedding in zip(made, rows, asyncio.run(embeddings()), strict=True):
        assert set(row) == {"id", "text", "embedding", "usage"}
        assert (row["id"], row["text"]) == (own["id"], own["text"])
        assert max(len(str(number)) for number in row["embedding"]) < 18
        assert array("f", row["embedding"]) == embedding.vector


def test_classes(cli_call, tmp_path):
    made, result = cli_call("classify", write_rows(tmp_path / "in.jsonl", rows_of(8)))
    assert result.exit_code == 0, result.output
    for row in made:
        assert row.keys() >= {"label", "probabilities", "usage"}
        assert row["label"] is not None
        assert sum(row["probabilities"]) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("call", "column", "refused"),
    [
        ("embed", "embedding", True),
        ("embed", "completion", False),
        ("classify", "label", True),
        ("chat", "message", True),
    ],
)
def test_a_column_that_the_output_adds_is_refused_where_it_adds_it(cli_call, tmp_path, server, call, column, refused):
    made, result = cli_call(call, write_rows(tmp_path / "in.jsonl", [{"text": "x", column: 1}]))
    assert (result.exit_code, column in result.stderr) == ((2, True) if refused else (0, False))
    if not refused:
        assert made[0][column] == 1


def test_embedding_a_server_without_embeddings_stops_as_completions_do(cli, tmp_path, out):
    with EmbeddedServer("instant", guise="trtllm") as running:
        source = write_rows(tmp_path / "in.jsonl", rows_of(5000))
        options = ["--base-url", running.base_url, "--model", running.model, "--prompt", "{text}", "--call", "embed"]
        result = cli("map", source, "-o", out, *options)
    assert result.exit_code == 1
    # BadRequest of the client's own, where the server has said in time which it is.
    assert re.search("256 failed alike with (BadRequest|NotFound)", result.stderr)
    # Thousands of rows were let go without a request of their own.
    assert int(re.search(r"requests sent: ([\d,]+)", result.stderr)[1].replace(",", "")) < 10
    assert "has no embedding calls" in result.stderr
    assert not out.exists()


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--max-tokens", "3"], "--max-tokens"),
        (["--temperature", "0"], "--temperature"),
        (["--param", 'encoding_format="float"'], "the client finds out how vectors travel"),
        (["--param", "dimensions=0"], "--param dimensions"),
        (["--param", 'call="chat"'], "give --call"),
    ],
)
def test_wrong_usage_of_embed_is_refused(cli_call, tmp_path, server, options, named):
    made, result = cli_call("embed", write_rows(tmp_path / "in.jsonl", rows_of(2)), *options)
    assert (made, result.exit_code, server.requests) == (None, 2, 0)
    assert named in result.stderr
