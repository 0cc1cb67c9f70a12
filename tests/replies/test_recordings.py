"""What real servers answered (``tests/wire``), read by the dialects."""

import json
from dataclasses import replace

import pytest

from batchclient.types import Usage
from tests.core import FailureKind, Kind
from tests.replies.harness import WIRE, asked, failure_like, fault, read, read_recording, recording
from tests.replies.harness import recordings, refused, sent

# fmt: off
ANSWERED = [
    name for name in recordings("vllm/plain_*", "vllm/stream_*", "vllm/chat_*")
    if "error" not in name and "bug" not in name
]
REFUSED = [name for name in recordings("vllm/error_*", "vllm/chat_error_*", "vllm/chat_batch_error_*")
           if recording(name).status != 200]
WORDS = [" name nameval64valiter", " butLE but butft but", "the444ir\n\n   "]
FROM_LITELLM = ["268194c9 sky ray pin may cow", "de2abade dog lap orb dew oak", "69ef3db3 orb dew oak elm car"]
CHAT_FROM_LITELLM = ["2f371a4d log her van car car"]
VARIED = [(3, 2), (2, 3), (3, 2), (3, 1), (2, 11), (3, 27)]
LIST, TWICE = [(3, 6), (2, 6), (3, 6)], [(3, 12), (2, 12), (3, 12)]


@pytest.mark.parametrize("name", ANSWERED)
def test_every_prompt_of_a_recording_is_answered_with_its_own_choices(name):
    found, outcome = recording(name), read_recording(name)
    assert outcome.failure is None
    assert sorted(outcome.answers) == list(range(len(found.asked.prompts)))
    for answer in outcome.answers.values():
        assert answer.attempts == 1
        assert [one.index for one in answer.choices] == list(range(found.asked.params.get("n", 1)))
        assert all(one.finish_reason in ("stop", "length") for one in answer.choices)
        assert answer.extra["id"].startswith("cmpl-" if found.asked.kind is Kind.COMPLETION else "chatcmpl-")
        if found.asked.kind is Kind.CHAT:
            for one in answer.choices:
                reasoning = {"reasoning": one.message["reasoning"]} if "reasoning" in one.message else {}
                assert one.message == {"role": "assistant", "content": one.text or None, **reasoning}
    if "stream_list_two_events" in name:
        (told,) = [line for line in found.body.decode().splitlines() if '"choices":[]' in line]
        for count in ("prompt_tokens", "completion_tokens"):
            assert sum(getattr(usage, count) for usage in outcome.usages) == json.loads(told[6:])["usage"][count]


@pytest.mark.parametrize(("streamed", "plain"), [
    ("stream_single", "plain_single"), ("stream_list_two_events", "plain_list"),
    ("stream_list_event_per_token", "plain_list"),
    ("stream_list_no_usage", "plain_list"), ("stream_list_two_events_token_ids", "plain_list_token_ids"),
    ("stream_list_two_events_stop_string", "plain_list_stop_string"),
    ("stream_token_ids_prompts", "plain_token_ids_prompts"),
    ("stream_list_two_events_n2_logprobs_token_ids", "plain_list_n2_logprobs_token_ids"),
    ("stream_list_two_events_echo_logprobs", "plain_list_echo_logprobs"), ("chat_stream_two_events", "chat_plain"),
    ("chat_stream_event_per_token", "chat_plain"), ("chat_stream_no_usage", "chat_plain"),
    ("chat_stream_stop_string", "chat_stop_string"), ("chat_stream_n2_logprobs_token_ids", "chat_n2_logprobs"),
])
def test_a_joined_stream_is_the_plain_reply(streamed, plain):
    joined, whole = read_recording(f"vllm/{streamed}"), read_recording(f"vllm/{plain}")
    for position, answer in joined.answers.items():
        for one, other in zip(answer.choices, whole.answers[position].choices, strict=True):
            for field in ("index", "text", "finish_reason", "message", "logprobs"):
                assert getattr(one, field) == getattr(other, field)
            assert one.extra.get("stop_reason") == other.extra.get("stop_reason")
            assert ("logprobs" in plain) is (one.logprobs is not None)
            if "token_ids" in streamed and "prompts" not in streamed:
                assert one.token_ids == other.token_ids
                assert len(one.token_ids) == 6
        usages = [answer.usage, whole.answers[position].usage]
        if not any(usage is None or usage.estimated for usage in usages):
            assert usages[0] == usages[1]


