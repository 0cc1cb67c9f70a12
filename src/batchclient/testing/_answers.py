"""The script of a scripted server: rules for prompts, each rule with steps.

Rules:
- ``MockLLM.when`` opens a rule for matching prompts. Each of the rule's methods adds a step
  and returns the rule.
- Of several rules that match and have a step for the kind of call, the most specific answers: a
  rule for one exact prompt, then a pattern or a function, then a rule for any prompt. Among equals
  the newest rule answers.
- Steps come one after the other. ``times`` counts prompts for an answer and requests for a fault; a
  step without ``times`` holds for ever.
- An unusable matcher, function or answer is refused where the test gives it.
- Nothing here waits, and nothing here knows HTTP.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any, TypeAlias

import pydantic_core

from batchclient.errors import ConfigError
from batchclient.testing._calls import Call

if TYPE_CHECKING:
    from pydantic import BaseModel

__all__ = ["Answer", "Fault", "Matcher", "Rule", "Said", "Step", "answer_from"]

Matcher: TypeAlias = str | list[int] | re.Pattern[str] | Callable[[Call], bool] | None
"""A rule's prompts: one prompt, all with a pattern, all that a function accepts, or any."""
Said: TypeAlias = "str | Answer | BaseModel | Mapping[str, Any] | Sequence[str] | Sequence[float] | None"
"""The forms of an answer: a text, its pieces, an object to be written as JSON, or a vector."""

ToolCalls: TypeAlias = Mapping[str, Mapping[str, Any]] | Sequence[tuple[str, Mapping[str, Any]]]
"""Arguments by the name of the tool."""


