"""openai's clients, with their calls coalesced: ``from batchclient.openai import AsyncOpenAI``.

Rules:
- Subclasses of openai's own classes override a single seam, ``_send_request``. The work before and
  after stays openai's: parameters, transformations, ``parse``, raw responses. Plain completions and
  chats skip that work (``_resources``).
- A call that may share a request (``integrations.form``) goes through a ``BatchClient``. Every
  other call goes through openai's own code, untouched.
- Answers are openai's types, errors openai's classes with openai's attributes.
- Retries have a single owner: ``max_retries`` bounds the attempts of a call, and openai's own loop
  goes round once.
- Clients made by ``with_options`` share the scheduler. Calls with other credentials, headers that
  count or servers never share a request.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any, Unpack

import openai
from openai._models import FinalRequestOptions

from batchclient.errors import BatchClientError
from batchclient.openai._arguments import AsyncArguments
from batchclient.openai._batching import split_arguments
from batchclient.openai._calls import Planned
from batchclient.openai._drop_in import DropIn
from batchclient.openai._keys import keep, prepared, take_asked
from batchclient.openai._resources import PlainChat, PlainCompletions, PlainEmbeddings
from batchclient.openai._results import error_of, response_of
from batchclient.openai._sharing import SharingStatistics
from batchclient.openai._sync import OpenAI
from batchclient.types import Reply

if TYPE_CHECKING:
    from batchclient.client import BatchClient

__all__ = ["AsyncOpenAI", "OpenAI", "SharingStatistics"]


class AsyncOpenAI(DropIn, openai.AsyncOpenAI):
    """``openai.AsyncOpenAI``, whose completions, chats and embeddings share where possible.

    Args:
        arguments: openai's own (``api_key``, ``base_url``, ``timeout``, ``max_retries``,
            ``default_headers``, ``http_client``, …), and ``BatchClient``'s settings (``preset``,
            ``limit``, ``batching``, ``dialect``, ``retry``, …). ``base_url`` may be a list of
            servers. ``ignored_headers`` are names of further headers that leave the question as it
            is: calls that differ in such headers share, and the headers are not sent.

    ``timeout`` given to the client or to a call bounds the whole call, with the waiting here.
    openai's default of ten minutes bounds the server's silence alone, and so does
    ``http=Http(read_timeout_s=…)`` for every call.

    Raises:
        ConfigError: one of our settings is wrong.
        openai.OpenAIError: one of openai's arguments is wrong.

    The documentation's page about the drop-in lists the differences from openai's own class.
    """

    _openais = openai.AsyncOpenAI

    def __init__(self, **arguments: Unpack[AsyncArguments]) -> None:
        theirs, self._batching = split_arguments(arguments)
        super().__init__(**theirs)
        self._batching.check(self)

    @property
    def batch_client(self) -> BatchClient | None:
        """The ``BatchClient`` behind the calls, for its statistics and its own calls.

        ``None`` where openai alone can send the calls (signed requests). Where a function answers
        the key, the client for the last answer; ``None`` before the first answer.
        """
        return self._batching.client(self._batching.identity(self, self.api_key))

    async def _send_request(self, request: Any, *, stream: bool, **more: Any) -> Any:
        """Send a request that openai has built, shared where possible. openai's ``_send_request``."""
        planned = self._planned(request, stream=stream)
        if isinstance(planned, Planned):
            identity = self._batching.identity(self, planned.key)
            try:
                reply = await self._batching.reply(identity, planned.calls, planned.timeout_s, planned.max_attempts)
            except BatchClientError as error:
                raise error_of(self, error, self._shown(planned, error.attempt - 1)) from error
            if isinstance(reply, Reply):
                return response_of(reply, self._shown(planned, reply.attempts - 1), planned.began)
            planned = reply
        if planned is not None:
            self._check_untouched(request, planned)
            self._batching.sharing.passed(planned)
        return await super()._send_request(request, stream=stream, **more)

    async def _refresh_api_key(self) -> str:
        """Ask for a key, if a function answers the key. openai's ``_refresh_api_key``."""
        provider = self._api_key_provider
        return self.api_key if provider is None else keep(self, take_asked(self) or await provider())

    async def _prepare_options(self, options: FinalRequestOptions) -> FinalRequestOptions:
        """Prepare a request for openai's own code. openai's ``_prepare_options``."""
        with prepared(self) as finish:
            return finish(await super()._prepare_options(options))  # type: ignore[no-any-return]

    if not TYPE_CHECKING:  # the types are those of openai's own

        @cached_property
        def completions(self) -> PlainCompletions:
            return PlainCompletions(self)

        @cached_property
        def chat(self) -> PlainChat:
            return PlainChat(self)

        @cached_property
        def embeddings(self) -> PlainEmbeddings:
            return PlainEmbeddings(self)

    async def close(self) -> None:
        """End every call, close the connections. openai's ``close``."""
        await self._batching.aclose()
        await super().close()
