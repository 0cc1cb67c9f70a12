"""The dialects of other servers than vLLM: what they send, how they read what comes, and what is refused before it is sent."""

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.core import Failure, FailureKind, Kind
from batchclient.dialects import DIALECTS, make_dialect
from batchclient.dialects._shapes import Shapes
from batchclient.errors import BadRequest, ConfigError, DemuxError, ServerFault
from batchclient.types import Usage
from tests.params import as_given
from tests.unit.golden import make_batch, make_request

OURS = {"stream_interval", "return_token_ids", "priority"}


def batch_of(*prompts, streamed=False, solo=b"", model="tiny", **params):
    shape, _ = Shapes().shape(as_given(params), model, token_ids=isinstance(prompts[0], list))
    return make_batch(shape, [make_request(shape, prompt, solo_fields=solo) for prompt in prompts], streamed=streamed)


def sent(name, batch):
    """Path and body of what a dialect sends."""
    request = make_dialect(name, ()).encode(batch)
    assert not isinstance(request, Failure), request
    return ("" if request.from_root else "/v1") + request.path, json.loads(request.body)


def read(name, batch, *chunks, content_type=""):
    """The answers by position, and the failure."""
    dialect = make_dialect(name, ())
    dialect.encode(batch)
    decoder = dialect.decoder(batch, content_type)
    pairs = [pair for chunk in chunks for pair in decoder.feed(chunk, 12.0)]
    last, failure = decoder.end(12.0)
    return dict(pairs + last), failure


def events(*payloads, done=True):
    return "".join([f"data: {json.dumps(each)}\n\n" for each in payloads] + ["data: [DONE]\n\n"] * done).encode()


def shown(answers):
    return {place: (answer.text, answer.finish_reason, answer.usage) for place, answer in answers.items()}


def test_every_name_has_a_dialect_with_all_slots():
    for name in DIALECTS:
        dialect = make_dialect(name, ())
        assert dialect.name == name
        for slot in ("encode", "decoder", "failure", "rate_limits", "hide", "events_per_choice"):
            assert callable(getattr(dialect, slot))
        assert "secret" not in repr(make_dialect(name, ("secret",)))


def test_nothing_of_vllms_is_sent_to_other_servers():
    for streamed in [False, True]:
        for name in ["openai", "trtllm", "tgi"]:
            _, body = sent(name, batch_of("a", "b", streamed=streamed, max_tokens=20))
            assert not OURS & body.keys()
            assert "continuous_usage_stats" not in body.get("stream_options", {})


def test_tei_generates_nothing():
    failure = make_dialect("tei", ()).encode(batch_of("a"))
    assert (failure.kind, failure.error) == (FailureKind.UNSUPPORTED, BadRequest)


def test_no_type_of_a_parameter_breaks_writing_or_reading():
    values = ["x", [], {}, 1.5, True, [1], {"type": ["x"]}, {"type": "json_schema", "json_schema": [1]}]
    fields = ["seed", "logprobs", "stop", "top_p", "response_format", "best_of", "logit_bias"]
    for name, field, value, streamed in itertools.product([*DIALECTS, None], fields, values, [False, True]):
        try:
            batch = batch_of("a", "b", streamed=streamed, extra_body={field: value})
        except ConfigError:
            continue
        dialect = make_dialect(name, ())
        request = dialect.encode(batch)
        if isinstance(request, Failure):
            assert request.kind is FailureKind.UNSUPPORTED, (name, field, value)
        else:
            dialect.decoder(batch)


# Fields of ours that are refused --------------------------------------------------------------------------------


REFUSALS = [
    (400, "Unrecognized request argument supplied: stream_interval", {"stream_interval"}),
    (422, "Unexpected fields in the request: {'stream_interval'}", {"stream_interval"}),
    (400, "[{'type': 'extra_forbidden', 'loc': ('body', 'stream_interval')}]", {"stream_interval"}),
    (400, "Unknown parameter: 'stream_options.continuous_usage_stats'.", {"continuous_usage_stats"}),
    (422, "body.stream_options: Extra inputs are not permitted", {"stream_options", "continuous_usage_stats"}),
    (400, "stream_options is not supported", {"stream_options", "continuous_usage_stats"}),
    (400, "Extra inputs are not permitted", {"stream_interval", "stream_options", "continuous_usage_stats"}),
]


