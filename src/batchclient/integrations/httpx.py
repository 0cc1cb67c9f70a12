"""``BatchTransport`` and ``SyncBatchTransport`` for httpx.

Users: openai 2, LiteLLM and any other library that takes an ``httpx`` client.
"""

from __future__ import annotations

from typing import Any, ClassVar

import httpx

from batchclient.integrations._transports import AsyncBatching, SyncBatching

__all__ = ["BatchTransport", "SyncBatchTransport"]


class BatchTransport(AsyncBatching, httpx.AsyncBaseTransport):  # noqa: D101  # inherited
    _library: ClassVar[Any] = httpx


class SyncBatchTransport(SyncBatching, httpx.BaseTransport):  # noqa: D101  # inherited
    _library: ClassVar[Any] = httpx
