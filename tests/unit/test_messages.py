"""The vocabulary: failures make errors, and no repr holds a prompt."""

import pytest

from batchclient._core.messages import Batch, Failure, FailureKind, Request, RequestState, Shape
from batchclient.errors import RateLimited, ServerFault

SECRET = b'"the patient is called Smith"'


def test_a_failure_makes_an_error_with_all_it_knows():
    cause = ValueError("inner")
    failure = Failure(FailureKind.REJECTED, RateLimited, "429: slow down", 429, 2.5, "rate", None, cause)
    error = failure.to_error(3)
    assert type(error) is RateLimited
    assert (error.message, error.attempt, error.status) == ("429: slow down", 3, 429)
    assert (error.retry_after_s, error.code, error.__cause__) == (2.5, "rate", cause)


def test_every_caller_gets_an_error_of_its_own():
    failure = Failure(FailureKind.MAYBE_PROCESSED, ServerFault, "x")
    assert failure.to_error(1) is not failure.to_error(1)


def test_a_failure_that_knows_little_makes_an_error_that_knows_little():
    error = Failure(FailureKind.MAYBE_PROCESSED, ServerFault, "x").to_error(1)
    assert (error.status, error.retry_after_s, error.code, error.__cause__) == (None, None, None, None)


def test_a_fresh_request_is_nowhere():
    request = Request(Shape(b"k", b"{}"), SECRET)
    assert (request.state, request.attempts, request.batch, request.group) == (RequestState.NEW, 0, None, None)


def test_no_repr_of_a_request_or_batch_holds_a_prompt():
    request = Request(Shape(b"k", b"{}"), SECRET, solo_fields=b'"user":"Smith"')
    batch = Batch(7, 1, request.shape, [request], True, 0, 0.0, 0.0, unanswered=1)
    assert repr(request) == "<Request -1 new, attempts 0>"
    assert repr(batch) == "<Batch 7 on 1, streamed, 1 requests, 1 open>"


@pytest.mark.parametrize("field", ["no_such_field", "promt"])
def test_a_request_takes_no_stray_fields(field):
    with pytest.raises(AttributeError):
        setattr(Request(Shape(b"k", b"{}"), SECRET), field, 1)


def test_requests_are_told_apart_by_identity():
    shape = Shape(b"k", b"{}")
    assert Request(shape, SECRET) != Request(shape, SECRET)
    assert Shape(b"k", b"{}") != Shape(b"k", b"{}")
