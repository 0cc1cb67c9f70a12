"""Langfuse and OpenInference beside the drop-in: the real packages (``make test-extra WHICH=integrations``), each in a process of its own, as they patch openai."""

import importlib.util
import subprocess
import sys

import pytest

LANGFUSE = """
from langfuse import Langfuse
tracer = Langfuse(public_key="pk-lf-1", secret_key="sk-lf-1", host="http://127.0.0.1:9", span_exporter=exporter)
import langfuse.openai
end = tracer.flush
"""
OPENINFERENCE = """
from openinference.instrumentation.openai import OpenAIInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
provider = TracerProvider()
provider.add_span_processor(SimpleSpanProcessor(exporter))
OpenAIInstrumentor().instrument(tracer_provider=provider)
end = provider.force_flush
"""
IMPORT = "from batchclient.openai import AsyncOpenAI\n"
CALLS = """
import asyncio

async def main():
    async with AsyncOpenAI(base_url=sys.argv[1], api_key="k") as client:
        chats = [
            client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": f"chat {i}"}], max_tokens=4
            )
            for i in range(20)
        ]
        completions = [client.completions.create(model="m", prompt=f"prompt {i}", max_tokens=4) for i in range(20)]
        answers = await asyncio.gather(*chats, *completions)
        return client.statistics(), answers

statistics, answers = asyncio.run(main())
end()
assert statistics.calls == 40 and statistics.shared >= 35, statistics
spans = [dict(span.attributes) for span in exporter.get_finished_spans()]
assert len(spans) == 40, len(spans)
for i in range(20):
    for prompt, text in (
        (f"chat {i}", answers[i].choices[0].message.content),
        (f"prompt {i}", answers[20 + i].choices[0].text),
    ):
        (span,) = [each for each in spans if any(str(value).strip('"') == prompt or f'"{prompt}"' in str(value) for value in each.values())]
        assert any(text in str(value) for value in span.values()), (prompt, text, span)
        assert USAGE(span) == 4, span
"""
START = """
import json, sys
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
exporter = InMemorySpanExporter()
"""
TRACERS = {
    "langfuse": (
        LANGFUSE,
        'lambda span: json.loads(span["langfuse.observation.usage_details"])["completion_tokens"]',
    ),
    "openinference.instrumentation.openai": (OPENINFERENCE, 'lambda span: span["llm.token_count.completion"]'),
}


@pytest.mark.parametrize("tracer", TRACERS)
@pytest.mark.parametrize("order", ["before", "after"])
def test_each_call_is_a_span_with_input_output_and_usage(counted, tracer, order):
    if importlib.util.find_spec(tracer.partition(".")[0]) is None:
        pytest.skip(f"{tracer} is not installed here: make test-extra WHICH=integrations")
    install, usage = TRACERS[tracer]
    parts = [install, IMPORT] if order == "before" else [IMPORT, install]
    program = START + f"USAGE = {usage}\n" + "".join(parts) + CALLS
    done = subprocess.run(
        [sys.executable, "-c", program, counted.base_url], capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    assert counted.requests <= 15
