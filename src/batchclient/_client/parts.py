"""A part of n, as ``--shard`` and ``--endpoints-shard`` name it: ``i/n``, counted from 0."""

from __future__ import annotations

import re
from collections.abc import Sequence

from batchclient.errors import ConfigError

__all__ = ["Shard", "shard_from"]

Shard = tuple[int, int]
"""(i, n): the part i of n, from 0."""


def shard_from(shard: str | Sequence[int], field: str = "shard") -> Shard:
    """Read a shard: ``"3/8"`` or ``(3, 8)``.

    Args:
        shard: the text or the pair.
        field: the argument's name, for the error.

    Raises:
        ConfigError: the shard is no such pair, or there is no such part.
    """
    if isinstance(shard, str):
        found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", shard, re.ASCII)
        pair = [] if found is None else [int(found[1]), int(found[2])]
    else:
        pair = list(shard) if isinstance(shard, (tuple, list)) and all(type(one) is int for one in shard) else []
    if len(pair) != 2:
        raise ConfigError(f"{field}: i/n, such as 0/8 for the first of eight, not {shard!r:.40}", field=field)
    part, parts = pair
    if parts < 1 or not 0 <= part < parts:
        known = f"parts count from 0: 0/{parts} to {parts - 1}/{parts}" if parts else "there is at least one part"
        raise ConfigError(f"{field}: {known}, not {part}/{parts}", field=field)
    return part, parts
