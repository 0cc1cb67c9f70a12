"""Probabilities of labels: how likely the model is to say each of them next.

Rules:
- One token is generated, and the server tells how likely the first token of each label was, whether
  or not it is among the likeliest (``logprob_token_ids``). No grammar is asked for: the figures are
  the model's own.
- The first tokens are those of the server's own tokenizer. A label follows a completion's prompt
  with a blank, unless the prompt ends with white space, an opening bracket or a wide letter. What
  the template puts before an answer is found in a small conversation.
- Where two labels begin with one token, or the server does not tell chosen tokens (an older one),
  each label is scored as a continuation of the prompt: a request per label, in lists, that echoes
  it. The sums of log-probabilities are made probabilities among the labels; nothing is known of
  what is none of them.
- Where one label continues another (``New York``, ``New York City``), it could never be likelier:
  each is scored with an end, the same for all. That is a line break behind a completion's label,
  and in a chat the token that the template ends an answer with.
- llama.cpp tells the likeliest tokens alone, and scores nothing. It is asked for more of them until
  each label's is there; labels that begin with one token are refused. Nothing is told of a token
  that ends amid a letter, so from the second time on a colon is generated.
- How labels are asked about is found out once for each set of them, with a few small requests, and
  tried once. A row waits for it before it is sent.
- Sources: vLLM 0.32 ``entrypoints/openai/completion/protocol.py``, ``v1/sample/sampler.py``
  (log-probabilities are taken before the grammar, temperature and penalties, unless the server was
  started with another ``--logprobs-mode``).
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Callable, Mapping
from functools import partial
from itertools import combinations, pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from batchclient._calls.call import Call
from batchclient._calls.fan_out import call_together
from batchclient._calls.labels import field_of, parted, thinks
from batchclient._calls.likelihood import echoed, is_log, log_likelihood, make_split, read_likelihood
from batchclient._common.log import log
from batchclient._core.kinds import Kind
from batchclient._core.messages import Request
from batchclient._core.outcomes.errors import copy_of
from batchclient._maps.row import Row
from batchclient._maps.together import requests_together
from batchclient._shell.runner import Runner
from batchclient.dialects._labels import LABELS, OTHER, PROBABILITIES
from batchclient.dialects._thinking import NOT_AT_ALL
from batchclient.errors import BadRequest, BatchClientError, ClientClosed, ConfigError, DialectError
from batchclient.types import Choice, Completion, Usage

if TYPE_CHECKING:
    from batchclient._calls.make import CallMaker
    from batchclient._shell.servers import Servers

__all__ = ["Ways", "ask", "asker_of", "check_servers"]

_Key = tuple[Any, ...]
_MOST_IDS = 128
"""Of ``logprob_token_ids`` (vLLM 0.32 ``sampling_params.py``)."""
_LIKELIEST, _MORE, _ALL = 128, 16, 1 << 19
"""How many of the likeliest tokens llama.cpp is asked for at first, how many times as many then,
and how many are all: no vocabulary is larger.
"""
_COLON = {"grammar": 'root ::= ":"'}
_TOP = 20
"""Likeliest tokens of a vLLM without that field, which takes no more by default."""
_REMEMBERED = 1024
_ENOUGH_TO_TELL = 20
_AFTER = {True: ":", False: ":\n"}
"""What a label is tokenized behind: with a blank between, or without."""
_END = "\n"
"""What follows each of the labels that a completion scores, where one of them continues another."""
_WITHOUT_THINKING = 'ask by chat(), or call="chat" of a map, with thinking_tokens=0'
_CHAT = [{"role": "user", "content": "x"}]
_BUDGET = "thinking_tokens"
_OF_TEMPLATE = ("chat_template", "chat_template_kwargs")
_OF_SCORES = ("cache_salt", "add_special_tokens")
"""Fields of a call that are the same where its labels are scored."""
_CUTTING = ("truncate_prompt_tokens", "truncate")
"""Fields by which a server cuts what is scored, the label too."""
_REPLACED = frozenset({LABELS, PROBABILITIES, "max_tokens", "max_completion_tokens", "n_predict"})


class _Way(NamedTuple):
    """How a set of labels is asked about.

    Args:
        labels: the caller's.
        first: the first token of each; ``None``: they are scored.
        continuations: what follows the prompt: texts, or behind a chat token ids.
        likeliest: how many of the likeliest tokens are asked for; 0: the labels' are told by id.
    """

    labels: tuple[str, ...]
    first: tuple[int, ...] | None
    continuations: tuple[Any, ...]
    likeliest: int = 0

    def asked(self, call: Call) -> Call:
        """Return the call for one token that is sent for a caller's call."""
        assert self.first is not None, "labels that are scored are not asked for so"
        fields = {name: value for name, value in _fields_of(call).items() if name not in _REPLACED}
        top = self.likeliest or _TOP
        told = {"logprobs": True, "top_logprobs": top} if call.kind is Kind.CHAT else {"logprobs": top}
        if not self.likeliest:
            fields["logprob_token_ids"] = list(self.first)
        else:
            fields.pop("stop", None)
            fields |= _COLON if self.likeliest > _LIKELIEST else {}
        fields |= {"max_tokens": 1, "return_tokens_as_token_ids": True, **told}
        return call._replace(params={"extra_body": fields})

    def read(self, completion: Completion) -> Completion | None:
        """Return an answer with the probabilities that its one token tells; ``None``: ask for more.

        Raises:
            DialectError: they are not told.
            ConfigError: the model thinks before it answers.
        """
        assert self.first is not None, "as above"
        (choice,) = completion.choices
        if parted(choice)[0] or choice.text.lstrip().startswith("<think>"):
            raise thinks(completion.model, _WITHOUT_THINKING) if choice.message is None else thinks(completion.model)
        logprobs: Any = choice.logprobs
        try:
            if choice.message is None:
                told = logprobs["top_logprobs"][0]
            else:
                tops = logprobs["content"][0]["top_logprobs"]
                # llama.cpp's chats have the ids beside the texts.
                names = [f"token_id:{each['id']}" if "id" in each else each["token"] for each in tops]
                told = dict(zip(names, [each["logprob"] for each in tops], strict=True))
            logs = [told[f"token_id:{token}"] for token in self.first]
            if not all(map(is_log, logs)):
                raise TypeError
            numbers = [math.exp(min(0.0, each)) for each in logs]
        except (KeyError, IndexError, TypeError, ValueError, AttributeError, OverflowError):
            if 0 < self.likeliest < _ALL:
                return None
            raise DialectError("the server did not tell the log-probability of each label's first token") from None
        self._settle(completion, numbers, max(0.0, 1.0 - sum(numbers)))
        return completion

    def scored(self, likelihoods: list[float], answers: list[Completion], *, is_chat: bool) -> Completion:
        """Return the answer of a call whose labels have these log-likelihoods."""
        most = max(likelihoods)
        numbers = [math.exp(each - most) if most > -math.inf else 1.0 for each in likelihoods]
        message = {"role": "assistant"} if is_chat else None
        made = Completion(
            (Choice(0, "", "stop", message=message),), *_cost_of(answers), extra=answers[0].extra, fixed_length=True
        )
        self._settle(made, [each / sum(numbers) for each in numbers], None)
        return made

    def _settle(self, completion: Completion, numbers: list[float], other: float | None) -> None:
        """Make of an answer what it says of the labels: nothing of it was asked for as a text."""
        (choice,) = completion.choices
        choice.label = choice.text = self.labels[numbers.index(max(numbers))]
        choice.logprobs = None
        if choice.message is not None:
            choice.message = {**choice.message, "content": choice.text}
        completion.probabilities = {**dict(zip(self.labels, numbers, strict=True)), OTHER: other}


