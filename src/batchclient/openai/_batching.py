"""The batch clients behind an openai client and its copies.

There is a batch client per server, credentials and headers.

Rules:
- Everything that may differ between two openai clients and matters to a server picks the batch
  client: URL, key, headers, query. So calls that differ in any of them never share a request
  (``_identity``).
- A batch client is made when the first call needs the client (``kept_clients``). Where no further
  client may be made, a call goes through openai's own code.
- Blocking clients make their calls in an event loop in the background, and find their batch client
  there: one thread at a time.
- openai's default HTTP client honours proxies and certificates from the environment, and so do the
  batch clients' connections.
- The batch clients send by the HTTP library of the installed openai, so that the library's mocks
  and instrumentation see the requests. openai's own HTTP client is not used: 2 to 6 ms a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from openai import DEFAULT_TIMEOUT

from batchclient._common.forks import ForkLock
from batchclient._old_names import refuse_old
from batchclient._settings import only_given, sending_of
from batchclient._threads.bridge import Bridge
from batchclient.client import BATCH_CLIENT_ARGUMENTS, BatchClient
from batchclient.errors import ConfigError
from batchclient.integrations.form import WireCalls, make_calls
from batchclient.integrations.header_roles import HeaderRoles
from batchclient.integrations.kept_clients import _MOST_CLIENTS, KeptClients
from batchclient.openai._identity import Identity, identity_of, normal, refused_header, state_of, urls_of
from batchclient.openai._sharing import Past, Sharing
from batchclient.openai._timeouts import Bounds, bounds_of
from batchclient.options import Http, Server
from batchclient.retry import Backoff
from batchclient.types import NOT_GIVEN, Reply

__all__ = ["Batching", "split_arguments"]

_OPENAIS = frozenset(
    {
        "base_url",
        "api_key",
        "headers",
        "model",
        "timeout_s",
    }
)
"""Parameters of ``BatchClient`` for which openai has arguments or ways of its own."""
_OPENAIS_NAMES = {
    "timeout_s": "timeout",
    "headers": "default_headers",
}
_SETTINGS = BATCH_CLIENT_ARGUMENTS - _OPENAIS
_POLICY = Backoff(max_attempts=1000)
"""``max_retries`` bounds the attempts; the waits between attempts are ours."""
_LEAST_SILENCE_S = 600.0
"""openai's default.

