"""``batchclient bench`` on the embedded server: a whole measurement, wrong commands, Ctrl-C, comparisons."""

import json
import re
import signal
import subprocess

import pytest

from batchclient.cli._bench_options import is_hosted
from batchclient.simulator import EmbeddedServer
from tests.cli.conftest import COMMAND

CANARY = "swordfish"
SHORT = ["--for", "0.4", "--warm-up", "0.1", "--grace", "5", "--prompt-tokens", "16", "--output-tokens", "4"]


@pytest.fixture
def bench(cli, server):
    def run(*args, url=None, short=SHORT):
        return cli("bench", "--base-url", url or server.base_url, "--model", server.model, *short, *args)

    return run


def test_a_sweep_answers_and_writes_its_reports(bench, tmp_path, cli):
    told = bench("--concurrency", "2,8", "--strategies", "adaptive,singles", "--repeat", "2", "--slo", "p95<2s",
                 "--json", tmp_path / "r.json", "--calls", tmp_path / "c.jsonl", "--gpu-price", "2",
                 "--report", tmp_path / "r.html")  # fmt: skip
    assert told.exit_code == 0, told.stderr
    assert all(
        f"\n{name}, {callers} in flight" in told.stderr for name in ("adaptive", "singles") for callers in (2, 8)
    )
    again = cli("bench", "report", tmp_path / "r.json", "-o", tmp_path / "again.html")
    assert again.exit_code == 0, again.stderr
    page = (tmp_path / "r.html").read_text()
    assert page == (tmp_path / "again.html").read_text()
    assert "Throughput by concurrency" in page
    answer = told.stdout.splitlines()
    assert answer[0].startswith("p95 < 2 s: ")
    # On a busy machine every cell may have measured the client.
    assert (
        any(line.startswith("suggested: BatchClient(…") for line in answer)
        or "too busy to measure the server" in answer[0]
    )
    assert "a million tokens" in answer[-1]
    assert told.stderr.count("\n[") == 8
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["complete"] is True
    assert len(report["cells"]) == 8
    assert report["answer"] == answer
    calls = [json.loads(line) for line in (tmp_path / "c.jsonl").read_text().splitlines()]
    counted = [call for call in calls if call["counted"]]
    assert len(counted) == sum(cell["scheduled"] for cell in report["cells"])


def test_a_search_answers(bench):
    told = bench("--find", "limit", "--slo", "p95<5s", "--budget", "3", short=[*SHORT[:0], "--for", "0.2", *SHORT[2:]])
    assert told.exit_code == 0, told.stderr
    assert "p95 < 5 s: " in told.stdout
    assert re.search(r"^\[1\] fixed, 1 in flight: .*; window 1, p95 < 5 s kept so far$", told.stderr, re.MULTILINE)


def test_a_search_that_the_budget_ends_recommends_what_is_known(bench, tmp_path):
    told = bench("--find", "limit", "--slo", "p95<5s", "--budget", "0.1", "--json", tmp_path / "r.json")
    assert told.exit_code == 0, told.stderr
    assert "the budget ended the search after 1 measurement." in told.stdout
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["complete"] is False
    assert report["recommendation"]["limit"] == 1
    assert report["recommendation"]["decided"] is False


def test_a_sweep_without_a_scheduled_call_fails(bench):
    told = bench("--rate", "0.001", "--strategies", "singles", "--repeat", "1")
    assert told.exit_code == 1
    assert told.stdout.startswith("most answers per second: no recommendation: no call was scheduled")
    assert "Error: no call was scheduled in any measurement" in told.stderr


