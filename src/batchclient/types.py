"""The answers that a caller gets: typed, and free of any HTTP or server class.

An answer is made once per call, so the classes are slotted but not frozen: freezing costs 2 µs a
call. No two callers share an answer.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, Final, Generic

from batchclient.health import Health, health_of

if TYPE_CHECKING:
    # A default of a type variable is Python 3.13's; type checkers know it of this module.
    from typing_extensions import TypeVar

    AnswerT = TypeVar("AnswerT", default="Completion")
else:
    from typing import TypeVar

    AnswerT = TypeVar("AnswerT")

__all__ = [
    "Choice",
    "Classification",
    "Completion",
    "Delta",
    "Embedding",
    "LogLikelihood",
    "MapProgress",
    "MapResult",
    "MapResults",
    "RankedDocument",
    "Ranking",
    "Score",
    "TokenLikelihood",
    "Usage",
]


class NotGiven(Enum):
    """Stands for an argument that is left out, where ``None`` means that there is no bound."""

    NOT_GIVEN = "not given"


NOT_GIVEN: Final = NotGiven.NOT_GIVEN
_PLAIN_MESSAGE = frozenset({"role", "content"})
"""A chat's message with these fields alone says no more than the text."""


@dataclass(slots=True)
class Usage:
    """Tokens of one call, not of the batch that the call travelled in.

    Where the server told a list's sum, a call has its share, marked as an estimate. The shares of a
    plain list add up to the server's sum.

    Args:
        prompt_tokens: of the prompt, counted once however many choices the call has.
        completion_tokens: of all choices.
        prompt_tokens_estimated: whether ``prompt_tokens`` is a share or an estimate.
        completion_tokens_estimated: the same of ``completion_tokens``.
        cached_tokens: of the prompt, those that the server had in its cache, where it told them of
            this call alone; else ``None``.
        reasoning_tokens: of the completion, those of reasoning, where the server told them; of a
            call with ``thinking_tokens`` else an estimate by the text. ``None``: not known.
    """

    prompt_tokens: int
    completion_tokens: int
    prompt_tokens_estimated: bool = False
    completion_tokens_estimated: bool = False
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None

    @property
    def estimated(self) -> bool:
        """Whether any of the numbers is an estimate."""
        return self.prompt_tokens_estimated or self.completion_tokens_estimated

    @property
    def total_tokens(self) -> int:
        """Prompt and completion tokens together."""
        return self.prompt_tokens + self.completion_tokens

    def as_dict(self) -> dict[str, Any]:
        """Return the tokens as fields of JSON; an estimate is marked as one.

        ``reasoning_tokens`` stands among them where there are any.
        """
        marks = {"prompt_tokens_estimated", "completion_tokens_estimated"}
        told = {"prompt_tokens": self.prompt_tokens, "completion_tokens": self.completion_tokens}
        if self.reasoning_tokens:
            told["reasoning_tokens"] = self.reasoning_tokens
        return told | {name: True for name in sorted(marks, reverse=True) if getattr(self, name)}


