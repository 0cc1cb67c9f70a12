"""The calls that are made by the million, without openai's walk through the parameters' types.

openai's ``create`` compares each parameter with its declared type, to rename keys, write dates and
dump models. The walk takes most of a coalesced call's time, and changes nothing where all values
are plain JSON. So plain calls skip the walk. Every other call, and any parameter without a name
here, takes openai's own way. ``tests/drop_in`` compares both ways, parameter by parameter.

Rules:
- A plain call with one prompt is one coroutine from ``create`` to the answer. Further coroutines
  and dictionaries cost time, also while the call waits: the garbage collector looks at them again
  and again.
- Such a call gets what openai's own way (``_drop_in``) would give. Whatever is not clear at once
  goes that way.
"""

from __future__ import annotations

import asyncio
import time
from array import array
from base64 import b64decode
from collections.abc import Callable, Mapping
from functools import cached_property, wraps
from types import CoroutineType
from typing import TYPE_CHECKING, Any, TypeVar

import openai
from openai import NotGiven
from openai._models import FinalRequestOptions
from openai.resources.chat import AsyncChat, Chat
from openai.resources.chat import AsyncCompletions as AsyncChatCompletions
from openai.resources.chat import Completions as ChatCompletions
from openai.resources.completions import AsyncCompletions, Completions
from openai.resources.embeddings import AsyncEmbeddings, Embeddings
from openai.types import Completion, CreateEmbeddingResponse
from openai.types.chat import ChatCompletion

from batchclient._core.kinds import Kind
from batchclient._core.messages import Request
from batchclient.errors import BatchClientError
from batchclient.integrations.form import PATHS, WireCalls, read_body
from batchclient.openai._calls import RAW, are_left_out
from batchclient.openai._keys import asked, with_key
from batchclient.openai._results import error_of, numbered, response_of, validated
from batchclient.openai._seams import is_untouched
from batchclient.openai._sharing import Past
from batchclient.types import Reply

if TYPE_CHECKING:
    from batchclient._shell.runner import Runner

__all__ = [
    "PlainChat",
    "PlainCompletions",
    "PlainEmbeddings",
    "SyncPlainChat",
    "SyncPlainCompletions",
    "SyncPlainEmbeddings",
    "plain_call",
]

_F = TypeVar("_F", bound=Callable[..., Any])

_SAMPLING = frozenset(
    {
        "model", "frequency_penalty", "logit_bias", "logprobs", "max_tokens", "n", "presence_penalty", "seed", "stop",
        "temperature", "top_p", "user",
    }
)  # fmt: skip
COMPLETION_FIELDS = _SAMPLING | {"prompt", "best_of", "echo", "suffix"}
EMBEDDING_FIELDS = frozenset({"model", "input", "dimensions", "encoding_format", "user"})
CHAT_FIELDS = _SAMPLING | {"messages", "max_completion_tokens", "response_format", "top_logprobs"}
_OPTIONS = {"timeout": "timeout", "extra_body": "extra_json", "extra_headers": "headers"}
"""Arguments that are no fields, and openai's words for them among a request's options."""
_SCALARS = frozenset({str, int, float, bool, type(None)})


def plain_call(given: dict[str, Any], fields: frozenset[str]) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """Return a call's body and options if openai has nothing to transform in the call."""
    body: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for name, value in given.items():
        if name in fields and _is_plain(value):
            body[name] = value
        elif name in _OPTIONS and (name == "timeout" or _is_plain(value)):
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


