"""Metrics for Prometheus: pages that say what ``statistics()`` says, from any thread, at no call's cost."""

import asyncio
import gc
import json
import os
import socket
import subprocess
import sys
import threading
import time
import weakref
from contextlib import suppress
from fractions import Fraction
from urllib.error import HTTPError
from urllib.request import urlopen

import pytest

prometheus_client = pytest.importorskip(
    "prometheus_client",
    reason="prometheus_client is not installed here: make setup, or make test-extra WHICH=integrations",
)

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families as parse

from batchclient import Backoff, BatchClient, SyncBatchClient
from batchclient._metrics.registry import METRICS
from batchclient.errors import BatchClientError, ConfigError
from batchclient.integrations.prometheus import Collector, serve
from batchclient.testing import Answer, MockLLM
from tests.prometheus.programs import needs_promtool, promtool

LONGEST_S = 60.0
CANARY = "canary-7f3a"


def page(url, path="/metrics"):
    with urlopen(url + path, timeout=LONGEST_S) as reply:
        return reply.read().decode()


def samples(text):
    """The numbers of a page, by name and labels."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in parse(text)
        for sample in family.samples
    }


def of(numbers, name, **labels):
    return numbers["batchclient_" + name, tuple(sorted(labels.items()))]


def total(numbers, name, **labels):
    wanted = set(labels.items())
    return sum(number for (its, own), number in numbers.items() if its == f"batchclient_{name}" and wanted <= set(own))


def scraped(collector):
    registry = CollectorRegistry()
    registry.register(collector)
    return generate_latest(registry).decode()


def run(main):
    return asyncio.run(asyncio.wait_for(main(), LONGEST_S))


@pytest.fixture
def mock():
    return MockLLM()


async def traffic(mock, client):
    """Calls of two kinds; some are refused, one is cancelled."""
    mock.when("bad").fail(400, "no such thing")
    made = [client.complete(f"p{number}", max_tokens=4) for number in range(20)]
    made += [client.chat([{"role": "user", "content": "hello"}], max_tokens=4), client.complete("bad", max_tokens=4)]
    left = asyncio.ensure_future(client.complete("left", max_tokens=4))
    await asyncio.sleep(0)
    left.cancel()
    return await asyncio.gather(*made, left, return_exceptions=True)


def agree(numbers, now):
    """A page's counters are the statistics', and each histogram has as many observations as its event has counts."""
    assert of(numbers, "calls_total", outcome="succeeded") == now.succeeded
    assert of(numbers, "calls_total", outcome="failed") == now.failed == total(numbers, "failures_total")
    assert of(numbers, "calls_total", outcome="cancelled") == now.cancelled
    for outcome in ("succeeded", "failed", "cancelled"):
        assert total(numbers, "call_duration_seconds_count", outcome=outcome) == of(
            numbers, "calls_total", outcome=outcome
        )
    assert total(numbers, "requests_total") == total(numbers, "batch_size_count") == now.batches
    assert total(numbers, "request_duration_seconds_count") == now.batches
    assert total(numbers, "batch_size_sum") == sum(size * count for size, count in now.list_sizes.items())
    for name in ("retries", "retries_delayed", "splits", "shared", "reused"):
        assert of(numbers, f"{name}_total") == getattr(now, name)
    assert total(numbers, "alone_total") == sum(now.alone.values())
    assert (
        total(numbers, "tokens_total", direction="prompt") == now.prompt_tokens == total(numbers, "prompt_tokens_sum")
    )
    assert total(numbers, "tokens_total", direction="completion") == now.completion_tokens
    assert total(numbers, "completion_tokens_sum") == now.completion_tokens
    assert of(numbers, "tokens_wasted_total", reason="abandoned") == now.wasted_tokens
    assert of(numbers, "tokens_wasted_total", reason="retry") == now.lost_tokens
    assert total(numbers, "adjustments_total") == sum(now.changes.values())
    for name in ("in_flight", "abandoned"):
        assert total(numbers, name) == getattr(now, name)
    for name in ("waiting", "backing_off"):
        assert of(numbers, name) == getattr(now, name)
    assert total(numbers, "queued") == now.queued
    for endpoint in now.endpoints:
        assert of(numbers, "limit", endpoint=endpoint.base_url) == endpoint.limit
        assert of(numbers, "endpoint_state", endpoint=endpoint.base_url, state=endpoint.state) == 1


# What a page says --------------------------------------------------------------------------------------------------


async def test_every_scrape_says_what_the_statistics_say(mock):
    async with mock.client() as client:
        collector = Collector(client)
        agree(samples(scraped(collector)), client.statistics())
        for _ in range(3):
            await traffic(mock, client)
            await settled(client)
            numbers, now = samples(scraped(collector)), client.statistics()
            assert now.succeeded and now.failed and now.cancelled
            agree(numbers, now)


async def settled(client):
    """Nothing is in flight any more."""
    while client.statistics().in_flight:
        await asyncio.sleep(0.001)


async def test_latency_by_batch_size(mock):
    async with mock.client() as client:
        await client.batch_map([f"p{number}" for number in range(100)], "{}", max_tokens=1)
        numbers = samples(scraped(Collector(client)))
        now = client.statistics()
    sizes = {dict(labels)["size"] for name, labels in numbers if name == "batchclient_request_duration_seconds_count"}
    assert sizes == {size for _, _, size in now.histograms["request_duration_seconds"]} and len(sizes) > 0
    [url] = {endpoint.base_url for endpoint in now.endpoints}
    for size in sizes:
        own = now.histograms["request_duration_seconds"][url, "completion", size]
        labels = {"endpoint": url, "kind": "completion", "size": size}
        assert of(numbers, "request_duration_seconds_bucket", **labels, le="+Inf") == own.count
        assert of(numbers, "request_duration_seconds_sum", **labels) == own.sum
        below = sum(own.counts[: own.bounds.index(0.64) + 1])
        assert of(numbers, "request_duration_seconds_bucket", **labels, le="0.64") == below


def test_a_new_event_loop_starts_the_counts_anew(mock):
    client = mock.client()
    collector = Collector(client)

    async def call():
        await client.complete("p", max_tokens=1)
        return samples(scraped(collector))

    for _ in range(2):
        assert of(run(call), "calls_total", outcome="succeeded") == 1
    # Between two loops the last one's numbers stay.
    assert of(samples(scraped(collector)), "calls_total", outcome="succeeded") == 1
    run(client.aclose)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
def test_a_fork_starts_the_counts_anew_and_leaves_the_port_alone():
    script = """