RESULTS = {
    "vllm/stream_list_two_events": (WORDS, [Usage(*each) for each in LIST]),
    "vllm/plain_list_varied_lengths": (None, [Usage(*each) for each in VARIED]),
    # Six tokens each were asked for and made; of the prompts' tokens alone it is not known whose they are.
    "vllm/plain_list": (WORDS, [Usage(3, 6, True), Usage(3, 6, True), Usage(2, 6, True)]),
    "vllm/stream_list_event_per_token": (WORDS, [Usage(1, 6, True, True)] * 3),
    "vllm/stream_list_no_usage": (WORDS, [Usage(1, 6, True, True)] * 3),
    "vllm/stream_list_two_events_n2_logprobs_token_ids": (None, [Usage(*each) for each in TWICE]),
    "vllm/plain_list_n2_logprobs_token_ids": (None, [Usage(*each) for each in TWICE]),
    "vllm/chat_plain": (None, [Usage(9, 6)]),
    "vllm/chat_batch": (None, [Usage(9, 6, True), Usage(8, 6, True)]),
    "vllm/chat_batch_choice": (None, [Usage(9, 3, True, True), Usage(8, 3, True, True)]),
    "llamacpp/native_list": (WORDS, [Usage(*each) for each in LIST]),
    "llamacpp/native_stream_list": (WORDS, [Usage(*each) for each in LIST]),
    "llamacpp/native_list_return_tokens": (WORDS, [Usage(*each) for each in LIST]),
    "llamacpp/native_list_n2": (None, [Usage(*each) for each in TWICE]),
    "llamacpp/native_single": (WORDS[:1], [Usage(3, 6)]), "llamacpp/native_stream_single": (WORDS[:1], [Usage(3, 6)]),
    "transformers/stream_single": (WORDS[:1], [Usage(3, 6)]),
    "transformers/stream_single_usage": (WORDS[:1], [Usage(3, 6)]),
    "transformers/plain_single": (WORDS[:1], [Usage(3, 6)]),
    "transformers/plain_single_stop_string": ([" nam"], None),
    "transformers/plain_single_stop_string_alone": ([" nam"], None),
    "litellm/stream_single": (FROM_LITELLM[:1], [Usage(2, 6, reasoning_tokens=0)]),
    # Zeros where no usage was asked for are no usage.
    "litellm/stream_single_no_usage": (FROM_LITELLM[:1], [None]),
    "litellm/stream_single_max_tokens_1": ([FROM_LITELLM[0][:8]], None),
    **{f"litellm/{name}": (FROM_LITELLM[:1], None) for name in (
        "plain_single", "plain_list_of_one", "stream_single_two_events", "stream_single_through_openai",
        "stream_single_through_text",
    )},
    **{f"litellm/plain_list{name}": (FROM_LITELLM, None)
       for name in ("", "_token_ids", "_through_openai", "_through_text")},
    **{f"litellm/chat_{name}": (CHAT_FROM_LITELLM, None) for name in (
        "plain", "stream", "stream_no_usage", "through_openai", "stream_through_openai",
    )},
}


@pytest.mark.parametrize("name", RESULTS)
def test_a_recording_has_these_texts_and_usages(name):
    texts, usages = RESULTS[name]
    outcome = read_recording(name)
    assert outcome.failure is None
    assert texts is None or [outcome.answers[place].text for place in range(len(texts))] == texts
    assert usages is None or outcome.usages == usages