A call that asks for less has a deadline. A call that asks for more than its client's timeout goes
through untouched.
"""
_making_bridges = ForkLock()


def split_arguments(arguments: Mapping[str, Any]) -> tuple[dict[str, Any], Batching]:
    """Split a constructor's arguments into openai's and ours.

    Raises:
        ConfigError: an argument is ``BatchClient``'s alone, and openai has another name for it.
    """
    theirs = dict(arguments)
    inherited: Batching | None = theirs.pop("_batching", None)
    ours = only_given({name: theirs.pop(name) for name in _SETTINGS & theirs.keys()})
    roles = HeaderRoles(theirs.pop("ignored_headers", ()))
    if "labels" in theirs:
        raise ConfigError("labels of headers is ignored_headers now", field="labels")
    refuse_old(theirs.keys() - {"http_client"})
    for name, better in _OPENAIS_NAMES.items():
        if name in theirs:
            raise ConfigError(f"{name} is BatchClient's; openai's clients have {better}", field=name)
    if inherited is not None:
        return theirs, inherited
    urls = theirs.get("base_url")
    servers: list[str] = []
    rated: dict[str, Server] = {}
    if isinstance(urls, Server):
        urls = [urls]
    if isinstance(urls, Sequence) and not isinstance(urls, (str, bytes)):
        if not urls:
            raise ConfigError("base_url is an empty list", field="base_url")
        given = [url for url in urls if isinstance(url, Server)]
        if any(server.api_key is not None or server.headers is not None for server in given):
            raise ConfigError(
                "base_url: a Server has rates alone here: openai's api_key goes to each of them", field="base_url"
            )
        rated = {server.url.partition("?")[0]: server for server in given}
        servers = [url.url if isinstance(url, Server) else str(url) for url in urls]
        theirs["base_url"] = servers[0]
    if theirs.get("http_client") is not None and not isinstance(ours.get("http", Http()), Http):
        raise ConfigError("http: there is an http_client, too; give one of the two", field="http")
    return theirs, Batching(_Clients(ours, theirs.get("http_client"), roles, rated), servers)


class _Clients:
    """The batch clients of an openai client and all its copies.

    Args:
        settings: ``BatchClient``'s.
        http_client: the user's own, if given.
        header_roles: the headers that keep calls apart.
        rated: servers with rates of their own, by URL.
        sharing: counts the calls, also the calls of other clients with the same counter.
    """

    def __init__(
        self,
        settings: Mapping[str, Any],
        http_client: Any,
        header_roles: HeaderRoles,
        rated: Mapping[str, Server],
        sharing: Sharing | None = None,
    ) -> None:
        self.settings = settings
        self.rated = rated
        self.http_client = http_client
        self.header_roles = header_roles
        self.sharing = sharing or Sharing()
        self.bounds: Bounds | None = None
        """Of silence and of connecting; a call's own time is another bound."""
        self.longest_silence_s: float | None = None
        """The longest server's silence that a call may ask for, seconds; ``None``: for ever."""
        self._clients: KeptClients[_Key] = KeptClients(_MOST_CLIENTS)
        self._finding = ForkLock()
        self._bridge: Bridge | None = None

    def bear(self, bounds: Bounds | None) -> None:
        """Take the bounds of the first openai client's timeout."""
        self.bounds = bounds
        http = self.settings.get("http")
        # Where the client's setting bounds the silence, no call's timeout does.
        is_calls_own = not isinstance(http, Http) or http.read_timeout_s is NOT_GIVEN
        if is_calls_own and bounds is not None and bounds.read_s is not None:
            self.longest_silence_s = max(bounds.read_s, _LEAST_SILENCE_S)

    def find(self, key: _Key) -> BatchClient | None:
        """Return the client for some servers and headers; ``None`` if no further may be made.

        Raises:
            ConfigError: a setting, a URL or a header is wrong.
        """
        # Event loops of several threads may ask.
        with self._finding:
            client = self._clients.find(key, self._make)
            if self._clients.leaving:
                self._clients.close_leaving_soon()
        return client

    def check(self, urls: tuple[str, ...]) -> None:
        """Refuse wrong settings and URLs, where no headers are known yet.

        Raises:
            ConfigError: a setting or a URL is wrong.
        """
        self._make((urls, ()))

    def _make(self, key: _Key) -> BatchClient:
        urls, headers = key
        timeouts = self.bounds.settings(_LEAST_SILENCE_S) if self.bounds is not None else {}
        own = {} if self.http_client is None else {"client": self.http_client}
        http = sending_of(self.settings.get("http"), trust_env=not own, **timeouts, **own)
        servers = [self._with_rates(url) for url in urls]
        settings = {"retry": _POLICY, **self.settings, "http": http}
        return BatchClient(servers, headers=dict(headers), from_environment=False, **settings)

    def _with_rates(self, url: str) -> str | Server:
        server = self.rated.get(normal(url).partition("?")[0])
        return url if server is None else replace(server, url=url)

    def bridge(self) -> Bridge:
        """The event loop in the background in which blocking calls are made."""
        if self._bridge is None:
            with _making_bridges:
                # The bridge must not know this object, which knows the bridge: dropped without
                # being closed, the bridge's thread would never end.
                self._bridge = self._bridge or Bridge(self._clients.aclose)
        return self._bridge

    async def aclose(self) -> None:
        """Close every batch client."""
        await self._clients.aclose()


_Key = tuple[tuple[str, ...], tuple[tuple[str, str], ...]]
"""(base URLs, headers)."""


