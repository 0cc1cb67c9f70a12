"""The embedded server's model that thinks: its text, its reasoning apart from the answer, and budgets as each server heeds them."""

import json

import pytest
from typer.testing import CliRunner

from batchclient.cli.app import make_app
from batchclient.simulator import SimulatedServer, count_tokens, expected_text, render_messages, token_ids
from tests.guises import GUISES
from tests.simulator.test_wire import ask, events

CHAT = "/v1/chat/completions"
USER = [{"role": "user", "content": "hi"}]
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}
ROOM = 8
"""Tokens of the answer."""


def thinker(guise="vllm", tokens=20, **options):
    return SimulatedServer("instant", guise=GUISES[guise], thinking_tokens=tokens, **options)


def complete(server, prompt, path="/v1/completions", **fields):
    status, _, body = ask(server, {"prompt": prompt, "temperature": 0, **fields}, path)
    assert status == 200, body
    return json.loads(body)


def text(server, prompt, **fields):
    return complete(server, prompt, **fields)["choices"][0]["text"]


def chat(server, **fields):
    status, _, body = ask(server, {"messages": USER, "temperature": 0, **fields}, CHAT)
    assert status == 200, body
    return json.loads(body)


def answer(room, prompt="hi"):
    return expected_text(prompt, max_tokens=room, temperature=0)


def chat_answer(room):
    return answer(room, render_messages(USER))


# Texts


def test_a_text_is_the_thinking_between_tags_and_then_the_answer_without_thinking():
    whole = text(thinker(), "hi", max_tokens=22 + ROOM)
    thought, closing, said = whole.removeprefix("<think>").partition("</think>")
    assert whole.startswith("<think>") and closing
    assert (count_tokens(thought), said) == (20, answer(ROOM))
    assert complete(thinker(), "hi", max_tokens=22 + ROOM)["usage"]["completion_tokens"] == 22 + ROOM
    assert text(thinker(tokens=0), "hi", max_tokens=ROOM) == answer(ROOM)


def test_an_answer_is_cut_off_amid_the_thinking():
    reply = complete(thinker(), "hi", max_tokens=10)
    assert reply["choices"][0]["finish_reason"] == "length"
    assert "</think>" not in reply["choices"][0]["text"]
    assert reply["usage"]["completion_tokens"] == 10


@pytest.mark.parametrize("as_ids", [False, True])
@pytest.mark.parametrize("cut", [1, 2, 7, 21, 22])
def test_a_text_that_was_cut_off_is_gone_on_with(cut, as_ids):
    server = thinker()
    prompt = token_ids("hi") if as_ids else "hi"
    (whole,) = complete(server, prompt, max_tokens=22 + ROOM, return_token_ids=True)["choices"]
    (begun,) = complete(server, prompt, max_tokens=cut, return_token_ids=True)["choices"]
    so_far = [*prompt, *begun["token_ids"]] if as_ids else prompt + begun["text"]
    assert begun["text"] + text(server, so_far, max_tokens=22 + ROOM - cut) == whole["text"]


@pytest.mark.parametrize("end", ["</think>", "</think>\n\n"])
def test_behind_a_thinking_that_is_over_comes_the_answer_at_once(end):
    assert text(thinker(), "hi<think> well" + end, max_tokens=ROOM) == answer(ROOM)
    assert text(thinker(), f"hi<think> well{end}and so", max_tokens=ROOM) == answer(ROOM, f"hi<think> well{end}and so")


def test_a_chats_last_answer_alone_says_where_its_thinking_is():
    server = thinker(reasoning_parser=True)
    earlier = [*USER, {"role": "assistant", "content": "<think> so</think>yes"}, *USER]
    assert chat(server, messages=earlier)["usage"]["completion_tokens_details"]["reasoning_tokens"] == 20