ENDED = {
    "stop": ["transformers/plain_single_stop_string", "transformers/plain_single_stop_string_alone"],
    "length": ["llamacpp/native_list", "llamacpp/native_stream_list", "llamacpp/native_single",
               "transformers/plain_single",
               "transformers/stream_single"],
}


def test_a_recording_ended_for_this_reason():
    found = {name: each.finish_reason for names in ENDED.values() for name in names
             for each in read_recording(name).answers.values()}
    assert found == {name: reason for reason, names in ENDED.items() for name in names}


def test_token_ids_asked_for_by_us_are_not_handed_out():
    for name, ids, told in (("vllm/plain_list_token_ids", (443, 443, 741, 1448, 741, 815), [447, 285, 10]),
                            ("vllm/chat_batch", None, None),
                            ("llamacpp/native_list_return_tokens", (443, 443, 741, 1448, 741, 815), None)):
        params = {"max_tokens": 6}
        theirs, mine = read_recording(name).answers[0], read_recording(name, params=params).answers[0]
        assert mine.choices[0].token_ids is None
        assert "prompt_token_ids" not in mine.choices[0].extra
        assert mine.usage == theirs.usage
        assert mine.output_tokens == 6
        if ids:
            assert theirs.choices[0].token_ids == ids
            assert theirs.choices[0].extra.get("prompt_token_ids") == told


def test_events_are_counted_for_servers_that_send_one_per_token():
    for name, events in (("stream_list_event_per_token", 18), ("stream_list_two_events", 6), ("plain_list", 0),
                         ("chat_stream_event_per_token", 7)):
        assert read_recording(f"vllm/{name}").events == events


@pytest.mark.parametrize("name", ["vllm/stream_list_two_events", "vllm/stream_list_two_events_n2_logprobs_token_ids"])
def test_a_stream_cut_anywhere_keeps_its_finished_prompts_and_fails_the_rest(name):
    found, whole = recording(name), read_recording(name)
    for end in range(0, len(found.body), 7):
        cut = read(found.asked, found.body[:end])
        assert cut.answers.items() <= whole.answers.items()
        if len(cut.answers) < len(whole.answers):
            assert cut.failure.kind in (FailureKind.MAYBE_PROCESSED, FailureKind.MISMATCH)
            assert cut.failure.error.__name__ in ("DialectError", "DemuxError")


def test_llamacpps_own_route_says_what_its_other_route_says():
    for native, other, params in (("native_list_n2", "plain_list_n2", {}),
                                  ("native_list_n_probs", "plain_list_logprobs", {"logprobs": 1, "no_such": 1}),
                                  ("native_list_stop_string", "plain_list_stop_string", {})):
        ours = read_recording(f"llamacpp/{native}")
        theirs = read_recording(f"llamacpp/{other}", dialect="llamacpp",
                                params=params | recording(f"llamacpp/{other}").asked.params | {"no_such": 1})
        assert ours.texts == theirs.texts
        for place, answer in ours.answers.items():
            assert answer.finish_reason == theirs.answers[place].finish_reason
            if "logprobs" in params:
                one, two = answer.choices[0].logprobs, theirs.answers[place].choices[0].logprobs
                assert (one["tokens"], one["text_offset"]) == (two["tokens"], two["text_offset"])
                assert one["token_logprobs"] == pytest.approx(two["token_logprobs"], abs=1e-3)
                assert "".join(one["tokens"]) == answer.text


@pytest.mark.parametrize("name",
                         ["stream_list", "stream_list_no_usage", "stream_list_two_events", "stream_single_n2",
                          "chat_stream_n2"])
def test_litellms_streams_of_several_are_asked_for_plain_and_no_piece_is_handed_out_before_they_are_told_apart(name):
    outcome = read_recording(f"litellm/{name}", to_caller=True)
    assert (outcome.answers, outcome.failure.kind) == ({}, FailureKind.STREAM_REFUSED)
    if name == "chat_stream_n2":
        # The role, then each choice's first token, in the order in which they came.
        pieces = [(piece.index, piece.text) for piece in outcome.deltas[:3]]
        assert pieces == [(0, ""), (0, "2f371a4d-ed8b"), (1, "2f371a4d-37d7")]
    elif "n2" in name:
        assert outcome.deltas == []


