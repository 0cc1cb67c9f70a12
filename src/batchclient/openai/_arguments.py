"""The arguments of the drop-in's constructors, for type checkers: openai's own and ours."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from batchclient.options import SharingArguments

if TYPE_CHECKING:
    import httpx
    import httpx2
    from openai import Timeout

    from batchclient.options import Server

__all__ = ["AsyncArguments", "SyncArguments"]


class _Common(SharingArguments, total=False):
    admin_api_key: str | None
    workload_identity: Any
    organization: str | None
    project: str | None
    webhook_secret: str | None
    provider: Any
    base_url: str | Server | Sequence[str | Server] | httpx.URL | httpx2.URL | None
    data_residency: Any
    websocket_base_url: str | httpx.URL | httpx2.URL | None
    timeout: float | Timeout | None
    max_retries: int
    default_headers: Mapping[str, str] | None
    default_query: Mapping[str, object] | None
    ignored_headers: Collection[str]
    _strict_response_validation: bool
    _enforce_credentials: bool


class AsyncArguments(_Common, total=False):
    """``AsyncOpenAI``'s."""

    api_key: str | Callable[[], Awaitable[str]] | None
    http_client: httpx.AsyncClient | httpx2.AsyncClient | None


class SyncArguments(_Common, total=False):
    """``OpenAI``'s."""

    api_key: str | Callable[[], str] | None
    http_client: httpx.Client | httpx2.Client | None
