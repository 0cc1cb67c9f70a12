"""``batchclient bench`` on the embedded server: a whole measurement, wrong commands, Ctrl-C, comparisons."""

import asyncio
import json
import re
import signal
import subprocess

import pytest
from tests import command_line
from tests.cli.conftest import COMMAND

from batchclient.bench.session import Session
from batchclient.cli._bench_options import is_hosted
from batchclient.cli._bench_run import Outputs
from batchclient.simulator import EmbeddedServer

CANARY = "swordfish"
SHORT = ["--for", "0.4", "--warm-up", "0.1", "--grace", "5", "--prompt-tokens", "16", "--output-tokens", "4"]


@pytest.fixture
def bench(cli, server):
    def run(*args, url=None, short=SHORT):
        return cli("bench", "--base-url", url or server.base_url, "--model", server.model, *short, *args)

    return run


def test_a_sweep_answers_and_writes_its_reports(bench, tmp_path, cli):
    told = bench("--concurrency", "2,8", "--strategies", "adaptive,singles", "--repeat", "1", "--slo", "p95<2s",
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
    assert "Throughput by calls in flight" in page
    answer = told.stdout.splitlines()
    assert answer[0].startswith("p95 < 2 s: ")
    # On a busy machine every cell may have measured the client.
    assert (
        any(line.startswith("suggested: BatchClient(…") for line in answer)
        or "too busy to measure the server" in answer[0]
    )
    assert told.stderr.count("\n[") == 4
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["about"]["complete"] is True
    assert len(report["measurements"]) == 4
    assert report["lines"] == answer


def test_a_search_answers(bench):
    told = bench("--find", "limit", "--slo", "p95<5s", "--budget", "1", short=[*SHORT[:0], "--for", "0.2", *SHORT[2:]])
    assert told.exit_code == 0, told.stderr
    assert "p95 < 5 s: " in told.stdout
    assert re.search(r"^\[1\] fixed, 1 in flight: .*; window 1, p95 < 5 s kept so far$", told.stderr, re.MULTILINE)


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
        (["--slo", "p95>1s"], "'--slo': 'p95>1s' is no objective; its form is"),
        (
            ["--slo", "ttft p95<1s", "--strategies", "async-openai"],
            "--slo: ttft p95<1s: async-openai of complete tells no first tokens",
        ),
        (["--find", "speed"], "Error: Invalid value for '--find': 'speed' is not one of"),
        (["--find", "rate"], "--find rate needs an objective"),
        (["--strategies", "fast"], "--strategies: no 'fast'; there are: adaptive, "),
        (["--concurrency", "4,x"], "'--concurrency': whole numbers"),
        (["--concurrency", "9000000"], "open files"),
        (["--rate", "0"], "'--rate': calls per second above 0"),
        (["--rate", "5", "--concurrency", "1,2"], "--concurrency: one limit at most"),
        (["--for", "ten"], "'--for': a duration such as 30, 90s or 15m"),
        (["--prompts", "nowhere.txt"], "--prompts: nowhere.txt: No such file"),
        (["--prompts", "{dir}/in.jsonl"], "--prompts: {dir}/in.jsonl: line 2"),
        (
            ["--prompts", "{dir}/one.jsonl", "--json", "{dir}/one.jsonl"],
            "--json {dir}/one.jsonl: the file of --prompts",
        ),
        (["--json", "/nowhere/r.json"], "/nowhere/r.json: "),
        (["--report", "x.json", "--json", "./x.json"], "--json ./x.json: the file of --report"),
        (["--sizes", "8", "--strategies", "adaptive"], "--sizes: of lists, and --strategies has none"),
        (["--call", "embed", "--output-tokens", "9"], "--output-tokens: --call embed generates nothing"),
        (["--rate", "1000000000"], "'--rate': 100,000 calls per second at most"),
    ],
)
def test_a_wrong_command_is_refused_before_a_call(bench, server, tmp_path, args, why):
    (tmp_path / "in.jsonl").write_text('{"text": "a"}\n{"text": \n')
    (tmp_path / "one.jsonl").write_text('{"text": "a"}\n')
    told = bench(*(arg.replace("{dir}", str(tmp_path)) for arg in args), short=[])
    assert told.exit_code == 2
    assert why.replace("{dir}", str(tmp_path)) in told.stderr
    assert "Error: " in told.stderr
    assert server.requests == 0
    assert (tmp_path / "one.jsonl").read_text() == '{"text": "a"}\n'