class Asking(Protocol):
    """What makes calls: the engine of a client, or of a view."""

    least_output_tokens: int

    @property
    def calls(self) -> CallMaker: ...

    @property
    def ways(self) -> Ways: ...

    def start(self) -> Runner: ...

    async def call(self, call: Call, *, is_read: bool = True) -> Any: ...

    async def find_model(self, runner: Runner) -> None: ...

    async def know_servers(self, runner: Runner) -> None: ...


class Ways:
    """What one client has found out: a way for each set of labels."""

    def __init__(self) -> None:
        self.known: dict[_Key, _Way] = {}
        self.waiting: dict[_Key, list[_Asked]] = {}
        """Calls that wait for a way."""
        self._others: list[float] = []
        """How likely it is that no label comes next, of the first answers."""

    def note(self, answer: Completion) -> None:
        """Take in an answer; say it if the first ones would rather be something else than a label."""
        told: Any = answer.probabilities
        if len(self._others) < _ENOUGH_TO_TELL:
            self._others.append(told[OTHER])
            other = sum(self._others) / _ENOUGH_TO_TELL
            if len(self._others) == _ENOUGH_TO_TELL and other > 0.5:
                message = "other: %.3g on the mean: the prompt does not ask for a label"
                log("labels_unlikely", message, other, other=other)


