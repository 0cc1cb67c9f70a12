"""What the embedded server answers where nothing is generated: vectors, scores, ranks, classes, tokens."""

import base64
import json
import math
from array import array

import pytest

from batchclient.simulator import (
    Profile,
    SimulatedServer,
    probabilities_of,
    score_of,
    vector_of,
)

STEPS = Profile("t", "", step_s=0.010, max_num_seqs=2, kv_tokens=1000)


def ask(path, server=None, **body):
    """(status, reply) of one request."""
    server = server or SimulatedServer("instant", model="m", max_model_len_tokens=64)
    server.receive(1, "POST", path, json.dumps({"model": "m", **body}).encode(), 0.0)
    parts = server.poll(1e6)
    return parts[0].status, json.loads(b"".join(part.body for part in parts))


def test_a_vector_is_its_texts_own():
    one, again, other = vector_of("one red fox"), vector_of("one red fox"), vector_of("fox red one")
    assert one == again
    assert one != other
    assert math.hypot(*one) == pytest.approx(1.0, abs=1e-6)


def test_texts_with_the_same_words_are_near():
    assert score_of("red fox", "the red fox runs") > score_of("red fox", "blue whales swim") + 0.1
    assert 0 <= score_of("a", "b") <= 1


def test_embeddings_come_in_order_with_the_total_usage():
    status, reply = ask("/v1/embeddings", input=["one two", "three"])
    assert status == 200
    assert [item["index"] for item in reply["data"]] == [0, 1]
    assert [array("f", item["embedding"]) for item in reply["data"]] == [vector_of("one two"), vector_of("three")]
    assert reply["usage"]["prompt_tokens"] == reply["usage"]["total_tokens"] == 4


def test_base64_holds_the_same_numbers():
    _, reply = ask("/v1/embeddings", input="one", encoding_format="base64")
    vector = array("f", base64.b64decode(reply["data"][0]["embedding"]))
    assert vector == vector_of("one")


def test_token_ids_are_embedded_too():
    _, reply = ask("/v1/embeddings", input=[[3, 4], [5]])
    assert [array("f", item["embedding"]) for item in reply["data"]] == [vector_of([3, 4]), vector_of([5])]
    _, alone = ask("/v1/embeddings", input=[3, 4])
    assert len(alone["data"]) == 1


@pytest.mark.parametrize(
    ("path", "body", "status", "part"),
    [
        ("/v1/embeddings", {"input": []}, 400, "at least one prompt"),
        ("/v1/embeddings", {"input": ["a", ""]}, 400, "cannot be empty"),
        ("/v1/embeddings", {"input": ["a", [1]]}, 400, "body.input.1"),
        ("/v1/embeddings", {"input": 5}, 400, "body.input"),
        ("/v1/embeddings", {}, 400, "Field required"),
        ("/v1/embeddings", {"input": ["a", "a b " * 40]}, 400, "maximum context length is 64"),
        ("/v1/embeddings", {"input": "a", "model": "n"}, 404, "The model `n` does not exist."),
        ("/v1/embeddings", {"input": "a", "dimensions": 5}, 400, "Matryoshka"),
        ("/v1/embeddings", {"input": "a", "encoding_format": "x"}, 400, "body.encoding_format"),
        ("/v1/embeddings", {"input": [[999999]]}, 400, "out of vocabulary"),
        ("/score", {"text_1": ["a", "b"], "text_2": ["a", "b", "c"]}, 400, "1:1, 1:N or N:N"),
        ("/score", {"text_1": [], "text_2": []}, 400, "At least one text element"),
        ("/score", {"text_1": ["a"]}, 400, "body.text_2"),
        ("/score", {"text_1": ["a", 5], "text_2": ["a", "b"]}, 400, "body.text_1"),
        ("/rerank", {"query": "a", "documents": []}, 400, "At least one text_pair"),
        ("/rerank", {"query": "a", "documents": ["b"], "top_n": -1}, 400, "body.top_n"),
        ("/rerank", {"documents": ["b"]}, 400, "body.query"),
        ("/classify", {"input": []}, 400, "at least one prompt"),
        ("/tokenize", {"prompt": ["a"]}, 400, "body.prompt"),
        ("/tokenize", {"prompt": "a", "model": "n"}, 404, "Valid aliases: m"),
    ],
)
def test_what_it_refuses(path, body, status, part):
    got, reply = ask(path, **body)
    assert got == status
    assert part in reply["error"]["message"]
    assert reply["error"]["code"] == status


