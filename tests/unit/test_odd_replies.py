"""Replies that are not what servers send and can be read all the same, and those of which one choice cannot."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.core import FailureKind, Kind
from batchclient.dialects import make_dialect
from batchclient.dialects._reader import OpenAIReader
from batchclient.dialects._shapes import Shapes
from batchclient.dialects._surrogates import MendingReader, mend
from batchclient.errors import DialectError, ServerFault
from batchclient.types import Usage
from tests.params import as_given
from tests.unit.golden import make_batch, make_request

TOLD = {"prompt_tokens": 3, "completion_tokens": 2}
USER = [{"role": "user", "content": "hi"}]


def batch_of(*prompts, kind=Kind.COMPLETION, streamed=True, to_caller=False, verbatim=False, **params):
    params.setdefault("max_tokens", 50)
    params = params if kind in (Kind.COMPLETION, Kind.CHAT) else {}
    shape, _ = Shapes().shape(as_given(params, kind), "tiny", kind=kind, to_caller=to_caller, verbatim=verbatim)
    return make_batch(shape, [make_request(shape, prompt) for prompt in prompts], streamed=streamed)


def chat_of(size=1, **options):
    return batch_of(*[USER] * size, kind=Kind.CHAT, **options)


def read(batch, *chunks, name="vllm", content_type=""):
    """The answers by position, and the failure."""
    dialect = make_dialect(name, ())
    dialect.encode(batch)
    decoder = dialect.decoder(batch, content_type)
    pairs = [pair for chunk in chunks for pair in decoder.feed(chunk, 12.0)]
    last, failure = decoder.end(12.0)
    pairs += last
    assert len(dict(pairs)) == len(pairs), "nobody is answered twice"
    return dict(pairs), failure


def texts(batch, *chunks, **options):
    """The texts by position, and what kind of failure it was."""
    answers, failure = read(batch, *chunks, **options)
    return {place: answer.text for place, answer in answers.items()}, failure and failure.kind


def events(*payloads, done=True):
    lines = [f"data: {each if isinstance(each, str) else json.dumps(each)}\n\n" for each in payloads]
    return "".join(lines + ["data: [DONE]\n\n"] * done).encode()


def piece(text, reason=None, index=0, usage=None, **fields):
    choice = {"index": index, "text": text, "finish_reason": reason, **fields}
    return {"id": "1", "choices": [choice]} | ({"usage": usage} if usage else {})


def delta(reason=None, index=0, usage=None, **fields):
    choice = {"index": index, "delta": fields, "finish_reason": reason}
    return {"id": "1", "object": "chat.completion.chunk", "choices": [choice]} | ({"usage": usage} if usage else {})


def without(event, name):
    (choice,) = event["choices"]
    return event | {"choices": [{field: value for field, value in choice.items() if field != name}]}


def plain(*choices, **fields):
    return json.dumps({"id": "1", "choices": list(choices), **fields}).encode()


def choice(index, text_="t", reason="stop", **fields):
    return {"index": index, "text": text_, "finish_reason": reason, **fields}


# Pings, marks, usages ------------------------------------------------------------------------------------------------


def test_pings_of_every_form_between_the_pieces_are_skipped():
    pings = (
        b"data:\n\n", b"data: \n\n", b": ping\n\n", b"event: ping\ndata: {\"type\": \"ping\"}\n\n", b"data: null\n\n", b"data: {}\n\n",
        b"data: ping\n\n", b"event: ping\ndata: keepalive\n\n",
        events({"id": "1"}, done=False), events({"choices": None}, done=False), events({"choices": []}, done=False),
        events({"choices": None, "error": None}, done=False),
    )  # fmt: skip
    for ping in pings:
        body = ping + events(piece("a"), done=False) + ping + events(piece("b", "stop"), done=False) + ping
        for name in ("vllm", "openai", "tgi", "sglang", "llamacpp"):
            batch = batch_of("p", no_such=1) if name in ("sglang", "llamacpp") else batch_of("p")
            assert texts(batch, body + events(), name=name) == ({0: "ab"}, None), (ping, name)
        chat = ping + events(delta(content="a"), done=False) + ping + events(delta("stop", content="b")) + ping
        assert texts(chat_of(), chat) == ({0: "ab"}, None), ping


def test_pings_between_the_events_of_servers_own_routes_are_skipped():
    native = [
        {"content": "a", "stop": False, "index": 0},
        {"content": "", "stop": True, "stop_type": "eos", "index": 0},
    ]
    generated = [
        {"text": text, "output_ids": [1] * size, "meta_info": {"id": "x", "completion_tokens": size, "finish_reason": finish}}
        for text, size, finish in (("a", 1, None), ("ab", 2, {"type": "stop"}))
    ]  # fmt: skip
    for ping in ({}, {"id": "1"}, {"choices": None}):
        assert texts(batch_of("p"), events(ping, native[0], ping, native[1], ping), name="llamacpp") == ({0: "a"}, None)
        stream = events(ping, generated[0], ping, generated[1], ping)
        assert texts(batch_of("p"), stream, name="sglang") == ({0: "ab"}, None)


def test_the_pieces_of_a_list_under_one_number_are_nobodys_answer():
    """LiteLLM's proxy, 1.108: a streamed list's pieces are all numbered 0. None of it is handed out, and it goes plain."""
    stream = events(
        piece("a"),
        piece("x"),
        piece("b"),
        piece("y"),
        without(piece(None, "stop"), "text"),
        without(piece(None, usage=TOLD), "text"),
    )
    for lines in ([stream], stream.splitlines(keepends=True)):
        assert texts(batch_of("p", "q"), *lines) == ({}, FailureKind.STREAM_REFUSED)
        assert texts(batch_of("p", n=2), *lines) == ({}, FailureKind.STREAM_REFUSED)
    # A server that answers one prompt after the other numbers the next.
    decoder = make_dialect("vllm", ()).decoder(batch_of("p", "q"))
    assert decoder.feed(events(piece("a", "stop"), done=False), 11.0) == []
    ((place, answer),) = decoder.feed(events(piece("x", index=1), done=False), 13.0)
    assert (place, answer.text, answer.time_to_first_token_s) == (0, "a", 1.0)


def test_a_byte_order_mark_costs_no_piece():
    for size in [1, 2, 3, 99]:
        body = b"\xef\xbb\xbf" + events(piece("a"), piece("b", "stop"))
        assert texts(batch_of("p"), *[body[at : at + size] for at in range(0, len(body), size)]) == ({0: "ab"}, None)
        assert texts(batch_of("p", streamed=False), b"\xef\xbb\xbf" + plain(choice(0))) == ({0: "t"}, None)


def test_a_usage_that_repeats_the_finished_choice_is_a_usage():
    """LiteLLM's proxy, 1.108: its last event has the choice once more, without a text."""
    for name in ["vllm", "openai", "tgi"]:
        for repeated in ["", None, "left out", "b"]:
            for reason in [None, "stop"]:
                last = piece(repeated, reason, usage=TOLD)
                last = without(last, "text") if repeated == "left out" else last
                answers, failure = read(batch_of("p"), events(piece("a"), piece("b", "stop"), last), name=name)
                assert (answers[0].text, failure) == ("ab", None)
                if name == "openai":
                    assert answers[0].usage == Usage(3, 2)
                two = events(
                    piece("a", "stop"),
                    piece("b", "stop", index=1),
                    last | {"choices": [last["choices"][0] | {"index": 1}]},
                )
                assert texts(batch_of("p", "q"), two, name=name) == ({0: "a", 1: "b"}, None)


