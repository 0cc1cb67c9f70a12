"""``batchclient bench`` on the embedded server: a whole measurement, wrong commands, Ctrl-C, comparisons."""

import asyncio
import json
import re
import signal
import subprocess

import pytest
from typer.testing import CliRunner

from batchclient.bench.session import Session
from batchclient.cli._bench_options import is_hosted
from batchclient.cli._bench_outputs import Outputs
from batchclient.cli.app import make_app
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
                 "--json", tmp_path / "r.json",
                 "--report", tmp_path / "r.html")  # fmt: skip
    assert told.exit_code == 0, told.stderr
    assert all(
        f"\n{name}, {callers} in flight" in told.stderr for name in ("adaptive", "singles") for callers in (2, 8)
    )
    odd = (tmp_path / "r.json").read_text().replace('"url": "', '"url": "half a pair \\ud83d ', 1)
    (tmp_path / "odd.json").write_text(odd)
    odd = cli("bench", "report", tmp_path / "odd.json", "-o", tmp_path / "odd.html")
    assert odd.exit_code == 0 and r"half a pair \ud83d" in (tmp_path / "odd.html").read_text()
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
    assert told.stderr.count("\n[") == 8
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["complete"] is True
    assert len(report["cells"]) == 8
    assert report["answer"] == answer


def test_a_window_without_a_call_says_nothing_of_the_objective(bench):
    told = bench(
        "--find", "rate", "--slo", "p95<5s", "--budget", "1", "--seed", "0",
        short=[*SHORT, "--for", "0.001", "--warm-up", "0"],
    )  # fmt: skip
    assert re.search(r"^\[1\] adaptive, 1 calls/s: no call was scheduled.*; window 1$", told.stderr, re.MULTILINE)


def test_a_search_answers(bench):
    told = bench("--find", "limit", "--slo", "p95<5s", "--budget", "3", short=[*SHORT[:0], "--for", "0.2", *SHORT[2:]])
    assert told.exit_code == 0, told.stderr
    assert "p95 < 5 s: " in told.stdout
    assert re.search(r"^\[1\] fixed, 1 in flight: .*; window 1, p95 < 5 s kept so far$", told.stderr, re.MULTILINE)


@pytest.mark.long
def test_a_search_that_the_budget_ends_recommends_what_is_known(bench, tmp_path):
    told = bench("--find", "limit", "--slo", "p95<5s", "--budget", "0.1", "--json", tmp_path / "r.json")
    assert told.exit_code == 0, told.stderr
    assert "the budget ended the search after 1 measurement." in told.stdout
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["complete"] is False
    assert report["recommendation"]["limit"] == 1
    assert report["recommendation"]["decided"] is False


@pytest.mark.long
def test_a_seed_is_drawn_so_that_no_run_has_the_prompts_of_the_one_before(bench, tmp_path):
    def seed_of(*options):
        told = bench("--concurrency", "1", "--strategies", "singles", "--repeat", "1", "--json", tmp_path / "r.json",
                     *options)  # fmt: skip
        assert told.exit_code == 0, told.stderr
        return json.loads((tmp_path / "r.json").read_text())["workload"]["seed"]

    assert seed_of() != seed_of()
    assert seed_of("--seed", "7") == 7


@pytest.mark.long
def test_a_sweep_without_a_scheduled_call_fails(bench):
    told = bench("--rate", "0.001", "--strategies", "singles", "--repeat", "1", "--seed", "0")
    assert told.exit_code == 1
    assert told.stdout.startswith("most answers per second: no recommendation: no call was scheduled")
    assert "Error: no call was scheduled in any measurement" in told.stderr


