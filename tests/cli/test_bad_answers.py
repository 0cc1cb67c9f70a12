"""Bad answers: told first, mended by the command that is named, and a bound that ends the job."""

import json
import re
import shlex
from pathlib import Path

import pytest
from tests.fakes.pages import serving

from batchclient.cli._progress import Meter, Snapshot
from batchclient.simulator import EmbeddedServer

from .conftest import read_rows, rows_of, write_rows

LOOP = "la la " * 60


@pytest.fixture
def scripted(tmp_path):
    """A server: of a hundred rows 30 are cut off and 7 loop or are empty; cut ones go on where they are asked to."""

    def text_of(prompt):
        number = int(prompt.split()[2].rstrip(".")) % 100
        if "..." in prompt:
            return " The end.", "stop"
        if number < 30:
            return " Once upon a time...", "length"
        return ("", "stop") if number < 35 else (LOOP, "length") if number < 37 else (" Yes.", "stop")

    def answer(asked):
        if asked.method == "GET":
            return 404, b""
        is_chat = "messages" in asked.json
        prompt = "".join(each["content"] for each in asked.json["messages"]) if is_chat else asked.json["prompt"]
        prompts = prompt if isinstance(prompt, list) else [prompt]
        running.prompts += prompts
        if running.is_full and "..." in prompts[0]:
            return 400, {"error": {"message": "the context is full", "code": 400}}
        made = [text_of(prompt) for prompt in prompts for _ in range(asked.json.get("n", 1))]
        said = [{"message": {"role": "assistant", "content": text}} if is_chat else {"text": text} for text, _ in made]
        choices = [{"index": i, **said[i], "finish_reason": why} for i, (_, why) in enumerate(made)]
        tokens = sum(running.tokens if why == "length" else 2 for _, why in made)
        usage = {"prompt_tokens": 3 * len(made), "completion_tokens": tokens, "total_tokens": 3 * len(made) + tokens}
        return 200, {"choices": choices, "usage": usage}

    with serving(answer) as running:
        running.prompts, running.tokens, running.is_full = [], 64, False
        yield running


@pytest.fixture
def ask(cli, scripted, tmp_path):
    """Map rows; return the result, its lines, and the prompts that were sent."""
    source = write_rows(tmp_path / "in.jsonl", rows_of(6000))

    def run(*options, max_tokens=64, first=2000):
        scripted.prompts.clear()
        command = ["map", source, "--base-url", scripted.url, "--model", "m", "--prompt", "Say {text}"]
        command += ["--dialect", "vllm", "--max-tokens", max_tokens, "--max-batch-size", 100, "--first", first]
        done = cli(*command, *options)
        return done, done.stderr.splitlines(), list(scripted.prompts)

    return run


def test_the_summary_tells_of_them_first_and_its_command_mends_them_alone(ask, scripted, out, journal):
    done, lines, sent = ask("-o", out)
    assert (done.exit_code, len(sent)) == (0, 2000)
    assert lines[0].startswith(f"bad answers: 30 % truncated: 2,000 rows to {out} in ")
    assert lines[1:4] == [
        "  600 truncated, such as line 1",
        "  100 empty, such as line 31",
        "  40 runaway, such as line 36",
    ]
    options = "--retry-truncated 1 --max-tokens-at-most 128"
    assert lines[4:] == [
        f"the same command with {options} lets the truncated answers go on, and sends no other answered row"
    ]
    done, lines, sent = ask("-o", out, *options.split())
    assert (done.exit_code, len(sent)) == (0, 600)
    assert all(int(prompt.split()[2].rstrip(".")) % 100 < 30 for prompt in sent)
    assert lines[0].startswith("2,000 rows to ") and ", regained: " in lines[0]
    assert lines[1:] == ["  100 empty, such as line 31", "  40 runaway, such as line 36"]
    rows = read_rows(out)
    assert {row["completion"] for row in rows[:30]} == {" Once upon a time... The end."}
    assert [row["finish_reason"] for row in rows[28:31]] == ["stop"] * 3
    done, lines, sent = ask("-o", out, *options.split())
    assert (done.exit_code, sent) == (0, [])
    assert lines == [f"{out} is finished, with these settings and this input: nothing to do"]


