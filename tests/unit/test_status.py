"""What an HTTP status means."""

from tests.core import FailureKind
from batchclient.dialects._status import failure_of
from batchclient.errors import AuthenticationFailed, BadRequest, DialectError, NotFound, RateLimited, ServerFault

K = FailureKind


def what(status, message="m", *, streamed=False, retry_after_s=None, code=None, listed=False):
    return failure_of(status, message, code, streamed=streamed, retry_after_s=retry_after_s, listed=listed)


def test_a_status_means():
    for statuses, kind, error in [
        ((400, 422, 501), K.BAD_CALL, BadRequest),
        ((401, 403), K.REFUSED, AuthenticationFailed),
        ((404,), K.REFUSED, NotFound),
        ((402, 405, 406, 410, 415, 418, 451), K.REFUSED, BadRequest),
        ((408, 409, 424, 425), K.MAYBE_PROCESSED, ServerFault),
        ((413,), K.LIST_TOO_LONG, BadRequest),
        ((429,), K.REJECTED, RateLimited),
        ((503, 529), K.REJECTED, ServerFault),
        ((500, 502, 504, 520, 599), K.MAYBE_PROCESSED, ServerFault),
        ((200, 204, 205), K.MAYBE_PROCESSED, DialectError),
        ((100, 301, 302, 307, 399), K.REFUSED, DialectError),
    ]:
        for status in statuses:
            failure = what(status)
            assert (failure.kind, failure.error, failure.status) == (kind, error, status)


def test_a_400_that_says_that_there_is_no_such_model_is_as_a_404():
    for message in [
        "Model m not found or vLLM engine is sleeping", "The model `m` does not exist.", "model 'm' was not found",
    ]:  # fmt: skip
        assert (what(400, message).kind, what(400, message).error) == (K.REFUSED, NotFound)
        assert what(422, message).error is BadRequest
    for message in ["This model's maximum context length is 8. The image was not found", "not found: model_id"]:
        assert what(400, message).error is BadRequest


def test_out_of_memory_is_a_list_that_is_too_long_or_the_load_beside_a_call_and_no_fault_of_the_callers():
    for message in [
        "CUDA out of memory. Tried to allocate 2.00 GiB",
        "torch.OutOfMemoryError: HIP",
        "Worker failed: out of memory",
        # llama.cpp, whose slots share a cache, and ik_llama.cpp.
        "Context size has been exceeded.",
        "Invalid input batch.",
        "Input prompt is too big compared to KV size. Please try increasing KV size.",
    ]:
        for listed, kind in ((True, K.LIST_TOO_LONG), (False, K.REJECTED)):
            failure = what(500, message, listed=listed)
            assert (failure.kind, failure.error, failure.out_of_memory) == (kind, ServerFault, True)
            assert failure.message == f"500: {message}"
        assert not what(413, message).out_of_memory
        assert not what(400, message).out_of_memory
        assert not what(500, "Internal Server Error").out_of_memory


def test_a_full_server_is_one_in_whatever_words():
    for status, message, code in [
        (529, "All workers are busy, please retry later", None),
        (500, "Overloaded", "overloaded_error"),
        (500, "try again", "overloaded"),
        (500, "Model is overloaded", None),
        (500, "The request queue is full.", None),
        (502, "HTTPStatusError: Server error '503 Service Unavailable' for url 'http://a'", None),
    ]:
        failure = what(status, message, code=code)
        assert (failure.kind, failure.error, failure.out_of_memory) == (K.REJECTED, ServerFault, False)
        assert what(400, message, code=code).kind is K.BAD_CALL


def test_a_server_that_takes_no_lists_says_so_in_words():
    for message in [
        "prompt must be a string.", "Prompt must be a str", "batched prompts are not supported", "prompt_list_unsupported",
        "lists of prompts are not supported", "list of prompts is not allowed", "body.prompt: Input should be a valid string",
    ]:  # fmt: skip
        for status in (400, 422, 501):
            assert what(status, message).kind is K.LIST_REFUSED
        assert what(500, message).kind is K.MAYBE_PROCESSED


def test_a_server_that_takes_shorter_lists_says_how_long():
    for message, cap in [
        ("prompt list length 1025 exceeds the maximum allowed count of 1024. To increase this", 1024),
        ("batch size 64 > maximum allowed batch size 32", 32),
        ("the batch size is too large", None),
    ]:
        failure = what(422, message)
        assert (failure.kind, failure.list_cap) == (K.LIST_TOO_LONG, cap)


def test_a_refused_stream_is_one_only_where_we_streamed():
    assert what(400, "streaming is not supported", streamed=True).kind is K.STREAM_REFUSED
    assert what(400, "Stream options are unknown", streamed=True).kind is K.STREAM_REFUSED
    assert what(400, "streaming is not supported").kind is K.BAD_CALL
    assert what(400, "an upstream said no", streamed=True).kind is K.BAD_CALL


def test_the_message_begins_with_the_status_and_the_rest_is_kept():
    failure = what(429, "slow down", retry_after_s=2.5, code="rate_limit")
    assert failure.message == "429: slow down"
    assert (failure.retry_after_s, failure.code) == (2.5, "rate_limit")


def test_an_ordinary_complaint_is_a_bad_call():
    for message in ["max_tokens must be at least 1, got 0.", "The decoder prompt cannot be empty", ""]:
        assert what(400, message, streamed=True).kind is K.BAD_CALL