@pytest.mark.long
def test_prompts_of_a_file_are_those_of_map_and_stand_in_no_output(bench, tmp_path):
    source, key = tmp_path / "in.jsonl", f"key-{CANARY}"
    source.write_text("".join(json.dumps({"body": f"{CANARY} {number}"}) + "\n" for number in range(9)))
    with EmbeddedServer("instant", api_key=key) as server:
        told = bench("--prompts", source, "--prompt", "Say {body}", "--api-key", key, "--concurrency", "2",
                     "--strategies", "adaptive,async-openai", "--repeat", "1", "--json", tmp_path / "r.json", url=server.base_url,
                     short=[*SHORT[:6], "--output-tokens", "4"])  # fmt: skip
    assert told.exit_code == 0, told.stderr
    written = (tmp_path / "r.json").read_text()
    assert CANARY not in told.stdout + told.stderr + written


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["--slo", "p95>1s"], "--slo: 'p95>1s' is no objective; its form is"),
        (["--slo", "p100<1s"], "below 100"),
        (["--slo", "p95<0ms"], "a bound is above 0"),
        (
            ["--slo", "ttft p95<1s", "--strategies", "lists"],
            "--slo: ttft p95<1s: lists of complete tells no first tokens",
        ),
        (["--slo", "ttft p95<1s", "--call", "embed", "--find", "limit"], "tells no first tokens"),
        (["--find", "speed"], "Error: Invalid value for '--find': 'speed' is not one of"),
        (["--find", "rate"], "--find rate needs an objective"),
        (["--find", "limit", "--concurrency", "8"], "--concurrency: not with --find"),
        (["--strategies", "fast"], "--strategies: no 'fast'; there are: adaptive, "),
        (["--concurrency", "0"], "--concurrency: whole numbers"),
        (["--concurrency", "4,x"], "--concurrency: whole numbers"),
        (["--concurrency", "9000000"], "open files"),
        (["--sizes", "64", "--concurrency", "8", "--strategies", "lists"], "--sizes"),
        (["--rate", "0"], "--rate: calls per second above 0"),
        (["--rate", "5", "--concurrency", "1,2"], "--concurrency: one limit at most"),
        (["--for", "0"], "--for: more than 0"),
        (["--for", "ten"], "--for: a duration such as 30, 90s or 15m"),
        (["--budget", "0"], "--budget: more than 0"),
        (["--prompts", "nowhere.txt"], "--prompts: nowhere.txt: No such file"),
        (["--budget", "-1"], "--budget: a duration"),
        (["--prefix-reuse", "2"], "--prefix-reuse: none, or a share"),
        (["--prompts", "nowhere.txt", "--prompt-tokens", "9"], "--prompt-tokens: not with --prompts"),
        (["--prompt", "{text}"], "--prompt: the template of --prompts"),
        (["--call", "classify"], "Error: Invalid value for '--call': 'classify' is not one of"),
        (["--json", "/nowhere/r.json"], "/nowhere/r.json: "),
        (["--json", "-"], "--json -: the name of a file"),
        (["--report", "x", "--json", "x"], "--json x: the file of --report"),
        (["--report", "x.json", "--json", "./x.json"], "--json ./x.json: the file of --report"),
        (["--sizes", "8", "--strategies", "adaptive"], "--sizes: of lists and streamed"),
        (["--sizes", "8", "--quick"], "--sizes: of lists and streamed"),
        (["--sizes", "8,64", "--concurrency", "8,32"], "--sizes: 64: above every number of --concurrency"),
        (["--find", "limit", "--repeat", "3"], "--repeat: not with --find"),
        (["--call", "embed", "--output-tokens", "9"], "--output-tokens: --call embed generates nothing"),
        (["--corpus", "--spread", "1"], "--spread: of drawn prompts"),
        (["--rate", "1000000000"], "--rate: 100,000 calls per second at most"),
        # A variable of a script that is not set.
        (["--concurrency", ""], "--concurrency: whole numbers"),
        (["--sizes", ""], "--sizes: whole numbers"),
        (["--strategies", ""], "--strategies: no ''"),
        (["--budget", ""], "--budget: a duration"),
        (["--for", ""], "--for: a duration"),
    ],
)
def test_a_wrong_command_is_refused_before_a_call(bench, server, args, why):
    told = bench(*args, short=[])
    assert told.exit_code == 2
    assert why in told.stderr
    assert "Error: " in told.stderr
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
    assert "each call has some 16 tokens of prompt and 4 of answer; --yes does it" in told.stderr
    told = bench("--api-key", "k", "--find", "limit", "--budget", "90s", url="https://api.example.com/v1")
    assert "without a pause for 90 s" in told.stderr


