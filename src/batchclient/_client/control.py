"""Changes to a running client: settings, limits, pause and resume, servers.

Rules:
- Each method works before the first call, too, and after the event loop has ended: the change holds
  for the present runner and for every later runner.
- No method touches a call under way, but ``abort``, and ``remove_endpoint`` with ``drain=False``.
- Bad input is refused before anything is changed, with an error that names the argument. So is a
  call from another thread or event loop than the running one, with a ``ConfigError``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Never

from batchclient._client.connections import shown
from batchclient._client.starting import Starting
from batchclient._core.messages import AbortRequested, Paused, Resumed, Retuned
from batchclient.errors import CallAborted, ClientClosed, ConfigError

if TYPE_CHECKING:
    from batchclient.options import AdaptiveLimit, Batching, Queue, Server

__all__ = ["ControlMethods"]


class ControlMethods(Starting):
    """The methods that change a ``BatchClient`` while it runs."""

    def retune(
        self,
        *,
        limit: int | Literal["auto"] | AdaptiveLimit | None = None,
        batching: Batching | None = None,
        queue: Queue | None = None,
        **unknown: Never,
    ) -> None:
        """Change settings while the client runs. Calls under way go on.

        Args:
            limit: as for the client; a limit that is given anew starts its search anew.
            batching: replaces the present ``Batching`` as a whole: fields that are not given have
                the preset's values.
            queue: replaces the present ``Queue``; another ``max_calls`` and ``when_full`` hold from
                now on, and the other fields cannot be changed.

        Raises:
            ConfigError: a setting is wrong, or cannot be changed while running; nothing was
                changed.
        """
        from batchclient._settings import changed

        changes = {"limit": limit, "batching": batching, "queue": queue, **unknown}
        runner = self._present_runner()
        self._settings = changed(self._settings, changes)
        if runner is not None:
            limits = None if limit is None else [self._make_limit() for _ in self._endpoints]
            runner.tell(Retuned(self._settings_of_core(), limits))

    def pause(self) -> None:
        """Send nothing more until ``resume()``.

        Requests in flight go on, and calls may still be made.
        """
        runner = self._present_runner()
        self._paused = True
        if runner is not None:
            runner.tell(Paused())

    def resume(self) -> None:
        """Send again."""
        runner = self._present_runner()
        self._paused = False
        if runner is not None:
            runner.tell(Resumed())

    def add_endpoint(self, base_url: str | Server) -> None:
        """Send calls to another server, too. The server has a limit of its own, like the others.

        Args:
            base_url: a URL, or a ``Server``. The client's key is sent where the host is among the
                hosts of the client's own ``base_url``; a server of another host needs its own.

        Raises:
            ConfigError: the URL is wrong, or belongs to the client already; the environment's proxy
                for the URL cannot be used; or another running event loop uses the client.
            ClientClosed: the client is closed.
        """
        if self._closed:
            raise ClientClosed("the client is closed; make a new one")
        from batchclient._settings import check_server

        server = check_server(base_url)
        url = server.url
        if any(url == served for served, _ in self._endpoints):
            raise ConfigError(f"{shown(url)} is one of the client's servers already", field="base_url")
        runner = self._present_runner()
        secrets = self._connections.know(server)
        self._dialects.secrets += secrets
        if self._connections.has_key and not self._connections.has_key_everywhere:
            self._dialects.key_hint = ""
        number = 0
        if runner is not None:
            runner.servers.hide(secrets)
            pages = {page: make(url) for page, make in self._connections.pages.items()}
            number = runner.add_endpoint(
                self._connections.for_calls(url), pages, self._make_limit(), shown(url), self._connections.rates[url]
            )
            self._calls.lengths.endpoints.add(number)
        self._endpoints.append((url, number))

    async def remove_endpoint(self, base_url: str | Server, *, drain: bool = True) -> None:
        """Send nothing more to a server, and wait until no call is left there.

        Args:
            base_url: as the URL was given.
            drain: let the server finish its calls; else its connections are closed now and the
                calls go to the other servers, which costs the calls no retry. With ``drain=False``,
                the calls left at a server that is leaving already may be ended, too.

        Raises:
            ConfigError: the client has no such server, or no other; or another running event loop
                uses the client.

        Cancellation: the server leaves all the same.
        """
        from batchclient._settings import check_server

        url = check_server(base_url).url
        if not isinstance(drain, bool):
            raise ConfigError(f"drain is True or False, not a {type(drain).__name__}", field="drain")
        runner = self._present_runner()
        entry = next((one for one in self._endpoints if one[0] == url), None)
        if entry is not None:
            if len(self._endpoints) == 1:
                raise ConfigError(f"{shown(url)} is the client's last server", field="base_url")
            self._endpoints.remove(entry)
            if runner is not None:
                self._leaving.append(entry)
                self._calls.lengths.endpoints.discard(entry[1])
        else:
            entry = next((one for one in self._leaving if one[0] == url), None)
            if entry is None:
                served = ", ".join(shown(one) for one, _ in self._endpoints)
                raise ConfigError(f"the URL is none of the client's servers, which are {served}", field="base_url")
        if runner is not None:
            try:
                await runner.remove_endpoint(entry[1], drain=drain)
            finally:
                # A server whose connections failed to close has left, too; after a cancellation,
                # calls may be left there.
                if entry in self._leaving and entry[1] not in runner.servers:
                    self._leaving.remove(entry)

    def abort(self) -> None:
        """End every call now with ``CallAborted`` and close the connections.

        The client stays open.
        """
        runner = self._present_runner()
        if runner is not None:
            runner.model_question.fail(CallAborted("the call was ended by abort()"))
            runner.tell(AbortRequested())
