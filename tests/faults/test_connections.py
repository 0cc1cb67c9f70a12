"""Rows of the fault matrix about connections: those that are never made, and those that break."""

import asyncio
import errno
import socket
import subprocess
import sys
import time
from textwrap import dedent

import pytest
from tests.fakes.raw import (
    RawServer,
    answers_in_a_thread,
    certificate,
    cut,
    make,
    needs_openssl,
    nobody_listens,
    response,
    says,
)
from tests.seams import with_runners

from batchclient import (
    Batching,
    Http,
    Backoff,
    BatchClient,
    CertificateRefused,
    ConnectFailed,
    ConnectionLost,
    DeadlineExceeded,
    DialectError,
    OutOfSockets,
)
from batchclient._shell.exchange import BodyTimeouts
from batchclient.testing import VirtualClock

NEVER = Backoff(max_attempts=1)


class Always:
    """A policy that would try anything again."""

    def decide(self, failure, attempt, elapsed_s, rng):
        return 0.0 if attempt < 10 else None


async def test_row_01_connection_refused(backend):
    """The other endpoint has the call at once; the one that refused is left alone; no policy is asked."""
    async with RawServer() as server, make(server, backend, also=[nobody_listens()], retry=NEVER) as client:
        answers_ = await asyncio.gather(*(client.complete(f"{n}") for n in range(40)))
        states = [endpoint.state for endpoint in client.statistics().endpoints]
    assert [each.text for each in answers_] == [f"<{n}>" for n in range(40)]
    assert states == ["ejected", "healthy"]


async def test_row_01_connection_refused_by_the_only_endpoint(backend):
    """Three refused connections show a wrong address."""
    client = BatchClient(nobody_listens(), model="m", http=Http(backend=backend), retry=Backoff(base_s=0))
    with VirtualClock():
        async with client:
            with pytest.raises(ConnectFailed, match=r"no connection to http://\S+: a refused connection \(") as caught:
                await client.complete("p")
            assert client.statistics().endpoints[0].reason == "3 failures in a row, the last: a refused connection"
    assert caught.value.attempt == 3


async def test_row_02_name_that_does_not_resolve_and_then_does(backend, monkeypatch):
    asked = []

    async def resolve(host, port, **arguments):
        asked.append(host)
        if len(asked) < 3:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    async with RawServer() as server:
        url = f"http://llm.test:{server.port}/v1"
        async with BatchClient(
            url, model="m", http=Http(backend=backend), retry=Backoff(base_s=0.01), probe=False
        ) as client:
            assert (await client.complete("p")).attempts == 3
            # Two refusals, two pauses of the endpoint: half a second, then a second. No loop without a delay.
            assert len(asked) == 3


async def test_row_02_name_that_never_resolves_is_no_refused_connection(backend, monkeypatch):
    async def resolve(host, port, **arguments):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", resolve)
    client = BatchClient("http://llm.test:80/v1", model="m", http=Http(backend=backend), retry=Backoff(base_s=0))
    with VirtualClock():
        async with client:
            with pytest.raises(
                ConnectFailed, match=r"no connection to \S+: a name that does not resolve \(.*not known"
            ):
                await client.complete("p")
            assert client.statistics().endpoints[0].reason.endswith("the last: a name that does not resolve")


async def test_row_04_a_server_without_tls_is_no_refused_connection(backend):
    async def refuse(connection):
        await connection.reader.read(100)
        await connection.write(response(b"", "400 Bad Request"))

    async with RawServer(then=refuse) as server:
        url = server.url.replace("http:", "https:")
        async with BatchClient(url, model="m", http=Http(backend=backend), retry=Backoff(base_s=0)) as client:
            with pytest.raises(ConnectFailed, match=r"a failed TLS handshake \(.*does the server speak http://"):
                await client.complete("p")
            assert client.statistics().endpoints[0].reason.endswith("the last: a failed TLS handshake")