def test_prompts_of_a_file_are_those_of_map_and_stand_in_no_output(bench, tmp_path):
    source, key = tmp_path / "in.jsonl", f"key-{CANARY}"
    source.write_text("".join(json.dumps({"body": f"{CANARY} {number}"}) + "\n" for number in range(9)))
    with EmbeddedServer("instant", api_key=key) as server:
        told = bench("--prompts", source, "--prompt", "Say {body}", "--api-key", key, "--concurrency", "2",
                     "--strategies", "adaptive,async-openai", "--repeat", "1", "--json", tmp_path / "r.json",
                     "--calls", tmp_path / "c.jsonl", url=server.base_url,
                     short=[*SHORT[:6], "--output-tokens", "4"])  # fmt: skip
    assert told.exit_code == 0, told.stderr
    written = (tmp_path / "r.json").read_text() + (tmp_path / "c.jsonl").read_text()
    assert CANARY not in told.stdout + told.stderr + written


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["--slo", "p95>1s"], "--slo: 'p95>1s' is no objective; its form is"),
        (["--slo", "p100<1s"], "below 100"),
        (["--slo", "p95<0ms"], "a bound is above 0"),
        (["--slo", "ttft p95<1s", "--strategies", "lists"], "lists tells no first tokens"),
        (["--slo", "ttft p95<1s", "--call", "embed", "--find", "limit"], "no first token"),
        (["--find", "speed"], "--find: one of limit, rate"),
        (["--find", "rate"], "--find rate needs an objective"),
        (["--find", "limit", "--concurrency", "8"], "--concurrency: not with --find"),
        (["--strategies", "fast"], "--strategies: no 'fast'; there are: adaptive, "),
        (["--concurrency", "0"], "--concurrency: whole numbers"),
        (["--concurrency", "4,x"], "--concurrency: whole numbers"),
        (["--concurrency", "9000000"], "open files"),
        (["--sizes", "64", "--concurrency", "8", "--strategies", "lists"], "--sizes"),
        (["--rate", "0"], "--rate: calls per second above 0"),
        (["--rate", "5", "--concurrency", "1,2"], "--concurrency: one limit at most"),
        (["--load", "poisson"], "--load: poisson needs --rate"),
        (["--load", "closed", "--rate", "5"], "--load: closed has no --rate"),
        (["--load", "steady"], "--load: one of closed, poisson"),
        (["--for", "0"], "--for: more than 0"),
        (["--for", "ten"], "--for: a duration such as 30, 90s or 15m"),
        (["--budget", "0"], "--budget: more than 0"),
        (["--prompts", "nowhere.txt"], "--prompts: nowhere.txt: No such file"),
        (["--budget", "-1"], "--budget: a duration"),
        (["--burstiness", "0"], "--burstiness"),
        (["--prefix-reuse", "2"], "--prefix-reuse: none, or a share"),
        (["--prompts", "nowhere.txt", "--prompt-tokens", "9"], "--prompt-tokens: not with --prompts"),
        (["--prompt", "{text}"], "--prompt: the template of --prompts"),
        (["--call", "classify"], "--call: one of complete, chat, embed"),
        (["--json", "/nowhere/r.json"], "/nowhere/r.json: "),
    ],
)
def test_a_wrong_command_is_refused_before_a_call(bench, server, args, why):
    told = bench(*args, short=[])
    assert told.exit_code == 2
    assert why in told.stderr
    assert told.stderr.startswith("Error: ")
    assert server.requests == 0


@pytest.mark.parametrize("lines", ['{"text": "a"}\n{"text": \n', '{"text": "a"}\n{"body": "b"}\n'])
def test_a_broken_row_of_the_prompts_is_named(bench, server, tmp_path, lines):
    path = tmp_path / "bad.jsonl"
    path.write_text(lines)
    told = bench("--prompts", path, short=[])
    assert told.exit_code == 2
    assert told.stderr.startswith(f"Error: --prompts: {path}: line 2")
    assert server.requests == 0


@pytest.mark.parametrize("command", [["bench", "--base-url"], ["doctor"]])
def test_a_wrong_switch_of_the_telemetry_is_refused(cli, server, monkeypatch, command):
    monkeypatch.setenv("BATCHCLIENT_OTEL", "nonsense")
    told = cli(*command, server.base_url)
    assert told.exit_code == 2
    assert told.stderr == "Error: BATCHCLIENT_OTEL is 1 for spans, or 0, not 'nonsense'\n"
    assert server.requests == 0


@pytest.mark.parametrize(
    ("url", "hosted"),
    [
        ("http://localhost:8000/v1", False),
        ("http://10.1.2.3/v1", False),
        ("http://[::1]:8/v1", False),
        ("http://gpu-3:8000/v1", False),
        ("http://vllm.models.svc/v1", False),
        ("https://api.example.com/v1", True),
        ("https://8.8.8.8/v1", True),
    ],
)
def test_a_hosted_service_is_known_by_its_host(url, hosted):
    assert is_hosted(url) is hosted


def test_a_hosted_service_is_measured_with_a_yes_alone(bench):
    told = bench("--api-key", "k", url="https://api.example.com/v1")
    assert told.exit_code == 2
    assert "--yes does it" in told.stderr


