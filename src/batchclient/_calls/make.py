"""From a caller's arguments to a request: every check before anything is queued.

Rules:
- A wrong argument is refused here, with a ``ConfigError`` that names the argument.
- A prompt becomes JSON bytes here, once: bad text is found where the text is given, and retries and
  splits need not write the prompt again.
- A model's length is told by the servers (see ``lengths``). What is refused for it may be tried
  again: they may be others by then.
- The model is the call's, the client's, or the server's own where ``asks_model`` says that the
  server must be asked.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from json import dumps, loads
from typing import TYPE_CHECKING, Any

from batchclient._calls.call import PLAIN, Call, Manner
from batchclient._calls.inputs import (
    BYTES_PER_TOKEN,
    HIGHEST_PRIORITY,
    INPUTS,
    check_ids,
    has_media,
    is_conversation,
    write_messages,
    write_text,
)
from batchclient._calls.lengths import ModelLengths
from batchclient._core.kinds import Kind
from batchclient._core.messages import Batch, Offer, Request, Shape
from batchclient._shell.backend import Waiter
from batchclient.dialects._kinds import KINDS
from batchclient.errors import BatchClientError, ConfigError, NotFound
from batchclient.types import NOT_GIVEN, NotGiven

if TYPE_CHECKING:
    from batchclient._settings import Settings

__all__ = ["LABELS", "CallMaker"]

_LONGEST_TIMEOUT_S = 1e9
_LONGEST_TENANT = 256
_LONGEST_SESSION = 256
_SHAPES_REMEMBERED = 4096
LABELS = frozenset({"user", "request_id", "metadata"})
"""Fields about the caller, which a shared request leaves out."""
_OWN_LABEL = "user, metadata or request_id"
"""Why a map's row with such a field of its own goes alone."""
_TRUNCATING = frozenset({"truncate_prompt_tokens", "truncate"})
"""Fields by which a server is told to cut a long prompt: no prompt is too long, then."""
_EXPECTED = "expected_tokens"
"""How long the caller takes an answer to be: nothing of it is sent, or part of what the call is."""
_MOST_EXPECTED = 1_000_000_000
"""Tokens; no answer has more."""
_NAMES_MODEL = re.compile(r"(?<![\w./-])model(?! has to be served)", re.IGNORECASE)
"""Words of a 404 for want of the model and not of the route; a URL may have the word, too, and so
has ``Servers.explain``.
"""