import asyncio, os
from urllib.request import urlopen
from batchclient.integrations.prometheus import Collector, serve
from batchclient.testing import MockLLM

mock = MockLLM()
client = mock.client()
collector = Collector(client)
asyncio.run(client.complete("p", max_tokens=1))
server = serve(client, 0)
def calls():
    return [s.value for f in collector.collect() if f.name == "batchclient_calls" for s in f.samples]
assert calls() == [1, 0, 0], calls()
child = os.fork()
if not child:
    server.close()
    os._exit(0 if calls() == [0, 0, 0] else 1)
assert os.waitpid(child, 0)[1] == 0
assert b"batchclient_calls_total" in urlopen(server.url + "/metrics", timeout=30).read()
server.close()
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=LONGEST_S)
    assert done.returncode == 0, done.stderr


def test_a_blocking_client_has_the_same_page(mock):
    with SyncBatchClient(mock.base_url, model="mock", http=mock.transport) as client:
        client.complete("p", max_tokens=1)
        with serve(client, 0) as server:
            numbers = samples(page(server.url))
            agree(numbers, client.statistics())
            assert of(numbers, "calls_total", outcome="succeeded") == 1


def test_trio_has_the_same_page(mock):
    trio = pytest.importorskip("trio", reason="trio is not installed here")

    async def main():
        async with mock.client() as client:
            await client.complete("p", max_tokens=1)
            with serve(client, 0) as server:
                text = await trio.to_thread.run_sync(page, server.url)
            return samples(text), client.statistics()

    numbers, now = trio.run(main)
    assert of(numbers, "calls_total", outcome="succeeded") == now.succeeded == 1
    assert of(numbers, "event_loop_lag_seconds") >= 0


