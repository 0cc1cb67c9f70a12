"""Rows put aside: what is left of a row while it waits for another, as bytes for a temporary file.

Rules:
- The row's answer is not among it: that is in the journal, and is read there when the row's turn
  comes.
- A row that cannot be made again of its bytes is not put aside.
- The documents of a list or a tuple, which the caller has, are not written: the same objects are
  handed out. Of others an equal one is.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from batchclient._maps.row import Row

__all__ = ["pack", "unpack"]


def pack(row: Row, *, keeps_document: bool) -> bytes | None:
    """Return what is left of a row but its answer; ``None``: it cannot be made again.

    Args:
        row: it has ended, or waits for an equal row.
        keeps_document: whether the document is among it.
    """
    left = row.document if keeps_document else None, row.id, row.error, row.attempts, row.reused or row.waits
    try:
        packed = pickle.dumps(left, pickle.HIGHEST_PROTOCOL)
        pickle.loads(packed)  # noqa: S301  # these are our own bytes; classes may be the user's, and load badly
    except Exception:
        return None
    return packed


def unpack(packed: bytes, make: Callable[[Any], Row]) -> Row:
    """Make a row again.

    Args:
        packed: of the row.
        make: makes a row of its document, which is ``None`` where it was not packed.
    """
    document, own, error, attempts, is_reused = pickle.loads(packed)  # noqa: S301  # never leaves this process
    row = make(document)
    row.id, row.error, row.attempts, row.reused = own, error, attempts, is_reused
    row.ended = True
    return row
