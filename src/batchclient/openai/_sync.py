"""openai's blocking client, with its calls coalesced.

Threads that call at the same time share requests.

Rules:
- The calls are made in an event loop in the background (``_threads.bridge``), which a client's
  copies share.
- A blocking HTTP client of the user's own cannot be used in the loop. With such a client every call
  goes through the client alone, as openai sends calls.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Unpack

import openai
from openai._models import FinalRequestOptions

from batchclient._shell.log import log
from batchclient.errors import BatchClientError, ConfigError
from batchclient.integrations.form import PATHS, make_calls
from batchclient.openai._arguments import SyncArguments
from batchclient.openai._batching import Batching, split_arguments
from batchclient.openai._calls import RESPONSES, Planned, plan, post_of
from batchclient.openai._identity import Identity
from batchclient.openai._keys import asked, forget, keep, prepared, take_asked
from batchclient.openai._resources import SyncPlainChat, SyncPlainCompletions
from batchclient.openai._results import error_of, parse, response_of, to_process
from batchclient.openai._seams import is_replaced, is_watched, key_of, mark, seams, take_options
from batchclient.openai._sharing import Past, SharingStatistics
from batchclient.types import Reply

if TYPE_CHECKING:
    from typing import Self

    from batchclient.client import BatchClient

__all__ = ["OpenAI"]


_OPENAIS = openai.OpenAI
"""Taken at import: later, programs put the drop-in in the place of openai's class."""


