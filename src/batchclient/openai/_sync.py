"""openai's blocking client, with its calls coalesced.

Threads that call at the same time share requests.

Rules:
- The calls are made in an event loop in the background (``_threads.bridge``), which a client's
  copies share.
- A blocking HTTP client of the user's own cannot be used in the loop. With such a client every call
  goes through the client alone, as openai sends calls.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Unpack

import openai
from openai._models import FinalRequestOptions

from batchclient._common.log import log
from batchclient.errors import BatchClientError
from batchclient.openai._arguments import SyncArguments
from batchclient.openai._batching import split_arguments
from batchclient.openai._calls import Planned
from batchclient.openai._drop_in import DropIn
from batchclient.openai._keys import keep, prepared, take_asked
from batchclient.openai._resources import SyncPlainChat, SyncPlainCompletions, SyncPlainEmbeddings
from batchclient.openai._results import error_of, response_of
from batchclient.types import Reply

if TYPE_CHECKING:
    from batchclient.client import BatchClient

__all__ = ["OpenAI"]


class OpenAI(DropIn, openai.OpenAI):
    """``openai.OpenAI``, whose completions, chats and embeddings share requests.

    Calls that threads make at the same time share.

    Args:
        arguments: as for ``AsyncOpenAI``.

    Raises:
        ConfigError: one of our settings is wrong.
        openai.OpenAIError: one of openai's arguments is wrong.
    """

    _openais = openai.OpenAI

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
        elif self._batching.is_first:
            self._batching.check_alone(self)

    @property
    def batch_client(self) -> BatchClient | None:
        """As ``AsyncOpenAI.batch_client``, in an event loop in the background.

        ``None`` with a blocking ``http_client``, too.
        """
        if not self._shares:
            return None
        return self._batching.bridge().ask(self._batching.client, self._batching.identity(self, self.api_key))

    def _send_request(self, request: Any, *, stream: bool, **more: Any) -> Any:
        """Send a request that openai has built, shared where possible. openai's ``_send_request``."""
        planned = self._planned(request, stream=stream)
        if isinstance(planned, Planned):
            # Here, and not in the loop's thread: by then other threads may have set other values.
            identity = self._batching.identity(self, planned.key)
            asked = (identity, planned.calls, planned.timeout_s, planned.max_attempts)
            try:
                reply = self._batching.reply_to_thread(*asked)
            except BatchClientError as error:
                raise error_of(self, error, self._shown(planned, error.attempt - 1)) from error
            if isinstance(reply, Reply):
                return response_of(reply, self._shown(planned, reply.attempts - 1), planned.began)
            planned = reply
        if planned is not None:
            self._check_untouched(request, planned)
            self._batching.sharing.passed(planned)
        return super()._send_request(request, stream=stream, **more)

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

        @cached_property
        def embeddings(self) -> SyncPlainEmbeddings:
            return SyncPlainEmbeddings(self)

    def close(self) -> None:
        """End every call, close the connections. openai's ``close``."""
        self._batching.bridge().close()
        super().close()
