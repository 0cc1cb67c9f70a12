"""The forms of chat against what a real vLLM 0.32 answered, and against what servers have been seen to send."""

import json

import pytest

from tests.core import FailureKind, Kind
from batchclient._calls.inputs import has_media, write_messages
from batchclient.dialects._chat import Chat
from batchclient.dialects._replies import redact
from batchclient.dialects._shapes import Shapes
from batchclient.dialects.vllm import VllmDialect
from batchclient.errors import BadRequest, ConfigError, DemuxError, DialectError, NotFound, ServerFault
from batchclient.types import Usage
from tests.unit.golden import NAMES, golden, make_batch, make_request
from tests.unit.test_vllm import CHATS, decode, events

ERRORS = [name for name in NAMES if name.startswith("chat_") and "_error_" in name]


def user(text):
    return [{"role": "user", "content": text}]


def batch_of(*conversations, streamed=False, solo=b"", to_caller=False, **params):
    shape, _ = Shapes().shape(params, "tiny", kind=Kind.CHAT, to_caller=to_caller)
    requests = [make_request(shape, each, solo_fields=solo) for each in conversations]
    return make_batch(shape, requests, streamed=streamed)


def sent(batch):
    request = VllmDialect().encode(batch)
    return request.path, json.loads(request.body)


def chunk(index=0, finish_reason=None, usage=None, **delta):
    event = {"id": "chatcmpl-1", "choices": [{"index": index, "delta": delta, "finish_reason": finish_reason}]}
    return event if usage is None else event | {"usage": usage}


def message(index=0, finish_reason="stop", token_ids=None, **fields):
    return {"index": index, "message": fields, "finish_reason": finish_reason, "token_ids": token_ids}


def reply(*choices, **fields):
    return json.dumps({"id": "chatcmpl-1", "choices": list(choices), **fields}).encode()


# Requests --------------------------------------------------------------------------------------------------------


def test_a_lone_chat_goes_to_its_own_route_with_its_labels():
    path, body = sent(batch_of(user("hi"), solo=b'"user":"me"', max_tokens=3))
    assert path == "/chat/completions"
    assert body == {"messages": user("hi"), "user": "me", "max_tokens": 3, "model": "tiny"}