@pytest.mark.parametrize("tls", [False, True], ids=["connect", "handshake"])
async def test_row_03_connection_that_hangs(backend, tls):
    """The connect timeout is its own: the read timeout here is 600 s."""
    listener = socket.socket()
    fillers = []
    try:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        if not tls:
            # A full backlog: further connections get no answer.
            for _ in range(4):
                filler = socket.socket()
                filler.setblocking(False)
                filler.connect_ex(listener.getsockname())
                fillers.append(filler)
        url = f"{'https' if tls else 'http'}://127.0.0.1:{listener.getsockname()[1]}/v1"
        client = BatchClient(url, model="m", http=Http(backend=backend, connect_timeout_s=0.1), retry=NEVER)
        async with client:
            with pytest.raises(ConnectFailed, match="connect timeout"):
                await client.complete("p")
    finally:
        for each in (listener, *fillers):
            each.close()


async def test_row_03_no_connection_is_tried_for_longer_than_its_call_waits(backend, monkeypatch):
    """The connect timeout is 5 s, as nobody gave one; a call behind it waits as long as it may."""
    tried, given_up = [], []

    async def hang(*arguments, **named):
        tried.append(time.monotonic())
        try:
            await asyncio.sleep(60)
        finally:
            given_up.append(time.monotonic())

    monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", hang)
    url = "http://127.0.0.1:1/v1"
    async with BatchClient(
        url, model="m", http=Http(backend=backend), dialect="vllm", probe=False, batching=Batching(max_size=1)
    ) as client:
        patient = asyncio.ensure_future(client.complete("q", timeout_s=30))
        with pytest.raises(DeadlineExceeded):
            await client.complete("p", timeout_s=0.2)
        for _ in range(5):
            await asyncio.sleep(0)
        assert len(given_up) == 1 and given_up[0] - tried[0] < 2
        assert len(tried) == 2 and not patient.done()
        patient.cancel()


@needs_openssl
@pytest.mark.parametrize("fault", ["nobody trusts it", "another host's", "expired"])
async def test_row_04_bad_certificate(backend, fault, tmp_path, monkeypatch):
    """Whatever a policy says: one handshake, no request, the reason in the error. The environment's trust is not asked for by itself."""
    wrong = {"another host's": {"name": "DNS:elsewhere.test"}, "expired": {"days": 0}}.get(fault, {})
    file, tls = certificate(tmp_path, **wrong)
    monkeypatch.setenv("SSL_CERT_FILE", file)
    async with RawServer(tls=tls) as server:
        server.quiet()
        http = Http(trust_env=fault != "nobody trusts it")
        async with make(server, backend, retry=Always(), http=http) as client:
            with pytest.raises(CertificateRefused, match="certificate") as caught:
                await client.complete("p")
            assert caught.value.attempt == 1
            assert not caught.value.retryable
            assert not server.heard
            assert server.connections <= 1


@needs_openssl
async def test_row_04_good_certificate(backend, tmp_path, monkeypatch):
    file, tls = certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", file)
    async with RawServer(tls=tls) as server, make(server, backend, http=Http(trust_env=True)) as client:
        assert (await client.complete("p")).text == "<p>"


@pytest.fixture
def slow_clock(monkeypatch):
    """A clock that goes at a twentieth of its speed, so that a busy machine is no slow server; what is in the list comes on top."""
    clock, late = time.monotonic, []
    began = clock()
    monkeypatch.setattr(time, "monotonic", lambda: began + (clock() - began) / 20 + sum(late))
    return late


async def answer_once_then_end(connection):
    await connection.answer(await connection.request())
    await connection.request()


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_row_05_keep_alive_race(backend, how, slow_clock):
    """A socket that was used before ends without a word: the request is sent again at once, and no policy is asked."""

    async def answer_once_then_break(connection):
        await answer_once_then_end(connection)
        if how == "reset":
            connection.reset()

    async with RawServer(answer_once_then_break) as server, make(server, backend, retry=NEVER) as client:
        await client.complete("first")
        second = await client.complete("second")
        assert (second.text, second.attempts) == ("<second>", 1)
        assert server.connections == 2
        assert server.prompts == [["first"], ["second"], ["second"]]


