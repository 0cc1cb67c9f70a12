"""HTTP/1.1 as servers and gateways write it: which replies are read, and which break the connection, by each way."""

import asyncio
import contextlib
import gc
import gzip
import json
import socket
import subprocess
import sys
import zlib

import pytest

from batchclient import Backoff, BatchClient, CertificateRefused, ConfigError, ConnectionLost, Http, ReadTimedOut
from batchclient.transport import Timeouts, WireRequest
from batchclient.transport.http import HttpTransport
from tests.fakes.raw import RawServer, certificate, hang, needs_openssl, response, says
from tests.seams import connected

BODY = json.dumps({"choices": [{"index": 0, "text": " ok", "finish_reason": "stop"}]}).encode()
LENGTH = b"content-length: %d\r\n" % len(BODY)
CHUNKED = b"transfer-encoding: chunked\r\n"
END = b"0\r\n\r\n"


def head(*fields, line=b"HTTP/1.1 200 OK"):
    return (
        b"\r\n".join([line, b"content-type: application/json", *[field.removesuffix(b"\r\n") for field in fields]])
        + b"\r\n\r\n"
    )


def chunk(extension=b"", size=b"%x" % len(BODY)):
    return size + extension + b"\r\n" + BODY + b"\r\n"


READ = {
    "a length": [head(LENGTH) + BODY],
    "chunks": [head(CHUNKED) + chunk() + END],
    "a chunk with extensions": [head(CHUNKED) + chunk(b';a=1;b="x;y"') + b"0;z\r\n\r\n"],
    "a chunk's size with leading zeros, in capitals": [
        head(CHUNKED) + chunk(size=b"000%X" % len(BODY)) + b"000\r\n\r\n"
    ],
    "blanks behind a chunk's size": [head(CHUNKED) + chunk(b"  ") + END],
    "fields behind the body": [
        head(CHUNKED, b"trailer: x-sum") + chunk() + b"0\r\nx-sum: 1\r\nserver-timing: a\r\n\r\n"
    ],
    "blanks behind a word": [head(b"transfer-encoding: chunked ") + chunk() + END],
    "a head of 90 KB in two reads": [
        head(LENGTH, *[b"x-%d: " % n + b"a" * 900 for n in range(100)])[:60_000],
        head(LENGTH, *[b"x-%d: " % n + b"a" * 900 for n in range(100)])[60_000:] + BODY,
    ],
    "Chunked with a capital": [head(b"Transfer-Encoding: Chunked") + chunk() + END],
    "a 100 first": [b"HTTP/1.1 100 Continue\r\n\r\n" + head(LENGTH) + BODY],
    "102 thrice, and a 103 in a read of its own": [
        b"HTTP/1.1 102 Processing\r\n\r\n" * 3 + b"HTTP/1.1 103 Early Hints\r\nlink: </a>; rel=preload\r\n\r\n",
        head(LENGTH) + BODY,
    ],
    "a 103 and chunks in one read": [b"HTTP/1.1 103 Early Hints\r\nlink: </a>\r\n\r\n" + head(CHUNKED) + chunk() + END],
    "connection: close": [head(LENGTH, b"connection: close") + BODY],
    "connection: keep-alive, Close": [head(LENGTH, b"connection: keep-alive, Close") + BODY],
    "HTTP/1.0": [head(LENGTH, line=b"HTTP/1.0 200 OK") + BODY],
    "HTTP/1.0 until the connection closes": [head(line=b"HTTP/1.0 200 OK") + BODY, None],
    "HTTP/1.1 until the connection closes": [head() + BODY, None],
    "HTTP/1.2": [head(LENGTH, line=b"HTTP/1.2 200 OK") + BODY],
    "no reason phrase": [head(LENGTH, line=b"HTTP/1.1 200") + BODY],
    "an empty reason phrase": [head(LENGTH, line=b"HTTP/1.1 200 ") + BODY],
    "line ends without a carriage return": [head(LENGTH).replace(b"\r\n", b"\n") + BODY],
    "a folded field": [head(LENGTH, b"x-a: 1\r\n  2") + BODY],
    "a field in Latin-1": [head(LENGTH, "x-a: Zürich".encode("latin-1")) + BODY],
    "a field in UTF-8": [head(LENGTH, "x-a: Zürich 東京".encode()) + BODY],
    "an empty field": [head(LENGTH, b"x-a:") + BODY],
    "a name with an underscore and dots": [head(LENGTH, b"x_a.b: 1") + BODY],
    "a control character in a field": [head(LENGTH, b"x-a: a\tb\x01c") + BODY],
    "a head byte by byte": [*[bytes([byte]) for byte in head(LENGTH)], BODY],
    "a field of 60 KB": [head(LENGTH, b"x-a: " + b"a" * 60_000) + BODY],
    "300 fields": [head(LENGTH, *[b"x-%d: a" % number for number in range(300)]) + BODY],
    "status 299": [head(LENGTH, line=b"HTTP/1.1 299 Odd") + BODY],
}
BROKEN = {
    "a last chunk without its blank line": [head(CHUNKED) + chunk() + b"0\r\n", None],
    "chunks without the last": [head(CHUNKED) + chunk(), None],
    "a length that is too large": [head(b"content-length: %d" % (len(BODY) + 5)) + BODY, None],
    "two lengths": [head(LENGTH, b"content-length: 5") + BODY],
    "a length of +1": [head(b"content-length: +%d" % len(BODY)) + BODY],
    "a name with brackets": [head(LENGTH, b"x[a]: 1") + BODY],
    "a blank before the colon": [head(LENGTH, b"x-a : 1") + BODY],
    "fields of 200 KB": [head(LENGTH, *[b"x-%d: " % number + b"a" * 1000 for number in range(200)]) + BODY],
    "one field of 200 KB": [head(LENGTH, b"x-a: " + b"a" * 200_000) + BODY],
    "a 101": [b"HTTP/1.1 101 Switching Protocols\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n"],
    "status 99": [head(LENGTH, line=b"HTTP/1.1 99 Odd") + BODY],
    "ICY": [head(LENGTH, line=b"ICY 200 OK") + BODY],
    "no HTTP": [b"SSH-2.0-OpenSSH_9.2\r\n", None],
    "a coding that was not asked for": [head(b"transfer-encoding: gzip, chunked") + chunk() + END],
}
ONLY_DIRECT_BREAKS = {
    "a length beside chunks": [head(CHUNKED, LENGTH) + chunk() + END],
    "the same length twice": [head(LENGTH, LENGTH) + BODY],
}


