"""``labels=[…]``: the answer is one of some words, whatever the server makes of it."""

import json

import pytest

from batchclient import AnswerInvalid, Batching, ConfigError, Repair

from .scripted import Reply, ScriptedTransport, make_client

LABELS = ["good", "very bad"]
USAGE = {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}


def said(*texts, reason="stop", **fields):
    """A reply to prompts or chats; ``fields``: of their messages beside the text."""

    def reply(sent):
        def of(index, text):
            told = {"message": {"role": "assistant", "content": text, **fields}}
            told = told if "messages" in sent.body else {"text": text}
            return {"index": index, "finish_reason": reason, "token_ids": [1, 2], **told}

        body = {"choices": [of(index, text) for index, text in enumerate(texts)], "usage": USAGE}
        return Reply(chunks=[json.dumps(body).encode()])

    return reply


def client_of(*replies, **settings):
    server = ScriptedTransport(*replies)
    return make_client(server, **{"dialect": "vllm", "batching": Batching(max_size=1), **settings}), server


@pytest.mark.parametrize("text", ["good", " Good.", '"good"', "“GOOD”.", "\n`good.`\n", "good", "'good.'"])
async def test_a_text_is_a_label_but_for_blanks_case_quotes_and_a_full_stop(text):
    client, _ = client_of(said(text))
    async with client:
        answer = await client.complete("x", labels=LABELS)
    assert (answer.label, answer.text, answer.health) == ("good", text, "ok")
    assert answer.as_dict()["label"] == "good"


@pytest.mark.parametrize("text", ["Very  Bad", " very\nbad."])
async def test_white_space_within_a_label_is_one_blank(text):
    client, _ = client_of(said(text))
    async with client:
        assert (await client.chat([{"role": "user", "content": "x"}], labels=LABELS)).label == "very bad"


async def test_a_label_that_is_cut_off_at_its_bound_is_one():
    client, _ = client_of(said("good", reason="length"))
    async with client:
        answer = await client.complete("x", labels=LABELS)
    assert (answer.label, answer.health) == ("good", "ok")


@pytest.mark.parametrize(("text", "health"), [("good bad", "invalid"), ("goo", "invalid"), ("", "empty")])
async def test_what_is_none_of_the_labels_is_an_error_that_has_the_answer(text, health):
    client, _ = client_of(said(text))
    async with client:
        with pytest.raises(AnswerInvalid, match="none of the 2 labels") as caught:
            await client.complete("secret", labels=LABELS)
        statistics = client.statistics()
    error = caught.value
    assert (error.health, error.completion.text, error.completion.label) == (health, text, None)
    assert "secret" not in str(error) and statistics.health["invalid"] == (health == "invalid")


@pytest.mark.parametrize(
    ("bound", "why"),
    [
        ({"max_tokens": 1}, ": it was cut off at max_tokens=1; leave that out"),
        ({"extra_body": {"max_completion_tokens": 2}}, ": it was cut off at max_completion_tokens=2; leave that out"),
        ({}, ": it was cut off"),
    ],
)
async def test_of_a_label_that_is_cut_off_the_error_names_the_bound(bound, why):
    client, _ = client_of(said("ve", reason="length"), said("ve", reason="length"), said("ve"))
    async with client:
        for params in ({"max_tokens": 3}, bound):
            with pytest.raises(AnswerInvalid) as caught:
                await client.chat([{"role": "user", "content": "x"}], labels=LABELS, **params)
        assert caught.value.message == f"the answer is none of the 2 labels{why}"
        with pytest.raises(AnswerInvalid) as caught:
            await client.complete("x", labels=LABELS, **bound)
        assert caught.value.message == "the answer is none of the 2 labels"


async def test_each_of_several_answers_has_its_label():
    client, _ = client_of(said("good", "Very bad"))
    async with client:
        answer = await client.complete("x", labels=LABELS, n=2)
    assert [choice.label for choice in answer.choices] == LABELS
    assert [each["label"] for each in answer.as_dict()["choices"]] == LABELS


async def test_a_row_that_is_none_of_them_is_asked_again():
    client, server = client_of(said("no"), said("Good"))
    async with client:
        (answer,) = await client.batch_map(["x"], "{}", labels=LABELS, repair=Repair(invalid=1))
    assert answer.label == "good" and server.prompts == [["x"], ["x"]]