def test_a_refusal_of_fields_of_ours_has_them_left_out():
    for status, message, fields in REFUSALS:
        dialect = make_dialect(None, ())
        batch = batch_of("a", "b", streamed=True, max_tokens=20)
        dialect.encode(batch)
        failure = dialect.failure(batch, status, {}, json.dumps({"detail": message}).encode(), 0.0)
        assert failure.kind is FailureKind.FIELDS_REFUSED
        body = json.loads(dialect.encode(batch).body)
        left = body.keys() | body.get("stream_options", {}).keys()
        assert not fields & left
        assert {"stream_interval", "stream_options", "continuous_usage_stats"} - fields <= left


def test_no_dialect_sends_a_field_again_that_was_refused_by_name():
    for name in [*DIALECTS, None]:
        shape, _ = Shapes().shape({"max_tokens": 20}, "tiny")
        shape = replace(shape, priority=3, tells_priority=True)
        for field in ("stream_interval", "priority"):
            dialect = make_dialect(name, ())
            batch = make_batch(shape, [make_request(shape, each) for each in "ab"], streamed=True)
            request = dialect.encode(batch)
            if not isinstance(request, Failure) and f'"{field}"'.encode() in request.body:
                dialect.failure(batch, 400, {}, f'{{"error": "unknown field {field}"}}'.encode(), 0.0)
                assert f'"{field}"'.encode() not in dialect.encode(batch).body


def test_running_sums_are_not_believed_after_a_chat_of_two_choices():
    """The events that open the choices count no token yet, whether the usage is a sum or not."""
    dialect = make_dialect(None, ())

    def decoded(batch, *pieces):
        dialect.encode(batch)
        decoder = dialect.decoder(batch)
        usages = [{"prompt_tokens": 5, "completion_tokens": tokens} for *_, tokens in pieces]
        choices = [{"index": index, **said} for index, said, _ in pieces]
        chunks = [{"choices": [choice], "usage": usage} for choice, usage in zip(choices, usages, strict=True)]
        return dict(decoder.feed(events(*chunks), 12.0) + decoder.end(12.0)[0])

    chat, _ = Shapes().shape({"max_tokens": 40, "n": 2}, "tiny", kind=Kind.CHAT)
    batch = make_batch(chat, [make_request(chat, [{"role": "user", "content": "a"}])], streamed=True)
    opening = [(i, {"delta": {"role": "assistant", "content": ""}, "finish_reason": None}, 0) for i in (0, 1)]
    said = [(i, {"delta": {"content": "x"}, "finish_reason": None}, 1 + i) for i in (0, 1)]
    decoded(batch, *opening, *said, *[(i, {"delta": {"content": "y"}, "finish_reason": "stop"}, 4) for i in (0, 1)])
    sums = [(i, {"text": "a" * 20, "finish_reason": "stop"}, 20 * (i + 1)) for i in range(4)]
    answers = decoded(batch_of(*"abcd", streamed=True, max_tokens=90), *sums)
    assert all(answer.usage.completion_tokens_estimated for answer in answers.values())


def test_a_batch_that_was_under_way_meanwhile_is_sent_again_as_well():
    dialect = make_dialect(None, ())
    one, other = batch_of("a", "b"), batch_of("c", "d")
    for batch in (one, other):
        assert b"return_token_ids" in dialect.encode(batch).body
    for batch in (one, other):
        failure = dialect.failure(batch, 400, {}, b'{"error": "unknown field return_token_ids"}', 0.0)
        assert failure.kind is FailureKind.FIELDS_REFUSED
        assert b"return_token_ids" not in dialect.encode(batch).body
    again = dialect.failure(one, 400, {}, b'{"error": "unknown field return_token_ids"}', 0.0)
    assert again.kind is FailureKind.BAD_CALL


def test_a_refusal_of_a_callers_field_is_the_callers():
    for message, params in [
        ("Unrecognized request argument supplied: foo", {"foo": 1}),
        ("unknown field return_token_ids", {"return_token_ids": True}),
        ("Unexpected fields in the request: {'foo'}", {"foo": 1}),
        ("max_tokens is not supported", {"max_tokens": 3}),
        ("the prompt is too long", {}),
    ]:
        dialect = make_dialect(None, ())
        batch = batch_of("a", "b", **params)
        dialect.encode(batch)
        assert (
            dialect.failure(batch, 400, {}, json.dumps({"error": message}).encode(), 0.0).kind is FailureKind.BAD_CALL
        )