def test_no_command_is_named_where_none_mends(ask, scripted, out):
    # Several answers do not go on; and what the context has cut off is cut off again.
    scripted.is_full = True
    for options in (
        ["--retry-truncated", 1],
        ["--retry-truncated", 1, "--max-tokens-at-most", 128],
        ["--param", "n=2"],
    ):
        _, lines, _ = ask("-o", out, *options, "--new", first=40)
        assert "truncated" in lines[0] and "the same command" not in lines[-1], options


def test_a_columns_or_a_rows_own_budget_is_not_called_the_option(cli, tmp_path, out):
    rows = [
        {"text": "a", "thinking_tokens": None},
        {"text": "b", "thinking_tokens": 5, "params": {"thinking_tokens": -4}},
    ]
    source = write_rows(tmp_path / "in.jsonl", rows)
    with EmbeddedServer(model="m", thinking_tokens=200, reasoning_parser=True) as server:
        to = ["--base-url", server.base_url, "--model", "m", "--call", "chat", "--prompt", "{text} {thinking_tokens}"]
        done = cli("map", source, *to, "--max-tokens", 20, "--thinking-tokens", 30, "-o", out)
    assert "line 1: 'thinking_tokens' is empty" in done.stderr
    assert "line 2: thinking_tokens is a whole number of at least 0, not -4" in done.stderr


def test_what_helps_against_thinking_is_named_by_the_report_and_by_a_bound(cli, tmp_path, out):
    source = write_rows(tmp_path / "in.jsonl", rows_of(60))
    for parser in (False, True):
        with EmbeddedServer(model="m", thinking_tokens=200, reasoning_parser=parser, output_lengths="fixed") as server:
            command = [
                "map",
                source,
                "--base-url",
                server.base_url,
                "--model",
                "m",
                "--prompt",
                "{text}",
                "--call",
                "chat",
            ]
            done = cli(*command, "--max-tokens", 20, "-o", out, "--new", "--fail-if", "reasoning_only>5%")
            said = "; --thinking-tokens bounds the thinking, and leaves room for the answer"
            assert done.exit_code == 3 and said in done.stderr.splitlines()[0]
            done = cli(*command, "--max-tokens", 20, "-o", out, "--new")
            assert "--thinking-tokens N bounds the thinking, and leaves room for the answer" in done.stderr
            done = cli(*command, "--max-tokens", 20, "--thinking-tokens", 30, "-o", out, "--new")
            assert "reasoning_only" not in done.stderr and done.exit_code == 0
            assert {row["usage"]["completion_tokens"] for row in read_rows(out)} == {52 if parser else 50}


def test_the_report_names_what_helps_where_a_server_ignores_a_budget(cli, tmp_path, out):
    def answer(asked):
        if asked.method == "GET":
            return 404, b""
        message = {"role": "assistant", "reasoning": "hm " * 100, "content": "Yes."}
        usage = {"prompt_tokens": 3, "completion_tokens": 102, "total_tokens": 105}
        return 200, {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "usage": usage}

    source = write_rows(tmp_path / "in.jsonl", rows_of(3))
    with serving(answer) as server:
        command = ["map", source, "--base-url", server.url, "--model", "m", "--prompt", "{text}", "--call", "chat"]
        done = cli(*command, "--dialect", "llamacpp", "--max-tokens", 500, "--thinking-tokens", 30, "-o", out)
    assert "over --thinking-tokens: 3 answers, since the server ignores it; take a llama.cpp of May 2026" in done.stderr


