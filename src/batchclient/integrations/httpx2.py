"""``BatchTransport`` and ``SyncBatchTransport`` for httpx2: openai 3 and libraries built on it."""

from __future__ import annotations

from typing import Any, ClassVar

import httpx2

from batchclient.integrations._transports import AsyncBatching, SyncBatching

__all__ = ["BatchTransport", "SyncBatchTransport"]


class BatchTransport(AsyncBatching, httpx2.AsyncBaseTransport):  # noqa: D101  # inherited
    _library: ClassVar[Any] = httpx2


class SyncBatchTransport(SyncBatching, httpx2.BaseTransport):  # noqa: D101  # inherited
    _library: ClassVar[Any] = httpx2