async def test_rows_with_labels_of_their_own_share_requests_with_their_like():
    client, server = client_of(said("a", "B"), said("c"), batching=Batching(max_size=8))
    rows = [{"prompt": "1", "params": {"labels": ["a", "b"]}}, {"prompt": "2", "params": {"labels": ["a", "b"]}}]
    rows += [{"prompt": "3", "params": {"labels": ["c", "d"]}}]
    async with client:
        answers = await client.batch_map(rows)
    assert [answer.label for answer in answers] == ["a", "b", "c"]
    assert sorted(server.prompts) == [["1", "2"], ["3"]]
    assert not any(sent.streamed for sent in server.sent if len(sent.prompts) > 1), "labels end together"


@pytest.mark.parametrize(
    ("params", "field", "words"),
    [
        ({"labels": "good"}, "labels", "a list of texts"),
        ({"labels": ["good"]}, "labels", "two at least"),
        ({"labels": ["good", 1]}, "labels", "label 1"),
        ({"labels": ["good", ' "Good." ']}, "labels", "0 and 1 are the same"),
        ({"labels": ["good", " '. "]}, "labels", "label 1 is nothing"),
        ({"labels": ["good", "\ud800"]}, "labels", "surrogate"),
        ({"labels": LABELS, "response_format": {"type": "json_object"}}, "labels", "response_format"),
        ({"labels": LABELS, "extra_body": {"guided_regex": "a"}}, "labels", "guided_regex"),
        ({"labels": LABELS, "tools": [{"type": "function"}]}, "labels", "tools"),
        ({"labels": LABELS, "thinking_tokens": 100}, "thinking_tokens", "thinking_tokens=0"),
    ],
)
async def test_labels_that_are_none_are_refused_where_they_are_given(params, field, words):
    client, server = client_of()
    async with client:
        with pytest.raises(ConfigError, match=words) as caught:
            await client.chat([{"role": "user", "content": "x"}], **params)
        assert caught.value.field == field
        with pytest.raises(ConfigError, match=words):
            client.stream_map(["x"], "{}", call="chat", **params)
    assert not server.sent


async def test_labels_are_no_form_beside_a_model_and_none_of_a_vector():
    from pydantic import BaseModel

    class Model(BaseModel):
        word: str

    client, _ = client_of()
    async with client:
        with pytest.raises(ConfigError, match="response_model and labels both"):
            await client.complete("x", labels=LABELS, response_model=Model)
        with pytest.raises(ConfigError, match="labels is no argument"):
            await client.embed("x", labels=LABELS)


@pytest.mark.parametrize("fields", [{"reasoning": "Hm."}, {"reasoning_content": "Hm."}])
async def test_a_model_that_thinks_is_an_error_and_is_asked_for_no_label_again(fields):
    client, server = client_of(said("good", **fields), said("good", **fields))
    chat = [{"role": "user", "content": "x"}]
    async with client:
        for _ in range(2):
            with pytest.raises(ConfigError, match="thinking_tokens=0") as caught:
                await client.chat(chat, labels=LABELS)
            assert caught.value.field == "labels"
        (row,) = await client.batch_map(["x"], "{}", call="chat", labels=LABELS, return_exceptions=True)
        assert "thinking_tokens=0" in str(row) and len(server.sent) == 1


@pytest.mark.parametrize(
    ("text", "label"), [("<think>\n\n</think>\n\ngood", "good"), ("<think>Hm.</think>good", None), ("<think>H", None)]
)
async def test_reasoning_in_the_text_counts_and_an_empty_one_does_not(text, label):
    client, _ = client_of(said(text))
    async with client:
        if label is None:
            with pytest.raises(ConfigError, match="thinks before it answers"):
                await client.complete("x", labels=LABELS)
        else:
            assert (await client.complete("x", labels=LABELS)).label == label


async def test_a_model_that_is_kept_from_thinking_says_its_label():
    client, server = client_of(said("good", reasoning="Hm."))
    async with client:
        answer = await client.chat([{"role": "user", "content": "x"}], labels=LABELS, thinking_tokens=0)
    body = server.sent[0].body
    assert answer.label == "good" and "labels" not in body and "thinking_tokens" not in body
    assert body["structured_outputs"]["choice"][0] == "good"
    assert body.get("thinking_token_budget") == 0 or body["chat_template_kwargs"]["enable_thinking"] is False


async def test_a_stream_has_its_label_at_the_end():
    client, _ = client_of(lambda sent: Reply(chunks=[
        b'data: {"choices":[{"index":0,"text":" Go","finish_reason":null}]}\n\n',
        b'data: {"choices":[{"index":0,"text":"od","finish_reason":"stop"}]}\n\ndata: [DONE]\n\n',
    ]))  # fmt: skip
    async with client:
        pieces = client.stream("x", labels=LABELS)
        assert "".join([piece.text async for piece in pieces]) == " Good"
        assert pieces.completion.label == "good"
