"""How a client reaches its servers: headers, connections, and the questions beside the calls.

Rules:
- A user's own HTTP client or transport carries the calls and nothing else. Questions beside
  the calls (``/metrics``, which server answers) need own connections, and without own connections
  no question is asked. With ``wait_for_server_s`` alone, which server answers is asked there.
- Questions beside the calls have transports of their own, and neither wait for the calls nor take
  the calls' connections.
- A user's own HTTP client leads to a server that nobody asks: a stranger, whose lists are
  proved before they are used. A mock does not, nor does a transport, of which the user knows more.
- A key is never shown: not in a URL, and ``secrets`` are cut out of the servers' messages.
- The module knows no client, and sends nothing: the transports belong to the runner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qsl, quote

from batchclient._checks import refused
from batchclient._common.log import log
from batchclient._core.messages import Offer, RatesPerMinute
from batchclient._shell.callbacks import call_back
from batchclient._shell.pages import LARGEST_PAGE_BYTES, NO_PAGES, Page
from batchclient.price import Price
from batchclient.transport import Transport, root_of
from batchclient.transport._addresses import host_of

if TYPE_CHECKING:
    from batchclient._settings import Settings
    from batchclient.options import Server

__all__ = ["Connections", "shown"]

LARGEST_RESPONSE_BYTES = 64 * 1024 * 1024
"""The largest decoded response of a call."""
_KEY_HINT = "; no key was given: give api_key=… or set BATCHCLIENT_API_KEY (OPENAI_API_KEY is not read)"
_SECRET_HEADERS = ("auth", "key", "token", "secret", "cookie", "password")


class Connections:
    """The connections of one client.

    Args:
        settings: the client's; settings of connections cannot change while the client runs.

    Raises:
        ConfigError: an argument is wrong, or two arguments contradict each other.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._own = {(scheme, host_of(server.url)) for server in settings.base_url for scheme in _at_least(server.url)}
        """The schemes and hosts which the client's key may go to."""
        self._headers: dict[str, dict[str, str]] = {}
        """Of every request to a base URL."""
        self.session_headers: dict[str, str | None] = {}
        """By which each base URL is told a call's session."""
        self.rates: dict[str, RatesPerMinute] = {}
        """Of each base URL."""
        self.offers: dict[str, Offer] = {}
        """What each base URL serves, at which price."""
        self._http_client = settings.http.client
        self._own_transport = settings.http.transport
        self.pages: dict[Page, Callable[[str], Transport]] = {}
        """The pages for questions beside the calls, each with the maker of a transport.

        A maker gets a base URL.
        """
        asks = _may_ask(settings)
        # A guest has to see the load, also of servers whose dialect is given.
        if asks or (_is_guest(settings) and settings.probe is None and settings.http.given is None):
            self.pages[Page.LOAD] = self.for_metrics
        self.check_guest(settings)
        if asks and settings.dialect is None:
            self.pages[Page.SERVER] = self.for_detection
        elif settings.wait_for_server_s:
            self.pages[Page.SERVER] = self._for_calls
        if self._own_transport is None:
            _check_http_library(self._http_client, settings.http.backend)
        self._heeds_proxies = settings.http.trust_env and settings.http.given is None
        self.secrets = _secrets_of(_with_key(settings.headers, settings.api_key)) + tuple(
            secret for server in settings.base_url for secret in self.know(server)
        )

    def check_guest(self, settings: Settings) -> None:
        """Raise ``ConfigError`` where a guest could not see the servers' load."""
        if _is_guest(settings) and Page.LOAD not in self.pages:
            raise refused("limit.guest", NO_PAGES)

    @property
    def has_key(self) -> bool:
        """Whether a server is sent a key."""
        return self._http_client is not None or any(_secrets_of(headers) for headers in self._headers.values())

    @property
    def has_key_everywhere(self) -> bool:
        """Whether each server is surely sent a key: a given HTTP client may bring any or none."""
        return self._http_client is None and all(_secrets_of(headers) for headers in self._headers.values())

    def key_hint(self, *, key_given: bool, reads_environment: bool) -> str:
        """Return the end of the message of a 401.

        Args:
            key_given: whether the client was given an ``api_key``.
            reads_environment: whether a key may come from the environment.
        """
        if not reads_environment:
            return ""
        if not self.has_key:
            return _KEY_HINT
        if not self.has_key_everywhere:
            return ""
        of_servers = any(server.api_key is not None for server in self._settings.base_url)
        if self._settings.api_key is not None and not key_given:
            return (
                "; the key that was sent was refused" if of_servers else "; the key of BATCHCLIENT_API_KEY was refused"
            )
        given = "the api_key" if key_given or of_servers else "the key in the headers"
        return f"; {given} that was given was refused"

    def asks_first(self) -> bool:
        """Whether servers may be asked which they are with the first call: no mock looks on."""
        from batchclient.transport._libraries import is_mocked

        return not is_mocked(self._settings.http.backend)

    def trusts_lists(self) -> bool:
        """Whether servers that do not say which they are get lists unproved (``_core/learnt/proof``)."""
        if self._settings.dialect is not None or self._own_transport is not None:
            return True
        from batchclient.transport._libraries import is_mock, is_mocked

        client = self._http_client
        return is_mocked(self._settings.http.backend) if client is None else is_mock(client)

    def waits_out_refusals(self) -> bool:
        """Whether the servers are real ones: a mock's 404, or a given client's, is meant as it is."""
        return self._http_client is None and self._own_transport is None and self.asks_first()

    def know(self, server: Server) -> tuple[str, ...]:
        """Take note of a server, and return the secrets on the way to that server.

        Secrets are the server's own headers, the part of its URL after the ``?``, and the passwords
        of its proxy. The client's key goes to the hosts of the client's own ``base_url`` alone.

        Raises:
            ConfigError: the environment names a proxy that cannot be used.
        """
        headers = _with_key(self._settings.headers, self._settings.api_key)
        if (_scheme(server.url), host_of(server.url)) not in self._own:
            headers = {name: value for name, value in headers.items() if not _is_secret(name)}
        self.session_headers[server.url] = server.session_header
        self.rates[server.url] = RatesPerMinute(server.requests_per_minute, server.tokens_per_minute)
        price = server.price or Price(input=0)
        self.offers[server.url] = Offer(
            server.model,
            price.cost(prompt_tokens=1),
            price.cost(completion_tokens=1),
            server.one_model_at_a_time,
            server.model_wait_s,
        )
        self._headers[server.url] = _with_key({**headers, **(server.headers or {})}, server.api_key)
        secrets = _secrets_of(self._headers[server.url]) + _secrets_in(server.url)
        if self._heeds_proxies:
            from batchclient.transport._proxies import proxy_secrets

            secrets += proxy_secrets([server.url], self._settings.http.backend)
        return secrets

    def for_calls(self, base_url: str) -> Transport:
        """Return the transport of a server's calls."""
        transport = self._for_calls(base_url)
        if self._settings.telemetry is None:
            return transport
        from batchclient._telemetry.sending import TracedTransport

        of_client = () if self._http_client is None else self._http_client.headers
        return TracedTransport(transport, (*self._headers[base_url], *of_client))

    def _for_calls(self, base_url: str) -> Transport:
        if self._own_transport is not None:
            from batchclient.transport._given import GivenTransport

            own: Transport = call_back("http", self._own_transport, base_url, self._headers[base_url])
            return GivenTransport(own)
        return self._httpx(base_url, self._headers[base_url], LARGEST_RESPONSE_BYTES, self._http_client)

    def for_metrics(self, base_url: str) -> Transport:
        """Return the transport of the question for a server's load: to the root, where the page is."""
        return self._httpx(root_of(base_url), self._headers[base_url], LARGEST_PAGE_BYTES)

    def for_detection(self, base_url: str) -> Transport:
        """Return the transport of the question which server answers."""
        return self._httpx(base_url, self._headers[base_url], LARGEST_PAGE_BYTES)

    def _httpx(self, url: str, headers: Mapping[str, str], most_bytes: int, client: Any = None) -> Transport:
        from batchclient.transport.http import HttpTransport

        return HttpTransport(
            url,
            headers,
            max_response_bytes=most_bytes,
            client=client,
            backend=self._settings.http.backend,
            trust_env=self._settings.http.trust_env,
        )