class CallMaker:
    """Makes requests for one client.

    Args:
        settings: the client's.
        offers: what each base URL serves.
    """

    def __init__(self, settings: Settings, offers: Mapping[str, Offer] | None = None) -> None:
        self._settings = settings
        self._offers = offers or {}
        self.has_own_models: bool = any(server.model is not None for server in settings.base_url)
        """Whether some server may have a model of its own."""
        # The names of parameters take 5 ms to import: not with batchclient, and not within a call.
        import batchclient.params  # noqa: F401
        from batchclient.dialects._shapes import Shapes

        self._shapes = Shapes()
        self.lengths = ModelLengths()
        self._timeout_s = settings.timeout_s
        """Of calls that say none."""
        self.default_model = settings.model
        """The model of calls that name none."""
        self.asks_model = settings.model is None and any(server.model is None for server in settings.base_url)
        """Whether the server is to be asked for its model before a call that names none."""
        self.endpoints: Sequence[tuple[str, int]] = ()
        """The base URL and id of each server in use."""
        self.tells_sessions: bool = any(server.session_header is not None for server in settings.base_url)
        """Whether some server is told a call's session."""
        self._of_lanes: dict[tuple[Any, ...], Shape] = {}
        self._of_queries: dict[tuple[Shape, bytes], Shape] = {}
        self._of_models: dict[tuple[Shape, bytes], Shape] = {}
        self._of_tags: dict[tuple[Shape, str], Shape] = {}
        self.closings: dict[tuple[str, str], tuple[int, ...]] = {}
        """Token ids of texts that end a model's thinking, by model and text."""

    def make(self, call: Call, waiter: Waiter | None, now: float, *, from_grant: bool = False) -> Request:
        """Return the request of one call.

        Args:
            call: what is asked for.
            waiter: the caller's.
            now: the time.
            from_grant: whether the call's time runs from its first grant.

        Raises:
            ConfigError: an argument is wrong.
        """
        kind, item, params, model, timeout_s, priority, tenant, session, _, manner = call
        name: Any = self.default_model if model is None else model
        if type(name) is not str or not name:
            name = self.model(model)
        token_ids, expected = False, None
        if _EXPECTED in params or "extra_body" in params:
            params, expected = _expectation(kind, params)
        alone = None
        write = INPUTS.get(kind)
        if write is not None:
            wire, tokens = write(item)
            if kind is Kind.CHAT and has_media(item):
                alone = "content parts"
        elif isinstance(item, str):
            wire = write_text(item, KINDS[kind].arguments[0])
            tokens = len(wire) // BYTES_PER_TOKEN + 1
        elif kind is Kind.TOKENS and is_conversation(item):
            wire, tokens = write_messages(item)
        else:
            wire, tokens = self._check_ids(item, name, params, now, kind)
            token_ids = True
        to_caller, verbatim = False, False
        if manner is not PLAIN:
            to_caller, verbatim = manner.to_caller, manner.verbatim
            if verbatim and params.get("echo") and params.get("logprobs") is not None:
                alone = "events have no logprobs of prompts"
            if manner.own_label:
                alone = alone or _OWN_LABEL
        shape, solo = self._shapes.shape(
            params, name, kind=kind, token_ids=token_ids, alone=alone, to_caller=to_caller, verbatim=verbatim
        )
        if self.has_own_models:
            shape = self._at_models(shape, model)
        if write is not None and kind is Kind.RERANK:
            shape = self._of_query(shape, item[0])
        is_plain = manner is PLAIN and tenant is None and session is None and not priority
        if not is_plain or type(priority) is not int:
            shape = self._in_lane(shape, call)
        if shape.thinking_tokens is not None and isinstance(item, str):
            shape = self._opened(shape, item)
        seconds = self._timeout_s if timeout_s is NOT_GIVEN else self.seconds(timeout_s)
        deadline = None if seconds is None or from_grant else now + seconds
        request = Request(shape, wire, prompt_tokens=tokens, deadline=deadline, solo_fields=solo, waiter=waiter)
        request.expected_tokens = expected
        if from_grant:
            request.timeout_s = seconds
        return request

    def make_again(self, request: Request, item: Any, fields: dict[str, Any], now: float) -> Request:
        """Return a call's request of another input and other fields, with the same waiter and time."""
        shape = request.shape
        fields |= {**loads(b"{%b}" % request.solo_fields), "runaway": shape.guarded}
        model = fields.pop("model")
        call = Call(
            shape.kind,
            item,
            {"extra_body": fields},
            None if shape.any_model else model,
            None,
            shape.priority,
            shape.tenant,
            shape.session,
            manner=Manner(
                own_label=shape.alone_reason == _OWN_LABEL,
                tells_priority=shape.tells_priority,
                home=shape.home,
                budget=shape.budget,
            ),
        )
        made = self.make(call, request.waiter, now)
        made.deadline, made.timeout_s = request.deadline, request.timeout_s
        return made

    def check(self, call: Call, method: str | None = None) -> Shape:
        """Check the arguments that all calls of a map share, perhaps before the model is known.

        ``method`` names the map in errors.

        Returns:
            The shape of such calls for a text.

        Raises:
            ConfigError: an argument is wrong.
        """
        model = self.some_model if call.model is None and self.asks_model else self.model(call.model)
        params, _ = _expectation(call.kind, call.params)
        shape, _ = self._shapes.shape(params, model, kind=call.kind, method=method)
        if self.has_own_models:
            shape = self._at_models(shape, call.model)
        self._in_lane(shape, call)
        self.seconds(call.timeout_s)
        return shape

    @property
    def some_model(self) -> str:
        """A name that stands for the server's model while arguments are only checked."""
        return self.default_model or "?"

    def join(self, model: str | None) -> None:
        """A server has joined, perhaps with a model of its own."""
        if model is not None:
            self.has_own_models = True
        elif self.default_model is None:
            self.asks_model = True

    @property
    def own_models(self) -> list[str]:
        """The names of the servers' own models, sorted."""
        return sorted({name for url, _ in self.endpoints if (name := self._offers[url].model) is not None})

    @property
    def models(self) -> list[str]:
        """The names of the models that calls which name none may be answered by, sorted."""
        names, own = self.own_models, {self._offers[url].model for url, _ in self.endpoints}
        return sorted({*names, self.some_model}) if None in own else names

    def _at_models(self, shape: Shape, model: str | None) -> Shape:
        """Return the shape of the same calls where servers have models of their own.

        Calls that name none may be answered by one of several: their key has all names.

        Raises:
            ConfigError: no server has the model that the calls name.
        """
        if model is not None:
            if all(self._offers[url].model not in (None, model) for url, _ in self.endpoints):
                message = f"no server has the model {model!r:.80}; they have {', '.join(self.own_models)}"
                raise ConfigError(message, field="model")
            return shape
        models = self.models
        if models == [shape.model]:
            return shape
        names = dumps(models).encode()
        known = self._of_models.get((shape, names))
        if known is None:
            if len(self._of_models) >= _SHAPES_REMEMBERED:
                self._of_models.clear()
            known = replace(shape, key=names + shape.key, answer_key=names + shape.answer_key, any_model=True)
            self._of_models[shape, names] = known
        return known

    def _opened(self, shape: Shape, prompt: str) -> Shape:
        """Return the shape of the same calls whose prompts end as this one: perhaps amid thinking."""
        from batchclient.dialects._thinking import opened_by  # few calls have a budget

        tag = opened_by(prompt)
        if not tag:
            return shape
        known = self._of_tags.get((shape, tag))
        if known is None:
            if len(self._of_tags) >= _SHAPES_REMEMBERED:
                self._of_tags.clear()
            known = replace(shape, key=f"{tag}!".encode() + shape.key, answer_key=shape.answer_key, opened=tag)
            self._of_tags[shape, tag] = known
        return known

    def found_model(self, name: str) -> None:
        """The server has told its model."""
        self.default_model = name
        self.asks_model = False

    def model(self, model: str | None) -> str:
        """Return the model's name: the call's, or the client's."""
        name = model if model is not None else self.default_model
        if name is None and self.has_own_models and not self.asks_model:
            name = self.own_models[0]
        if name is not None and not isinstance(name, str):
            raise ConfigError(f"model is a name, not a {type(name).__name__}", field="model")
        if not name:
            message = "no model: give it to the client, BatchClient(…, model=…), or to the call"
            raise ConfigError(message, field="model")
        return name

    def seconds(self, timeout_s: float | NotGiven | None) -> float | None:
        """Return a call's time, its own or the client's; ``None``: there is no bound."""
        seconds = self._settings.timeout_s if timeout_s is NOT_GIVEN else timeout_s
        if seconds is None:
            return None
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < _LONGEST_TIMEOUT_S:
            raise ConfigError(f"timeout_s is a positive number of seconds, not {seconds!r:.40}", field="timeout_s")
        return seconds

    def deadline(self, timeout_s: float | NotGiven | None, now: float) -> float | None:
        """Return the absolute deadline of a call made now; ``None``: there is no bound."""
        seconds = self.seconds(timeout_s)
        return None if seconds is None else now + seconds

    def _in_lane(self, shape: Shape, call: Call) -> Shape:
        """Return the shape of the same calls with a priority, a tenant or attempts of their own.

        Such a shape has another key, so that the calls never mix with the others.
        """
        priority, tenant, max_attempts = call.priority, call.tenant, call.manner.max_attempts
        if type(priority) is not int or abs(priority) > HIGHEST_PRIORITY:
            message = f"priority is a whole number from -{HIGHEST_PRIORITY} to {HIGHEST_PRIORITY}, not {priority!r:.40}"
            raise ConfigError(message, field="priority")
        if tenant is not None and not (isinstance(tenant, str) and 0 < len(tenant) <= _LONGEST_TENANT):
            message = f"tenant is a name of 1 to {_LONGEST_TENANT} characters, not {_unfit(tenant)}"
            raise ConfigError(message, field="tenant")
        session, home = self._session(call)
        budget, numbers = call.manner.budget, call.manner.numbers
        is_plain = priority == 0 and tenant is None and max_attempts is None and session is None and home is None
        if is_plain and budget is None and numbers is None:
            return shape
        tells_priority = bool(priority and (call.manner.tells_priority or self._settings.queue.tell_server))
        # A body that says one of its own has none of the client's beside it.
        tells_priority = tells_priority and b'"priority":' not in shape.body
        signature = shape, priority, tenant, max_attempts, tells_priority, session, home, budget, numbers
        known = self._of_lanes.get(signature)
        if known is not None:
            return known
        of_session = () if session is None and home is None else (session, home)
        lane = dumps([priority, tenant, max_attempts, *([True] if tells_priority else []), *of_session]).encode()
        if budget is not None:
            lane += b"budget %d" % id(budget)
        if numbers is not None:
            lane += dumps(numbers).encode()
        made = replace(
            shape,
            key=lane + shape.key,
            priority=priority,
            tenant=tenant,
            answer_key=shape.answer_key,
            tells_priority=tells_priority,
            max_attempts=max_attempts,
            session=session,
            home=home,
            budget=budget,
            numbers=numbers,
        )
        if len(self._of_lanes) >= _SHAPES_REMEMBERED:
            self._of_lanes.clear()
        self._of_lanes[signature] = made
        return made

    def _session(self, call: Call) -> tuple[str | None, int | None]:
        """Return the session of a call, where servers are told, or the endpoint that it belongs to.

        Rendezvous hashing picks the endpoint: the same for every client of the same servers, and
        few sessions move when servers come and go.
        """
        session = call.session
        if session is None:
            return None, call.manner.home
        if not (isinstance(session, str) and 0 < len(session) <= _LONGEST_SESSION and _is_printable(session)):
            said = f"1 to {_LONGEST_SESSION} printable ASCII characters without spaces around them"
            raise ConfigError(f"session is a text of {said}, not {_unfit(session)}", field="session")
        if self.tells_sessions:
            # Each has a group of its own. Thousands of groups that wait for one server would stand
            # before those of another.
            return session, None
        home = None
        if len(self.endpoints) > 1:
            # A conversation does not begin where its calls cost more, or are not taken.
            cheap = [each for each in self.endpoints if self._is_home(self._offers[each[0]], call.model)]
            home = max(cheap or self.endpoints, key=lambda each: sha256(f"{session}\n{each[0]}".encode()).digest())[1]
        return None, home

    @staticmethod
    def _is_home(offer: Offer, model: str | None) -> bool:
        return not offer.is_priced and (model is None or offer.model in (None, model))

    def _of_query(self, shape: Shape, query: str) -> Shape:
        """Return the shape of the pairs that share a query.

        Pairs of other queries have another key, for servers that rank documents for one query at a
        time.
        """
        digest = sha256(query.encode()).digest()
        known = self._of_queries.get((shape, digest))
        if known is None:
            if len(self._of_queries) >= _SHAPES_REMEMBERED:
                self._of_queries.clear()
            known = replace(shape, key=digest + shape.key, answer_key=digest + shape.key)
            self._of_queries[shape, digest] = known
        return known

    def learn(self, batch: Batch, error: BatchClientError) -> None:
        """Learn from the server's complaint that it has another model."""
        is_missing = isinstance(error, NotFound) and _NAMES_MODEL.search(error.message)
        if is_missing and self._settings.model is None and batch.shape.model == self.default_model:
            self.asks_model = True

    def _check_ids(
        self, prompt: Any, model: str, params: Mapping[str, Any], now: float, kind: Kind
    ) -> tuple[bytes, int]:
        ids = check_ids(prompt, kind)
        longest = self.lengths.longest(model, now)
        if longest is not None and _TRUNCATING.isdisjoint(params):
            _check_length(len(ids), longest, kind)
        return str(ids).replace(" ", "").encode(), len(ids)