def test_a_streamed_chat_asks_for_two_events_and_its_usage():
    _, body = sent(batch_of(user("hi"), streamed=True, max_tokens=30))
    assert (body["stream"], body["stream_interval"]) == (True, 100_000)
    assert body["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}


def test_a_chat_for_a_waiting_caller_asks_for_every_token():
    _, body = sent(batch_of(user("hi"), streamed=True, to_caller=True, max_tokens=30))
    assert body["stream"] is True
    assert "stream_interval" not in body
    _, body = sent(batch_of(user("hi"), streamed=True, to_caller=True, max_tokens=30, stream_interval=4))
    assert body["stream_interval"] == 4


def test_a_list_goes_to_the_list_route_without_anything_it_lacks():
    path, body = sent(batch_of(user("hi"), user("what"), solo=b'"user":"me"', max_tokens=30))
    assert path == "/chat/completions/batch"
    assert body == {
        "messages": [user("hi"), user("what")], "return_token_ids": True, "max_tokens": 30, "model": "tiny",
    }  # fmt: skip


def test_a_server_without_lists_says_so_itself():
    failure = Chat().encode(batch_of(user("hi"), user("what")))
    assert failure.kind is FailureKind.LIST_REFUSED


# Shapes ----------------------------------------------------------------------------------------------------------


def shape(**params):
    return Shapes().shape(params, "m", kind=Kind.CHAT)[0]


def test_what_lists_lack_sends_a_chat_alone():
    for params in [
        {"tools": [{"type": "function"}]}, {"tool_choice": "auto"}, {"n": 2}, {"use_beam_search": True}, {"functions": []},
        {"prompt_logprobs": 1}, {"return_token_ids": True}, {"modalities": ["text", "audio"]},
    ]:  # fmt: skip
        (name,) = params
        assert shape(**params).alone_reason == name


def test_an_ordinary_chat_may_share_a_plain_list():
    one = shape(max_tokens=5, n=1, temperature=0.5, response_format={"type": "json_object"})
    assert (one.alone_reason, one.lists_plain, one.plain_only) == (None, True, False)


def test_the_newer_name_of_the_length_stands_first():
    assert shape(max_tokens=50, max_completion_tokens=5).max_output_tokens == 5
    assert shape(max_completion_tokens=0).max_output_tokens == 0
    assert shape(max_tokens=7).max_output_tokens == 7
    # A chat may fill the context; a completion ends after 16 tokens.
    assert shape().max_output_tokens is None


def test_tool_calls_are_not_streamed_inside():
    assert shape(tools=[{"type": "function"}]).plain_only
    assert not Shapes().shape({"tools": [{}]}, "m", kind=Kind.CHAT, to_caller=True)[0].plain_only


def test_a_form_that_is_demanded_joins_the_key():
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    keys = {
        shape(**each).key for each in ({}, {"response_format": schema}, {"guided_json": {}}, {"structured_outputs": {}})
    }
    assert len(keys) == 4


def test_a_call_for_a_waiting_caller_is_alone_and_learns_lengths_with_the_others():
    shapes = Shapes()
    common = shapes.shape({"max_tokens": 5}, "m", kind=Kind.CHAT)[0]
    streamed = shapes.shape({"max_tokens": 5}, "m", kind=Kind.CHAT, to_caller=True)[0]
    assert streamed.key != common.key
    assert streamed.answer_key == common.answer_key
    assert (streamed.alone_reason, streamed.to_caller) == ("streamed to its caller", True)


def test_a_field_of_the_other_method_is_refused():
    for kind, field in [(Kind.COMPLETION, "messages"), (Kind.CHAT, "prompt"), (Kind.CHAT, "messages"), (Kind.CHAT, "stream"), (Kind.COMPLETION, "stream")]:  # fmt: skip
        with pytest.raises(ConfigError) as caught:
            Shapes().shape({field: True}, "m", kind=kind)
        assert caught.value.field == field
        assert ("chat()" if kind is Kind.CHAT else "complete()") in caught.value.message


def test_a_wrong_number_is_refused():
    for field in ["max_tokens", "max_completion_tokens", "n"]:
        for value in [-1, 1.5, True, "3"]:
            with pytest.raises(ConfigError) as caught:
                shape(**{field: value})
            assert caught.value.field == field


def test_what_cannot_be_streamed_to_a_caller_is_refused():
    for params in [{"use_beam_search": True}, {"prompt_logprobs": 1}, {"stream_interval": 0}]:
        with pytest.raises(ConfigError):
            Shapes().shape(params, "m", kind=Kind.CHAT, to_caller=True)


def test_parts_that_are_no_text_are_seen():
    for content, media in [
        ("hi", False), (None, False), ([{"type": "text", "text": "hi"}], False), ([], False),
        ([{"type": "image_url", "image_url": {"url": "x"}}], True), (["odd"], True),
        ([{"type": "text", "text": "hi"}, {"type": "input_audio"}], True),
    ]:  # fmt: skip
        assert has_media([{"role": "user", "content": content}]) is media


def test_what_is_no_conversation_is_refused():
    for messages in [
        "hi",
        b"hi",
        {"role": "user"},
        [],
        ["hi"],
        [{}],
        [{"role": ""}],
        [{"role": "user", "content": {1}}],
        5,
        None,
    ]:
        with pytest.raises(ConfigError) as caught:
            write_messages(messages)
        assert caught.value.field == "messages"


# Goldens ---------------------------------------------------------------------------------------------------------


def test_every_conversation_of_a_golden_reply_has_its_own_message():
    for name in CHATS:
        record = golden(name)
        answers, failure = decode(record.batch(), record.body)
        assert failure is None
        assert sorted(answers) == list(range(len(record.prompts)))
        for completion in answers.values():
            assert [one.index for one in completion.choices] == list(range(record.params.get("n", 1)))
            for one in completion.choices:
                assert one.message == {"role": "assistant", "content": one.text}
                assert one.finish_reason in ("stop", "length")
            assert completion.extra["id"].startswith("chatcmpl-")


def test_a_joined_stream_is_the_plain_reply():
    for streamed, plain in [
        ("chat_stream_two_events", "chat_plain"),
        ("chat_stream_event_per_token", "chat_plain"),
        ("chat_stream_no_usage", "chat_plain"),
        ("chat_stream_stop_string", "chat_stop_string"),
        ("chat_stream_n2_logprobs_token_ids", "chat_n2_logprobs"),
    ]:
        joined, _ = decode(golden(streamed).batch(), golden(streamed).body)
        whole, _ = decode(golden(plain).batch(), golden(plain).body)
        for one, other in zip(joined[0].choices, whole[0].choices, strict=True):
            assert (one.message, one.text, one.finish_reason) == (other.message, other.text, other.finish_reason)
            assert (one.token_ids, one.logprobs) == (other.token_ids, other.logprobs)
            assert one.extra.get("stop_reason") == other.extra.get("stop_reason")
        if joined[0].usage is not None:
            assert joined[0].usage == whole[0].usage


def test_a_lone_chat_has_its_usage_and_one_of_a_list_its_output_tokens_and_a_share_of_the_prompts():
    record = golden("chat_plain")
    alone, _ = decode(record.batch(), record.body)
    assert (alone[0].usage, alone[0].output_tokens) == (Usage(9, 6), 6)
    record = golden("chat_batch")
    # The recorded call asked for token ids itself; ours do not, and are counted all the same.
    ours, _ = decode(batch_of(*record.prompts, max_tokens=6), record.body)
    assert [(each.usage, each.output_tokens) for each in ours.values()] == [
        (Usage(9, 6, True), 6),
        (Usage(8, 6, True), 6),
    ]
    assert ours[0].choices[0].token_ids is None


def test_a_list_without_token_ids_has_shares_that_say_so():
    answers, _ = decode(golden("chat_batch_choice").batch(), golden("chat_batch_choice").body)
    assert [each.usage for each in answers.values()] == [Usage(9, 2, True, True), Usage(8, 4, True, True)]


def test_a_stream_has_one_event_more_than_tokens():
    record = golden("chat_stream_event_per_token")
    decoder = VllmDialect().decoder(record.batch())
    assert decoder.feed(record.body, 12.0)
    assert decoder.events == 7


def test_a_golden_refusal_has_a_kind_and_holds_no_text():
    for name in ERRORS:
        record = golden(name)
        conversations = [each for each in record.prompts if each] or [user("x")]
        batch = batch_of(*conversations)
        failure = VllmDialect().failure(batch, record.status, {}, record.body, 0.0)
        if record.status == 405:
            assert failure.kind is FailureKind.REFUSED
        else:
            assert failure.error in (BadRequest, NotFound)
        assert "x x x x" not in failure.message


# What servers send -----------------------------------------------------------------------------------------------


def test_a_missing_list_route_refuses_lists_and_nobodys_model():
    for status in [404, 405]:
        for body in [b'{"detail":"Not Found"}', b"", b'{"detail":"Method Not Allowed"}', b"<html>no</html>"]:
            failure = VllmDialect().failure(batch_of(user("hi"), user("what")), status, {}, body, 0.0)
            assert failure.kind is FailureKind.LIST_REFUSED
            failure = VllmDialect().failure(batch_of(user("hi")), status, {}, body, 0.0)
            assert failure.kind is FailureKind.REFUSED


def test_a_missing_model_refuses_the_calls():
    record = golden("chat_batch_error_wrong_model")
    failure = VllmDialect().failure(batch_of(user("hi"), user("what")), 404, {}, record.body, 0.0)
    assert (failure.kind, failure.error) == (FailureKind.REFUSED, NotFound)


def test_the_pieces_of_a_message_are_joined():
    body = events(
        chunk(role="assistant", content=""),
        chunk(reasoning="Let me"),
        chunk(reasoning=" see."),
        chunk(content="It is"),
        chunk(content=" four."),
        chunk(finish_reason="stop", content=None),
    )
    answers, failure = decode(batch_of(user("hi"), streamed=True), body)
    assert failure is None
    assert answers[0].message == {"role": "assistant", "content": "It is four.", "reasoning": "Let me see."}
    assert answers[0].text == "It is four."


def test_reasoning_keeps_its_older_name_and_empty_content_is_none():
    body = events(chunk(role="assistant", content=""), chunk(reasoning_content="hm"), chunk(finish_reason="length"))
    answers, _ = decode(batch_of(user("hi"), streamed=True), body)
    assert answers[0].message == {"role": "assistant", "content": None, "reasoning_content": "hm"}
    assert answers[0].text == ""


def call(index, **fields):
    return {"index": index, **fields}


def test_the_fragments_of_tool_calls_are_joined_by_index():
    body = events(
        chunk(role="assistant", content=""),
        chunk(tool_calls=[call(0, id="a", type="function", function={"name": "look_up", "arguments": ""})]),
        chunk(tool_calls=[call(0, function={"arguments": '{"q":'})]),
        chunk(tool_calls=[call(1, id="b", type="function", function={"name": "add", "arguments": "{}"})]),
        chunk(tool_calls=[call(0, function={"arguments": ' "x"}'})]),
        chunk(finish_reason="tool_calls"),
    )
    answers, _ = decode(batch_of(user("hi"), streamed=True), body)
    assert answers[0].message == {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {"id": "a", "type": "function", "function": {"name": "look_up", "arguments": '{"q": "x"}'}},
            {"id": "b", "type": "function", "function": {"name": "add", "arguments": "{}"}},
        ],
    }
    assert (answers[0].text, answers[0].finish_reason) == ("", "tool_calls")


