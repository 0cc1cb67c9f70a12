"""Rows of the fault matrix about replies: whole or cut, right or wrong, and what their statuses mean."""

import asyncio
import json
import math

import anyio
import pytest
from tests.fakes.raw import RawServer, chunked, make, says, whole
from tests.fakes.raw import response

from batchclient import (
    AdaptiveLimit,
    Batching,
    AuthenticationFailed,
    Backoff,
    BadRequest,
    BatchClient,
    BatchClientError,
    ConfigError,
    DemuxError,
    DialectError,
    NotFound,
    RateLimited,
    ServerFault,
    Usage,
)
from batchclient.simulator import EmbeddedServer

NEVER = Backoff(max_attempts=1)
JSON = [("content-type", "application/json")]


def error(status, message="no", headers=(), **fields):
    body = {"error": {"message": message, "type": "Error", "code": int(status[:3]), **fields}}
    return response(json.dumps(body).encode(), status, [*JSON, *headers])


def plain(*choices, **fields):
    """A plain reply of these choices: (index, text) or dictionaries."""
    made = [
        {"index": one[0], "text": one[1], "finish_reason": "length"} if isinstance(one, tuple) else one
        for one in choices
    ]
    return response(json.dumps({"id": "1", "choices": made, **fields}).encode(), headers=JSON)


def event(index, text, reason=None, **fields):
    choice = {"index": index, "text": text, "finish_reason": reason}
    return b"data: " + json.dumps({"id": "1", "choices": [choice], **fields}).encode() + b"\n\n"


async def test_row_09_truncated_json_with_200():
    """Tried once more; then an error that shows how the reply begins, without the prompt and the key."""
    reply = response(b'{"choices": [{"text": "canary-prompt of mine, canary-key', headers=JSON)
    async with RawServer(says(*[reply] * 9)) as server:
        async with make(server, api_key="canary-key") as client:
            with pytest.raises(DialectError, match="it begins") as caught:
                await client.complete("canary-prompt of mine", max_tokens=1)
            assert caught.value.attempt == 2
            assert '{"choices": [{"text": "' in caught.value.message
            assert "canary" not in caught.value.message
    async with RawServer(says(reply)) as server, make(server) as client:
        assert (await client.complete("p", max_tokens=1)).attempts == 2


@pytest.mark.parametrize("max_tokens", [1, 16], ids=["plain", "streamed"])
async def test_row_10_error_or_page_with_200(max_tokens):
    """The error inside decides as its status would; a page is none, and its content type is named."""
    inside = {404: NotFound, 401: AuthenticationFailed, 429: RateLimited, 400: BadRequest, 500: ServerFault}
    for code, expected in inside.items():
        body = json.dumps({"error": {"message": "no", "code": code}}).encode()
        async with RawServer(says(response(body, headers=JSON))) as server, make(server, retry=NEVER) as client:
            with pytest.raises(expected) as caught:
                await client.complete("p", max_tokens=max_tokens)
            assert caught.value.status == code
    page = response(b"<html>Welcome</html>", headers=[("content-type", "text/html")])
    async with RawServer(says(page)) as server, make(server, retry=NEVER) as client:
        with pytest.raises(DialectError, match="text/html"):
            await client.complete("p", max_tokens=max_tokens)


@pytest.mark.parametrize("kind", ["application/json", "text/plain", "text/event-stream", None])
async def test_row_10_answer_in_another_form(kind):
    """JSON where a stream was asked for, a stream where JSON was, under any content type: read for what it is, in one request."""
    headers = [] if kind is None else [("content-type", kind)]
    body = json.dumps({"choices": [{"index": 0, "text": "ab", "finish_reason": "stop"}]}).encode()
    stream = event(0, "a") + event(0, "b", "stop") + b"data: [DONE]\n\n"
    for content in (body, stream):
        for max_tokens in (1, 16):
            async with RawServer(says(response(content, headers=headers))) as server, make(server) as client:
                assert (await client.complete("p", max_tokens=max_tokens)).text == "ab"
                assert len(server.heard) == 1


