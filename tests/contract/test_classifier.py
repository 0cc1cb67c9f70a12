"""What batchclient relies on in a cross-encoder's server: classes and scores, in lists as alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from batchclient import BadRequest, Batching, Classification
from tests.contract.conftest import SERVERS, Server, pooling_server
from tests.contract.test_embeddings import TEXTS, post, run, together
from tests.live.servers import CLASSIFIER_DIR, CLASSIFIER_FLAGS


@pytest.fixture(scope="module", params=SERVERS)
def classifier(request: pytest.FixtureRequest) -> Iterator[Server]:
    """Each of the servers in turn."""
    yield from pooling_server(request, CLASSIFIER_FLAGS, CLASSIFIER_DIR)


def test_classes_in_a_list_are_those_of_singles(classifier: Server) -> None:
    items = [(text,) for text in TEXTS]
    answers, statistics = run(together(classifier, "classify", items))
    alone, _ = run(together(classifier, "classify", items, batching=Batching(max_size=1)))
    assert max(statistics.list_sizes) > 8
    assert [answer.label for answer in answers] == [answer.label for answer in alone]
    for one, other in zip(answers, alone, strict=True):
        assert one.probabilities == pytest.approx(other.probabilities, abs=1e-3)
    assert len({round(answer.probabilities[0], 3) for answer in answers}) > 12


def test_one_text_too_long_fails_alone(classifier: Server) -> None:
    items = [(text,) for text in TEXTS[:8]]
    items[5] = ("a b " * 600,)
    answers, _ = run(together(classifier, "classify", items))
    assert isinstance(answers[5], BadRequest)
    assert sum(isinstance(answer, Classification) for answer in answers) == 7


def test_scores_in_a_list_are_those_of_singles(classifier: Server) -> None:
    pairs = [(TEXTS[i], TEXTS[(7 * i) % 24]) for i in range(24)]
    answers, statistics = run(together(classifier, "score", pairs))
    alone, _ = run(together(classifier, "score", pairs, batching=Batching(max_size=1)))
    assert max(statistics.list_sizes) > 8
    assert [answer.score for answer in answers] == pytest.approx([answer.score for answer in alone], abs=1e-3)


def test_a_ranking_is_the_servers_own(classifier: Server) -> None:
    (ranked,), _ = run(together(classifier, "rerank", [(TEXTS[3], TEXTS[:6])]))
    theirs = post(classifier, "/rerank", query=TEXTS[3], documents=TEXTS[:6]).json()["results"]
    assert [document.index for document in ranked] == [result["index"] for result in theirs]
    top = post(classifier, "/v1/rerank", query=TEXTS[3], documents=TEXTS[:6], top_n=2).json()["results"]
    assert [result["index"] for result in top] == [document.index for document in ranked[:2]]


@pytest.mark.parametrize(
    ("path", "body"), [("/classify", {"input": []}), ("/classify", {}), ("/rerank", {"documents": ["b"]})], ids=str
)
def test_what_is_refused(classifier: Server, path: str, body: dict[str, Any]) -> None:
    reply = post(classifier, path, **body)
    assert reply.status_code == 400
    assert reply.json()["error"]["code"] == 400


def test_replies_have_the_recorded_fields(classifier: Server) -> None:
    """Fields of vLLM 0.32's replies, as they were seen."""
    reply = post(classifier, "/classify", input=["a", "b"]).json()
    assert set(reply) == {"id", "object", "created", "model", "data", "usage"}
    assert set(reply["data"][0]) == {"index", "label", "probs", "num_classes"}
    assert reply["data"][0]["label"].startswith("LABEL_")
