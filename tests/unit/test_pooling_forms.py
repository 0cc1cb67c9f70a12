"""How calls that generate nothing are written for each sort of server, and how its replies are read."""

import json
from dataclasses import replace

import pytest

from tests.core import FailureKind, Kind
from batchclient.dialects._shapes import Shapes
from batchclient.dialects import make_dialect
from batchclient.errors import BadRequest, DialectError
from batchclient.types import Usage
from tests.replies import harness


def batch_of(kind, *prompts, packed=False, solo=b"", tokens=1, **params):
    shape, _ = Shapes().shape(params, "m", kind=kind)
    return replace(harness.batch_of(shape, *prompts, solo_fields=solo, prompt_tokens=tokens), packed=packed)


def body(wire):
    return json.loads(wire.body)


def read(server, batch, reply):
    """The answers in order, and the failure."""
    decoder = server.decoder(batch, "application/json")
    raw = reply if isinstance(reply, bytes) else json.dumps(reply).encode()
    assert decoder.feed(raw, 1.0) == []
    answers, failure = decoder.end(2.0)
    return [answer for _, answer in sorted(answers)], failure


# Writing -------------------------------------------------------------------------------------------------------------


def test_embeddings_are_written_as_openai_has_them():
    wire = make_dialect("vllm").encode(batch_of(Kind.EMBEDDING, "a", "b", packed=True, dimensions=8))
    assert (wire.method, wire.path, wire.from_root) == ("POST", "/embeddings", False)
    assert body(wire) == {"input": ["a", "b"], "encoding_format": "base64", "model": "m", "dimensions": 8}
    assert body(make_dialect("vllm").encode(batch_of(Kind.EMBEDDING, "a"))) == {"input": "a", "model": "m"}
    assert body(make_dialect("vllm").encode(batch_of(Kind.EMBEDDING, [1, 2], [3]))) == {
        "input": [[1, 2], [3]],
        "model": "m",
    }


def test_a_lone_callers_label_is_sent_and_a_lists_are_not():
    alone, two = (batch_of(Kind.EMBEDDING, *prompts, solo=b'"user":"u"') for prompts in ("a", "ab"))
    assert body(make_dialect("vllm").encode(alone))["user"] == "u"
    assert "user" not in body(make_dialect("vllm").encode(two))
    pair, pairs = (batch_of(Kind.SCORE, *[["q", "d"]] * size, solo=b'"user":"u"') for size in (1, 2))
    for server in (make_dialect("vllm"), make_dialect("openai")):
        assert body(server.encode(pair))["user"] == "u"
        assert "user" not in body(server.encode(pairs))


def test_pairs_are_two_lists_and_a_query_they_share_is_written_once():
    wire = make_dialect("vllm").encode(batch_of(Kind.SCORE, ["q", "a"], ["r", "“b”"]))
    assert (wire.path, wire.from_root) == ("/score", True)
    assert body(wire) == {"text_1": ["q", "r"], "text_2": ["a", "“b”"], "model": "m"}
    assert body(make_dialect("vllm").encode(batch_of(Kind.SCORE, ["q", "a"], ["q", "b"])))["text_1"] == "q"


def test_a_rerank_has_one_query():
    wire = make_dialect("tei").encode(batch_of(Kind.RERANK, ["q", "a"], ["q", "b"]))
    assert (wire.path, wire.from_root) == ("/rerank", True)
    assert body(wire) == {"query": "q", "texts": ["a", "b"], "model": "m"}
    refused = make_dialect("openai").encode(batch_of(Kind.SCORE, ["q", "a"], ["r", "b"]))
    assert (refused.kind, refused.error) == (FailureKind.LIST_REFUSED, BadRequest)


def test_a_text_to_tokenize():
    for server, path, field in [
        (make_dialect("vllm"), "/tokenize", "prompt"),
        (make_dialect("sglang"), "/v1/tokenize", "prompt"),
        (make_dialect("llamacpp"), "/tokenize", "content"),
        (make_dialect("tgi"), "/tokenize", "inputs"),
        (make_dialect("tei"), "/tokenize", "inputs"),
    ]:
        wire = server.encode(batch_of(Kind.TOKENS, "a b"))
        assert (wire.path, wire.from_root) == (path, True)
        assert body(wire)[field] == "a b"