def shown(base_url: str) -> str:
    """Return a URL in the form that may be shown."""
    # A query may hold a key.
    return base_url.partition("?")[0]


def _scheme(url: str) -> str:
    return url.partition(":")[0]


def _at_least(url: str) -> tuple[str, ...]:
    """Return the schemes that protect a key as well as a URL's own."""
    return ("http", "https") if _scheme(url) == "http" else ("https",)


def _secrets_of(headers: Mapping[str, str]) -> tuple[str, ...]:
    """Return the keys among the headers: a server may repeat a key, and nobody may see the key."""
    return _with_last_words(value for name, value in headers.items() if _is_secret(name))


def _is_secret(header: str) -> bool:
    return any(word in header for word in _SECRET_HEADERS)


def _secrets_in(base_url: str) -> tuple[str, ...]:
    """Return the values that a URL has after its ``?``, likewise."""
    values = [value for _, value in parse_qsl(base_url.partition("?")[2])]
    return _with_last_words(form for value in values for form in (value, quote(value, safe="")))


def _with_last_words(values: Iterable[str]) -> tuple[str, ...]:
    # Of ``Bearer …`` the last alone is the key.
    return tuple({part for value in values for part in (value, value.rpartition(" ")[2])})


def _may_ask(settings: Settings) -> bool:
    """Whether servers are asked for pages beside the calls."""
    given = settings.http.given
    if settings.probe is None:
        return given is None and settings.dialect is None
    if settings.probe and given is not None:
        raise refused("probe", f"it needs connections of our own; the {given} of http= is used for the calls alone")
    return settings.probe


def _is_guest(settings: Settings) -> bool:
    return not isinstance(settings.limit, int) and settings.limit.guest


def _with_key(headers: Mapping[str, str], api_key: str | None) -> dict[str, str]:
    return dict(headers) if api_key is None else {**headers, "authorization": f"Bearer {api_key}"}


def _check_http_library(http_client: object, backend: str | None) -> None:
    # httpx takes 0.1 s to import: not with batchclient, and not within the first call either.
    from batchclient.transport.http import check_arguments

    why = check_arguments(http_client, backend)
    if why is not None:
        _say_once(why)


@cache
def _say_once(why: str) -> None:
    log("httptools_missing", "requests go over httpx, which takes about five times the CPU: %s", why)