@dataclass(slots=True)
class Reply:
    """The server's reply to one call, as the reply would be if the call had gone alone.

    Programs that speak HTTP or openai's types are answered with a ``Reply``.

    Args:
        body: the parsed JSON of an answer; an error's body as the server sent it, or ``None`` if
            the error concerned other calls, too.
        headers: of the HTTP response, by lower-case name; shared with the calls of the same
            request.
        status: the HTTP status.
        attempts: requests sent that contained this call.
        source: the number of the reply's request, and among how many calls the request's usage was
            shared out; 0: nothing was shared out.
        alone: why the request held no other call; empty where the request held several.
    """

    body: Any = field(repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    status: int = 200
    source: tuple[int, int] = (0, 1)
    attempts: int = 1
    alone: str = ""


@dataclass(slots=True)
class Choice:
    """One of the ``n`` texts of a call.

    Args:
        index: 0 to ``n - 1``, within this call.
        text: the generated text.
        finish_reason: ``"stop"``, ``"length"`` or another word of the server's; never ``"abort"``.
        logprobs: the server's own object (lists of one entry per token), joined over all events.
        token_ids: the generated ids, if ``return_token_ids`` was asked for.
        extra: the choice's other fields, as the server sent them.
        message: of a chat, the whole message as the server sent it, without its nulls: ``role``,
            ``content`` (``text`` is the same, and empty without a content), ``reasoning``,
            ``tool_calls``; ``None`` for completions.
        parsed: the validated instance, where the call gave a ``response_model``.
        label: of the call's ``labels`` the one that the text is; ``None``: it is none of them.
    """

    index: int
    text: str
    finish_reason: str | None = None
    logprobs: Mapping[str, Any] | None = None
    token_ids: tuple[int, ...] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    message: Mapping[str, Any] | None = None
    parsed: Any = None
    label: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the text, its reason to end, and a message that says more, as fields of JSON."""
        told: dict[str, Any] = {"completion": self.text, "finish_reason": self.finish_reason}
        if self.message is not None and not self.message.keys() <= _PLAIN_MESSAGE:
            told["message"] = deepcopy(dict(self.message))
        if self.label is not None:
            told["label"] = self.label
        return told


@dataclass(slots=True)
class Completion:
    """The answer to one call.

    Args:
        choices: ``n`` choices in index order.
        usage: the call's tokens, or an estimate (``Usage.estimated``); ``None`` if the server told
            neither the call's tokens nor a list's sum.
        attempts: requests sent that contained this call; 1 when all went well.
        time_to_first_token_s: from sending the answering request to its first token, seconds;
            ``None`` for plain replies.
        queued_s: from the call to the sending of the answering request, seconds: in the queue, in
            earlier attempts and in the pauses between; ``None`` for an answer from a journal.
        extra: the reply's other fields (``id``, ``model``, ``created``, …), equal for all calls of
            a batch.
        counted_tokens: output tokens, where the server told those and nothing of the prompt's; see
            ``output_tokens``.
        reply: the server's own reply, for calls made through a drop-in.
        fixed_length: whether the call asked for so few tokens, or for exactly so many, that an end
            at the bound is no truncation.
        probabilities: of each of the call's ``labels``, and ``"other"``: of all that is none of
            them; ``None``: they were not asked for. Where the labels had to be scored, that of
            ``"other"`` is ``None``, and the others add up to 1.
        opened: the tag, such as ``<think>``, by which the prompt of a call with ``thinking_tokens``
            has begun the reasoning; empty: none.
    """

    choices: tuple[Choice, ...]
    usage: Usage | None = None
    attempts: int = 1
    time_to_first_token_s: float | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    counted_tokens: int | None = field(default=None, repr=False)
    reply: Reply | None = field(default=None, repr=False, compare=False)
    fixed_length: bool = field(default=False, repr=False, compare=False)
    queued_s: float | None = field(default=None, repr=False, compare=False)
    probabilities: Mapping[str, float | None] | None = None
    opened: str = field(default="", repr=False, compare=False)

    @property
    def health(self) -> Health:
        """Whether this is an answer: ``"ok"``, or what is wrong with it; see ``batchclient.health``."""
        return health_of(self)

    @property
    def text(self) -> str:
        """The first choice's text."""
        return self.choices[0].text

    @property
    def finish_reason(self) -> str | None:
        """The first choice's reason to stop."""
        return self.choices[0].finish_reason

    @property
    def message(self) -> Mapping[str, Any] | None:
        """The first choice's message, of a chat."""
        return self.choices[0].message

    @property
    def model(self) -> str | None:
        """The name of the model that answered, as its server says; ``None``: it does not."""
        name = self.extra.get("model")
        return name if isinstance(name, str) else None

    @property
    def parsed(self) -> Any:
        """The first choice's validated instance, where the call gave a ``response_model``."""
        return self.choices[0].parsed

    @property
    def label(self) -> str | None:
        """The first choice's label, where the call gave ``labels``; ``None``: it is none of them."""
        return self.choices[0].label

    @property
    def output_tokens(self) -> int | None:
        """Output tokens of all choices; known without a ``usage`` where the server told token ids."""
        return self.counted_tokens if self.usage is None else self.usage.completion_tokens

    def as_dict(self) -> dict[str, Any]:
        """Return the answer as fields of JSON, named as ``batchclient map`` names them in its rows.

        ``completion``, ``finish_reason``, ``health``, ``usage``; ``message``, where it says more
        than the text; ``label`` and ``probabilities``, where the call had labels; ``choices``,
        where there are several; ``logprobs``, ``prompt_logprobs`` and
        ``token_ids``, of the first choice, where they were asked for. A number that JSON cannot
        write, such as a logprob of ``-Infinity``, is ``None``.
        """
        first = self.choices[0]
        told = first.as_dict() | {"health": self.health}
        if len(self.choices) > 1:
            told["choices"] = [choice.as_dict() for choice in self.choices]
        if self.probabilities is not None:
            told["probabilities"] = dict(self.probabilities)
        told["usage"] = None if self.usage is None else self.usage.as_dict()
        # The prompt's logprobs are a text's own in a list; of a chat they stand beside the choices.
        of_prompt = first.extra.get("prompt_logprobs", self.extra.get("prompt_logprobs"))
        ids = None if first.token_ids is None else list(first.token_ids)
        asked = {"logprobs": first.logprobs, "prompt_logprobs": of_prompt, "token_ids": ids}
        return told | {name: _finite(value) for name, value in asked.items() if value is not None}


@dataclass(slots=True)
class Delta:
    """A piece of a streamed answer.

    Args:
        text: the piece's text, perhaps empty.
        index: the choice of the piece, among the call's ``n``.
        finish_reason: why the choice ended, in its last piece.
        logprobs: of the piece's tokens, the server's own object.
        token_ids: of the piece's tokens, if ``return_token_ids`` was asked for.
        message: of a chat, the server's own delta without its nulls: ``role`` in the first piece,
            ``content``, ``reasoning``, ``tool_calls``.
    """

    text: str
    index: int = 0
    finish_reason: str | None = None
    logprobs: Mapping[str, Any] | None = None
    token_ids: tuple[int, ...] | None = None
    message: Mapping[str, Any] | None = None


class _Computed:
    """The fields of every answer for which nothing is generated."""

    __slots__ = ()
    time_to_first_token_s: ClassVar[None] = None
    counted_tokens: ClassVar[int] = 0
    """Output tokens."""
    usage: Usage | None

    def _usage_dict(self) -> dict[str, Any] | None:
        if self.usage is None:
            return None
        return {name: told for name, told in self.usage.as_dict().items() if not name.startswith("completion")}


@dataclass(slots=True)
class Embedding(_Computed):
    """One text's vector.

    Args:
        vector: 32-bit floats; ``numpy.asarray`` takes the vector without a copy.
        usage: the call's tokens, or a share of a list's (``Usage.estimated``); ``None`` if the
            server told none.
        attempts: requests sent that contained this call.
        extra: the reply's other fields, equal for all calls of a batch.
        reply: the server's own reply, for calls made through a drop-in.
        queued_s: as a ``Completion``'s.
    """

    vector: array[float] = field(repr=False)
    usage: Usage | None = None
    attempts: int = 1
    extra: Mapping[str, Any] = field(default_factory=dict)
    reply: Reply | None = field(default=None, repr=False, compare=False)
    queued_s: float | None = field(default=None, repr=False, compare=False)

    def as_dict(self, *, raw: bool = False) -> dict[str, Any]:
        """Return the answer as fields of JSON, ``embedding`` and ``usage``.

        Args:
            raw: return the vector as ``array("f")`` instead of a list, whose numbers have the nine
                digits that a 32-bit float needs to be read back unchanged.
        """
        vector = self.vector if raw else [float(f"{number:.9g}") for number in self.vector]
        return {"embedding": vector, "usage": self._usage_dict()}


@dataclass(slots=True)
class Score(_Computed):
    """How well one document fits one query.

    Args:
        score: the higher, the better; most cross-encoders give 0 to 1, a cosine -1 to 1.
        usage, attempts, extra, queued_s: as an ``Embedding``'s.
    """

    score: float
    usage: Usage | None = None
    attempts: int = 1
    extra: Mapping[str, Any] = field(default_factory=dict)
    queued_s: float | None = field(default=None, repr=False, compare=False)

    def as_dict(self) -> dict[str, Any]:
        """Return the answer as fields of JSON, ``score`` and ``usage``."""
        return {"score": self.score, "usage": self._usage_dict()}


@dataclass(slots=True)
class Ranking(_Computed):
    """A map's row with a query and several documents: how well each one fits the query.

    Args:
        places: of the documents among the row's, from 0: of a rerank the best first, of a score as
            the row has them.
        scores: of these documents, in the same order.
        usage: the tokens of all its calls; ``None`` if a server told none.
        attempts: requests sent that contained one of the documents.
        queued_s: the longest of its calls'.
    """

    places: tuple[int, ...]
    scores: tuple[float, ...]
    usage: Usage | None = None
    attempts: int = 1
    queued_s: float | None = field(default=None, repr=False, compare=False)

    def as_dict(self) -> dict[str, Any]:
        """Return the answer as fields of JSON, ``results`` (``index`` and ``score`` each) and ``usage``."""
        pairs = zip(self.places, self.scores, strict=True)
        return {"results": [{"index": place, "score": score} for place, score in pairs], "usage": self._usage_dict()}


@dataclass(slots=True)
class RankedDocument:
    """One of the documents given to ``rerank``.

    Args:
        index: the document's place among the given ones, from 0.
        score: how well the document fits the query.
        document: the document's text.
    """

    index: int
    score: float
    document: str = field(repr=False)


@dataclass(slots=True)
class Classification(_Computed):
    """One text's class.

    Args:
        label: the likeliest class's name; ``None`` if the model has no names for its classes.
        probabilities: of every class, in the model's order; other numbers where the model's last
            step was turned off (``use_activation``).
        usage, attempts, extra, queued_s: as an ``Embedding``'s.
    """

    label: str | None
    probabilities: tuple[float, ...]
    usage: Usage | None = None
    attempts: int = 1
    extra: Mapping[str, Any] = field(default_factory=dict)
    queued_s: float | None = field(default=None, repr=False, compare=False)

    def as_dict(self) -> dict[str, Any]:
        """Return the answer as fields of JSON, ``label``, ``probabilities`` and ``usage``."""
        return {"label": self.label, "probabilities": list(self.probabilities), "usage": self._usage_dict()}


@dataclass(slots=True)
class Tokens(_Computed):
    """One text's tokens.

    Args:
        ids: in order.
        usage: ``None``: nothing is generated or computed.
        attempts, extra, queued_s: as an ``Embedding``'s.
    """

    ids: list[int]
    usage: Usage | None = None
    attempts: int = 1
    extra: Mapping[str, Any] = field(default_factory=dict)
    queued_s: float | None = field(default=None, repr=False, compare=False)


@dataclass(slots=True)
class TokenLikelihood:
    """One token of a continuation.

    Args:
        text: as the server writes the token.
        log_likelihood: the natural logarithm of the token's probability after all tokens before;
            ``None`` for a first token.
        is_greedy: whether no other token was likelier; ``None`` for a first token.
    """

    text: str = field(repr=False)
    log_likelihood: float | None
    is_greedy: bool | None


@dataclass(slots=True)
class LogLikelihood:
    """How likely a model finds a continuation.

    Args:
        total: the sum over the continuation's tokens, without a token that nothing stands before.
        tokens: the tokens in order.
        usage: the call's tokens.
        attempts: requests sent that contained this call.
        extra: the reply's other fields.
        queued_s: as a ``Completion``'s.
    """

    total: float
    tokens: tuple[TokenLikelihood, ...] = field(repr=False)
    usage: Usage | None = None
    attempts: int = 1
    extra: Mapping[str, Any] = field(default_factory=dict)
    queued_s: float | None = field(default=None, repr=False, compare=False)

    @property
    def is_greedy(self) -> bool:
        """Whether greedy decoding would have written the continuation: no other token was likelier."""
        return all(token.is_greedy is not False for token in self.tokens)


@dataclass(slots=True)
class MapResult(Generic[AnswerT]):
    """One row of a map; generic over the answer, ``MapResult[Embedding]`` for ``call="embed"``.

    Args:
        id: the document's own ``id``, else a hash of its prompt and parameters with an occurrence
            number.
        index: the document's place in the input, from 0.
        document: the document itself.
        answer: the call's answer (a ``Completion``, an ``Embedding``, …); ``None`` if the row
            failed.
        error: why the row failed; ``None`` if the row has an answer.
        attempts: requests sent that contained the row; a reused row has those of its own run.
        reused: whether the row was taken from the journal, and nothing was sent for it.
    """

    id: str
    index: int
    document: Any = field(repr=False)
    answer: AnswerT | None = None
    error: Exception | None = None
    attempts: int = 0
    reused: bool = False

    @property
    def completion(self) -> Completion | None:
        """The answer, where the answer is a ``Completion``."""
        return self.answer if isinstance(self.answer, Completion) else None

    @property
    def health(self) -> Health | None:
        """The answer's, also where it did not fit ``response_model``; ``None``: no text was generated."""
        return getattr(self.answer if self.error is None else self.error, "health", None)


def _finite(value: Any) -> Any:
    """Return a value of JSON with ``None`` for each number that JSON cannot write."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    return [_finite(each) for each in value] if isinstance(value, (list, tuple)) else value


class MapResults(list[AnswerT]):
    """The answers of a ``batch_map``, a list in input order.

    Attributes:
        health: how many answers are of each health, answers from the journal included. An answer
            that did not fit ``response_model`` counts, too; other failures do not.
    """

    health: Mapping[Health, int] = {}
    _columns_of: Callable[[MapResults[Any], str], dict[str, Any]] | None = None
    """Makes columns of the results, by what is known of the documents."""

    def columns(self, prefix: str = "") -> dict[str, Any]:
        """Return the answers as columns for the frame whose rows were the documents.

        For example::

            frame = frame.assign(**answers.columns())        # pandas
            frame = frame.with_columns(**answers.columns())  # polars

        They have the frame's length and order, and the names of ``as_dict()``: ``completion``,
        ``finish_reason``, ``health``, ``prompt_tokens``, ``completion_tokens``; of vectors
        ``embedding``, of classes ``label`` and ``probabilities``; what the call asked for beside
        these; and ``error``, a text. A row without an answer has ``None`` in all but ``error``.
        Each is a list, of a frame of polars a ``Series``.

        Args:
            prefix: before each name, such as ``"answer_"``.

        Raises:
            ConfigError: the frame has a column of such a name; the error names it.
        """
        return {} if self._columns_of is None else self._columns_of(self, prefix)


@dataclass(frozen=True, slots=True)
class MapProgress:
    """How far a map is. At its end ``answered + failed + reused`` is ``read``.

    Args:
        read: documents read.
        answered, failed: rows of this run, failed ones sent or not; with a journal, once committed.
        reused: rows taken from the journal, answers and failures.
        damaged: rows of the journal that were damaged, and run again.
        in_flight: the client's sequences on which its servers work.
        limit: sequences that may be in flight on all servers.
        prompt_tokens, completion_tokens: of this run's answers, as the servers counted them.
        seconds: since the map began.
        invalid: answers that did not fit ``response_model``, also where a later one did.
        is_guest: of a map with ``finish_by_s`` whether it leaves places to others now.
        ends_s: when it ends if it goes on like this, seconds since it began: the 90 % interval, or
            ``None`` while that is not known.
    """

    read: int
    answered: int
    failed: int
    reused: int
    damaged: int
    in_flight: int
    limit: int
    prompt_tokens: int
    completion_tokens: int
    seconds: float
    invalid: int = 0
    is_guest: bool | None = None
    ends_s: tuple[float, float] | None = None
