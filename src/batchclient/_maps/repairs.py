"""Rows that are asked again: an answer does not fit ``response_model``, or was cut off.

Rules:
- A call that goes again is a new request of its row: the row's time goes on, and its key is that of
  the row as it was given.
- ``invalid``: the same call again. An answer that was cut off is not asked for again so.
- ``truncated``: an answer that was cut off goes on where its server can go on with it: the
  prompt with the text so far, or the token ids; a chat with ``continue_final_message``. The parts
  are one answer. Elsewhere the call is asked anew with a larger bound, and the first answer's
  tokens are wasted: so with structured output, tools, reasoning, logprobs, ``stop``, penalties, and
  where token ids cannot be joined. A server that cannot go on is asked anew in the same try.
- The bound doubles from one try to the next. The last try has all of ``max_tokens``.
- An answer that ended below the bound asked for met another one, such as the context's: a larger
  bound would bring the same again. Beside a budget for thinking the answer's own bound counts: how
  much of the budget was used nobody says.
- A loop is not gone on with, nor a call with several choices.
- Where going on fails, the row has the answer that was cut off.
"""

from __future__ import annotations

from collections.abc import Callable
from json import loads
from typing import TYPE_CHECKING, Any

from batchclient._calls.going_on import add_bound, continued, joined, kept, unfit
from batchclient._core.kinds import Kind
from batchclient._maps.repair import BOUNDS, Repair
from batchclient._maps.row import Cut, Row
from batchclient.errors import AnswerInvalid, BadRequest, CallAborted, ClientClosed
from batchclient.health import TAGS, is_cut_off
from batchclient.types import Choice, Completion

if TYPE_CHECKING:
    from batchclient._core.messages import Request
    from batchclient._shell.runner import Runner

__all__ = ["Repairs"]


class Repairs:
    """The repairs of one map.

    Args:
        repair: how often a row is asked again, at most, and up to which length.
        make: makes the row's request of another input and other fields than a request's.

    Attributes:
        goes_on: whether answers that were cut off are gone on with.
        invalid: answers that did not fit.
    """

    def __init__(self, repair: Repair, make: Callable[[Request, Any, dict[str, Any]], Request]) -> None:
        self._repair = repair
        self.goes_on: bool = repair.truncated > 0
        self._make = make
        self.invalid: int = 0

    def again(self, row: Row, error: AnswerInvalid, runner: Runner) -> Request | None:
        """Count an answer that does not fit; return the request that asks anew, if there is to be one."""
        self.invalid += 1
        runner.wasted_tokens += _tokens_of(error.completion)
        if row.retries >= self._repair.invalid or not error.retryable or row.request is None:
            return None
        row.retries += 1
        return row.request.anew()

    def after(self, row: Row, outcome: Any, runner: Runner) -> Any:
        """Take in a row's answer or error; return what the row ends with, or the request that goes on."""
        cut = row.cut
        if isinstance(outcome, BaseException):
            if cut is None or cut.answer is None or isinstance(outcome, (ClientClosed, CallAborted)):
                return outcome
            return self._anew(cut, runner) if cut.goes_on and isinstance(outcome, BadRequest) else cut.answer
        answer = outcome
        if cut is not None and cut.answer is not None:
            if not cut.goes_on:
                runner.wasted_tokens += _tokens_of(cut.answer)
            elif (joined := _joined(cut.answer, answer)) is not None:
                runner.regained_tokens += cut.fresh
                answer = joined
            else:
                # The server has begun another message.
                runner.wasted_tokens += _tokens_of(answer)
                return self._anew(cut, runner)
            cut.answer = None
        if row.request is None or not isinstance(answer, Completion) or not is_cut_off(answer):
            return answer
        if cut is None:
            row.cut = cut = _cut(row.request, None)
        if _ended_below(outcome, cut.asked):
            return answer
        cut.answer, cut.fresh = answer, outcome.output_tokens or 0
        cut.made = answer.output_tokens or cut.goal
        return self._next(cut, runner) or answer

    def _anew(self, cut: Cut, runner: Runner) -> Any:
        """Ask anew, since going on was in vain; it takes no try."""
        cut.whole, cut.tries = True, cut.tries - 1
        return self._next(cut, runner) or cut.answer

    def resume(self, row: Row, answer: Completion | None, runner: Runner) -> Request | None:
        """Return the request that goes on with what an earlier run has left; ``None``: it stays so."""
        assert row.request is not None, "a row that is looked up has a request"
        row.cut = _cut(row.request, answer)
        if answer is not None and _ended_below(answer, row.cut.asked):
            return None
        # How long several parts are is not known where no server has counted.
        row.cut.whole = answer is not None and not answer.output_tokens and answer.attempts > 1
        return self._next(row.cut, runner)

    def _next(self, cut: Cut, runner: Runner) -> Request | None:
        first, answer = cut.first, cut.answer
        shape = first.shape
        bound = shape.max_output_tokens or self._repair.max_tokens
        if cut.tries >= self._repair.truncated or shape.weight != 1 or bound is None:
            return None
        most = self._repair.max_tokens or bound << self._repair.truncated
        made = cut.made or bound
        cut.tries += 1
        # An answer in parts, or without thinking, is shorter than the bound of both.
        goal = 2 * min(bound, made)
        while goal <= made:
            goal *= 2
        goal = most if cut.tries == self._repair.truncated else min(goal, most)
        if goal <= made:
            return None
        cut.goal = goal
        fields: dict[str, Any] = loads(shape.body)
        item = loads(first.prompt)
        names = [name for name in BOUNDS if fields.get(name) is not None]
        begun = None if cut.whole or answer is None else _going_on(item, fields, answer, shape.kind, runner)
        cut.goes_on = begun is not None
        # Beside a budget for thinking, a bound is the answer's alone.
        thinking = fields.pop("thinking_tokens", 0) if cut.goes_on else fields.get("thinking_tokens", 0)
        cut.asked = max(1, goal - (made if cut.goes_on else thinking))
        add_bound(fields, names, cut.asked, made if cut.goes_on else 0)
        return self._make(first, begun if cut.goes_on else item, fields)