def test_a_server_that_is_not_there(bench):
    told = bench(url="http://127.0.0.1:9/v1")
    assert told.exit_code == 5
    assert told.stderr.startswith("Error: the first call failed: ConnectFailed: ")


def test_a_server_that_goes_away_ends_the_sweep(bench, tmp_path):
    with EmbeddedServer("gpu", faults=["status=400,after=20"]) as server:
        told = bench("--concurrency", "1", "--strategies", "singles", "--repeat", "9", "--json", tmp_path / "r.json",
                     url=server.base_url, short=[*SHORT, "--for", "0.2"])  # fmt: skip
    assert told.exit_code == 1
    assert "Error: no call was answered in the last two measurements: " in told.stderr
    assert told.stdout.startswith("incomplete: ended after ")
    assert "recommendation: calls failed (see the marks)" in told.stdout
    table = told.stderr[told.stderr.index("\nsetting") :]
    assert "failed" in table.splitlines()[1]
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["complete"] is False
    assert [cell["answered"] for cell in report["cells"][-2:]] == [0, 0]


def test_a_wrong_key_is_told_once(bench):
    with EmbeddedServer("instant", api_key="right") as server:
        told = bench(url=server.base_url)
    assert told.exit_code == 1
    assert "BATCHCLIENT_API_KEY" in told.stderr


def test_ctrl_c_writes_what_is_finished(server, tmp_path):
    command = [*COMMAND, "bench", "--base-url", server.base_url, "--model", server.model, *SHORT, "--concurrency", "2",
               "--strategies", "singles", "--repeat", "99", "--json", tmp_path / "r.json"]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        for line in process.stderr:
            if line.startswith("[2/"):
                break
        process.send_signal(signal.SIGINT)
        out, _ = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 130
    assert out.startswith("incomplete: ended after ")
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["complete"] is False
    assert len(report["cells"]) >= 2


def test_ctrl_c_before_the_first_measurement_leaves_no_file(server, tmp_path):
    command = [*COMMAND, "bench", "--base-url", server.base_url, "--model", server.model, "--for", "60",
               "--json", tmp_path / "r.json", "--report", tmp_path / "r.html", "--calls", tmp_path / "c.jsonl"]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        for line in process.stderr:
            if "measurements, " in line:
                break
        process.send_signal(signal.SIGINT)
        out, told = process.communicate(timeout=20)
    finally:
        process.kill()
    assert process.returncode == 130
    assert (out, told) == ("", "stopped before the first measurement was done; nothing is written\n")
    assert list(tmp_path.iterdir()) == []


def test_reports_are_compared(bench, cli, tmp_path):
    for name in ("a", "b"):
        bench("--concurrency", "4", "--strategies", "singles", "--repeat", "3", "--json", tmp_path / f"{name}.json")
    same = cli("bench", "compare", tmp_path / "a.json", tmp_path / "a.json", "--fail-if", "goodput<0.95")
    assert same.exit_code == 0
    assert "no difference seen" in same.stdout
    worse = json.loads((tmp_path / "a.json").read_text())
    for name, goodput in (("a", 100.0), ("b", 50.0)):
        for number, cell in enumerate(worse["cells"]):
            cell["goodput"] = goodput + number / 100
        (tmp_path / f"{name}.json").write_text(json.dumps(worse))
    broken = cli("bench", "compare", tmp_path / "a.json", tmp_path / "b.json", "--fail-if", "goodput<0.95")
    assert broken.exit_code == 1
    assert "goodput 0.50 × [0.50, 0.50]  beyond goodput<0.95" in broken.stdout
    worse["workload"]["output_tokens"] = 99
    (tmp_path / "b.json").write_text(json.dumps(worse))
    unlike = cli("bench", "compare", tmp_path / "a.json", tmp_path / "b.json")
    assert unlike.exit_code == 2
    assert "output tokens: 4 and 99" in unlike.stderr
    assert cli("bench", "compare", tmp_path / "a.json", tmp_path / "b.json", "--force").exit_code == 0


def test_what_is_no_report_is_refused(cli, tmp_path):
    (tmp_path / "x.json").write_text("{}")
    told = cli("bench", "compare", tmp_path / "x.json", tmp_path / "nowhere.json")
    assert told.exit_code == 2
    assert "no report" in told.stderr