def test_a_chats_usage_that_repeats_the_finished_choice_is_a_usage():
    stream = (delta(role="assistant", content="a"), delta("stop"))
    for last in (
        delta(usage=TOLD),
        delta("stop", usage=TOLD, role="assistant", content=""),
        delta(usage=TOLD, content=None),
    ):
        answers, failure = read(chat_of(), events(*stream, last), name="openai")
        assert (answers[0].text, answers[0].usage, failure) == ("a", Usage(3, 2), None)


def test_anything_new_after_the_end_is_a_mismatch():
    for more in [
        piece("c", usage=TOLD),
        piece("b", "stop"),
        piece("c"),
        piece("", "abort"),
        piece("", token_ids=[7]),
        piece("b", "stop", usage=TOLD, token_ids=[7]),
    ]:
        assert texts(batch_of("p"), events(piece("a"), piece("b", "stop"), more)) == ({}, FailureKind.MISMATCH)


def test_anything_new_after_a_chats_end_is_a_mismatch():
    for more in [{"content": "b"}, {"tool_calls": [{"index": 0}]}, {"reasoning": "b"}]:
        stream = events(delta(content="a"), delta("stop"), delta(usage=TOLD, **more))
        assert texts(chat_of(), stream) == ({}, FailureKind.MISMATCH)


def test_an_end_with_blanks_is_the_end():
    for end in [b"data: [DONE] \n\n", b"data:[DONE]\n\n", b"data: \t[DONE]\n\n"]:
        batch = batch_of("p")
        dialect = make_dialect("openai", ())
        dialect.encode(batch)
        ((_, answer),) = dialect.decoder(batch).feed(events(piece("a", "stop"), done=False) + end, 12.0)
        assert answer.text == "a"


def test_an_error_without_its_envelope_is_an_error():
    flat = {"object": "error", "message": "no", "code": 404}
    for batch, body in (
        (batch_of("p"), events(piece("a"), flat)),
        (batch_of("p", streamed=False), json.dumps(flat).encode()),
    ):
        answers, failure = read(batch, body)
        assert (answers, failure.status, failure.message) == ({}, 404, "404: no")


