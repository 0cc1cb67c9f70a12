"""``telemetry=``, ``BATCHCLIENT_OTEL`` and who takes them; a client without telemetry loads nothing of OpenTelemetry."""

import asyncio
import json
import os
import subprocess
import sys
import textwrap

import httpx
import pytest
from tests.shell.scripted import ScriptedTransport, make_client

from batchclient import BatchClient, ConfigError, SyncBatchClient, Telemetry
from batchclient._telemetry import conventions as name
from batchclient.integrations.httpx import BatchTransport
from batchclient.openai import AsyncOpenAI, OpenAI

URL = "http://scripted/v1"


def test_a_provider_that_is_none_is_named():
    with pytest.raises(ConfigError, match="a TracerProvider of OpenTelemetry, not a object"):
        Telemetry(tracer_provider=object())


def test_a_running_client_keeps_its_telemetry(seen):
    with pytest.raises(ConfigError, match="cannot be changed while running"):
        BatchClient(URL, model="m").retune(telemetry=seen.telemetry())


# The environment ------------------------------------------------------------------------------------------------------


@pytest.fixture
def globally(seen, monkeypatch):
    """The provider of the process is the test's."""
    from opentelemetry import trace

    monkeypatch.setattr(trace, "get_tracer_provider", lambda: seen.provider)
    return seen


@pytest.mark.parametrize(("value", "spans"), [("1", 2), (" 1 ", 2), ("0", 0), ("", 0), (None, 0)])
@pytest.mark.parametrize("reads", [True, False])
@pytest.mark.parametrize("made", [BatchClient, SyncBatchClient])
def test_the_environment_switches_spans_on_but_for_clients_inside_other_objects(
    made, reads, value, spans, globally, monkeypatch
):
    if value is None:
        monkeypatch.delenv("BATCHCLIENT_OTEL", raising=False)
    else:
        monkeypatch.setenv("BATCHCLIENT_OTEL", value)
    server = ScriptedTransport()
    client = made(URL, model="m", http=lambda *_: server, from_environment=reads)

    async def main():
        async with client:
            await client.complete("p", max_tokens=5)

    if made is SyncBatchClient:
        with client:
            client.complete("p", max_tokens=5)
    else:
        asyncio.run(main())
    assert len(globally.all) == (spans if reads else 0)


async def test_an_argument_wins_over_the_environment(globally, monkeypatch):
    monkeypatch.setenv("BATCHCLIENT_OTEL", "1")
    async with make_client(ScriptedTransport(), telemetry=globally.telemetry(client_name="mine")) as client:
        await client.complete("p", max_tokens=5)
    assert globally.call.attributes[name.CLIENT] == "mine"


@pytest.mark.parametrize("value", ["yes", "true", "2"])
def test_another_value_is_refused_with_the_variable(value, monkeypatch):
    monkeypatch.setenv("BATCHCLIENT_OTEL", value)
    with pytest.raises(ConfigError, match="BATCHCLIENT_OTEL is 1 for spans, or 0") as caught:
        BatchClient(URL)
    assert caught.value.field == "telemetry"


# The drop-in and the transports ---------------------------------------------------------------------------------------


async def test_the_drop_in_takes_it(seen, mock_llm):
    tracer = seen.provider.get_tracer("mine")
    async with AsyncOpenAI(base_url=mock_llm.base_url, api_key="k", telemetry=seen.telemetry(), probe=False) as client:
        with tracer.start_as_current_span("mine") as mine:
            await client.completions.create(model="m", prompt="p", max_tokens=5)
        parent = mine.get_span_context().span_id
    assert seen.call.parent.span_id == parent
    assert len(seen.requests) == 1


def test_the_blocking_drop_in_takes_it(seen, mock_llm):
    tracer = seen.provider.get_tracer("mine")
    with (
        OpenAI(base_url=mock_llm.base_url, api_key="k", telemetry=seen.telemetry(), probe=False) as client,
        tracer.start_as_current_span("mine") as mine,
    ):
        client.completions.create(model="m", prompt="p", max_tokens=5)
    assert seen.call.parent.span_id == mine.get_span_context().span_id