def saying(pieces):
    async def on_request(heard, reader, writer, server):
        for piece in pieces:
            if piece is None:
                writer.close()
                return True
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)

    return RawServer(on_request=on_request)


def client_of(server, backend):
    retry = Backoff(max_attempts=1)
    return connected(server.url, backend=backend, model="m", dialect="openai", retry=retry, probe=False)


@pytest.mark.parametrize("case", READ)
async def test_it_is_read(backend, case):
    async with saying(READ[case]) as server, client_of(server, backend) as client:
        for number in range(2):
            assert (await client.complete(f"{number}", max_tokens=1)).text == " ok"


@pytest.mark.parametrize("case", BROKEN)
async def test_it_breaks_the_connection_and_nobody_gets_its_bytes(backend, case):
    async with saying(BROKEN[case]) as server, client_of(server, backend) as client:
        with pytest.raises(ConnectionLost) as caught:
            await client.complete("p", max_tokens=1)
        assert '" ok' not in str(caught.value)


@pytest.mark.parametrize("case", ONLY_DIRECT_BREAKS)
async def test_what_could_shift_a_replys_end_breaks_the_direct_way(case):
    async with saying(ONLY_DIRECT_BREAKS[case]) as server, client_of(server, None) as client:
        with pytest.raises(ConnectionLost, match="no HTTP"):
            await client.complete("p", max_tokens=1)


# Compression that was not asked for -----------------------------------------------------------------------------------


def raw_deflate(data):
    deflater = zlib.compressobj(wbits=-15)
    return deflater.compress(data) + deflater.flush()


ENCODED = {
    "gzip": ("gzip", gzip.compress(BODY)),
    "gzip of two members": ("gzip", gzip.compress(BODY[:20]) + gzip.compress(BODY[20:])),
    "gzip with zeros behind it": ("x-gzip", gzip.compress(BODY) + b"\0" * 9),
    "deflate": ("deflate", zlib.compress(BODY)),
    "deflate without zlib's header": ("deflate", raw_deflate(BODY)),
    "gzip twice": ("gzip, GZIP", gzip.compress(gzip.compress(BODY))),
    "a word that is no coding": ("utf-8", BODY),
}


@pytest.mark.parametrize("case", ENCODED)
@pytest.mark.parametrize("size", [1, 7, 10_000])
async def test_an_encoded_body_is_read_whatever_its_pieces(case, size):
    encoding, data = ENCODED[case]
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces)
    async with saying([head(CHUNKED, b"content-encoding: " + encoding.encode()) + chunks + END]) as server:
        async with client_of(server, None) as client:
            assert (await client.complete("p", max_tokens=1)).text == " ok"


