"""What no table says: what a dialect learns for its next exchange, when answers are handed out, pieces, odd replies."""

import json
import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from batchclient.dialects import DIALECTS
from batchclient.types import Usage
from tests.core import Failure, Kind
from tests.replies.cases.contents import PARTS, THINKING
from tests.replies.cases.framing import ON_OPENAIS_ROUTE
from tests.replies.harness import (
    asked, chats, choice, delta, event, make_dialect, piece, plain, read, read_recording, refused, sent, stream, tokens,
)  # fmt: skip

# fmt: off
OURS = {"stream_interval", "stream_options", "continuous_usage_stats"}


def added(request, server):
    """Which fields of ours are sent."""
    _, body = sent(request, server)
    return (body.keys() | body.get("stream_options", {}).keys()) & OURS


# From one exchange to the next ---------------------------------------------------------------------------------------

REFUSALS = [
    (400, "Unrecognized request argument supplied: stream_interval", {"stream_interval"}),
    (422, "Unexpected fields in the request: {'stream_interval'}", {"stream_interval"}),
    (400, "[{'type': 'extra_forbidden', 'loc': ('body', 'stream_interval')}]", {"stream_interval"}),
    (400, "Unknown parameter: 'stream_options.continuous_usage_stats'.", {"continuous_usage_stats"}),
    (422, "body.stream_options: Extra inputs are not permitted", {"stream_options", "continuous_usage_stats"}),
    (400, "stream_options is not supported", {"stream_options", "continuous_usage_stats"}),
    (400, "Extra inputs are not permitted", OURS),
]


@pytest.mark.parametrize(("status", "words", "fields"), REFUSALS, ids=[words for _, words, _ in REFUSALS])
def test_a_refusal_of_fields_of_ours_has_them_left_out(status, words, fields):
    request = asked("a", "b", dialect=None, max_tokens=20)
    server = request.server()
    assert added(request, server) == OURS
    assert refused(request, status, {"detail": words}, server=server).kind.name == "FIELDS_REFUSED"
    assert added(request, server) == OURS - fields


@pytest.mark.parametrize("field", ["stream_interval", "priority"])
@pytest.mark.parametrize("name", [*DIALECTS, None])
def test_no_dialect_sends_a_field_again_that_was_refused_by_name(name, field):
    request = asked("a", "b", dialect=name, max_tokens=20, priority=3)
    server = request.server()
    wire = sent(request, server)
    if not isinstance(wire, Failure) and field in wire[1]:
        refused(request, 400, {"error": f"unknown field {field}"}, server=server)
        assert field not in sent(request, server)[1]


def test_a_batch_that_was_under_way_meanwhile_is_sent_again_as_well():
    one, other = (asked(*prompts, dialect=None, streamed=False) for prompts in ("ab", "cd"))
    server, batches = one.server(), [one.batch(), other.batch()]
    assert all(b"return_token_ids" in server.encode(batch).body for batch in batches)
    reply = b'{"error": "unknown field return_token_ids"}'
    for batch in batches:
        assert server.failure(batch, 400, {}, reply, 0.0).kind.name == "FIELDS_REFUSED"
        assert b"return_token_ids" not in server.encode(batch).body
    assert server.failure(batches[0], 400, {}, reply, 0.0).kind.name == "BAD_CALL"


def test_usage_that_tells_choices_apart_is_believed_from_then_on():
    request = asked("a", "b", dialect=None, max_tokens=50)
    server = request.server()
    first = read(request, stream(piece("t", "stop", 0, tokens(3, 1)), piece("t", "stop", 1, tokens(4, 1))),
                 server=server)
    assert first.usages == [Usage(1, 1, True, True), Usage(4, 1)]
    assert read(request, stream(piece("t", "stop", 1, tokens(3, 7))), server=server).usages == [Usage(3, 7)]


def test_running_sums_are_not_believed_after_a_chat_of_two_choices():
    """The events that open the choices count no token yet, whether the usage is a sum or not."""
    said = [({"role": "assistant", "content": ""}, None, (0, 0)), ({"content": "x"}, None, (1, 2)),
            ({"content": "y"}, "stop", (4, 4))]
    two = [delta(reason, index, tokens(5, counts[index]), **fields) for fields, reason,
           counts in said for index in (0, 1)]
    chat = chats(dialect=None, n=2, max_tokens=40)
    server = chat.server()
    read(chat, stream(*two), server=server)
    sums = [piece("a" * 20, "stop", index, tokens(5, 20 * (index + 1))) for index in range(4)]
    after = read(asked(*"abcd", dialect=None, max_tokens=90), stream(*sums), server=server)
    assert all(usage.completion_tokens_estimated for usage in after.usages)


def test_where_no_usage_was_asked_for_a_streamed_list_has_none():
    request = asked("a", "b", dialect=None, max_tokens=20)
    server = request.server()
    refused(request, 422, {"detail": "Unexpected fields in the request: stream_options"}, server=server)
    assert read(request, stream(piece("t", "stop"), piece("t", "stop", 1)), server=server).usages == [None, None]