async def test_row_11_error_event_in_mid_stream():
    """Half an answer is no answer; what had finished before is kept."""

    def broken(heard):
        first, *rest = heard.prompts
        events = [event(0, f"<{first}>", "length")]
        events += [event(index, "half of it") for index in range(1, len(heard.prompts))]
        return chunked([*events, b'data: {"error": {"message": "no", "code": 500}}\n\n', b"data: [DONE]\n\n"])

    async with RawServer(says(broken)) as server, make(server) as client:
        answers = await asyncio.gather(*(client.complete(p, max_tokens=16) for p in "abc"))
        assert [each.text for each in answers] == ["<a>", "<b>", "<c>"]
        assert [each.attempts for each in answers] == [1, 2, 2]
        assert server.prompts == [["a", "b", "c"], ["b", "c"]]
    async with RawServer(says(broken)) as server, make(server, retry=NEVER) as client:
        _, failed = await asyncio.gather(*(client.complete(p, max_tokens=16) for p in "ab"), return_exceptions=True)
        assert isinstance(failed, ServerFault)


async def test_row_12_stream_that_ends_too_soon():
    """A choice without ``finish_reason`` was cut off, with or without ``[DONE]``; one with it was not."""
    half, done = [event(0, "half")], [b"data: [DONE]\n\n"]
    for pieces in ([], half, half + done, done):
        async with RawServer(says(chunked(pieces))) as server, make(server) as client:
            completion = await client.complete("p", max_tokens=16)
            assert (completion.text, completion.attempts) == ("<p>", 2)
    async with RawServer(says(chunked([event(0, "all", "stop")]))) as server, make(server) as client:
        assert (await client.complete("p", max_tokens=16)).text == "all"
        assert len(server.heard) == 1


async def test_row_13_stream_in_any_pieces(backend):
    """Split within a character, a field or a line end; with comments, pings and CRLF."""

    def stream(heard):
        # As itself, not escaped, so that pieces can end within it.
        text = event(0, "\0").replace(b'"\\u0000"', '"ä😀\u2028"'.encode()) + event(0, "!", "length")
        noisy = b": ping\n\n" + text.replace(b"\n", b"\r\n") + b":\r\n\r\ndata: [DONE]\r\n\r\n"
        size = sizes.pop()
        return chunked([noisy[start : start + size] for start in range(0, len(noisy), size)])

    sizes = list(range(1, 40))
    async with RawServer(says(*[stream] * 39)) as server, make(server, backend, retry=NEVER) as client:
        for _ in range(39):
            assert (await client.complete("p", max_tokens=16)).text == "ä😀\u2028!"


@pytest.mark.parametrize("choices", ["missing", "empty", "null"])
async def test_row_14_no_choices(choices):
    """The calls of that request fail; the others do not."""
    body = {"missing": {"id": "1"}, "empty": {"choices": []}, "null": {"choices": None}}[choices]
    reply = response(json.dumps(body).encode(), headers=JSON)
    async with RawServer(says(reply)) as server, make(server, retry=NEVER) as client:
        with pytest.raises((DialectError, DemuxError)):
            await client.complete("p", max_tokens=1)
        assert (await client.complete("q", max_tokens=1)).text == "<q>"


@pytest.mark.parametrize("max_tokens", [1, 16], ids=["plain", "streamed"])
async def test_row_14_one_choice_that_cannot_be_read(max_tokens):
    """It fails alone, in the one request that there is; half a surrogate pair is no reason to."""
    choices = [{"index": i, "text": text, "finish_reason": "stop"} for i, text in enumerate(["<a>", 5, "<c>\ud83d"])]
    body = json.dumps({"choices": choices}).encode()
    events = [b"data: " + json.dumps({"choices": [each]}).encode() + b"\n\n" for each in choices]
    reply = response(body, headers=JSON) if max_tokens == 1 else chunked([*events, b"data: [DONE]\n\n"])
    async with RawServer(says(reply)) as server, make(server) as client:
        first, spoilt, last = await asyncio.gather(
            *(client.complete(p, max_tokens=max_tokens) for p in "abc"), return_exceptions=True
        )
        assert (first.text, last.text) == ("<a>", "<c>\ufffd")
        assert (type(spoilt), spoilt.retryable, spoilt.attempt) == (DialectError, False, 1)
        assert len(server.heard) == 1


