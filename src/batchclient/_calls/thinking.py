"""A call with ``thinking_tokens``: with the server's field for it, or stopped and gone on with.

Rules:
- The servers have to be known: before, nothing is sent. What a call is sent to is asked which it is
  at its turn (``_shell/exchange``), and so is waited for as by any other call.
- Where a server has a field, the call is one request, and the dialect writes the field.
- Elsewhere the answer is asked for with the budget as its bound. Where the model still thinks then,
  its thinking is closed by its own tag, and the answer goes on from there with its own bound. If
  the thinking had ended, the answer goes on with what is left, ``max_tokens`` at most. The parts
  are one answer.
- Where nothing shows that the model thinks, no tag is written into its answer. Token ids show
  nothing: they count as thinking.
- A chat whose template is told not to think is one request for ``max_tokens``.
- So a call's requests have at most ``thinking_tokens`` and ``max_tokens`` together, in both ways. A
  tag may be several tokens: the first request is for eight, at least.
- A refusal of the field (vLLM without ``--reasoning-parser``) is learnt by the endpoint's dialect,
  and the call goes the other way.
- What neither way can do is refused by name, and nothing is sent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from json import loads
from typing import TYPE_CHECKING, Any

from batchclient._calls.call import Call
from batchclient._calls.going_on import add_bound, continued, joined, kept, unfit
from batchclient._core.kinds import Kind
from batchclient._core.messages import Request, Submitted
from batchclient.dialects._thinking import (
    NO_BUDGET,
    is_kept,
    opened_by,
    reasoning_tokens,
    room_for,
    split,
    tag_of,
)
from batchclient.errors import ConfigError
from batchclient.health import CUT_OFF, TAGS, reasoning_in
from batchclient.types import Choice, Completion

if TYPE_CHECKING:
    from batchclient._calls.make import CallMaker
    from batchclient._core.messages import Shape
    from batchclient._shell.runner import Runner
    from batchclient._shell.servers import Servers
    from batchclient.dialects._dialect import Dialect

__all__ = ["Thinking", "check_servers"]

_LEAST_BOUND = 8
_BOUNDS = ("max_completion_tokens", "max_tokens")


class Thinking:
    """One call with a budget for thinking: the waiter of its requests.

    Args:
        runner: sends them.
        call: the caller's request, which is not sent itself, unless it is streamed to its caller.
        calls: makes the requests of the parts.
        asks: whether servers may be asked which they are.
        may_wait: as of ``Runner.submit``.
    """

    def __init__(self, runner: Runner, call: Request, calls: CallMaker, *, asks: bool, may_wait: bool) -> None:
        self._runner = runner
        self._call = call
        self._calls = calls
        self._asks = asks
        self._may_wait = may_wait
        self._request: Request | None = None
        """The one under way."""
        self._take: Callable[[Any], None] = self._finish
        """Takes its answer."""
        self._was_refused = False
        self._begun: Completion | None = None
        """The first part of an answer in parts."""
        self._opened = call.shape.opened
        """The tag by which the input has begun to think; empty: none."""
        self._closing = ""
        """What was written after it."""
        self._reasoning: int | None = None
        """Its tokens of reasoning."""

    # As the owner of a call ------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Send the call, once the servers are known."""
        runner, call = self._runner, self._call
        call.queued_at = runner.backend.now()
        runner.thinking[call] = self.end
        self._choose()

    def end(self) -> None:
        """The caller has left."""
        if self._request is not None:
            self._runner.leave(self._request)

    @property
    def _is_over(self) -> bool:
        return self._call not in self._runner.thinking or self._call.waiter.done()

    def _choose(self) -> None:
        """Choose the way of the call by its servers."""
        call, servers = self._call, self._runner.servers
        shape = call.shape
        # A server that is still to say which it is may have a field.
        known = servers.heard if self._asks else [server.dialect for server in servers.values()]
        for dialect in known:
            dialect.forget_refusals(self._runner.backend.now())
        lacking = [dialect for dialect in known if not dialect.takes_budget(shape)]
        budgets = [dialect.budget(shape.kind) for dialect in lacking]
        if lacking and all(budget is not None and budget.goes_on for budget in budgets):
            others = [dialect.budget(shape.kind) for dialect in known]
            if all(budget is not None and budget.goes_on for budget in others):
                self._begin_parts(lacking[0].name, budgets[0].advice if budgets[0] is not None else "")
                return
        if lacking and len(lacking) == len(known):
            self._refuse(f"{_no_budget(lacking[0], shape.kind)}; nothing was sent")
        elif shape.to_caller:
            # Its pieces go to the caller's own waiter.
            del self._runner.thinking[call]
            self._submit(call)
        else:
            request = call.anew()
            request.waiter = self
            self._send(request, self._finish)

    def _begin_parts(self, name: str, advice: str) -> None:
        shape, fields = self._call.shape, self._fields()
        asks_ids = shape.wants_token_ids and not shape.counted
        without = {
            "n": shape.weight != 1,
            "stream": shape.to_caller,
            "a drop-in": shape.verbatim,
            unfit(fields): unfit(fields),
            "return_token_ids": asks_ids or (shape.wants_token_ids and shape.kind is Kind.CHAT),
            "include_reasoning": shape.kind is Kind.CHAT and fields.get("include_reasoning") is False,
            "add_generation_prompt": fields.get("add_generation_prompt") is False
            and not fields.get("continue_final_message"),
        }
        if bad := next((what for what, is_asked in without.items() if is_asked), ""):
            said = f"thinking_tokens goes without {bad} on a {name} server that has no field for it"
            self._refuse(f"{said}; leave one of the two out, or {advice}")
            return
        if shape.counted:
            fields["return_token_ids"] = True
        item = loads(self._call.prompt)
        if shape.kind is Kind.CHAT and is_kept(fields):
            self._ask(item, fields, self._finish)
            return
        if shape.kind is Kind.CHAT and fields.get("continue_final_message") and item:
            begun = item[-1].get("content")
            self._opened = opened_by(begun) if isinstance(begun, str) else ""
        names = [each for each in _BOUNDS if fields.get(each) is not None]
        add_bound(fields, names, max(_LEAST_BOUND, shape.thinking_tokens or 0), 0)
        self._ask(item, fields, self._go_on)

    def _fields(self) -> dict[str, Any]:
        fields: dict[str, Any] = loads(self._call.shape.body)
        del fields["thinking_tokens"]
        return fields

    # As a waiter -----------------------------------------------------------------------------------------------------

    def done(self) -> bool:
        """Whether nobody waits any more."""
        return self._is_over

    def set_result(self, answer: Any) -> None:
        """Take in the answer to the request under way."""
        try:
            self._take(answer)
        except Exception as error:  # a server's answer of an unforeseen form may not leave the caller hanging
            self._fail(error)

    def set_exception(self, error: BaseException) -> None:
        """Take in its failure."""
        if getattr(error, "code", None) == NO_BUDGET and not self._was_refused and self._begun is None:
            self._was_refused = True
            self._runner.budgets_refused += 1
            self._runner.backend.call_soon(self._choose)
        else:
            self._fail(error)

    # The parts -------------------------------------------------------------------------------------------------------

    def _go_on(self, answer: Completion) -> None:
        """Take in the part up to the budget."""
        call, (choice,) = self._call, answer.choices
        shape, fields = call.shape, self._fields()
        _, _, has_ended = split(choice, self._opened)
        # Of ids nobody here knows.
        is_open = has_ended is False or (has_ended is None and shape.counted)
        made = answer.output_tokens or max(_LEAST_BOUND, shape.thinking_tokens or 0)
        self._reasoning = made if is_open else reasoning_tokens(answer, self._opened) or 0
        # What is asked for once the thinking is closed is the answer alone.
        left, bound = None, shape.max_output_tokens
        if bound is not None and not is_open:
            longest = bound - room_for(shape.thinking_tokens or 0)
            most = max(bound, longest + _LEAST_BOUND)
            left = min(most - made, longest) if self._reasoning else longest - made
        if choice.finish_reason not in CUT_OFF or (left is not None and left <= 0):
            self._finish(answer)
            return
        self._runner.parts[answer.health] += 1
        self._begun = answer
        if is_open:
            self._closing = f"\n{TAGS[tag_of(choice, self._opened)]}\n\n"
        names = [each for each in _BOUNDS if fields.get(each) is not None]
        if left is not None:
            add_bound(fields, names, left, made)
        item = loads(call.prompt)
        if shape.kind is Kind.CHAT:
            begun = continued(item, fields, self._written(choice))
            if begun is None:
                self._refuse("thinking_tokens: the conversation's last message cannot be gone on with")
                return
            self._ask(begun, fields, self._join)
        elif isinstance(item, str):
            self._ask(item + kept(choice) + self._closing, fields, self._join)
        else:
            self._with_ids(partial(self._ask_ids, item, fields))

    def _written(self, choice: Choice) -> str:
        """Return a chat's answer so far, with its reasoning as templates write it."""
        reasoning = reasoning_in(choice)
        if not reasoning:
            return kept(choice) + self._closing
        tag = tag_of(choice)
        begun = f"{tag}\n{reasoning.strip(chr(10))}\n{TAGS[tag]}\n\n"
        return begun + kept(choice)

    def _with_ids(self, then: Callable[[tuple[int, ...]], None]) -> None:
        """Go on with the token ids of the closing tag, which the server is asked for once."""
        known = (self._call.shape.model, self._closing)
        if not self._closing or known in self._calls.closings:
            then(self._calls.closings.get(known, ()))
            return

        def take(answer: Any) -> None:
            self._calls.closings[known] = ids = tuple(answer.ids)
            then(ids)

        model = None if self._call.shape.any_model else known[0]
        call = Call(Kind.TOKENS, self._closing, {"add_special_tokens": False}, model, None)
        request = self._calls.make(call, self, self._runner.backend.now())
        self._send_soon(request, take)

    def _ask_ids(self, item: list[int], fields: dict[str, Any], closing: tuple[int, ...]) -> None:
        assert self._begun is not None
        ids = self._begun.choices[0].token_ids
        if ids is None:
            self._refuse("thinking_tokens: the server tells no token ids; give the prompt as a text")
            return
        fields["return_token_ids"] = True
        self._ask([*item, *ids, *closing], fields, self._join)

    def _join(self, answer: Completion) -> None:
        """Make one answer of the parts."""
        assert self._begun is not None, "the second part follows the first"
        begun, (ended,), shape = self._begun.choices[0], answer.choices, self._call.shape
        # A parser that sees no closing tag in the second part takes it for reasoning.
        said = ended.text or reasoning_in(ended)
        message, ids = None, None
        if shape.kind is not Kind.CHAT:
            text = kept(begun) + self._closing + said
        else:
            text = kept(begun) + ("" if reasoning_in(begun) else self._closing) + said
            message = {**(ended.message or {}), **(begun.message or {}), "content": text}
        if shape.wants_token_ids:
            closing = self._calls.closings.get((shape.model, self._closing), ())
            ids = (*(begun.token_ids or ()), *closing, *(ended.token_ids or ()))
        whole = joined(self._begun, answer, text, message, ids)
        if not self._closing:
            # Thinking that a template has begun shows at its end alone.
            self._reasoning = reasoning_tokens(whole, self._opened) or 0
        self._finish(whole, answer)

    # Sending and ending ----------------------------------------------------------------------------------------------

    def _ask(self, item: Any, fields: dict[str, Any], take: Callable[[Any], None]) -> None:
        request = self._calls.make_again(self._call, item, fields, self._runner.backend.now())
        request.waiter = self
        self._send_soon(request, take)

    def _send_soon(self, request: Request, take: Callable[[Any], None]) -> None:
        # Not within the step that brought an answer.
        self._runner.backend.call_soon(partial(self._send, request, take))

    def _send(self, request: Request, take: Callable[[Any], None]) -> None:
        if not self._is_over:
            if self._request is not None:
                # A row's time runs from the grant of its first request.
                request.deadline = self._request.deadline
            self._request, self._take = request, take
            self._submit(request)

    def _submit(self, request: Request) -> None:
        # Not by the runner's own door, which leads here.
        self._runner.backend.note_work()
        self._runner.tell(Submitted(request, self._may_wait))

    def _finish(self, answer: Completion, last: Completion | None = None) -> None:
        """End the call with an answer; ``last``: its last part."""
        call, watch, parts = self._call, self._runner.thinking_watch, self._runner.parts
        if self._reasoning is not None:
            # The core has counted the last part as the answer, by what was asked for there.
            parts[(last or answer).health] += 1
            watch.tokens += self._reasoning
            if answer.usage is not None:
                answer.usage = replace(answer.usage, reasoning_tokens=self._reasoning)
            answer.fixed_length, answer.opened = call.shape.fixed_length, self._opened
            parts[answer.health] -= 1
            if call.shape.counted and not call.shape.wants_token_ids:
                answer.choices = tuple(replace(choice, token_ids=None) for choice in answer.choices)
        if self._request is not None:
            call.in_flight = self._request.in_flight
        self._end(partial(call.waiter.set_result, answer))

    def _fail(self, error: BaseException) -> None:
        self._end(partial(self._call.waiter.set_exception, error))

    def _refuse(self, message: str) -> None:
        error = ConfigError(message, field="thinking_tokens")
        self._runner.backend.call_soon(partial(self._fail, error))

    def _end(self, tell: Callable[[], object]) -> None:
        if self._runner.thinking.pop(self._call, None) is not None and not self._call.waiter.done():
            tell()
        self._runner.thinking_over.set()
        # Circles, which would keep the prompt until the garbage collector comes.
        self._request, self._take = None, _ignore