async def test_the_page_for_programs_says_the_same(mock):
    async with mock.client() as client:
        await traffic(mock, client)
        await client.complete("p", max_tokens=1, tenant="known")
        await client.complete("p", max_tokens=1, tenant="unknown")
        await settled(client)
        with serve(client, 0, client_name="night", tenant_labels=["known"]) as server:
            told = json.loads(await asyncio.to_thread(page, server.url, "/statistics"))
            now = client.statistics()
    assert told["client"] == "night" and 0 <= told["snapshot_age_seconds"] < LONGEST_S
    plain = told["statistics"]
    for name in ("submitted", "succeeded", "failed", "cancelled", "batches", "prompt_tokens", "completion_tokens"):
        assert plain[name] == getattr(now, name)
    assert [each["base_url"] for each in plain["endpoints"]] == [each.base_url for each in now.endpoints]
    assert sum(each["count"] for each in plain["outcomes"]) == now.batches
    assert plain["tenants"].keys() == {"known"}
    for name, family in now.histograms.items():
        assert [(each["counts"], each["sum"]) for each in plain["histograms"][name]] == [
            (list(each.counts), each.sum) for each in family.values()
        ]


async def test_tenants_have_series_only_where_they_are_named(mock):
    async with mock.client() as client:
        for tenant in ("a", "b", "c"):
            await client.complete("p", max_tokens=1, tenant=tenant)
        numbers = samples(scraped(Collector(client, tenant_labels=["a", "absent"])))
        now = client.statistics()
    tenants = {dict(labels).get("tenant") for _, labels in numbers} - {None}
    assert tenants == {"a", "absent"}
    assert of(numbers, "tenant_tokens_total", tenant="a", direction="prompt") == now.tenants["a"].prompt_tokens > 0
    assert of(numbers, "tenant_tokens_total", tenant="absent", direction="prompt") == 0


async def test_several_clients_of_a_registry_have_names(mock):
    async with mock.client() as one, mock.client() as two:
        await one.complete("p", max_tokens=1)
        collector = Collector(one, client_name="chat")
        collector.add(two, client_name="vectors")
        with pytest.raises(ConfigError, match="has this client already, as 'chat'"):
            collector.add(one, client_name="other")
        async with mock.client() as three:
            with pytest.raises(ConfigError, match="has a client named 'chat' already"):
                collector.add(three, client_name="chat")
        numbers = samples(scraped(collector))
    assert of(numbers, "calls_total", client="chat", outcome="succeeded") == 1
    assert of(numbers, "calls_total", client="vectors", outcome="succeeded") == 0


# While the client works --------------------------------------------------------------------------------------------


async def test_a_blocked_event_loop_has_its_last_page_within_a_second(mock):
    async with mock.client() as client:
        await client.complete("p", max_tokens=1)
        with serve(client, 0) as server:
            before = samples(await asyncio.to_thread(page, server.url))
            assert of(before, "snapshot_age_seconds") < LONGEST_S
            pages, took, done = [], [], threading.Event()

            def scrape():
                for _ in range(2):
                    began = time.monotonic()
                    pages.append(samples(page(server.url)))
                    took.append(time.monotonic() - began)
                done.set()

            threading.Thread(target=scrape, daemon=True).start()
            # The loop stands still until both pages are there.
            assert done.wait(LONGEST_S)
    first, second = pages
    for numbers in pages:
        assert of(numbers, "calls_total", outcome="succeeded") == 1
        assert of(numbers, "event_loop_lag_seconds") >= 0.5
    assert of(second, "snapshot_age_seconds") >= of(first, "snapshot_age_seconds") + 0.5
    assert of(second, "event_loop_lag_seconds") >= of(first, "event_loop_lag_seconds") + 0.5
    # Half a second is waited for the loop; the rest is the page's making, and ten times as much on a busy machine.
    assert min(took) < 5.0


async def test_a_blocked_event_loop_of_many_clients_delays_their_page_as_much(mock):
    clients = [mock.client() for _ in range(20)]
    for each in clients:
        await each.complete("p", max_tokens=1)
    collector = Collector(clients[0], client_name="0")
    for number, each in enumerate(clients[1:], 1):
        collector.add(each, client_name=str(number))
    took, done = [], threading.Event()

    def scrape():
        began = time.monotonic()
        took.append((samples(scraped(collector)), time.monotonic() - began))
        done.set()

    threading.Thread(target=scrape, daemon=True).start()
    assert done.wait(LONGEST_S)
    [(numbers, seconds)] = took
    assert total(numbers, "calls_total", outcome="succeeded") == 20
    assert 0.5 <= seconds < 5.0
    for each in clients:
        await each.aclose()


