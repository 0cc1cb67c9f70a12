"""Changes to a running client: settings and servers.

Rules:
- Each works before the first call, too, and after the event loop has ended: the change holds for
  the present runner and for every later runner.
- None touches a call under way, but ``remove_endpoint`` with ``drain=False``.
- Bad input is refused before anything is changed, with an error that names the argument. So is a
  call from another thread or event loop than the running one, with a ``ConfigError``.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchclient._client.connections import shown
from batchclient._client.engine import Engine
from batchclient._core.messages import Retuned
from batchclient.errors import ClientClosed, ConfigError

__all__ = ["add_endpoint", "remove_endpoint", "retune"]


def retune(engine: Engine, changes: Mapping[str, Any]) -> None:
    """Change settings; see ``BatchClient.retune``.

    Raises:
        ConfigError: a setting is wrong, or cannot be changed while running; nothing was changed.
    """
    from batchclient._settings import changed

    runner = engine.present_runner()
    settings = changed(engine.settings, changes)
    engine.connections.check_guest(settings)
    engine.settings = settings
    if runner is not None:
        limits = None if changes["limit"] is None else [engine.make_limit() for _ in engine.endpoints]
        runner.tell(Retuned(engine.settings_of_core(), limits))


def add_endpoint(engine: Engine, base_url: object) -> None:
    """Send calls to another server, too; see ``BatchClient.add_endpoint``.

    Raises:
        ConfigError: the URL is wrong, or belongs to the client already.
        ClientClosed: the client is closed.
    """
    if engine.closed:
        raise ClientClosed("the client is closed; make a new one")
    from batchclient._settings import check_server

    server = check_server(base_url)
    url = server.url
    if any(url == served for served, _ in engine.endpoints):
        raise ConfigError(f"{shown(url)} is one of the client's servers already", field="base_url")
    runner = engine.present_runner()
    secrets = engine.connections.know(server)
    engine.dialects.secrets += secrets
    if engine.connections.has_key and not engine.connections.has_key_everywhere:
        engine.dialects.key_hint = ""
    number = 0
    if runner is not None:
        runner.servers.hide(secrets)
        pages = {page: make(url) for page, make in engine.connections.pages.items()}
        number = runner.add_endpoint(
            engine.connections.for_calls(url),
            pages,
            engine.make_limit(),
            shown(url),
            engine.connections.rates[url],
            engine.connections.offers[url],
        )
        engine.calls.lengths.endpoints.add(number)
        runner.servers[number].model = server.model
        runner.servers[number].session_header = server.session_header
    engine.endpoints.append((url, number))
    engine.calls.join(server.model)
    engine.calls.tells_sessions = engine.calls.tells_sessions or server.session_header is not None


async def remove_endpoint(engine: Engine, base_url: object, *, drain: bool) -> None:
    """Send nothing more to a server; see ``BatchClient.remove_endpoint``.

    Raises:
        ConfigError: the client has no such server, or no other.
    """
    from batchclient._settings import check_server

    url = check_server(base_url).url
    if not isinstance(drain, bool):
        raise ConfigError(f"drain is True or False, not a {type(drain).__name__}", field="drain")
    runner = engine.present_runner()
    entry = next((one for one in engine.endpoints if one[0] == url), None)
    if entry is not None:
        if len(engine.endpoints) == 1:
            raise ConfigError(f"{shown(url)} is the client's last server", field="base_url")
        engine.endpoints.remove(entry)
        if runner is not None:
            engine.leaving.append(entry)
            engine.calls.lengths.endpoints.discard(entry[1])
    else:
        entry = next((one for one in engine.leaving if one[0] == url), None)
        if entry is None:
            served = ", ".join(shown(one) for one, _ in engine.endpoints)
            raise ConfigError(f"the URL is none of the client's servers, which are {served}", field="base_url")
    if runner is not None:
        try:
            await runner.remove_endpoint(entry[1], drain=drain)
        finally:
            # A server whose connections failed to close has left, too; after a cancellation,
            # calls may be left there.
            if entry in engine.leaving and entry[1] not in runner.servers:
                engine.leaving.remove(entry)