class OpenAI(openai.OpenAI):
    """``openai.OpenAI``, whose completions, chats and embeddings share requests.

    Calls that threads make at the same time share.

    Args:
        arguments: as for ``AsyncOpenAI``.

    Raises:
        ConfigError: one of our settings is wrong.
        openai.OpenAIError: one of openai's arguments is wrong.
    """

    _batching: Batching
    _may_share, _may_skip = True, True

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._may_share, cls._may_skip = seams(cls, OpenAI)

    def __init__(self, **arguments: Unpack[SyncArguments]) -> None:
        theirs, self._batching = split_arguments(arguments)
        self._shares = self._batching.http_client is None
        if not self._shares and self._batching.is_first:
            message = (
                "an http_client of your own is a blocking one: calls go through it one by one and share no requests"
            )
            log("shares_nothing", message, reason="a blocking http_client")
        super().__init__(**theirs)
        if self._shares:
            self._batching.check(self)

    @property
    def batch_client(self) -> BatchClient | None:
        """As ``AsyncOpenAI.batch_client``, in an event loop in the background.

        ``None`` with a blocking ``http_client``, too.
        """
        if not self._shares:
            return None
        return self._batching.bridge().ask(self._batching.client, self._batching.identity(self, self.api_key))

    @property
    def is_watched(self) -> bool:
        """As ``AsyncOpenAI.is_watched``."""
        return is_watched(self, _OPENAIS)

    def statistics(self) -> SharingStatistics:
        """As ``AsyncOpenAI.statistics``."""
        return self._batching.sharing.statistics()

    def post(
        self, path: str, *, cast_to: Any, body: Any = None, options: Mapping[str, Any] | None = None, **more: Any
    ) -> Any:
        """Send a request, shared where possible. Resources call ``post``, with openai's signature."""
        options = options or {}
        openais: Any = super().post
        if path == RESPONSES:
            self._batching.sharing.passed(Past.RESPONSES)
        elif path in PATHS and not self.is_watched:
            answer = self.share(path, body, options, more, cast_to)
            if not isinstance(answer, Past):
                return answer
            self._batching.sharing.passed(answer)
            with asked(self):
                return openais(path, cast_to=cast_to, body=body, options=options, **more)
        return openais(path, cast_to=cast_to, body=body, options=options, **more)

    def share(self, path: str, body: Any, options: Mapping[str, Any], more: Mapping[str, Any], cast_to: Any) -> Any:
        """Make a call that may share a request; ``Past``, and nothing sent, if the call may not."""
        if self._batching.asks_for_key:
            forget()
        planned = self._planned(path, body, options, more)
        if isinstance(planned, Past):
            return planned
        key = self._refresh_api_key() if self._batching.asks_for_key else self.api_key
        reply = self._reply(planned, key)
        if isinstance(reply, Past):
            return reply
        if planned.raw is None:
            return parse(self, planned, reply, cast_to)
        return self._process_response(**to_process(self, planned, reply, cast_to))

    def _planned(self, path: str, body: Any, options: Mapping[str, Any], more: Mapping[str, Any]) -> Planned | Past:
        if not self._shares:
            return Past.BLOCKING
        if not self._may_share:
            return Past.SUBCLASS
        return Past.REPLACED if is_replaced(self, _OPENAIS) else plan(self, path, body, options, more)

    def _reply(self, planned: Planned, key: str, request: Any = None) -> Reply | Past:
        planned.key = key
        # Here, and not in the loop's thread: by then other threads may have set other values.
        identity = self._batching.identity(self, key)
        try:
            reply = self._batching.bridge().call(self._call, planned, identity)
        except ConfigError:
            # Called from within the event loop in the background.
            return Past.LOOP
        except BatchClientError as error:
            raise error_of(self, planned, error, request) from error
        if not isinstance(reply, Past):
            self._batching.sharing.answered(reply, len(planned.calls.items))
        return reply

    async def _call(self, planned: Planned, identity: Identity | None) -> Reply | Past:
        client = self._batching.client(identity)
        if client is None:
            return Past.NO_CLIENT
        reply = await make_calls(client, planned.calls, planned.timeout_s, planned.max_attempts)
        return Past.REFUSED if reply is None else reply

    def _build_request(self, options: FinalRequestOptions, *, retries_taken: int = 0) -> Any:
        """Build a request, and mark a watched call's. openai's ``_build_request``."""
        request = super()._build_request(options, retries_taken=retries_taken)
        if self.is_watched and not retries_taken:
            mark(request, options)
        return request

    def _send_request(self, request: Any, *, stream: bool, **more: Any) -> Any:
        """Send a request that openai's own code has built. openai's ``_send_request``.

        A watched call's request is shared.
        """
        options = take_options(request)
        if options is not None:
            response = self._share_built(request, options, stream=stream)
            if not isinstance(response, Past):
                return response
            self._batching.sharing.passed(response)
        return super()._send_request(request, stream=stream, **more)

    def _share_built(self, request: Any, options: FinalRequestOptions, *, stream: bool) -> Any:
        planned = self._planned(*post_of(self, options, request, stream=stream))
        if isinstance(planned, Past):
            return planned
        reply = self._reply(planned, key_of(request), request)
        return reply if isinstance(reply, Past) else response_of(self, planned, reply, request)

    def _refresh_api_key(self) -> str:
        """Ask for a key, if a function answers the key. openai's ``_refresh_api_key``."""
        provider = self._api_key_provider
        return self.api_key if provider is None else keep(self, take_asked(self) or provider())

    def _prepare_options(self, options: FinalRequestOptions) -> FinalRequestOptions:
        """Prepare a request for openai's own code. openai's ``_prepare_options``."""
        with prepared(self) as finish:
            return finish(super()._prepare_options(options))  # type: ignore[no-any-return]

    if not TYPE_CHECKING:  # the types are those of openai's own

        @cached_property
        def completions(self) -> SyncPlainCompletions:
            return SyncPlainCompletions(self)

        @cached_property
        def chat(self) -> SyncPlainChat:
            return SyncPlainChat(self)

    def copy(self, **arguments: Any) -> Self:
        """Return a client with other options and the same scheduler. openai's ``copy``."""
        return super().copy(**self._batching.for_copy(self, arguments))

    with_options = copy

    def close(self) -> None:
        """End every call, close the connections. openai's ``close``."""
        self._batching.bridge().close()
        super().close()
