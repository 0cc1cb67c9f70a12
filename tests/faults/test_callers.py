"""Rows of the fault matrix about this process: its loops, clocks and hooks, what callers give it, and what must not leave it."""

import asyncio
import gzip
import json
import logging
import time
import traceback
import zlib

import pytest
from tests.fakes.raw import RawServer, cut, hang, make, nobody_listens, says, whole
from tests.shell.clocks import VirtualLoop, WatchedLoop
from tests.shell.scripted import ScriptedTransport, make_client
from tests.fakes.raw import answers_in_a_thread, response

from batchclient import (
    AdaptiveLimit,
    Backoff,
    BatchClient,
    BatchClientError,
    Batching,
    ConfigError,
    DeadlineExceeded,
    Http,
    ResponseTooLarge,
)
from batchclient.dialects.vllm import VllmDialect

NEVER = Backoff(max_attempts=1)


def test_row_41_two_event_loops_one_after_the_other():
    """The second starts afresh; nothing is said of the first loop's sockets."""
    with answers_in_a_thread() as url:
        client = BatchClient(url, model="m", detect=False)

        async def main():
            return [each.text for each in await asyncio.gather(*(client.complete(f"{n}") for n in range(5)))]

        assert asyncio.run(main()) == asyncio.run(main()) == [f"<{n}>" for n in range(5)]


async def test_row_46_hook_that_raises(caplog):
    """Said once; no call notices."""

    def fail(adjustment):
        told.append(adjustment)
        raise RuntimeError("of the user's")

    def reply(heard):
        # A refusal lowers the limit.
        return busy if len(server.heard) % 50 == 1 else whole(heard)

    told, busy = [], response(b"{}", "429 Too Many Requests", [("retry-after", "0")])
    with caplog.at_level(logging.ERROR, "batchclient"):
        async with (
            RawServer(then=says(*[reply] * 999)) as server,
            make(server, batching=Batching(max_size=1), on_adjustment=fail) as client,
        ):
            while len(told) < 2:
                done = await asyncio.gather(*(client.complete(f"{n}", max_tokens=1) for n in range(50)))
                assert [each.text for each in done] == [f"<{n}>" for n in range(50)]
    assert sum("on_adjustment failed" in record.message for record in caplog.records) == 1


async def test_row_47_wall_clock_that_jumps(monkeypatch):
    """Deadlines and pauses are monotonic: an hour of wall time changes none."""
    real = time.time
    async with RawServer(hang(), says(response(b"{}", "500 Internal Server Error"))) as server:
        async with make(server, retry=Backoff(base_s=0.05), batching=Batching(max_size=1)) as client:
            waiting = asyncio.ensure_future(client.complete("a", timeout_s=30))
            await server.arrived(1)
            for hours in (1, -2):
                monkeypatch.setattr(time, "time", lambda hours=hours: real() + 3600 * hours)
                assert (await client.complete(f"{hours}", timeout_s=5)).attempts in (1, 2)
            assert not waiting.done()
            waiting.cancel()


def in_virtual_time(main):
    with asyncio.Runner(loop_factory=WatchedLoop) as runner:
        return runner.run(main())


def test_row_47_machine_that_was_suspended():
    """An hour is gone at once: every deadline is judged once, and nothing is sent again for it."""

    async def main():
        loop = asyncio.get_running_loop()
        server = ScriptedTransport(held=True)
        async with make_client(server, limit=4, batching=Batching(max_size=1)) as client:
            calls = [asyncio.ensure_future(client.complete(f"{n}", timeout_s=60)) for n in range(20)]
            patient = [asyncio.ensure_future(client.complete(f"p{n}")) for n in range(4)]
            await server.arrived(4)
            loop.clock += 3600
            done = await asyncio.gather(*calls, return_exceptions=True)
            assert {type(each) for each in done} == {DeadlineExceeded}
            server.release()
            assert [each.text for each in await asyncio.gather(*patient)] == [f"<p{n}|0>" for n in range(4)]
            assert len(server.sent) == 4 + 4
            assert client.statistics().failed == 20

    in_virtual_time(main)


