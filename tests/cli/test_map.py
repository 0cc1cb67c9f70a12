"""``batchclient map`` on files: what goes in, what comes out, what is refused. Processes are in ``test_map_process``."""

import asyncio
import json
import re
from array import array
from functools import partial

import pytest
from tests.fakes.raw import nobody_listens

from batchclient import BatchClient
from batchclient.cli import _run as run_module
from batchclient._maps.kinds import kind_of
from batchclient.cli._job import Job
from batchclient.errors import BadRequest
from batchclient.simulator import EmbeddedServer, expected_text
from tests.guises import GUISES

from .conftest import names, read_rows, rows_of, write_rows

# Rows that succeed ---------------------------------------------------------------------------------------------------


def test_each_row_gets_its_own_answer_in_input_order(cli_map, tmp_path, out):
    rows = rows_of(300)
    result = cli_map(write_rows(tmp_path / "in.jsonl", rows), "-o", out)
    assert result.exit_code == 0, result.output
    written = read_rows(out)
    assert [row["id"] for row in written] == [*range(300)]
    for row in written:
        assert row["completion"] == expected_text(f"Say {row['text']}", max_tokens=3, temperature=0)
        assert row["finish_reason"] == "length"
        assert row["usage"]["completion_tokens"] == 3
    assert result.stdout == ""
    [summary] = result.stderr.splitlines()
    assert summary.startswith("300 rows to ")


def test_text_lines(cli_map, tmp_path, out):
    source = tmp_path / "in.txt"
    source.write_bytes("\ufeffone\r\n\r\n  {two}\u2028still two\n".encode())
    assert cli_map(source, "-o", out, prompt="Say {}").exit_code == 0
    one, two = read_rows(out)
    assert (one["text"], two["text"]) == ("one", "  {two}\u2028still two")
    assert two["completion"] == expected_text(f"Say {two['text']}", max_tokens=3, temperature=0)
    # The format may be said.
    assert "failed: 2\n  1 unusable" in cli_map(source, "-o", out, "--format", "jsonl", "--new").stderr


def test_an_empty_input_makes_an_empty_output(cli_map, out, tmp_path, server):
    result = cli_map(write_rows(tmp_path / "in.jsonl", []), "-o", out, "--wait-for-server", 60)
    assert result.exit_code == 0 and result.stderr.endswith("requests sent: 0\n")
    assert (out.read_bytes(), server.requests) == (b"", 0)


def test_rows_that_were_not_sent_have_no_rate(cli_map, tmp_path, out):
    unusable = [{"text": None}] * 300
    said = cli_map(write_rows(tmp_path / "in.jsonl", unusable), "-o", out).stderr
    assert re.match(rf"300 rows to {out} in [\d.]+ s, requests sent: 0; failed: 300\n", said), said
    assert said.endswith(": rows that were not sent: 300 (mend the input)\n")
    said = cli_map(write_rows(tmp_path / "more.jsonl", [*unusable, *rows_of(1)]), "-o", out, "--new").stderr
    seconds, rate = re.match(rf"301 rows to {out} in ([\d.]+) s, (\d+) rows/s, requests sent: 1", said).groups()
    assert float(seconds) * int(rate) < 10


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
    assert result.stderr.startswith("failed: 1\n  1 unusable, such as line 2: ")


@pytest.mark.parametrize(
    ("options", "requests"),
    [
        (["--concurrency", 1], 20),
        (["--max-batch-size", 1, "--concurrency", "auto", "--dialect", "vllm"], 20),
        (["--p95-latency", 5, "--time-to-first-token", 1, "--priority", -1], None),
    ],
)
def test_settings_reach_the_client(cli_map, tmp_path, out, options, requests, server):
    assert cli_map(write_rows(tmp_path / "in.jsonl", rows_of(20)), "-o", out, *options).exit_code == 0
    assert len(read_rows(out)) == 20
    assert requests is None or server.requests == requests


def test_the_key_is_sent_and_never_shown(cli, tmp_path, out):
    source = write_rows(tmp_path / "in.jsonl", [{"text": "x"}])
    with EmbeddedServer("instant", api_key="hush-hush") as server:
        command = ["map", source, "-o", out, "--base-url", server.base_url, "--model", server.model]
        command += ["--prompt", "{text}"]
        assert cli(*command, env={"BATCHCLIENT_API_KEY": "hush-hush"}).exit_code == 0
        assert cli(*command, "--api-key", "hush-hush").exit_code == 0
        assert cli(*command, "--header", "Authorization: Bearer hush-hush").exit_code == 0
        before = out.read_bytes()
        wrong = cli(*command, "--api-key", "wrong-key", "--new")
        assert wrong.exit_code == 2
        assert wrong.stderr == "Error: 401: Unauthorized; the --api-key that was given was refused\n"
        assert "wrong-key" not in wrong.output
    assert out.read_bytes() == before
    assert names(tmp_path) == ["in.jsonl", "out.jsonl", "out.jsonl.journal"]


