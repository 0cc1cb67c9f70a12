"""Proxies of the environment are read as httpx2 2.16 reads them, whatever the backend. The expectations are literal."""

import base64
import os
import traceback

import pytest

from batchclient import Backoff, BatchClient, BatchClientError, ConfigError, ConnectFailed, Http
from batchclient.transport._proxies import proxy_for
from tests.fakes.raw import RawServer, body_of, response

PROXY = "http://proxy:3128"
SECRET = "canary-proxy-66b1"


@pytest.fixture
def environment(monkeypatch):
    for name in list(os.environ):
        if name.lower().endswith("_proxy"):
            monkeypatch.delenv(name)
    return lambda **given: [monkeypatch.setenv(name, value) for name, value in given.items()]


NO_PROXY = [
    # (NO_PROXY, servers reached directly, servers reached through the proxy)
    ("", "", "http://a http://10.1.2.3"),
    ("*", "http://a https://b:8000 http://[::1]", ""),
    ("a,*", "http://a http://b", ""),
    ("a, *", "http://a http://b", ""),
    ("a", "http://a http://a:8000 https://a http://x.a http://A", "http://ba http://b"),
    (".a", "http://x.a http://x.y.a", "http://a http://ba"),
    ("*.a", "http://x.a http://x.y.a", "http://a http://ba"),
    ("A.Test", "http://a.test http://x.a.TEST", "http://b.test"),
    ("b, a ,c", "http://a http://b http://c", "http://d"),
    ("a:8000", "http://a:8000 https://a:8000 http://x.a:8000", "http://a http://a:8001 http://b:8000"),
    ("a:80", "https://a:80", "http://a http://a:80"),
    (":8000", "http://a:8000 https://b:8000", "http://a http://a:8001"),
    ("localhost", "http://localhost:8000", "http://x.localhost http://127.0.0.1"),
    ("localhost:8000", "http://localhost:8000", "http://localhost http://localhost:9000"),
    ("127.0.0.1", "http://127.0.0.1 http://127.0.0.1:8000", "http://127.0.0.2 http://localhost"),
    ("127.0.0.1:8000", "http://127.0.0.1:8000", "http://127.0.0.1:9000 http://127.0.0.1"),
    ("10.0.0.0/8", "http://10.1.2.3 http://10.255.0.1:8000", "http://11.0.0.1 http://ten"),
    ("10.9.9.9/8", "http://10.1.2.3", "http://11.0.0.1"),
    ("10.0.0.0/8,192.168.0.0/16", "http://10.1.2.3 http://192.168.7.7", "http://172.16.0.1"),
    ("10.0.0.0/33", "", "http://10.0.0.0"),
    ("10.0.0.0/255.0.0.0", "", "http://10.0.0.1"),
    ("::1", "http://[::1] http://[::1]:8000", "http://[::2] http://127.0.0.1"),
    ("[::1]", "http://[::1] http://[::1]:8000", "http://[::2]"),
    ("[::1]:8000", "http://[::1]:8000", "http://[::1] http://[::1]:9000"),
    ("fd00::/8", "http://[fd00::1]:8000 http://[fdff::1]", "http://[fe80::1] http://10.0.0.1"),
    ("0.0.0.0/0", "http://10.1.2.3", "http://a http://[::1]"),
    ("http://a", "http://a http://a:8000", "https://a http://x.a"),
    ("http://a:8000", "http://a:8000", "http://a https://a:8000"),
    ("http://", "http://a", "https://a"),
    ("a/b", "", "http://a"),
    ("a b,c", "http://c", "http://a http://b"),
    ("[::1,c", "http://c", "http://[::1]"),
]