def test_a_hosted_service_is_known_by_its_host():
    for host in ("localhost:8000", "10.1.2.3", "[::1]:8", "gpu-3:8000", "vllm.models.svc"):
        assert not is_hosted(f"http://{host}/v1")
    assert is_hosted("https://api.example.com/v1") and is_hosted("https://8.8.8.8/v1")


def test_a_hosted_service_is_measured_with_a_yes_alone(bench):
    told = bench("--api-key", "k", url="https://api.example.com/v1")
    assert told.exit_code == 2
    assert "each call has some 16 tokens of prompt and 4 of answer; --yes does it" in told.stderr
    told = bench("--api-key", "k", "--find", "limit", "--budget", "90s", url="https://api.example.com/v1")
    assert "without a pause for 90 s" in told.stderr


def test_a_look_at_the_outputs_leaves_no_file_and_every_link(tmp_path):
    link = tmp_path / "r.json"
    link.symlink_to(tmp_path / "elsewhere.json")
    Outputs(str(tmp_path / "r.html"), str(link)).check()
    assert link.is_symlink()
    assert list(tmp_path.iterdir()) == [link]


def test_the_budget_bounds_the_first_call(bench):
    with EmbeddedServer("gpu", faults=["stall"]) as server:
        told = bench("--budget", "0.1", url=server.base_url)
    assert (told.exit_code, told.stderr) == (1, "Error: the first call had no answer within the budget\n")


# What fails on the way --------------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_full_disk_costs_one_file_alone(bench, tmp_path):
    told = bench("--concurrency", "2", "--strategies", "singles", "--repeat", "2", "--json", "/dev/full",
                 "--report", tmp_path / "r.html")  # fmt: skip
    assert told.exit_code == 4
    assert told.stderr.count("Error: /dev/full: No space left on device") == 1
    assert told.stdout
    assert "singles, 2 in flight, repetition 2" in (tmp_path / "r.html").read_text()


@pytest.fixture
def start(server, tmp_path):
    """Start ``bench`` as a process that writes a report."""
    processes = []

    def run(*args):
        command = [*COMMAND, "bench", "--base-url", server.base_url, "--model", server.model, *args]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        processes.append(subprocess.Popen([*command, "--json", tmp_path / "r.json"], text=True, **pipes))
        return processes[-1]

    yield run
    for process in processes:
        process.kill()
        process.wait()
        process.stderr.close()


@pytest.mark.long
def test_a_reader_that_goes_away_costs_no_report(start, tmp_path):
    process = start(*SHORT, "--concurrency", "2", "--strategies", "singles", "--repeat", "1")
    process.stdout.close()
    told = process.stderr.read()
    assert (process.wait(20), "Traceback" in told) == (1, False), told
    assert json.loads((tmp_path / "r.json").read_text())["about"]["complete"] is True


@pytest.mark.long
def test_a_server_that_dies_ends_the_sweep_though_its_callers_only_wait(bench, tmp_path):
    """The client waits for a server that is away: no call fails, and none is scheduled in the window."""
    server = EmbeddedServer("instant", process=True)
    server.__enter__()
    whole, cells = Session.measure, []

    async def watched(self, setting, repetition=0):
        if len(cells) == 2:
            await asyncio.to_thread(server.__exit__, None, None, None)
        cells.append(setting)
        return await whole(self, setting, repetition)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Session, "measure", watched)
        told = bench("--concurrency", "1", "--strategies", "adaptive", "--repeat", "9", "--json", tmp_path / "r.json",
                     url=server.base_url, short=[*SHORT, "--for", "1", "--grace", "0.1"])  # fmt: skip
    assert told.exit_code == 1
    assert "Error: no call was answered in the last two measurements" in told.stderr
    assert told.stderr.count("adaptive, 1 in flight: no call was answered") == 2
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["about"]["complete"], len(report["measurements"])) == (False, 4)
    assert [cell["scheduled"] for cell in report["measurements"][-2:]] == [0, 0]


def interrupted(process, at):
    """Interrupt it at a line; return what it said to stdout, and the rest of stderr."""
    for line in process.stderr:
        if at in line:
            break
    process.send_signal(signal.SIGINT)
    said = process.communicate(timeout=20)
    assert process.returncode == 130
    return said


@pytest.mark.long
def test_ctrl_c_writes_what_is_finished(start, tmp_path):
    out, _ = interrupted(start(*SHORT, "--concurrency", "2", "--strategies", "singles", "--repeat", "99"), "[2/")
    assert out.startswith("incomplete: ended after ")
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["about"]["complete"], len(report["measurements"]) >= 2) == (False, True)