async def test_row_05_keep_alive_race_is_free_once(backend, slow_clock):
    """What breaks on a fresh socket too is no race."""

    async with (
        RawServer(answer_once_then_end, cut(0), cut(0)) as server,
        make(server, backend, retry=NEVER) as client,
    ):
        await client.complete("first")
        with pytest.raises(ConnectionLost):
            await client.complete("second")
        assert server.prompts == [["first"], ["second"], ["second"]]


@pytest.mark.parametrize(("after_s", "is_race"), [(0.025, True), (0.051, False)])
async def test_row_05_keep_alive_race_is_over_within_fifty_milliseconds(backend, after_s, is_race, slow_clock):
    """A server that dies over a request does so later: that costs a retry, and the prompt is sent twice by no other rule."""

    async def answer_once_then_end_later(connection):
        await answer_once_then_end(connection)
        slow_clock.append(after_s)

    async with RawServer(answer_once_then_end_later) as server, make(server, backend, retry=NEVER) as client:
        await client.complete("first")
        if is_race:
            await client.complete("second")
        else:
            with pytest.raises(ConnectionLost):
                await client.complete("second")
        assert len(server.heard) == (3 if is_race else 2)


@pytest.mark.parametrize("how", ["close", "reset"])
async def test_row_07_end_within_a_body_of_known_length(backend, how):
    """Nothing of half a body is believed, and the error says how much came."""
    async with RawServer(cut(-3, how=how)) as server, make(server, backend, retry=NEVER) as client:
        with pytest.raises(ConnectionLost, match=r"after \d+ bytes of the body"):
            await client.complete("p", max_tokens=1)


async def test_an_error_status_whose_body_breaks_off_keeps_its_status(backend):
    """Belongs to rows 7 and 8: what the server said before it broke off stands."""
    broken = response(b'{"error"', "404 Not Found", length=1000)
    async with RawServer(says(broken, close=True)) as server, make(server, backend) as client:
        with pytest.raises(Exception, match="404") as caught:
            await client.complete("p")
        assert (type(caught.value).__name__, caught.value.status, caught.value.attempt) == ("NotFound", 404, 1)
        assert len(server.heard) == 1


async def test_an_error_status_whose_body_never_ends_keeps_its_status(backend, monkeypatch):
    with_runners(monkeypatch, body_timeouts=BodyTimeouts(error_s=0.05))

    async def begin_and_hang(connection):
        await connection.request()
        await connection.write(response(b'{"error"', "403 Forbidden", length=1000))
        await connection.gone()

    async with RawServer(begin_and_hang) as server, make(server, backend) as client:
        with pytest.raises(Exception, match="403"):
            await client.complete("p")
        await asyncio.wait_for(server.closed_by_client.wait(), 5)


async def test_row_38_calls_cancelled_while_they_connect(backend):
    """No place in a pool is lost: afterwards as many are in flight as before."""
    made = []
    async with (
        RawServer() as server,
        make(server, backend, limit=8, batching=Batching(max_size=1), made=made.append) as client,
    ):
        for turns in range(60):
            calls = [asyncio.ensure_future(client.complete(f"{n}")) for n in range(8)]
            for _ in range(turns % 20):
                await asyncio.sleep(0)
            for call in calls:
                call.cancel()
            await asyncio.gather(*calls, return_exceptions=True)
        answers_ = await asyncio.gather(*(client.complete(f"{n}") for n in range(100)))
        assert [each.text for each in answers_] == [f"<{n}>" for n in range(100)]
        statistics = client.statistics()
        assert (statistics.in_flight, statistics.endpoints[0].abandoned) == (0, 0)
        assert made[0].under_way == 0