def test_every_name_has_a_dialect_with_all_slots_that_shows_no_key():
    for name in DIALECTS:
        server = make_dialect(name, ("sk-very-secret-1",))
        assert server.name == name
        for slot in ("encode", "decoder", "failure", "rate_limits", "hide", "events_per_choice"):
            assert callable(getattr(server, slot))
        assert "secret" not in repr(server)


def test_an_answer_without_a_bound_is_told_as_long_ones_are():
    # A server that sends an event per token is not told apart from one that writes a long answer.
    for params, is_unbounded in (({}, True), ({"max_tokens": 257}, False)):
        request = chats(**params)
        assert (request.server().events_per_choice(request.batch().shape) > 1_000_000) is is_unbounded


# When an answer is handed out ----------------------------------------------------------------------------------------


def decoder_of(request):
    server, batch = request.server(), request.batch()
    server.encode(batch)
    return server.decoder(batch, request.content_type)


def texts(pairs):
    return [(place, answer.text, answer.time_to_first_token_s) for place, answer in pairs]


def test_an_answer_is_handed_out_with_the_bytes_that_complete_it():
    decoder = decoder_of(asked("a", "b"))
    assert decoder.feed(stream(piece("x", index=1), done=False), 11.0) == []
    # Sent at 10, first token at 11.
    assert texts(decoder.feed(stream(piece("y", "stop", 1), done=False), 12.5)) == [(1, "xy", 1.0)]


def test_the_first_token_of_several_choices_is_the_first_of_any():
    decoder = decoder_of(asked("a", n=2))
    decoder.feed(stream(piece("x", index=1), done=False), 11.0)
    decoder.feed(stream(piece("t", "stop"), done=False), 12.0)
    assert texts(decoder.feed(stream(piece("t", "stop", 1)), 13.0)) == [(0, "t", 1.0)]


def test_the_first_answer_of_a_list_waits_until_the_next_begins():
    decoder = decoder_of(asked("p", "q"))
    assert decoder.feed(stream(piece("a", "stop"), done=False), 11.0) == []
    assert texts(decoder.feed(stream(piece("x", index=1), done=False), 13.0)) == [(0, "a", 1.0)]


@pytest.mark.parametrize("name", ["openai", None])
@pytest.mark.parametrize("ending",
                    [b"data: [DONE]\n\n", b"data: [DONE] \n\n", b"data:[DONE]\n\n", b"data: \t[DONE]\n\n", "usage", ""],
                         ids=str)
def test_a_lone_calls_answer_waits_for_its_usage(name, ending):
    decoder = decoder_of(asked("a", dialect=name, max_tokens=20))
    assert decoder.feed(stream(piece("t", "stop"), event(), done=False), 1.0) == []
    wire = stream(event(usage=tokens(3, 4)), done=False) if ending == "usage" else ending or b""
    answers = decoder.feed(wire, 2.0)
    assert [answer.usage for _, answer in answers] == ([Usage(3, 4)] if ending == "usage" else [None] if ending else [])
    last, failure = decoder.end(3.0)
    assert failure is None
    assert len(last) == (ending == "")


def test_no_two_callers_share_their_extra_fields():
    choices = [choice(0), choice(1)]
    for outcome in (read(asked("a", "b"), stream(*map(event, choices))),
                    read(asked("a", "b", streamed=False), plain(*choices))):
        one, other = (outcome.answers[place].extra for place in (0, 1))
        assert one == other
        assert one is not other


# Pieces for a waiting caller -----------------------------------------------------------------------------------------


def test_deltas_are_kept_for_a_waiting_caller_only():
    waiting, other = (read_recording("vllm/chat_stream_two_events", to_caller=to_caller) for to_caller in (True, False))
    assert other.deltas == []
    assert "".join(each.text for each in waiting.deltas) == " createstartsTYstarts '_ create"
    assert waiting.deltas[0].message == {"role": "assistant", "content": ""}
    assert [each.finish_reason for each in waiting.deltas] == [None, None, "length"]


def test_a_waiting_caller_is_handed_what_can_be_written():
    said = [delta(content="a\ud83d"), delta(content="\ude00"), delta(content="b\ud83d"), delta("stop")]
    outcome = read(chats(to_caller=True), stream(*said))
    pieces = ["a", "\U0001f600", "b", "\ufffd"]
    assert [each.text for each in outcome.deltas] == pieces
    assert [each.message["content"] for each in outcome.deltas] == pieces
    assert outcome.answers[0].text == "".join(pieces)