@pytest.mark.parametrize("indices", [[0], [0, 1, 2], [0, 0], [1, 1], [0, 1, 1], [1, 2], [-1, 0], [True, 0]], ids=str)
async def test_rows_15_and_16_wrong_indices(indices):
    """Too few, too many, doubled or unknown: nothing of the reply is handed out, and the prompts go one by one."""
    reply = plain(*((index, "another's") for index in indices))
    async with RawServer(says(reply)) as server, make(server) as client:
        answers = await asyncio.gather(*(client.complete(p, max_tokens=1) for p in "ab"))
        assert [each.text for each in answers] == ["<a>", "<b>"]
        assert sorted(server.prompts[1:]) == [["a"], ["b"]]


async def test_row_16_indices_out_of_order():
    async with RawServer(says(plain((2, "<c>"), (0, "<a>"), (1, "<b>")))) as server, make(server) as client:
        answers = await asyncio.gather(*(client.complete(p, max_tokens=1) for p in "abc"))
        assert [each.text for each in answers] == ["<a>", "<b>", "<c>"]
        assert len(server.heard) == 1


@pytest.mark.parametrize(
    "usage",
    [
        "missing",
        None,
        {},
        {"prompt_tokens": -1, "completion_tokens": 1},
        {"prompt_tokens": None},
        [],
        "much",
        {"prompt_tokens": 1, "completion_tokens": 10**400},
        {"prompt_tokens": 10**400, "completion_tokens": 1},
    ],
    ids=range(9),
)
async def test_row_18_usage_that_is_none(usage):
    fields = {} if usage == "missing" else {"usage": usage}
    async with RawServer(says(plain((0, "x"), **fields))) as server, make(server) as client:
        completion = await client.complete("p", max_tokens=1)
        assert (completion.text, completion.usage) == ("x", None)
        assert (await client.complete("q", max_tokens=16)).usage == Usage(1, 2)
        assert client.statistics().completion_tokens == 2


async def test_row_19_nan_among_the_logprobs():
    """NaN and Infinity are no JSON, and are read all the same."""
    reply = plain(
        {"index": 0, "text": "x", "finish_reason": "stop", "logprobs": {"token_logprobs": [math.nan, -math.inf]}}
    )
    assert b"NaN" in reply
    async with RawServer(says(reply)) as server, make(server, retry=NEVER) as client:
        completion = await client.complete("p", max_tokens=1, logprobs=1)
        first, second = completion.choices[0].logprobs["token_logprobs"]
        assert math.isnan(first)
        assert second == -math.inf


async def test_row_19_server_that_cannot_write_nan():
    """A 500 about NaN is tried once more, no oftener; in a list the guilty prompt alone has it."""
    nan = error("500 Internal Server Error", "Out of range float values are not JSON compliant")
    async with RawServer(says(*[nan] * 9)) as server, make(server) as client:
        with pytest.raises(ServerFault) as caught:
            await client.complete("p")
        assert (caught.value.attempt, len(server.heard)) == (2, 2)

    def spoilt(heard):
        return nan if "bad" in heard.prompts else whole(heard)

    async with RawServer(then=says(*[spoilt] * 99)) as server, make(server) as client:
        prompts = ["a", "b", "bad", "c"]
        answers = await asyncio.gather(*map(client.complete, prompts), return_exceptions=True)
        assert [isinstance(each, ServerFault) for each in answers] == [False, False, True, False]
        # The list, its halves, those of the spoilt one, and the guilty once more.
        assert len(server.heard) == 6


async def test_row_20_429_without_a_wish():
    """A backoff of our own, and one cut of the limit per episode, however many are refused."""
    refusal = error("429 Too Many Requests")

    async def refuse(connection):
        await connection.request()
        await server.arrived(16)
        await connection.write(refusal)
        await says()(connection)

    async with RawServer(*[refuse] * 16) as server:
        client = make(server, limit=AdaptiveLimit(start=32), batching=Batching(max_size=1), retry=Backoff(base_s=0.01))
        async with client:
            answers = await asyncio.gather(*(client.complete(f"{n}", max_tokens=1) for n in range(16)))
            assert {each.attempts for each in answers} == {2}
            cuts = [each for each in client.statistics().adjustments if each.new < each.old]
            assert [(each.old, each.new) for each in cuts] == [(32, 16)], "half of the limit: 16 were refused"