async def test_a_map_under_way_is_told(mock):
    async with mock.client() as client:
        collector = Collector(client)
        results = client.stream_map(["a", "b"], "{}", max_tokens=1, look_ahead=1)
        told = [of(samples(scraped(collector)), "maps")]
        await anext(results)
        told.append(of(samples(scraped(collector)), "maps"))
        await results.aclose()
        told.append(of(samples(scraped(collector)), "maps"))
    assert told == [0, 1, 0]


async def test_a_scrape_takes_the_event_loop_for_less_than_ten_milliseconds():
    mock = MockLLM()
    urls = [f"http://server-{number}:8000/v1" for number in range(8)]
    async with BatchClient(urls, model="m", http=mock.transport, limit=64) as client:
        for size in (1, 3, 7, 15, 31, 63):
            for _ in range(4):
                await asyncio.gather(*[client.complete(f"p{n}", max_tokens=1) for n in range(size * 8)])
        times = []
        for _ in range(10):
            began = time.thread_time()
            now = client.statistics()
            times.append(time.thread_time() - began)
        assert len(now.histograms["batch_size"]) == 8
        assert min(times) < 0.01


async def test_a_page_that_fails_costs_no_call(mock, caplog):
    async with mock.client() as client:
        with serve(client, 0) as server:
            await client.complete("p", max_tokens=1)
            whole, client.statistics = client.statistics, None
            old = samples(await asyncio.to_thread(page, server.url))
            await client.complete("p", max_tokens=1)
            client.statistics = whole
            new = samples(await asyncio.to_thread(page, server.url))
    # The page has what was known before.
    assert of(old, "calls_total", outcome="succeeded") == 0
    assert of(new, "calls_total", outcome="succeeded") == 2
    assert "could not be read" in caplog.text


async def test_a_reader_that_says_nothing_keeps_no_other_waiting(mock):
    async with mock.client() as client:
        with serve(client, 0) as server, socket.create_connection(("127.0.0.1", server.port)):
            await client.complete("p", max_tokens=1)
            read = samples(await asyncio.to_thread(page, server.url))
    assert of(read, "calls_total", outcome="succeeded") == 1


async def test_a_request_that_drips_is_dropped(mock, monkeypatch):
    monkeypatch.setattr("batchclient._metrics.server.LONGEST_REQUEST_S", 0.3)
    async with mock.client() as client:
        with serve(client, 0) as server, socket.create_connection(("127.0.0.1", server.port)) as dripping:
            dripping.settimeout(0.05)
            deadline = time.monotonic() + LONGEST_S
            while True:
                assert time.monotonic() < deadline, "the connection is open still"
                with suppress(TimeoutError):
                    dripping.sendall(b"G")
                    if not dripping.recv(1):
                        break


# What no page says -------------------------------------------------------------------------------------------------


async def test_no_page_holds_a_prompt_an_answer_or_a_key(mock):
    mock.when(f"{CANARY} asks").answer(Answer(f"{CANARY} answers"))
    mock.when(f"{CANARY} fails").fail(400, f"{CANARY} is refused")
    mock.when(f"{CANARY} breaks").fail(500, f"{CANARY} is broken")
    url = f"http://mock:8000/v1?key={CANARY}-in-the-url"
    headers = {"x-canary": f"{CANARY}-in-a-header"}
    settings = {"api_key": f"{CANARY}-as-key", "headers": headers, "retry": Backoff(max_attempts=2, base_s=0)}
    async with BatchClient(url, model="m", http=mock.transport, **settings) as client:
        for word in ("asks", "fails", "breaks"):
            with suppress(BatchClientError):
                await client.complete(f"{CANARY} {word}", max_tokens=4, tenant=CANARY, timeout_s=5)
        assert client.statistics().failed == 2
        with serve(client, 0) as server:
            texts = [await asyncio.to_thread(page, server.url, path) for path in ("/metrics", "/statistics")]
    for text in texts:
        assert "http://mock:8000/v1" in text
        assert CANARY not in text


async def test_tenants_prompts_and_many_models_make_no_series(mock):
    async with mock.client() as client:
        collector = Collector(client)
        for number in range(50):
            await client.complete(f"prompt {number}", max_tokens=1, tenant=f"tenant {number}", model=f"m{number}")
        numbers = samples(scraped(collector))
    values = {label: {dict(labels).get(label) for _, labels in numbers} - {None} for label in ("model", "tenant")}
    assert values == {"model": {f"m{number}" for number in range(32)} | {"other"}, "tenant": set()}
    assert not [labels for _, labels in numbers if any("prompt " in value for _, value in labels)]


