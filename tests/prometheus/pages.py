"""Pages of metrics, two scrapes each: a client's, a job's, recorded servers', and those of the simulator's guises."""

import asyncio
import json
import re
import subprocess
import sys
import time
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.request import urlopen

from prometheus_client.parser import text_string_to_metric_families as parse

from batchclient import BatchClient
from batchclient._metrics.worker import Waiting, counts_of
from batchclient.integrations.prometheus import serve
from batchclient.simulator import EmbeddedServer
from tests.guises import GUISES as BY_NAME
from batchclient.testing import MockLLM

LONGEST_S = 60.0
WIRE = Path(__file__).parents[1] / "wire"
RECORDED = {
    "vllm": ("vllm/metrics_busy.txt", "vllm/metrics_after.txt"),
    "llamacpp": ("llamacpp/metrics_idle.txt", "llamacpp/metrics.txt"),
    "dcgm": ("dcgm/metrics_1.txt", "dcgm/metrics_2.txt"),
}
GUISES = ("sglang", "tgi")
"""They run on no machine of the tests. The simulator writes their pages as their source does."""


def fetched(url):
    with urlopen(url, timeout=LONGEST_S) as reply:
        return reply.read().decode()


async def traffic(client, bad="bad"):
    """Calls of three kinds; some fail, one is given up, some are streamed."""
    await client.batch_map([f"p{number}" for number in range(70)], "{}", max_tokens=1)
    made = [client.complete(f"p{number}", max_tokens=4) for number in range(20)]
    made.append(client.chat([{"role": "user", "content": "hello"}], max_tokens=4))
    made.append(client.complete(bad, max_tokens=4))
    left = asyncio.ensure_future(client.complete("left", max_tokens=4))
    await asyncio.sleep(0)
    left.cancel()
    ended = await asyncio.gather(*made, left, return_exceptions=True)
    async with client.stream("a stream", max_tokens=8) as pieces:
        async for _ in pieces:
            pass
    return ended


@cache
def of_a_client():
    """A client's page, twice."""
    mock = MockLLM()
    mock.when("bad").fail(400, "no such thing")
    # The call is sent again.
    mock.when("p0").fail(429, "too many", times=1).answer("p0")

    async def main():
        async with mock.client() as client:
            with serve(client, 0, client_name="one", tenant_labels=["t"]) as server:
                pages = []
                for limit in (32, 16):
                    client.retune(limit=limit)
                    await traffic(client)
                    pages.append(await asyncio.to_thread(fetched, server.url + "/metrics"))
                return tuple(pages)

    return asyncio.run(asyncio.wait_for(main(), LONGEST_S))


@cache
def of_a_job():
    """The page of a job of the command line, twice while it runs."""
    with TemporaryDirectory() as folder, EmbeddedServer("instant", faults=["slow=0.02"]) as server:
        rows = Path(folder, "in.jsonl")
        rows.write_text("".join(json.dumps({"text": f"row {number}"}) + "\n" for number in range(5000)))
        command = [sys.executable, "-m", "batchclient", "map", rows, "-o", Path(folder, "out.jsonl"), "--base-url"]
        command += [server.base_url, "--model", server.model, "--prompt", "{text}", "--max-tokens", "1"]
        command += ["--metrics-port", "0", "--concurrency", "2", "--max-batch-size", "1"]
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
            try:
                url = re.search(r"http://\S+", process.stderr.readline())[0]
                first = _with_rows_beyond(0, url)
                return first, _with_rows_beyond(_rows_on(first), url)
            finally:
                process.kill()


def _with_rows_beyond(rows, url):
    until = time.monotonic() + LONGEST_S
    while True:
        page = fetched(url)
        # The input is counted beside the first rows.
        if _rows_on(page) > rows and "batchclient_job_rows_total_expected " in page:
            return page
        assert time.monotonic() < until, page
        time.sleep(0.05)


def _rows_on(page):
    found = re.search(r'batchclient_job_rows{state="answered"} (\S+)', page)
    return float(found[1]) if found else 0


@cache
def of_a_worker():
    """The page of a client with a worker, twice."""

    async def main():
        async with MockLLM().client() as client:
            counts = counts_of(client)
            with serve(client, 0) as server:
                pages = []
                for number in (1, 2):
                    counts.messages.update(results=number, dead=number)
                    for recorder in counts.durations.values():
                        recorder.observe(number)
                    counts.waiting["stream", "group"] = Waiting(number, 9)
                    pages.append(await asyncio.to_thread(fetched, server.url + "/metrics"))
                return tuple(pages)

    return asyncio.run(asyncio.wait_for(main(), LONGEST_S))


@cache
def of_a_server(name):
    """A server's page, twice."""
    if name in RECORDED:
        return tuple((WIRE / file).read_text() for file in RECORDED[name])

    async def main(server):
        pages = []
        async with BatchClient(server.base_url) as client:
            for _ in range(2):
                await client.batch_map([f"p{number}" for number in range(8)], "{}", max_tokens=4)
                pages.append(await asyncio.to_thread(fetched, server.root_url + "/metrics"))
        return tuple(pages)

    with EmbeddedServer("instant", guise=BY_NAME[name]) as server:
        return asyncio.run(asyncio.wait_for(main(server), LONGEST_S))


def samples_of(page):
    """The numbers of a page by name and labels, the labels as Prometheus writes them."""
    return {
        (
            sample.name,
            ",".join(f'{name}="{escaped(value)}"' for name, value in sorted(sample.labels.items())),
        ): sample.value
        for family in parse(page)
        for sample in family.samples
    }


def escaped(value):
    return value.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")