class _Asked:
    """A call for the probabilities of its labels.

    Args:
        engine: makes its requests.
        call: the caller's.
        waiter: gets the answer.
        runner: sends them.
        send: sends requests instead of those before.
        from_grant: whether the call's time runs from its first grant.
    """

    def __init__(
        self,
        engine: Asking,
        call: Call,
        waiter: Any,
        runner: Runner,
        send: Callable[[list[Request]], None],
        *,
        from_grant: bool,
    ) -> None:
        self._engine, self.call, self.waiter, self._runner = engine, call, waiter, runner
        self._send, self._from_grant = send, from_grant
        # What is asked in several requests has one time for all.
        self._began_at = runner.backend.now()

    def begin(self, key: _Key) -> None:
        """Send the call, once it is known how."""
        ways, key = self._engine.ways, (*self._models, *key)
        if (way := ways.known.get(key)) is not None:
            self.go(way)
            return
        waiting = ways.waiting.setdefault(key, [])
        waiting.append(self)
        if len(waiting) == 1:
            find = partial(_find_for_all, self._engine, key)
            self._runner.start_reader(find, partial(_fail, ways, key, ClientClosed("the client was closed")))

    def go(self, way: _Way) -> None:
        """Send what tells the probabilities."""
        call = self.call
        if len(models := self._models) > 1 and (way.first is not None or call.kind is Kind.CHAT):
            message = f"each model has its own tokens for a label: name one of {', '.join(models)}"
            self.waiter.set_exception(ConfigError(message, field="model"))
            return
        if way.first is None and (name := next((each for each in _CUTTING if field_of(call.params, each)), "")):
            self.waiter.set_exception(ConfigError(f"labels that are scored do not go with {name}", field=name))
            return
        if way.first is not None:
            self._tell(way, [])
        elif call.kind is Kind.CHAT:
            self._ask([_tokens_of(call, call.item)], lambda answers: self._score(way, answers[0].ids))
        else:
            self._score(way, call.item)

    @property
    def _models(self) -> list[str]:
        """Those that may answer a call that names none, where servers have their own."""
        calls = self._engine.calls
        return calls.models if self.call.model is None and calls.has_own_models else []

    def _tell(self, way: _Way, before: list[Completion]) -> None:
        """Ask for the probabilities of first tokens, once or until all of them are told."""

        def read(answers: list[Completion]) -> Completion | None:
            told, (latest,) = [*before, *answers], answers
            if (answer := way.read(latest)) is None:
                self._tell(way._replace(likeliest=way.likeliest * _MORE), told)
                return None
            if before:
                answer.usage, answer.attempts = _cost_of(told)
            self._engine.ways.note(answer)
            return answer

        self._ask([way.asked(self.call)], read)

    def _score(self, way: _Way, given: Any) -> None:
        """Ask how likely each label is behind the prompt."""
        call, least = self.call, self._engine.least_output_tokens
        params = {name: value for name in _OF_SCORES if (value := field_of(call.params, name)) is not None}
        bare = call._replace(kind=Kind.COMPLETION, params=params)
        splits = [make_split(continuation, given, {}) for continuation in way.continuations]

        def read(answers: list[Completion]) -> Completion:
            pairs = zip(answers, splits, strict=True)
            likely = [read_likelihood(answer, split, generated=least > 0).total for answer, split in pairs]
            return way.scored(likely, answers, is_chat=call.kind is Kind.CHAT)

        self._ask([echoed(bare, split, least) for split in splits], read)

    def _ask(self, calls: list[Call], then: Callable[[list[Any]], Completion | None]) -> None:
        """Send calls; ``then`` makes the answer of theirs, or sends what is asked next."""

        def end(answers: list[Any]) -> None:
            try:
                answer = then(answers)
            except BatchClientError as error:
                self.waiter.set_exception(error)
            else:
                if answer is not None:
                    self.waiter.set_result(answer)

        make = partial(self._engine.calls.make, now=self._began_at, from_grant=self._from_grant)
        try:
            requests = requests_together(calls, self.waiter, self._runner, make, end)
        except BatchClientError as error:
            self.waiter.set_exception(error)
        else:
            self._send(requests)