_Plan = tuple[WireCalls, float | None, int]
"""The calls, their whole time in seconds, and the most requests for each."""


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
        self._path = path
        self._cast_to = cast_to
        self._kind, self._subject = PATHS[path]
        self._subject_type = list if self._kind is Kind.CHAT else str
        self._fields = fields

    def _plain(self, given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]] | None:
        return plain_call(given, self._fields)

    def plan(self, client: Any, given: dict[str, Any], post: Any) -> _Plan | None:
        """Return what a plain call asks for; ``None``: the call is not plain.

        Args:
            client: the drop-in's.
            given: the arguments of ``create``.
            post: by which the resource sends requests.
        """
        batching = client._batching
        if client._strict_response_validation or not is_untouched(client, self.openais, post):
            return None
        plain = self._plain(given)
        if plain is None:
            return None
        params, options = plain
        timeout = options.get("timeout", client.timeout)
        bounds = batching.bounds(client.timeout if isinstance(timeout, NotGiven) else timeout)
        extra, headers = options.get("extra_json"), options.get("headers")
        if isinstance(bounds, Past):
            return None
        if headers and not (are_left_out(batching.header_roles, headers) and self._may_read(given)):
            return None
        subject, model = params.get(self._subject), params.get("model")
        calls: WireCalls | None
        if not extra and type(subject) is self._subject_type and subject and type(model) is str and model:
            del params[self._subject], params["model"]
            calls = WireCalls(self._kind, [subject], model, params)
        else:
            calls = read_body(self._path, {**params, **extra} if extra else params)
        return None if calls is None else (calls, bounds.whole_s, 1 + client.max_retries)

    def begin(self, client: Any, plan: _Plan, key: str) -> tuple[Runner, Request] | None:
        """Submit a call of one prompt; ``None``, with nothing done, if it cannot begin here and now."""
        calls, timeout_s, max_attempts = plan
        if len(calls.items) > 1:
            return None
        batching = client._batching
        batch_client = batching.client(batching.identity(client, key))
        if batch_client is None:
            return None
        try:
            engine = batch_client._engine
            runner = engine.start()
            backend = runner.backend
            request = engine.calls.make(calls.call(0, timeout_s, max_attempts), backend.waiter(), backend.now())
        except BatchClientError:
            return None
        runner.submit(request)
        return runner, request

    def _may_read(self, given: Mapping[str, Any]) -> bool:
        """Whether the answer can be read here, in the form that the caller wants."""
        return True

    def read(self, client: Any, given: dict[str, Any], key: str, reply: Reply, began: float) -> Any:
        """Return the answer to a plain call, or what gives the raw response that is wanted."""
        if "extra_headers" in given and _is_raw(given["extra_headers"]):
            options, request = self._request(client, given, key, reply.attempts - 1)
            response = response_of(reply, request, began)
            read = {"cast_to": self._cast_to, "options": options, "stream": False, "stream_cls": None}
            return client._process_response(response=response, **read)
        answer = validated(self._cast_to, reply)
        if answer is None:
            response = response_of(reply, self._request(client, given, key, reply.attempts - 1)[1])
            answer = client._process_response_data(data=reply.body, cast_to=self._cast_to, response=response)
            numbered(answer, reply)
        return answer

    def error(self, client: Any, given: dict[str, Any], key: str, error: BatchClientError) -> openai.OpenAIError:
        """Return openai's exception for a plain call's error."""
        return error_of(client, error, self._request(client, given, key, max(0, error.attempt - 1))[1])

    def _request(
        self, client: Any, given: dict[str, Any], key: str, retries_taken: int
    ) -> tuple[FinalRequestOptions, Any]:
        """The options and the request that openai would have built for a plain call."""
        plain = self._plain(given)
        assert plain is not None, "other calls do not begin here"
        body, options = plain
        final = with_key(
            client, FinalRequestOptions.construct(method="post", url=self._path, json_data=body, **options), key
        )
        return final, client._build_request(final, retries_taken=retries_taken)


def _is_raw(headers: Mapping[str, Any] | None) -> bool:
    """Whether the caller wants the response itself, as openai's own code says it."""
    return headers is not None and RAW in map(str.lower, headers)


