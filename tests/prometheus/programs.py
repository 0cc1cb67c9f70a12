"""Prometheus and promtool: those on the path, or those of scripts/environments.py; and a Prometheus as a process."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlencode
from urllib.request import ProxyHandler, build_opener

import pytest

from tests.live.server_process import HOST, ROOT, NotInstalled, ServerProcess

LONGEST_S = 60.0
SCRAPED_EVERY_S = 0.25
_NO_PROXY = build_opener(ProxyHandler({}))


def program(name: str) -> str | None:
    fetched = Path(os.environ.get("BATCHCLIENT_PROMETHEUS_DIR") or ROOT / ".cache" / "prometheus") / "usr/bin" / name
    given = os.environ.get("BATCHCLIENT_PROMTOOL") if name == "promtool" else None
    return given or shutil.which(name) or (str(fetched) if fetched.is_file() else None)


needs_promtool = pytest.mark.skipif(
    program("promtool") is None,
    reason="promtool is not here: scripts/environments.py brings it; or BATCHCLIENT_PROMTOOL=…",
)
needs_prometheus = pytest.mark.skipif(
    program("prometheus") is None, reason="prometheus is not here: scripts/environments.py brings it"
)


def promtool(*arguments: object, **options: object) -> str:
    """Run promtool, and return what it said; a complaint fails the test."""
    command = [str(program("promtool")), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S, check=False, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


class PrometheusServer(ServerProcess):
    """One Prometheus from `start()` to `stop()`.

    `targets` are addresses (``host:port``) of pages ``/metrics`` by the name of the job. `rules` is a file's text.
    """

    kind = "prometheus"
    health_path = "/-/ready"

    def __init__(self, folder: Path, targets: Mapping[str, str], rules: str) -> None:
        self._folder = folder
        (folder / "rules.yml").write_text(rules)
        jobs = [{"job_name": name, "static_configs": [{"targets": [address]}]} for name, address in targets.items()]
        every = f"{SCRAPED_EVERY_S * 1000:.0f}ms"
        timing = {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every}
        settings = {"global": timing, "rule_files": ["rules.yml"], "scrape_configs": jobs}
        (folder / "prometheus.yml").write_text(json.dumps(settings))
        # The process runs in the folder of what it serves.
        super().__init__(model_dir=folder / "data")

    def check(self) -> None:
        if program("prometheus") is None:
            raise NotInstalled("prometheus is missing: run scripts/environments.py")

    def _command(self) -> list[str]:
        return [
            str(program("prometheus")),
            f"--config.file={self._folder}/prometheus.yml",
            f"--storage.tsdb.path={self._folder}/data",
            f"--web.listen-address={HOST}:{self._port}",
        ]

    def get(self, path: str, **parameters: object) -> dict:
        """Return the data of an answer of the API."""
        url = f"http://{HOST}:{self.port}/api/v1/{path}?{urlencode(parameters)}"
        with _NO_PROXY.open(url, timeout=LONGEST_S) as reply:
            return json.load(reply)["data"]

    def numbers(self, expression: str) -> list[float]:
        """Return the numbers that a query gives now."""
        return [float(sample["value"][1]) for sample in self.get("query", query=expression)["result"]]

    def complaints(self) -> list[str]:
        """Return what is wrong with targets and rules."""
        targets = [each for each in self.get("targets")["activeTargets"] if each["health"] != "up"]
        rules = [rule for group in self.get("rules")["groups"] for rule in group["rules"] if rule["health"] != "ok"]
        return [f"{each['scrapeUrl']}: {each['lastError']}" for each in targets] + [
            f"{rule['name']}: {rule['health']} {rule.get('lastError', '')}" for rule in rules
        ]