@dataclass(frozen=True, slots=True)
class Answer:
    """One prompt's answer.

    Args:
        text: the whole text; ``max_tokens`` never cuts the text.
        pieces: the text as a stream carries it; by default tokens of up to four characters.
        tool_calls: the tools that a chat calls: arguments by name, or (name, arguments) pairs where
            a tool is called twice.
        vector: the answer to an embedding.
        finish_reason: ``"stop"`` by default, ``"tool_calls"`` where tools are called.
        delay_s: the server's time for the answer, seconds; a request takes as long as its slowest
            prompt.

    Raises:
        ConfigError: an argument is wrong.
    """

    text: str = ""
    pieces: tuple[str, ...] = ()
    tool_calls: ToolCalls = ()
    vector: tuple[float, ...] = ()
    finish_reason: str | None = None
    delay_s: float = 0.0

    def __post_init__(self) -> None:
        if not isinstance(self.text, str):
            raise ConfigError(f"text is a text, not {type(self.text).__name__}", field="text")
        if any(type(each) not in (int, float) or not math.isfinite(each) for each in self.vector):
            raise ConfigError("a vector is a list of finite numbers", field="vector")
        if not _is_seconds(self.delay_s):
            raise ConfigError("delay_s is a number of seconds", field="delay_s")
        _ = self.written_tool_calls

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of call that the answer fits."""
        if self.vector:
            return frozenset(("embedding",))
        return frozenset(("chat",)) if self.tool_calls else frozenset(("completion", "chat"))

    @property
    def written_tool_calls(self) -> list[tuple[str, str]]:
        """(name, arguments as JSON) of each tool call."""
        pairs = list(self.tool_calls.items() if isinstance(self.tool_calls, Mapping) else self.tool_calls)
        if not all(
            isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str) and isinstance(pair[1], Mapping)
            for pair in pairs
        ):
            message = "tools are given by name with their arguments, as {'get_weather': {'city': 'Paris'}}"
            raise ConfigError(message, field="tool_calls")
        return [(name, pydantic_core.to_json(dict(arguments)).decode()) for name, arguments in pairs]


@dataclass(frozen=True, slots=True)
class Fault:
    """A request's fate instead of an answer.

    Args:
        kind: ``"status"``, ``"time_out"``, ``"hang"``, ``"disconnect"``, ``"cut"`` or ``"refuse"``.
        status: HTTP status of the reply.
        message: the error message in the reply's body; vLLM's words by default.
        retry_after_s: the Retry-After header, seconds.
        delay_s: the server's time before the fault, seconds.
    """

    kind: str
    status: int = 0
    message: str | None = None
    retry_after_s: float | None = None
    delay_s: float = 0.0


@dataclass(slots=True, eq=False)
class Step:
    """One step of a rule."""

    outcome: Answer | Fault | Callable[[Call], Said]
    kinds: frozenset[str] | None
    """The kinds of call that the step answers; ``None``: all."""
    delay_s: float
    left: float


class Rule:
    """The script for matching prompts; made by ``MockLLM.when``.

    For example::

        mock_llm.when("Is it up?").fail(503, times=2).answer("yes")

    Each method adds a step and returns the rule. A step with ``times`` is over after so many
    prompts (an answer) or requests (a fault). A step without ``times`` holds for ever, so no step
    can follow. Once all steps are over the rule matches nothing more.
    """

    def __init__(self, matcher: Matcher) -> None:
        is_ids = isinstance(matcher, list) and matcher and all(type(each) is int for each in matcher)
        if not (matcher is None or isinstance(matcher, str | re.Pattern) or is_ids or callable(matcher)):
            message = (
                "a prompt is given as a text, token ids, a compiled pattern, a function of the call, or not at all"
            )
            raise ConfigError(f"{message}; not as {type(matcher).__name__}", field="prompt")
        if isinstance(matcher, re.Pattern) and not isinstance(matcher.pattern, str):
            raise ConfigError("the pattern is of bytes; prompts are text", field="prompt")
        if callable(matcher):
            _check_function(matcher, "prompt")
        self.matcher: Matcher = matcher
        self.steps: list[Step] = []

    def __repr__(self) -> str:
        return f"<Rule for {self.described} {len(self.steps)} steps left>"

    @property
    def rank(self) -> int:
        """The rule's precedence: 2 for an exact prompt, 1 for a pattern or function, 0 for any."""
        if self.matcher is None:
            return 0
        return 2 if isinstance(self.matcher, str | list) else 1

    @property
    def described(self) -> str:
        """The prompts of the rule, in words."""
        if self.matcher is None:
            return "any prompt"
        if isinstance(self.matcher, re.Pattern):
            return f"prompts with {self.matcher.pattern!r}"
        return repr(self.matcher)

    # Steps -----------------------------------------------------------------------------------------------------------

    def answer(
        self,
        *answers: Said | Callable[[Call], Said],
        finish_reason: str | None = None,
        delay_s: float = 0.0,
        times: int | None = None,
    ) -> Rule:
        """Answer completions and chats.

        Args:
            *answers: several answers are given one after the other, the last as often as ``times``
                says. An answer is a text, a list of the pieces of a stream, an object to be written
                as JSON, or an ``Answer``. A function of the ``Call`` may return any of the four, or
                ``None`` to leave the call to other rules.
            finish_reason: ``"stop"`` by default.
            delay_s: the server's time for an answer, seconds.
            times: the number of prompts that get the answer; any number by default.

        Raises:
            ConfigError: an argument is wrong, or an earlier step holds for ever.
        """
        if not answers:
            raise ConfigError("an answer is missing", field="answers")
        for place, said in enumerate(answers):
            own_times = times if place == len(answers) - 1 else 1
            if callable(said):
                _check_function(said, "answers")
                if finish_reason is not None:
                    raise ConfigError("a function says it itself: return an Answer", field="finish_reason")
                self._add(said, None, delay_s, own_times)
            else:
                answer = answer_from(said, finish_reason)
                self._add(answer, answer.kinds, delay_s, own_times)
        return self

    def call_tools(
        self,
        calls: ToolCalls,
        *,
        text: str = "",
        delay_s: float = 0.0,
        times: int | None = None,
    ) -> Rule:
        """Answer chats with calls of tools.

        Args:
            calls: arguments by name, as in ``{"get_weather": {"city": "Paris"}}``, or (name,
                arguments) pairs where a tool is called twice.
            text: the answer's text beside the calls.
            delay_s: the server's time for the answer, seconds.
            times: the number of prompts that get the answer; any number by default.

        Raises:
            ConfigError: an argument is wrong, or an earlier step holds for ever.
        """
        answer = Answer(text, tool_calls=calls)
        if not calls:
            raise ConfigError("a tool to call is missing", field="tool_calls")
        return self._add(answer, answer.kinds, delay_s, times)

    def embed(self, vector: Sequence[float], *, delay_s: float = 0.0, times: int | None = None) -> Rule:
        """Answer embeddings with a vector.

        Raises:
            ConfigError: an argument is wrong, or an earlier step holds for ever.
        """
        answer = answer_from(list(vector), None)
        if not answer.vector:
            raise ConfigError("a vector is a list of numbers", field="vector")
        return self._add(answer, answer.kinds, delay_s, times)

    def fail(
        self,
        status: int = 500,
        message: str | None = None,
        *,
        retry_after_s: float | None = None,
        delay_s: float = 0.0,
        times: int | None = None,
    ) -> Rule:
        """Answer the whole request with an error status, by default in vLLM's words.

        A list with such a prompt fails as a whole, as on a real server.

        Args:
            status: 400 to 599.
            message: the error message, in the place of vLLM's words.
            retry_after_s: the Retry-After header, seconds.
            delay_s: the server's time before the error, seconds.
            times: the number of requests that fail; any number by default.

        Raises:
            ConfigError: an argument is wrong, or an earlier step holds for ever.
        """
        if type(status) is not int or not 400 <= status <= 599:
            raise ConfigError(f"an error status is 400 to 599, not {status!r:.40}", field="status")
        if retry_after_s is not None and not _is_seconds(retry_after_s):
            raise ConfigError("retry_after_s is a number of seconds", field="retry_after_s")
        return self._add(Fault("status", status, message, retry_after_s), None, delay_s, times)

    def time_out(self, *, times: int | None = None) -> Rule:
        """Let the caller's read timeout have passed: at once, without any waiting."""
        return self._add(Fault("time_out"), None, 0.0, times)

    def hang(self, *, times: int | None = None) -> Rule:
        """Never answer: the caller waits for its own read timeout or deadline.

        With ``virtual_clock`` the wait takes no time.
        """
        return self._add(Fault("hang"), None, math.inf, times)

    def disconnect(self, *, mid_reply: bool = False, times: int | None = None) -> Rule:
        """Break the connection, before the reply or in the middle of the reply's body."""
        return self._add(Fault("cut" if mid_reply else "disconnect"), None, 0.0, times)

    def refuse_connection(self, *, times: int | None = None) -> Rule:
        """Refuse the connection, as where no server listens."""
        return self._add(Fault("refuse"), None, 0.0, times)

    def _add(self, outcome: Any, kinds: frozenset[str] | None, delay_s: float, times: int | None) -> Rule:
        if times is not None and (type(times) is not int or times < 1):
            raise ConfigError("times is a whole number of at least 1", field="times")
        if not _is_seconds(delay_s) and delay_s != math.inf:
            raise ConfigError("delay_s is a number of seconds", field="delay_s")
        if self.steps and self.steps[-1].left == math.inf:
            raise ConfigError("the step before this one holds for ever: give it times=…", field="times")
        self.steps.append(Step(outcome, kinds, delay_s, math.inf if times is None else times))
        return self

    # Use by the server -----------------------------------------------------------------------------------------------

    def matches(self, call: Call) -> bool:
        """Whether the call's prompt is one of the rule's."""
        matcher = self.matcher
        if matcher is None:
            return True
        if isinstance(matcher, re.Pattern):
            return isinstance(call.prompt, str) and matcher.search(call.prompt) is not None
        if isinstance(matcher, str | list):
            return call.prompt == matcher
        return bool(matcher(call))

    def step_for(self, call: Call) -> Step | None:
        """The rule's next step, if the step answers the kind of call."""
        step = self.steps[0] if self.steps else None
        if step is None or (step.kinds is not None and call.kind not in step.kinds):
            return None
        return step

    def use(self, step: Step) -> None:
        """Count a step, and drop a used-up step."""
        step.left -= 1
        if step.left <= 0 and self.steps and self.steps[0] is step:
            del self.steps[0]