def _creates(route: _Route) -> Any:
    """Return the ``create`` of a resource."""

    @_like(route.openais.create)
    async def create(self: Any, **given: Any) -> Any:
        client = self._client
        plan = route.plan(client, given, self._post) if asyncio._get_running_loop() is not None else None
        if plan is None:
            return await route.openais.create(self, **given)
        batching, began = client._batching, time.perf_counter()
        key = await client._refresh_api_key() if batching.asks_for_key else client.api_key
        begun = route.begin(client, plan, key)
        try:
            if begun is None:
                reply = await batching.reply(batching.identity(client, key), *plan)
            else:
                runner, request = begun
                # Nothing waits with the call that nobody reads.
                del begun, plan
                try:
                    answer = await runner.backend.wait(request.waiter)
                except BaseException:
                    runner.leave(request)
                    batching.sharing.failed(1)
                    raise
                reply = answer.reply
                reply.attempts = answer.attempts
                batching.sharing.answered(reply, 1)
        except BatchClientError as error:
            raise route.error(client, given, key, error) from error
        if isinstance(reply, Past):
            with asked(client, key):
                return await route.openais.create(self, **given)
        made = route.read(client, given, key, reply, began)
        return await made if isinstance(made, CoroutineType) else made

    return create


def _creates_blocking(route: _Route) -> Any:
    """Return the ``create`` of a resource of the blocking client."""

    @_like(route.openais.create)
    def create(self: Any, **given: Any) -> Any:
        client = self._client
        plan = route.plan(client, given, self._post) if client._shares else None
        if plan is None:
            return route.openais.create(self, **given)
        batching, began = client._batching, time.perf_counter()
        key = client._refresh_api_key() if batching.asks_for_key else client.api_key
        try:
            # Who asks is known here: other threads may set other values before the loop looks.
            reply = batching.reply_to_thread(batching.identity(client, key), *plan)
        except BatchClientError as error:
            raise route.error(client, given, key, error) from error
        if isinstance(reply, Past):
            with asked(client, key):
                return route.openais.create(self, **given)
        return route.read(client, given, key, reply, began)

    return create


class _EmbeddingRoute(_Route):
    """Vectors travel as base64 where the caller names no format, as openai's own code has it."""

    def _plain(self, given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]] | None:
        return super()._plain({"encoding_format": "base64", **given})

    def _may_read(self, given: Mapping[str, Any]) -> bool:
        # A raw response decodes its vectors by a function of openai's own ``create``.
        return "encoding_format" in given or not _is_raw(given["extra_headers"])

    def read(self, client: Any, given: dict[str, Any], key: str, reply: Reply, began: float) -> Any:
        """Return the answer to a plain call, its vectors as lists of numbers."""
        if "encoding_format" in given or not isinstance(reply.body, dict):
            return super().read(client, given, key, reply, began)
        for item in reply.body.get("data") or ():
            if isinstance(item.get("embedding"), str):
                item["embedding"] = array("f", b64decode(item["embedding"])).tolist()
        answer = super().read(client, given, key, reply, began)
        if not answer.data:
            raise ValueError("No embedding data received")
        return answer


_COMPLETIONS = "/completions", COMPLETION_FIELDS, Completion
_CHATS = "/chat/completions", CHAT_FIELDS, ChatCompletion
_EMBEDDINGS = "/embeddings", EMBEDDING_FIELDS, CreateEmbeddingResponse


class PlainCompletions(AsyncCompletions):
    create = _creates(_Route(AsyncCompletions, *_COMPLETIONS))


class PlainChatCompletions(AsyncChatCompletions):
    create = _creates(_Route(AsyncChatCompletions, *_CHATS))


class PlainEmbeddings(AsyncEmbeddings):
    create = _creates(_EmbeddingRoute(AsyncEmbeddings, *_EMBEDDINGS))


class PlainChat(AsyncChat):
    @cached_property
    def completions(self) -> AsyncChatCompletions:
        """The chats."""
        return PlainChatCompletions(self._client)


class SyncPlainCompletions(Completions):
    create = _creates_blocking(_Route(Completions, *_COMPLETIONS))


class SyncPlainChatCompletions(ChatCompletions):
    create = _creates_blocking(_Route(ChatCompletions, *_CHATS))


class SyncPlainEmbeddings(Embeddings):
    create = _creates_blocking(_EmbeddingRoute(Embeddings, *_EMBEDDINGS))


class SyncPlainChat(Chat):
    @cached_property
    def completions(self) -> ChatCompletions:
        """The chats."""
        return SyncPlainChatCompletions(self._client)