def _expectation(kind: Kind, params: Mapping[str, Any]) -> tuple[Mapping[str, Any], int | None]:
    """Return a call's parameters without its expected length, and that length, if one was given.

    Raises:
        ConfigError: the length is no number of tokens, or nothing is generated.
    """
    extra = params.get("extra_body")
    if isinstance(extra, Mapping) and _EXPECTED in extra:
        rest = {name: value for name, value in extra.items() if name != _EXPECTED}
        params = {**params, "extra_body": rest, _EXPECTED: extra[_EXPECTED]}
    if _EXPECTED not in params:
        return params, None
    expected = params[_EXPECTED]
    if kind not in (Kind.COMPLETION, Kind.CHAT):
        raise ConfigError(f"{_EXPECTED} is for texts that are generated", field=_EXPECTED)
    if expected is not None and (type(expected) is not int or not 1 <= expected <= _MOST_EXPECTED):
        said = f"{_EXPECTED} is a whole number from 1 to {_MOST_EXPECTED:,}"
        raise ConfigError(said, field=_EXPECTED)
    return {name: value for name, value in params.items() if name != _EXPECTED}, expected


def _is_printable(text: str) -> bool:
    return text.isascii() and text.isprintable() and text == text.strip()


def _unfit(value: object) -> str:
    """Say in words what a name is that cannot be taken; it is not shown."""
    if not isinstance(value, str):
        return f"a {type(value).__name__}"
    if not value:
        return "an empty text"
    return f"one of {len(value)} characters" if len(value) > _LONGEST_SESSION else "one with others"


def _check_length(tokens: int, longest: int, kind: Kind) -> None:
    argument = KINDS[kind].arguments[0]
    if kind is Kind.COMPLETION and tokens >= longest:
        said = f"the prompt has {tokens} tokens, and the model's length is {longest} with at least one for the answer"
    elif tokens > longest:
        said = f"the {argument} has {tokens} tokens, and the model's length is {longest}"
    else:
        return
    error = ConfigError(said, field=argument)
    error.retryable = True
    raise error
