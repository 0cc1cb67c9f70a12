"""No prompt, answer, key, header or user part of a URL is in a span; ``transport/test_secrets`` has what servers say back."""

import json
from contextlib import suppress

import pytest
from tests.shell.scripted import Reply, ScriptedTransport, error, make_client
from tests.telemetry.test_spans import QUICK, gathered

from batchclient import BatchClient, BatchClientError, ConnectFailed, ConnectionLost, Server

PROMPT, KEY, HEADER, USER = "canary-prompt", "canary-key", "canary-header", "canary-user"


def words(spans):
    """All that the spans hold, as an exporter writes them."""
    return "\n".join(span.to_json() for span in spans)


BROKEN = [ConnectionLost(PROMPT), ConnectFailed(KEY), error(503, PROMPT, {"retry-after": KEY})]


@pytest.mark.parametrize("script", [[], BROKEN], ids=["answers", "broken"])
async def test_no_canary_in_any_span(script, seen):
    server, url = ScriptedTransport(*script), f"https://host:8443/{USER}/v1?key={KEY}"
    settings = {"retry": QUICK, "api_key": KEY, "headers": {"x-api-key": HEADER, "x-own": HEADER}, "probe": False}
    settings |= {"telemetry": seen.telemetry(), "http": lambda *_: server}
    async with BatchClient(Server(url), model="m", **settings) as client:
        tools = [{"type": "function", "function": {"name": "canary_tool", "parameters": {}}}]
        params = {"max_tokens": 5, "stop": ["canary-stop"], "user": USER, "logit_bias": {"1": 1}}
        await gathered(client, PROMPT, f"{PROMPT} 2", **params, tenant="canary-tenant")
        await gathered(client, PROMPT, max_tokens=100)
        with suppress(BatchClientError):
            await client.chat([{"role": "user", "content": PROMPT}], tools=tools, max_tokens=5)
        with suppress(BatchClientError):
            async with client.stream(PROMPT, max_tokens=5) as pieces:
                async for _ in pieces:
                    pass
    assert len(seen.calls) == 5
    assert {(call.attributes["server.address"], call.attributes["server.port"]) for call in seen.calls} == {
        ("host", 8443)
    }
    assert "canary" not in words(seen.all)


@pytest.mark.parametrize(
    "name", [{"canary": 1}, ["canary"], "canary " * 100, 7, None], ids=["object", "list", "text", "number", "none"]
)
async def test_what_a_server_writes_in_place_of_names(name, seen):
    """A reply's id, its model and the reasons of its ends are short texts, or they are left out."""

    def answer(sent):
        choice = {"index": 0, "text": "x", "finish_reason": name if isinstance(name, str) else "stop"}
        return Reply(chunks=[json.dumps({"id": name, "model": name, "choices": [choice], "usage": None}).encode()])

    async with make_client(ScriptedTransport(answer), telemetry=seen.telemetry(), dialect="openai") as client:
        [outcome] = await gathered(client, "p", max_tokens=1)
    assert outcome.text == "x"
    assert "canary" not in words(seen.all)
    assert not {"gen_ai.response.id", "gen_ai.response.model"} & set(seen.call.attributes)