CUT_OFF = {
    "gzip": ("gzip", gzip.compress(BODY)[:-9]),
    "gzip after a byte": ("gzip", b"\x1f"),
    "deflate": ("deflate", zlib.compress(BODY)[:-6]),
}


@pytest.mark.parametrize("case", CUT_OFF)
async def test_an_encoded_body_that_is_cut_off_is_no_answer(case):
    encoding, data = CUT_OFF[case]
    reply = response(data, headers=[("content-encoding", encoding)])
    async with saying([reply]) as server, client_of(server, None) as client:
        with pytest.raises(ConnectionLost, match="cut off within its compression"):
            await client.complete("p", max_tokens=1)


# What is sent ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers", [(("x-a", "1\r\nx-b: 2"),), (("x-a\r\nx-b", "1"),), (("x-a", "1\n"),), (("content-length", "5"),)]
)
async def test_a_line_break_in_a_requests_own_header_never_leaves(headers, backend):
    async with RawServer() as server:
        transport = HttpTransport(server.url, {}, max_response_bytes=1000, backend=backend)
        with pytest.raises(ConfigError) as caught:
            await transport.send(WireRequest("POST", "/x", body=b"{}", headers=headers), Timeouts())
        assert caught.value.field == "headers"
        await transport.aclose()
    assert not server.heard


async def test_each_request_names_the_client_unless_the_user_does(backend):
    async with RawServer() as server:
        for headers, told in (({}, "batchclient/0.1.0"), ({"User-Agent": "mine"}, "mine")):
            client = connected(server.url, backend=backend, model="m", headers=headers, probe=False)
            async with client:
                await client.complete("p")
            assert server.heard[-1].header("user-agent") == told


@pytest.mark.skipif(not hasattr(socket, "TCP_KEEPIDLE"), reason="the platform has no such option")
async def test_idle_connections_are_probed_from_a_minute_on(backend, monkeypatch):
    """Load balancers forget connections that are silent for four minutes, as during a long plain answer."""
    seen = []
    own = socket.socket.setsockopt

    def watch(self, *option):
        seen.append(option)
        return own(self, *option)

    monkeypatch.setattr(socket.socket, "setsockopt", watch)
    async with RawServer() as server, client_of(server, backend) as client:
        await client.complete("p", max_tokens=1)
    tcp = socket.IPPROTO_TCP
    for option in [
        (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1), (tcp, socket.TCP_KEEPIDLE, 60), (tcp, socket.TCP_KEEPINTVL, 20), (tcp, socket.TCP_KEEPCNT, 3),
    ]:  # fmt: skip
        assert option in seen


# Other protocols ------------------------------------------------------------------------------------------------------


@needs_openssl
async def test_http_to_a_server_that_speaks_tls_says_so(tmp_path):
    _, tls = certificate(tmp_path)
    async with RawServer(tls=tls) as server:
        server.quiet()
        url = server.url.replace("https:", "http:")
        async with BatchClient(url, model="m", retry=Backoff(max_attempts=1), probe=False) as client:
            with pytest.raises(ConnectionLost, match="does it speak https://"):
                await client.complete("p")


async def test_a_tls_alert_is_said_to_be_one():
    async with saying([b"\x15\x03\x01\x00\x02\x02\x46", None]) as server, client_of(server, None) as client:
        with pytest.raises(ConnectionLost, match="answers in TLS; does it speak https://"):
            await client.complete("p", max_tokens=1)


def is_listening(port):
    with socket.socket() as tried:
        return tried.connect_ex(("127.0.0.1", port)) == 0


@needs_openssl
@pytest.mark.parametrize("version", ["-tls1_2", "-tls1_3"])
async def test_a_server_that_wants_a_clients_certificate_is_asked_once_and_named(
    backend, version, tmp_path, monkeypatch
):
    certificate(tmp_path, name="DNS:localhost")
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "certificate.pem"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    files = ["-cert", str(tmp_path / "certificate.pem"), "-key", str(tmp_path / "key.pem")]
    command = ["openssl", "s_server", "-accept", f"127.0.0.1:{port}", *files, "-Verify", "1", "-www", version]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            while not is_listening(port):
                await asyncio.sleep(0.01)
            url, http = f"https://localhost:{port}/v1", Http(trust_env=True, backend=backend)
            async with BatchClient(url, model="m", http=http, probe=False) as client:
                with pytest.raises(CertificateRefused, match="it wants a client's certificate") as caught:
                    await client.complete("p")
            assert caught.value.attempt == 1
        finally:
            server.kill()


