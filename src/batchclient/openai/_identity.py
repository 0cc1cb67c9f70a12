"""The identity of a call: the part of an openai client that matters to a server.

The identity picks the batch client.

Rules:
- The identity is taken in the caller's thread, at the time of the call. Another thread's setting or
  answer a moment later is for another call.
- The key is the function's answer for this very call. Nothing reads the key from the openai client,
  which holds the last answer to any call.
- A request without any credentials goes through openai's own code, which refuses the request.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from openai import Omit

from batchclient.errors import ConfigError
from batchclient.integrations.header_roles import HeaderRoles
from batchclient.openai._keys import defaults_of
from batchclient.transport._addresses import check_url

if TYPE_CHECKING:
    from batchclient.client import BatchClient

__all__ = ["Identity", "identity_of", "normal", "refused_header", "state_of", "urls_of"]

_WRITTEN_BY_US = frozenset({"content-type", "accept"})
_ARGUMENTS = {"authorization": "api_key", "openai-organization": "organization", "openai-project": "project"}
_SIGNED = ("workload_identity", "_provider", "_provider_runtime")


class Identity:
    """Of calls that may share a request.

    Args:
        urls: the servers' base URLs, with their query.
        headers: the headers that count, by lower-case name, sorted.
    """

    __slots__ = ("client", "is_refused", "key")

    def __init__(self, urls: tuple[str, ...], headers: tuple[tuple[str, str], ...]) -> None:
        self.key = (urls, headers)
        self.client: BatchClient | None = None
        self.is_refused = False
        """Whether batchclient refuses the URL or a header."""


def state_of(owner: Any, key: str) -> tuple[Any, ...]:
    """All that an identity follows from, in a form that is quick to compare."""
    headers, query = _copied(owner._custom_headers), _copied(owner._custom_query)
    return (key, owner._base_url, headers, query, owner.organization, owner.project)


def _copied(given: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """A mapping as it is now: the caller may change the mapping later, and nested values."""
    return (
        tuple([(name, value if type(value) is str else repr(value)) for name, value in given.items()]) if given else ()
    )


def identity_of(owner: Any, key: str, servers: Sequence[str], roles: HeaderRoles) -> Identity | None:
    """Return an openai client's identity for its servers now.

    ``None`` if openai alone can send the requests.

    Args:
        owner: the openai client.
        key: for the call.
        servers: base URLs, if several were given.
        roles: the roles of headers.
    """
    if owner.custom_auth is not None or any(getattr(owner, name, None) is not None for name in _SIGNED):
        # A provider signs each request.
        return None
    auth = {"Authorization": f"Bearer {key}"} if key else {}
    headers: dict[str, str] = {}
    is_credible = bool(auth)
    for name, value in (*auth.items(), *defaults_of(owner).items()):
        lower = name.lower()
        is_credible = is_credible or lower == "authorization"
        if roles.is_ignored(name):
            continue
        if isinstance(value, str) and lower not in _WRITTEN_BY_US:
            headers[lower] = value
        elif isinstance(value, Omit):
            headers.pop(lower, None)
    return Identity(urls_of(owner, servers), tuple(sorted(headers.items()))) if is_credible else None


def refused_header(owner: Any, error: ConfigError) -> ConfigError:
    """Return the refusal of a header, in the name of openai's argument for the header."""
    own = {name.lower() for name in owner._custom_headers}
    named = [argument for name, argument in _ARGUMENTS.items() if name not in own and f"'{name}'" in error.message]
    field = named[0] if named else "default_headers"
    return ConfigError(field + error.message.removeprefix("headers"), field=field)


def urls_of(owner: Any, servers: Sequence[str]) -> tuple[str, ...]:
    """The base URLs of an openai client, with its query."""
    query = owner.qs.stringify(owner.default_query)
    base_url = str(owner.base_url)
    # openai writes a URL as its HTTP library does: in lower case, without the usual port.
    urls = servers if servers and normal(base_url) == normal(servers[0]) else [base_url]
    return tuple(url.rstrip("/") + (("&" if "?" in url else "?") + query if query else "") for url in urls)


def normal(url: str) -> str:
    """Return a URL in the form that all its spellings share; a wrong one as it is."""
    try:
        return check_url(url)
    except ValueError:
        return url