# The pages' form ---------------------------------------------------------------------------------------------------


def a_page(mock):
    async def main():
        async with mock.client() as client:
            await traffic(mock, client)
            await client.batch_map([f"p{number}" for number in range(70)], "{}", max_tokens=1)
            with serve(client, 0, client_name="one", tenant_labels=["t"]) as server:
                return await asyncio.to_thread(page, server.url)

    return run(main)


@pytest.mark.parametrize("named", [True, False])
async def test_the_page_is_the_one_that_prometheus_client_writes(mock, named):
    odd = 'a "quoted" \\ name\nof two lines'
    async with mock.client() as client:
        await traffic(mock, client)
        await client.complete("p", max_tokens=1, model=odd, tenant=odd)
        await settled(client)
        given = {"client_name": odd, "tenant_labels": [odd]} if named else {}
        with serve(client, 0, **given) as server:
            ours = await asyncio.to_thread(page, server.url)
            theirs = scraped(Collector(client, **given))
    # These are of the moment.
    moment = ("batchclient_snapshot_age_seconds", "batchclient_event_loop_lag_seconds")
    own, other = (
        {key: number for key, number in samples(text).items() if key[0] not in moment} for text in (ours, theirs)
    )
    assert own == other and len(own) > 100
    assert {value for (_, labels) in own for value in dict(labels).values()} >= {odd}
    told = [[line for line in text.splitlines() if line.startswith("#")] for text in (ours, theirs)]
    assert told[0] == told[1]


def test_every_metric_is_on_the_page_with_its_type_and_help(mock):
    text = a_page(mock)
    for metric in METRICS:
        assert f"# TYPE {metric.full_name} {metric.kind}\n" in text
        assert f"# HELP {metric.full_name} {metric.help}\n" in text
    assert text.count("# TYPE ") == len(METRICS)


@needs_promtool
def test_promtool_has_no_complaint(mock):
    assert promtool("check", "metrics", input=a_page(mock)) == ""


# Its life ----------------------------------------------------------------------------------------------------------


def is_open(port):
    with socket.socket() as tried:
        tried.settimeout(LONGEST_S)
        return tried.connect_ex(("127.0.0.1", port)) == 0


def closes(port):
    deadline = time.monotonic() + LONGEST_S
    while is_open(port):
        assert time.monotonic() < deadline, "the port is open still"
        time.sleep(0.01)


@pytest.mark.parametrize("end", ["aclose", "drain"])
async def test_the_port_closes_with_the_client(mock, end):
    client = mock.client()
    await client.complete("p", max_tokens=1)
    server = serve(client, 0)
    assert is_open(server.port)
    await getattr(client, end)()
    await asyncio.to_thread(closes, server.port)


async def test_the_port_is_free_as_soon_as_the_client_is_closed(mock):
    client, port = mock.client(), 0
    for _ in range(5):
        async with mock.client() as client:
            await client.complete("p", max_tokens=1)
            server = serve(client, port)
            port = server.port
            assert samples(await asyncio.to_thread(page, server.url))


def test_the_port_closes_with_a_blocking_client_that_made_no_call(mock):
    client = SyncBatchClient(mock.base_url, model="m", http=mock.transport)
    server = serve(client, 0)
    client.close()
    closes(server.port)


def test_a_collector_does_not_keep_its_client(mock):
    client = mock.client()
    collector, gone, server = Collector(client), weakref.ref(client), serve(client, 0)
    del client
    assert gone() is None
    assert samples(scraped(collector)) == {}
    closes(server.port)


def test_other_paths_are_not_there(mock):
    client = mock.client()
    with serve(client, 0) as server:
        with pytest.raises(HTTPError) as told:
            page(server.url, "/")
        with told.value as answer:
            assert answer.code == 404 and b"/metrics, /statistics" in answer.read()


# Bad input ---------------------------------------------------------------------------------------------------------


def test_a_port_in_use_is_told(mock):
    client = mock.client()
    with serve(client, 0) as server, pytest.raises(ConfigError, match=f"port {server.port} of 127.0.0.1 is in use"):
        serve(client, server.port)


@pytest.mark.parametrize("port", [-1, 65_536, "9100", True, None])
def test_a_port_is_a_number(mock, port):
    with pytest.raises(ConfigError, match="port"):
        serve(mock.client(), port)


