"""openai's blocking client, with its calls coalesced: threads that call at the same time share requests.

Rules:
- The calls are made in one event loop in the background (``_bridge``); a client's copies share it.
- A blocking HTTP client of the user's own cannot be used there: with one, every call goes through it by itself, as openai sends it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

import openai

from batchclient._openai_form import PATHS, make_calls
from batchclient.errors import BatchClientError, ConfigError
from batchclient.openai._batching import Batching, split_arguments
from batchclient.openai._calls import Planned, plan
from batchclient.openai._resources import NOT_SHARED, SyncPlainChat, SyncPlainCompletions
from batchclient.openai._results import error_of, parse, to_process
from batchclient.openai._seams import seams
from batchclient.types import Reply

if TYPE_CHECKING:
    from typing import Self

    from batchclient.client import BatchClient

__all__ = ["OpenAI"]

_log = logging.getLogger("batchclient")


class OpenAI(openai.OpenAI):
    """``openai.OpenAI``, whose completions, chats and embeddings share requests where threads make them at the same time.

    Args:
        arguments: as for ``AsyncOpenAI``.

    Raises:
        ConfigError: one of our settings is wrong.
        openai.OpenAIError: one of openai's is.
    """

    _batching: Batching
    _may_share, _may_skip = True, True

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls._may_share, cls._may_skip = seams(cls, openai.OpenAI, OpenAI)

    def __init__(self, **arguments: Any) -> None:
        is_copy = "_batching" in arguments
        theirs, self._batching = split_arguments(arguments)
        self._shares = self._batching.http_client is None
        if not self._shares and not is_copy:
            _log.warning(
                "an http_client of your own is a blocking one: calls go through it one by one and share no requests"
            )
        super().__init__(**theirs)
        if self._shares:
            self._batching.check(self)

    @property
    def batch_client(self) -> BatchClient | None:
        """What the calls go through, for its statistics; it belongs to an event loop in the background. ``None`` where openai alone sends them."""
        return self._batching.bridge().ask(self._batching.client, self) if self._shares else None

    def post(
        self, path: str, *, cast_to: Any, body: Any = None, options: Mapping[str, Any] | None = None, **more: Any
    ) -> Any:
        """Send a request, with others of its like where it can be. Resources call it; its signature is openai's."""
        options = options or {}
        answer = NOT_SHARED
        if path in PATHS and not more.get("stream"):
            answer = self.share(path, body, options, more, cast_to)
        if answer is NOT_SHARED:
            openais: Any = super().post
            return openais(path, cast_to=cast_to, body=body, options=options, **more)
        return answer

    def share(self, path: str, body: Any, options: Mapping[str, Any], more: Mapping[str, Any], cast_to: Any) -> Any:
        """Make a call that may share a request; ``NOT_SHARED``, and nothing was sent, if it may not."""
        planned = plan(self, path, body, options, more) if self._shares and self._may_share else None
        if planned is None:
            return NOT_SHARED
        # Taken along, since another thread's answer may be the client's key a moment later.
        key = self._refresh_api_key() if self._batching.asks_for_key else self.api_key
        try:
            reply = self._batching.bridge().call(self._call, planned, key)
        except ConfigError:
            # Called from within the event loop in the background.
            return NOT_SHARED
        except BatchClientError as error:
            raise error_of(self, planned, error) from error
        if reply is None:
            return NOT_SHARED
        if planned.raw is None:
            return parse(self, planned, reply, cast_to)
        return self._process_response(**to_process(self, planned, reply, cast_to))

    async def _call(self, planned: Planned, key: str) -> Reply | None:
        client = self._batching.client(self, key)
        if client is None:
            return None
        return await make_calls(client, planned.calls, planned.timeout_s, planned.max_attempts)

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
