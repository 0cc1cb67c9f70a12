"""The interpreter's end with calls under way and spans that have not ended."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]

PROGRAM = """
import asyncio
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter
from batchclient import Telemetry
from tests.shell.scripted import ScriptedTransport, make_client

class Exporter(SpanExporter):
    def export(self, spans):
        print("exported", *sorted(span.name for span in spans), flush=True)

provider = TracerProvider(shutdown_on_exit=False)
provider.add_span_processor(SimpleSpanProcessor(Exporter()))
loop = asyncio.new_event_loop()
server = ScriptedTransport(held=True)
client = make_client(server, telemetry=Telemetry(tracer_provider=provider))

async def main():
    call = loop.create_task(client.complete("x", max_tokens=5))
    await asyncio.sleep(0.05)
    return call

call = loop.run_until_complete(main())
print("leaving", flush=True)
"""


def test_a_program_ends_that_has_closed_nothing():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=20, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "leaving" in done.stdout
