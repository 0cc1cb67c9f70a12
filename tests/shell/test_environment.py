"""The environment's URL, model and key: who reads them, and to whom the key goes."""

import httpx
import pytest
from tests.shell.scripted import ScriptedTransport, error

from batchclient import AuthenticationFailed, BatchClient, ConfigError, Server, SyncBatchClient
from batchclient.integrations.httpx import BatchTransport
from batchclient.openai import AsyncOpenAI

URL, KEY = "http://mine/v1", "environment-key"
VARIABLES = ("BATCHCLIENT_BASE_URL", "BATCHCLIENT_MODEL", "BATCHCLIENT_API_KEY")


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for variable, value in zip(VARIABLES, (URL, "own", KEY), strict=True):
        monkeypatch.setenv(variable, value)
    return monkeypatch


class Recorder:
    """A ``transport=`` that keeps the headers for each server."""

    def __init__(self, behave=None):
        self.headers = {}
        self.servers = {}
        self.behave = behave

    def __call__(self, base_url, headers):
        self.headers[base_url] = dict(headers)
        server = ScriptedTransport() if self.behave is None else ScriptedTransport(self.behave)
        self.servers[base_url] = server
        return server

    def keys(self):
        return {url: headers.get("authorization") for url, headers in self.headers.items()}


async def models(recorder, *args, **arguments):
    async with BatchClient(*args, http=recorder, **arguments) as client:
        await client.complete("p", max_tokens=1)
    return [sent.body["model"] for server in recorder.servers.values() for sent in server.sent]


async def test_what_is_absent_is_read():
    recorder = Recorder()
    assert await models(recorder) == ["own"]
    assert recorder.keys() == {URL: f"Bearer {KEY}"}


async def test_what_is_given_wins():
    recorder = Recorder()
    assert await models(recorder, "http://given/v1", model="given", api_key="given") == ["given"]
    assert recorder.keys() == {"http://given/v1": "Bearer given"}


async def test_several_servers_stand_with_spaces_between_them(environment):
    environment.setenv("BATCHCLIENT_BASE_URL", " http://a/v1  http://b/v1/ ")
    assert [one.base_url for one in BatchClient().statistics().endpoints] == ["http://a/v1", "http://b/v1"]


@pytest.mark.parametrize("value", ["", "  "])
def test_an_empty_variable_is_none(environment, value):
    environment.setenv("BATCHCLIENT_BASE_URL", value)
    with pytest.raises(ConfigError, match="BATCHCLIENT_BASE_URL") as caught:
        BatchClient()
    assert caught.value.field == "base_url"


@pytest.mark.parametrize("variable", ["BATCHCLIENT_BASE_URL", "BATCHCLIENT_API_KEY"])
def test_a_wrong_value_is_refused_and_not_shown(environment, variable):
    environment.setenv(variable, "sécret/")
    with pytest.raises(ConfigError) as caught:
        BatchClient()
    assert "cret" not in str(caught.value)


async def test_a_header_of_the_users_own_wins_over_the_environments_key():
    recorder = Recorder()
    await models(recorder, headers={"Authorization": "Basic mine"})
    assert recorder.keys() == {URL: "Basic mine"}


async def test_the_key_of_the_users_own_http_client_stays():
    seen = []

    def answer(request):
        seen.append(request.headers.get("authorization"))
        return httpx.Response(401, json={"error": {"message": "no"}})

    async with httpx.AsyncClient(
        transport=httpx.MockTransport(answer), headers={"Authorization": "Bearer own"}
    ) as http_client:
        with pytest.raises(AuthenticationFailed):
            async with BatchClient(http=http_client) as client:
                await client.complete("p")
    assert seen == ["Bearer own"]


def test_the_blocking_client_reads_it_too():
    assert [one.base_url for one in SyncBatchClient().statistics().endpoints] == [URL]


async def test_the_clients_inside_other_objects_never_read_it(mock_llm, monkeypatch):
    made = []
    original = BatchClient.__init__

    def watch(self, *args, **arguments):
        original(self, *args, **arguments)
        made.append(arguments.get("from_environment", True))

    monkeypatch.setattr(BatchClient, "__init__", watch)
    AsyncOpenAI(base_url="http://other/v1", api_key="k")
    BatchTransport()
    mock_llm.client()
    assert made == [False] * 3
    with pytest.raises(ConfigError, match="base_url"):
        BatchClient(from_environment=False)
    with pytest.raises(ConfigError, match="from_environment: True or False"):
        BatchClient(from_environment="no")
    recorder = Recorder(lambda sent: error(401, "who are you"))
    async with BatchClient("http://other/v1", http=recorder, model="given", from_environment=False) as client:
        with pytest.raises(AuthenticationFailed) as caught:
            await client.complete("p")
    assert "BATCHCLIENT" not in str(caught.value)
    assert recorder.keys() == {"http://other/v1": None}


