"""No prompt, answer, key, header or user part of a URL is in anything that an exporter gets, whatever goes wrong."""

import json

import pytest
from tests.shell.scripted import Reply, ScriptedTransport, echo, error, make_client
from tests.shell.test_canary import echoes
from tests.telemetry.test_spans import QUICK, gathered

from batchclient import BatchClient, ConnectFailed, ConnectionLost, Server

PROMPT, KEY, HEADER, USER = "canary-prompt", "canary-key", "canary-header", "canary-user"
# Hexadecimal digits would be in the spans' ids by chance.
CANARIES = ("canary", "9z2q")


def words(spans):
    """All that the spans hold, as an exporter writes them."""
    return "\n".join(span.to_json() for span in spans)


def steps():
    bodies = echoes(f"{PROMPT} {KEY} {HEADER} 9z2q")
    steps = {name: [reply] * 12 for name, reply in bodies.items()}
    steps["answers"] = [echo]
    steps["broken"] = [ConnectionLost(PROMPT), ConnectFailed(KEY), error(503, PROMPT, {"retry-after": KEY})]
    return steps


@pytest.mark.parametrize("step", steps())
async def test_no_canary_in_any_span(step, seen):
    server = ScriptedTransport(*steps()[step])
    async with make_client(
        server, telemetry=seen.telemetry(), retry=QUICK, api_key=KEY, headers={"x-api-key": HEADER, "x-own": HEADER}
    ) as client:
        tools = [{"type": "function", "function": {"name": "canary_tool", "parameters": {}}}]
        params = {"max_tokens": 5, "stop": ["canary-stop"], "user": "canary-user", "logit_bias": {"1": 1}}
        await gathered(client, PROMPT, f"{PROMPT} 2", **params, tenant="canary-tenant")
        await gathered(client, PROMPT, max_tokens=100)
        try:
            await client.chat([{"role": "user", "content": PROMPT}], tools=tools, max_tokens=5)
            async with client.stream(PROMPT, max_tokens=5) as pieces:
                async for _ in pieces:
                    pass
        except Exception:
            pass
    assert len(seen.calls) >= 4
    assert not [canary for canary in CANARIES if canary in words(seen.all)], words(seen.all)


async def test_no_query_and_no_path_of_a_url(seen):
    server = ScriptedTransport()
    url = f"https://host:8443/{USER}/v1?key={KEY}"
    async with BatchClient(Server(url), model="m", transport=lambda *_: server, telemetry=seen.telemetry()) as client:
        await client.complete("p", max_tokens=5)
    assert seen.call.attributes["server.address"] == "host"
    assert seen.call.attributes["server.port"] == 8443
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