def test_a_stream_alone_knows_that_a_thinking_is_over():
    """As on the real vLLM: a plain reply's parser does not look at the prompt, and takes the answer for reasoning."""
    begun = [*USER, {"role": "assistant", "content": "<think> so</think>"}]
    going_on = {"messages": begun, "add_generation_prompt": False, "continue_final_message": True, "max_tokens": ROOM}
    for parser, name in ((False, "content"), (True, "reasoning")):
        message = chat(thinker(reasoning_parser=parser), **going_on)["choices"][0]["message"]
        assert (
            [message[key] for key in ("content", "reasoning") if message[key]] == [message[name]] == [chat_answer(ROOM)]
        )
        body = {"temperature": 0, "stream": True, **going_on}
        deltas = [
            chunk["choices"][0]["delta"] for chunk in events(ask(thinker(reasoning_parser=parser), body, CHAT)[2])
        ]
        assert "".join(delta.get("content", "") for delta in deltas) == chat_answer(ROOM)
    message = chat(thinker(reasoning_parser=True), **going_on, **NO_THINKING)["choices"][0]["message"]
    assert (message["content"], message["reasoning"]) == (chat_answer(ROOM), None)


# Chats


def test_a_parser_parts_the_reasoning_from_the_answer_and_counts_it():
    reply = chat(thinker(reasoning_parser=True), max_tokens=22 + ROOM)
    message = reply["choices"][0]["message"]
    assert (count_tokens(message["reasoning"]), message["content"]) == (20, chat_answer(ROOM))
    assert reply["usage"]["completion_tokens_details"] == {"reasoning_tokens": 20}
    plain = chat(thinker(), max_tokens=22 + ROOM)
    message = plain["choices"][0]["message"]
    assert (message["reasoning"], message["content"][:7]) == (None, "<think>")
    assert message["content"].endswith(f"</think>{chat_answer(ROOM)}")
    assert plain["usage"]["completion_tokens_details"] is None


def test_where_the_thinking_does_not_end_there_is_no_answer():
    (choice,) = chat(thinker(reasoning_parser=True), max_tokens=12)["choices"]
    assert (count_tokens(choice["message"]["reasoning"]), choice["message"]["content"]) == (11, None)
    assert choice["finish_reason"] == "length"


@pytest.mark.parametrize("parser", [False, True])
def test_the_template_turns_thinking_off(parser):
    reply = chat(thinker(reasoning_parser=parser), max_tokens=ROOM, **NO_THINKING)
    message = reply["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == (None, chat_answer(ROOM))
    assert reply["usage"]["completion_tokens_details"] == ({"reasoning_tokens": 0} if parser else None)


@pytest.mark.parametrize("interval", [1, 7, 100_000])
def test_a_streams_pieces_join_to_the_plain_reply(interval):
    server = thinker(reasoning_parser=True)
    plain = chat(server, max_tokens=22 + ROOM)
    usage = {"include_usage": True, "continuous_usage_stats": True}
    asked = {"messages": USER, "temperature": 0, "max_tokens": 22 + ROOM, "stream": True, "stream_interval": interval}
    chunks = events(ask(server, {**asked, "stream_options": usage}, CHAT)[2])
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]]
    for name in ("reasoning", "content"):
        assert "".join(delta.get(name, "") for delta in deltas) == plain["choices"][0]["message"][name]
    counts = [chunk["usage"]["completion_tokens_details"]["reasoning_tokens"] for chunk in chunks]
    assert (counts[0], counts[-1], counts) == (0, 20, sorted(counts))


# Budgets


@pytest.mark.parametrize("budget", [0, 1, 5, 20, 500])
def test_vllm_holds_a_budget(budget):
    server, held = thinker(reasoning_parser=True), min(budget, 20)
    asked = {"thinking_token_budget": budget, "max_tokens": held + 2 + ROOM}
    reply = chat(server, **asked)
    assert reply["choices"][0]["message"]["content"] == chat_answer(ROOM)
    assert reply["usage"]["completion_tokens_details"]["reasoning_tokens"] == held
    assert text(server, "hi", **asked).endswith(f"</think>{answer(ROOM)}")
    # What the prompt has of the thinking is counted, too.
    assert count_tokens(text(server, "hi<think> so", **asked).partition("</think>")[0]) == max(0, held - 1)


