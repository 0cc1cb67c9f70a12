"""A key that was given in the place of something else is refused with the rest, and nothing that comes out shows it."""

import logging
import pickle
import traceback

import pytest
from typer.testing import CliRunner

from batchclient import (
    AdaptiveLimit,
    BatchClient,
    BatchClientError,
    Batching,
    ConfigError,
    Http,
    Schedule,
    SyncBatchClient,
)
from batchclient.cli.app import make_app
from batchclient.integrations.httpx import BatchTransport, SyncBatchTransport
from batchclient.openai import AsyncOpenAI, OpenAI

KEY = "sk-canary-4711"
URL = "http://server.test/v1"

REFUSED_URLS = [
    KEY,
    f"#{KEY}",
    f"?api_key={KEY}",
    f"/{KEY}",
    f"//{KEY}/v1",
    f"ftp://{KEY}/",
    f"{KEY}://h/v1",
    f"http:{KEY}",
    f"http:///{KEY}",
    f"http://{KEY}@h/v1",
    f"http://user:{KEY}@h/v1",
    f"http://h:{KEY}/v1",
    f"http://h:99999/{KEY}",
    f"http://[{KEY}]/v1",
    f"http://[{KEY}/v1",
    f"http://h%{KEY}/v1",
    f"http://h_{KEY}!/v1",
    f"http://h\u2100{KEY}/v1",
    f"http://1.2.3.999/{KEY}",
    f"http://h/v1#{KEY}",
    f"http://h/{KEY} /v1",
    f"http://h/v1?k={KEY}#x",
    f"Bearer {KEY}",
]

HEADERS = [
    {f"Bearer {KEY}": "authorization"},
    {f"authorization: Bearer {KEY}": ""},
    {KEY: "a\nb"},
    {"authorization": f"Bearer {KEY}\n"},
    {"x-key": f" {KEY}"},
    {"x-key": f"{KEY}\u00fc"},
    {"x-key": [KEY]},
    {3: KEY},
    [KEY],
    KEY,
    f"authorization: {KEY}",
]


def words_of(error):
    """What a program, a log or a tool shows of an error."""
    words, left = [], [error]
    while left:
        one = left.pop()
        if one is not None:
            words += [str(one), repr(one), repr(one.args), repr(vars(one)), *getattr(one, "__notes__", ())]
            left += [one.__cause__, one.__context__]
    words += [repr(pickle.dumps(error)), *traceback.TracebackException.from_exception(error).format(chain=True)]
    # The source lines of this file say KEY, not what it is.
    return "\n".join(words)


@pytest.fixture
def log(caplog):
    caplog.set_level(logging.DEBUG)
    caplog.set_level(logging.DEBUG, "batchclient")
    return caplog


PLACES = {
    "a client": lambda url: BatchClient(url, model="m"),
    "a client of several servers": lambda url: BatchClient([URL, url], model="m"),
    "a blocking client": lambda url: SyncBatchClient(url, model="m"),
    "a server that joins": lambda url: BatchClient(URL, model="m").add_endpoint(url),
    "a transport": lambda url: BatchTransport(base_url=url),
    "a blocking transport": lambda url: SyncBatchTransport(base_url=url),
    "a drop-in of several servers": lambda url: AsyncOpenAI(base_url=[URL, url], api_key="none"),
    "a blocking drop-in": lambda url: OpenAI(base_url=[URL, url], api_key="none"),
}


@pytest.mark.parametrize("place", PLACES)
def test_a_refused_url_is_not_shown(place, log):
    # Making an openai client takes most of its test's time.
    for url in REFUSED_URLS[:: 6 if "drop-in" in place else 1]:
        with pytest.raises(ConfigError) as caught:
            PLACES[place](url)
        assert "canary" not in words_of(caught.value) + log.text, url
        assert caught.value.field == "base_url"


async def test_a_url_that_is_none_of_the_servers_is_not_shown(log):
    async with BatchClient([URL, "http://second.test/v1"], model="m") as client:
        for url in (*REFUSED_URLS, f"http://other/{KEY}", f"http://other/v1?k={KEY}"):
            with pytest.raises(ConfigError) as caught:
                await client.remove_endpoint(url)
            assert "canary" not in words_of(caught.value) + log.text + repr(client), url


