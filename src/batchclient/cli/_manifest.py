"""The manifest of a finished job: ``done.json``, the last file that a job writes."""

from __future__ import annotations

import os
import platform
import sqlite3
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from batchclient import __version__
from batchclient.cli._tally import Tally

__all__ = ["manifest_of", "output_in_manifest"]


def manifest_of(
    tally: Tally, outputs: Sequence[dict[str, Any]], *, source: str, call: str, model: str | None
) -> dict[str, Any]:
    """Return the manifest of a job that ends now.

    Args:
        tally: of the job's rows.
        outputs: by ``output_in_manifest``; none for a job that writes into a pipe.
        source: the input's path; ``-``: it could be read once.
        call: of the rows.
        model: that answered; ``None``: no row needed one.
    """
    return {
        "version": 1,
        "input": source if source == "-" else os.path.realpath(source),
        "outputs": list(outputs),
        "read": tally.read,
        "answered": tally.answered,
        "failed": tally.failed,
        "filtered": 0,
        "reused": tally.reused,
        "model": model,
        "call": call,
        "finished": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        "versions": {
            "batchclient": __version__,
            "python": platform.python_version(),
            "sqlite": sqlite3.sqlite_version,
        },
    }


def output_in_manifest(path: Path, size: int, sha256: str) -> dict[str, Any]:
    """Return an output as the manifest tells of one.

    Args:
        path: of the file.
        size: bytes.
        sha256: as hexadecimal digits.
    """
    return {"path": os.path.realpath(path), "bytes": size, "sha256": sha256}