def test_base64_is_asked_for_unless_the_caller_chose():
    shapes = Shapes()
    assert shapes.shape({}, "m", kind=Kind.EMBEDDING)[0].packable
    assert shapes.shape({"dimensions": 8, "input_type": "query"}, "m", kind=Kind.EMBEDDING)[0].packable
    # Vectors of bits or of bytes come as base64, too.
    for name in ("encoding_format", "embedding_type", "output_dtype", "precision"):
        value = "float" if name == "encoding_format" else "binary"
        assert not shapes.shape({"extra_body": {name: value}}, "m", kind=Kind.EMBEDDING)[0].packable
    assert not shapes.shape({}, "m", kind=Kind.CLASSIFICATION)[0].packable
    assert not shapes.shape({}, "m")[0].packable


def test_kinds_and_token_ids_never_share_a_key():
    shapes = Shapes()
    keys = [
        shapes.shape({}, "m", kind=kind, token_ids=token_ids)[0].key
        for kind in (Kind.COMPLETION, Kind.EMBEDDING, Kind.CLASSIFICATION)
        for token_ids in (False, True)
    ] + [shapes.shape({}, "m", kind=kind)[0].key for kind in (Kind.SCORE, Kind.RERANK, Kind.TOKENS, Kind.CHAT)]
    assert len(set(keys)) == len(keys)


# Reading -------------------------------------------------------------------------------------------------------------


def test_scores_are_read_in_every_form():
    for reply in [
        {"data": [{"index": 1, "score": 2.0}, {"index": 0, "score": 1}]},
        {"results": [{"index": 1, "relevance_score": 2.0}, {"index": 0, "relevance_score": 1}]},
        [{"index": 1, "score": 2.0}, {"index": 0, "score": 1}],
    ]:
        answers, failure = read(make_dialect("openai"), batch_of(Kind.RERANK, ["q", "a"], ["q", "b"]), reply)
        assert failure is None
        assert [answer.score for answer in answers] == [1.0, 2.0]
        assert all(type(answer.score) is float for answer in answers)


def test_a_reply_that_is_none_fails():
    for reply in [
        b"not json",
        5,
        {},
        {"data": 5},
        {"data": [5]},
        {"data": [{"index": 0}]},
        {"data": [{"index": 0, "score": "1"}]},
        {"data": [{"index": 0, "score": True}]},
        {"data": [{"index": 0, "score": None}]},
        b'{"data":[{"index":0,"score":NaN}]}',
        b'{"data":[{"index":0,"score":1e999}]}',
    ]:
        answers, failure = read(make_dialect("vllm"), batch_of(Kind.SCORE, ["q", "a"]), reply)
        assert answers == []
        assert failure.kind in (FailureKind.MAYBE_PROCESSED, FailureKind.MISMATCH)
        assert issubclass(failure.error, DialectError)


def test_wrong_indices_hand_out_nothing():
    for items in [[], [{"index": 0, "score": 1.0}] * 2, [{"index": 2, "score": 1.0}]]:
        batch = batch_of(Kind.SCORE, ["q", "a"], ["r", "b"])
        answers, failure = read(make_dialect("vllm"), batch, {"data": items})
        assert (answers, failure.kind) == ([], FailureKind.MISMATCH)


def test_an_error_inside_a_200_is_an_error():
    answers, failure = read(
        make_dialect("vllm"), batch_of(Kind.SCORE, ["q", "a"]), {"error": {"message": "no", "code": 400}}
    )
    assert (answers, failure.kind, failure.error) == ([], FailureKind.BAD_CALL, BadRequest)


def test_one_score_that_is_none_leaves_the_others():
    for score in (b"NaN", b"-1e999", b"1" * 400):
        reply = b'{"data":[{"index":0,"score":%b},{"index":1,"score":0.5}]}' % score
        answers, failure = read(make_dialect("vllm"), batch_of(Kind.SCORE, ["q", "a"], ["r", "b"]), reply)
        assert [answer.score for answer in answers] == [0.5]
        assert failure.once