WISHES = {
    # header: (what the error carries, whether the call is tried again within the test)
    ("retry-after", "0.05"): (0.05, True),
    ("retry-after-ms", "50"): (0.05, True),
    ("retry-after", "0"): (None, True),
    ("retry-after", "-1"): (None, True),
    ("retry-after", "NaN"): (None, True),
    ("retry-after", "inf"): (None, True),
    ("retry-after", "soon"): (None, True),
    ("retry-after", ""): (None, True),
    ("retry-after", "Wed, 21 Oct 2015 07:28:00 GMT"): (None, True),
    ("retry-after", "1000000000"): (1e9, False),
    ("retry-after", "61"): (61.0, False),
    ("retry-after", "Fri, 31 Dec 2100 23:59:59 GMT"): (..., False),
}


@pytest.mark.parametrize(("wish", "expected"), WISHES.items(), ids=lambda value: str(value)[:40])
async def test_row_21_retry_after(wish, expected):
    """Zero, the past and nonsense are no wish; a wish is a floor; one over a minute is the caller's to wait for."""
    seconds, again = expected
    refusal = error("429 Too Many Requests", headers=[wish])
    async with RawServer(says(refusal, refusal)) as server:
        async with make(server, retry=NEVER) as client:
            with pytest.raises(RateLimited) as caught:
                await client.complete("p", max_tokens=1)
            carried = caught.value.retry_after_s
            assert (carried > 1e8) if seconds is ... else (carried == seconds)
    async with RawServer(says(refusal)) as server, make(server) as client:
        began = asyncio.get_running_loop().time()
        if again:
            assert (await client.complete("p", max_tokens=1)).attempts == 2
            assert asyncio.get_running_loop().time() - began >= (seconds or 0)
        else:
            with pytest.raises(RateLimited) as caught:
                await client.complete("p", max_tokens=1)
            assert caught.value.attempt == 1


async def test_row_25_model_that_is_not_there():
    """No second try; the server's own words name it."""
    missing = error("404 Not Found", "The model `m` does not exist.")
    async with RawServer(says(*[missing] * 9)) as server, make(server) as client:
        with pytest.raises(NotFound, match="The model `m` does not exist"):
            await client.complete("p")
        assert len(server.heard) == 1


async def test_row_25_names_the_models_that_are_there():
    """Who mistyped a model's name sees which there are; nothing is asked for that, beyond what finding out the server reads."""
    with EmbeddedServer(model="llama") as server:
        async with BatchClient(server.base_url, model="lama") as client:
            with anyio.fail_after(5):
                while client.statistics().endpoints[0].server is None:
                    await client.complete("p", model="llama", max_tokens=1)
            with pytest.raises(NotFound, match=r"model='lama'; the server has 'llama'"):
                await client.complete("p")


def refuses(bad, message="bad prompt", status="400 Bad Request"):
    """A server that refuses any request with one of the bad prompts in it."""

    def reply(heard):
        return error(status, message) if bad(heard.prompts) else whole(heard)

    return says(*[reply] * 999)


async def test_row_26_one_bad_prompt_among_64():
    """63 answers, one error, at most 2·log2(64) + 1 extra requests."""
    async with RawServer(then=refuses(lambda prompts: "41" in prompts)) as server:
        async with make(server, batching=Batching(max_size=64)) as client:
            answers = await asyncio.gather(
                *(client.complete(f"{n}", max_tokens=16) for n in range(64)), return_exceptions=True
            )
    failed = [n for n, each in enumerate(answers) if isinstance(each, BatchClientError)]
    assert failed == [41]
    assert isinstance(answers[41], BadRequest)
    assert [each.text for n, each in enumerate(answers) if n != 41] == [f"<{n}>" for n in range(64) if n != 41]
    assert len(server.heard) <= 1 + 13