@pytest.mark.parametrize(
    ("message", "kind"),
    [
        ("Streaming is not supported for a list of prompts.", FailureKind.STREAM_REFUSED),
        ("batched prompts are not supported", FailureKind.LIST_REFUSED),
    ],
)
def test_a_refusal_of_streams_or_lists_is_not_taken_for_one_of_fields(message, kind):
    dialect = make_dialect(None, ())
    batch = batch_of("a", "b", streamed=True)
    dialect.encode(batch)
    assert dialect.failure(batch, 400, {}, json.dumps({"error": message}).encode(), 0.0).kind is kind


# Usage --------------------------------------------------------------------------------------------------------------


def piece(index, text="t", finish=None, **usage):
    return {"choices": [{"index": index, "text": text, "finish_reason": finish}]} | ({"usage": usage} if usage else {})


def tokens(prompt, completion):
    return {"prompt_tokens": prompt, "completion_tokens": completion}


def test_a_running_sum_beside_the_choices_is_given_to_nobody():
    batch = batch_of("a", "b", streamed=True, max_tokens=50)
    stream = events(
        piece(0, **tokens(9, 1)),
        piece(1, **tokens(9, 2)),
        piece(0, "u", "stop", **tokens(9, 5)),
        piece(1, "u", "stop", **tokens(9, 8)),
    )
    answers, _ = read(None, batch, stream)
    assert [answers[place].usage for place in (0, 1)] == [Usage(1, 2, True, True)] * 2


def test_usage_that_tells_choices_apart_is_believed_from_then_on():
    batch = batch_of("a", "b", streamed=True, max_tokens=50)
    dialect = make_dialect(None, ())
    dialect.encode(batch)
    first = dialect.decoder(batch)
    pairs = first.feed(events(piece(0, "t", "stop", **tokens(3, 1)), piece(1, "t", "stop", **tokens(4, 1))), 1.0)
    assert [answer.usage for _, answer in pairs] == [Usage(1, 1, True, True), Usage(4, 1)]
    again = batch_of("a", "b", streamed=True, max_tokens=50)
    dialect.encode(again)
    pairs = dialect.decoder(again).feed(events(piece(1, "t", "stop", **tokens(3, 7))), 1.0)
    assert [answer.usage for _, answer in pairs] == [Usage(3, 7)]


def test_more_tokens_than_were_asked_for_are_no_usage_of_one_choice():
    batch = batch_of("a", "b", streamed=True, max_tokens=5)
    answers, _ = read(
        "vllm", batch, events(piece(0, "t", "stop", **tokens(3, 6)), piece(1, "t", "stop", **tokens(3, 5)))
    )
    assert [answers[place].usage for place in (0, 1)] == [Usage(1, 1, True, True), Usage(3, 5)]


def test_a_lone_calls_answer_waits_for_its_usage():
    for ending in ["usage", "done", "end"]:
        for name in ["openai", None]:
            batch = batch_of("a", streamed=True, max_tokens=20)
            dialect = make_dialect(name, ())
            dialect.encode(batch)
            decoder = dialect.decoder(batch)
            assert decoder.feed(events(piece(0, "t", "stop"), {"choices": []}, done=False), 1.0) == []
            if ending == "usage":
                ((_, answer),) = decoder.feed(events({"choices": [], "usage": tokens(3, 4)}, done=False), 2.0)
                assert answer.usage == Usage(3, 4)
            elif ending == "done":
                ((_, answer),) = decoder.feed(b"data: [DONE]\n\n", 2.0)
                assert answer.usage is None
            answers, failure = decoder.end(3.0)
            assert failure is None
            assert len(answers) == (ending == "end")


def test_a_plain_lists_sum_is_shared_out():
    for name in ["openai", "trtllm", "tgi", None]:
        batch = batch_of("a", "b", max_tokens=20)
        choices = [piece(i, text, "stop")["choices"][0] for i, text in enumerate(("t", "three times as long"))]
        answers, failure = read(name, batch, json.dumps({"choices": choices, "usage": tokens(9, 9)}).encode())
        assert failure is None
        assert [answers[place].usage for place in (0, 1)] == [Usage(5, 1, True, True), Usage(4, 8, True, True)]


