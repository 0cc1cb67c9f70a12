"""``batchclient map --dry-run``: everything is read and rendered, and nothing is generated."""

import json
import re

import pytest

from batchclient.simulator import EmbeddedServer
from tests.guises import GUISES

from .conftest import write_rows


@pytest.fixture
def dry_run(cli, tmp_path):
    """Run on a server of a guise; the result and the paths that were asked for."""

    def run(rows, *options, guise="vllm", length=300, prompt="Say {text}"):
        source = rows if not isinstance(rows, list) else write_rows(tmp_path / "in.jsonl", rows)
        with EmbeddedServer("instant", guise=GUISES[guise], max_model_len_tokens=length) as server:
            result = cli("map", source, "--dry-run", "--base-url", server.base_url, "--prompt", prompt, *options)
            assert server.requests == 0, "a dry run generates nothing"
            # The question ``server.requests`` is one of the answers.
            return result, server.statistics()["statuses"]["200"] - 1

    return run


def lines_of(result):
    return dict(line.partition(": ")[::2] for line in result.stdout.splitlines())


def test_it_tells_what_a_job_would_send(dry_run, tmp_path):
    rows = [{"text": "word " * (number % 400)} for number in range(1000)]
    result, asked = dry_run(rows, "--max-tokens", 5)
    assert result.exit_code == 0, result.output
    told = lines_of(result)
    assert (told["rows"], told["unusable"]) == ("1,000", "0")
    assert told["duplicates"].startswith("600 (")
    # ``Say `` and 5 bytes a word; the simulated server has a token for each word and each space.
    assert re.match(
        r"median 3\d\d, p99 7\d\d, max 800 \(the server counted 256 prompts, the longest among them;",
        told["tokens of a prompt"],
    )
    assert re.match(
        r"about 5\d\d \(300 tokens with 5 for the answer; the longest is in line [48]00\)",
        told["longer than the model takes"],
    )
    assert result.stdout.endswith("first prompt:\n  Say \n")
    # The list of models, for its name, its kind and its length, the pages by which the server is known, and 256 texts.
    assert asked <= 263


def test_unusable_rows_are_counted_and_the_first_five_shown(dry_run, tmp_path):
    source = tmp_path / "in.csv"
    source.write_text("id,text\n0,a\n1\n2,\n" + "3,b,c\n" * 9)
    result, _ = dry_run(source)
    assert result.exit_code == 1
    assert result.stdout.splitlines()[:8] == [
        "rows: 12",
        "unusable: 11",
        "  line 3 has 1 field, and the header has 2",
        "  line 4: 'text' is empty",
        "  line 5 has 3 fields, and the header has 2",
        "  line 6 has 3 fields, and the header has 2",
        "  line 7 has 3 fields, and the header has 2",
        "  … and 6 more",
    ]


def test_other_servers_count_too(dry_run):
    for guise in ("sglang", "llamacpp", "tgi"):
        told = lines_of(dry_run([{"text": "a b"}] * 3, guise=guise)[0])
        assert "counted by the server" in told["tokens of a prompt"]
        assert told["longer than the model takes"].startswith("0 (300 tokens")


def test_a_server_that_counts_nothing_makes_it_an_estimate(dry_run):
    result, asked = dry_run([{"text": "x" * 4000}] * 300, guise="trtllm")
    assert result.exit_code == 0
    told = lines_of(result)
    assert told["tokens of a prompt"].startswith("median 1,001, p99 1,001, max 1,001 (")
    assert "(estimated, 4 bytes a token; the server counted none: " in told["tokens of a prompt"]
    assert "unknown, the server does not say" in told["longer than the model takes"]
    # The list of models, for its name; that and the version, before a first text and for the report.
    assert asked <= 5


def test_a_chat_is_shown_and_counted_without_its_template(dry_run):
    result, _ = dry_run([{"text": "hello"}], "--call", "chat", "--system", "Be brief.")
    assert "; without the chat template's own)" in result.stdout
    assert json.loads(result.stdout.partition("first prompt:\n")[2]) == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Say hello"},
    ]


def test_the_rows_that_a_job_would_read_are_read(dry_run):
    rows = [{"text": f"{number}"} for number in range(100)]
    assert lines_of(dry_run(rows, "--first", 7)[0])["rows"] == "7"
    assert 5 <= int(lines_of(dry_run(rows, "--shard", "1/10", "-o", "{shard}")[0])["rows"]) <= 15


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--prompt", "{txt}"], "--prompt names {txt}"),
        (["-o", "{dir}/out.jsonl"], "the file exists"),
        (["--dedupe", "-o", "-"], "--dedupe"),
    ],
)
def test_what_a_job_refuses_a_dry_run_refuses(dry_run, tmp_path, options, named):
    (tmp_path / "out.jsonl").write_text("precious")
    result, asked = dry_run([{"text": "a"}], *(option.replace("{dir}", str(tmp_path)) for option in options))
    assert (result.exit_code, asked, result.stdout) == (2, 0, "")
    assert named in result.stderr
    assert (tmp_path / "out.jsonl").read_text() == "precious"