async def test_row_52_redirects(backend):
    """Never followed, so that no key travels; never tried again, whatever a policy says."""
    for status in ("301 Moved", "302 Found", "303 See Other", "307 Temporary Redirect", "308 Permanent Redirect"):
        async with RawServer() as elsewhere:
            moved = response(b"", status, headers=[("location", f"{elsewhere.url}/completions")])
            async with (
                RawServer(says(*[moved] * 20)) as server,
                make(server, backend, api_key="canary-key", retry=Always()) as client,
            ):
                with pytest.raises(DialectError, match=status[:3]) as caught:
                    await client.complete("p")
                assert (caught.value.attempt, caught.value.retryable) == (1, False)
                assert len(server.heard) == 1
            assert not elsewhere.heard


def no_sockets(number, monkeypatch, times):
    """The first ``times`` connections of this loop fail for want of a socket."""
    loop = asyncio.get_running_loop()
    tries = []

    def instead_of(connect):
        async def create(*arguments, **named):
            tries.append(arguments)
            if len(tries) <= times:
                raise OSError(number, "no socket left")
            return await connect(*arguments, **named)

        return create

    monkeypatch.setattr(loop, "sock_connect", instead_of(loop.sock_connect))
    monkeypatch.setattr(loop, "create_connection", instead_of(loop.create_connection))
    return tries


@pytest.mark.parametrize(
    "number",
    [pytest.param(errno.EMFILE, id="row_68_EMFILE"), pytest.param(errno.EADDRNOTAVAIL, id="row_69_EADDRNOTAVAIL")],
)
async def test_rows_68_and_69_no_socket_left(backend, number, monkeypatch):
    """Not the endpoint's fault: it stays in use, the limit is cut, and the call is tried again after a backoff."""
    async with RawServer() as server:
        client = make(server, backend, retry=Backoff(base_s=0.01))
        async with client:
            no_sockets(number, monkeypatch, 2)
            assert (await client.complete("p")).attempts == 3
            statistics = client.statistics()
            assert statistics.endpoints[0].state == "healthy"
            assert [each.new < each.old for each in statistics.adjustments] == [True]
        client = make(server, backend, retry=NEVER)
        async with client:
            no_sockets(number, monkeypatch, 99)
            with pytest.raises(OutOfSockets, match="no socket left") as caught:
                await client.complete("p")
            assert caught.value.retryable


def test_row_68_limit_above_the_descriptors_there_are():
    """It is held at what is free, with something left for others, and the log says once per limit which resource bounds it."""
    with answers_in_a_thread() as url:
        told = with_descriptors(
            64,
            f"""
            import asyncio, logging
            from batchclient import BatchClient, Batching
            logging.basicConfig(format="%(levelname)s %(message)s")

            async def main():
                async with BatchClient({url!r}, model="m", batching=Batching(max_size=1), probe=False) as client:
                    answers = await asyncio.gather(*(client.complete(str(n), max_tokens=1) for n in range(80)))
                    print(client.statistics().endpoints[0].limit)
                    print(sum(answer.attempts for answer in answers))
                for _ in range(2):
                    print(BatchClient("http://a/v1", model="m", limit=1001).statistics().endpoints[0].limit)

            asyncio.run(main())
            """,
        )
    found, attempts, *fixed = map(int, told.stdout.split())
    # Some ten are open from the start.
    assert 30 <= found <= 45
    assert fixed == [found, found]
    assert attempts == 80
    assert told.stderr.count("the bound on open files (`ulimit -n`: 64, ") == told.stderr.count("WARNING") == 2


def with_descriptors(count, program):
    """Run a program that may open so many."""
    limited = f"import resource; resource.setrlimit(resource.RLIMIT_NOFILE, ({count}, {count}))\n" + dedent(program)
    return subprocess.run([sys.executable, "-c", limited], capture_output=True, text=True, check=True, timeout=60)
