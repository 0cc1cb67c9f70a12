"""Doubts about keys and models: what raises them, what removes them, who may ask."""

import pytest

from batchclient._core.kinds import Kind
from batchclient._core.messages import Batch, Failure, FailureKind, Request, Shape
from batchclient._core.servers.denials import Denials, is_refusal
from batchclient.errors import BadRequest


M = ("m", Kind.COMPLETION)
NO = Failure(FailureKind.REFUSED, BadRequest, "no", 404)


def batch(number=1, model="m", sent_at=0.0, kind=Kind.COMPLETION):
    shape = Shape(model.encode(), b"{}", model=model, kind=kind)
    return Batch(number, 0, shape, [Request(shape, b'"p"')], True, 0, sent_at, sent_at)


@pytest.mark.parametrize(
    ("kind", "status", "expected"),
    [
        (FailureKind.REFUSED, 401, True),
        (FailureKind.REFUSED, 403, True),
        (FailureKind.REFUSED, 404, True),
        (FailureKind.REFUSED, 405, False),
        (FailureKind.REFUSED, None, False),
        (FailureKind.BAD_CALL, 404, False),
    ],
)
def test_what_concerns_every_call_for_a_model(kind, status, expected):
    assert is_refusal(Failure(kind, BadRequest, "no", status)) is expected


def test_one_call_at_a_time_may_ask():
    refusals = Denials()
    refusals.doubt(batch(), 1.0)
    assert refusals.may_probe(M, 1.0, elsewhere=False)
    probe = batch(2, sent_at=1.0)
    refusals.begin_probe(probe)
    assert not refusals.may_probe(M, 1.0, elsewhere=False)
    assert not refusals.end_probe(batch(3), NO)
    assert refusals.end_probe(probe, NO)
    assert refusals.may_probe(M, 1.0, elsewhere=False)


def test_where_another_takes_the_calls_it_is_asked_again_every_half_minute():
    refusals = Denials()
    refusals.doubt(batch(), 1.0)
    assert not refusals.may_probe(M, 30.9, elsewhere=True)
    assert refusals.may_probe(M, 31.0, elsewhere=True)
    probe = batch(2, sent_at=31.0)
    refusals.begin_probe(probe)
    refusals.end_probe(probe, NO)
    refusals.doubt(probe, 32.0)
    assert not refusals.may_probe(M, 61.9, elsewhere=True)


@pytest.mark.parametrize(("answered", "left"), [(batch(1, sent_at=0.5), 1), (batch(3, sent_at=1.5), 0)])
def test_only_an_answer_to_what_was_sent_since_removes_a_doubt(answered, left):
    refusals = Denials()
    refusals.doubt(batch(), 1.0)
    refusals.answered(answered)
    assert len(refusals.models) == left


def test_a_probe_sent_in_the_very_instant_of_the_refusal_counts():
    refusals = Denials()
    refusals.doubt(batch(), 1.0)
    refusals.begin_probe(batch(2, sent_at=1.0))
    refusals.answered(batch(2, sent_at=1.0))
    assert not refusals.models


def test_models_by_the_thousand_are_not_remembered():
    refusals = Denials()
    for number in range(3000):
        refusals.doubt(batch(model=str(number)), 0.0)
    assert len(refusals.models) <= 1024


def test_a_doubt_about_one_kind_of_call_is_none_about_another():
    refusals = Denials()
    refusals.doubt(batch(kind=Kind.EMBEDDING), 1.0)
    assert M not in refusals.models
    refusals.begin_probe(batch(2, kind=Kind.EMBEDDING))
    assert not refusals.end_probe(batch(2), NO)
    refusals.answered(batch(3, sent_at=2.0))
    assert set(refusals.models) == {("m", Kind.EMBEDDING)}


def test_shapes_that_it_lacks_are_few_and_the_oldest_is_forgotten_first():
    refusals, shapes = Denials(), [Shape(b"%d" % i, b"{}") for i in range(3000)]
    for shape in shapes:
        refusals.lack(shape, 0.0)
    assert len(refusals.shapes) == 1024
    assert [refusals.lacks(shape, 1.0) for shape in shapes] == [False] * (3000 - 1024) + [True] * 1024
    assert not any(refusals.lacks(shape, 30.0) for shape in shapes)
