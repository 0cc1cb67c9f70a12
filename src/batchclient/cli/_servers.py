"""The servers of a command, with the model and the key: from options, else from the environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from batchclient.cli._refusal import Refusal, refusal_of
from batchclient.errors import ConfigError
from batchclient.partition import endpoints_shard

__all__ = ["KEY_HINT", "ServerOptions", "server_options"]

KEY_HINT = "; no key was given: set BATCHCLIENT_API_KEY or give --api-key (OPENAI_API_KEY is not read)"
"""Ends the complaint about a 401. The commands' clients are made without the library's hint."""
_OF_KEYS = ("auth", "key", "token")


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """The servers, the model and the key of a command.

    Args:
        arguments: ``base_url``, ``model``, ``api_key`` and ``headers`` of ``BatchClient``.
        variables: the names among them that came from the environment.
        urls_from: the variable that the servers came from, if a command has one of its own.
    """

    arguments: Mapping[str, Any] = field(repr=False)
    variables: frozenset[str]
    urls_from: str = ""

    @property
    def urls(self) -> Sequence[str]:
        """The servers."""
        urls: Sequence[str] = self.arguments["base_url"]
        return urls

    @property
    def has_key(self) -> bool:
        """Whether a key is sent, also as a header."""
        if self.arguments["api_key"] is not None:
            return True
        return any(part in name.lower() for name in self.arguments["headers"] for part in _OF_KEYS)

    def refusal_of(self, error: ConfigError) -> Refusal:
        """Put an error about the client's arguments into the command line's words."""
        if error.field == "base_url" and self.urls_from:
            return Refusal(f"{self.urls_from}: {error.message.removeprefix('base_url: ')}")
        return refusal_of(error, variables=self.variables)


def server_options(
    base_url: Sequence[str] | None,
    model: str | None,
    api_key: str | None,
    headers: Mapping[str, str],
    shard: str | None = None,
    *,
    urls_from: str = "",
) -> ServerOptions:
    """Complete the options from the environment.

    A key from the environment does not replace an ``Authorization`` header.

    Args:
        base_url, model, api_key, headers: as given. An empty key counts as none.
        shard: the part of the servers that is this worker's, if it has not all of them.
        urls_from: the variable that ``base_url`` was read from, if any.

    Raises:
        Refusal: no server is named, there is no such part of them, or a variable has a wrong value.
    """
    # The variables have one reader. It comes with pydantic, which takes long to import.
    from batchclient._client.settings import from_environment

    given: dict[str, Any] = {
        "base_url": base_url or None,
        "model": model,
        "api_key": api_key or None,
        "headers": headers,
    }
    arguments = dict(given)
    try:
        from_environment(arguments)
    except ConfigError as error:
        raise refusal_of(error) from None
    if arguments["base_url"] is None:
        raise Refusal("no server: give --base-url, such as http://localhost:8000/v1, or set BATCHCLIENT_BASE_URL")
    variables = frozenset(name for name in given if given[name] != arguments[name])
    options = ServerOptions(arguments, variables, urls_from)
    if shard is not None:
        try:
            arguments["base_url"] = endpoints_shard(arguments["base_url"], shard)
        except ConfigError as error:
            raise options.refusal_of(error) from None
    return options