def test_a_classification_by_one_token_is_not_called_truncated(ask, scripted, out):
    scripted.tokens = 1
    done, lines, _ = ask("-o", out, "--fail-if", "truncated>0%", max_tokens=1)
    assert done.exit_code == 0
    assert lines[0].startswith("2,000 rows to ") and "truncated" not in done.stderr


def test_a_bound_that_is_far_off_ends_the_job_early(ask, out, journal):
    done, lines, sent = ask(
        "-o", out, "--fail-if", "empty>20%", "--fail-if", "truncated>1%", "--concurrency", 8, first=6000
    )
    assert (done.exit_code, out.exists()) == (3, False)
    # A thread of the server may complain of the calls that were left.
    lines = lines[next(number for number, line in enumerate(lines) if line.startswith("Error: ")) :]
    assert lines[0].startswith(
        "Error: stopped: --fail-if truncated>1%: 30 of the first 50 rows (60 %); rows left out: "
    )
    ending = next(number for number, line in enumerate(lines) if line.startswith(str(journal)))
    assert lines[ending : ending + 2] == [
        f"{journal} has the answers: the same command without the bound goes on with them",
        "the same command with --retry-truncated 1 --max-tokens-at-most 128 lets the truncated answers go on, and sends"
        " no other answered row",
    ]
    # Some thousand rows are under way or read ahead on a busy machine.
    assert 50 <= len(sent) < 6000


def test_a_job_all_of_whose_rows_have_an_answer_is_whole(ask, out, journal):
    bound = ["-o", out, "--fail-if", "truncated>1%"]
    done, lines, sent = ask(*bound, first=100)
    assert (done.exit_code, len(sent), len(read_rows(out))) == (3, 100, 100)
    assert lines[0] == f"Error: --fail-if truncated>1%: 30 of 100 rows (30 %); all rows are in {out}"
    # What another run has answered costs nothing.
    out.unlink(), journal.unlink()
    assert ask("-o", out, first=100)[0].exit_code == 0
    done, lines, sent = ask(*bound, "--unordered", first=100)
    assert (done.exit_code, sent, len(read_rows(out))) == (3, [], 100)


def test_a_bound_that_is_passed_in_the_end_decides_the_status(ask, out):
    told = "--fail-if empty>4.9%: 10 of 200 rows (5 %)"
    for status, options, sends, line in (
        (3, ["--fail-if", "empty>4.9%"], 200, f"Error: {told}"),
        (
            3,
            ["--fail-if", "empty>4.9%"],
            0,
            f"{out} is finished, with these settings and this input: nothing to do; {told}",
        ),
        # The bound is no part of the answers.
        (0, ["--fail-if", "empty>5%"], 0, "bad answers: 30 % truncated: 200 rows"),
    ):
        done, lines, sent = ask("-o", out, *options, first=200)
        assert (done.exit_code, len(sent)) == (status, sends)
        assert lines[0].startswith(line) and len(read_rows(out)) == 200


def test_a_wrong_bound_is_refused(ask, out):
    done, lines, sent = ask("-o", out, "--fail-if", "long>1%")
    assert (done.exit_code, sent) == (2, [])
    assert lines[0].startswith("Error: --fail-if: such as 'truncated>1%', not 'long>1%'; kinds: truncated, empty,")


def test_the_bar_has_them():
    told = Meter(30.0, clock=lambda: 1.0).describe(Snapshot(100, 0, 1, 2, 0, 0, bad="30 truncated"), 200)
    assert " rows/s · ETA " in told and " · 30 truncated · 1/2 in flight" in told


def test_a_program_reads_the_counts(ask, cli, out, journal):
    done, lines, _ = ask("-o", out, "--log-format", "json", first=100)
    summary = json.loads(lines[-1])
    assert [summary[name] for name in ("event", "truncated", "empty", "runaway")] == ["summary", 30, 5, 2]
    assert "bad answers: 30 truncated, 5 empty, 2 runaway" in cli("job", "status", journal).stdout
