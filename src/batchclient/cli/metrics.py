"""``batchclient metrics``: names of metrics, a dashboard for Grafana, alert rules for Prometheus.

Rules:
- The commands write to stdout, and ask no server.
- With ``--server`` and ``--dcgm`` the results name those programs' own metrics, too.
- A job's page is a client's with more metrics, so that panels of jobs are asked for as well.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from batchclient._metrics.alerts import alerts_of
from batchclient._metrics.dashboard import dashboard_of
from batchclient._metrics.queries import panels_of
from batchclient._metrics.registry import METRICS
from batchclient._metrics.rules import rules_of
from batchclient._metrics.server_names import GPU_METRICS, SERVERS, ForeignMetric
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
    for name in dict.fromkeys(server or ()):
        lines += map(_line, SERVERS[name].values())
    if dcgm:
        lines += map(_line, GPU_METRICS.values())
    widths = [max(len(line[column]) for line in lines) for column in range(3)]
    for line in lines:
        put("  ".join([*(text.ljust(width) for text, width in zip(line, widths, strict=False)), line[3]]))


def dashboard(server: _Servers = None, *, dcgm: _Dcgm = False, jobs: _Jobs = False) -> None:
    """Write a dashboard as JSON: in Grafana, Dashboards, New, Import."""
    put(*dashboard_of(panels_of(list(dict.fromkeys(server or ())), gpu=dcgm, jobs=jobs)).splitlines())


def rules(server: _Servers = None, *, dcgm: _Dcgm = False, jobs: _Jobs = False) -> None:
    """Write alert rules as YAML: a file for rule_files in prometheus.yml."""
    put(*rules_of(alerts_of(list(dict.fromkeys(server or ())), gpu=dcgm, jobs=jobs)).splitlines())


def _line(metric: ForeignMetric) -> tuple[str, str, str, str]:
    return metric.name, metric.kind, "-", f"{metric.help} [{metric.source}]"
