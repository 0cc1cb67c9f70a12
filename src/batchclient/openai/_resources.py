"""The two calls that are made by the million, without openai's walk through the parameters' types.

openai's ``create`` compares each parameter with its declared type, to rename keys, write dates and
dump models. The walk takes most of a coalesced call's time, and changes nothing where all values
are plain JSON. So plain calls skip the walk. Every other call, and any parameter without a name
here, takes openai's own way. ``tests/drop_in`` compares both ways, parameter by parameter.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property, wraps
from typing import Any, TypeVar

from openai.resources.chat import AsyncChat, Chat
from openai.resources.chat import AsyncCompletions as AsyncChatCompletions
from openai.resources.chat import Completions as ChatCompletions
from openai.resources.completions import AsyncCompletions, Completions
from openai.types import Completion
from openai.types.chat import ChatCompletion

from batchclient.openai._keys import asked
from batchclient.openai._seams import is_openais, is_ours
from batchclient.openai._sharing import Past

__all__ = ["PlainChat", "PlainCompletions", "SyncPlainChat", "SyncPlainCompletions", "plain_call"]

_F = TypeVar("_F", bound=Callable[..., Any])

_SAMPLING = frozenset(
    {
        "model", "frequency_penalty", "logit_bias", "logprobs", "max_tokens", "n", "presence_penalty", "seed", "stop",
        "temperature", "top_p", "user",
    }
)  # fmt: skip
COMPLETION_FIELDS = _SAMPLING | {"prompt", "best_of", "echo", "suffix"}
CHAT_FIELDS = _SAMPLING | {"messages", "max_completion_tokens", "response_format", "top_logprobs"}
_OPTIONS = {"timeout": "timeout", "extra_body": "extra_json"}
"""Arguments that are no fields, and openai's words for them among a request's options."""
_NEEDED = {"model", "prompt"}
_NEEDED_OF_CHATS = {"model", "messages"}
_SCALARS = frozenset({str, int, float, bool, type(None)})


def plain_call(given: dict[str, Any], fields: frozenset[str]) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return a call's body and options if openai has nothing to transform in the call."""
    body: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for name, value in given.items():
        if name in fields and _is_plain(value):
            body[name] = value
        elif name in _OPTIONS:
            if value is not None or name == "timeout":
                options[_OPTIONS[name]] = value
        else:
            return None
    return body, options


def _is_plain(value: Any) -> bool:
    """Whether a value is made of JSON's own types, exactly.

    Models, iterables and openai's words for "not given" are not plain.
    """
    kind = type(value)
    if kind in _SCALARS:
        return True
    if kind is dict:
        return all(type(name) is str and _is_plain(each) for name, each in value.items())
    return kind is list and (set(map(type, value)) == {int} or all(map(_is_plain, value)))


def _like(original: Any) -> Callable[[_F], _F]:
    """Give a method the name, the signature and the docstring of openai's method."""
    named: Any = wraps(original)
    return named  # type: ignore[no-any-return]


def _plain(resource: Any, openais: Any, given: dict[str, Any], fields: frozenset[str], needed: set[str]) -> Any:
    """The body and the options of a call that may skip openai's own code; else ``None``."""
    client = resource._client
    if not needed <= given.keys() or not client._may_skip or not is_ours(type(client).post):
        return None
    return plain_call(given, fields) if is_openais(openais.create) and not client.is_watched else None


class PlainCompletions(AsyncCompletions):
    @_like(AsyncCompletions.create)
    async def create(self, **given: Any) -> Any:
        client: Any = self._client
        plain = _plain(self, AsyncCompletions, given, COMPLETION_FIELDS, _NEEDED)
        if plain is None:
            return await super().create(**given)
        answer = await client.share("/completions", *plain, {}, Completion)
        if not isinstance(answer, Past):
            return answer
        with asked(client):
            return await super().create(**given)


class PlainChatCompletions(AsyncChatCompletions):
    @_like(AsyncChatCompletions.create)
    async def create(self, **given: Any) -> Any:
        client: Any = self._client
        plain = _plain(self, AsyncChatCompletions, given, CHAT_FIELDS, _NEEDED_OF_CHATS)
        if plain is None:
            return await super().create(**given)
        answer = await client.share("/chat/completions", *plain, {}, ChatCompletion)
        if not isinstance(answer, Past):
            return answer
        with asked(client):
            return await super().create(**given)


class PlainChat(AsyncChat):
    @cached_property
    def completions(self) -> AsyncChatCompletions:
        """The chats."""
        return PlainChatCompletions(self._client)


class SyncPlainCompletions(Completions):
    @_like(Completions.create)
    def create(self, **given: Any) -> Any:
        client: Any = self._client
        plain = _plain(self, Completions, given, COMPLETION_FIELDS, _NEEDED)
        if plain is None:
            return super().create(**given)
        answer = client.share("/completions", *plain, {}, Completion)
        if not isinstance(answer, Past):
            return answer
        with asked(client):
            return super().create(**given)


class SyncPlainChatCompletions(ChatCompletions):
    @_like(ChatCompletions.create)
    def create(self, **given: Any) -> Any:
        client: Any = self._client
        plain = _plain(self, ChatCompletions, given, CHAT_FIELDS, _NEEDED_OF_CHATS)
        if plain is None:
            return super().create(**given)
        answer = client.share("/chat/completions", *plain, {}, ChatCompletion)
        if not isinstance(answer, Past):
            return answer
        with asked(client):
            return super().create(**given)


class SyncPlainChat(Chat):
    @cached_property
    def completions(self) -> ChatCompletions:
        """The chats."""
        return SyncPlainChatCompletions(self._client)
