"""Which rows ``batchclient map`` reads, and what becomes of them: CSV, Parquet, gzip, shards, columns, equal rows."""

import gzip
import json
import os
from contextlib import ExitStack

import pyarrow as pa
import pytest
from pyarrow import parquet

from batchclient.partition import endpoints_shard
from batchclient.simulator import EmbeddedServer, expected_text

from .conftest import read_rows, rows_of, write_rows


def answer(text, prompt="Say {text}"):
    return expected_text(prompt.replace("{text}", text), max_tokens=3, temperature=0)


# CSV and gzip --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "prompt", "named"),
    [
        ("", "{id}", "in.csv: it is CSV, and has no header"),
        ("a b,u\n1,2\n", "{u.x}", "the first row ({dir}/in.csv, line 2) has no such field; it has {a b}, {u}"),
        ("a;b,c\n1;2,3\n", "{a}", "has no such field; it has {a;b}, {c}; give --delimiter ';'\n"),
        ('"say ""x""",c\n1,3\n', "{a}", "no such field; it has {c}\n"),
        ("id,text\n1,2\n", "{}", "--prompt: {} stands for a text line, and {dir}/in.csv is csv; it has {id}, {text}"),
    ],
)
def test_csv_that_cannot_be_is_refused_before_anything_is_sent(cli_map, tmp_path, out, server, content, prompt, named):
    (tmp_path / "in.csv").write_text(content)
    result = cli_map(tmp_path / "in.csv", "-o", out, prompt=prompt)
    assert (result.exit_code, server.requests, out.exists()) == (2, 0, False)
    assert named.replace("{dir}", str(tmp_path)) in result.stderr
    assert result.stderr.count("\n") == 1


def test_a_column_of_any_name_and_a_path_enter_a_template(cli_map, tmp_path, out):
    (tmp_path / "in.csv").write_bytes('sep=;\r\n;"Review Text";\r\n1;"a;b";\r\n'.encode("utf-16"))
    assert cli_map(tmp_path / "in.csv", "-o", out, prompt="Say {Review Text}").exit_code == 0
    [row] = read_rows(out)
    assert row["completion"] == answer("a;b")
    assert list(row)[:4] == ["column_1", "Review Text", "column_3", "id"]
    rows = [{"text": "x", "user": {"name": ["n"]}, "tags": ["t", {"a": True}]}]
    source = write_rows(tmp_path / "in.jsonl", rows)
    assert cli_map(source, "-o", out, "--new", prompt="{user.name[0]} {tags[1].a} {tags[1]!j}").exit_code == 0
    assert read_rows(out)[0]["completion"] == answer("", 'n true {"a": true}')


def test_a_path_leads_through_what_another_name_writes_as_json_and_through_null(cli_map, tmp_path, out):
    rows = [{"user": None, "tags": None}, {"user": {"name": "n"}, "tags": [[1], 2]}]
    source = write_rows(tmp_path / "in.jsonl", rows)
    assert cli_map(source, "-o", out, prompt="Say {user.name} {tags[0][0]} {user!j} {tags[0]!j}").exit_code == 1
    null, whole = read_rows(out)
    assert null["error"]["message"] == "line 1: 'user.name' is empty"
    assert whole["completion"] == answer('n 1 {"name": "n"} [1]')


def test_a_wrong_name_is_told_with_all_columns_of_a_table(cli_map, tmp_path, out):
    parquet.write_table(pa.table({"text": ["a"], "n": [1]}), tmp_path / "in.parquet")
    refused = cli_map(tmp_path / "in.parquet", "-o", out, "--columns", "n", prompt="{txt}")
    assert (refused.exit_code, "it has {text}, {n}\n" in refused.stderr) == (2, True)