def test_an_empty_error_beside_an_answer_is_none():
    for error in [None, {}, "", False]:
        assert texts(batch_of("p"), events(piece("a", "stop") | {"error": error})) == ({0: "a"}, None)
        assert texts(batch_of("p", streamed=False), plain(choice(0), error=error)) == ({0: "t"}, None)


# Numbers of choices --------------------------------------------------------------------------------------------------


def test_a_lone_choice_needs_no_number():
    for name in ["vllm", "openai", "tgi"]:
        for index in [None, "left out", "0", 0.0]:
            first, last = piece("a", index=index), piece("b", "stop", index=index)
            whole = choice(index)
            if index == "left out":
                first, last = without(first, "index"), without(last, "index")
                del whole["index"]
            options = {"stop": ["zz"]}
            assert texts(batch_of("p", **options), events(first, last), name=name) == ({0: "ab"}, None)
            assert texts(batch_of("p", streamed=False, **options), plain(whole), name=name) == ({0: "t"}, None)


def test_a_lone_chat_input_and_item_need_no_number():
    assert texts(chat_of(), events(without(delta("stop", content="a"), "index"))) == ({0: "a"}, None)
    message = {"message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}
    assert texts(chat_of(streamed=False), plain(message)) == ({0: "a"}, None)
    embedding = batch_of("p", kind=Kind.EMBEDDING, streamed=False)
    answers, failure = read(embedding, json.dumps({"data": [{"embedding": [1.0]}]}).encode())
    assert (list(answers[0].vector), failure) == ([1.0], None)
    native = {"content": "a", "stop": True, "stop_type": "eos", "index": None}
    assert texts(batch_of("p"), events(native), name="llamacpp") == ({0: "a"}, None)


def test_numbers_as_texts_and_as_floats_are_numbers():
    """As protobuf and Lua write them."""
    for numbers in (("1", "0"), (1.0, 0.0)):
        stream = events(*[piece(f"t{number}", "stop", number) for number in numbers])
        body = plain(*[choice(number, f"t{number}") for number in numbers])
        expected = {1: f"t{numbers[0]}", 0: f"t{numbers[1]}"}
        assert texts(batch_of("p", "q"), stream) == (expected, None)
        assert texts(batch_of("p", "q", streamed=False), body) == (expected, None)


def test_two_choices_need_numbers():
    """Also where one was asked for: which it is cannot be known."""
    for index in [None, "left out", 1, True, [], {}]:
        one, other = (choice(index, text) for text in "ab")
        if index == "left out":
            del one["index"], other["index"]
        if index in (None, "left out"):
            begun = events({"choices": [each | {"finish_reason": None} for each in (one, other)]}, done=False)
            assert texts(batch_of("p"), begun + events({"choices": [one]})) == ({}, FailureKind.MISMATCH)
        for batch in (batch_of("p"), batch_of("p", "q")):
            assert texts(batch, events({"choices": [one, other]})) == ({}, FailureKind.MISMATCH)
            assert texts(batch_of(*"pq"[: len(batch.requests)], streamed=False), plain(one, other)) == (
                {},
                FailureKind.MISMATCH,
            )


# Texts that are left out ---------------------------------------------------------------------------------------------


def test_the_last_event_needs_no_text():
    """LiteLLM's proxy, 1.108."""
    for name in ["vllm", "openai", "tgi", "sglang", "llamacpp"]:
        for last in [None, "left out"]:
            end = piece(None, "stop")
            end = without(end, "text") if last == "left out" else end
            params = {"no_such": 1} if name in ("sglang", "llamacpp") else {"stop": ["bz"]}
            assert texts(batch_of("p", **params), events(piece("ab"), end), name=name) == ({0: "ab"}, None)
            batch = batch_of("p", to_caller=True, **params)
            dialect = make_dialect(name, ())
            dialect.encode(batch)
            decoder = dialect.decoder(batch)
            decoder.feed(events(piece("ab"), end), 12.0)
            assert "".join(each.text for each in decoder.deltas) == "ab"


def test_a_text_that_was_lost_on_its_way_is_not_taken_for_an_empty_one():
    """The first piece has to have one. The last has to where it tells of tokens: the rest of the answer, perhaps all but its first token."""
    for name in ["vllm", "openai", "tgi"]:
        for lost in [0, 1]:
            for text in [None, "left out"]:
                stream = [
                    piece("a", usage=TOLD | {"completion_tokens": 1}),
                    piece("bcd", "stop", usage=TOLD | {"completion_tokens": 4}),
                ]
                stream[lost] = without(stream[lost], "text") if text == "left out" else stream[lost] | {
                    "choices": [stream[lost]["choices"][0] | {"text": None}]
                }  # fmt: skip
                # TGI's reader holds the "a" back, and hands it out with the end.
                for options in ({}, {"stop": ["az"]} if name != "tgi" else {"stop": ["zz"]}):
                    answers, kind = texts(
                        batch_of("p", "q", **options), events(piece("x", "stop", 1), *stream), name=name
                    )
                    assert answers == ({0: "a", 1: "x"} if name == "openai" and lost else {1: "x"})
                    assert kind is (None if name == "openai" and lost else FailureKind.REFUSED)


def test_an_answer_without_any_text_is_empty_unless_it_has_another_form():
    ended = without(piece(None, "stop"), "text")
    assert texts(batch_of("p"), events(ended)) == ({0: ""}, None)
    for other in (piece(None, "stop"), delta("stop", content="a")):
        assert texts(batch_of("p"), events(other)) == ({}, FailureKind.MAYBE_PROCESSED)


def test_reasoning_beside_a_completion_is_joined():
    stream = events(
        piece("a", reasoning_content="x", stop_reason=""), piece("b", "stop", reasoning_content="y", stop_reason=3)
    )
    answers, _ = read(batch_of("p"), stream)
    assert answers[0].choices[0].extra == {"reasoning_content": "xy", "stop_reason": 3}
    answers, _ = read(batch_of("p", "q", verbatim=True), stream + events(piece("c", "stop", 1)))
    (joined,) = answers[0].reply.body["choices"]
    assert (joined["text"], joined["reasoning_content"], joined["stop_reason"]) == ("ab", "xy", 3)


# Choices that cannot be read -----------------------------------------------------------------------------------------

BROKEN = [
    {"text": None},
    {"text": 5},
    {"text": ["t"]},
    {"finish_reason": {}},
    {"finish_reason": {"type": "stop"}},
    {"finish_reason": 5},
    {"token_ids": 5},
    {"token_ids": [[1], 2], "text": {}},
]


def test_a_choice_that_cannot_be_read_fails_alone_and_is_not_asked_for_again():
    for fields in BROKEN:
        for place in [0, 1, 2]:
            choices = [choice(index, f"t{index}") | {"token_ids": [1]} for index in range(3)]
            choices[place] |= fields
            rest = {index: f"t{index}" for index in range(3) if index != place}
            for batch, body in (
                (batch_of("p", "q", "r", streamed=False, return_token_ids=True), plain(*choices)),
                (batch_of("p", "q", "r", return_token_ids=True), events(*[{"choices": [each]} for each in choices])),
                (batch_of("p", "q", "r", return_token_ids=True), events({"choices": choices})),
            ):
                answers, failure = read(batch, body)
                assert {index: answer.text for index, answer in answers.items()} == rest
                assert (failure.kind, failure.error, failure.status, failure.final) == (
                    FailureKind.REFUSED,
                    DialectError,
                    None,
                    True,
                )
                assert "t0" not in failure.message


def test_nothing_more_of_a_choice_that_cannot_be_read_is_looked_at():
    spoilt = [piece("a", index=1), piece("b", index=1, reason={"x": 1}), piece("c", index=1), piece("d", "stop", 1)]
    answers, failure = texts(batch_of("p", "q"), events(*spoilt, piece("x", "stop")))
    assert (answers, failure) == ({0: "x"}, FailureKind.REFUSED)
    # Whatever it is that cannot be read, the other was cut off, and that may be tried again.
    assert texts(batch_of("p", "q"), events(*spoilt, piece("x"), done=False)) == ({}, FailureKind.MAYBE_PROCESSED)
    assert texts(batch_of("p", "q"), events(*spoilt)) == ({}, FailureKind.MISMATCH)


@pytest.mark.parametrize("streamed", [True, False])
def test_one_choice_of_several_that_cannot_be_read_fails_its_prompt(streamed):
    choices = [choice(0), choice(1, 5), choice(2), choice(3)]
    body = events(*[{"choices": [each]} for each in choices]) if streamed else plain(*choices)
    answers, failure = read(batch_of("p", "q", streamed=streamed, n=2), body)
    assert (sorted(answers), failure.kind) == ([1], FailureKind.REFUSED)


@pytest.mark.parametrize("streamed", [True, False])
def test_a_reply_of_which_nothing_can_be_read_is_at_fault_itself(streamed):
    """Another form of reply than expected: what is to be done about that is not each call's own affair."""
    for size in (1, 2):
        choices = [choice(0, 5), choice(1, {})][:size]
        body = events(*[{"choices": [each]} for each in choices]) if streamed else plain(*choices)
        answers, failure = read(batch_of(*"pq"[:size], streamed=streamed), body)
        assert (answers, failure.error, failure.kind) == ({}, DialectError, FailureKind.MAYBE_PROCESSED)
        assert (failure.final, failure.once) == (False, size == 1)


def test_what_may_be_tried_again_wins():
    for streamed in [True, False]:
        for order in [(0, 1, 2), (2, 1, 0)]:
            choices = [choice(0), choice(1, "t", "abort"), choice(2, 5)]
            choices = [choices[place] for place in order]
            body = events(*[{"choices": [each]} for each in choices]) if streamed else plain(*choices)
            answers, failure = read(batch_of("p", "q", "r", streamed=streamed), body)
            assert (sorted(answers), failure.kind, failure.error) == ([0], FailureKind.MAYBE_PROCESSED, ServerFault)


def test_a_chat_that_cannot_be_read_fails_alone():
    good = {"index": 0, "message": {"role": "assistant", "content": "a"}, "finish_reason": "stop"}
    for message in (None, {"content": 5}, 5, {"content": [{"type": "text"}]}):
        body = plain(good, good | {"index": 1, "message": message})
        assert texts(chat_of(2, streamed=False), body) == ({0: "a"}, FailureKind.REFUSED)
    for fields in ({"content": 5}, {"tool_calls": 5}, {"tool_calls": [{"index": "x"}]}, {"reasoning": {}}):
        stream = events(delta(index=1, content="a"), delta(**fields), delta("stop"), delta("stop", 1))
        batch = chat_of(n=2)
        assert texts(batch, stream)[1] is FailureKind.MAYBE_PROCESSED


def test_what_only_counts_costs_no_answer():
    """Token ids that we asked for, and usages wherever they stand."""
    for odd in [5, [], "much", {"prompt_tokens": "x"}, [1], True]:
        choices = [
            choice(0, token_ids=odd, prompt_token_ids=odd, usage=odd),
            choice(1, token_ids=[1], prompt_token_ids=[1, 2]),
        ]
        answers, failure = read(batch_of("p", "q", streamed=False), plain(*choices, usage=odd))
        assert (sorted(answers), failure, answers[1].usage) == ([0, 1], None, Usage(2, 1))
        stream = events(*[{"choices": [each], "usage": odd} for each in choices])
        assert texts(batch_of("p", "q"), stream) == ({0: "t", 1: "t"}, None)
        native = [
            {"content": "t", "stop": True, "stop_type": "eos", "index": i, "tokens_predicted": odd} for i in (0, 1)
        ]
        assert texts(batch_of("p", "q", streamed=False), json.dumps(native).encode(), name="llamacpp") == (
            {0: "t", 1: "t"},
            None,
        )
        generated = [
            {"index": i, "text": "t", "meta_info": {"completion_tokens": odd, "finish_reason": {"type": "stop"}}}
            for i in (0, 1)
        ]
        assert texts(batch_of("p", "q", streamed=False), json.dumps(generated).encode(), name="sglang") == (
            {0: "t", 1: "t"},
            None,
        )
        assert texts(batch_of("p", "q"), events(*generated), name="sglang") == ({0: "t", 1: "t"}, None)


def test_an_item_of_sglangs_that_cannot_be_read_fails_alone():
    for spoil in [{"meta_info": None}, {"text": 5}, {"meta_info": {"finish_reason": 5}}]:
        items = [
            {"index": i, "text": "t", "meta_info": {"completion_tokens": 1, "finish_reason": {"type": "stop"}}}
            for i in (0, 1)
        ]
        items[1] |= spoil
        assert texts(batch_of("p", "q", streamed=False), json.dumps(items).encode(), name="sglang") == (
            {0: "t"},
            FailureKind.REFUSED,
        )
        assert texts(batch_of("p", "q"), events(*items), name="sglang") == ({0: "t"}, FailureKind.REFUSED)
        assert texts(batch_of("p", "q"), events(*items[::-1]), name="sglang") == ({0: "t"}, FailureKind.REFUSED)


def test_an_item_of_llamacpps_that_cannot_be_read_fails_alone():
    for spoil in [{"content": None}, {"content": 5}, {"stop_type": []}]:
        items = [{"index": i, "content": "t", "stop": True, "stop_type": "eos"} for i in (0, 1)]
        items[0] |= spoil
        assert texts(batch_of("p", "q", streamed=False), json.dumps(items).encode(), name="llamacpp") == (
            {1: "t"},
            FailureKind.REFUSED,
        )
        assert texts(batch_of("p", "q"), events(*items), name="llamacpp") == ({1: "t"}, FailureKind.REFUSED)


def test_an_item_that_cannot_be_read_fails_alone():
    for kind, prompts, good, bad in [
        (Kind.EMBEDDING, ["a", "b"], {"embedding": [1.0]}, [{"embedding": None}, {"embedding": 5}, {"embedding": ["x"]}, {}]),
        (Kind.SCORE, [["q", "a"], ["r", "b"]], {"score": 1.0}, [{"score": None}, {"score": "1"}, {}]),
        (Kind.CLASSIFICATION, ["a", "b"], {"label": "x", "probs": [1.0]}, [{"label": 5, "probs": [1.0]}, {"label": "x", "probs": 5}, {"label": "x"}]),
    ]:  # fmt: skip
        for spoilt in bad:
            body = json.dumps({"data": [good | {"index": 1}, spoilt | {"index": 0}]}).encode()
            answers, failure = read(batch_of(*prompts, kind=kind, streamed=False), body)
            assert (sorted(answers), failure.kind, failure.final) == ([1], FailureKind.REFUSED, True)
            both = json.dumps({"data": [spoilt | {"index": 1}, spoilt | {"index": 0}]}).encode()
            answers, failure = read(batch_of(*prompts, kind=kind, streamed=False), both)
            assert (answers, failure.kind) == ({}, FailureKind.MAYBE_PROCESSED)


def test_a_text_whose_tokens_cannot_be_read_fails_alone():
    for name, reply in [("sglang", {"tokens": [[5], ["x"]]}), ("sglang", {"tokens": [[5], None]}), ("tei", [[{"id": 5}], [{"no": 5}]]), ("tei", [[{"id": 5}], 7])]:  # fmt: skip
        batch = batch_of("a", "b", kind=Kind.TOKENS, streamed=False)
        answers, failure = read(batch, json.dumps(reply).encode(), name=name)
        assert ({place: answer.ids for place, answer in answers.items()}, failure.kind) == (
            {0: [5]},
            FailureKind.REFUSED,
        )


# Lone surrogates -----------------------------------------------------------------------------------------------------

HIGH, LOW = "\\ud83d", "\\ude00"


def escaped(payload):
    return json.dumps(payload).replace("HIGH", HIGH).replace("LOW", LOW)


def test_a_lone_surrogate_is_read_and_can_be_written():
    body = escaped(
        {"id": "HIGH", "choices": [choice(0, "aHIGHb"), choice(1), choice(2, "HIGHLOW", x={"LOW": ["LOW"]})]}
    ).encode()
    answers, failure = read(batch_of("p", "q", "r", streamed=False), body)
    assert ({i: a.text for i, a in answers.items()}, failure) == ({0: "a\ufffdb", 1: "t", 2: "\U0001f600"}, None)
    assert answers[2].choices[0].extra == {"x": {"\ufffd": ["\ufffd"]}}
    assert answers[0].extra["id"] == "\ufffd"
    alone, _ = read(batch_of("p", streamed=False, verbatim=True), escaped({"choices": [choice(0, "aHIGH")]}).encode())
    assert alone[0].reply.body["choices"][0]["text"] == "a\ufffd"


def test_halves_in_two_pieces_are_joined():
    for pieces, text in [
        (("aHIGH", "LOWb", ""), "a\U0001f600b"),
        (("aHIGH", "", "LOWb"), "a\U0001f600b"),
        (("aHIGH", "b", ""), "a\ufffdb"),
        (("aLOW", "HIGHb", ""), "a\ufffd\ufffdb"),
        (("a", "HIGHHIGH", "LOW"), "a\ufffd\U0001f600"),
        (("a", "b", "HIGH"), "ab\ufffd"),
        (("a", "bHIGH", ""), "ab\ufffd"),
        (("a", "bHIGH", None), "ab\ufffd"),
    ]:

        def ended(place):
            return "stop" if place == 2 else None

        completion = events(*[escaped(piece(each, ended(place))) for place, each in enumerate(pieces)])
        between = events(*[escaped(piece("xHIGH", ended(place), 1)) for place in range(3)])
        mixed = b"".join(
            each + b"\n\n"
            for pair in zip(completion.split(b"\n\n"), between.split(b"\n\n"), strict=True)
            for each in pair
        )
        assert texts(batch_of("p", "q"), mixed.replace(b"data: [DONE]", b"")) == (
            {0: text, 1: "x\ufffdx\ufffdx\ufffd"},
            None,
        )
        for fields in ("content", "reasoning"):
            chat = events(*[escaped(delta(ended(place), **{fields: each})) for place, each in enumerate(pieces)])
            answers, _ = read(chat_of(), chat)
            assert answers[0].message[fields] == text
        chat = events(
            *[
                escaped(delta(ended(place), tool_calls=[{"index": 0, "function": {"arguments": each}}]))
                for place, each in enumerate(pieces)
            ]
        )
        answers, _ = read(chat_of(), chat)
        assert answers[0].message["tool_calls"] == [{"function": {"arguments": text}}]


def test_a_waiting_caller_is_handed_what_can_be_written():
    batch = chat_of(to_caller=True)
    decoder = make_dialect("vllm", ()).decoder(batch)
    stream = [delta(content="aHIGH"), delta(content="LOW"), delta(content="bHIGH"), delta("stop")]
    ((_, answer),) = decoder.feed(events(*map(escaped, stream)), 12.0)
    assert [each.text for each in decoder.deltas] == ["a", "\U0001f600", "b", "\ufffd"]
    assert [each.message["content"] for each in decoder.deltas] == ["a", "\U0001f600", "b", "\ufffd"]
    assert answer.text == "a\U0001f600b\ufffd"


def test_half_a_pair_at_the_end_of_a_tool_call_is_not_lost():
    call = {"index": 1, "id": "a", "function": {"name": "f", "arguments": "xHIGH"}}
    answers, _ = read(chat_of(), events(escaped(delta(tool_calls=[call])), delta("tool_calls")))
    assert answers[0].message["tool_calls"] == [{"id": "a", "function": {"name": "f", "arguments": "x\ufffd"}}]


def test_an_errors_words_can_be_written():
    for batch, body in (
        (batch_of("p"), events(escaped({"error": {"message": "noHIGH"}}))),
        (batch_of("p", streamed=False), escaped({"error": {"message": "noHIGH"}}).encode()),
    ):
        assert read(batch, body)[1].message == "500: no\ufffd"


@settings(max_examples=40)
@given(st.lists(st.text(st.sampled_from(["a", "\ud83d", "\ude00", "é"]), max_size=3), min_size=1, max_size=5))
def test_pieces_are_mended_to_what_their_whole_is(pieces):
    """Whatever the split, nothing is lost or doubled, and every piece can be written."""
    reader = MendingReader(OpenAIReader(batch_of("p")))
    made = [reader.event({"choices": [{"index": 0, "text": text}]}) for text in pieces]
    made.append(reader.event({"choices": [{"index": 0, "finish_reason": "stop"}]}))
    got = [event["choices"][0].get("text") or "" for event in made]
    assert "".join(got) == mend("".join(pieces))
    "".join(got).encode()


def test_deep_replies_are_judged_and_raise_nothing():
    for depth in [150, 400, 100_000]:
        for body in (
            b'{"choices":' + b"[" * depth + b"]" * depth + b"}",
            b'{"x":"\\ud83d","choices":' + b"[" * depth + b"]" * depth + b"}",
        ):
            assert read(batch_of("p", streamed=False), body)[1].error is DialectError
            assert read(batch_of("p"), b"data: " + body + b"\n\n")[1].error is DialectError


# Another form than the one that was asked for ------------------------------------------------------------------------


def test_a_reply_is_read_for_what_it_is():
    for content_type in ["", "text/plain", "text/event-stream", "application/json; charset=utf-8", "Application/JSON"]:
        for blank in [b"", b"\r\n", b" \n", b"\xef\xbb\xbf"]:
            whole, stream = (
                blank + plain(choice(0, "ab"), usage=TOLD),
                events(piece("a"), piece("b", "stop", usage=TOLD)),
            )
            for size in (1, 999):
                for streamed in (True, False):
                    for body in (
                        whole,
                        blank + stream if blank != b" \n" else stream,
                        b": ping\n\n" + stream,
                        b"event: x\n" + stream,
                    ):
                        chunks = [body[at : at + size] for at in range(0, len(body), size)]
                        answers, failure = read(batch_of("p", streamed=streamed), *chunks, content_type=content_type)
                        assert (answers[0].text, answers[0].usage, failure) == ("ab", Usage(3, 2), None)
                        if not streamed or body is whole:
                            assert answers[0].time_to_first_token_s is None


def test_a_chat_is_read_for_what_it_is():
    for content_type in ["", "text/plain", "text/event-stream", "application/json"]:
        whole = plain(
            {"index": 0, "message": {"role": "assistant", "content": "ab"}, "finish_reason": "stop"}, usage=TOLD
        )
        stream = events(delta(role="assistant", content="a"), delta(content="b"), delta("stop", usage=TOLD))
        for streamed in (True, False):
            for body in (whole, stream):
                answers, failure = read(chat_of(streamed=streamed), body, content_type=content_type)
                assert (answers[0].text, answers[0].usage, failure) == ("ab", Usage(3, 2), None)
        (answer,) = read(chat_of(streamed=False, verbatim=True), stream, content_type=content_type)[0].values()
        assert answer.reply.body == {
            "id": "1",
            "object": "chat.completion",
            "choices": [{"index": 0, "message": {"role": "assistant", "content": "ab"}, "finish_reason": "stop", "logprobs": None}],
            "usage": TOLD,
        }  # fmt: skip


def test_a_list_of_chats_is_never_read_as_a_stream():
    """vLLM's list route streams each answer's last token alone."""
    stream = events(delta("stop", content="a"), delta("stop", 1, content="b"))
    answers, failure = read(chat_of(2, streamed=False), stream, content_type="text/event-stream")
    assert (answers, failure.error) == ({}, DialectError)


@pytest.mark.parametrize("name", ["sglang", "llamacpp"])
def test_servers_own_routes_are_read_for_what_they_are(name):
    item = {
        "sglang": {"index": 0, "text": "ab", "meta_info": {"completion_tokens": 1, "finish_reason": {"type": "stop"}}},
        "llamacpp": {"index": 0, "content": "ab", "stop": True, "stop_type": "eos"},
    }[name]
    for streamed in (True, False):
        for body in (json.dumps(item).encode(), events(item)):
            for content_type in ("", "application/json", "text/event-stream"):
                assert texts(batch_of("p", streamed=streamed), body, name=name, content_type=content_type) == (
                    {0: "ab"},
                    None,
                )


def test_an_error_in_another_form_is_an_error():
    error = {"error": {"message": "no", "code": 404}}
    for streamed in (True, False):
        for body in (json.dumps(error).encode(), events(error)):
            answers, failure = read(batch_of("p", "q", streamed=streamed), body, content_type="text/plain")
            assert (answers, failure.status) == ({}, 404)


def test_a_page_is_neither():
    for streamed in (True, False):
        answers, failure = read(batch_of("p", streamed=streamed), b"<html>data: no</html>", content_type="text/html")
        assert answers == {}
        assert "text/html" in failure.message
        assert failure.is_page
        _, failure = read(batch_of("p", streamed=streamed), b"data: no", content_type="text/plain")
        assert not failure.is_page


@pytest.mark.parametrize(("max_tokens", "most"), [(5, 4096), (2000, 8000)])
def test_a_choice_has_four_events_per_token_and_4096_if_it_is_short(max_tokens, most):
    for more in (0, 1):
        stream = events(*[piece("a")] * (most - 1 + more), piece("", "stop"))
        answers, failure = read(batch_of("p", max_tokens=max_tokens), stream)
        assert (len(answers), failure is None) == ((0, False) if more else (1, True))


# How much is told at once --------------------------------------------------------------------------------------------


def test_an_answer_without_a_bound_is_told_as_long_ones_are():
    for max_tokens, interval in [(None, 256), (16, 100_000), (256, 100_000), (257, 256)]:
        params = {} if max_tokens is None else {"max_tokens": max_tokens}
        shape, _ = Shapes().shape(params, "tiny", kind=Kind.CHAT)
        dialect = make_dialect("vllm", ())
        request = dialect.encode(make_batch(shape, [make_request(shape, USER)], streamed=True))
        assert json.loads(request.body)["stream_interval"] == interval
        # A server that sends an event per token is not told apart from one that writes a long answer.
        assert (dialect.events_per_choice(shape) > 1_000_000) is (max_tokens is None)


def test_an_errors_words_and_status_are_told_wherever_they_stand():
    for streamed in [False, True]:
        for name in ["vllm", "openai", "tgi"]:
            told = [
                {"error": {"message": "no", "http_status_code": 422}},
                {"error": "no", "code": "422"},
                {"detail": {"message": "no", "status": 422}},
                {"detail": [{"loc": [], "msg": "no"}], "status_code": 422},
                {"errors": [{"msg": "no", "code": 422}]},
                {"msg": "no", "code": 422},
                [{"error": {"message": "no", "code": 422}}],
            ]
            bodies = [json.dumps(each).encode() for each in told]
            if streamed:
                begun = events(piece("a"), done=False)
                lines = [
                    b'event: error\ndata: {"message": "no", "status": 422}',
                    b'error: {"message": "no", "code": 422}',
                ]
                lines += [b"data: " + body for body in bodies]
                bodies = [begun + line + b"\n\ndata: [DONE]\n\n" for line in lines]
            for body in bodies:
                answers, failure = read(batch_of("p", streamed=streamed), body, name=name)
                assert (answers, failure.kind, failure.message) == ({}, FailureKind.BAD_CALL, "422: no"), body
            _, failure = read(batch_of("p"), b"event: error\ndata: out of luck\n\n", name=name)
            assert (failure.error, failure.message) == (ServerFault, "500: out of luck")
            # Dynamo has the words in a comment.
            for event, words in [
                (b"event: error\n: Failed to load image", "Failed to load image"),
                (b"event: error\nid: 1", "the server told no more"),
            ]:
                _, failure = read(batch_of("p"), event + b"\n\ndata: [DONE]\n\n", name=name)
                assert (failure.kind, failure.error) == (FailureKind.MAYBE_PROCESSED, ServerFault)
                assert failure.message == f"500: {words}"


def test_an_error_event_may_say_that_memory_ran_out_or_that_the_server_is_full():
    full = (
        b'event: error\ndata: {"code": 500, "message": "Context size has been exceeded.", "type": "server_error"}\n\n'
    )
    for prompts, kind in [(("p",), FailureKind.REJECTED), (("p", "q"), FailureKind.LIST_TOO_LONG)]:
        _, failure = read(batch_of(*prompts), full)
        assert (failure.kind, failure.out_of_memory) == (kind, True)
    for error in (
        {"type": "overloaded_error", "message": "Overloaded"},
        {"code": 529, "message": "All workers are busy"},
    ):
        _, failure = read(batch_of("p"), b"data: " + json.dumps({"error": error}).encode() + b"\n\n")
        assert (failure.kind, failure.error, failure.out_of_memory) == (FailureKind.REJECTED, ServerFault, False)


def test_fields_of_other_names_are_no_errors_beside_an_answer():
    body = json.dumps(piece("a", "stop") | {"detail": "cached", "errors": [1], "msg": "ok", "code": 422}).encode()
    assert texts(batch_of("p", streamed=False), body) == ({0: "a"}, None)
    body = events(piece("a"), {"msg": "ping"}, piece("b", "stop") | {"detail": "x"})
    assert texts(batch_of("p"), body) == ({0: "ab"}, None)