def test_bodies_that_others_wrote_may_hold_what_no_server_is_known_to_take():
    """Those of the drop-in and the transports."""
    shape, _ = Shapes().shape({"zzz": 1}, "m", kind=Kind.EMBEDDING, verbatim=True)
    assert json.loads(shape.body) == {"model": "m", "zzz": 1}


def test_whose_tokens_are_known():
    for prompts, tokens, total, usages in [
        (["a"], 9, 5, [Usage(5, 0)]),
        (["a", "b"], 3, 7, [Usage(4, 0, True), Usage(3, 0, True)]),
        ([[1, 2, 3], [4, 5, 6]], 3, 6, [Usage(3, 0)] * 2),
        # The server cut or added some: whose is not known.
        ([[1, 2, 3], [4, 5, 6]], 3, 8, [Usage(4, 0, True)] * 2),
        (["a"], 1, None, [None]),
        (["a"], 1, -1, [None]),
    ]:
        items = [{"index": i, "embedding": [1.0]} for i in range(len(prompts))]
        batch = batch_of(Kind.EMBEDDING, *prompts, tokens=tokens)
        answers, _ = read(make_dialect("vllm"), batch, {"data": items, "usage": {"prompt_tokens": total}})
        assert [answer.usage for answer in answers] == usages


def test_tokens_are_read_in_every_form():
    for form, prompts, reply, ids in [
        (make_dialect("vllm"), ["a"], {"count": 2, "tokens": [5, 6], "token_strs": None}, [[5, 6]]),
        (make_dialect("sglang"), ["a", "b"], {"tokens": [[5], [6, 7]], "count": [1, 2]}, [[5], [6, 7]]),
        (make_dialect("llamacpp"), ["a"], {"tokens": []}, [[]]),
        (make_dialect("tgi"), ["a"], [{"id": 5, "text": "a"}], [[5]]),
        (make_dialect("tei"), ["a"], [[{"id": 5}]], [[5]]),
        (make_dialect("tei"), ["a", "b"], [[{"id": 5}], []], [[5], []]),
    ]:
        answers, failure = read(form, batch_of(Kind.TOKENS, *prompts), reply)
        assert failure is None
        assert [answer.ids for answer in answers] == ids


def test_tokens_that_are_none_fail():
    for form, prompts, reply in [
        (make_dialect("vllm"), ["a"], {"tokens": ["5"]}),
        (make_dialect("vllm"), ["a"], {"tokens": 5}),
        (make_dialect("vllm"), ["a"], [5]),
        (make_dialect("sglang"), ["a", "b"], {"tokens": [[5]]}),
        (make_dialect("tgi"), ["a"], {"id": 5}),
        (make_dialect("tei"), ["a", "b"], [[{"id": 5}]]),
        (make_dialect("tei"), ["a"], [{"id": 5}]),
    ]:
        answers, failure = read(form, batch_of(Kind.TOKENS, *prompts), reply)
        assert answers == []
        assert failure is not None


def test_as_many_texts_as_were_asked_for_or_none():
    for form, reply in ((make_dialect("sglang"), {"tokens": [[5]]}), (make_dialect("tei"), [[{"id": 5}]] * 3)):
        answers, failure = read(form, batch_of(Kind.TOKENS, "a", "b"), reply)
        assert (answers, failure.kind) == ([], FailureKind.MISMATCH)


# Errors --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("packed", [True, False])
def test_base64_is_refused_only_where_we_asked_for_it(packed):
    reply = b'{"detail":[{"loc":["body","encoding_format"],"msg":"Extra inputs are not permitted"}]}'
    failure = make_dialect("vllm").failure(batch_of(Kind.EMBEDDING, "a", "b", packed=packed), 422, {}, reply, 0.0)
    assert failure.kind is (FailureKind.PACKING_REFUSED if packed else FailureKind.BAD_CALL)


def test_a_pair_is_cut_out_of_a_message():
    batch = batch_of(Kind.SCORE, ["secret “question”", "its hidden answer"])
    echoed = json.dumps({"text_1": "secret “question”", "text_2": ["its hidden answer"]})
    failure = make_dialect("vllm").failure(batch, 400, {}, json.dumps({"error": f"bad: {echoed}"}).encode(), 0.0)
    assert "question" not in failure.message
    assert "hidden" not in failure.message