async def ask(engine: Asking, call: Call) -> Completion:
    """Make one call for the probabilities of its labels.

    Raises:
        ConfigError: an argument is wrong, or no server tells them.
        BatchClientError: see ``batchclient.errors``.
    """
    runner, calls = engine.start(), engine.calls
    # What is sent has few of the caller's parameters: what is wrong with others is refused here.
    named = call._replace(model=calls.some_model) if call.model is None and calls.asks_model else call
    calls.make(named, None, runner.backend.now())
    call = _kept_from_thinking(call)
    waiter, under_way = runner.backend.waiter(), list[Request]()

    def send(requests: list[Request]) -> None:
        under_way[:] = requests
        for request in requests:
            runner.submit(request)

    try:
        _Asked(engine, call, waiter, runner, send, from_grant=False).begin(_key_of(call))
        answer: Completion = await runner.backend.wait(waiter)
    except BaseException:
        for request in under_way:
            runner.leave(request)
        del under_way, waiter  # as in ``Engine.call``
        raise
    return answer


def asker_of(engine: Asking, call: Call) -> Callable[[Row, Runner], None]:
    """Return what sends a map's row, once it is known how.

    Raises:
        ConfigError: the prompt does not tell how a label begins.
    """
    call = _kept_from_thinking(call)
    key = _key_of(call)
    return lambda row, runner: _Asked(engine, call, row, runner, row.go_on, from_grant=True).begin(key)


# Ways ----------------------------------------------------------------------------------------------------------------


def _fields_of(call: Call) -> Mapping[str, Any]:
    extra = call.params.get("extra_body")
    rest = {name: value for name, value in call.params.items() if name != "extra_body"}
    return {**rest, **extra} if isinstance(extra, Mapping) else rest


def _cost_of(answers: list[Completion]) -> tuple[Usage | None, int]:
    """Return the tokens and the attempts of several requests for one answer."""
    usages = [answer.usage for answer in answers if answer.usage is not None]
    usage = None
    if len(usages) == len(answers):
        tokens = (sum(each.prompt_tokens for each in usages), sum(each.completion_tokens for each in usages))
        usage = Usage(*tokens, *(any(each.estimated for each in usages),) * 2)
    return usage, sum(answer.attempts for answer in answers)


def _kept_from_thinking(call: Call) -> Call:
    """Return a call without a budget for thinking: its one token may be no tag around reasoning."""
    fields = dict(_fields_of(call))
    if fields.pop(_BUDGET, None) is None:
        return call
    if call.kind is Kind.CHAT:
        fields["chat_template_kwargs"] = {**NOT_AT_ALL, **(fields.get("chat_template_kwargs") or {})}
    return call._replace(params={"extra_body": fields})


def _key_of(call: Call) -> _Key:
    """Return what decides how the labels of a call are asked about."""
    blank = _blank_of(call)
    of_template = [field_of(call.params, name) for name in _OF_TEMPLATE]
    return call.kind, call.model, blank, *field_of(call.params, LABELS), repr(of_template)


def _blank_of(call: Call) -> bool | None:
    """Return whether a blank stands before a label; ``None``: the chat's template decides."""
    if call.kind is not Kind.CHAT:
        return _asks_for_blank(call.item)
    goes_on = field_of(call.params, "continue_final_message")
    return _asks_for_blank(call.item[-1].get("content")) if goes_on else None