def _ignore(_answer: Any) -> None:
    pass


def _no_budget(dialect: Dialect, kind: Kind) -> str:
    """Say that a server has no field for a budget, and what helps there."""
    budget, name = dialect.budget(kind), f"a {dialect.name} server"
    if dialect.is_assumed:
        name = "a server that is not known"
    why = f"{name} has no field for thinking_tokens with {kind.value} calls"
    advice = f"{why}, and cannot go on with an answer" if budget is None else f"{why}; {budget.advice}"
    return advice + ("; give dialect=… if you know it" if dialect.is_assumed else "")


def check_servers(servers: Servers, shape: Shape) -> None:
    """Check that a map's calls have a way to keep their budget: as completions, or as chats.

    Raises:
        ConfigError: they have none.
    """
    known = servers.heard
    if len(known) < len(servers):
        return
    for kind in (shape.kind, Kind.COMPLETION, Kind.CHAT):
        lacking = [dialect for dialect in known if not dialect.takes_budget(replace(shape, kind=kind))]
        budgets = [dialect.budget(kind) for dialect in lacking]
        if len(lacking) < len(known) or all(budget is not None and budget.goes_on for budget in budgets):
            return
    raise ConfigError(f"{_no_budget(known[0], shape.kind)}; nothing was sent", field="thinking_tokens")