def test_the_prompts_are_not_written_over(bench, server, tmp_path):
    source = tmp_path / "in.jsonl"
    source.write_text('{"text": "a"}\n')
    told = bench("--prompts", source, "--json", source, short=[])
    assert (told.exit_code, server.requests) == (2, 0)
    assert f"--json {source}: the file of --prompts" in told.stderr
    assert source.read_text() == '{"text": "a"}\n'


def test_a_look_at_the_outputs_leaves_no_file_and_every_link(tmp_path):
    link = tmp_path / "r.json"
    link.symlink_to(tmp_path / "elsewhere.json")
    Outputs(str(tmp_path / "r.html"), str(link)).check()
    assert link.is_symlink()
    assert list(tmp_path.iterdir()) == [link]


@pytest.mark.long
def test_a_sweep_that_the_budget_ends_says_so(bench, tmp_path):
    told = bench("--concurrency", "2,4", "--strategies", "singles", "--repeat", "1", "--budget", "0.1")
    assert told.exit_code == 0, told.stderr
    assert told.stdout.startswith("incomplete: the budget ended the sweep after 1 of 2 measurements\n")


@pytest.mark.long
def test_an_objective_that_no_answer_tells_ends_the_measurement(bench):
    """Short calls travel without a stream: they would miss each bound of the first token."""
    args = ["--call", "chat", "--slo", "ttft p90<1s", "--concurrency", "8", "--repeat", "1", "--strategies"]
    with EmbeddedServer("gpu") as server:
        told = bench(*args, "adaptive", url=server.base_url)
        assert told.exit_code == 1
        assert "Error: slo ttft p90<1s: no answer to adaptive tells this time: calls of few" in told.stderr
        assert bench(*args, "singles", "--output-tokens", "16", url=server.base_url).exit_code == 0


def test_the_budget_bounds_the_first_call(bench):
    with EmbeddedServer("gpu", faults=["stall"]) as server:
        told = bench("--budget", "0.1", url=server.base_url)
    assert (told.exit_code, told.stderr) == (1, "Error: the first call had no answer within the budget\n")


@pytest.mark.long
def test_lists_without_room_are_named(bench):
    told = bench("--concurrency", "2", "--strategies", "singles,lists", "--repeat", "1")
    assert "lists are left out: 32 prompts are above every number of --concurrency" in told.stderr


@pytest.mark.long
def test_a_search_tries_no_limit_beyond_the_open_files(bench, tmp_path, monkeypatch):
    monkeypatch.setattr("batchclient.cli._bench_run.within_descriptors", lambda *_, **__: 2)
    told = bench("--find", "limit", "--slo", "p95<5s", "--json", tmp_path / "r.json", short=[*SHORT, "--for", "0.2"])
    assert told.exit_code == 0, told.stderr
    assert "limits up to 2 are tried" in told.stderr
    cells = json.loads((tmp_path / "r.json").read_text())["cells"]
    assert {cell["concurrency"] for cell in cells} <= {1, 2}


# What fails on the way --------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_full_disk_costs_one_file_alone(bench, tmp_path):
    told = bench("--concurrency", "2", "--strategies", "singles", "--repeat", "2", "--json", "/dev/full",
                 "--report", tmp_path / "r.html")  # fmt: skip
    assert told.exit_code == 4
    assert told.stderr.count("Error: /dev/full: No space left on device") == 1
    assert told.stdout
    assert "singles, 2 in flight, repetition 2" in (tmp_path / "r.html").read_text()


@pytest.mark.long
def test_a_fault_of_the_measurement_leaves_what_is_finished(bench, tmp_path, monkeypatch):
    whole = Session.cell

    async def failing(self, setting, repetition=0):
        if repetition == 2:
            raise RuntimeError("a process that makes calls has failed")
        return await whole(self, setting, repetition)

    monkeypatch.setattr(Session, "cell", failing)
    told = bench("--concurrency", "2", "--strategies", "singles", "--repeat", "3", "--json", tmp_path / "r.json")
    assert isinstance(told.exception, RuntimeError)
    assert told.stdout.startswith("incomplete: ended after 2 measurements: RuntimeError")
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["complete"], len(report["cells"])) == (False, 2)