def _asks_for_blank(prompt: Any) -> bool:
    if not isinstance(prompt, str):
        raise ConfigError(
            "probabilities need a prompt that is a text: its end tells how a label begins", field="prompt"
        )
    last = prompt[-1:]
    is_open = not last or last.isspace() or unicodedata.category(last) in ("Ps", "Pi")
    return not is_open and unicodedata.east_asian_width(last) not in ("W", "F")


async def _find_for_all(engine: Asking, key: _Key) -> None:
    """Find out how the labels of calls that wait are asked about, and send those calls."""
    ways = engine.ways
    try:
        way = await _find(engine, ways.waiting[key][0].call)
    except BatchClientError as error:
        _fail(ways, key, error)
        return
    if len(ways.known) >= _REMEMBERED:
        ways.known.clear()
    ways.known[key] = way
    for asked in ways.waiting.pop(key, ()):
        if not asked.waiter.done():
            asked.go(way)


def _fail(ways: Ways, key: _Key, error: BatchClientError) -> None:
    for asked in ways.waiting.pop(key, ()):
        if not asked.waiter.done():
            asked.waiter.set_exception(copy_of(error))


def _is_continued(labels: tuple[str, ...]) -> bool:
    """Whether one label is the beginning of another."""
    texts = sorted(label.strip() for label in labels)
    # What begins with a text stands right behind it.
    return any(after.startswith(before) for before, after in pairwise(texts))


def check_servers(servers: Servers) -> None:
    """Check that all servers tell the probabilities of labels.

    Raises:
        ConfigError: one is not known to.
    """
    lacking = next((server.dialect for server in servers.values() if not server.dialect.tells_labels), None)
    if lacking is not None:
        name = "a server that is not known" if lacking.is_assumed else f"a {lacking.name} server"
        message = f"{name} does not tell the probabilities of labels, as vLLM and llama.cpp do; leave probabilities out"
        raise ConfigError(message, field=PROBABILITIES)
    if len({server.dialect.name for server in servers.values()}) > 1:
        raise ConfigError(
            "vLLM and llama.cpp tell probabilities in two ways: give servers of one sort", field=PROBABILITIES
        )


async def _find(engine: Asking, call: Call) -> _Way:
    """Ask the server's tokenizer how the labels begin, and try what it says."""
    runner = engine.start()
    if call.model is None:
        await engine.find_model(runner)
    await engine.know_servers(runner)
    check_servers(runner.servers)
    labels: tuple[str, ...] = tuple(field_of(call.params, LABELS))
    is_chat = call.kind is Kind.CHAT
    blank = _blank_of(call)
    texts = [(" " if blank else "") + label.strip() for label in labels]
    tokens, is_llamacpp = None, any(server.dialect.name == "llamacpp" for server in runner.servers.values())
    if blank is None and is_llamacpp:
        tokens = await _behind_template(engine, runner, call, texts)
    elif blank is None:
        # What a template has before an answer stands before a label, too.
        said = [[*_CHAT, {"role": "assistant", "content": text}] for text in texts]
        tokens = await _tokenized(engine, runner, [_tokens_of(call, item) for item in (_CHAT, *said)])
    if tokens is None:
        after = _AFTER[bool(blank)]
        told = [_tokens_of(call, item) for item in (after, *(after + text for text in texts))]
        tokens = await _tokenized(engine, runner, told)
    if tokens is not None and is_llamacpp:
        for (one, ids), (other, others) in combinations(zip(labels, tokens, strict=True), 2):
            if ids[0] == others[0]:
                why = f"labels {one!r} and {other!r} begin with the same token, and a llamacpp server scores none"
                raise ConfigError(f"{why}: take labels whose first tokens differ", field=LABELS)
        return _Way(labels, tuple(each[0] for each in tokens), (), _LIKELIEST)
    continuations: tuple[Any, ...] = tuple(tokens or ()) if is_chat else tuple(texts)
    # Without what the caller asks for besides: what is wrong with it says nothing of the server.
    of_template = {name: value for name in _OF_TEMPLATE if (value := field_of(call.params, name)) is not None}
    small = call._replace(item=_CHAT if is_chat else _AFTER[bool(blank)], params=of_template)
    first = tuple(each[0] for each in tokens or ())
    if len({*first}) == len(labels) <= _MOST_IDS:
        way = _Way(labels, first, continuations)
        try:
            way.read(await engine.call(way.asked(small), is_read=False))
        except (DialectError, BadRequest):
            pass  # an older server: it is asked otherwise
        else:
            return way
    if not continuations or is_llamacpp:
        raise DialectError("the server's tokenizer does not tell how the labels are written behind a prompt")
    if _is_continued(labels):
        if is_chat:
            continuations = await _ended(engine, runner, call, labels, continuations)
        else:
            continuations = tuple([text + _END for text in texts])
    # Which is the shortest answer that the server may be asked for.
    given: Any = [1] if is_chat else _AFTER[bool(blank)]
    await log_likelihood(engine, call._replace(kind=Kind.COMPLETION, item=(given, continuations[0]), params={}))
    return _Way(labels, None, continuations)