@pytest.mark.parametrize("name", ["openai", "trtllm"])
def test_a_streamed_lists_sum_comes_too_late_for_its_answers(name):
    batch = batch_of("a", "b", streamed=True, max_tokens=20)
    first = events(piece(1, ""), piece(0, "t"), piece(0, " u", "stop", **tokens(9, 2)), done=False)
    rest = events(
        piece(1, "a longer text in one event", "stop"),
        {"choices": [], "usage": tokens(3, 1)},
        {"choices": [], "usage": tokens(4, 1)},
    )
    dialect = make_dialect(name, ())
    dialect.encode(batch)
    decoder = dialect.decoder(batch)
    assert [answer.usage for _, answer in decoder.feed(first, 1.0)] == [Usage(1, 2, True, True)]
    assert [answer.usage for _, answer in decoder.feed(rest, 2.0)] == [Usage(1, 7, True, True)]


def test_where_no_usage_was_asked_for_a_streamed_list_has_none():
    batch = batch_of("a", "b", streamed=True, max_tokens=20)
    dialect = make_dialect(None, ())
    dialect.encode(batch)
    refusal = b'{"detail": "Unexpected fields in the request: stream_options"}'
    dialect.failure(batch, 422, {}, refusal, 0.0)
    dialect.encode(batch)
    pairs = dialect.decoder(batch).feed(events(piece(0, "t", "stop"), piece(1, "t", "stop")), 1.0)
    assert [answer.usage for _, answer in pairs] == [None, None]


# SGLang -------------------------------------------------------------------------------------------------------------


def item(text, finish=None, prompt_tokens=3, ids=(7, 8), **meta):
    return {
        "text": text,
        "output_ids": list(ids),
        "meta_info": {
            "id": "x",
            "prompt_tokens": prompt_tokens,
            "completion_tokens": len(ids),
            "finish_reason": finish,
            **meta,
        },
    }


STOP = {"type": "stop", "matched": 2}
LENGTH = {"type": "length", "length": 2}


def test_sglang_gets_openais_fields_by_its_own_names():
    params = {
        "max_tokens": 5,
        "min_tokens": 2,
        "temperature": 0.5,
        "seed": 3,
        "logprobs": 2,
        "stop": ["x"],
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}},
    }
    path, body = sent("sglang", batch_of("a", "b", **params))
    assert path == "/generate"
    assert body == {
        "text": ["a", "b"],
        "stream": False,
        "return_logprob": True,
        "top_logprobs_num": 2,
        "return_text_in_logprobs": True,
        "sampling_params": {
            "max_new_tokens": 5,
            "min_new_tokens": 2,
            "temperature": 0.5,
            "sampling_seed": 3,
            "stop": ["x"],
            "json_schema": '{"type": "object"}',
        },
    }


def test_sglang_is_told_the_form_of_an_answer_in_its_own_words():
    for given, schema in [({"type": "text"}, None), ({"type": "json_object"}, '{"type":"object"}')]:
        path, body = sent("sglang", batch_of("a", response_format=given))
        assert (path, body["sampling_params"].get("json_schema")) == ("/generate", schema)
    path, body = sent("sglang", batch_of("a", response_format={"type": "json_object"}, json_schema="{}"))
    assert (path, body["json_schema"]) == ("/v1/completions", "{}"), "none of two forms is left out"


def test_sglang_is_told_openais_default_length_and_gets_ids_as_ids():
    _, body = sent("sglang", batch_of([1, 2], [3]))
    assert body["input_ids"] == [[1, 2], [3]]
    assert body["sampling_params"] == {"max_new_tokens": 16}
    assert sent("sglang", batch_of("a"))[1]["text"] == "a"


def test_sglang_calls_without_a_translation_go_the_other_way():
    for params in [
        {"echo": True},
        {"no_such": 1},
        {"model": "base:adapter"},
        {"response_format": {"type": "grammar"}},
        {"suffix": "x"},
    ]:
        path, body = sent("sglang", batch_of("a", "b", **params))
        assert path == "/v1/completions"
        assert body["prompt"] == ["a", "b"]
        assert "return_token_ids" not in body


def test_sglang_repeats_the_prompt_for_several_choices_each_with_a_seed_of_its_own():
    _, body = sent("sglang", batch_of("a", "b", n=2, seed=5, max_tokens=4))
    assert body["text"] == ["a", "a", "b", "b"]
    assert [params["sampling_seed"] for params in body["sampling_params"]] == [5, 6, 5, 6]
    assert all("n" not in params for params in body["sampling_params"])
    batch = batch_of("a", "b", n=2)
    answers, _ = read("sglang", batch, json.dumps([item(t, LENGTH) for t in "wxyz"]).encode())
    assert [[choice.text for choice in answers[place].choices] for place in (0, 1)] == [["w", "x"], ["y", "z"]]
    assert answers[0].usage == Usage(3, 4)