# To whom a key goes -------------------------------------------------------------------------------------------------


async def reached(recorder, client, urls):
    async with client:
        await client.complete("p", max_tokens=1)
        for url in urls:
            client.add_endpoint(url)
    return recorder.keys()


async def test_a_server_of_another_host_that_joins_gets_no_key_of_the_clients():
    recorder = Recorder()
    client = BatchClient(headers={"x-api-key": "header-key", "x-team": "a"}, http=recorder)
    keys = await reached(
        recorder, client, ["http://mine:9000/v1", "http://other/v1", Server("http://third/v1", api_key="third")]
    )
    assert keys == {
        URL: f"Bearer {KEY}",
        "http://mine:9000/v1": f"Bearer {KEY}",
        "http://other/v1": None,
        "http://third/v1": "Bearer third",
    }
    others = {url: headers for url, headers in recorder.headers.items() if "mine" not in url}
    assert not any("x-api-key" in headers for headers in others.values())
    assert all(headers["x-team"] == "a" for headers in recorder.headers.values())


async def test_a_key_for_https_is_not_sent_in_plain_text():
    recorder = Recorder()
    client = BatchClient("https://mine/v1", http=recorder)
    keys = await reached(recorder, client, ["http://mine/v1", "https://mine:9000/v1"])
    assert keys == {"https://mine/v1": f"Bearer {KEY}", "http://mine/v1": None, "https://mine:9000/v1": f"Bearer {KEY}"}


async def test_each_server_may_have_a_key_and_headers_of_its_own():
    recorder = Recorder()
    servers = [
        Server("http://a/v1", api_key="a-key"),
        Server("http://b/v1", headers={"Authorization": "Basic b", "x-team": "b"}),
        "http://c/v1",
    ]
    async with BatchClient(servers, headers={"x-team": "all"}, http=recorder) as client:
        await client.complete("p", max_tokens=1)
    assert recorder.keys() == {"http://a/v1": "Bearer a-key", "http://b/v1": "Basic b", "http://c/v1": f"Bearer {KEY}"}
    assert [headers["x-team"] for headers in recorder.headers.values()] == ["all", "b", "all"]


# A 401 --------------------------------------------------------------------------------------------------------------


NO_KEY = "; no key was given: give api_key=… or set BATCHCLIENT_API_KEY (OPENAI_API_KEY is not read)"


@pytest.mark.parametrize(
    ("arguments", "variable", "status", "said"),
    [
        ({}, None, 401, NO_KEY),
        ({}, None, 403, "403: who are you"),
        ({}, "wrong", 401, "; the key of BATCHCLIENT_API_KEY was refused"),
        ({"api_key": "mine"}, "wrong", 401, "; the api_key that was given was refused"),
        ({"headers": {"authorization": "mine"}}, "wrong", 401, "; the key in the headers that was given was refused"),
        ({"base_url": Server(URL, api_key="mine")}, None, 401, "; the api_key that was given was refused"),
        ({"base_url": [Server(URL, api_key="mine"), "http://other/v1"]}, None, 401, "401: who are you"),
    ],
)  # fmt: skip
async def test_a_401_says_which_key_was_refused_or_that_there_was_none(environment, arguments, variable, status, said):
    environment.delenv("BATCHCLIENT_API_KEY")
    environment.setenv("OPENAI_API_KEY", "never-read")
    if variable is not None:
        environment.setenv("BATCHCLIENT_API_KEY", variable)
    recorder = Recorder(lambda sent: error(status, "who are you"))
    with pytest.raises(AuthenticationFailed) as caught:
        await models(recorder, **arguments)
    assert str(caught.value).endswith(said)
    assert "Bearer never-read" not in recorder.keys().values()


async def test_a_server_that_joins_without_a_key_ends_the_hint(environment):
    environment.delenv("BATCHCLIENT_API_KEY")
    recorder = Recorder(lambda sent: error(401, "who are you"))
    async with BatchClient(URL, model="m", api_key="mine", http=recorder) as client:
        client.add_endpoint("http://other/v1")
        with pytest.raises(AuthenticationFailed, match="who are you$"):
            await client.complete("p")