def test_a_wrong_model_writes_nothing_also_beside_unusable_rows(cli_map, tmp_path, out):
    rows = [{"text": f"text {number}" if number % 10 else None} for number in range(20)]
    result = cli_map(write_rows(tmp_path / "in.jsonl", rows), "-o", out, "--model", "nosuch")
    assert result.exit_code == 1
    assert "NotFound, such as line 2: 404: The model `nosuch` does not exist" in result.stderr
    assert names(tmp_path) == ["in.jsonl"]


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
        "  1 unusable, such as line 3",
        "  1 unusable, such as line 4",
        "  1 unusable, such as line 6",
        "  1 unusable, such as line 7",
    ]


def test_malformed_first_lines_do_not_hide_a_wrong_column(cli_map, tmp_path, out, server):
    source = tmp_path / "in.jsonl"
    source.write_text('{"text": \n{"txt": "a"}\n')
    result = cli_map(source, "-o", out)
    assert result.exit_code == 2
    assert "line 2" in result.stderr
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
    assert names(tmp_path) == ["in.jsonl"]


def test_a_later_row_whose_fields_would_be_overwritten_fails_alone(cli_map, tmp_path, out):
    # The first 256 rows tell what the input has.
    source = write_rows(tmp_path / "in.jsonl", [*[{"text": "x"}] * 256, {"text": "y", "usage": 1}])
    assert cli_map(source, "-o", out).exit_code == 1
    *_, good, taken = read_rows(out)
    assert "completion" in good
    assert taken == {"line": 257, "error": {"type": "BadRow", "message": taken["error"]["message"]}}
    assert "'usage'" in taken["error"]["message"]


# Refusals ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--prompt", "Say {txt}"], "{txt}"),
        (["--prompt", "Say {}"], "{}"),
        (["--prompt", "Say {text!r}"], "--prompt"),
        (["--base-url", "nowhere"], "--base-url"),
        (["--dialect", "curl"], "'--dialect': "),
        (["--p95-latency", "1", "--concurrency", "3"], "--concurrency: a number leaves nothing to find"),
        (["--guest", "--concurrency", "3"], "--concurrency: a number leaves nothing to find for --guest"),
        (["--priority", "101"], "--priority: a whole number from -100 to 100, not 101"),
        (["--wait-for-server", "-1"], "--wait-for-server: "),
        (["--param", "x=" + "[" * 100_000], "--param x: the value is not JSON"),
        (["--concurrency", "0"], "--concurrency: a whole number of at least 1, or auto, not '0'"),
        (["--max-batch-size", "-1"], "--max-batch-size: "),
        (["--first", "0"], "--first"),
        (["--timeout", "nan"], "--timeout"),
        (["--temperature", "nan"], "--temperature"),
        (["--outage-patience", "inf"], "--outage-patience"),
        (["--param", "top_p"], "--param 'top_p'"),
        (["--param", "stream=true"], "--param stream: "),
        (["--param", "timeout=1"], "--param timeout: give --timeout"),
        (["--param", "topp=1"], "Did you mean top_p? If yours does, give --param extra_body='{\"topp\": …}'"),
        (["--param", "limit=1"], "--param limit: give --concurrency"),
        (["--param", "tools=[]"], "It is a field of chats: --call chat takes it."),
        (["--param", "max_tokens=1"], "--param max_tokens"),
        (["--call", "embed"], "--max-tokens: --call embed generates nothing"),
        (["--header", "secret-without-colon"], "--header number 1"),
        (["--header", "Content-Length: 3"], "--header: 'Content-Length' is not for you to give"),
        (["--session-header", "a b"], "--session-header: "),
        (["--param", 'session="a"'], "--param session: a row's own, in its field params"),
        (["--api-key", "a b"], "--api-key"),
        (["--format", "xml"], "'xml' is not one of 'jsonl', 'text', 'csv', 'parquet', 'arrow'"),
        (["--max-tokens", "many"], "--max-tokens"),
        (["-o", "{dir}"], "Is a directory"),
        (["-o", ""], "--output is empty"),
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
    assert names(tmp_path) == ["in.jsonl"]


@pytest.fixture
def soon(monkeypatch):
    """A job gives up after 8 refusals."""
    monkeypatch.setattr(run_module, "Job", partial(Job, refusals=8))