def test_a_server_that_is_given_twice_is_not_shown(log):
    url = f"http://h/v1?k={KEY}"
    with pytest.raises(ConfigError, match="number 1 is there twice, as number 2") as caught:
        BatchClient([url, url], model="m")
    client = BatchClient(url, model="m")
    with pytest.raises(ConfigError, match="servers already") as again:
        client.add_endpoint(url)
    assert "canary" not in words_of(caught.value) + words_of(again.value) + repr(client) + log.text


def test_refused_headers_are_not_shown(log):
    for number, headers in enumerate(HEADERS):
        with pytest.raises(ConfigError) as caught:
            BatchClient(URL, model="m", headers=headers)
        assert "canary" not in words_of(caught.value) + log.text, number
        assert caught.value.field == "headers"


@pytest.mark.parametrize("key", [f"{KEY}\n", f" {KEY}", f"{KEY}\u00fc", KEY.encode(), [KEY]], ids=range(5))
def test_a_refused_key_is_not_shown(key, log):
    with pytest.raises(ConfigError) as caught:
        BatchClient(URL, model="m", api_key=key)
    assert "canary" not in words_of(caught.value) + log.text


def test_the_plain_name_of_a_header_is_shown():
    with pytest.raises(ConfigError, match="the value of the header 'X-Api-Key' is printable ASCII"):
        BatchClient(URL, model="m", headers={"X-Api-Key": "a\nb"})


@pytest.mark.parametrize("setting", ["limit", "http_client", "transport", "http", "schedule", "batching", "retry"])
def test_a_key_in_the_place_of_a_setting_is_not_shown(setting, log):
    with pytest.raises((ConfigError, TypeError)) as caught:
        BatchClient(URL, model="m", **{setting: KEY})
    assert "canary" not in words_of(caught.value) + log.text


@pytest.mark.parametrize(
    ("group", "field"), [(Http, "backend"), (Schedule, "order"), (Batching, "max_size"), (AdaptiveLimit, "start")]
)
def test_a_key_in_the_place_of_a_groups_field_is_not_shown(group, field, log):
    with pytest.raises(ConfigError) as caught:
        group(**{field: KEY})
    assert "canary" not in words_of(caught.value) + log.text


async def test_a_key_that_is_given_with_a_call_is_refused_and_not_sent(log):
    async with BatchClient(URL, model="m") as client:
        for given in ({"api_key": KEY}, {"headers": {"authorization": KEY}}, {"base_url": f"http://{KEY}/"}):
            with pytest.raises(ConfigError, match="to the client") as caught:
                await client.complete("p", **given)
            assert "canary" not in words_of(caught.value) + log.text
        assert client.statistics().submitted == 0


def test_settings_show_neither_what_was_given_nor_what_was_refused():
    from pydantic import ValidationError

    from batchclient.config import Settings

    with pytest.raises(ValidationError) as caught:
        Settings(base_url=f"ftp://{KEY}/", headers={"x": f"{KEY}\n"}, limit=KEY)
    assert "canary" not in str(caught.value) + repr(caught.value)


async def test_a_server_that_is_not_there_is_named_without_its_query(log):
    url = f"http://127.0.0.1:1/v1?api_key={KEY}"
    async with BatchClient(url, model="m", api_key=KEY, headers={"x-key": KEY}) as client:
        with pytest.raises(BatchClientError) as caught:
            await client.complete("p", timeout_s=3.0)
        seen = repr(client.statistics()) + repr(client)
    assert "http://127.0.0.1:1/v1" in log.text, "the log names the server"
    ours = [record.getMessage() for record in log.records if record.name.startswith("batchclient")]
    assert "canary" not in words_of(caught.value) + seen + "\n".join(ours)


def test_the_command_line_shows_no_refused_url(tmp_path):
    rows = tmp_path / "in.jsonl"
    rows.write_text('{"id": "1", "text": "x"}\n')
    for url in REFUSED_URLS[::5]:
        given = ["map", str(rows), "-o", str(tmp_path / "out.jsonl"), "--base-url", url, "--prompt", "{text}"]
        result = CliRunner().invoke(make_app(), given)
        assert result.exit_code == 2
        assert "--base-url" in result.output
        assert "canary" not in result.output, url


def test_transports_and_drop_ins_show_no_query():
    url = f"{URL}?k={KEY}"
    assert "canary" not in repr(BatchTransport(base_url=url)) + repr(AsyncOpenAI(base_url=url, api_key=KEY))
