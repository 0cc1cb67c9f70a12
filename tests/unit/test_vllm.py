"""vLLM's dialect against what a real vLLM 0.32 answered, and against what it must not be trusted to answer."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.core import FailureKind, Kind, Shape
from batchclient.dialects._shapes import Shapes
from batchclient.dialects.vllm import VllmDialect
from batchclient.errors import BadRequest, ConfigError, DemuxError, DialectError, NotFound, ServerFault
from batchclient.types import Usage
from tests.inspection import held
from tests.params import as_given
from tests.unit.golden import NAMES, golden, make_batch, make_request

ANSWERS = [name for name in NAMES if name.startswith(("plain_", "stream_"))]
CHATS = [name for name in NAMES if name.startswith("chat_") and "_error_" not in name and "bug" not in name]
STREAMS = [name for name in ANSWERS if name.startswith("stream_")]
ERRORS = [name for name in NAMES if name.startswith("error_")]
WORDS = ("def f(", "import os", "class A:")


def decode(batch, *chunks, dialect=None):
    """Feed the chunks at time 12; return the answers by position, and the failure."""
    decoder = (dialect or VllmDialect()).decoder(batch)
    pairs = [pair for chunk in chunks for pair in decoder.feed(chunk, 12.0)]
    last, failure = decoder.end(12.0)
    pairs += last
    answers = dict(pairs)
    assert len(answers) == len(pairs), "nobody is answered twice"
    return answers, failure


def seen(result):
    """A result in a form that can be compared."""
    answers, failure = result
    return sorted(answers.items()), failure and (failure.kind, failure.error, failure.message, failure.code)


def batch_of(*prompts, streamed=True, solo=b"", **params):
    shape, _ = Shapes().shape(as_given(params), "tiny", token_ids=False)
    return make_batch(shape, [make_request(shape, prompt, solo_fields=solo) for prompt in prompts], streamed=streamed)


def events(*payloads, done=True):
    lines = [f"data: {payload if isinstance(payload, str) else json.dumps(payload)}\n\n" for payload in payloads]
    return "".join(lines + ["data: [DONE]\n\n"] * done).encode()


def choice(index, text="t", finish_reason="stop", **fields):
    return {"index": index, "text": text, "finish_reason": finish_reason, **fields}


def event(*choices, **fields):
    return {"id": "cmpl-1", "choices": list(choices), **fields}


def reply(*choices, **fields):
    return json.dumps(event(*choices, **fields)).encode()


def texts(answers):
    return {position: [one.text for one in completion.choices] for position, completion in answers.items()}


# Goldens: what a real server answers -----------------------------------------------------------------------------


def test_every_prompt_of_a_golden_reply_is_answered_with_its_own_choices():
    for name in ANSWERS:
        record = golden(name)
        answers, failure = decode(record.batch(), record.body)
        assert failure is None
        assert sorted(answers) == list(range(len(record.prompts)))
        for completion in answers.values():
            assert [one.index for one in completion.choices] == list(range(record.params.get("n", 1)))
            assert all(one.finish_reason in ("stop", "length") for one in completion.choices)
            assert completion.attempts == 1
            assert completion.extra["id"].startswith("cmpl-")


def test_a_golden_reply_reads_the_same_byte_by_byte_and_with_other_ends_of_lines():
    for name in ANSWERS + CHATS:
        record = golden(name)
        whole = seen(decode(record.batch(), record.body))
        assert seen(decode(record.batch(), *[record.body[i : i + 1] for i in range(len(record.body))])) == whole, name
        if "stream_" in name:
            assert seen(decode(record.batch(), record.body.replace(b"\n", b"\r\n"))) == whole, name


@given(st.sampled_from(ANSWERS + CHATS), st.data())
def test_a_golden_reply_reads_the_same_at_any_split_points(name, data):
    record = golden(name)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(record.body)), max_size=9)))
    chunks = [record.body[a:b] for a, b in zip([0, *cuts], [*cuts, len(record.body)], strict=True)]
    assert seen(decode(record.batch(), *chunks)) == seen(decode(record.batch(), record.body))


def test_a_joined_stream_is_the_plain_reply():
    for streamed, plain in [
        ("stream_single", "plain_single"),
        ("stream_list_two_events", "plain_list"),
        ("stream_list_event_per_token", "plain_list"),
        ("stream_list_no_usage", "plain_list"),
        ("stream_list_two_events_token_ids", "plain_list_token_ids"),
        ("stream_list_two_events_stop_string", "plain_list_stop_string"),
        ("stream_list_two_events_n2_logprobs_token_ids", "plain_list_n2_logprobs_token_ids"),
        ("stream_list_two_events_echo_logprobs", "plain_list_echo_logprobs"),
        ("stream_token_ids_prompts", "plain_token_ids_prompts"),
    ]:
        joined, _ = decode(golden(streamed).batch(), golden(streamed).body)
        whole, _ = decode(golden(plain).batch(), golden(plain).body)
        for position, completion in joined.items():
            for one, other in zip(completion.choices, whole[position].choices, strict=True):
                assert (one.index, one.text, one.finish_reason) == (other.index, other.text, other.finish_reason)
                assert one.extra.get("stop_reason") == other.extra.get("stop_reason")
                if "logprobs" in golden(plain).params:
                    assert one.logprobs == other.logprobs is not None
                if "return_token_ids" in golden(streamed).params:
                    assert one.token_ids == other.token_ids
                    assert len(one.token_ids) == 6
            if not completion.usage.estimated and not whole[position].usage.estimated:
                assert completion.usage == whole[position].usage


def test_the_texts_of_a_golden_list_are_those_of_the_server():
    answers, _ = decode(golden("stream_list_two_events").batch(), golden("stream_list_two_events").body)
    assert texts(answers) == {0: [" name nameval64valiter"], 1: [" butLE but butft but"], 2: ["the444ir\n\n   "]}


def test_each_prompt_of_a_two_event_stream_has_its_own_usage():
    record = golden("stream_list_two_events")
    answers, _ = decode(record.batch(), record.body)
    assert [answers[i].usage for i in range(3)] == [Usage(3, 6), Usage(2, 6), Usage(3, 6)]


def test_the_usages_of_a_streamed_list_add_up_to_the_servers_own_sum():
    for name in STREAMS:
        record = golden(name)
        total = [json.loads(line[6:]) for line in record.body.decode().splitlines() if '"choices":[]' in line]
        answers, _ = decode(record.batch(), record.body)
        usages = [completion.usage for completion in answers.values()]
        if "two_events" in name:
            assert sum(usage.completion_tokens for usage in usages) == total[0]["usage"]["completion_tokens"]
            assert sum(usage.prompt_tokens for usage in usages) == total[0]["usage"]["prompt_tokens"]


def test_each_prompt_of_a_plain_list_is_counted_by_its_token_ids():
    record = golden("plain_list_varied_lengths")
    answers, _ = decode(record.batch(), record.body)
    assert [answers[i].usage for i in range(6)] == [
        Usage(3, 2), Usage(2, 3), Usage(3, 2), Usage(3, 1), Usage(2, 11), Usage(3, 27),
    ]  # fmt: skip


def test_token_ids_asked_for_by_us_are_not_handed_out():
    record = golden("plain_list_token_ids")
    mine = batch_of(*WORDS, streamed=False, max_tokens=6, temperature=0)
    answers, _ = decode(mine, record.body)
    assert answers[0].choices[0].token_ids is None
    assert "prompt_token_ids" not in answers[0].choices[0].extra
    assert answers[0].usage == Usage(3, 6)
    theirs, _ = decode(record.batch(), record.body)
    assert theirs[0].choices[0].token_ids == (443, 443, 741, 1448, 741, 815)
    assert theirs[0].choices[0].extra["prompt_token_ids"] == [447, 285, 10]


def test_a_list_without_token_ids_has_shares_of_its_sum():
    answers, _ = decode(golden("plain_list").batch(), golden("plain_list").body)
    # Six tokens were asked for and each answer ended by that: of the prompts' tokens alone it is not known whose they are.
    assert [answers[place].usage for place in range(3)] == [Usage(3, 6, True), Usage(3, 6, True), Usage(2, 6, True)]


def test_a_streamed_list_whose_sum_comes_last_has_estimates():
    for name in ("stream_list_event_per_token", "stream_list_no_usage"):
        answers, _ = decode(golden(name).batch(), golden(name).body)
        assert [answers[place].usage for place in range(3)] == [Usage(1, 6, True, True)] * 3


def test_usages_of_several_choices_are_one_prompt_and_all_completions():
    record = golden("stream_list_two_events_n2_logprobs_token_ids")
    answers, _ = decode(record.batch(), record.body)
    assert [answers[i].usage for i in range(3)] == [Usage(3, 12), Usage(2, 12), Usage(3, 12)]
    plain, _ = decode(
        golden("plain_list_n2_logprobs_token_ids").batch(), golden("plain_list_n2_logprobs_token_ids").body
    )
    assert [plain[i].usage for i in range(3)] == [Usage(3, 12), Usage(2, 12), Usage(3, 12)]


def test_events_are_counted_for_servers_that_send_one_per_token():
    per_token, two = golden("stream_list_event_per_token"), golden("stream_list_two_events")
    decoder = VllmDialect().decoder(per_token.batch())
    decoder.feed(per_token.body, 12.0)
    assert decoder.events == 18
    decoder = VllmDialect().decoder(two.batch())
    decoder.feed(two.body, 12.0)
    assert decoder.events == 6
    assert VllmDialect().decoder(golden("plain_list").batch()).events == 0


def test_a_golden_refusal_has_a_kind_and_a_clean_message():
    for name in ERRORS:
        record = golden(name)
        failure = VllmDialect().failure(batch_of(*record.prompts or ("x",)), record.status, {}, record.body, 0.0)
        kinds = {404: FailureKind.REFUSED, 405: FailureKind.REFUSED, 400: FailureKind.BAD_CALL}
        expected = FailureKind.LIST_TOO_LONG if name == "error_1025_prompts" else kinds[record.status]
        assert failure.kind is expected
        assert failure.error in (BadRequest, NotFound)
        assert failure.message.startswith(f"{record.status}: ")
        assert len(failure.message) < 420
        for prompt in record.prompts:
            assert not (isinstance(prompt, str) and len(prompt) > 3 and prompt in failure.message)


def test_the_longest_list_is_taken_from_the_servers_complaint():
    record = golden("error_1025_prompts")
    assert VllmDialect().failure(record.batch(), record.status, {}, record.body, 0.0).list_cap == 1024


def test_a_failure_carries_the_servers_wish_and_code():
    body = b'{"error": {"message": "slow down", "type": "rate_limit", "code": 429}}'
    failure = VllmDialect().failure(batch_of("x"), 429, {"retry-after": "3"}, body, 0.0)
    assert (failure.kind, failure.retry_after_s, failure.code) == (FailureKind.REJECTED, 3.0, "rate_limit")


def test_a_failure_holds_neither_prompt_nor_key():
    prompt, key = "the patient John Smith has", "sk-very-secret-1"
    body = json.dumps({"error": {"message": f"key {key} may not say {prompt!r}"}}).encode()
    failure = VllmDialect((key,)).failure(batch_of(prompt), 400, {}, body, 0.0)
    assert failure.message == "400: key [key] may not say '[prompt]'"


def test_an_error_event_holds_neither_prompt_nor_key():
    prompt, key = "the patient John Smith has", "sk-very-secret-1"
    error = {"error": {"message": f"key {key} may not say {prompt!r}", "code": 400}}
    for streamed, body in [(True, events(error)), (False, json.dumps(error).encode())]:
        _, failure = decode(batch_of(prompt, streamed=streamed), body, dialect=VllmDialect((key,)))
        assert failure.message == "400: key [key] may not say '[prompt]'"


def test_the_repr_of_a_dialect_holds_no_key():
    assert repr(VllmDialect(("sk-very-secret-1",))) == "VllmDialect()"


# Indices ---------------------------------------------------------------------------------------------------------


def shuffled(*indices, streamed):
    choices = [choice(index, f"t{index}") for index in indices]
    return events(*[event(one) for one in choices]) if streamed else reply(*choices)


@pytest.mark.parametrize("streamed", [True, False])
def test_choices_of_several_prompts_with_n_go_to_their_prompts(streamed):
    batch = batch_of("a", "b", streamed=streamed, n=2)
    answers, failure = decode(batch, shuffled(3, 0, 2, 1, streamed=streamed))
    assert failure is None
    assert texts(answers) == {0: ["t0", "t1"], 1: ["t2", "t3"]}
    assert [one.index for one in answers[1].choices] == [0, 1]


def test_a_plain_reply_with_wrong_indices_is_handed_to_nobody():
    for indices in [
        (0, 1),
        (0, 1, 1),
        (0, 1, 2, 2),
        (0, 1, 3),
        (0, 1, -1),
        (0, True, 2),
        (0, 1, 2.5),
        (0, 1, None),
        (0, 1, "two"),
        (),
    ]:
        answers, failure = decode(batch_of("a", "b", "c", streamed=False), reply(*[choice(index) for index in indices]))
        assert answers == {}
        assert (failure.kind, failure.error) == (FailureKind.MISMATCH, DemuxError)


def test_a_stream_with_a_wrong_index_keeps_what_was_finished_before():
    for last in [(1,), (3,), (-1,), (True,), (None,), ("two",), (2.5,)]:
        answers, failure = decode(batch_of("a", "b", "c"), shuffled(0, 1, *last, streamed=True))
        # More of a choice after its end, in the same read, spoils that choice as well.
        assert texts(answers) == ({0: ["t0"]} if last == (1,) and last[0] is not True else {0: ["t0"], 1: ["t1"]})
        assert failure.kind is FailureKind.MISMATCH


def test_a_stream_that_leaves_out_a_prompt_is_a_mismatch():
    answers, failure = decode(batch_of("a", "b", "c"), shuffled(0, 2, streamed=True))
    assert sorted(answers) == [0, 2]
    assert (failure.kind, failure.message) == (FailureKind.MISMATCH, "1 of 3 choices are missing from the reply")


def test_nothing_is_believed_after_a_wrong_index():
    answers, _ = decode(batch_of("a", "b", "c"), shuffled(1, 9, 0, 2, streamed=True))
    assert sorted(answers) == [1]


def test_a_choice_that_goes_on_after_its_end_is_a_mismatch():
    body = events(event(choice(1)), event(choice(1, finish_reason=None)), event(choice(0)))
    answers, failure = decode(batch_of("a", "b"), body)
    assert sorted(answers) == []
    assert failure.kind is FailureKind.MISMATCH
    # In another read it is too late: it was handed out.
    answers, failure = decode(batch_of("a", "b"), *body.splitlines(keepends=True))
    assert sorted(answers) == [1]
    assert failure.kind is FailureKind.MISMATCH


def test_a_stream_that_is_over_before_a_choice_is_asked_for_plain():
    # As LiteLLM's proxy streams a chat with n=2: one end for both.
    body = events(event(choice(0, "A", None)), event(choice(1, "B", None)), event(choice(0, "")))
    answers, failure = decode(batch_of("a", n=2), body)
    assert (answers, failure.kind) == ({}, FailureKind.STREAM_REFUSED)
    answers, failure = decode(batch_of("a", "b"), body)
    assert (texts(answers), failure.kind) == ({0: ["A"]}, FailureKind.STREAM_REFUSED)


# Aborts, errors, cuts ---------------------------------------------------------------------------------------------


def test_an_aborted_prompt_is_a_fault_and_the_others_are_kept():
    for streamed in [True, False]:
        for reason in ["abort", "error"]:
            choices = [choice(0), choice(1, "trunc", reason), choice(2)]
            body = events(*[event(one) for one in choices]) if streamed else reply(*choices)
            answers, failure = decode(batch_of("a", "b", "c", streamed=streamed), body)
            assert sorted(answers) == [0, 2]
            assert (failure.kind, failure.error) == (FailureKind.MAYBE_PROCESSED, ServerFault)


@pytest.mark.parametrize("streamed", [True, False])
def test_one_aborted_choice_of_several_fails_its_prompt(streamed):
    choices = [choice(0), choice(1, "x", "abort"), choice(2), choice(3)]
    body = events(*[event(one) for one in choices]) if streamed else reply(*choices)
    answers, failure = decode(batch_of("a", "b", streamed=streamed, n=2), body)
    assert sorted(answers) == [1]
    assert failure.error is ServerFault


def test_an_error_in_mid_stream_keeps_what_was_finished_before():
    for error, kind in [
        ({"message": "x", "code": 400}, FailureKind.BAD_CALL),
        ({"message": "x", "code": 500}, FailureKind.MAYBE_PROCESSED),
        ({"message": "x", "code": 503}, FailureKind.REJECTED),
        ({"message": "x", "code": "internal"}, FailureKind.MAYBE_PROCESSED),
        ({"message": "x", "code": True}, FailureKind.MAYBE_PROCESSED),
        ({"message": "x", "code": 200}, FailureKind.MAYBE_PROCESSED),
        ({}, FailureKind.MAYBE_PROCESSED),
        ("a text", FailureKind.MAYBE_PROCESSED),
        (5, FailureKind.MAYBE_PROCESSED),
    ]:
        body = events(event(choice(0)), event(choice(1, finish_reason=None)), {"error": error}, event(choice(1)))
        answers, failure = decode(batch_of("a", "b"), body)
        assert texts(answers) == {0: ["t"]}
        assert failure.kind is kind


def test_an_error_where_a_plain_answer_was_expected_is_a_failure():
    answers, failure = decode(batch_of("a", streamed=False), b'{"error": {"message": "boom", "code": 500}}')
    assert (answers, failure.message, failure.error) == ({}, "500: boom", ServerFault)


@pytest.mark.parametrize("name", ["stream_list_two_events", "stream_list_two_events_n2_logprobs_token_ids"])
def test_a_stream_cut_anywhere_keeps_its_finished_prompts_and_fails_the_rest(name):
    record = golden(name)
    whole, _ = decode(record.batch(), record.body)
    for end in range(0, len(record.body), 7):
        answers, failure = decode(record.batch(), record.body[:end])
        assert all(answers[position] == whole[position] for position in answers)
        if len(answers) < len(whole):
            assert failure.kind in (FailureKind.MAYBE_PROCESSED, FailureKind.MISMATCH)
            assert failure.error in (DialectError, DemuxError)


def test_a_stream_cut_in_the_middle_of_a_choice_is_no_mismatch():
    body = events(event(choice(0)), event(choice(1, finish_reason=None)), done=False)
    _, failure = decode(batch_of("a", "b"), body)
    assert (failure.kind, failure.error) == (FailureKind.MAYBE_PROCESSED, DialectError)


def test_a_stream_without_a_single_choice_was_cut():
    for body in [b"", b": ping\n\n", b"data: [DONE]\n\n"]:
        answers, failure = decode(batch_of("a"), body)
        assert (answers, failure.kind) == ({}, FailureKind.MAYBE_PROCESSED)


def test_a_stream_without_done_is_as_good():
    answers, failure = decode(batch_of("a"), events(event(choice(0)), done=False))
    assert (texts(answers), failure) == ({0: ["t"]}, None)
    answers, failure = decode(batch_of("a"), events(event(choice(0)), done=False).rstrip())
    assert (texts(answers), failure) == ({0: ["t"]}, None)


def test_an_answer_is_handed_out_with_the_bytes_that_complete_it():
    decoder = VllmDialect().decoder(batch_of("a", "b"))
    assert decoder.feed(events(event(choice(1, "x", None)), done=False), 11.0) == []
    ((position, completion),) = decoder.feed(events(event(choice(1, "y")), done=False), 12.5)
    assert (position, completion.text) == (1, "xy")
    # Sent at 10, first token at 11.
    assert completion.time_to_first_token_s == 1.0


def test_the_first_token_of_several_choices_is_the_first_of_any():
    decoder = VllmDialect().decoder(batch_of("a", n=2))
    decoder.feed(events(event(choice(1, "x", None)), done=False), 11.0)
    decoder.feed(events(event(choice(0)), done=False), 12.0)
    ((_, completion),) = decoder.feed(events(event(choice(1))), 13.0)
    assert completion.time_to_first_token_s == 1.0


def test_a_plain_reply_has_no_time_to_first_token():
    answers, _ = decode(golden("plain_single").batch(), golden("plain_single").body)
    assert answers[0].time_to_first_token_s is None


def test_what_is_no_answer_is_a_failure_and_never_an_exception():
    for body in [b"", b"{", b"[]", b"null", b"5", b'"x"', b"{}", b'{"choices": null}', b'{"choices": 5}', b'{"choices": [5]}', b'{"choices": [{}]}',
     b'{"choices": [{"index": 0}]}', b'{"choices": {"index": 0}}', b"<html>", b"\xff", b'{"choices": [null]}']:  # fmt: skip
        for streamed, wire in [(False, body), (True, b"data: " + body + b"\n\n")]:
            if (body, streamed) == (b"null", True):
                continue
            answers, failure = decode(batch_of("a", streamed=streamed), wire)
            assert answers == {}
            assert (failure.kind, failure.error) == (FailureKind.MAYBE_PROCESSED, DialectError)
            assert "<html>" not in failure.message


weird = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.text(max_size=3) | st.just("stop"),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(["choices", "index", "text", "finish_reason", "logprobs", "token_ids", "usage", "error", "code", "tokens"]),
        inner, max_size=6,
    ),
    max_leaves=20,
)  # fmt: skip
weird_choice = st.fixed_dictionaries(
    {"index": st.integers(-1, 2) | weird, "text": st.just("t") | weird},
    optional={"finish_reason": st.sampled_from(["stop", "abort", None]) | weird, "logprobs": weird, "token_ids": weird},
)


@given(
    st.lists(weird | st.fixed_dictionaries({"choices": st.lists(weird_choice)}, optional={"usage": weird}), max_size=4)
)
def test_no_reply_is_too_strange_to_be_judged(replies):
    for ids in (False, True):
        params = {"return_token_ids": True} if ids else {}
        decode(batch_of("a", "b", **params), events(*replies))
        for one in replies:
            answers, failure = decode(batch_of("a", "b", streamed=False, **params), json.dumps(one).encode())
            assert failure is not None or sorted(answers) == [0, 1]


@given(st.binary(max_size=60))
def test_no_bytes_are_too_strange_to_be_judged(body):
    assert decode(batch_of("a", streamed=False), body)[1] is not None
    assert decode(batch_of("a"), b"data: " + body)[1] is not None


# What is joined -----------------------------------------------------------------------------------------------------


def test_logprobs_are_joined_over_all_events():
    first = {"tokens": ["a"], "token_logprobs": [-1.0], "top_logprobs": [{"a": -1.0}], "text_offset": [0]}
    second = {"tokens": ["b", "c"], "token_logprobs": [-2.0, -3.0], "top_logprobs": [{}, {}], "text_offset": [1, 2]}
    body = events(
        event(choice(0, "a", None, logprobs=first)),
        event(choice(0, "", None, logprobs=None)),
        event(choice(0, "bc", logprobs=second)),
    )
    answers, _ = decode(batch_of("a"), body)
    assert answers[0].choices[0].logprobs == {
        "tokens": ["a", "b", "c"], "token_logprobs": [-1.0, -2.0, -3.0], "top_logprobs": [{"a": -1.0}, {}, {}], "text_offset": [0, 1, 2],
    }  # fmt: skip


def test_logprobs_that_begin_late_are_kept():
    body = events(
        event(choice(0, "a", None, logprobs={"tokens": ["a"], "x": None})),
        event(choice(0, "b", logprobs={"tokens": ["b"], "x": [1]})),
    )
    answers, _ = decode(batch_of("a"), body)
    assert answers[0].choices[0].logprobs == {"tokens": ["a", "b"], "x": [1]}


def test_token_ids_are_joined_only_where_they_were_asked_for():
    body = events(event(choice(0, "a", None, token_ids=[1])), event(choice(0, "b", token_ids=[2, 3])))
    asked, _ = decode(batch_of("a", return_token_ids=True), body)
    assert asked[0].choices[0].token_ids == (1, 2, 3)
    unasked, _ = decode(batch_of("a"), body)
    assert unasked[0].choices[0].token_ids is None


def test_other_fields_of_reply_and_choice_are_handed_through():
    answers, _ = decode(
        batch_of("a", streamed=False), reply(choice(0, stop_reason="e", new=None), model="m", created=5, gone=None)
    )
    assert answers[0].extra == {"id": "cmpl-1", "model": "m", "created": 5}
    assert answers[0].choices[0].extra == {"stop_reason": "e"}


def test_no_two_callers_share_their_extra_fields():
    for streamed in (True, False):
        answers, _ = decode(batch_of("a", "b", streamed=streamed), shuffled(0, 1, streamed=streamed))
        assert answers[0].extra == answers[1].extra
        assert answers[0].extra is not answers[1].extra


def test_a_usage_that_makes_no_sense_is_none():
    for usage in [None, 5, [], {}, {"prompt_tokens": 1}, {"prompt_tokens": -1, "completion_tokens": 1}, {"prompt_tokens": "1", "completion_tokens": 1},
              {"prompt_tokens": True, "completion_tokens": 1}]:  # fmt: skip
        for streamed, body in [(True, events(event(choice(0), usage=usage))), (False, reply(choice(0), usage=usage))]:
            answers, failure = decode(batch_of("a", streamed=streamed), body)
            assert (answers[0].usage, failure) == (None, None)


# What is sent --------------------------------------------------------------------------------------------------------


def sent(batch):
    request = VllmDialect().encode(batch)
    assert (request.method, request.path) == ("POST", "/completions")
    pairs = []
    body = json.loads(
        request.body, object_pairs_hook=lambda found: pairs.append([name for name, _ in found]) or dict(found)
    )
    assert all(len(set(names)) == len(names) for names in pairs), "no name is sent twice"
    return body


def test_a_golden_request_is_what_we_send():
    for name in [name for name in ANSWERS if "two_events" in name or name.startswith("plain_")]:
        record = golden(name)
        body = sent(record.batch())
        prompt = body.pop("prompt")
        assert prompt == (list(record.prompts) if len(record.prompts) > 1 else record.prompts[0])
        if record.streamed:
            assert body.pop("stream") is True
            assert body.pop("stream_interval") == 100_000
            assert body.pop("stream_options") == {"include_usage": True, "continuous_usage_stats": True}
        elif len(record.prompts) > 1 and not record.params.get("echo"):
            assert body.pop("return_token_ids") is True
            record.params.get("return_token_ids") and body.setdefault("return_token_ids", True)
        assert body == record.params


def test_one_prompt_is_sent_as_one_and_several_as_a_list():
    assert sent(batch_of("a"))["prompt"] == "a"
    assert sent(batch_of("a", "b"))["prompt"] == ["a", "b"]
    assert sent(batch_of([1, 2]))["prompt"] == [1, 2]
    assert sent(batch_of([1, 2], [3]))["prompt"] == [[1, 2], [3]]


def test_prompts_are_sent_letter_by_letter():
    prompts = ["größe ✓ \U0001f600", 'say "hi"\n\t\\', "\u2028\x00\x7f", ""]
    assert sent(batch_of(*prompts))["prompt"] == prompts


def test_labels_are_sent_only_with_a_lone_call():
    assert sent(batch_of("a", solo=b'"user":"u","request_id":"r"'))["user"] == "u"
    assert "user" not in sent(batch_of("a", "b", solo=b'"user":"u"'))


def test_a_plain_request_has_no_field_of_the_stream():
    assert set(sent(batch_of("a", streamed=False))) == {"prompt", "model"}


def test_token_ids_are_counted_only_in_plain_lists():
    assert sent(batch_of("a", "b", streamed=False))["return_token_ids"] is True
    assert "return_token_ids" not in sent(batch_of("a", streamed=False))
    assert "return_token_ids" not in sent(batch_of("a", "b"))


def test_token_ids_that_were_asked_for_are_asked_for_once():
    for streamed in [True, False]:
        for prompts in [("a",), ("a", "b")]:
            assert sent(batch_of(*prompts, streamed=streamed, return_token_ids=True))["return_token_ids"] is True


@pytest.mark.parametrize("value", [False, None])
def test_token_ids_that_were_not_wanted_are_still_counted_in_a_plain_list(value):
    assert sent(batch_of("a", "b", streamed=False, return_token_ids=value))["return_token_ids"] is True
    assert not sent(batch_of("a", streamed=False, return_token_ids=value)).get("return_token_ids")


def test_every_other_field_is_sent_untouched_nested_order_included():
    params = {
        "temperature": 0.0, "top_p": 1, "stop": ["\n", "ü"], "seed": 2**62, "logit_bias": {"2": 5.5, "1": -1},
        "structured_outputs": {"json": {"properties": {"z": {"type": "string"}, "a": {"type": "null"}}, "required": ["z", "a"]}},
        "no_such_field": {"deep": [{"b": 1, "a": None}]}, "min_tokens": None, "echo": False,
    }  # fmt: skip
    body = sent(batch_of("a", "b", **params))
    assert {name: body[name] for name in params} == params
    assert list(body["structured_outputs"]["json"]["properties"]) == ["z", "a"]
    assert list(body["logit_bias"]) == ["2", "1"]
    assert type(body["temperature"]) is float
    assert type(body["top_p"]) is int


# The coalescing key --------------------------------------------------------------------------------------------------


def shape_of(token_ids=False, model="tiny", **params):
    return Shapes().shape(as_given(params), model, token_ids=token_ids)[0]


def same(one, other):
    dialect = Shapes()
    # Twice each: the second time the short cut answers.
    shapes = [dialect.shape(as_given(params), "tiny", token_ids=False)[0] for params in (one, other, one, other)]
    assert shapes[0] is shapes[2]
    assert shapes[1] is shapes[3]
    assert (shapes[0] is shapes[1]) == (shapes[0].key == shapes[1].key)
    return shapes[0] is shapes[1]


def test_calls_that_ask_for_different_answers_never_share_a_shape():
    for one, other in [
        ({"x": 1}, {"x": True}), ({"x": 1}, {"x": 1.0}), ({"x": 1}, {"x": "1"}), ({"x": 0}, {"x": False}), ({"x": 0.0}, {"x": -0.0}),
        ({"x": None}, {}), ({"x": None}, {"x": "None"}), ({"x": "a"}, {"y": "a"}), ({"x": "a", "y": "b"}, {"x": "b", "y": "a"}),
        ({"x": [1]}, {"x": [True]}), ({"x": {"a": 1, "b": 2}}, {"x": {"b": 2, "a": 1}}), ({"n": 1}, {"n": 2}),
        ({"seed": 1}, {}), ({"max_tokens": 5}, {"max_tokens": 6}), ({"cache_salt": "a"}, {"cache_salt": "b"}),
        ({"model": "a"}, {}), ({"return_token_ids": True}, {}),
    ]:  # fmt: skip
        assert not same(one, other)


def test_calls_that_ask_for_the_same_answer_share_a_shape():
    for one, other in [
        ({"x": 1, "y": 2}, {"y": 2, "x": 1}), ({"user": "a"}, {"user": "b"}), ({"request_id": "a"}, {}), ({"stream": False}, {}),
        ({"stream": None}, {}), ({"extra_body": {"x": 1}}, {"x": 1}), ({"extra_body": {}}, {}), ({"extra_body": None}, {}),
        ({"stop": ["a"]}, {"stop": ("a",)}), ({"return_token_ids": False}, {}),
    ]:  # fmt: skip
        assert same(one, other)


def test_kinds_models_texts_and_token_ids_never_share_a_shape():
    chat, _ = Shapes().shape({}, "tiny", kind=Kind.CHAT)
    assert len({shape_of().key, shape_of(token_ids=True).key, shape_of(model="other").key, chat.key}) == 4


def test_an_extra_body_may_name_the_model():
    assert json.loads(shape_of(extra_body={"model": "other"}).body) == {"model": "other"}


scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=4)
)


@given(st.dictionaries(st.sampled_from("abcd"), scalars), st.dictionaries(st.sampled_from("abcd"), scalars))
def test_two_calls_share_a_shape_only_if_they_are_the_same_json(one, other):
    assert same(one, other) == (json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True))


def test_a_wrong_count_is_refused_by_name():
    for name, values in [("n", [0, -1, True, 1.0, "2"]), ("max_tokens", [-1, 1.5, True, "9"]), ("model", ["", 5])]:
        for value in values:
            with pytest.raises(ConfigError) as caught:
                shape_of(**{"extra_body": {name: value}})
            assert caught.value.field == name


def test_a_shape_says_what_the_scheduler_needs():
    for params, expected in [
        ({}, (1, 16, None, False, False)),
        ({"n": 3, "max_tokens": 50}, (3, 50, None, False, False)),
        ({"n": None, "max_tokens": None}, (1, 16, None, False, False)),
        ({"max_tokens": 0}, (1, 0, None, False, False)),
        ({"prompt_logprobs": 0}, (1, 16, None, True, False)),
        ({"prompt_logprobs": None}, (1, 16, None, False, False)),
        ({"use_beam_search": True, "n": 4}, (4, 16, None, True, False)),
        ({"use_beam_search": False}, (1, 16, None, False, False)),
        ({"return_token_ids": True}, (1, 16, None, False, True)),
        ({"kv_transfer_params": {}}, (1, 16, "kv_transfer_params", False, False)),
    ]:
        shape = shape_of(**params)
        found = (shape.weight, shape.max_output_tokens, shape.alone_reason, shape.plain_only, shape.wants_token_ids)
        assert found == expected


def test_labels_come_back_for_a_lone_call_and_only_there():
    dialect = Shapes()
    one, solo = dialect.shape({"user": "u", "seed": 1}, "tiny", token_ids=False)
    other, none = dialect.shape({"seed": 1}, "tiny", token_ids=False)
    assert one is other
    assert (solo, none) == (b'"user":"u"', b"")
    # Labels are never taken from the short cut.
    assert dialect.shape({"user": "v", "seed": 1}, "tiny", token_ids=False)[1] == b'"user":"v"'


def test_a_dialect_forgets_keys_rather_than_grow():
    dialect = Shapes()
    for seed in range(10_000):
        dialect.shape({"seed": seed}, "tiny", token_ids=False)
    assert held(dialect, Shape) <= 4096


def test_a_dialect_forgets_short_cuts_rather_than_grow():
    dialect = Shapes()
    names = ["seed", "top_k", "min_p", "top_p", "best_of", "min_tokens", "mirostat"]
    from itertools import permutations

    for order in permutations(names):
        dialect.shape(dict.fromkeys(order, 1), "tiny", token_ids=False)
    assert held(dialect, Shape) == 1
    assert held(dialect, tuple) <= 4096


def test_greedy_is_what_asks_for_temperature_0_itself():
    for params, greedy in [
        ({"temperature": 0}, True),
        ({"temperature": 0.0}, True),
        ({}, False),
        ({"temperature": None}, False),
        ({"temperature": False}, False),
        ({"temperature": 0.01}, False),
        ({"temperature": "0"}, False),
        ({"extra_body": {"temperature": 0}}, True),
    ]:
        shape, _ = Shapes().shape(params, "m", token_ids=False)
        assert shape.greedy is greedy


@pytest.mark.parametrize(("priority", "told"), [(3, -3), (-2, 2)])
def test_lower_priorities_go_first_here(priority, told):
    shape = replace(Shapes().shape({"seed": 1}, "tiny")[0], priority=priority, tells_priority=True)
    request = VllmDialect().encode(make_batch(shape, [make_request(shape, "x")], streamed=False))
    assert json.loads(request.body) == {"prompt": "x", "model": "tiny", "seed": 1, "priority": told}


# Events that come twice -----------------------------------------------------------------------------------------------


def counted(index, text, finish_reason, tokens):
    return event(choice(index, text, finish_reason), usage={"prompt_tokens": 2, "completion_tokens": tokens})


def outcome(batch, *chunks):
    """The texts handed out, and what kind of failure it was."""
    answers, failure = decode(batch, *chunks)
    return {place: answer.text for place, answer in dict(answers).items()}, failure and failure.kind


def test_an_event_that_comes_twice_before_the_last_is_known_by_its_count():
    first, last = counted(0, "a", None, 1), counted(0, "b", "stop", 2)
    assert outcome(batch_of("p"), events(first, last)) == ({0: "ab"}, None)
    assert outcome(batch_of("p"), events(first, first, last)) == ({}, FailureKind.MISMATCH)
    other = counted(1, "c", "stop", 1)
    assert outcome(batch_of("p", "q"), events(other), events(first, first, last)) == ({1: "c"}, FailureKind.MISMATCH)


def test_a_last_event_that_comes_twice_in_one_read_is_not_handed_out():
    first, last = counted(0, "a", None, 1), counted(0, "b", "stop", 2)
    assert outcome(batch_of("p"), events(first, done=False), events(last, last)) == ({}, FailureKind.MISMATCH)


def test_what_only_looks_like_it_is_read():
    for payloads in [
        # What was held back for a stop string comes with the end, and no token.
        [counted(0, "a", None, 1), counted(0, "b", "length", 1)],
        # Tokens without text, and text after them.
        [counted(0, "", None, 1), counted(0, "", None, 1), counted(0, "ab", "stop", 2)],
        # An echoed prompt before the first token.
        [counted(0, "a", None, 0), counted(0, "b", None, 0), counted(0, "", "length", 0)],
        # A gateway that counts nothing truly.
        [counted(0, "a", None, 1), counted(0, "b", None, 1), counted(0, "", "stop", 1)],
        # Nothing is counted: nothing is known.
        [event(choice(0, "a", None)), event(choice(0, "", None)), event(choice(0, "b", "stop"))],
    ]:
        assert outcome(batch_of("p"), events(*payloads)) == ({0: "ab"}, None)
