"""What a server was found to refuse: each doubt has its own answer, and only so many are remembered."""

from tests.core import Batch, Failure, FailureKind, Kind, Request, Shape
from batchclient._core.servers.denials import Denials, is_refusal
from batchclient.errors import BadRequest, NotFound

M = ("m", Kind.COMPLETION)


def batch(number=1, model="m", sent_at=0.0, kind=Kind.COMPLETION):
    shape = Shape(model.encode(), b"{}", model=model, kind=kind)
    return Batch(number, 0, shape, [Request(shape, b'"p"')], True, 0, sent_at, sent_at)


def test_what_concerns_every_call_for_a_model():
    for kind, status, expected in (
        *((FailureKind.REFUSED, status, True) for status in (401, 403, 404)),
        *((FailureKind.REFUSED, status, False) for status in (400, 405, None)),
        (FailureKind.BAD_CALL, 404, False),
    ):
        assert is_refusal(Failure(kind, BadRequest, "no", status)) is expected
    assert is_refusal(Failure(FailureKind.REFUSED, NotFound, "400: no such model", 400))


def test_only_an_answer_to_what_was_sent_since_removes_a_doubt_and_only_of_the_same_kind_of_call():
    for answered, left in (
        (batch(1, sent_at=0.5), {M}),
        (batch(3, sent_at=0.7), set()),
        (batch(4, sent_at=2.0, kind=Kind.EMBEDDING), {M}),
    ):
        refusals = Denials()
        refusals.doubt(batch(sent_at=0.7), (), 1.0)
        refusals.answered(answered)
        assert set(refusals.models) == left


def test_models_and_shapes_by_the_thousand_are_not_remembered_and_the_oldest_is_forgotten_first():
    refusals, shapes = Denials(), [Shape(b"%d" % i, b"{}") for i in range(3000)]
    for number, shape in enumerate(shapes):
        refusals.doubt(batch(model=str(number)), (), 0.0)
        refusals.answered(batch(model=str(number)))
        refusals.doubt(batch(model=str(number)), (), 0.0)
        refusals.lack(shape, 0.0)
    assert len(refusals.models) <= 1024
    assert [refusals.lacks(shape, 1.0) for shape in shapes] == [False] * (3000 - 1024) + [True] * 1024
    assert not any(refusals.lacks(shape, 30.0) for shape in shapes)
