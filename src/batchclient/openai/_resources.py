"""The two calls that are made by the million, without openai's walk through the parameters' types.

openai's ``create`` compares each parameter with its declared type, to rename keys, write dates and
dump models. The walk takes most of a coalesced call's time, and changes nothing where all values
are plain JSON. So plain calls skip the walk. Every other call, and any parameter without a name
here, takes openai's own way. ``tests/drop_in`` compares both ways, parameter by parameter.

Rules:
- A plain call without options, with one prompt, is one coroutine from ``create`` to the answer.
  Further coroutines and dictionaries cost time, also while the call waits: the garbage collector
  looks at them again and again.
- Such a call gets what ``share`` would give. Whatever is not clear at once is left to ``share``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import cached_property, wraps
from typing import TYPE_CHECKING, Any, TypeVar

from openai.resources.chat import AsyncChat, Chat
from openai.resources.chat import AsyncCompletions as AsyncChatCompletions
from openai.resources.chat import Completions as ChatCompletions
from openai.resources.completions import AsyncCompletions, Completions
from openai.types import Completion
from openai.types.chat import ChatCompletion

from batchclient._core.kinds import Kind
from batchclient._core.messages import Request
from batchclient.errors import BatchClientError
from batchclient.integrations.form import PATHS, read_body
from batchclient.openai._calls import Planned
from batchclient.openai._keys import asked
from batchclient.openai._results import error_of, parse, validated
from batchclient.openai._seams import is_openais, is_ours, is_untouched
from batchclient.openai._sharing import Past
from batchclient.types import NOT_GIVEN

if TYPE_CHECKING:
    from batchclient._shell.runner import Runner
    from batchclient.types import Completion as Answer

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


class _Route:
    """The plain calls of one of openai's resources.

    Args:
        openais: the resource's class.
        path: below the base URL.
        fields: the parameters that a plain call may have.
        cast_to: openai's type of the answers.
    """

    def __init__(self, openais: Any, path: str, fields: frozenset[str], cast_to: Any) -> None:
        self.openais = openais
        self.path = path
        self.cast_to = cast_to
        self._kind, self._subject = PATHS[path]
        self._subject_type = list if self._kind is Kind.CHAT else str
        self._fields = fields

    def plain(self, client: Any, given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]] | None:
        """The body and the options of a call that may skip openai's own code; else ``None``."""
        if self._subject not in given or "model" not in given or not client._may_skip or not is_ours(type(client).post):
            return None
        return plain_call(given, self._fields) if is_openais(self.openais.create) and not client.is_watched else None

    def begin(self, client: Any, given: dict[str, Any]) -> tuple[Runner, Request, str] | None:
        """Submit a plain call of one prompt and without options; return the call and its key.

        ``None``, with nothing done, if the call is not that plain.
        """
        batching = client._batching
        subject, model = given.get(self._subject), given.get("model")
        if (
            type(subject) is not self._subject_type
            or not subject
            or type(model) is not str
            or not model
            or batching.asks_for_key
            or client._strict_response_validation
            or asyncio._get_running_loop() is None
            or not is_untouched(client, self.openais)
        ):
            return None
        for name, value in given.items():
            if name not in self._fields or (type(value) not in _SCALARS and not _is_plain(value)):
                return None
        bounds = batching.bounds(client.timeout)
        if isinstance(bounds, Past):
            return None
        key = client.api_key
        batch_client = batching.client(batching.identity(client, key))
        if batch_client is None:
            return None
        params = given.copy()
        del params[self._subject], params["model"]
        timeout_s = NOT_GIVEN if bounds.whole_s is None else bounds.whole_s
        try:
            runner = batch_client._start()
            backend = runner.backend
            request = batch_client._calls.make(
                subject,
                model,
                timeout_s,
                params,
                backend.waiter(),
                backend.now(),
                kind=self._kind,
                verbatim=True,
                max_attempts=1 + client.max_retries,
            )
        except BatchClientError:
            return None
        runner.submit(request)
        return runner, request, key

    def read(self, client: Any, given: Mapping[str, Any], key: str, answer: Answer) -> Any:
        """Return the answer to a call that has begun, as an instance of openai's type."""
        reply: Any = answer.reply
        reply.attempts = answer.attempts
        client._batching.sharing.answered(reply, 1)
        made = validated(self.cast_to, reply)
        return parse(client, self.planned(given, key), reply, self.cast_to) if made is None else made

    def planned(self, given: Mapping[str, Any], key: str) -> Planned:
        """A call that has begun, for the request that its error shows."""
        calls = read_body(self.path, given)
        assert calls is not None, "such calls only begin"
        return Planned(calls, self.path, None, 1, None, None, {}, given, key=key)


def _creates(route: _Route) -> Any:
    """Return the ``create`` of a resource."""

    @_like(route.openais.create)
    async def create(self: Any, **given: Any) -> Any:
        client = self._client
        begun = route.begin(client, given)
        if begun is not None:
            runner, request, key = begun
            # Nothing waits with the call that nobody reads.
            del begun
            try:
                answer = await runner.backend.wait(request.waiter)
            except BatchClientError as error:
                raise error_of(client, route.planned(given, key), error) from error
            except BaseException:
                runner.leave(request)
                raise
            return route.read(client, given, key, answer)
        plain = route.plain(client, given)
        if plain is None:
            return await route.openais.create(self, **given)
        shared = await client.share(route.path, *plain, {}, route.cast_to)
        if not isinstance(shared, Past):
            return shared
        with asked(client):
            return await route.openais.create(self, **given)

    return create


def _creates_blocking(route: _Route) -> Any:
    """Return the ``create`` of a resource of the blocking client."""

    @_like(route.openais.create)
    def create(self: Any, **given: Any) -> Any:
        client = self._client
        plain = route.plain(client, given)
        if plain is None:
            return route.openais.create(self, **given)
        shared = client.share(route.path, *plain, {}, route.cast_to)
        if not isinstance(shared, Past):
            return shared
        with asked(client):
            return route.openais.create(self, **given)

    return create


_COMPLETIONS = "/completions", COMPLETION_FIELDS, Completion
_CHATS = "/chat/completions", CHAT_FIELDS, ChatCompletion


class PlainCompletions(AsyncCompletions):
    create = _creates(_Route(AsyncCompletions, *_COMPLETIONS))


class PlainChatCompletions(AsyncChatCompletions):
    create = _creates(_Route(AsyncChatCompletions, *_CHATS))


class PlainChat(AsyncChat):
    @cached_property
    def completions(self) -> AsyncChatCompletions:
        """The chats."""
        return PlainChatCompletions(self._client)


class SyncPlainCompletions(Completions):
    create = _creates_blocking(_Route(Completions, *_COMPLETIONS))


class SyncPlainChatCompletions(ChatCompletions):
    create = _creates_blocking(_Route(ChatCompletions, *_CHATS))


class SyncPlainChat(Chat):
    @cached_property
    def completions(self) -> ChatCompletions:
        """The chats."""
        return SyncPlainChatCompletions(self._client)