def test_sglang_answers_one_prompt_with_an_object_and_several_with_an_array():
    answers, _ = read("sglang", batch_of("a"), json.dumps(item("one", STOP)).encode())
    assert shown(answers) == {0: ("one", "stop", Usage(3, 2))}
    answers, _ = read("sglang", batch_of("a", "b"), json.dumps([item("one", STOP), item("two", LENGTH, 4)]).encode())
    assert shown(answers) == {0: ("one", "stop", Usage(3, 2)), 1: ("two", "length", Usage(4, 2))}


def test_an_array_that_is_too_short_is_no_answer():
    answers, failure = read("sglang", batch_of("a", "b"), json.dumps([item("one", STOP)]).encode())
    assert (answers, failure.kind, failure.error) == ({}, FailureKind.MISMATCH, DemuxError)


@pytest.mark.parametrize("incremental", [False, True])
def test_sglangs_streams_are_read_whether_they_are_cumulative_or_not(incremental):
    batch = batch_of("a", "b", streamed=True, max_tokens=20, return_token_ids=True, logprobs=1)

    def event(index, before, now, finish=None):
        words, ids = ["on", "e t", "wo", "!"], [4, 5, 6, 7]
        start = before if incremental else 0
        return item("".join(words[start:now]), finish, ids=ids[start:now]) | {
            "index": index,
            "meta_info": {
                "prompt_tokens": 3,
                "completion_tokens": now,
                "finish_reason": finish,
                "output_token_logprobs": [[-0.5, ids[i], words[i]] for i in range(start, now)],
            },
        }

    stream = events(event(1, 0, 1), event(0, 0, 2), event(1, 1, 3), event(0, 2, 4, LENGTH), event(1, 3, 4, STOP))
    answers, failure = read("sglang", batch, stream)
    assert failure is None
    for place in (0, 1):
        (choice,) = answers[place].choices
        assert choice.text == "one two!"
        assert choice.token_ids == (4, 5, 6, 7)
        assert choice.logprobs["tokens"] == ["on", "e t", "wo", "!"]
        assert choice.logprobs["text_offset"] == [0, 2, 5, 7]
        assert answers[place].usage == Usage(3, 4)


def test_an_abort_of_sglangs_is_what_its_status_says():
    batch = batch_of("a", "b", streamed=True, max_tokens=20)
    abort = {"type": "abort", "message": "Retracted under decode memory pressure", "status_code": 503}
    answers, failure = read("sglang", batch, events(item("one", STOP) | {"index": 0}, item("t", abort) | {"index": 1}))
    assert shown(answers) == {0: ("one", "stop", Usage(3, 2))}
    assert (failure.kind, failure.status, failure.error) == (FailureKind.REJECTED, 503, ServerFault)


# TGI ----------------------------------------------------------------------------------------------------------------


def test_tgi_takes_no_top_p_of_one_and_the_rest_as_it_is():
    path, body = sent("tgi", batch_of("a", "b", top_p=1.0, temperature=0.0, max_tokens=3, model="tgi"))
    assert path == "/v1/completions"
    assert body == {"prompt": ["a", "b"], "temperature": 0.0, "max_tokens": 3, "model": "tgi"}
    assert sent("tgi", batch_of("a", top_p=0.9))[1]["top_p"] == 0.9
    assert sent("tgi", batch_of("a", streamed=True))[1]["stream"] is True


def test_what_tgi_would_ignore_is_refused_before_it_is_sent():
    for params in [
        {"n": 2},
        {"logprobs": 0},
        {"echo": True},
        {"suffix": "x"},
        {"best_of": 2},
        {"return_token_ids": True},
    ]:
        failure = make_dialect("tgi", ()).encode(batch_of("a", **params))
        assert (failure.kind, failure.error) == (FailureKind.UNSUPPORTED, BadRequest)
        assert "not sent" in failure.message


def test_tgi_gets_no_token_ids():
    failure = make_dialect("tgi", ()).encode(batch_of([1, 2]))
    assert (failure.kind, failure.error) == (FailureKind.UNSUPPORTED, BadRequest)


def test_an_empty_finish_reason_is_none():
    batch = batch_of("a", "b", streamed=True, max_tokens=20)
    stream = events(
        piece(1, "x", ""),
        piece(0, "y", ""),
        piece(1, "z", "eos_token", **tokens(4, 2)),
        piece(0, "w", "length", **tokens(3, 2)),
    )
    answers, failure = read("tgi", batch, stream, content_type="text/event-stream")
    assert failure is None
    assert shown(answers) == {0: ("yw", "length", Usage(3, 2)), 1: ("xz", "stop", Usage(4, 2))}