def test_a_prompt_may_fill_the_context():
    assert ask("/v1/embeddings", input=[[5] * 64])[0] == 200
    assert ask("/v1/embeddings", input=[[5] * 65])[0] == 400


@pytest.mark.parametrize("path", ["/score", "/v1/score"])
@pytest.mark.parametrize("names", [("text_1", "text_2"), ("queries", "documents"), ("data_1", "data_2")])
def test_scores_are_of_pairs(path, names):
    status, reply = ask(path, **{names[0]: ["a b", "c"], names[1]: ["d", "e f"]})
    assert status == 200
    assert [(i["index"], i["score"]) for i in reply["data"]] == [(0, score_of("a b", "d")), (1, score_of("c", "e f"))]
    _, reply = ask(path, **{names[0]: "a b", names[1]: ["d", "e f"]})
    assert [item["score"] for item in reply["data"]] == [score_of("a b", "d"), score_of("a b", "e f")]


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank"])
def test_ranks_begin_with_the_best(path):
    documents = ["blue whales", "the red fox", "red"]
    _, reply = ask(path, query="red fox", documents=documents, top_n=2)
    scores = {i: score_of("red fox", document) for i, document in enumerate(documents)}
    best = sorted(scores, key=scores.get, reverse=True)[:2]
    assert [item["index"] for item in reply["results"]] == best
    assert [item["relevance_score"] for item in reply["results"]] == [scores[i] for i in best]
    assert reply["results"][0]["document"]["text"] == documents[best[0]]
    _, reply = ask(path, query="red fox", documents=documents)
    assert len(reply["results"]) == 3


def test_classes_have_labels():
    _, reply = ask("/classify", input=["a", "b c"])
    for item, text in zip(reply["data"], ["a", "b c"], strict=True):
        assert item["probs"] == probabilities_of(text)
        assert item["label"] == f"LABEL_{item['probs'].index(max(item['probs']))}"
        assert item["num_classes"] == 2
    assert sum(probabilities_of("x")) == pytest.approx(1.0)


def test_tokens_are_those_that_a_completion_tells():
    server = SimulatedServer("instant", model="m")
    _, reply = ask("/tokenize", server, prompt="hello world", return_token_strs=True)
    assert reply["count"] == len(reply["tokens"]) == len(reply["token_strs"])
    assert "".join(reply["token_strs"]) == "hello world"
    _, told = ask("/v1/completions", server, prompt="hello world", max_tokens=1, return_token_ids=True)
    assert told["choices"][0]["prompt_token_ids"] == reply["tokens"]


def test_an_input_costs_the_engine_its_prefill():
    server = SimulatedServer(STEPS, model="m")
    server.receive(1, "POST", "/v1/embeddings", json.dumps({"input": ["a", "b", "c"]}).encode(), 0.0)
    times = []
    while (at := server.next_deadline()) is not None:
        times += [round(at, 6) for part in server.poll(at) if part.last]
    # Two sequences at once, a step each.
    assert times == [0.020]


def test_the_queue_counts_every_input():
    server = SimulatedServer("instant", model="m", max_queued=2)
    assert ask("/v1/embeddings", server, input=["a", "b", "c"])[0] == 503
    assert ask("/v1/embeddings", server, input=["a", "b"])[0] == 200


@pytest.mark.parametrize(
    ("fault", "indices"), [("drop_choice", [0, 1]), ("double_choice", [0, 0, 1, 2]), ("first_only", [0])]
)
def test_faults_spoil_these_replies_too(fault, indices):
    server = SimulatedServer("instant", model="m", faults=[fault])
    _, reply = ask("/score", server, text_1=["a", "b", "c"], text_2=["d", "e", "f"])
    assert [item["index"] for item in reply["data"]] == indices
    # Two tokens a pair, and none of those that were not served.
    assert reply["usage"]["prompt_tokens"] == (2 if fault == "first_only" else 6)
