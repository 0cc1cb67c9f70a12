"""The choice of the ``BatchClient`` for a request: a client per server and set of headers.

Rules:
- A client per (base URL, headers that count), so that credentials never mix; each client has a
  limit of its own. Where no further client may be made (``kept_clients``) the request goes around.
- A read timeout bounds the whole call: a reply without a stream is silent until the whole reply is
  there. The connect timeout is the client's own.
- The library retries by itself, and attempts would multiply. So a call here is one attempt, unless
  ``max_attempts`` says otherwise.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

from batchclient._checks import refuse_unknown
from batchclient._common.forks import ForkLock
from batchclient._settings import Sending, check_server, only_given, sending_of
from batchclient.client import BATCH_CLIENT_ARGUMENTS, BatchClient
from batchclient.errors import BatchClientError, ConfigError
from batchclient.integrations._requests import Job, RequestReader
from batchclient.integrations._responses import ResponseWriter
from batchclient.integrations.form import make_calls
from batchclient.integrations.header_roles import HeaderRoles
from batchclient.integrations.kept_clients import _MOST_CLIENTS, KeptClients
from batchclient.options import Server

__all__ = ["Batcher"]

_NOT_HERE = {
    "model": "each request names its own",
    "api_key": "each request brings its own",
    "headers": "each request brings its own",
    "labels": "it is ignored_headers now",
}


class Batcher:
    """The clients of a transport, and the settings that all clients share.

    Args:
        library: ``httpx`` or ``httpx2``.
        http_client: sends the shared requests, where a user's own transport carries them.
        base_url, max_attempts, ignored_headers, settings: the transport's.
    """

    def __init__(
        self,
        library: Any,
        http_client: Any,
        *,
        base_url: str | Server | None,
        max_attempts: int | None,
        ignored_headers: Collection[str],
        settings: dict[str, Any],
    ) -> None:
        for name in settings:
            if name in _NOT_HERE:
                raise ConfigError(f"{name} is not a setting of a transport: {_NOT_HERE[name]}", field=name)
        if max_attempts is not None and (type(max_attempts) is not int or max_attempts < 1):
            raise ConfigError("max_attempts is a whole number of at least 1, or None", field="max_attempts")
        roles = HeaderRoles(ignored_headers)
        self._server: Server | None = None
        if base_url is not None:
            self._server = server = check_server(base_url)
            if server.api_key is not None or server.headers is not None:
                raise ConfigError(
                    "base_url: a Server has rates alone here: each request brings its key", field="base_url"
                )
            url = library.URL(server.url)
            base_url = f"{url.scheme}://{url.netloc.decode('ascii')}{url.raw_path.decode('ascii')}"
        refuse_unknown(settings.keys() - BATCH_CLIENT_ARGUMENTS, BATCH_CLIENT_ARGUMENTS - _NOT_HERE.keys())
        self._settings = settings = only_given(settings)
        own = {} if http_client is None else {"client": http_client}
        settings["http"] = sending_of(settings.get("http"), **own)
        # Wrong settings are refused here, not with the first request.
        BatchClient("http://localhost/v1", from_environment=False, **settings)
        self._max_attempts = max_attempts
        self._reader = RequestReader(base_url, roles)
        self.read = self._reader.read
        self._writer = ResponseWriter(library)
        self._clients: KeptClients[_Key] = KeptClients(_MOST_CLIENTS)
        self.shared = 0
        self.passed_on = 0
        self._counting = ForkLock()

    @property
    def trust_env(self) -> bool:
        """Whether proxies and certificates may come from the environment."""
        http: Sending = self._settings["http"]
        return http.trust_env

    def __repr__(self) -> str:
        return f"{self.shared} shared, {self.passed_on} passed on, {self.clients}"

    def pass_on(self) -> None:
        """Count a request past the clients; a sync transport counts in any thread."""
        with self._counting:
            self.passed_on += 1

    @property
    def clients(self) -> tuple[BatchClient, ...]:
        """The clients at work."""
        return tuple(client for client in self._clients if not client._engine.closed)

    async def respond(self, job: Job, request: Any) -> Any:
        """Return the response to a request; ``None``: the request goes alone."""
        key = (job.base_url, job.headers)
        client = self._clients.find(key, self._make_client)
        if self._clients.leaving:
            # Before the new client opens connections; held, so that nobody takes it for idle.
            with self._clients.hold(key):
                await self._clients.close_leaving()
        if client is None:
            return None
        try:
            reply = await make_calls(client, job.calls, job.timeout_s, self._max_attempts)
        except BatchClientError as error:
            return self._writer.failure(error, request)
        if reply is None:
            return None
        self.shared += 1
        return self._writer.answer(reply)

    def _make_client(self, key: _Key) -> BatchClient | None:
        """Make a client; ``None``: we refuse a URL or header that the server may well take."""
        base_url, headers = key
        try:
            named = {name.decode("ascii"): value.decode("ascii") for name, value in headers}
            if len(named) < len(headers):
                return None
            # Requests with a query come to another URL than the one that was given.
            server = base_url if self._server is None else replace(self._server, url=base_url)
            return BatchClient(server, headers=named, from_environment=False, **self._settings)
        except (ConfigError, UnicodeDecodeError):
            return None

    async def aclose(self) -> None:
        """End all calls and close the clients' connections."""
        await self._clients.aclose()


_Key = tuple[str, tuple[tuple[bytes, bytes], ...]]
"""(base URL, headers that count)."""