async def _behind_template(engine: Asking, runner: Runner, call: Call, texts: list[str]) -> list[list[int]] | None:
    """Return the tokens of texts behind what llama.cpp's template has before an answer.

    It goes on with an answer that is the last of a conversation, and writes no blank before that.
    """
    now = runner.backend.now()
    items = [_CHAT, [*_CHAT, {"role": "assistant", "content": texts[0]}, *_CHAT]]
    asked = [_tokens_of(call, item) for item in items]
    answers = await call_together(runner, len(asked), lambda place, part: engine.calls.make(asked[place], part, now))
    begun, said = [str(answer.extra.get("prompt", "")) for answer in answers]
    start = f"{begun} " if said.startswith(f"{begun} {texts[0]}") else begun
    return await _tokenized(
        engine, runner, [_tokens_of(call, each) for each in (begun, *(start + text for text in texts))]
    )


async def _ended(
    engine: Asking, runner: Runner, call: Call, labels: tuple[str, ...], open_ids: tuple[list[int], ...]
) -> tuple[list[int], ...]:
    """Return the tokens of a chat's labels with the end that its template gives an answer.

    Args:
        engine, runner, call: that ask.
        labels: the caller's.
        open_ids: the tokens of each without its end.

    Raises:
        ConfigError: nothing ends an answer.
    """
    said = [[*_CHAT, {"role": "assistant", "content": label.strip()}] for label in labels]
    closed = [_tokens_of(call, item, is_closed=True) for item in said]
    end = await _tokenized(engine, runner, [_tokens_of(call, said[0]), closed[0]])
    if end is not None:
        return tuple([each + end[0][:1] for each in open_ids])
    # The end may be a text, of which a tokenizer makes one token with the label's last letters.
    is_own = _blank_of(call) is None
    whole = await _tokenized(engine, runner, [_tokens_of(call, _CHAT), *closed]) if is_own else None
    if whole is None or any(each == before for each, before in zip(whole, open_ids, strict=True)):
        why = "one label begins with another, and the model's template does not tell where an answer ends"
        raise ConfigError(f"{why}: call them so that none does", field=LABELS)
    return tuple(whole)


async def _tokenized(engine: Asking, runner: Runner, calls: list[Call]) -> list[list[int]] | None:
    """Return the tokens of the calls behind those of the first; ``None``: one begins otherwise."""
    now = runner.backend.now()
    answers = await call_together(runner, len(calls), lambda place, part: engine.calls.make(calls[place], part, now))
    before, *others = [answer.ids for answer in answers]
    behind = [ids[len(before) :] for ids in others if ids[: len(before)] == before and len(ids) > len(before)]
    return behind if len(behind) == len(others) else None


def _tokens_of(call: Call, item: Any, *, is_closed: bool = False) -> Call:
    """Return the call for the tokens of a text, or of a conversation.

    Args:
        call: the caller's.
        item: the text or conversation.
        is_closed: whether the end of its last answer belongs to it.
    """
    if isinstance(item, str):
        params: dict[str, Any] = {"add_special_tokens": False}
    else:
        names = (*_OF_TEMPLATE, "add_generation_prompt", "continue_final_message")
        params = {name: value for name in names if (value := field_of(call.params, name)) is not None}
        if item[-1]["role"] == "assistant":
            params |= {"add_generation_prompt": False, "continue_final_message": not is_closed}
    return call._replace(kind=Kind.TOKENS, item=item, params=params)