@pytest.mark.parametrize("setting", ["p95_latency_s", "auto"])
def test_row_48_loop_that_stands_still(setting):
    """Answers that lay unread for five seconds say nothing of their server."""

    async def main(stall_s, slow_s):
        loop = asyncio.get_running_loop()
        arguments = {"limit": AdaptiveLimit(start=32, max=32, p95_latency_s=1.0)}
        if setting == "auto":
            arguments = {"limit": AdaptiveLimit(start=32, max=32)}

        def reply(sent):
            from tests.shell.scripted import Reply, echo

            return Reply(chunks=[0.3 + slow_s, *echo(sent).chunks])

        server = ScriptedTransport(*[reply] * 4000)
        async with make_client(server, batching=Batching(max_size=1), **arguments) as client:

            async def work(count):
                await asyncio.gather(*(client.complete(f"{n}", max_tokens=1) for n in range(count)))

            await work(1600)
            for _ in range(2):
                calls = asyncio.ensure_future(work(256))
                await asyncio.sleep(0.2)
                loop.clock += stall_s
                await calls
            return {each.reason for each in client.statistics().adjustments}

    def run(**arguments):
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            return runner.run(main(**arguments))

    undisturbed = run(stall_s=0.0, slow_s=0.0)
    # The limits that were set are the same, and so is what was thought of the server.
    assert run(stall_s=5.0, slow_s=0.0) == undisturbed
    if setting == "p95_latency_s":
        # A server that is slow itself is another matter.
        assert "p95 latency 2.3 s, 1 s asked for" in run(stall_s=0.0, slow_s=2.0)


def test_row_48_nothing_watches_between_calls():
    async def main():
        server = ScriptedTransport(held=True)
        alive = asyncio.get_running_loop().alive
        async with make_client(server, limit="auto") as client:
            assert alive() == []
            call = asyncio.ensure_future(client.complete("p"))
            await server.arrived(1)
            assert any(isinstance(each, asyncio.TimerHandle) for each in alive())
            server.release()
            await call
            await asyncio.sleep(0)
            assert alive() == []
        held = ScriptedTransport(held=True)
        async with make_client(held, limit=8) as client:
            call = asyncio.ensure_future(client.complete("p"))
            await held.arrived(1)
            assert not any(isinstance(each, asyncio.TimerHandle) for each in alive())
            held.release()
            await call
            client.retune(limit="auto")
            held.held = True
            call = asyncio.ensure_future(client.complete("p"))
            await held.arrived(2)
            assert any(isinstance(each, asyncio.TimerHandle) for each in alive())
            held.release()
            await call

    in_virtual_time(main)


ODD = ["\0", "\ufeffwith a mark", "😀", "\u2028\u2029\x85", 'q"uo\\te', "\r\n\t", "é" * 1000]


async def test_row_49_odd_prompts(backend):
    """They arrive letter by letter; a lone surrogate is refused where it is given, and its neighbours are not."""
    async with RawServer() as server, make(server, backend) as client:
        done = await asyncio.gather(*(client.complete(p) for p in [*ODD, "\ud800"]), return_exceptions=True)
        assert [each.text for each in done[:-1]] == [f"<{p}>" for p in ODD]
        assert isinstance(done[-1], ConfigError)
        assert "surrogate" in str(done[-1])
    assert sorted(p for prompts in server.prompts for p in prompts) == sorted(ODD)


async def test_row_50_parameters_that_are_no_json():
    """Refused where they are given, by name; the 63 neighbours never hear of it."""
    import datetime

    wrong = [float("nan"), float("inf"), b"bytes", datetime.datetime(2026, 1, 1), {1, 2}, object()]
    async with RawServer() as server, make(server, batching=Batching(max_size=64)) as client:
        good = [client.complete(f"{n}", max_tokens=1) for n in range(63)]
        bad = [client.complete("bad", max_tokens=1, temperature=value) for value in wrong]
        done = await asyncio.gather(*good, *bad, return_exceptions=True)
        assert [each.text for each in done[:63]] == [f"<{n}>" for n in range(63)]
        assert {(type(each), each.field) for each in done[63:]} == {(ConfigError, "temperature")}
        assert len(server.heard) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        {"headers": {"x-note": "fine\r\nx-evil: 1"}},
        {"headers": {"x-note\r\nx-evil": "1"}},
        {"headers": {"x-note": "a\nb"}},
        {"api_key": "key\r\nx-evil: 1"},
        {"base_url": "http://server.test/v1\r\nx-evil: 1"},
        {"base_url": "http://server.test/v1?a=b\nc"},
    ],
    ids=str,
)
def test_row_51_line_breaks_in_headers_and_urls(arguments):
    with pytest.raises(ConfigError):
        BatchClient(**{"base_url": "http://server.test/v1", "model": "m", **arguments})


@pytest.mark.parametrize("url", ["http://user:canary-key@server.test/v1", "https://canary-key@server.test/v1"])
def test_row_53_user_and_password_in_a_url(url):
    """Refused, and not shown."""
    with pytest.raises(ConfigError) as caught:
        BatchClient(url, model="m", detect=False)
    assert "canary" not in "".join(traceback.format_exception(caught.value)).replace(url, "")
    assert "canary" not in str(caught.value)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "gzip, gzip"])
