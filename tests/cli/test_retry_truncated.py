"""``batchclient map --retry-truncated``: the same command mends the rows whose answers were cut off, and no other."""

import json

import pytest
from tests.fakes.pages import serving

from .conftest import read_rows, write_rows

WORDS = [f" {place}" for place in range(12)]


@pytest.fixture
def teller():
    """A server that counts to twelve, or for short prompts to three, from where the prompt has got to."""

    def answer(asked):
        if asked.method == "GET":
            return 404, b""
        prompts = asked.json["prompt"]
        choices = []
        for index, prompt in enumerate([prompts] if isinstance(prompts, str) else prompts):
            words = WORDS[:3] if prompt.startswith("short") else WORDS
            done = len(prompt.split()) - 1
            made = words[done : done + asked.json["max_tokens"]]
            reason = "stop" if done + len(made) == len(words) else "length"
            ids = {"token_ids": [1] * len(made), "prompt_token_ids": [1]}
            choices.append({"index": index, "text": "".join(made), "finish_reason": reason, **ids})
        usage = {"prompt_tokens": len(choices), "completion_tokens": sum(len(each["token_ids"]) for each in choices)}
        running.bodies.append(asked.json)
        return 200, {"choices": choices, "usage": usage}

    with serving(answer) as running:
        running.bodies = []
        yield running


def test_the_same_command_with_it_mends_those_rows_alone(cli, teller, tmp_path):
    texts = ["long0", "short1", "long2", "short3"]
    source = write_rows(tmp_path / "in.jsonl", [{"id": text, "text": text} for text in texts])
    out = tmp_path / "out.jsonl"
    command = ["map", source, "-o", out, "--base-url", teller.url, "--model", "m", "--prompt", "{text}"]
    command += ["--max-tokens", 8, "--columns", "id"]
    assert cli(*command).exit_code == 0
    assert [row["finish_reason"] for row in read_rows(out)] == ["length", "stop", "length", "stop"]
    teller.bodies.clear()
    result = cli(*command, "--retry-truncated", 1, "--max-tokens-at-most", 40)
    rows = read_rows(out)
    assert [row["completion"] for row in rows] == ["".join(WORDS), " 0 1 2"] * 2
    assert [row["usage"]["completion_tokens"] for row in rows] == [12, 3, 12, 3]
    asked = [
        prompt
        for body in teller.bodies
        for prompt in ([body["prompt"]] if type(body["prompt"]) is str else body["prompt"])
    ]
    assert {tuple(prompt.split()) for prompt in asked} == {(text, *"01234567") for text in ("long0", "long2")}
    assert {body["max_tokens"] for body in teller.bodies} == {32}
    assert "reused: 2" in result.stderr and "regained: 16" in result.stderr
    teller.bodies.clear()
    assert "nothing to do" in cli(*command, "--retry-truncated", 1, "--max-tokens-at-most", 40).stderr
    assert not teller.bodies


def test_a_wrong_number_is_refused_in_the_command_s_words_and_runaway_is_a_matter_of_the_client(cli, teller, tmp_path):
    source = write_rows(tmp_path / "in.jsonl", [{"id": "1", "text": "short"}])
    command = [
        "map",
        source,
        "-o",
        tmp_path / "o.jsonl",
        "--base-url",
        teller.url,
        "--model",
        "m",
        "--prompt",
        "{text}",
    ]
    result = cli(*command, "--max-tokens-at-most", 9)
    assert result.exit_code == 2 and "--max-tokens-at-most: for --retry-truncated" in result.stderr
    assert cli(*command, "--runaway", "--max-tokens", 50).exit_code == 0
    assert all("runaway" not in body and body["repetition_detection"] for body in teller.bodies)
    assert json.loads((tmp_path / "o.jsonl").read_text())["completion"] == " 0 1 2"
