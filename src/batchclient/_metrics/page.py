"""The page ``/statistics``: a snapshot as JSON, for programs such as ``batchclient top``.

Rules:
- The page has what ``statistics()`` says, and how old it is. Keys of several parts are objects.
- Times of the client's clock are as they are; ``clock_seconds`` is that clock at the snapshot.
- Of the tenants it has those that were named for it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, fields
from typing import Any

from batchclient import Histogram, Statistics
from batchclient._core.histograms import LABELS_OF_HISTOGRAMS
from batchclient._metrics.snapshots import Snapshot

__all__ = ["page_of"]

_LABELS_OF_COUNTS = {
    "outcomes": ("endpoint", "kind", "outcome"),
    "tokens": ("endpoint", "model", "direction"),
    "changes": ("endpoint", "setting", "direction"),
    "costs": ("endpoint",),
    "overflows": ("endpoint", "reason"),
}


def page_of(
    snapshot: Snapshot,
    client_name: str | None = None,
    tenants: Iterable[str] = (),
    more: Mapping[str, float] | None = None,
) -> bytes:
    """Return the page of a snapshot; ``more``: the program's own numbers."""
    fields = {
        "client": client_name,
        "snapshot_age_seconds": snapshot.age_s,
        "event_loop_lag_seconds": snapshot.lag_s,
        "clock_seconds": snapshot.clock_s,
        "job": None if snapshot.job is None else asdict(snapshot.job),
        "worker": None if snapshot.worker is None else asdict(snapshot.worker),
        "more": {name: number if math.isfinite(number) else None for name, number in (more or {}).items()},
        "statistics": _plain(snapshot.statistics, frozenset(tenants)),
    }
    return json.dumps(fields, allow_nan=False).encode()


def _plain(statistics: Statistics, tenants: frozenset[str]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for field in fields(statistics):
        value = getattr(statistics, field.name)
        if field.name in _LABELS_OF_COUNTS:
            plain[field.name] = _counts(value, _LABELS_OF_COUNTS[field.name])
        elif field.name == "lengths":
            plain[field.name] = asdict(value)
        elif field.name in ("endpoints", "adjustments"):
            plain[field.name] = [asdict(each) for each in value]
        elif field.name == "lengths":
            plain[field.name] = asdict(value)
        elif field.name == "priorities":
            plain[field.name] = {str(priority): asdict(lane) for priority, lane in value.items()}
        elif field.name == "tenants":
            plain[field.name] = {tenant: asdict(lane) for tenant, lane in value.items() if tenant in tenants}
        elif field.name == "histograms":
            plain[field.name] = {name: _histograms(name, family) for name, family in value.items()}
        else:
            plain[field.name] = dict(value) if isinstance(value, Mapping) else value
    return plain


def _counts(counts: Mapping[tuple[str, ...], int], labels: tuple[str, ...]) -> list[dict[str, Any]]:
    return [{**dict(zip(labels, key, strict=True)), "count": count} for key, count in counts.items()]


def _histograms(name: str, family: Mapping[tuple[str, ...], Histogram]) -> list[dict[str, Any]]:
    labels = LABELS_OF_HISTOGRAMS[name]
    return [{**dict(zip(labels, key, strict=True)), **asdict(histogram)} for key, histogram in family.items()]