@pytest.mark.parametrize("host", ["", None, "no such host.invalid", "192.0.2.1"])
def test_a_host_is_one_of_this_machine(mock, host):
    with pytest.raises(ConfigError) as told:
        serve(mock.client(), 0, host)
    assert told.value.field == "host"


def test_a_second_collector_in_a_registry_is_refused(mock):
    registry, client = CollectorRegistry(), mock.client()
    registry.register(Collector(client))
    with pytest.raises(ValueError, match="batchclient_calls"):
        registry.register(Collector(client))


@pytest.mark.parametrize("variable", ["PROMETHEUS_MULTIPROC_DIR", "prometheus_multiproc_dir"])
def test_the_multi_process_mode_is_refused_with_the_reason(mock, monkeypatch, tmp_path, variable):
    monkeypatch.setenv(variable, str(tmp_path))
    with pytest.raises(ConfigError, match=rf"{variable} is set: its files take no collectors.*serve\(client, port\)"):
        Collector(mock.client())


@pytest.mark.parametrize(
    "wrong, field",
    [
        ({"client_name": ""}, "client_name"),
        ({"client_name": 5}, "client_name"),
        ({"tenant_labels": "abc"}, "tenant_labels"),
        ({"tenant_labels": 5}, "tenant_labels"),
        ({"tenant_labels": [""]}, "tenant_labels"),
        ({"tenant_labels": [f"t{number}" for number in range(101)]}, "tenant_labels"),
    ],
)
def test_a_wrong_argument_is_named(mock, wrong, field):
    with pytest.raises(ConfigError) as told:
        Collector(mock.client(), **wrong)
    assert told.value.field == field


def test_a_collector_is_for_a_client():
    with pytest.raises(ConfigError, match="client.*not a str"):
        Collector("http://localhost:8000/v1")


# A program's own numbers --------------------------------------------------------------------------------------------


def test_a_programs_own_numbers_stand_beside_the_clients(mock):
    own = {"shop_orders_total": 17, "shop_backlog": 2.5}
    client, other = mock.client(), mock.client()
    with serve(client, 0, more=lambda: own) as server:
        numbers, statistics = samples(page(server.url)), json.loads(page(server.url, "/statistics"))
    assert (numbers["shop_orders_total", ()], numbers["shop_backlog", ()]) == (17, 2.5)
    assert statistics["more"] == own
    collector = Collector(client, client_name="one", more=lambda: {"shop_backlog": 1})
    collector.add(other, client_name="two", more=lambda: {"shop_backlog": 2})
    numbers = samples(scraped(collector))
    assert [numbers["shop_backlog", (("client", name),)] for name in ("one", "two")] == [1, 2]


@pytest.mark.parametrize("more", [
    lambda: 1 / 0, lambda: None, lambda: {"no name": 1}, lambda: {"batchclient_calls_total": 1}, lambda: {"a": "1"},
    lambda: {"a": float("nan")}, lambda: {"_total": 1}, lambda: {"a": float("inf")}, lambda: {"a": True}, lambda: {5: 1},
])  # fmt: skip
def test_own_numbers_that_are_none_cost_the_clients_no_page(more, mock, caplog):
    client = mock.client()
    with serve(client, 0, more=more) as server:
        for _ in range(2):
            numbers = samples(page(server.url))
        assert not any(name in ("a", "no name") for name, _ in numbers)
        assert any(name == "batchclient_snapshot_age_seconds" for name, _ in numbers)
        assert json.loads(page(server.url, "/statistics"))["more"] == {}
    assert [record.event for record in caplog.records if hasattr(record, "event")] == ["own_numbers_failed"]


def test_more_is_a_function(mock):
    with pytest.raises(ConfigError, match="more is a function"):
        serve(mock.client(), 0, more={"a": 1})


def test_a_dropped_clients_numbers_go_with_it_and_a_method_keeps_no_client(mock):
    class Program:
        def __init__(self):
            self.client = mock.client()

        def numbers(self):
            return {"shop_orders_total": Fraction(17, 1)}

    program = Program()
    collector = Collector(program.client, more=program.numbers)
    assert samples(scraped(collector))["shop_orders_total", ()] == 17
    gone = weakref.ref(program.client)
    del program
    gc.collect()
    assert gone() is None
    assert samples(scraped(collector)) == {}