def test_halves_of_characters_in_reasoning_and_in_arguments_are_joined_too():
    def tool(index, arguments):
        return {"tool_calls": [{"index": index, "function": {"arguments": arguments}}]}

    said = [delta(reasoning="a\ud83d"), delta(reasoning="\ude00"), delta(**tool(1, "b\ud83d")),
            delta(**tool(0, "c")), delta(**tool(1, "\ude00")), delta(reasoning="d\ud83d"), delta("stop")]
    outcome = read(chats(to_caller=True), stream(*said))
    assert [each.message for each in outcome.deltas] == [
        {"reasoning": "a"}, {"reasoning": "\U0001f600"}, tool(1, "b"), tool(0, "c"), tool(1, "\U0001f600"),
        {"reasoning": "d"}, {"reasoning": "\ufffd"},
    ]  # fmt: skip


def test_a_waiting_caller_is_handed_each_piece_unchanged_and_together_they_are_the_text():
    said = [{"content": ""}, {"content": [THINKING]}, {"content": [THINKING]}, {"content": PARTS[1:2]},
            {"content": " two"}]
    outcome = read(chats(to_caller=True), stream(*[delta(**each) for each in said], delta("stop")))
    assert [each.message for each in outcome.deltas] == [*said, {}]
    assert "".join(each.text for each in outcome.deltas) == outcome.answers[0].text == "one two"
    for name, params in ON_OPENAIS_ROUTE.items():
        for last in (piece(None, "stop"), event({"index": 0, "finish_reason": "stop"})):
            request = asked("p", dialect=name, to_caller=True, **params or {"stop": ["bz"]})
            outcome = read(request, stream(piece("ab"), last))
            assert "".join(each.text for each in outcome.deltas) == "ab"


# Whatever comes ------------------------------------------------------------------------------------------------------


@settings(max_examples=40)
@given(st.lists(st.text(st.sampled_from(["a", "\ud83d", "\ude00", "é"]), max_size=3), min_size=1, max_size=5))
def test_pieces_are_mended_to_what_their_whole_is(pieces):
    """Whatever the split, nothing is lost or doubled, and every piece can be written."""
    request = asked("p", to_caller=True)
    outcome = read(request, stream(*map(piece, pieces), piece("", "stop")))
    whole = read(replace(request, streamed=False), plain(choice(0, "".join(pieces)))).answers[0].text
    got = [each.text for each in outcome.deltas]
    assert "".join(got) == outcome.answers[0].text == whole
    "".join(got).encode()


@given(st.integers(1, 6), st.integers(1, 4), st.randoms(use_true_random=False), st.booleans())
def test_in_whatever_order_choices_come_each_prompt_has_its_own(prompts, n, rng, streamed):
    choices = [choice(index, f"t{index}") for index in range(prompts * n)]
    rng.shuffle(choices)
    outcome = read(asked(*"abcdef"[:prompts], n=n, streamed=streamed),
                   stream(*map(event, choices)) if streamed else plain(*choices))
    assert outcome.texts == {place: [f"t{place * n + k}" for k in range(n)] for place in range(prompts)}
    assert outcome.failure is None


weird = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 3) | st.text(max_size=3) | st.just("stop"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(
        ["choices", "index", "text", "finish_reason", "logprobs", "token_ids", "usage", "error", "code", "tokens"]),
                                                                inner, max_size=6),
    max_leaves=20,
)
weird_choice = st.fixed_dictionaries(
    {"index": st.integers(-1, 2) | weird, "text": st.just("t") | weird},
    optional={"finish_reason": st.sampled_from(["stop", "abort", None]) | weird, "logprobs": weird, "token_ids": weird},
)
weird_reply = weird | st.fixed_dictionaries({"choices": st.lists(weird_choice)}, optional={"usage": weird})


@settings(max_examples=50)
@given(st.lists(weird_reply, max_size=4), st.binary(max_size=60))
def test_no_reply_is_too_strange_to_be_judged(replies, raw):
    for params in ({}, {"return_token_ids": True}):
        read(asked("a", "b", **params), stream(*replies))
        for one in replies:
            outcome = read(asked("a", "b", streamed=False, **params), json.dumps(one).encode())
            assert outcome.failure is not None or sorted(outcome.answers) == [0, 1]
    assert read(asked("a", streamed=False), raw).failure is not None
    assert read(asked("a"), b"data: " + raw).failure is not None


# Memory --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("request_, said", [
    (asked("p", max_tokens=9000), lambda text, count: piece(text, usage=tokens(3, count))),
    (chats(max_tokens=9000), lambda text, count: delta(content=text, usage=tokens(3, count))),
], ids=["completion", "chat"])  # fmt: skip
def test_of_a_token_little_more_than_its_text_is_kept(request_, said):
    """A text of six characters is an object of 55 bytes in CPython; at most 80 bytes are kept."""
    decoder, size = decoder_of(request_), 2000
    events = [stream(said(f"{count:06}", count), done=False) for count in range(1, size + 1)]
    tracemalloc.start()
    for each in events:
        decoder.feed(each, 1.0)
    kept, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert kept / size <= 80
