"""A file of alert rules for Prometheus, as YAML.

The file has texts alone, so that JSON's strings, which are YAML's, do without a library.
"""

from __future__ import annotations

import json
from collections.abc import Iterable

from batchclient._metrics.alerts import Alert

__all__ = ["rules_of"]

_HEAD = """\
# Made by `batchclient metrics rules`. The bounds are for you to change.
groups:
- name: batchclient
  rules:
"""


def rules_of(alerts: Iterable[Alert]) -> str:
    """Return the file of some alert rules, as ``rule_files`` takes it."""
    return _HEAD + "".join(map(_rule, alerts))


def _rule(alert: Alert) -> str:
    return f"""\
  - alert: {alert.name}
    expr: |-
      {alert.expression}
    for: {alert.lasts}
    labels:
      severity: {alert.severity}
    annotations:
      summary: {json.dumps(alert.summary)}
      description: {json.dumps(alert.description)}
"""