def test_a_parameter_that_the_server_refuses_is_not_tried_on_every_row(soon, cli, tmp_path, out):
    source = write_rows(tmp_path / "in.jsonl", rows_of(2000))
    with EmbeddedServer("instant", guise=GUISES["trtllm"]) as server:
        command = ["--base-url", server.base_url, "--model", server.model, "--prompt", "{text}", "--concurrency", 4]
        result = cli("map", source, "-o", out, *command, "--unordered", "--param", 'extra_body={"nonsense": 1}')
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
        ("taken.jsonl", json.dumps({"text": "x", "error": 1, "answer_error": 2}) + "\n", "give --answer-field"),
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


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (200, "Error: --model (BATCHCLIENT_MODEL): no model, and the server has several: 'one', 'two'; name one\n"),
        (404, "does --base-url end in /v1"),
        (500, "which sends HTML pages, does not say which it serves (500)"),
        (401, "Error: the server was asked for its model (--model names one): 401"),
    ],
)
def test_why_a_server_does_not_say_which_model_it_has(cli, models, tmp_path, out, status, told):
    models.status = status
    source = write_rows(tmp_path / "in.jsonl", [{"text": "x"}])
    result = cli("map", source, "-o", out, "--base-url", models.url, "--prompt", "{text}")
    assert result.exit_code == 2
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


@pytest.mark.parametrize(
    ("content", "prompt", "named"),
    [
        ('[\n {"text": "a"}\n]', "{text}", "it is a JSON array"),
        ('[{"text": "a"}]', "{}", "it is a JSON array"),
        ('{"talk": [{"role": "user"}]}', "{talk}", "a conversation: {talk!j} writes it as JSON"),
        ('{"talk": [{"role": "user"}]}', "Go on: {talk}", "a template of that field alone sends it, with --call chat"),
    ],
)
def test_an_input_that_would_be_sent_as_it_is_not_meant_is_refused(cli_map, tmp_path, server, content, prompt, named):
    (tmp_path / "in").write_text(content)
    result = cli_map(tmp_path / "in", "-o", tmp_path / "out", prompt=prompt)
    assert (result.exit_code, server.requests) == (2, 0)
    assert named in result.stderr
    assert result.stderr.count("\n") == 1


def test_without_a_key_it_is_said_where_one_is_given(cli, tmp_path, out):
    source = write_rows(tmp_path / "in.jsonl", rows_of(1))
    with EmbeddedServer("instant", api_key="k") as server:
        command = ["map", source, "-o", out, "--base-url", server.base_url, "--prompt", "{text}"]
        told = cli(*command).stderr
        assert told.count("no key was given") == 1
        assert told.endswith(
            "; no key was given: give --api-key=… or set BATCHCLIENT_API_KEY (OPENAI_API_KEY is not read)\n"
        )
        for given in (["--api-key", "wrong"], ["--header", "X-Api-Key: w"]):
            assert "no key" not in cli(*command, *given).stderr


def test_without_a_server_the_option_and_the_variable_are_named(cli, tmp_path):
    told = "Error: no server: give --base-url, such as http://localhost:8000/v1, or set BATCHCLIENT_BASE_URL\n"
    for env in ({}, {"BATCHCLIENT_BASE_URL": " "}):
        result = cli("map", tmp_path / "in.jsonl", "--prompt", "{text}", env=env)
        assert (result.exit_code, result.stderr) == (2, told)


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
        # An option goes before a variable, and a header before a key.
        header = ["--header", "authorization: Bearer hush-hush", "--new"]
        wrong = variables | {"BATCHCLIENT_API_KEY": "wrong"}
        assert cli("map", source, "-o", out, "--prompt", "{text}", *header, env=wrong).exit_code == 0
        given = ["--base-url", one.base_url, "--model", "another", "--new"]
        result = cli("map", source, "-o", out, "--prompt", "{text}", *given, env=variables)
    assert result.exit_code == 1
    assert "another" in result.stderr


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
    assert [row["id"] for row in read_rows(out)] == [*range(7)]
    assert result.stderr.startswith("7 rows to ")


# Other calls than completions ----------------------------------------------------------------------------------------


@pytest.fixture
def cli_call(cli, server, out):
    """Run ``map --call`` on the server in this process; the rows of the output and the result."""

    def run(call, source, *args, prompt="{text}"):
        options = ["--base-url", server.base_url, "--model", server.model, "--call", call, "--prompt", prompt]
        result = cli("map", source, "-o", out, *options, *args)
        return (read_rows(out) if out.exists() else None), result

    return run


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


@pytest.mark.parametrize(("call", "column"), [("embed", "embedding"), ("classify", "label"), ("complete", "health")])
def test_a_column_of_the_input_keeps_its_name_where_the_output_adds_one(cli_call, tmp_path, call, column):
    (made,), result = cli_call(call, write_rows(tmp_path / "in.jsonl", [{"text": "x", column: 1}]))
    assert (result.exit_code, made[column]) == (0, 1)
    assert made[f"answer_{column}"] not in (None, 1)
    assert result.stderr.count(f"in.jsonl has {column!r}: the added one is 'answer_{column}'") == 1


def test_a_column_that_the_output_does_not_add_stays(cli_call, tmp_path):
    made, _ = cli_call("embed", write_rows(tmp_path / "in.jsonl", [{"text": "x", "completion": 1}]))
    assert made[0]["completion"] == 1