# Addresses ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("port", [0, 65_536, "x"])
def test_a_port_that_is_none_is_refused(port):
    with pytest.raises(ConfigError, match="no port between 1 and 65535"):
        BatchClient(f"http://127.0.0.1:{port}/v1")


async def test_the_zone_of_an_address_reaches_the_resolver_and_not_the_server(monkeypatch):
    asked = []
    loop = asyncio.get_running_loop()
    async with RawServer() as server:

        async def connect(make, host, port, **named):
            asked.append((host, port))
            return await type(loop).create_connection(loop, make, "127.0.0.1", server.port)

        monkeypatch.setattr(loop, "create_connection", connect)
        client = BatchClient("http://[fe80::1%25eth0]:8000/v1", model="m", probe=False)
        async with client:
            assert (await client.complete("p")).text == "<p>"
    assert asked == [("fe80::1%eth0", 8000)]
    assert server.heard[0].header("host") == "[fe80::1]:8000"


# One connection after another ------------------------------------------------------------------------------------------

BOUNDS = Timeouts(5.0, 5.0, 5.0)


async def body_of_reply(transport, bounds=BOUNDS, body=b"{}"):
    reply = await transport.send(WireRequest("POST", "/x", body=body), bounds)
    try:
        return b"".join([chunk async for chunk in reply.chunks()])
    finally:
        await reply.aclose()


async def test_a_connection_whose_body_was_not_read_is_not_used_again():
    """Its reading was stopped, so that the next reply would never be seen."""
    async with saying([head(b"content-length: 100000") + b"x" * 100_000]) as server:
        transport = HttpTransport(server.url, {}, max_response_bytes=1_000_000)
        left = await transport.send(WireRequest("POST", "/x", body=b"{}"), BOUNDS)
        for _ in range(20):
            await asyncio.sleep(0)
        await left.aclose()
        assert len(await body_of_reply(transport)) == 100_000
        assert server.connections == 2
        await transport.aclose()


def test_silence_is_bounded_in_each_event_loop_that_a_transport_meets():
    async def ask(transport, listener, *scripts):
        async with RawServer(*scripts, listener=listener):
            await body_of_reply(transport, Timeouts(5.0, 0.2, 5.0), b'{"prompt": "p"}')

    listener = socket.create_server(("127.0.0.1", 0))
    place = listener.getsockname()
    transport = HttpTransport(f"http://127.0.0.1:{place[1]}", {}, max_response_bytes=1000)
    asyncio.run(ask(transport, listener))
    with pytest.raises(ReadTimedOut):
        asyncio.run(asyncio.wait_for(ask(transport, socket.create_server(place), hang()), 10))


async def test_a_connection_that_failed_keeps_no_request_alive():
    async with RawServer(then=says(b"SSH-2.0-OpenSSH_9.6\r\n\r\n", close=True)) as server:
        transport = HttpTransport(server.url, {}, max_response_bytes=1000)
        body = b"{%d}" % server.port
        before = sys.getrefcount(body)
        gc.disable()
        try:
            with contextlib.suppress(ConnectionLost):
                await body_of_reply(transport, body=body)
            for _ in range(5):
                await asyncio.sleep(0)
            assert sys.getrefcount(body) == before
        finally:
            gc.enable()
        await transport.aclose()


async def test_nothing_is_sent_again_once_the_transport_is_closed():
    async with RawServer(then=hang()) as server:
        transport = HttpTransport(server.url, {}, max_response_bytes=1000)
        sending = asyncio.ensure_future(body_of_reply(transport))
        await server.arrived(1)
        await transport.aclose()
        with pytest.raises(ConnectionLost, match="the client was closed"):
            await sending
        assert (len(server.heard), server.connections) == (1, 1)


@needs_openssl
async def test_through_tls_a_server_that_takes_no_bytes_is_not_waited_for(tmp_path, monkeypatch):
    file, tls = certificate(tmp_path)
    monkeypatch.setenv("SSL_CERT_FILE", file)

    async def take_nothing(connection):
        connection.writer.transport.pause_reading()
        await asyncio.sleep(60)

    async with RawServer(then=take_nothing, tls=tls) as server:
        server.quiet()
        transport = HttpTransport(server.url, {}, max_response_bytes=1000, trust_env=True)
        with pytest.raises(ConnectionLost, match="took no bytes"):
            await body_of_reply(transport, Timeouts(5.0, None, 0.3), b"x" * 20_000_000)
        await transport.aclose()