class Batching:
    """An openai client's share in the batch clients.

    Args:
        clients: shared with the openai client's copies.
        servers: base URLs, if several were given; openai's client knows the first URL.
        is_first: whether no other openai client has had these batch clients.
    """

    def __init__(self, clients: _Clients, servers: Sequence[str] = (), *, is_first: bool = True) -> None:
        self._clients = clients
        self.is_first = is_first
        self._servers = tuple(servers)
        self.own_models = {url: server.model for url, server in clients.rated.items() if server.model is not None}
        """The servers' own models, by their URLs."""
        self.header_roles = clients.header_roles
        self.sharing = clients.sharing
        self._known: tuple[tuple[Any, ...], Identity | None] = ((), None)
        """Replaced as a whole: other threads read the pair."""
        self.asks_for_key = False
        """Whether the key is a function's answer, to be asked for before each call."""

    @property
    def http_client(self) -> Any:
        """The user's own, or ``None``."""
        return self._clients.http_client

    def server_of(self, owner: Any, model: object) -> str | None:
        """The base URL of the first server with a call's model; ``None``: openai's client knows it.

        Args:
            owner: the openai client.
            model: that the call names.
        """
        own = self.own_models
        if not own or normal(str(owner.base_url)) != normal(self._servers[0]):
            return None
        urls = [url.partition("?")[0] for url in self._servers]
        takers = [url for url in urls if own.get(normal(url), model) == model]
        return takers[0] if takers and takers[0] != urls[0] else None

    def bounds(self, timeout: Any) -> Bounds | Past:
        """Read a call's timeout; return why the scheduler cannot keep to it, if that is so."""
        bounds = bounds_of(timeout)
        if bounds is None:
            return Past.NO_TIMEOUT
        longest_s = self._clients.longest_silence_s
        if longest_s is not None and (bounds.read_s is None or bounds.read_s > longest_s):
            # The scheduler would give the call up before.
            return Past.TIMEOUT
        return bounds

    def check(self, owner: Any) -> None:
        """Refuse wrong settings where the user gives them: with the first openai client.

        Raises:
            ConfigError: a setting is wrong.
        """
        self.asks_for_key = getattr(owner, "_api_key_provider", None) is not None
        if self._clients.bounds is None:
            # A timeout that the scheduler cannot keep to sends this client's calls through openai's
            # own code, not the copies' calls.
            self._clients.bear(bounds_of(owner.timeout) or bounds_of(DEFAULT_TIMEOUT))
            identity = None if self.asks_for_key else self.identity(owner, owner.api_key)
            if identity is None:
                self._clients.check(urls_of(owner, self._servers))
            else:
                try:
                    identity.client = self._clients.find(identity.key)
                except ConfigError as error:
                    if error.field != "headers":
                        raise
                    raise refused_header(owner, error) from None

    def check_alone(self, owner: Any) -> None:
        """Refuse wrong settings of a client that shares nothing.

        Raises:
            ConfigError: a setting is wrong.
        """
        BatchClient(list(urls_of(owner, self._servers)), from_environment=False, **self._clients.settings)

    def identity(self, owner: Any, key: str) -> Identity | None:
        """Return who asks: in the caller's thread, before anything else.

        Args:
            owner: the openai client.
            key: for the call.
        """
        state = state_of(owner, key)
        # Making headers of the state takes longer than a call.
        known, identity = self._known
        if state != known:
            identity = identity_of(owner, key, self._servers, self.header_roles)
            if state_of(owner, key) == state:
                # Nobody has changed the state meanwhile.
                self._known = (state, identity)
        return identity

    def client(self, identity: Identity | None) -> BatchClient | None:
        """Return the batch client for an identity.

        ``None`` if openai alone can send the requests, or all other clients are at work just now.
        """
        if identity is None or identity.is_refused:
            return None
        client = identity.client
        if client is None or client._engine.closed:
            try:
                identity.client = client = self._clients.find(identity.key)
            except ConfigError:
                # Set later, and perhaps to openai's taste.
                identity.is_refused = True
                return None
        return client

    async def reply(
        self, identity: Identity | None, calls: WireCalls, timeout_s: float | None, max_attempts: int
    ) -> Reply | Past:
        """Make the calls of a request; ``Past``, and nothing sent, if openai's own code is to send it.

        Raises:
            BatchClientError: of the first call that failed.
        """
        if asyncio._get_running_loop() is None:
            # On trio a BatchClient needs ``async with``, which nobody writes for us.
            return Past.TRIO
        client = self.client(identity)
        if client is None:
            return Past.NO_CLIENT
        try:
            reply = await make_calls(client, calls, timeout_s, max_attempts)
        except ConfigError:
            # Another running event loop uses the batch client.
            return Past.LOOP
        except BaseException:
            self.sharing.failed(len(calls.items))
            raise
        if reply is None:
            return Past.REFUSED
        self.sharing.answered(reply, len(calls.items))
        return reply

    def reply_to_thread(self, *asked: Any) -> Reply | Past:
        """Make the calls likewise, in the event loop in the background."""
        try:
            return self.bridge().call(self.reply, *asked)
        except ConfigError:
            # Called from within the event loop in the background.
            return Past.LOOP

    def for_copy(self, owner: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments for openai's ``copy``.

        The copy has the same batch clients, unless the copy has an HTTP client of its own.
        """
        given, clients = arguments.get("http_client"), self._clients
        is_first = given is not None and given is not owner._client
        if is_first:
            settings = clients.settings
            if not isinstance(settings.get("http", Http()), Http):
                # The copy's HTTP client stands in its place.
                settings = {name: value for name, value in settings.items() if name != "http"}
            clients = _Clients(settings, given, self.header_roles, clients.rated, self.sharing)
        batching = Batching(clients, self._servers, is_first=is_first)
        extra = {**(arguments.get("_extra_kwargs") or {}), "_batching": batching}
        return {**arguments, "_extra_kwargs": extra}

    def bridge(self) -> Bridge:
        """The event loop in the background in which blocking calls are made."""
        return self._clients.bridge()

    async def aclose(self) -> None:
        """Close every batch client, the copies' too."""
        await self._clients.aclose()