def test_the_stop_string_that_ended_an_answer_of_tgis_is_not_in_it():
    for pieces in [["a", "b##", "#"], ["ab#", "##"], ["ab###"], ["a", "b#", "#", "#"], ["ab###x"], ["ab#", "##x", ""]]:
        batch = batch_of("p", streamed=True, max_tokens=20, stop=["###"])
        made = [piece(0, text, "") for text in pieces[:-1]] + [piece(0, pieces[-1], "stop_sequence", **tokens(3, 4))]
        answers, _ = read("tgi", batch, events(*made))
        assert shown(answers) == {0: ("ab", "stop", Usage(3, 4))}
        plain = {"choices": [{"index": 0, "text": "ab###", "finish_reason": "stop_sequence"}], "usage": tokens(3, 4)}
        answers, _ = read("tgi", batch_of("p", max_tokens=20, stop="###"), json.dumps(plain).encode())
        assert shown(answers) == {0: ("ab", "stop", Usage(3, 4))}


def test_what_looked_like_the_beginning_of_a_stop_string_is_kept():
    batch = batch_of("p", streamed=True, max_tokens=20, stop=["###"])
    answers, _ = read(
        "tgi", batch, events(piece(0, "a#", ""), piece(0, "b##", ""), piece(0, "", "length", **tokens(3, 4)))
    )
    assert answers[0].text == "a#b##"


def test_the_cap_and_the_name_of_tgis_model_are_in_its_complaints():
    dialect = make_dialect("tgi", ())
    assert dialect.caps[Kind.COMPLETION] == 4
    body = (
        b'{"error":"Number of prompts exceeds the maximum allowed batch size of 8","error_type":"batch size exceeded"}'
    )
    failure = dialect.failure(batch_of(*"abcdefghij"), 422, {}, body, 0.0)
    assert (failure.kind, failure.list_cap) == (FailureKind.LIST_TOO_LONG, 8)
    failure = dialect.failure(batch_of("a"), 422, {}, b'{"error":"adapter tiny is not loaded","error_type":"x"}', 0.0)
    assert "'tgi'" in failure.message


# llama.cpp ----------------------------------------------------------------------------------------------------------


def result(index, text, stop_type=None, made=2, **fields):
    return {
        "index": index,
        "content": text,
        "stop": stop_type is not None,
        "stop_type": stop_type,
        "tokens_evaluated": 3,
        "tokens_predicted": made,
        **fields,
    }


def test_llamacpp_is_always_told_how_long():
    path, body = sent("llamacpp", batch_of("a", "b"))
    assert (path, body) == ("/completion", {"prompt": ["a", "b"], "stream": False, "n_predict": 16})
    _, body = sent("llamacpp", batch_of("a", max_tokens=5, repetition_penalty=1.1, seed=4, logprobs=0))
    assert body == {"prompt": "a", "stream": False, "n_predict": 5, "repeat_penalty": 1.1, "seed": 4, "n_probs": 1}
    assert sent("llamacpp", batch_of("a", no_such=1))[1]["max_tokens"] == 16


@pytest.mark.parametrize("params", [{"no_such": 1}, {"repeat_penalty": 1, "repetition_penalty": 2}])
def test_llamacpp_calls_without_a_translation_go_the_other_way(params):
    assert sent("llamacpp", batch_of("a", "b", **params))[0] == "/v1/completions"


def test_llamacpp_does_not_echo():
    failure = make_dialect("llamacpp", ()).encode(batch_of("a", echo=True))
    assert (failure.kind, failure.error) == (FailureKind.UNSUPPORTED, BadRequest)


def test_llamacpps_results_are_read_each_with_its_usage():
    body = json.dumps([result(1, "two", "word", 3, stopping_word="x"), result(0, "one", "limit")]).encode()
    answers, _ = read("llamacpp", batch_of("a", "b"), body)
    assert shown(answers) == {0: ("one", "length", Usage(3, 2)), 1: ("two", "stop", Usage(3, 3))}


def test_llamacpps_stream_begins_with_null_and_ends_without_a_word():
    batch = batch_of("a", "b", streamed=True, max_tokens=20)
    stream = events(
        None,
        result(0, "o", made=1),
        result(1, "tw", made=2),
        result(0, "ne", made=2),
        result(0, "", "eos"),
        result(1, "o", made=3),
        result(1, "", "limit", 3),
        done=False,
    )
    answers, failure = read("llamacpp", batch, stream)
    assert failure is None
    assert shown(answers) == {0: ("one", "stop", Usage(3, 2)), 1: ("two", "length", Usage(3, 3))}


