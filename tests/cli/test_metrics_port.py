"""``map --metrics-port``: the numbers of a job while it runs, and refusals before a row is sent."""

import json
import re
import socket
import sys
import time
from urllib.request import urlopen

import pytest

from batchclient.testing import MockLLM

from .conftest import free_port, rows_of, write_rows


def page(url, path):
    with urlopen(url + path, timeout=60) as reply:
        return reply.read().decode()


def numbers_of(process):
    """The pages of a job that has come to a stop, as numbers by name and labels, and as JSON."""
    url = re.fullmatch(r"metrics: (\S+)/metrics\n", process.stderr.readline().decode())[1]
    until, told = time.monotonic() + 60, {"job": None}
    while told["job"] is None or told["job"]["answered"] + told["job"]["failed"] < 41:
        assert time.monotonic() < until, told
        told = json.loads(page(url, "/statistics"))
    lines = [line for line in page(url, "/metrics").splitlines() if line.startswith("batchclient_job_")]
    return {name: float(number) for name, number in (line.rsplit(" ", 1) for line in lines)}, told["job"]


def test_a_job_has_the_numbers_of_its_rows_and_commits(spawn, cli_map, server, tmp_path):
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    assert cli_map(write_rows(source, rows_of(20)), "-o", out, "--concurrency", 4).exit_code == 0
    source = write_rows(source, [*rows_of(60), {"id": 60, "other": "unusable"}, {"id": 61, "text": "the last"}])
    server.set_faults("stall,after=40")
    process = spawn(source, "-o", out, "--metrics-port", 0, "--concurrency", 1, "--max-batch-size", 1)
    numbers, job = numbers_of(process)
    process.kill()
    assert numbers['batchclient_job_rows{state="answered"}'] == job["answered"] == 40
    assert numbers['batchclient_job_rows{state="reused"}'] == job["reused"] == 20
    assert numbers['batchclient_job_rows{state="failed"}'] == job["failed"] == 1
    assert numbers["batchclient_job_rows_total_expected"] == job["expected"] == 62
    commits = sum(job["commits"]["counts"])
    assert numbers["batchclient_job_commit_duration_seconds_count"] == commits > 0
    assert numbers["batchclient_job_commit_duration_seconds_sum"] == job["commits"]["sum"] > 0


def test_a_job_that_ends_gives_the_port_back(cli_map, tmp_path):
    source = write_rows(tmp_path / "in.jsonl", rows_of(3))
    port = free_port()
    result = cli_map(source, "-o", tmp_path / "out.jsonl", "--metrics-port", f"localhost:{port}")
    assert (result.exit_code, result.stderr.count(f"metrics: http://localhost:{port}/metrics\n")) == (0, 1)
    with socket.socket() as tried:
        assert tried.connect_ex(("127.0.0.1", port)) != 0


def test_a_port_in_use_is_refused_before_a_row_is_sent(cli_map, tmp_path, server):
    source, out = write_rows(tmp_path / "in.jsonl", rows_of(3)), tmp_path / "out.jsonl"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = cli_map(source, "-o", out, "--metrics-port", port)
    assert result.exit_code == 2
    assert f"Error: --metrics-port: port {port} of 127.0.0.1 is in use" in result.stderr
    assert server.requests == 0
    assert not out.exists() and not (tmp_path / "out.jsonl.journal").exists()


def test_what_is_no_port_is_refused(cli_map, tmp_path, server):
    for text in ("", "abc", "-1", "65536", ":9400", "host:", "٣"):
        result = cli_map(write_rows(tmp_path / "in.jsonl", rows_of(1)), f"--metrics-port={text}")
        assert (result.exit_code, server.requests) == (2, 0)
        assert result.stderr.startswith("Error: --metrics-port: ")


def test_the_pages_need_no_library(cli_map, tmp_path, server, monkeypatch):
    for name in [name for name in sys.modules if name.split(".")[0] == "prometheus_client"]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    monkeypatch.delitem(sys.modules, "batchclient.integrations.prometheus", raising=False)
    source = write_rows(tmp_path / "in.jsonl", rows_of(1))
    assert cli_map(source, "-o", tmp_path / "out.jsonl", "--metrics-port", 0).exit_code == 0
    from batchclient.integrations.prometheus import Collector

    with pytest.raises(ImportError, match=r"of the extra batchclient\[prometheus\]"):
        Collector(MockLLM().client())