@pytest.mark.parametrize("status", ["200 OK", "500 Internal Server Error"])
async def test_row_55_decompression_bomb(backend, encoding, status):
    """Decoded bytes are what is counted; we never asked for compression."""
    body = b'{"x": "' + b"\0" * 20_000_000
    body = zlib.compress(body) if encoding == "deflate" else gzip.compress(body)
    body = gzip.compress(body) if encoding == "gzip, gzip" else body
    bomb = response(body, status, [("content-encoding", encoding), ("content-type", "application/json")])
    async with RawServer(says(bomb)) as server:
        async with make(server, backend, http=Http(max_response_bytes=1_000_000), retry=NEVER) as client:
            with pytest.raises(BatchClientError) as caught:
                await client.complete("p", max_tokens=1)
        assert server.heard[0].header("accept-encoding") == "identity"
    if status.startswith("200"):
        assert isinstance(caught.value, ResponseTooLarge)
        assert not caught.value.retryable
    else:
        # The status says enough.
        assert caught.value.status == 500


ENDLESS = {
    "header lines": (b"HTTP/1.1 200 OK\r\n", b"x: " + b"y" * 1000 + b"\r\n"),
    "one header": (b"HTTP/1.1 200 OK\r\nx: ", b"y" * 1000),
    "a body": (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", b"2710\r\n" + b"x" * 10_000 + b"\r\n"),
    "events": (b"HTTP/1.1 200 OK\r\n\r\n", b'data: {"choices":[]}\n\n' * 500),
    "one line of an event": (b"HTTP/1.1 200 OK\r\n\r\n", b"data: " + b"x" * 10_000),
    "lines of one event": (b"HTTP/1.1 200 OK\r\n\r\n", b"data: x\n" * 1000),
}


@pytest.mark.parametrize("what", ENDLESS)
async def test_row_56_endless(backend, what):
    """Everything ends somewhere: headers, lines, events, bodies."""
    first, more = ENDLESS[what]

    async def endless(connection):
        await connection.request()
        await connection.write(first)
        while True:
            await connection.write(more)

    async with RawServer(then=endless) as server:
        async with make(server, backend, http=Http(max_response_bytes=1_000_000), retry=NEVER) as client:
            with pytest.raises(BatchClientError):
                await client.complete("p", max_tokens=16)
            assert client.statistics().in_flight == 0


async def test_row_57_key_and_prompt_in_what_is_shown(backend, caplog):
    """Whatever goes wrong: no key and no prompt in an error, its causes, a repr or a log."""
    key, prompt = "canary-key-0123456789", "canary-prompt, long enough to be looked for in pieces"

    def says_it_back(heard):
        words = json.dumps({"error": {"message": f"{heard.header('authorization')} {heard.prompts}", "code": 400}})
        return response(words.encode(), "400 Bad Request", [("content-type", "application/json")])

    def as_an_answer(heard):
        return response(f"{heard.header('authorization')} {heard.prompts[0]}".encode())

    shown, made = [], []
    with caplog.at_level(logging.DEBUG):
        for script in (cut(0), cut(20, how="reset"), cut(-3), says(says_it_back), says(as_an_answer), hang()):
            async with RawServer(script) as server:
                arguments = {"api_key": key, "retry": NEVER, "http": Http(read_timeout_s=0.1), "made": made.append}
                async with make(server, backend, **arguments) as client:
                    with pytest.raises(BatchClientError) as caught:
                        await client.complete(prompt, max_tokens=1)
                    shown += [repr(client), repr(made), repr(client.statistics())]
            each = caught.value
            while each is not None:
                shown += [str(each), repr(each), repr(vars(each))]
                each = each.__cause__ or each.__context__
        async with BatchClient(
            nobody_listens(), model="m", api_key=key, http=Http(backend=backend), retry=NEVER
        ) as client:
            with pytest.raises(BatchClientError) as caught:
                await client.complete(prompt)
            shown.append("".join(traceback.format_exception_only(caught.value)))
    shown += [record.getMessage() for record in caplog.records if record.name.startswith("batchclient")]
    assert "canary" not in "\n".join(shown)


async def test_a_fault_of_ours_is_not_tried_again(monkeypatch):
    """What the policy says of it does not matter: it would be the same fault."""

    class Always:
        def decide(self, failure, attempt, elapsed_s, rng):
            return 0.0 if attempt < 10 else None

    async with RawServer() as server, make(server, retry=Always()) as client:
        await client.complete("p")

        def fail(*arguments):
            raise RuntimeError("a fault of ours")

        monkeypatch.setattr(VllmDialect, "decoder", fail)
        with pytest.raises(BatchClientError, match="internal error") as caught:
            await client.complete("p")
        assert (caught.value.attempt, caught.value.retryable) == (1, False)