@pytest.mark.parametrize("name", ["NO_PROXY", "no_proxy"])
@pytest.mark.parametrize(("no_proxy", "directly", "through"), NO_PROXY)
def test_which_servers_are_reached_directly(no_proxy, directly, through, name, environment):
    environment(**{"HTTP_PROXY": PROXY, "HTTPS_PROXY": PROXY, name: no_proxy})
    for backend in ("httpx", "httpx2"):
        assert {url: proxy_for(url, backend) for url in directly.split()} == dict.fromkeys(directly.split())
        for url in through.split():
            assert str(proxy_for(url, backend).url) == PROXY, url


@pytest.mark.parametrize(
    ("given", "http", "https"),
    [
        ({"HTTP_PROXY": PROXY}, PROXY, None),
        ({"HTTPS_PROXY": PROXY}, None, PROXY),
        ({"ALL_PROXY": PROXY}, PROXY, PROXY),
        ({"all_proxy": PROXY}, PROXY, PROXY),
        ({"HTTP_PROXY": "localhost:3128"}, "http://localhost:3128", None),
        ({"https_proxy": "localhost:3128"}, None, "http://localhost:3128"),
        ({"ALL_PROXY": "10.0.0.1:3128"}, "http://10.0.0.1:3128", "http://10.0.0.1:3128"),
        ({"HTTP_PROXY": "http://upper:1", "http_proxy": "http://lower:1"}, "http://lower:1", None),
        ({"HTTP_PROXY": "http://upper:1", "http_proxy": ""}, None, None),
        ({"HTTP_PROXY": "http://own:1", "ALL_PROXY": "http://all:1"}, "http://own:1", "http://all:1"),
        ({"HTTP_PROXY": "http://own:1", "ALL_PROXY": "http://all:1", "NO_PROXY": "http://"}, None, "http://all:1"),
        ({"HTTP_PROXY": "https://secure:1"}, "https://secure:1", None),
        ({"FTP_PROXY": PROXY}, None, None),
    ],
)
def test_which_variable_names_the_proxy(given, http, https, environment):
    environment(**given)
    found = [proxy_for(url, "httpx") for url in ("http://server:8000/v1", "https://server:8000/v1")]
    assert [proxy and str(proxy.url) for proxy in found] == [http, https]


async def as_proxy(heard, reader, writer, server):
    writer.write(response(body_of(heard)))


@pytest.mark.parametrize(
    ("no_proxy", "proxied"),
    [("", True), ("other,*", False), ("127.0.0.0/8", False), ("127.0.0.1:{port}", False), ("127.0.0.1:1", True)],
)
async def test_every_backend_obeys(no_proxy, proxied, backend, environment):
    async with RawServer(on_request=as_proxy) as proxy, RawServer() as server:
        environment(http_proxy=f"127.0.0.1:{proxy.port}", no_proxy=no_proxy.format(port=server.port))
        async with BatchClient(
            server.url, model="m", http=Http(backend=backend, trust_env=True), probe=False
        ) as client:
            await client.complete("p")
        assert (len(proxy.heard), len(server.heard)) == ((1, 0) if proxied else (0, 1))


async def test_the_proxys_password_is_sent_to_the_proxy_and_nobody_is_shown_it(backend, environment, caplog):
    caplog.set_level(1)
    credentials = base64.b64encode(f"user:{SECRET}".encode()).decode()

    async def refuse(heard, reader, writer, server):
        echo = " ".join(value for _, value in heard.headers)
        writer.write(response(f"{echo} {SECRET}".encode(), f"407 {echo}"))

    async with RawServer(on_request=refuse) as proxy:
        environment(all_proxy=f"http://user:{SECRET}@127.0.0.1:{proxy.port}")
        for url in ("http://server.test/v1?k=canary-query", "https://server.test/v1?k=canary-query"):
            async with BatchClient(
                url, model="m", http=Http(backend=backend, trust_env=True), probe=False,
                retry=Backoff(max_attempts=1),
            ) as client:  # fmt: skip
                with pytest.raises(BatchClientError) as caught:
                    await client.complete("p")
                shown = repr(client) + "".join(traceback.format_exception(caught.value, chain=True))
                cause = caught.value
                while cause is not None:
                    shown += f"{cause!r} {vars(cause)!r}"
                    cause = cause.__cause__ or cause.__context__
                assert "407" in shown
                assert not [secret for secret in ("canary", SECRET, credentials) if secret in shown], url
        said = {heard.header("proxy-authorization") for heard in proxy.heard}
    assert said == {f"Basic {credentials}"}
    logged = "\n".join(one.getMessage() for one in caplog.records if one.name.startswith("batchclient"))
    assert not [secret for secret in ("canary", credentials) if secret in logged]


