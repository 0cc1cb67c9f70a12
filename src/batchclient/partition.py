"""Servers for one of several workers: each worker sends to servers of its own.

A limit is found by what one client's calls do to a server. Two clients on one server see each
other's load as the server's own slowness. Workers with disjoint servers need no lock, no counter
and no service.

Rules:
- The shares of n workers are disjoint, and together they are all servers. Their sizes differ by at
  most one.
- Every worker finds the same shares by itself, from the same servers in any order: scores are a
  hash of URL and worker (rendezvous hashing: Thaler and Ravishankar, 1998).
- Worker k takes its share from the workers before, always from a largest share the server of the
  highest score. So one worker more moves the new worker's servers, and no others.
- A server that joins or leaves moves itself, and few others where the sizes demand it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from batchclient._client.parts import shard_from
from batchclient.errors import ConfigError

if TYPE_CHECKING:
    from batchclient.options import Server

__all__ = ["endpoints_shard"]


def endpoints_shard(base_url: str | Server | Sequence[str | Server], shard: str | Sequence[int]) -> list[str | Server]:
    """Return the servers of one of n workers, for the worker's ``BatchClient``.

    For example::

        client = BatchClient(endpoints_shard(urls, "0/4"))

    Args:
        base_url: all servers, as for ``BatchClient``: the same for each worker, in any order, with
            hosts in any case.
        shard: the worker i of n, from 0: ``"i/n"`` or ``(i, n)``.

    Raises:
        ConfigError: an argument is wrong, or there are more workers than servers.
    """
    part, parts = shard_from(shard, "endpoints_shard")
    from batchclient._settings import check_servers

    urls = [server.url for server in check_servers(base_url)]
    if parts > len(urls):
        raise ConfigError(
            f"endpoints_shard: {parts} workers share {len(urls)} server{'s' * (len(urls) != 1)}: give each worker all"
            " servers, and a part of what a server takes as its limit",
            field="endpoints_shard",
        )
    owners = _owners(urls, parts)
    given = base_url if isinstance(base_url, (list, tuple)) else [base_url]
    return [server for server, url in zip(given, urls, strict=True) if owners[url] == part]


def _owners(urls: Sequence[str], parts: int) -> dict[str, int]:
    """Return the worker of each URL."""
    owners = dict.fromkeys(urls, 0)
    sizes = [len(urls)] + [0] * (parts - 1)
    for joining in range(1, parts):
        best_first = sorted(urls, key=lambda url: (_score(url, joining), url), reverse=True)
        for _ in range(len(urls) // (joining + 1)):
            largest = max(sizes[:joining])
            taken = next(url for url in best_first if owners[url] != joining and sizes[owners[url]] == largest)
            sizes[owners[taken]] -= 1
            sizes[joining] += 1
            owners[taken] = joining
    return owners


def _score(url: str, worker: int) -> bytes:
    return hashlib.sha256(f"{worker} {url}".encode()).digest()
