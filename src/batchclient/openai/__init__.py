"""openai's clients, with their calls coalesced: ``from batchclient.openai import AsyncOpenAI``.

Rules:
- A subclass of openai's own class overrides a single seam, ``post``. The resources' work before
  ``post`` (parameters, transformations, ``parse``) and all other work stay openai's. Where other
  code watches the work after ``post`` (``_seams``), the seam is ``_send_request``.
- A call that may share a request (``integrations.form``) goes through a ``BatchClient``. Every
  other call goes through openai's own code, untouched.
- Answers are openai's types, errors openai's classes with openai's attributes.
- Retries have a single owner: ``max_retries`` bounds the requests for a call, and openai's own loop
  is not entered.
- Clients made by ``with_options`` share the scheduler. Calls with other credentials, headers that
  count or servers never share a request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any, Unpack

import openai
from openai._models import FinalRequestOptions

from batchclient.errors import BatchClientError, ConfigError
from batchclient.integrations.form import PATHS, make_calls
from batchclient.openai._arguments import AsyncArguments
from batchclient.openai._batching import Batching, split_arguments
from batchclient.openai._calls import RESPONSES, Planned, plan, post_of
from batchclient.openai._keys import asked, forget, keep, prepared, take_asked
from batchclient.openai._resources import PlainChat, PlainCompletions
from batchclient.openai._results import error_of, parse, response_of, to_process
from batchclient.openai._seams import is_replaced, is_watched, key_of, mark, seams, take_options
from batchclient.openai._sharing import Past, SharingStatistics
from batchclient.openai._sync import OpenAI
from batchclient.types import Reply

if TYPE_CHECKING:
    from typing import Self

    from batchclient.client import BatchClient

__all__ = ["AsyncOpenAI", "OpenAI", "SharingStatistics"]

_OPENAIS = openai.AsyncOpenAI
"""Taken at import: later, programs put the drop-in in the place of openai's class."""


class AsyncOpenAI(openai.AsyncOpenAI):
    """``openai.AsyncOpenAI``, whose completions, chats and embeddings share where possible.

    Args:
        arguments: openai's own (``api_key``, ``base_url``, ``timeout``, ``max_retries``,
            ``default_headers``, ``http_client``, …), and ``BatchClient``'s settings (``preset``,
            ``limit``, ``batching``, ``dialect``, ``retry``, …). ``base_url`` may be a list of
            servers. ``labels`` are names of further headers that say who asks: calls that differ in
            labels share.

    ``timeout`` given to the client or to a call bounds the whole call, with the waiting here.
    openai's default of ten minutes bounds the server's silence alone, and so does
    ``http=Http(read_timeout_s=…)`` for every call.

    Raises:
        ConfigError: one of our settings is wrong.
        openai.OpenAIError: one of openai's arguments is wrong.

    Differences from openai's own class: see ``docs/reference/openai.md``.
    """

    _batching: Batching
    _openais = _OPENAIS
    _may_share, _may_skip = True, True
    """Whether another client may send the requests, and whether a resource may skip ``post``.

    A subclass with a say in either sets the flag to ``False``.
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._may_share, cls._may_skip = seams(cls, AsyncOpenAI)

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

    @property
    def is_watched(self) -> bool:
        """Whether somebody, such as a tracer, has replaced openai's ``post`` or ``request``.

        Calls then go through the replaced method. Before openai 2.31 always ``False``, and calls
        through a replaced method share no requests.
        """
        return is_watched(self, _OPENAIS)

    def statistics(self) -> SharingStatistics:
        """Return counts of shared calls, and of others by reason; the copies' calls are included."""
        return self._batching.sharing.statistics()

    async def post(
        self, path: str, *, cast_to: Any, body: Any = None, options: Mapping[str, Any] | None = None, **more: Any
    ) -> Any:
        """Send a request, shared where possible. Resources call ``post``, with openai's signature."""
        options = options or {}
        openais: Any = super().post
        if path == RESPONSES:
            self._batching.sharing.passed(Past.RESPONSES)
        elif path in PATHS and not self.is_watched:
            answer = await self.share(path, body, options, more, cast_to)
            if not isinstance(answer, Past):
                return answer
            self._batching.sharing.passed(answer)
            with asked(self):
                return await openais(path, cast_to=cast_to, body=body, options=options, **more)
        return await openais(path, cast_to=cast_to, body=body, options=options, **more)

    async def share(
        self, path: str, body: Any, options: Mapping[str, Any], more: Mapping[str, Any], cast_to: Any
    ) -> Any:
        """Make a call that may share a request; ``Past``, and nothing sent, if the call may not."""
        if self._batching.asks_for_key:
            forget()
        planned = self._planned(path, body, options, more)
        if isinstance(planned, Past):
            return planned
        key = await self._refresh_api_key() if self._batching.asks_for_key else self.api_key
        reply = await self._reply(planned, key)
        if isinstance(reply, Past):
            return reply
        if planned.raw is None:
            return parse(self, planned, reply, cast_to)
        return await self._process_response(**to_process(self, planned, reply, cast_to))

    def _planned(self, path: str, body: Any, options: Mapping[str, Any], more: Mapping[str, Any]) -> Planned | Past:
        if not self._may_share:
            return Past.SUBCLASS
        if is_replaced(self, _OPENAIS):
            return Past.REPLACED
        # On trio a BatchClient needs ``async with``, which nobody writes for us.
        return plan(self, path, body, options, more) if asyncio._get_running_loop() else Past.TRIO

    async def _reply(self, planned: Planned, key: str, request: Any = None) -> Reply | Past:
        planned.key = key
        client = self._batching.client(self._batching.identity(self, key))
        if client is None:
            return Past.NO_CLIENT
        try:
            reply = await make_calls(client, planned.calls, planned.timeout_s, planned.max_attempts)
        except ConfigError:
            # Another running event loop uses the batch client.
            return Past.LOOP
        except BatchClientError as error:
            raise error_of(self, planned, error, request) from error
        if reply is None:
            return Past.REFUSED
        self._batching.sharing.answered(reply, len(planned.calls.items))
        return reply

    def _build_request(self, options: FinalRequestOptions, *, retries_taken: int = 0) -> Any:
        """Build a request, and mark a watched call's. openai's ``_build_request``."""
        request = super()._build_request(options, retries_taken=retries_taken)
        if self.is_watched and not retries_taken:
            mark(request, options)
        return request

    async def _send_request(self, request: Any, *, stream: bool, **more: Any) -> Any:
        """Send a request that openai's own code has built. openai's ``_send_request``.

        A watched call's request is shared.
        """
        options = take_options(request)
        if options is not None:
            response = await self._share_built(request, options, stream=stream)
            if not isinstance(response, Past):
                return response
            self._batching.sharing.passed(response)
        return await super()._send_request(request, stream=stream, **more)

    async def _share_built(self, request: Any, options: FinalRequestOptions, *, stream: bool) -> Any:
        planned = self._planned(*post_of(self, options, request, stream=stream))
        if isinstance(planned, Past):
            return planned
        reply = await self._reply(planned, key_of(request), request)
        return reply if isinstance(reply, Past) else response_of(self, planned, reply, request)

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

    def copy(self, **arguments: Any) -> Self:
        """Return a client with other options and the same scheduler. openai's ``copy``."""
        return super().copy(**self._batching.for_copy(self, arguments))

    with_options = copy

    async def close(self) -> None:
        """End every call, close the connections. openai's ``close``."""
        await self._batching.aclose()
        await super().close()