@pytest.mark.long
def test_a_reader_that_goes_away_costs_no_report(server, tmp_path):
    command = [*COMMAND, "bench", "--base-url", server.base_url, "--model", server.model, *SHORT, "--concurrency", "2",
               "--strategies", "singles", "--repeat", "1", "--json", tmp_path / "r.json"]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        process.stdout.close()
        told = process.stderr.read()
        process.wait(timeout=20)
    finally:
        process.kill()
        process.stderr.close()
    assert (process.returncode, "Traceback" in told) == (1, False), told
    assert json.loads((tmp_path / "r.json").read_text())["complete"] is True


def test_a_server_that_is_not_there(bench):
    told = bench(url="http://127.0.0.1:9/v1")
    assert told.exit_code == 5
    assert "\nError: the first call failed: ConnectFailed: " in told.stderr


@pytest.mark.long
def test_a_server_that_goes_away_ends_the_sweep(bench, tmp_path):
    with EmbeddedServer("gpu", faults=["status=400,after=20"]) as server:
        told = bench("--concurrency", "1", "--strategies", "singles", "--repeat", "9", "--json", tmp_path / "r.json",
                     url=server.base_url, short=[*SHORT, "--for", "0.2"])  # fmt: skip
    assert told.exit_code == 1
    assert "Error: no call was answered in the last two measurements: " in told.stderr
    assert told.stdout.startswith("incomplete: ended after ")
    # On a busy machine the recommendation lacks for another reason, too.
    assert "no recommendation: " in told.stdout
    assert "calls failed (see the marks)" in told.stdout
    table = told.stderr[told.stderr.index("\nsetting") :]
    assert "failed" in table.splitlines()[1]
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["complete"] is False
    assert [cell["answered"] for cell in report["cells"][-2:]] == [0, 0]


@pytest.mark.long
def test_a_server_that_dies_ends_the_sweep_though_its_callers_only_wait(bench, tmp_path):
    """The client waits for a server that is away: no call fails, and none is scheduled in the window."""
    server = EmbeddedServer("instant", process=True)
    server.__enter__()
    whole, cells = Session.cell, []

    async def watched(self, setting, repetition=0):
        if len(cells) == 2:
            await asyncio.to_thread(server.__exit__, None, None, None)
        cells.append(setting)
        return await whole(self, setting, repetition)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "cell", watched)
        told = bench("--concurrency", "2", "--strategies", "adaptive", "--repeat", "9", "--json", tmp_path / "r.json",
                     url=server.base_url, short=[*SHORT, "--for", "1", "--grace", "0.1"])  # fmt: skip
    assert told.exit_code == 1
    assert "Error: no call was answered in the last two measurements" in told.stderr
    assert told.stderr.count("adaptive, 2 in flight: no call was answered") == 2
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["complete"], len(report["cells"])) == (False, 4)
    assert [cell["scheduled"] for cell in report["cells"][-2:]] == [0, 0]


def test_a_wrong_key_is_told_once(bench):
    with EmbeddedServer("instant", api_key="right") as server:
        told = bench(url=server.base_url)
    assert told.exit_code == 1
    assert "BATCHCLIENT_API_KEY" in told.stderr


