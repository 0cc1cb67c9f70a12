"""How many requests the embedded server takes: python tests/simulator/measure.py

Raw keep-alive sockets against ``EmbeddedServer("instant", process=True)``. The rate per core counts the server's own CPU
time (/proc), so that a busy machine does not spoil it; the rate per second is what this machine gave just now.
"""

import asyncio
import json
import time

from batchclient.simulator import EmbeddedServer

CONNECTIONS = 8
TICKS_PER_S = 100
# Prompts in a list, streamed, requests on each connection, max_tokens.
CASES = [
    (1, False, 1000, 1),
    (1, False, 1000, 16),
    (64, False, 150, 1),
    (64, False, 150, 16),
    (1, True, 300, 16),
    (64, True, 40, 16),
]
TWO_EVENTS = {
    "stream": True,
    "stream_interval": 100_000,
    "stream_options": {"include_usage": True, "continuous_usage_stats": True},
}


async def connection(port, request, count, streamed):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for _ in range(count):
        writer.write(request)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        if streamed:
            size = 1
            while size:
                size = int(await reader.readline(), 16)
                await reader.readexactly(size + 2)
        else:
            await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
    writer.close()


def cpu_s(pid):
    fields = open(f"/proc/{pid}/stat").read().split()
    return (int(fields[13]) + int(fields[14])) / TICKS_PER_S


async def measure(size, streamed, count, max_tokens):
    with EmbeddedServer("instant", process=True) as server:
        prompts = [f"say something about number {i} please" for i in range(size)]
        fields = {"prompt": prompts if size > 1 else prompts[0], "max_tokens": max_tokens, "temperature": 0}
        body = json.dumps(fields | (TWO_EVENTS if streamed else {})).encode()
        request = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
        await connection(server.port, request, 5, streamed)
        pid = server._child.pid
        cpu, begun = cpu_s(pid), time.perf_counter()
        await asyncio.gather(*(connection(server.port, request, count, streamed) for _ in range(CONNECTIONS)))
        seconds, cpu = time.perf_counter() - begun, cpu_s(pid) - cpu
    requests = CONNECTIONS * count
    print(
        f"list {size:2} {'streamed' if streamed else 'plain   '} max_tokens {max_tokens:2}: {requests / seconds:6.0f} requests/s, "
        f"{requests * size / seconds:6.0f} prompts/s; per core {requests / cpu:6.0f} and {requests * size / cpu:6.0f}"
    )


for case in CASES:
    asyncio.run(measure(*case))
