"""A dialect: a row of the table of servers, and what its endpoint has shown so far.

A field added by batchclient and refused by a server is left out of the endpoint's later requests,
for the dialect's life. The field of a budget for thinking is tried again: the refusal says how to
start the server.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from dataclasses import replace

from pydantic_core import from_json

from batchclient._core.kinds import Kind
from batchclient._core.messages import Batch, Failure, FailureKind, RateWindow
from batchclient._core.requests import Learnt, Shape
from batchclient.dialects._bodies import guided_in, refuse
from batchclient.dialects._decoder import ReplyDecoder
from batchclient.dialects._fields import canonical
from batchclient.dialects._labels import LABELS
from batchclient.dialects._rate_limits import read_rate_limits
from batchclient.dialects._redaction import redact, words_and_shown
from batchclient.dialects._replies import error_in, read_retry_after
from batchclient.dialects._routes import ANY_NUMBER, Route, events_per_choice
from batchclient.dialects._servers import Server
from batchclient.dialects._status import OUR_FIELDS, failure_of, moved, refused_fields
from batchclient.dialects._thinking import NO_BUDGET, SWITCHES, Budget, with_budget
from batchclient.errors import BadRequest, ConfigError, DemuxError, NotFound
from batchclient.health import TAGS
from batchclient.transport import WireRequest

__all__ = ["Dialect"]

_NO_ROUTE = (404, 405)
_REFUSED = (400, 422, 501)
_MOST_REMEMBERED = 256
_TRIED_AGAIN_AFTER_S = 120.0
_ASKED_AGAIN_AFTER = 64
"""Of so many calls with an ``n`` one is sent, where the server ignored ``n`` twice in a row."""


class Dialect:
    """A sort of server, as one endpoint is.

    Args:
        server: the row of its sort.
        secrets: keys to cut out of the server's messages.
        lacks: further fields that the server is known to refuse or ignore.
        has: fields that it takes though others of its sort do not.
        thinks_in: the tag by which its model's thinking begins; empty: not known.
        assumed: whether the server is not known yet. The usage beside a choice is then believed
            only once the server was seen to tell the calls of a list apart.

    Attributes:
        name, routes: the row's.
        caps: prompts per request taken by default; a kind of call that is missing has no known cap.
        length_reach: how many length buckets a list may span; ``None``: any.
        continues_chats: whether the server is known to have ``continue_final_message``.
        is_assumed: whether it is not known yet which server it is.
        tells_labels: whether it tells the probabilities of labels.
    """

    def __init__(
        self,
        server: Server,
        secrets: tuple[str, ...] = (),
        *,
        lacks: frozenset[str] = frozenset(),
        has: frozenset[str] = frozenset(),
        thinks_in: str = "",
        assumed: bool = False,
    ) -> None:
        self.name: str = server.name
        self.caps: Mapping[Kind, int] = server.caps
        self.length_reach: int | None = server.length_reach
        self.routes: Mapping[Kind, Route] = server.routes
        self.continues_chats: bool = server.continues_chats and not assumed
        self.tells_labels: bool = server.tells_labels
        self._judge = server.judge
        self._secrets = secrets
        self._without = (server.lacks | lacks) - has
        self.is_assumed: bool = assumed
        self._budgets: Mapping[Kind, Budget] = {} if assumed else server.budgets
        self._thinks_in = thinks_in or next(iter(TAGS))
        self._with_budgets: dict[Shape, Shape | Failure] = {}
        """Shapes of calls with a budget for thinking, and the same in the server's fields."""
        self._refused: dict[str, float] = {}
        """Fields of such budgets that the server has refused, and when."""
        self._takes_guided = server.takes_guided
        self._form_of = None if assumed else server.labels
        self._labelled: dict[Shape, Shape] = {}
        """Shapes of calls with labels, and the same in the server's words."""
        self._learnt = Learnt(usage_is_own=not assumed)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"

    @property
    def mixes_queries(self) -> bool:
        """Whether pairs of several queries may share a request."""
        return getattr(self.routes.get(Kind.SCORE), "mixes_queries", False)

    def hide(self, secrets: tuple[str, ...]) -> None:
        """Cut further keys out of messages."""
        self._secrets += secrets

    def budget(self, kind: Kind) -> Budget | None:
        """Return how the server bounds a model's thinking; ``None``: it does not, or is not known."""
        return self._budgets.get(kind)

    def takes_budget(self, shape: Shape) -> bool:
        """Whether calls with a budget for thinking are sent with a field for it."""
        budget = self._budgets.get(shape.kind)
        if budget is None:
            return False
        # A chat is kept from thinking by its template.
        is_kept = _is_kept(shape) and SWITCHES not in self._refused
        return is_kept or self._has_field(budget)

    def _has_field(self, budget: Budget) -> bool:
        return budget.field != "" and budget.field not in self._without and budget.field not in self._refused

    def asked(self, batch: Batch) -> Batch | Failure:
        """Return a batch whose calls have a budget for thinking in the server's fields."""
        shape = batch.shape
        made = self._with_budgets.get(shape)
        if made is None:
            if len(self._with_budgets) >= _MOST_REMEMBERED:
                self._with_budgets.clear()
            self._with_budgets[shape] = made = self._in_own_fields(shape)
        if isinstance(made, Failure):
            return made
        asked = copy(batch)
        asked.shape = made
        return asked

    def _in_own_fields(self, shape: Shape) -> Shape | Failure:
        if not self.takes_budget(shape):
            refused = refuse(self.name, "has no field for thinking_tokens, or was not started for it")
            return replace(refused, code=NO_BUDGET)
        budget = self._budgets[shape.kind]
        return with_budget(shape, budget, has_field=self._has_field(budget), tag=self._thinks_in)

    def forget_refusals(self, now: float, after_s: float = _TRIED_AGAIN_AFTER_S) -> None:
        """Forget after a while that the field of a budget was refused."""
        if self._refused and now - max(self._refused.values()) >= after_s:
            self._refused.clear()
            self._with_budgets.clear()

    def refused_budget(self, batch: Batch, failure: Failure, now: float) -> Failure:
        """Learn from a failure whether the server refuses the field of a budget; return its meaning."""
        names = (self._budgets[batch.shape.kind].field, SWITCHES if _is_kept(batch.shape) else "")
        body = batch.shape.body
        named = {name for name in names if name and name in failure.message and name.encode() in body}
        if failure.status not in _REFUSED or not named:
            return failure
        self._refused |= dict.fromkeys(named, now)
        self._with_budgets.clear()
        # What is kept from thinking goes there all the same, by the template.
        kind = FailureKind.FIELDS_REFUSED if self.takes_budget(batch.shape) else FailureKind.UNSUPPORTED
        return replace(failure, kind=kind, code=NO_BUDGET)

    def encode(self, batch: Batch) -> WireRequest | Failure:
        """Write the batch's request."""
        if batch.shape.labels:
            batch = self._in_own_words(batch)
        route = self.routes.get(batch.shape.kind)
        if route is None:
            message = f"a {self.name} server has no {batch.shape.kind.value} calls"
            return Failure(FailureKind.UNSUPPORTED, BadRequest, message, begun=False)
        batch.wire.without = self._without | OUR_FIELDS if batch.bare else self._without
        batch.wire.learnt = self._learnt
        if batch.shape.weight > 1 and self._learnt.ignored_n > 1 and not self._learnt.heeds_n:
            self._learnt.ignored_n += 1
            if self._learnt.ignored_n % _ASKED_AGAIN_AFTER:
                message = "the server gives one answer where several are asked for (n); the call was not sent"
                return Failure(FailureKind.UNSUPPORTED, DemuxError, message, begun=False)
        if not (self._takes_guided or batch.shape.verbatim) and (name := guided_in(batch.shape.body)):
            return refuse(self.name, f"is not known to heed {name}; give response_format, or structured_outputs")
        lone = batch.shape.kind is Kind.EMBEDDING and len(batch.requests) == 1
        batch.wire.lone_as_list = lone and self._learnt.lone_as_list
        batch.wire.to_list_route = len(batch.requests) > 1 and route.list_path is not None
        try:
            return route.encode(batch)
        except Exception as error:  # a parameter has a type of which no request can be made
            message = "a parameter has a wrong type"
            return Failure(FailureKind.UNSUPPORTED, ConfigError, message, cause=error, begun=False)

    def decoder(self, batch: Batch, content_type: str = "") -> ReplyDecoder:
        """Return a fresh decoder for the batch's reply."""
        if batch.shape.labels:
            batch = self._in_own_words(batch)
        return self.routes[batch.shape.kind].decoder(batch, self._secrets, content_type)

    def events_per_choice(self, shape: Shape) -> int:
        """Return the most events of a streamed choice, if the server heeds ``stream_interval``."""
        return ANY_NUMBER if "stream_interval" in self._without else events_per_choice(shape)

    def failure(self, batch: Batch, status: int, headers: Mapping[str, str], body: bytes, wall_time: float) -> Failure:
        """Return the meaning of an error reply."""
        if batch.shape.labels:
            batch = self._in_own_words(batch)
        message, code = error_in(body)
        prompts = [request.prompt for request in batch.requests]
        words, clean = words_and_shown(message, prompts, self._secrets)
        if status == 404 and words == "Not Found" and batch.shape.kind is not Kind.COMPLETION:
            clean = f"Not Found; the server has no {batch.shape.kind.value} calls"
        if 300 <= status < 400 and (location := headers.get("location")):
            clean = moved(location, clean)
        if code is not None:
            code = redact(code, prompts, self._secrets)
        refused = refused_fields(batch, status, words)
        if refused:
            self._without |= refused
            return Failure(FailureKind.FIELDS_REFUSED, BadRequest, f"{status}: {clean}", status, code=code)
        if status in _NO_ROUTE and batch.wire.to_list_route and "model" not in words:
            # If the model is missing after all, each call by itself gets the same reply again.
            return Failure(FailureKind.LIST_REFUSED, NotFound, f"{status}: {clean}", status, code=code)
        failure = failure_of(
            status,
            words,
            code,
            shown=clean,
            streamed=batch.streamed,
            packed=batch.packed,
            listed=len(prompts) > 1,
            retry_after_s=read_retry_after(headers, wall_time),
        )
        if self._judge is not None:
            failure = self._judge(failure, words, batch.shape.model)
        lone = batch.shape.kind is Kind.EMBEDDING and len(prompts) == 1 and self._learnt.takes_lists is not False
        if lone and failure.kind is FailureKind.BAD_CALL:
            # The text is to blame, or its form: each refusal changes the form.
            self._learnt.lone_as_list = not batch.wire.lone_as_list
            if self._learnt.lone_as_list:
                return replace(failure, kind=FailureKind.FIELDS_REFUSED)
        return failure

    @staticmethod
    def rate_limits(headers: Mapping[str, str]) -> tuple[RateWindow, ...]:
        """Read OpenAI's headers: the servers send none, a gateway in front may."""
        return read_rate_limits(headers)

    def _in_own_words(self, batch: Batch) -> Batch:
        """Return a batch with labels as this server is asked: in its own words."""
        shape = batch.shape
        named = self._labelled.get(shape)
        if named is None:
            if len(self._labelled) >= _MOST_REMEMBERED:
                self._labelled.clear()
            fields = from_json(shape.body)
            del fields[LABELS]
            form = {} if self._form_of is None else self._form_of(shape.labels, shape.kind)
            named = self._labelled[shape] = replace(shape, body=canonical(fields | form))
        asked = copy(batch)
        asked.shape = named
        return asked


def _is_kept(shape: Shape) -> bool:
    """Whether the template of these calls is told that the model is not to think."""
    return shape.kind is Kind.CHAT and shape.thinking_tokens == 0