def _cut(first: Request, answer: Completion | None) -> Cut:
    cut, thinking = Cut(first, answer), first.shape.thinking_tokens
    if cut.asked is not None and thinking is not None:
        from batchclient.dialects._thinking import room_for  # few calls have a budget

        cut.asked -= room_for(thinking)
    return cut


def _ended_below(answer: Completion, bound: int | None) -> bool:
    """Whether an answer is surely shorter than its bound; a server may count its end, or not."""
    is_counted = answer.usage is None or not answer.usage.completion_tokens_estimated
    tokens = answer.output_tokens
    return is_counted and bound is not None and tokens is not None and tokens + 1 < bound


def _tokens_of(answer: Completion) -> int:
    """Return the prompt and output tokens of an answer, by the server's count."""
    return answer.usage.total_tokens if answer.usage is not None else answer.counted_tokens or 0


def _going_on(item: Any, fields: dict[str, Any], answer: Completion, kind: Kind, runner: Runner) -> Any:
    """Return the input that goes on with an answer, its fields changed; ``None``: there is none."""
    (choice,) = answer.choices
    if unfit(fields) or choice.logprobs is not None:
        return None
    ids, text = choice.token_ids, kept(choice)
    if kind is Kind.COMPLETION:
        if isinstance(item, str):
            return None if ids is not None or not text else item + text
        return None if ids is None else [*item, *ids]
    if not runner.servers.continues_chats or ids is not None or not text or _says_more(choice):
        return None
    return continued(item, fields, text)


def _says_more(choice: Choice) -> bool:
    """Whether a chat's answer has more than a text, such as reasoning: of some servers in tags."""
    if choice.message is None:
        return False
    more = any(value for name, value in choice.message.items() if name not in ("role", "content"))
    return more or any(tag in choice.text for pair in TAGS.items() for tag in pair)


def _joined(first: Completion, last: Completion) -> Completion | None:
    """Return two parts of an answer as one; ``None``: the second is no part of it."""
    (begun,), (ended,) = first.choices, last.choices
    if _says_more(ended):
        return None
    text = kept(begun) + ended.text
    message = None if ended.message is None else {**ended.message, "content": text}
    ids = None if begun.token_ids is None else begun.token_ids + (ended.token_ids or ())
    return joined(first, last, text, message, ids)