def test_an_output_is_neither_opened_nor_made(dry_run, out, tmp_path):
    out.write_text("precious")
    assert dry_run([{"text": "a"}], "-o", out, "--new")[0].exit_code == 0
    assert dry_run([{"text": "a"}], "-o", tmp_path / "new.jsonl")[0].exit_code == 0
    assert out.read_text() == "precious"
    assert not (tmp_path / "new.jsonl").exists()


def test_a_server_that_is_away_leaves_an_estimate(cli, tmp_path):
    source = write_rows(tmp_path / "in.jsonl", [{"text": "a"}])
    command = ["--dry-run", "--base-url", "http://127.0.0.1:1/v1", "--model", "m", "--prompt", "{text}"]
    result = cli("map", source, *command, "--timeout", 0.2)
    assert result.exit_code == 1
    assert "estimated, 4 bytes a token; the server counted none: " in result.stdout


def test_a_server_that_refuses_the_model_the_key_or_the_address_is_a_failure(cli, tmp_path):
    source = write_rows(tmp_path / "in.jsonl", [{"text": "a"}])
    with EmbeddedServer("instant") as server, EmbeddedServer("instant", api_key="right") as other:
        elsewhere = server.base_url.removesuffix("/v1") + "/elsewhere"
        for url, options, named in [
            (server.base_url, ["--model", "other"], "other"),
            (other.base_url, ["--api-key", "hush-hush"], "AuthenticationFailed"),
            (elsewhere, ["--model", server.model], "or --base-url does not end in /v1"),
        ]:
            result = cli("map", source, "--dry-run", "--base-url", url, "--prompt", "{text}", *options)
            assert result.exit_code == 1
            assert named in result.stdout
            assert "hush" not in result.output


def test_with_a_price_it_tells_the_cost(dry_run):
    rows = [{"text": "a b c"}, {"text": "a"}]
    told = lines_of(dry_run(rows, "--price", "100000/1000000", "--max-tokens", 30)[0])
    tokens = int(told["tokens of all prompts"].removeprefix("about "))
    assert told["cost of all prompts"] == f"about {tokens * 0.1:.4f}"
    assert told["cost of all answers"] == "at most 60.00"
    told = lines_of(dry_run(rows, "--price", "100000/1000000")[0])
    assert told["cost of all answers"] == "unknown without --max-tokens"
    told = lines_of(dry_run(rows, "--price", "100000/0", "--call", "embed")[0])
    assert "cost of all prompts" in told and "cost of all answers" not in told
    for options in ([], ["--gpu-price", 2]):
        assert "cost" not in dry_run(rows, *options)[0].stdout


@pytest.mark.parametrize(
    ("rows", "options", "most"),
    [
        ([{"text": "a", "max_tokens": 1000}, {"text": "b"}], ["--row-params", "take", "--max-tokens", 4], 1004),
        ([{"text": "a", "max_tokens": 1000}, {"text": "b"}], ["--row-params", "take"], None),
        ([{"text": "a"}] * 2, ["--param", "n=8", "--max-tokens", 32], 512),
        ([{"text": "a"}] * 2, ["--max-tokens", 32, "--retry-truncated", 2], 256),
        ([{"text": "a"}] * 2, ["--max-tokens", 32, "--retry-truncated", 2, "--max-tokens-at-most", 50], 100),
        ([{"text": "a"}] * 2, ["--max-tokens", 32, "--thinking-tokens", 200], 468),
        ([{"text": "a"}] * 2, ["--param", 'extra_body={"max_completion_tokens": 7}', "--call", "chat"], 14),
    ],
)
def test_at_most_so_many_tokens_are_those_of_each_row(dry_run, rows, options, most):
    told = lines_of(dry_run(rows, *options, "--price", "1/1000000")[0])
    assert told.get("tokens of all answers") == (most and f"at most {most:,}")
    assert told["cost of all answers"] == (f"at most {most:,}.00" if most else "unknown without --max-tokens")


def test_a_dry_run_waits_for_its_server_and_counts(cli, server, tmp_path):
    source = write_rows(tmp_path / "in.jsonl", [{"text": "one two three"}])
    for urls in ([server.base_url], [server.base_url, "http://127.0.0.1:1/v1"]):
        options = [f"--base-url={url}" for url in urls]
        done = cli("map", source, *options, "--prompt", "{text}", "--dry-run", "--wait-for-server", 60)
        assert done.exit_code == 0 and "counted by the server" in done.stdout
