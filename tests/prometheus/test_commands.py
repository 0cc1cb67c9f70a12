"""``batchclient metrics``: names, a dashboard that Grafana imports, rules; and what is refused."""

import functools
import json
from itertools import combinations

import pytest
from tests import command_line

from batchclient._metrics.dashboards import PROGRAMS, SERVERS
from batchclient._metrics.registry import METRICS

OLDEST_GRAFANA_10 = 38
"""The ``schemaVersion`` that Grafana 10.0 writes. Grafana reads files up to its own version."""


@pytest.fixture
def metrics():
    return functools.partial(command_line.run, "metrics")


@pytest.fixture
def board(metrics):
    def made(*arguments):
        return json.loads(metrics("dashboard", *arguments).stdout)

    return made


def panels_of(board):
    return [panel for panel in board["panels"] if panel["type"] != "row"]


def queries_of(board):
    return [target["expr"] for panel in panels_of(board) for target in panel["targets"]]


def test_the_list_has_every_metric(metrics):
    lines = metrics("list").stdout.splitlines()
    assert [line.split()[0] for line in lines] == [metric.full_name for metric in METRICS]
    told = lines[[metric.name for metric in METRICS].index("request_duration_seconds")].split(maxsplit=3)
    assert told[1:] == ["histogram", "endpoint,kind,size", "Time of a request."]


def test_the_list_has_the_servers_names_with_their_source(metrics):
    lines = metrics("list", "--server", "tgi", "--server", "vllm", "--dcgm").stdout.splitlines()
    others = [line for line in lines if not line.startswith("batchclient_")]
    assert [line.split()[0] for line in others] == [
        metric.name for roles in (PROGRAMS["tgi"], PROGRAMS["vllm"], PROGRAMS["dcgm"]) for metric in roles.values()
    ]
    assert all("[" in line for line in others)


def test_a_dashboard_asks_the_data_source_that_its_reader_chooses(board):
    made = board("--server", "vllm", "--dcgm")
    source = {"type": "prometheus", "uid": "${datasource}"}
    assert [(each["name"], each["type"]) for each in made["templating"]["list"]][0] == ("datasource", "datasource")
    for panel in panels_of(made):
        assert panel["datasource"] == source
        assert all(target["datasource"] == source for target in panel["targets"])


def test_a_dashboard_is_one_that_grafana_10_and_later_migrate(board):
    assert board()["schemaVersion"] <= OLDEST_GRAFANA_10


def test_panels_neither_overlap_nor_leave_the_board(board):
    made = board("--server", "vllm", "--server", "sglang", "--server", "tgi", "--server", "llamacpp", "--dcgm")
    assert len({panel["id"] for panel in made["panels"]}) == len(made["panels"])
    places = [panel["gridPos"] for panel in made["panels"]]
    assert all(place["x"] + place["w"] <= 24 for place in places)
    for one, other in combinations(places, 2):
        beside = one["x"] + one["w"] <= other["x"] or other["x"] + other["w"] <= one["x"]
        above = one["y"] + one["h"] <= other["y"] or other["y"] + other["h"] <= one["y"]
        assert beside or above


def test_a_dashboard_has_a_servers_metrics_where_they_are_asked_for(board):
    own = queries_of(board())
    assert own and all("batchclient_" in query for query in own)
    for server in SERVERS:
        more = queries_of(board("--server", server))[len(own) :]
        asked = " ".join(more)
        assert all(metric.name in asked for metric in PROGRAMS[server].values())
    gpu = queries_of(board("--dcgm"))[len(own) :]
    assert gpu and all("DCGM_" in query for query in gpu)


@pytest.mark.parametrize(("option", "prefix", "rule"), [
    ("--jobs", "batchclient_job_", "BatchclientJobStands"), ("--worker", "batchclient_worker_", "BatchclientDeadLetters"),
])  # fmt: skip
def test_jobs_and_workers_have_panels_and_rules_where_they_are_asked_for(board, metrics, option, prefix, rule):
    more = [query for query in queries_of(board(option)) if query not in queries_of(board())]
    assert more and all(prefix in query for query in more)
    assert rule in metrics("rules", option).stdout
    assert prefix not in metrics("rules").stdout


def test_a_server_that_lacks_a_metric_lacks_its_panel(board):
    titles = {server: {panel["title"] for panel in panels_of(board("--server", server))} for server in SERVERS}
    assert "KV cache in use" in titles["vllm"]
    assert "KV cache in use" not in titles["tgi"] | titles["llamacpp"]


def test_the_same_is_written_again(metrics):
    for command in ("list", "dashboard", "rules"):
        assert metrics(command, "--dcgm").stdout == metrics(command, "--dcgm").stdout != ""


def test_a_server_given_twice_counts_once(metrics):
    assert (
        metrics("rules", "--server", "vllm", "--server", "vllm").stdout == metrics("rules", "--server", "vllm").stdout
    )


@pytest.mark.parametrize("command", ["list", "dashboard", "rules"])
def test_an_unknown_server_is_refused_with_the_known_ones(metrics, command):
    result = metrics(command, "--server", "vlm")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "'vlm' is not one of 'vllm', 'sglang', 'tgi', 'llamacpp'" in result.stderr