def test_a_parquet_file_from_end_to_end(cli_map, tmp_path, out, server):
    days = pa.array([19_782, 19_782, 4_000_000], pa.int32()).view(pa.date32())
    table = pa.table({"id": [1, 2, 3], "Review Text": ["a", None, "c"], "at": days, "raw": [b"\xff", b"", b""]})
    parquet.write_table(table, tmp_path / "in.parquet")
    result = cli_map(tmp_path / "in.parquet", "-o", out, prompt="Say {Review Text} of {at}")
    assert result.exit_code == 1
    first, missing, beyond = read_rows(out)
    assert beyond["error"]["message"].startswith("line 3 has a date32[day] in column 'at' that Python cannot hold")
    assert (first["id"], first["at"], first["raw"]) == (1, "2024-02-29", "/w==")
    assert first["completion"] == answer("a of 2024-02-29")
    assert missing["error"]["message"] == "line 2: 'Review Text' is empty"
    assert (
        cli_map(tmp_path / "in.parquet", "-o", out, "--new", "--columns", "raw", prompt="{Review Text}").exit_code == 1
    )
    assert [row["id"] for row in read_rows(out) if "error" not in row] == [1, 3]
    asked = server.requests
    refused = cli_map(tmp_path / "in.parquet", "-o", out, "--new", prompt="{raw}")
    assert (refused.exit_code, server.requests) == (2, asked)
    assert "in the first row" in refused.stderr
    assert "it is bytes, not a text" in refused.stderr