async def test_the_transport_takes_it(seen, mock_llm):
    transport = BatchTransport(telemetry=seen.telemetry(), probe=False)
    async with httpx.AsyncClient(transport=transport) as http:
        bodies = [{"model": "m", "prompt": text, "max_tokens": 5} for text in ("a", "b")]
        # What an instrumented library of the user's adds keeps no request from sharing.
        headers = [{"traceparent": f"00-{n:032x}-{n:016x}-01"} for n in (1, 2)]
        sent = [
            http.post(f"{mock_llm.base_url}/completions", json=body, headers=more)
            for body, more in zip(bodies, headers, strict=True)
        ]
        await asyncio.gather(*sent)
    assert len(seen.calls) == 2
    assert len(seen.requests) == 1
    [request] = mock_llm.requests
    assert f"{seen.request.context.span_id:016x}" in request.headers["traceparent"]


# What is loaded -------------------------------------------------------------------------------------------------------


def in_a_process(program, **environment):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_client_without_telemetry_loads_nothing_of_opentelemetry():
    program = """
        import asyncio, json, sys
        from tests.shell.scripted import ScriptedTransport, make_client
        from batchclient import Batching, Telemetry

        async def main():
            async with make_client(ScriptedTransport(), batching=Batching(max_size=8)) as client:
                await client.complete("p", max_tokens=5)
                await client.batch_map(["a", "b"], "{}", max_tokens=5)

        asyncio.run(main())
        print(json.dumps([name for name in sys.modules if "telemetry" in name]))
        """
    assert json.loads(in_a_process(program)) == []


def test_without_opentelemetry_the_extra_is_named():
    program = """
        import sys
        sys.modules["opentelemetry"] = None
        from batchclient import BatchClient, ConfigError, Telemetry

        for make in (Telemetry, lambda: BatchClient("http://h/v1")):
            try:
                make()
            except ConfigError as error:
                print(error.field, error.message)
        """
    said = in_a_process(program, BATCHCLIENT_OTEL="1").splitlines()
    assert said == ["telemetry telemetry: spans need opentelemetry, of the extra batchclient[otel]"] * 2


def test_the_command_line_reads_the_variable_and_uses_the_global_provider(tmp_path):
    """As ``opentelemetry-instrument batchclient map`` sets it."""
    program = f"""
        import sys
        from opentelemetry import trace
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor
        from batchclient.simulator import EmbeddedServer

        provider = TracerProvider()
        provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter()))
        trace.set_tracer_provider(provider)
        open({str(tmp_path / "in.txt")!r}, "w").write("a\\nb\\n")
        from batchclient_script import main
        with EmbeddedServer("instant", model="m") as server:
            sys.argv = ["batchclient", "map", {str(tmp_path / "in.txt")!r}, "--output", {str(tmp_path / "out.jsonl")!r},
                        "--base-url", server.base_url, "--prompt", "{{text}}", "--max-tokens", "4", "--quiet"]
            try:
                main()
            except SystemExit as end:
                assert not end.code, end.code
        """
    said = in_a_process(program, BATCHCLIENT_OTEL="1")
    assert said.count('"name": "text_completion m"') == 2
    assert said.count('"name": "batchclient.request"') == 1
    assert in_a_process(program.replace("out.jsonl", "more.jsonl"), BATCHCLIENT_OTEL="0") == ""


def test_the_command_line_refuses_another_value(tmp_path):
    source = tmp_path / "in.txt"
    source.write_text("a\n")
    done = subprocess.run(
        [sys.executable, "-m", "batchclient", "map", str(source), "--output", str(tmp_path / "out.jsonl"), "--prompt", "{text}",
         "--base-url", "http://127.0.0.1:9/v1", "--model", "m", "--max-tokens", "4"],
        capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "BATCHCLIENT_OTEL": "yes"},
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.strip().splitlines()[-1].endswith("BATCHCLIENT_OTEL is 1 for spans, or 0, not 'yes'")