def test_what_llamacpp_broke_off_is_a_fault():
    answers, failure = read("llamacpp", batch_of("a"), json.dumps(result(0, "one", "none")).encode())
    assert (answers, failure.error) == ({}, ServerFault)


def test_the_first_prompts_usage_is_handed_out_only_where_it_is_the_calls():
    for prompts, n, usage in [(["a"], 1, Usage(3, 4)), (["a", "b"], 1, None), (["a"], 2, None)]:
        batch = batch_of(*prompts, n=n, no_such=1)
        choices = [piece(i, "t", "stop")["choices"][0] for i in range(len(prompts) * n)]
        answers, _ = read("llamacpp", batch, json.dumps({"choices": choices, "usage": tokens(3, 4)}).encode())
        assert [answers[place].usage for place in range(len(prompts))] == [usage] * len(prompts)


def test_logprobs_in_chats_form_are_written_as_completions_have_them():
    content = [
        {"token": t, "logprob": -0.5, "top_logprobs": [{"token": t, "logprob": -0.5}, {"token": "x", "logprob": -2}]}
        for t in ("on", "e")
    ]
    body = {"choices": [{"index": 0, "text": "one", "finish_reason": "stop", "logprobs": {"content": content}}]}
    answers, _ = read("llamacpp", batch_of("a", n=1, no_such=1, logprobs=1), json.dumps(body).encode())
    assert answers[0].choices[0].logprobs == {
        "tokens": ["on", "e"],
        "token_logprobs": [-0.5, -0.5],
        "top_logprobs": [{"on": -0.5}, {"e": -0.5}],
        "text_offset": [0, 2],
    }


@pytest.mark.parametrize(
    "message",
    [
        "input (1201 tokens) is too large to process. increase the physical batch size",
        "[json.exception.parse_error.101] parse error",
    ],
)
def test_a_500_that_is_the_calls_fault_is_not_tried_again(message):
    body = json.dumps({"error": {"code": 500, "message": message, "type": "server_error"}}).encode()
    failure = make_dialect("llamacpp", ()).failure(batch_of("a"), 500, {}, body, 0.0)
    assert (failure.kind, failure.error) == (FailureKind.BAD_CALL, BadRequest)
    other = make_dialect("llamacpp", ()).failure(batch_of("a"), 500, {}, b'{"error":{"message":"boom"}}', 0.0)
    assert other.kind is FailureKind.MAYBE_PROCESSED


# trtllm -------------------------------------------------------------------------------------------------------------


def test_a_400_of_trtllms_engine_is_tried_once_more():
    dialect = make_dialect("trtllm", ())
    failure = dialect.failure(batch_of("a"), 400, {}, b'{"message":"CppExecutorError: CUDA error","code":400}', 0.0)
    assert (failure.kind, failure.error, failure.once) == (FailureKind.MAYBE_PROCESSED, ServerFault, True)
    failure = dialect.failure(batch_of("a"), 400, {}, b'{"message":"max_tokens must be positive","code":400}', 0.0)
    assert (failure.kind, failure.error) == (FailureKind.BAD_CALL, BadRequest)


# What real ones answered --------------------------------------------------------------------------------------------

WIRE = Path(__file__).parent.parent / "wire"


def record(server, name):
    """The prompts and other fields of a recorded request, and the reply's bytes."""
    found = json.loads((WIRE / server / f"{name}.json").read_text("utf-8"))
    fields = dict(found["request"]["json"])
    prompt = fields.pop("prompt")
    several = isinstance(prompt, list) and not isinstance(prompt[0], int)
    for name in ("stream", "stream_options", "model"):
        fields.pop(name, None)
    return prompt if several else [prompt], fields, found["body_text"].encode()


def read_record(server, name, dialect, streamed=False):
    prompts, fields, body = record(server, name)
    renamed = {"n_predict": "max_tokens", "n_probs": "logprobs", "return_tokens": "return_token_ids"}
    params = {renamed.get(field, field): value for field, value in fields.items()}
    answers, failure = read(dialect, batch_of(*prompts, streamed=streamed, **params), body)
    assert failure is None
    assert len(answers) == len(prompts)
    return [answers[place] for place in range(len(prompts))]