@pytest.mark.long
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
               "--json", tmp_path / "r.json", "--report", tmp_path / "r.html"]  # fmt: skip
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
        report = json.loads((tmp_path / f"{name}.json").read_text())
        # A busy machine's marked repetition would be in no figure.
        report["cells"] = [{**cell, "marks": []} for cell in report["cells"]]
        (tmp_path / f"{name}.json").write_text(json.dumps(report))
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


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The text of a report with two settings and two repetitions."""
    path = tmp_path_factory.mktemp("measured") / "a.json"
    with EmbeddedServer("instant") as server:
        told = CliRunner().invoke(
            make_app(["bench"]),
            ["bench", "--base-url", server.base_url, *SHORT, "--concurrency", "2,4", "--strategies", "singles",
             "--repeat", "2", "--json", str(path)],
        )  # fmt: skip
    assert told.exit_code == 0, told.stderr
    report = json.loads(path.read_text())
    for cell in report["cells"]:
        cell["marks"] = []  # of a busy machine: a marked repetition is in no figure
    return json.dumps(report)


@pytest.fixture
def pair(measured, tmp_path):
    """Write two reports of one measurement, the second one changed."""

    def write(change):
        (tmp_path / "a.json").write_text(measured)
        worse = json.loads(measured)
        change(worse)
        (tmp_path / "b.json").write_text(json.dumps(worse))
        return tmp_path / "a.json", tmp_path / "b.json"

    return write


def test_a_server_that_answers_nothing_passes_no_bound(cli, pair):
    def die(report):
        for cell in report["cells"]:
            if cell["concurrency"] == 4:
                cell.update(answered=0, failed={"ConnectFailed": cell["scheduled"]}, goodput=0.0, calls_per_s=0.0,
                            tokens_per_s=0.0, times={})  # fmt: skip

    told = cli("bench", "compare", *pair(die), "--fail-if", "goodput<0.5")
    assert told.exit_code == 1
    assert "singles, 4 in flight: goodput 0.00 × (2 repetitions)  beyond goodput<0.5\n" in told.stdout
    assert cli("bench", "compare", *pair(die)).exit_code == 0
    # Nothing got worse where the first report has no answer either.
    _, dead = pair(die)
    assert cli("bench", "compare", dead, dead, "--fail-if", "goodput<0.5", "--fail-if", "p95>1.1").exit_code == 0


def test_a_setting_that_was_not_measured_passes_no_bound(cli, pair):
    def stop(report):
        report["cells"] = [cell for cell in report["cells"] if cell["concurrency"] == 2]
        report["complete"] = False

    told = cli("bench", "compare", *pair(stop), "--fail-if", "goodput<0.5")
    assert told.exit_code == 2
    assert "only the first report has: singles, 4 in flight" in told.stderr
    forced = cli("bench", "compare", *pair(stop), "--force", "--fail-if", "goodput<0.5")
    assert forced.exit_code == 1
    assert forced.stdout.startswith("different: only the first report has: singles, 4 in flight\n")
    assert forced.stdout.endswith("the second report is incomplete\n")
    assert cli("bench", "compare", *pair(stop), "--force").exit_code == 0

    def choose(report):
        report["cells"] = [cell for cell in report["cells"] if cell["concurrency"] == 2]

    assert cli("bench", "compare", *pair(choose), "--force", "--fail-if", "goodput<0.5").exit_code == 0


def test_a_page_does_not_replace_its_report(cli, pair, tmp_path):
    path, _ = pair(lambda report: None)
    before = path.read_bytes()
    told = cli("bench", "report", path, "-o", tmp_path / "." / "a.json")
    assert told.exit_code == 2
    assert "the report itself" in told.stderr
    assert cli("bench", "report", path, "-o", "-").stderr.startswith("Error: --output -: the name of a file")
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "change",
    [
        lambda report: report.update(server=None),
        lambda report: report.update(answer=5),
        lambda report: [cell.update(calls_per_s="fast") for cell in report["cells"]],
        lambda report: [cell.update(slo_hits=[]) for cell in report["cells"]],
    ],
)
def test_a_damaged_report_is_refused(cli, pair, tmp_path, change):
    _, path = pair(lambda report: (report.update(slo=["p95<1s"]), change(report)))
    told = cli("bench", "report", path, "-o", tmp_path / "r.html")
    assert (told.exit_code, told.stdout) == (2, "")
    assert told.stderr.startswith(f"Error: {path}: ")
    assert not (tmp_path / "r.html").exists()


def test_a_damaged_report_is_not_compared(cli, pair):
    told = cli("bench", "compare", *pair(lambda report: report["cells"][0].update(calls_per_s="fast")))
    assert told.exit_code == 2
    assert "b.json: " in told.stderr


@pytest.mark.parametrize("url", ["http://localhost:8000/v1", f"https://user:{CANARY}@host/v1"])
def test_a_url_without_its_option_is_told_where_it_goes(cli, url):
    told = cli("bench", url)
    assert told.exit_code == 2
    assert told.stderr == "Error: a server is given with --base-url URL\n"


def test_what_is_no_report_is_refused(cli, tmp_path):
    (tmp_path / "x.json").write_text("{}")
    told = cli("bench", "compare", tmp_path / "x.json", tmp_path / "nowhere.json")
    assert told.exit_code == 2
    assert "no report" in told.stderr