def test_ctrl_c_before_the_first_measurement_leaves_no_file(start, tmp_path):
    said = interrupted(start("--for", "60", "--report", tmp_path / "r.html"), "measurements, ")
    assert said == ("", "stopped before the first measurement was done; nothing is written\n")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """The text of a report with two settings and two repetitions."""
    path = tmp_path_factory.mktemp("measured") / "a.json"
    with EmbeddedServer("instant") as server:
        told = command_line.run(
            "bench", "--base-url", server.base_url, *SHORT, "--concurrency", "2,4", "--strategies", "singles",
            "--repeat", "2", "--json", path,
        )  # fmt: skip
    assert told.exit_code == 0, told.stderr
    report = json.loads(path.read_text())
    for cell in report["measurements"]:
        cell |= {"marks": [], "goodput": 100.0}  # of a busy machine: a marked repetition is in no figure
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


def test_reports_are_compared(cli, pair):
    def halve(report):
        report["about"]["workload"]["output_tokens"] = 99
        for cell in report["measurements"]:
            cell["goodput"] /= 2

    one, other = pair(halve)
    assert cli("bench", "compare", one, one, "--fail-if", "goodput<0.95").exit_code == 0
    unlike = cli("bench", "compare", one, other)
    assert unlike.exit_code == 2 and "output tokens: 4 and 99" in unlike.stderr
    assert cli("bench", "compare", one, other, "--force").exit_code == 0
    assert cli("bench", "compare", one, other, "--force", "--fail-if", "goodput<0.95").exit_code == 1


def test_a_server_that_answers_nothing_passes_no_bound(cli, pair):
    def die(report):
        for cell in report["measurements"]:
            if cell["setting"]["concurrency"] == 4:
                cell.update(answered=0, failed={"ConnectFailed": cell["scheduled"]}, goodput=0.0, calls_per_s=0.0,
                            tokens_per_s=0.0, times={}, slo_hits=[])  # fmt: skip

    told = cli("bench", "compare", *pair(die), "--fail-if", "goodput<0.5")
    assert told.exit_code == 1
    assert "singles, 4 in flight: goodput 0.00 × (2 repetitions)  beyond goodput<0.5\n" in told.stdout
    assert cli("bench", "compare", *pair(die)).exit_code == 0
    # Nothing got worse where the first report has no answer either.
    _, dead = pair(die)
    assert cli("bench", "compare", dead, dead, "--fail-if", "goodput<0.5", "--fail-if", "p95>1.1").exit_code == 0


def test_a_setting_that_was_not_measured_passes_no_bound(cli, pair):
    def stop(report):
        report["measurements"] = [cell for cell in report["measurements"] if cell["setting"]["concurrency"] == 2]
        report["about"]["complete"] = False

    told = cli("bench", "compare", *pair(stop), "--fail-if", "goodput<0.5")
    assert told.exit_code == 2
    assert "only the first report has: singles, 4 in flight" in told.stderr
    forced = cli("bench", "compare", *pair(stop), "--force", "--fail-if", "goodput<0.5")
    assert forced.exit_code == 1
    assert forced.stdout.startswith("different: only the first report has: singles, 4 in flight\n")
    assert forced.stdout.endswith("the second report is incomplete\n")
    assert cli("bench", "compare", *pair(stop), "--force").exit_code == 0


def test_a_page_does_not_replace_its_report(cli, pair, tmp_path):
    path, _ = pair(lambda report: None)
    before = path.read_bytes()
    told = cli("bench", "report", path, "-o", tmp_path / "." / "a.json")
    assert told.exit_code == 2
    assert "the report itself" in told.stderr
    assert cli("bench", "report", path, "-o", "-").stderr.startswith("Error: --output -: the name of a file")
    assert path.read_bytes() == before


def test_a_damaged_report_is_refused(cli, pair, tmp_path):
    for change in (
        lambda report: report.update(about=None),
        lambda report: [cell.update(calls_per_s="fast") for cell in report["measurements"]],
        lambda report: report.clear(),
    ):
        one, path = pair(change)
        for command in (["report", path, "-o", tmp_path / "r.html"], ["compare", one, path]):
            told = cli("bench", *command)
            assert (told.exit_code, told.stdout) == (2, "")
            assert told.stderr.startswith(f"Error: {path}: ")
    assert not (tmp_path / "r.html").exists()