async def test_row_26_most_prompts_bad():
    """Halving would ask for each nearly twice."""
    good = {"3", "60"}
    async with RawServer(then=refuses(lambda prompts: not good.issuperset(prompts))) as server:
        async with make(server, batching=Batching(max_size=64)) as client:
            answers = await asyncio.gather(
                *(client.complete(f"{n}", max_tokens=16) for n in range(64)), return_exceptions=True
            )
    assert {f"{n}" for n, each in enumerate(answers) if not isinstance(each, BadRequest)} == good
    assert len(server.heard) <= 100


async def test_row_27_list_that_is_too_long():
    """413: halves, and no list is as long again."""
    async with RawServer(then=refuses(lambda prompts: len(prompts) > 8, status="413 Content Too Large")) as server:
        async with make(server, batching=Batching(max_size=32)) as client:
            for _ in range(2):
                answers = await asyncio.gather(*(client.complete(f"{n}", max_tokens=1) for n in range(32)))
                assert [each.text for each in answers] == [f"<{n}>" for n in range(32)]
    sizes = [len(prompts) for prompts in server.prompts]
    assert sizes[:3] == [32, 16, 16] or sizes[0] == 32
    assert sizes.count(32) == 1
    assert max(sizes[-4:]) <= 8


async def test_row_28_prompt_over_the_models_length():
    """That call fails and is not tried again; the next such one is not even sent."""
    words = "This model's maximum context length is 8 tokens. However, your messages resulted in 20 tokens."
    async with RawServer(then=refuses(lambda prompts: len(prompts) > 8, words)) as server:
        async with make(server) as client:
            with pytest.raises(BadRequest, match="maximum context length"):
                await client.complete(list(range(20)), max_tokens=1)
            assert len(server.heard) == 1
            with pytest.raises(ConfigError, match="20 tokens"):
                await client.complete(list(range(20)), max_tokens=1)
            assert len(server.heard) == 1


async def test_row_29_one_prompt_of_ten_megabytes():
    """The others do not wait for it, and a server that does not take it refuses it alone."""
    huge = "x" * 10_000_000

    release = asyncio.Event()

    async def serve(connection):
        while heard := await connection.request():
            if huge in heard.prompts:
                await release.wait()
                await connection.write(error("413 Content Too Large"))
            else:
                await connection.answer(heard)

    async with RawServer(then=serve) as server, make(server, batching=Batching(length_reach=0)) as client:
        big = asyncio.ensure_future(client.complete(huge, max_tokens=1))
        small = await asyncio.gather(*(client.complete(f"{n}", max_tokens=1) for n in range(50)))
        assert [each.text for each in small] == [f"<{n}>" for n in range(50)]
        assert not big.done()
        release.set()
        with pytest.raises(BadRequest, match="413"):
            await big


async def test_row_72_finish_reasons():
    """``abort`` and ``error`` are faults and tried again; ``length`` is an answer that says so."""
    for reason in ("abort", "error"):
        for max_tokens, wrap in ((1, None), (16, chunked)):
            reply = plain({"index": 0, "text": "ha", "finish_reason": reason})
            if wrap is not None:
                reply = chunked([event(0, "ha", reason), b"data: [DONE]\n\n"])
            async with RawServer(says(reply)) as server, make(server) as client:
                completion = await client.complete("p", max_tokens=max_tokens)
                assert (completion.text, completion.finish_reason, completion.attempts) == ("<p>", "length", 2)
            async with RawServer(says(reply)) as server, make(server, retry=NEVER) as client:
                with pytest.raises(ServerFault, match="abort"):
                    await client.complete("p", max_tokens=max_tokens)


def test_rows_13_and_56_a_long_line_costs_its_length_not_its_square():
    """Counted in bytes copied, not in seconds."""
    from batchclient.dialects._sse import EventStream

    stream = EventStream()
    piece = b"x" * 1000
    stream.feed(b"data: ")
    for _ in range(100):
        assert stream.feed(piece) == []
    assert max(map(len, stream.rest)) == 1000
    assert stream.feed(b"\n\n") == [piece * 100]
    stream.feed(b"data: y\n" * 1000)
    assert max(map(len, stream.data)) == 1
    assert stream.feed(b"\n") == [b"\n".join([b"y"] * 1000)]
