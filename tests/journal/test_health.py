"""An answer's health: told by the answer alone, and so the same wherever the answer comes out."""

import asyncio
import json

import pytest
from pydantic import BaseModel

from batchclient import AnswerInvalid, BatchClient, Batching, Choice, Completion
from batchclient.health import HEALTHS, health_of, is_runaway
from batchclient.simulator import EmbeddedServer
from batchclient.types import Reply as Reply_

from tests.shell.scripted import Reply, ScriptedTransport, make_client

LIBRARIES = ("asyncio",)
WORDS = " ".join(f"word{number}" for number in range(200))
THOUGHT = {"reasoning": "hm"}
CALL = {"tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]}
TABLE = {
    # What the server says: the text, why it ended, the fields of its message beside the content.
    "ok": [
        ("fine", "stop", {}), ("fine", "tool_calls", CALL), (None, "tool_calls", CALL), (None, "stop", {"refusal": "no"}),
        ("fine", "stop", THOUGHT), ("<think>hm</think> fine", "stop", {}), ("ends in </think>", "stop", {"refusal": "no"}),
        ("ab" * 500, "stop", {}),  # it has ended by itself
        ("-" * 255, None, {}), ("hm</think>fine", "stop", {}), ("It ends with <think>hm</think>", "stop", {}),
    ],
    "truncated": [
        ("cut", "length", {}), ("", "length", {}), (None, "length", CALL), (WORDS, "length", {}),
        ("cut", "model_length", {}), ("cut", "max_tokens", {}), ("<think>hm</think> cut", "length", {}),
        (None, "length", {**THOUGHT, **CALL}), ("[THINK]hm[/THINK] cut", "length", {}), ("<b> cut", "length", {}),
    ],
    "empty": [("", "stop", {}), (" \n\t", "stop", {}), (None, "stop", {"tool_calls": []})],
    "reasoning_only": [
        (None, "stop", THOUGHT), ("", "stop", {"reasoning_content": "hm"}), ("<think>hm", "stop", {}),
        ("<think>hm</think>\n\n", "stop", {}), ("hm</think>\n", "stop", {}),
        ("\n<think>hm", "stop", {}), (" <think>hm</think>", "stop", {}), ("hm</think>" + "\n" * 11, "stop", {}),
        ("hm</think> <think>hm</think>", "stop", {}),
        # Cut off amid the reasoning, or before the answer's first word.
        ("", "length", THOUGHT), ("<think>hm", "length", {}), ("<think>hm</think>\n", "length", {}),
        # The tags of other models.
        ("[THINK]hm", "length", {}), ("<seed:think>hm</seed:think>", "stop", {}), ("hm<|END_THINKING|>", "stop", {}),
    ],
    "filtered": [("", "content_filter", {}), ("a part", "content_filter", {})],
    "runaway": [
        ("and so on " * 40, "length", {}), (WORDS + " \n" * 200, "length", {}), ("-" * 256, "length", {}),
        (WORDS + WORDS[:600] * 4, "length", {}), (None, "length", {"reasoning": "wait, " * 60}), ("x", "repetition", {}),
        ("again " * 60, None, {}), ("{" + "\n \t  " * 20 + " \t\n" * 100, "length", {}),
    ],
}  # fmt: skip
CASES = [(health, *said) for health, rows in TABLE.items() for said in rows]


def says(sent):
    """Answer each prompt, whose text is the number of its case."""
    usage = {"prompt_tokens": 1, "completion_tokens": 9, "total_tokens": 10}
    prompt = sent.body.get("prompt") or sent.body["messages"][0]["content"]
    _, text, reason, message = CASES[int(prompt)]
    choice = {"index": 0, "finish_reason": reason}
    if "messages" in sent.body:
        choice["message"] = {"role": "assistant", "content": text, **message}
    else:
        choice |= {"text": text or "", **message}
    return Reply(chunks=[json.dumps({"choices": [choice], "usage": usage}).encode()])


async def test_it_is_the_same_from_calls_maps_journals_and_workers(tmp_path):
    chats = [str(number) for number in range(len(CASES))]
    texts = [case for case in chats if not CASES[int(case)][3].keys() & {"tool_calls", "refusal"}]
    for call, documents in (("complete", texts), ("chat", chats)):
        wanted = [CASES[int(document)][0] for document in documents]
        counts = {health: wanted.count(health) for health in HEALTHS}
        for run in range(2):
            server = ScriptedTransport(*[says] * 3 * len(CASES))
            async with make_client(server, batching=Batching(max_size=1)) as client:
                results = await client.batch_map(documents, "{}", call=call, journal=tmp_path / call, max_tokens=50)
                assert [answer.health for answer in results] == wanted, (call, run)
                assert results.health == counts
                assert [answer.as_dict()["health"] for answer in results] == wanted
                if run:
                    assert not server.sent and not sum(client.statistics().health.values())
                    continue
                assert client.statistics().health == counts
                async for row in client.stream_map(documents, "{}", call=call, max_tokens=50):
                    assert row.health == wanted[row.index]
                for document, health in zip(documents, wanted, strict=True):
                    message = [{"role": "user", "content": document}]
                    one = client.chat(message) if call == "chat" else client.complete(document)
                    assert (await one).health == health, (call, document)


@pytest.mark.parametrize(
    ("params", "health"),
    [
        ({"max_tokens": 4}, "ok"),
        ({"max_tokens": 5}, "truncated"),
        ({"max_tokens": 50, "extra_body": {"ignore_eos": True}}, "ok"),
        ({"max_tokens": 50, "min_tokens": 50}, "ok"),
        ({"max_tokens": 50, "min_tokens": 49}, "truncated"),
        ({}, "truncated"),
    ],
)
async def test_an_end_at_a_bound_that_was_meant_is_none(params, health, tmp_path):
    for _ in range(2):  # the second time from the journal
        async with make_client(ScriptedTransport()) as client:
            results = await client.batch_map(["a", "b"], "{}", journal=tmp_path / "j", **params)
            assert [answer.health for answer in results] == [health] * 2 and results.health[health] == 2


@pytest.mark.parametrize(
    ("end", "health"), [("<think>\n", "reasoning_only"), ("[THINK]", "reasoning_only"), ("", "truncated")]
)
async def test_what_ends_amid_a_thinking_that_its_prompt_has_begun_is_reasoning_only(end, health, tmp_path):
    for _ in range(2):  # the second time from the journal
        async with make_client(ScriptedTransport(), dialect="vllm") as client:
            asked = {"max_tokens": 50, "thinking_tokens": 20, "journal": tmp_path / "j"}
            (answer,) = await client.batch_map([f"Why?{end}"], "{}", **asked)
            assert (answer.health, answer.finish_reason) == (health, "length")


async def test_the_first_bad_choice_counts_and_a_reply_in_another_form_harms_nobody():
    ok, cut, empty = Choice(0, "a", "stop"), Choice(1, "b", "length"), Choice(2, "", "stop")
    assert Completion((ok, cut, empty)).health == "truncated"
    assert Completion((ok, empty, cut)).health == "empty"
    assert health_of(Completion(())) == "ok"
    for health, text, reason, message in CASES:  # a drop-in's reply, handed on as it came
        raw = {"message": {"content": text, **message}, "finish_reason": reason}
        assert Completion((), reply=Reply_({"choices": [raw]})).health == health
    for body in (None, [], {"choices": [None, {"text": [1], "finish_reason": "stop"}]}, {"choices": "x"}):
        assert Completion((), reply=Reply_(body)).health == "ok"


class Place(BaseModel):
    city: str


async def test_an_answer_that_does_not_fit_is_invalid_unless_more_is_known(tmp_path):
    def reply(text, reason):
        return Reply(chunks=[json.dumps({"choices": [{"index": 0, "text": text, "finish_reason": reason}]}).encode()])

    said = [('{"city": "Rome"}', "stop"), ('{"town": 1}', "stop"), ('{"city": "Ro', "length"), ("", "stop")]
    wanted = ["ok", "invalid", "truncated", "empty"]
    for run in range(2):
        server = ScriptedTransport(*[reply(*each) for each in said]) if not run else ScriptedTransport()
        async with make_client(server, batching=Batching(max_size=1), limit=1) as client:
            arguments = {"response_model": Place, "max_tokens": 20, "ordered": True, "journal": tmp_path / "j"}
            rows = client.stream_map(list("abcd"), "{}", **arguments)
            healths = [row.health async for row in rows]
            assert rows.health == {health: healths.count(health) for health in HEALTHS}
            assert healths == wanted
            if run:
                # They were paid for, and are not asked again.
                assert server.sent == []
                continue
            assert client.statistics().health == rows.health
            server.script = [reply(*said[1])]
            with pytest.raises(AnswerInvalid) as caught:
                await client.complete("e", response_model=Place)
            assert caught.value.health == "invalid" and client.statistics().health["invalid"] == 2


async def test_an_answer_that_several_calls_share_counts_for_each():
    said = json.dumps({"choices": [{"index": 0, "text": "no", "finish_reason": "stop"}]}).encode()
    server = ScriptedTransport(*[Reply(chunks=[said])] * 2)
    async with make_client(server, batching=Batching(single_flight=True)) as client:
        for arguments in ({"response_model": Place}, {}):
            calls = [client.complete("a", temperature=0, **arguments) for _ in range(5)]
            await asyncio.gather(*calls, return_exceptions=True)
        counts = client.statistics()
        assert (len(server.sent), counts.succeeded) == (2, 10)
        assert counts.health == dict.fromkeys(HEALTHS, 0) | {"invalid": 5, "ok": 5}


def test_what_is_no_loop():
    assert not is_runaway(WORDS)
    assert not is_runaway(WORDS + "=" * 200), "a line"
    assert not is_runaway(WORDS[:700] * 3), "three times the same"
    assert is_runaway(WORDS[:700] * 4)
    assert not is_runaway(" " * 255)
    assert is_runaway("1, " * 86)


async def test_one_token_classes_are_not_called_truncated():
    with EmbeddedServer("instant") as server:
        async with BatchClient(server.base_url, model=server.model) as client:
            results = await client.batch_map([str(n) for n in range(2000)], "{}", max_tokens=1)
            assert results.health["ok"] == client.statistics().health["ok"] == 2000
            assert {answer.finish_reason for answer in results} == {"length"}
