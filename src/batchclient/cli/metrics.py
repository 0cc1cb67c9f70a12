"""``batchclient metrics``: names of metrics, a dashboard for Grafana, alert rules for Prometheus.

Rules:
- The commands write to stdout, and ask no server.
- With ``--server`` and ``--dcgm`` the results name those programs' own metrics, too.
- The page of a job or a worker is a client's with more metrics, which are asked for as well.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from batchclient._metrics.dashboards import PROGRAMS, ForeignMetric, alerts_of, dashboard_of, panels_of, rules_of
from batchclient._metrics.registry import METRICS
from batchclient.cli._words import put
from batchclient.cli.app import make_group

__all__ = ["make_metrics_app"]


class _Server(StrEnum):
    """A server whose metrics are known; typer takes no Literal in a list."""

    VLLM = "vllm"
    SGLANG = "sglang"
    TGI = "tgi"
    LLAMACPP = "llamacpp"


_Servers = Annotated[
    list[_Server] | None,
    typer.Option("--server", help="With this server's metrics, which Prometheus then scrapes, too; repeatable."),
]
_Dcgm = Annotated[bool, typer.Option("--dcgm", help="With the metrics of NVIDIA's dcgm-exporter.")]
_Jobs = Annotated[bool, typer.Option("--jobs", help="With the rows of jobs: map --metrics-port.")]
_Worker = Annotated[bool, typer.Option("--worker", help="With the messages of workers: work --metrics-port.")]


def make_metrics_app() -> typer.Typer:
    """Make the group of commands."""
    app = make_group("Write the metrics' names, a dashboard for Grafana, or alert rules for Prometheus.")
    app.command("list")(list_names)
    app.command()(dashboard)
    app.command()(rules)
    return app


def list_names(server: _Servers = None, *, dcgm: _Dcgm = False) -> None:
    """Write the names: a line each, with the type, the labels and what is counted."""
    lines: list[tuple[str, str, str, str]] = [
        (metric.full_name, metric.kind, ",".join(metric.labels) or "-", metric.help) for metric in METRICS
    ]
    for program in _parts(server, dcgm=dcgm):
        lines += map(_line, PROGRAMS.get(program, {}).values())
    widths = [max(len(line[column]) for line in lines) for column in range(3)]
    for line in lines:
        put("  ".join([*(text.ljust(width) for text, width in zip(line, widths, strict=False)), line[3]]))


def dashboard(server: _Servers = None, *, dcgm: _Dcgm = False, jobs: _Jobs = False, worker: _Worker = False) -> None:
    """Write a dashboard as JSON: in Grafana, Dashboards, New, Import."""
    put(*dashboard_of(panels_of(_parts(server, dcgm=dcgm, jobs=jobs, worker=worker))).splitlines())


def rules(server: _Servers = None, *, dcgm: _Dcgm = False, jobs: _Jobs = False, worker: _Worker = False) -> None:
    """Write alert rules as YAML: a file for rule_files in prometheus.yml."""
    put(*rules_of(alerts_of(_parts(server, dcgm=dcgm, jobs=jobs, worker=worker))).splitlines())


def _parts(servers: list[_Server] | None, *, dcgm: bool, jobs: bool = False, worker: bool = False) -> list[str]:
    parts = ["client", *["jobs"] * jobs, *["worker"] * worker]
    return [*parts, *dict.fromkeys(each.value for each in servers or ()), *["dcgm"] * dcgm]


def _line(metric: ForeignMetric) -> tuple[str, str, str, str]:
    return metric.name, metric.kind, "-", f"{metric.help} [{metric.source}]"