def test_tool_calls_without_numbers_are_whole_ones():
    whole = [{"id": i, "type": "function", "function": {"name": i, "arguments": "{}"}} for i in "ab"]
    body = events(chunk(tool_calls=[whole[0]]), chunk(tool_calls=[whole[1]]), chunk(finish_reason="tool_calls"))
    answers, _ = decode(batch_of(user("hi"), streamed=True), body)
    assert answers[0].message["tool_calls"] == whole


def test_a_plain_message_is_as_the_server_sent_it_without_its_nulls():
    calls = [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    body = reply(message(role="assistant", content=None, refusal=None, tool_calls=calls, reasoning="so"))
    answers, _ = decode(batch_of(user("hi")), body)
    assert answers[0].message == {"role": "assistant", "content": None, "tool_calls": calls, "reasoning": "so"}
    body = reply(message(role="assistant", content="hi", tool_calls=[]))
    assert decode(batch_of(user("hi")), body)[0][0].message == {"role": "assistant", "content": "hi"}


def test_a_list_with_wrong_indices_is_handed_to_nobody():
    for indices in [(0,), (0, 0), (0, 2), (0, 1, 1), ()]:
        body = reply(*[message(index, role="assistant", content="x") for index in indices])
        answers, failure = decode(batch_of(user("a"), user("b")), body)
        assert answers == {}
        assert (failure.kind, failure.error) == (FailureKind.MISMATCH, DemuxError)


def test_content_in_parts_is_read_and_kept():
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
    parts = [thinking, {"type": "text", "text": "one"}, {"type": "reference", "reference_ids": [1]}]
    body = reply(message(content=[*parts, {"type": "text", "text": " two"}]), message(1, content="plain"))
    answers, _ = decode(batch_of(user("a"), user("b")), body)
    assert [answers[i].text for i in range(2)] == ["one two", "plain"]
    assert answers[0].choices[0].message["content"] == [*parts, {"type": "text", "text": " two"}]
    batch = batch_of(user("a"), streamed=True, to_caller=True)
    pieces = [
        chunk(role="assistant", content=""),
        chunk(content=[thinking]),
        chunk(content=[{"type": "thinking", "thinking": [{"type": "text", "text": " So"}]}]),
        chunk(content=[{"type": "text", "text": "one"}]),
        chunk(content=" two"),
        chunk(finish_reason="stop", content=None),
    ]
    decoder = VllmDialect().decoder(batch)
    ((_, answer),) = decoder.feed(events(*pieces), 12.0) + decoder.end(12.0)[0]
    assert "".join(delta.text for delta in decoder.deltas) == answer.text == "one two"
    assert decoder.deltas[1].message == {"content": [thinking]}
    whole = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm. So"}]}
    assert answer.choices[0].message["content"] == [whole, {"type": "text", "text": "one two"}]
    assert thinking["thinking"] == [{"type": "text", "text": "Hm."}]
    for odd in ([{"text": "x"}], ["x"], [{"type": "text", "text": 5}], {"type": "text", "text": "x"}):
        answers, failure = decode(
            batch_of(user("a"), streamed=True), events(chunk(content=odd), chunk(finish_reason="stop"))
        )
        assert (answers, failure.error) == ({}, DialectError)


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_an_aborted_answer_is_a_fault(reason):
    body = reply(message(0, role="assistant", content="x"), message(1, reason, role="assistant", content="x"))
    answers, failure = decode(batch_of(user("a"), user("b")), body)
    assert (sorted(answers), failure.error) == ([0], ServerFault)


def test_what_is_no_message_is_no_answer():
    for body in [
        reply({"index": 0, "finish_reason": "stop"}), reply(message(content=5)), reply(message(content=[{"type": "text"}])),
        b'{"choices": 5}', b"{}", reply({"index": 0, "message": None}),
    ]:  # fmt: skip
        answers, failure = decode(batch_of(user("a")), body)
        assert (answers, failure.error) == ({}, DialectError)


def test_a_piece_that_is_none_is_no_answer():
    for delta in [
        {"content": 5},
        {"tool_calls": 5},
        {"tool_calls": [5]},
        {"tool_calls": [{"index": "x"}]},
        {"reasoning": {}},
    ]:
        answers, failure = decode(
            batch_of(user("a"), streamed=True), events(chunk(**delta), chunk(finish_reason="stop"))
        )
        assert (answers, failure.error) == ({}, DialectError)


def test_deltas_are_kept_for_a_waiting_caller_only():
    record = golden("chat_stream_two_events")
    for to_caller, count in ((True, 3), (False, 0)):
        batch = batch_of(*record.prompts, streamed=True, to_caller=to_caller, max_tokens=6)
        decoder = VllmDialect().decoder(batch)
        decoder.feed(record.body, 12.0)
        assert len(decoder.deltas) == count
        if to_caller:
            assert "".join(delta.text for delta in decoder.deltas) == " createstartsTYstarts '_ create"
            assert decoder.deltas[0].message == {"role": "assistant", "content": ""}
            assert decoder.deltas[-1].finish_reason == "length"


# Secrets ---------------------------------------------------------------------------------------------------------


def test_texts_within_messages_are_cut_out_of_a_servers_words():
    for echo in [
        "cannot use 'the patient John Smith'",
        'cannot use {"role": "user", "content": "the patient John Smith"}',
        "cannot use [{'role': 'user', 'content': [{'type': 'text', 'text': 'the patient John Smith'}]}]",
        "cannot use the patient John Sm...",
        "cannot use ...tient John Smith",
    ]:
        for nested in [False, True]:
            text = "the patient John Smith"
            content = [{"type": "text", "text": text}] if nested else text
            wire, _ = write_messages([{"role": "system", "content": "brief"}, {"role": "user", "content": content}])
            shown = redact(echo, [wire], ())
            assert "John" not in shown
            assert shown.startswith("cannot use ")


def test_arguments_of_tool_calls_and_image_links_are_cut_out_too():
    calls = [{"id": "call-1", "type": "function", "function": {"name": "f", "arguments": '{"ssn": "123-45-6789"}'}}]
    parts = [{"type": "image_url", "image_url": {"url": "https://host/secret-image.png"}}]
    wire, _ = write_messages(
        [{"role": "assistant", "content": None, "tool_calls": calls}, {"role": "user", "content": parts}]
    )
    shown = redact('bad arguments {"ssn": "123-45-6789"} or https://host/secret-image.png', [wire], ())
    assert "6789" not in shown
    assert "secret-image" not in shown


def test_the_words_of_the_protocol_stay():
    wire, _ = write_messages([{"role": "user", "content": [{"type": "text", "text": "hello there"}]}])
    assert redact("the user has no text", [wire], ()) == "the user has no text"


def stream_of(*chunks):
    return "".join([f"data: {json.dumps(each)}\n\n" for each in chunks] + ["data: [DONE]\n\n"]).encode()


def tokens(count):
    return {"prompt_tokens": 3, "completion_tokens": count}


def test_a_piece_that_comes_twice_is_known_by_its_count():
    role = chunk(role="assistant", content="", usage=tokens(0))
    first, last = chunk(content="a", usage=tokens(1)), chunk(content="b", finish_reason="stop", usage=tokens(2))
    for chunks, text in (
        ((role, first, last), "ab"),
        ((role, first, first, last), None),
        ((role, role, first, last), "ab"),
    ):
        decoder = VllmDialect().decoder(batch_of(user("hi"), streamed=True, max_tokens=9), "text/event-stream")
        answers = decoder.feed(stream_of(*chunks), 1.0)
        more, failure = decoder.end(1.0)
        assert [answer.text for _, answer in answers + more] == ([] if text is None else [text])
        assert (failure is None) is (text is not None)