async def test_a_proxy_that_wants_a_password_is_asked_once(backend, environment):
    async def refuse(heard, reader, writer, server):
        writer.write(response(b"who are you?", "407 Proxy Authentication Required"))

    async with RawServer(on_request=refuse) as proxy:
        environment(all_proxy=f"http://127.0.0.1:{proxy.port}")
        http = Http(backend=backend, trust_env=True)
        async with BatchClient("https://server.test/v1", model="m", http=http, probe=False) as client:
            with pytest.raises(ConnectFailed, match="the proxy answered 407"):
                await client.complete("p")
        assert len(proxy.heard) == 1


async def test_the_password_of_a_later_servers_proxy_is_cut_out_too(environment):
    async def say_it_back(heard, reader, writer, server):
        writer.write(response(SECRET.encode(), "400 no"))

    async with RawServer(on_request=say_it_back) as proxy:
        environment(http_proxy=f"http://user:{SECRET}@127.0.0.1:{proxy.port}", no_proxy="direct.test")
        async with BatchClient("http://direct.test/v1", model="m", http=Http(trust_env=True), probe=False) as client:
            client.add_endpoint("http://server.test/v1")
            await client.remove_endpoint("http://direct.test/v1")
            with pytest.raises(BatchClientError, match=r"\[key\]") as caught:
                await client.complete("p")
    assert SECRET not in str(caught.value)


def test_a_server_whose_proxy_cannot_be_used_is_not_added(environment):
    client = BatchClient("https://direct.test/v1", model="m", http=Http(trust_env=True))
    environment(http_proxy=f"ftp://{SECRET}/")
    with pytest.raises(ConfigError, match="HTTP_PROXY"):
        client.add_endpoint("http://server.test/v1")
    assert "server.test" not in repr(client)


@pytest.mark.parametrize(
    "given",
    [f"ftp://{SECRET}/", f"http://h:{SECRET}", f"http://u:{SECRET}@h:x", f"#{SECRET}", "http://"],
)
def test_a_proxy_that_cannot_be_used_is_refused_with_the_client_and_not_shown(given, backend, environment):
    environment(http_proxy=given)
    with pytest.raises(ConfigError, match="HTTP_PROXY") as caught:
        BatchClient("http://server.test/v1", http=Http(backend=backend, trust_env=True))
    assert caught.value.field == "trust_env"
    assert SECRET not in str(caught.value)
    assert (caught.value.__cause__, caught.value.__context__) == (None, None)
    # Nobody else is concerned.
    BatchClient("http://server.test/v1", http=Http(backend=backend))
    BatchClient("https://server.test/v1", http=Http(backend=backend, trust_env=True))


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "SSL_CERT_DIR"])
async def test_certificates_that_are_not_there_are_named(variable, backend, monkeypatch, tmp_path):
    (tmp_path / "no.pem").write_text("no certificate")
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    for path in (tmp_path / "nowhere", tmp_path / "no.pem"):
        monkeypatch.setenv(variable, str(path))
        http = Http(backend=backend, trust_env=True)
        async with BatchClient("https://127.0.0.1:9/v1", model="m", http=http, probe=False) as client:
            with pytest.raises(ConfigError, match=f"{variable} of the environment leads to no certificates"):
                await client.complete("p")
