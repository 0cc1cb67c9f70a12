"""The batch clients behind one openai client and the copies of it: one per server, credentials and headers.

Rules:
- What may differ between two openai clients and matters to a server (its URL, the key, headers, the query, the HTTP client) picks the
  batch client, so that calls which differ in it never share a request.
- A batch client is made when the first call needs it. A few are kept: keys that change by the hour would make more and more of them.
- openai's default HTTP client honours proxies and certificates from the environment, and so do the batch clients' connections.
"""

from __future__ import annotations

import asyncio
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from inspect import signature
from typing import Any
from urllib.parse import urlencode

from batchclient._bridge import Bridge
from batchclient.client import BatchClient
from batchclient.errors import ConfigError
from batchclient.retry import Backoff

__all__ = ["Batching", "split_arguments"]

_OPENAIS = frozenset(
    {
        "self",
        "base_url",
        "api_key",
        "headers",
        "http_client",
        "model",
        "timeout_s",
        "connect_timeout_s",
        "read_timeout_s",
    }
)
"""Parameters of ``BatchClient`` that openai's own arguments stand for."""
_SETTINGS = frozenset(signature(BatchClient.__init__).parameters) - _OPENAIS
_POLICY = Backoff(max_attempts=1000)
"""``max_retries`` bounds the attempts; the waits between them are ours."""
_KEPT = 8
_making_bridges = threading.Lock()
_WRITTEN_BY_US = frozenset({"content-type", "accept"})


def split_arguments(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], Batching]:
    """Split a constructor's arguments into openai's and ours.

    Raises:
        ConfigError: one is of ``BatchClient`` alone, and openai has another name for it.
    """
    theirs = dict(arguments)
    inherited = theirs.pop("_batching", None)
    ours = {name: theirs.pop(name) for name in _SETTINGS & theirs.keys()}
    for name, better in (("timeout_s", "timeout"), ("headers", "default_headers"), ("read_timeout_s", "timeout")):
        if name in theirs:
            raise ConfigError(f"{name} is BatchClient's; openai's clients have {better}", field=name)
    if inherited is not None:
        batching: Batching = inherited
        return theirs, batching
    urls = theirs.get("base_url")
    servers: list[str] = []
    if isinstance(urls, Sequence) and not isinstance(urls, (str, bytes)):
        if not urls:
            raise ConfigError("base_url is an empty list", field="base_url")
        servers = [str(url) for url in urls]
        theirs["base_url"] = servers[0]
    return theirs, Batching(ours, theirs.get("http_client"), servers)


class Batching:
    """The batch clients of an openai client.

    Args:
        settings: ``BatchClient``'s.
        http_client: the user's own, if one was given.
        servers: further base URLs beside openai's one; empty: that one alone.
    """

    def __init__(self, settings: dict[str, Any], http_client: Any, servers: Sequence[str]) -> None:
        self._settings = settings
        self.http_client = http_client
        """The user's own, or ``None``."""
        self._servers = tuple(servers)
        self._clients: OrderedDict[tuple[Any, ...], BatchClient] = OrderedDict()
        self._known: tuple[Any, ...] = ()
        self._client: BatchClient | None = None
        self._timeouts: dict[str, float | None] = {}
        """Of silence and of connecting; a call's own time is another thing."""
        self._leaving: set[asyncio.Task[None]] = set()
        self._bridge: Bridge | None = None
        self.refreshes_key = False
        """Whether the key is a function's answer, to be asked for before each call."""

    def check(self, owner: Any) -> None:
        """Make the batch client, so that wrong settings are refused where they are given.

        Raises:
            ConfigError: a setting is wrong.
        """
        self.refreshes_key = getattr(owner, "_api_key_provider", None) is not None
        if not self._timeouts:
            self._timeouts.update(_timeouts(owner.timeout))
        if not self.refreshes_key:
            self.client(owner)

    @staticmethod
    def serves(owner: Any) -> bool:
        """Whether an openai client's requests can be sent by another: none where a provider signs each of them."""
        special = ("workload_identity", "_provider", "_provider_runtime")
        return owner.custom_auth is None and all(getattr(owner, name, None) is None for name in special)

    def client(self, owner: Any) -> BatchClient | None:
        """Return the batch client for what an openai client sends now; ``None`` if openai alone can send it."""
        known = (owner.api_key, owner._base_url, owner._custom_headers, owner._custom_query)
        # Making headers of these takes longer than a call.
        if known != self._known:
            self._client = self._find(owner)
            self._known = known
        return self._client

    def _find(self, owner: Any) -> BatchClient | None:
        if not self.serves(owner):
            return None
        headers = {
            name.lower(): value
            for name, value in {**owner.auth_headers, **owner.default_headers}.items()
            if isinstance(value, str) and name.lower() not in _WRITTEN_BY_US
        }
        query = urlencode({name: value for name, value in owner.default_query.items() if value is not None}, doseq=True)
        urls = [str(url).rstrip("/") + ("?" + query if query else "") for url in self._servers or [owner.base_url]]
        key = (tuple(urls), tuple(sorted(headers.items())))
        client = self._clients.get(key)
        if client is None:
            settings = {"trust_env": self.http_client is None, "retry": _POLICY, **self._timeouts, **self._settings}
            client = BatchClient(urls, headers=headers, http_client=self.http_client, **settings)
            self._clients[key] = client
            if len(self._clients) > _KEPT:
                self._let_go(self._clients.popitem(last=False)[1])
        self._clients.move_to_end(key)
        return client

    def bridge(self) -> Bridge:
        """The event loop in the background that blocking calls are made in."""
        if self._bridge is None:
            with _making_bridges:
                self._bridge = self._bridge or Bridge(self.aclose)
        return self._bridge

    def of_copy(self, owner: Any, arguments: Mapping[str, Any]) -> Batching:
        """What a copy has: the same, or the like of it where the copy has an HTTP client or a server of its own."""
        given = arguments.get("http_client")
        if (given is None or given is owner._client) and not _is_given(arguments.get("base_url")):
            return _View(self)
        http_client = given if given is not None and given is not owner._client else self.http_client
        return Batching(self._settings, http_client, ())

    def _let_go(self, client: BatchClient) -> None:
        """Close a batch client once its last call is answered."""
        leaving = asyncio.ensure_future(client.drain())
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)

    async def aclose(self) -> None:
        """Close every batch client."""
        for client in list(self._clients.values()):
            await client.aclose()
        for leaving in list(self._leaving):
            leaving.cancel()


class _View(Batching):
    """The batch clients of another, as a copy of its owner sees them: it has options of its own, and so a last client of its own."""

    def __init__(self, of: Batching) -> None:
        super().__init__(of._settings, of.http_client, of._servers)
        self._clients = of._clients
        self._timeouts = of._timeouts
        self._leaving = of._leaving
        self._of = of

    def bridge(self) -> Bridge:
        """Its owner's."""
        return self._of.bridge()


def _timeouts(timeout: Any) -> dict[str, float | None]:
    """Openai's timeout as seconds of silence and of connecting."""
    if timeout is None:
        return {"read_timeout_s": None, "connect_timeout_s": None}
    if isinstance(timeout, (int, float)):
        return {"read_timeout_s": timeout, "connect_timeout_s": timeout}
    return {"read_timeout_s": timeout.read, "connect_timeout_s": timeout.connect}


def _is_given(value: object) -> bool:
    return value is not None and type(value).__name__ not in ("NotGiven", "Omit")