def answer_from(said: Said, finish_reason: str | None = None) -> Answer:
    """Read an answer in any of its forms.

    Raises:
        ConfigError: the value is no answer.
    """
    if isinstance(said, Answer):
        return said
    if isinstance(said, str):
        return Answer(said, finish_reason=finish_reason)
    if said is not None and hasattr(said, "model_dump_json"):
        # A pydantic model, as ``response_model`` will read the answer back.
        return Answer(said.model_dump_json(), finish_reason=finish_reason)
    if isinstance(said, Mapping):
        return Answer(pydantic_core.to_json(dict(said)).decode(), finish_reason=finish_reason)
    if isinstance(said, Sequence) and said and all(isinstance(each, str) for each in said):
        pieces = tuple(str(each) for each in said)
        return Answer("".join(pieces), pieces, finish_reason=finish_reason)
    if isinstance(said, Sequence) and said and all(type(each) in (int, float) for each in said):
        return Answer(vector=tuple(said))  # type: ignore[arg-type]  # all of them are numbers
    message = "an answer is a text, a list of its pieces, an object written as JSON, a vector or an Answer"
    raise ConfigError(f"{message}; not {type(said).__name__}", field="answers")


def _check_function(function: Callable[..., object], field: str) -> None:
    try:
        signature(function).bind(None)
    except TypeError:
        raise ConfigError("a function is called with one argument, the Call; this one cannot be", field=field) from None
    except ValueError:
        # Some of C's functions tell nothing of their arguments.
        return


def _is_seconds(value: object) -> bool:
    return type(value) in (int, float) and math.isfinite(float(str(value))) and float(str(value)) >= 0