# Shards --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--shard", "8/8", "-o", "{dir}/{shard}"], "--shard: parts count from 0: 0/8 to 7/8, not 8/8"),
        (["--shard", "0/8", "-o", "{dir}/o"], "8 shards would write one file; put {shard} into its name"),
        (["-o", "{dir}/{shard}"], "{shard} stands for the number of --shard, which is not given"),
        (["--columns", "id,id"], "--columns: 'id' comes twice"),
        (["--columns", "id,txt"], "--columns: the first row ({dir}/in.jsonl, line 1) has no field 'txt'; it has {id}"),
        (["--id", "sku"], "--id: the first row ({dir}/in.jsonl, line 1) has no field 'sku'; it has {id}"),
        (["--system", "Be brief."], "--system is for --call chat"),
        (["--prompt-file", "{dir}/in.jsonl"], "--prompt-file: give it or --prompt, not both"),
        (["--dedupe", "-o", "/dev/null"], "--dedupe needs a journal, which has the answers"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_wrong_usage_is_refused_before_anything_happens(cli_map, tmp_path, out, server, options, named):
    source = write_rows(tmp_path / "in.jsonl", rows_of(1))
    options = [option.replace("{dir}", str(tmp_path)) for option in options]
    result = cli_map(source, *([] if "-o" in options else ["-o", out]), *options)
    assert result.exit_code == 2
    assert named.replace("{dir}", str(tmp_path)) in result.stderr
    assert result.stderr.count("\n") == 1
    assert server.requests == 0
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_the_commands_of_all_parts_use_every_server_and_share_none(cli, tmp_path):
    """With --shard of the same numbers: each has its rows, and its servers."""
    source = write_rows(tmp_path / "in.jsonl", [{"id": str(number), "text": f"t {number}"} for number in range(200)])
    with ExitStack() as stack:
        servers = [stack.enter_context(EmbeddedServer("instant", model="m")) for _ in range(4)]
        urls = [server.base_url for server in servers]
        every = [option for url in urls for option in ("--base-url", url)]
        for part in range(2):
            before = [server.prompts for server in servers]
            command = ["map", source, *every, "--model", "m", "--prompt", "{text}", "--concurrency", 4]
            command += ["--shard", f"{part}/2", "--endpoints-shard", f"{part}/2", "-o", tmp_path / "out-{shard}.jsonl"]
            result = cli(*command)
            assert result.exit_code == 0, result.output
            used = {server.base_url for server, was in zip(servers, before, strict=True) if server.prompts > was}
            assert used == set(endpoints_shard(urls, (part, 2)))
        assert all(server.prompts for server in servers)
    rows = [row["id"] for part in range(2) for row in read_rows(tmp_path / f"out-{part}.jsonl")]
    assert sorted(rows, key=int) == [str(number) for number in range(200)]


def test_what_is_no_part_is_refused_before_anything_is_sent(cli, tmp_path):
    source = write_rows(tmp_path / "in.jsonl", [{"text": "t"}])
    servers = ["--base-url", "http://127.0.0.1:1/v1", "--base-url", "http://127.0.0.1:2/v1"]
    for shard, said in (("2/2", "parts count from 0: 0/2 to 1/2, not 2/2\n"), ("0/3", "3 workers share 2 servers: ")):
        result = cli("map", source, *servers, "--prompt", "{text}", "--endpoints-shard", shard)
        assert result.exit_code == 2
        assert f"Error: --endpoints-shard: {said}" in result.stderr


# Their order ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [[], ["--unordered"]])
def test_rows_have_the_order_of_the_input_or_are_written_as_they_finish(cli_map, tmp_path, out, server, options):
    """One of the first two rows gets no answer, and fails when the others have long finished."""
    server.set_faults("stall,count=1")
    settings = ["--max-batch-size", 1, "--concurrency", 2, "--timeout", 0.9]
    cli_map(write_rows(tmp_path / "in.jsonl", rows_of(5)), "-o", out, *settings, *options)
    rows = read_rows(out)
    assert [row["id"] for row in sorted(rows, key=lambda row: row["id"])] == [0, 1, 2, 3, 4]
    assert [row["id"] for row in rows] == [0, 1, 2, 3, 4] if not options else "error" in rows[-1]


# Columns, prompts ----------------------------------------------------------------------------------------------------


def test_columns_are_what_the_output_keeps(cli_map, tmp_path, out):
    rows = [
        {"id": 1, "text": "a", "at": 1, "usage": "old", "more": 1},
        {"id": 2, "text": "b"},
        {"text": "c", "at": None},
    ]
    result = cli_map(write_rows(tmp_path / "in.jsonl", rows), "-o", out, "--columns", "at, text")
    assert result.exit_code == 1
    first, without, null = read_rows(out)
    assert first.pop("usage") != "old"
    assert first == {
        "id": 1,
        "text": "a",
        "at": 1,
        "completion": answer("a"),
        "finish_reason": "length",
        "health": "ok",
    }
    assert without == {"id": 2, "text": "b", "error": {"type": "BadRow", "message": "line 2 has no field 'at'"}}
    assert null["at"] is None
    assert "completion" in null


def test_columns_may_stand_in_quotes(cli_map, out, tmp_path):
    (tmp_path / "in.csv").write_text('id, text,"a, b",c\n1,x,y,z\n')
    assert cli_map(tmp_path / "in.csv", "-o", out, "--columns", '" text", "a, b"', prompt="{ text}").exit_code == 0
    assert list(read_rows(out)[0])[:4] == ["id", " text", "a, b", "completion"]


def test_a_template_may_name_fields_that_the_output_leaves_out(cli_map, tmp_path, out):
    rows = [{"id": 1, "completion": "an earlier answer", "at": 1}]
    source = write_rows(tmp_path / "in.jsonl", rows)
    assert cli_map(source, "-o", out, "--columns", "at", prompt="Mend {completion}").exit_code == 0
    [row] = read_rows(out)
    assert (row["at"], row["completion"]) == (1, answer("an earlier answer", "Mend {text}"))


def test_a_template_from_a_file(cli, server, tmp_path, out):
    source = write_rows(tmp_path / "in.jsonl", rows_of(1))
    command = ["map", source, "-o", out, "--base-url", server.base_url, "--max-tokens", 3, "--temperature", 0]
    (tmp_path / "prompt.txt").write_bytes("\ufeffÄ line,\nand {text}\r\n".encode())
    assert cli(*command, "--prompt-file", tmp_path / "prompt.txt").exit_code == 0
    assert read_rows(out)[0]["completion"] == answer("text 0", "Ä line,\nand {text}")
    for name, content, named in [
        ("none.txt", None, "none.txt: No such file or directory"),
        ("bad.txt", b"a\xff", "bad.txt is not UTF-8 (byte 2 of it)"),
        ("long.txt", b"a" * (1 << 20) + b"a", "long.txt is longer than 1 MiB"),
        ("empty.txt", b"\n", "--prompt: the template has no field"),
    ]:
        if content is not None:
            (tmp_path / name).write_bytes(content)
        refused = cli(*command, "--new", "--prompt-file", tmp_path / name)
        assert refused.exit_code == 2
        assert named in refused.stderr


def test_a_system_message_goes_before_each_conversation(cli, server, tmp_path, out):
    talk = [{"role": "user", "content": "hello"}]
    rows = [{"talk": "hello"}, {"talk": talk}, {"talk": [{"role": "system", "content": "Mine."}, *talk]}]
    source = write_rows(tmp_path / "in.jsonl", rows)
    command = ["map", source, "-o", out, "--base-url", server.base_url, "--max-tokens", 3, "--temperature", 0]
    command += ["--new", "--call", "chat", "--prompt", "{talk}"]
    assert cli(*command).exit_code == 0
    without = [row["completion"] for row in read_rows(out)]
    assert without[0] == without[1]
    result = cli(*command, "--system", "Be {brief}.")
    assert result.exit_code == 1
    text, whole, own = read_rows(out)
    assert text["completion"] == whole["completion"] != without[0]
    assert own["error"]["message"] == "--system: line 3 has a system message of its own"
    write_rows(source, rows[2:])
    refused = cli(*command, "--system", "Be brief.")
    assert refused.exit_code == 2
    assert "--system: line 1 has a system message of its own" in refused.stderr


# Equal rows ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [[], ["--unordered"]])
def test_equal_prompts_are_asked_once_and_each_row_gets_the_answer(cli_map, tmp_path, out, server, options):
    rows = [{"at": number, "text": text} for number, text in enumerate(["a", "b", "a", "a", "c", "poison"] * 50)]
    rows[7] = {"at": 7, "text": None}
    server.set_faults("bad_prompt=poison")
    source = write_rows(tmp_path / "in.jsonl", rows)
    assert cli_map(source, "-o", out).exit_code == 1
    plain, asked = read_rows(out), server.prompts
    piped, end = os.pipe()
    os.write(end, source.read_bytes())
    os.close(end)
    again = cli_map(f"/dev/fd/{piped}", "-o", out, "--new", "--dedupe", "--max-batch-size", 1, *options)
    assert (again.exit_code, server.prompts - asked) == (1, 4)
    assert "; failed: 51\n  50 BadRequest, such as line 6: " in again.stderr and "reused: 295" in again.stderr
    assert sorted(read_rows(out), key=lambda row: row["at"]) == plain
    assert len({row["id"] for row in plain}) == 300


# Fields that parameters ask for --------------------------------------------------------------------------------------


def test_logprobs_and_token_ids_that_were_asked_for_are_in_the_rows(cli_map, tmp_path, out):
    source = write_rows(tmp_path / "in.jsonl", rows_of(3))
    asked = ["--param", "logprobs=1", "--param", "return_token_ids=true", "--param", "prompt_logprobs=1"]
    assert cli_map(source, "-o", out, *asked).exit_code == 0
    for row in read_rows(out):
        assert "".join(row["logprobs"]["tokens"]) == row["completion"]
        assert len(row["logprobs"]["token_logprobs"]) == len(row["token_ids"]) == row["usage"]["completion_tokens"]
        assert len(row["prompt_logprobs"]) == row["usage"]["prompt_tokens"]


def test_a_row_that_has_a_field_of_a_name_asked_for_is_refused(cli_map, tmp_path, out, server):
    source = write_rows(tmp_path / "in.jsonl", [{"text": "x", "logprobs": 1}])
    result = cli_map(source, "-o", out, "--param", "logprobs=1")
    assert (result.exit_code, server.requests, out.exists()) == (2, 0, False)
    assert "'logprobs'" in result.stderr
    assert cli_map(source, "-o", out, "--row-params", "ignore").exit_code == 0
    assert read_rows(out)[0]["logprobs"] == 1


# Values that are no texts --------------------------------------------------------------------------------------------