# Refusals ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", REFUSED)
def test_a_recorded_refusal_has_a_kind_and_a_clean_message(name):
    found = recording(name)
    request = asked(*found.asked.prompts, kind=found.asked.kind, streamed=False)
    failure = refused(request, found.status, found.body)
    kinds = {404: "REFUSED", 405: "REFUSED", 400: "BAD_CALL"}
    expected = "LIST_TOO_LONG" if name == "vllm/error_1025_prompts" else kinds[found.status]
    if found.status == 405 and len(found.asked.prompts) > 1:
        expected = "LIST_REFUSED"
    assert failure.kind.name == expected
    assert failure.error.__name__ in ("BadRequest", "NotFound")
    assert failure.message.startswith(f"{found.status}: ")
    assert len(failure.message) < 420
    assert failure.list_cap == (1024 if name == "vllm/error_1025_prompts" else None)
    assert "x x x x" not in failure.message
    assert "mixed" not in name or "Input should be a valid integer" in failure.message, "its sense is kept"
    for prompt in found.asked.prompts:
        assert not (isinstance(prompt, str) and len(prompt) > 3 and prompt in failure.message)


@pytest.mark.parametrize("name", ["error_thinking_budget_in_stream_unparsed", "chat_error_thinking_budget_unparsed",
                                  "chat_error_thinking_budget_in_stream_unparsed", "error_thinking_budget_unparsed"])
def test_a_budget_that_is_refused_is_learnt_whether_by_a_status_or_in_a_stream(name):
    found = recording(f"vllm/{name}")
    budget = {"thinking_tokens": found.asked.params["thinking_token_budget"], "max_tokens": 9}
    request = replace(found.asked, params=budget)
    server = request.server()
    batch = server.asked(request.batch())
    if found.status == 200:
        failure = server.refused_budget(batch, read(found.asked, found.body).failure, 0.0)
    else:
        failure = refused(request, found.status, found.body, server=server)
    assert (failure.kind.name, failure.code, failure.status) == ("UNSUPPORTED", "no_thinking_budget", 400)
    assert not server.takes_budget(request.batch().shape)


@pytest.mark.parametrize(("name", "request_", "expected"), [
    ("transformers/error_stream_interval", asked("a", dialect=None), "FIELDS_REFUSED"),
    ("transformers/error_unknown_field", asked("a", dialect=None, streamed=False, no_such_field=1), "BAD_CALL"),
    *((f"llamacpp/{name}", asked("a", "b", dialect="llamacpp", streamed=False), fault("BAD_CALL", "BadRequest"))
      for name in ("error_bad_json", "native_error_too_long_in_list", "embed_too_long")),
])
def test_a_recorded_refusal_of_another_server_is_known_for_what_it_is(name, request_, expected):
    found = json.loads((WIRE / f"{name}.json").read_text("utf-8"))
    assert failure_like(refused(request_, found["status"], found["body_text"].encode()), expected) == expected


# Requests ------------------------------------------------------------------------------------------------------------


SENT = [name for name in ANSWERED if ("two_events" in name and "thinking" not in name) or "/plain_" in name]


@pytest.mark.parametrize("name", SENT)
def test_a_recorded_request_is_what_we_send(name):
    request = recording(name).asked
    given = request.params | {"prompt": list(request.prompts) if len(request.prompts) > 1 else request.prompts[0]}
    if request.streamed:
        given |= {"stream": True, "stream_interval": 100_000,
                  "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    elif len(request.prompts) > 1 and not request.params.get("echo"):
        given |= {"return_token_ids": True}
    path, body = sent(request)
    if request.kind is Kind.CHAT:
        given["messages"] = given.pop("prompt")
    assert (path, body) == ("/v1/completions" if request.kind is Kind.COMPLETION else "/v1/chat/completions",
                            given | {"model": request.model})