@pytest.mark.parametrize("tokens", [0, 20])
@pytest.mark.parametrize("path", ["/v1/completions", CHAT])
def test_vllm_refuses_a_budget_without_a_parser(path, tokens):
    body = {"prompt": "hi", "messages": USER, "thinking_token_budget": 5}
    status, _, reply = ask(thinker(tokens=tokens), body, path)
    error = json.loads(reply)["error"]
    assert (status, error["type"]) == (400, "BadRequestError")
    assert error["message"].startswith("thinking_token_budget is set but reasoning_config is not configured.")
    assert ask(thinker(tokens=tokens), {**body, "thinking_token_budget": -1}, path)[0] == 200


FIELDS = {
    "vllm": {"thinking_token_budget": 5},
    "sglang": {"custom_params": {"thinking_budget": 6}},  # a <think> that the model writes counts, too
    "llamacpp": {"thinking_budget_tokens": 5},
}
TAGS = {
    "reasoning_budget_tokens": 5,
    "reasoning_budget_start_tag": "<think>",
    "reasoning_budget_end_tags": ["</think>"],
    "reasoning_budget_message": "",
}


@pytest.mark.parametrize("sent", FIELDS)
@pytest.mark.parametrize("guise", ["vllm", "sglang", "llamacpp", "tgi", "openai"])
def test_each_server_heeds_its_own_field_of_chats_and_drops_the_others(guise, sent):
    reply = chat(thinker(guise, reasoning_parser=True), **FIELDS[sent], max_tokens=60)
    message = reply["choices"][0]["message"]
    thought = message.get("reasoning") or message["reasoning_content"]
    assert count_tokens(thought) == (5 if sent == guise else 20)
    counted = {"sglang": reply["usage"].get("reasoning_tokens"), "llamacpp": count_tokens(thought)}
    details = reply["usage"].get("completion_tokens_details") or {}
    assert counted.get(guise, details.get("reasoning_tokens")) == count_tokens(thought)


def test_llamacpp_holds_a_budget_of_a_text_where_it_is_told_the_tags():
    server = thinker("llamacpp")

    def thought(prompt, **fields):
        return count_tokens(text(server, prompt, max_tokens=40, **fields).partition("</think>")[0]) - 1

    assert thought("hi", **TAGS) == 5
    for name in TAGS:
        assert thought("hi", **{**TAGS, name: None} if name != "reasoning_budget_tokens" else {}) == 20
    # A tag in the prompt is not looked at.
    assert thought("hi<think>", **TAGS) == 19
    assert thought("hi<think>", **TAGS, generation_prompt="<think>") == 4
    native = complete(server, "hi", "/completion", n_predict=40, **TAGS)
    assert count_tokens(native["content"].partition("</think>")[0]) == 6


def test_sglang_heeds_no_budget_outside_chats():
    server = thinker("sglang", reasoning_parser=True)
    assert count_tokens(text(server, "hi", **FIELDS["sglang"], max_tokens=40).partition("</think>")[0]) == 21
    body = {"text": "hi", "sampling_params": {"max_new_tokens": 40, "temperature": 0, **FIELDS["sglang"]}}
    reply = json.loads(ask(server, body, "/generate")[2])
    assert count_tokens(reply["text"].partition("</think>")[0]) == 21


@pytest.mark.parametrize("strict", [False, True])
def test_sglang_says_whether_it_holds_budgets(strict):
    info = json.loads(ask(thinker("sglang", reasoning_parser=strict), b"", "/server_info", "GET")[2])
    assert (info["enable_strict_thinking"], bool(info["reasoning_parser"])) == (strict, strict)


def test_a_thinking_of_less_than_nothing_is_refused():
    with pytest.raises(ValueError, match="thinking_tokens"):
        thinker(tokens=-1)


def test_the_command_serves_a_model_that_thinks(monkeypatch):
    served = []
    monkeypatch.setattr("batchclient.simulator.app.serve", lambda server, listener, announce: served.append(server))
    options = ["simulate", "--port", "0", "--thinking-tokens", "70", "--reasoning-parser"]
    assert CliRunner().invoke(make_app(["simulate"]), options).exit_code == 0
    assert chat(served[0])["usage"]["completion_tokens_details"] == {"reasoning_tokens": 70}