def test_a_real_llama_servers_lists_are_read_each_with_its_usage():
    for name in ["native_list", "native_stream_list", "native_list_return_tokens"]:
        answers = read_record("llamacpp", name, "llamacpp", streamed="stream" in name)
        _, _, body = record("llamacpp", "plain_list")
        assert [answer.text for answer in answers] == [choice["text"] for choice in json.loads(body)["choices"]]
        assert [answer.usage for answer in answers] == [Usage(3, 6), Usage(2, 6), Usage(3, 6)]
        assert {answer.finish_reason for answer in answers} == {"length"}
        if name == "native_list_return_tokens":
            assert answers[0].choices[0].token_ids == (443, 443, 741, 1448, 741, 815)
        else:
            assert answers[0].choices[0].token_ids is None


def test_a_real_llama_servers_choices_belong_to_their_prompts():
    answers = read_record("llamacpp", "native_list_n2", "llamacpp")
    _, _, body = record("llamacpp", "plain_list_n2")
    texts = [choice["text"] for choice in json.loads(body)["choices"]]
    assert [choice.text for answer in answers for choice in answer.choices] == texts
    assert [answer.usage for answer in answers] == [Usage(3, 12), Usage(2, 12), Usage(3, 12)]


def test_a_real_llama_servers_stop_strings_and_single_answers():
    answers = read_record("llamacpp", "native_list_stop_string", "llamacpp")
    assert [(answer.text[:5], answer.finish_reason) for answer in answers] == [
        (" nam", "stop"),
        (" butL", "length"),
        ("th", "stop"),
    ]
    for name in ("native_single", "native_stream_single"):
        (answer,) = read_record("llamacpp", name, "llamacpp", streamed="stream" in name)
        assert (answer.text, answer.usage) == (" name nameval64valiter", Usage(3, 6))


def test_a_real_llama_servers_probabilities_are_those_of_its_other_route():
    native = read_record("llamacpp", "native_list_n_probs", "llamacpp")
    prompts, fields, body = record("llamacpp", "plain_list_logprobs")
    other, _ = read("llamacpp", batch_of(*prompts, no_such=1, **fields), body)
    for place, answer in enumerate(native):
        ours, theirs = answer.choices[0].logprobs, other[place].choices[0].logprobs
        assert ours["tokens"] == theirs["tokens"]
        assert ours["text_offset"] == theirs["text_offset"]
        assert ours["token_logprobs"] == pytest.approx(theirs["token_logprobs"], abs=1e-3)
        assert "".join(ours["tokens"]) == answer.text


def test_transformers_serve_is_read_with_its_usage():
    for name in ["stream_single", "stream_single_usage", "plain_single"]:
        (answer,) = read_record("transformers", name, "openai", streamed="stream" in name)
        assert (answer.text, answer.finish_reason, answer.usage) == (" name nameval64valiter", "length", Usage(3, 6))


@pytest.mark.parametrize("name", ["plain_single_stop_string", "plain_single_stop_string_alone"])
def test_transformers_serves_stop_string_is_not_in_the_answer(name):
    (answer,) = read_record("transformers", name, "openai")
    assert (answer.text, answer.finish_reason) == (" nam", "stop")


def test_transformers_serves_refusal_of_a_field_of_ours_is_known_for_one():
    found = json.loads((WIRE / "transformers" / "error_stream_interval.json").read_text("utf-8"))
    dialect = make_dialect(None, ())
    batch = batch_of("a", streamed=True)
    dialect.encode(batch)
    failure = dialect.failure(batch, found["status"], {}, found["body_text"].encode(), 0.0)
    assert failure.kind is FailureKind.FIELDS_REFUSED
    found = json.loads((WIRE / "transformers" / "error_unknown_field.json").read_text("utf-8"))
    failure = dialect.failure(batch_of("a", no_such_field=1), found["status"], {}, found["body_text"].encode(), 0.0)
    assert failure.kind is FailureKind.BAD_CALL


def test_a_real_llama_servers_faults_of_the_caller_are_the_callers():
    for name in ("error_bad_json", "native_error_too_long_in_list", "embed_too_long"):
        found = json.loads((WIRE / "llamacpp" / f"{name}.json").read_text("utf-8"))
        failure = make_dialect("llamacpp", ()).failure(
            batch_of("a", "b"), found["status"], {}, found["body_text"].encode(), 0.0
        )
        assert (failure.kind, failure.error) == (FailureKind.BAD_CALL, BadRequest)
