"""Assertions about a scripted server's calls, and the messages of failed assertions.

Rules:
- The message of a failed assertion names the expectation, the arrived calls (shortened), and the
  nearest call with its differences.
- Calls that differ from the expectation raise ``AssertionError`` alone. A question that makes no
  sense raises ``ConfigError``.
"""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher, get_close_matches
from typing import Any

from batchclient.errors import ConfigError
from batchclient.testing._answers import Matcher, Rule
from batchclient.testing._calls import Call, MockRequest, shortened

__all__ = ["Assertions", "nearest_prompt"]

_SHOWN_CALLS = 10
_COMPARED_CHARACTERS = 2000
"""Of a prompt, in the search for the nearest; the cost grows with the square of the length."""
_COMPARED_CALLS = 200
_AROUND = 20
"""Characters shown before and after the first difference between two prompts."""
_MISSING = object()


class Assertions:
    """The assertions of ``MockLLM``."""

    @property
    def requests(self) -> list[MockRequest]:
        """Every arrived request with prompts, in order; requests answered with a fault, too."""
        raise NotImplementedError

    @property
    def calls(self) -> list[Call]:
        """Every arrived prompt, in order; a prompt sent twice is there twice."""
        return [call for request in self.requests for call in request.calls]

    @property
    def prompts(self) -> list[str | list[int]]:
        """Of every call: text or token ids; of a chat the text of its last message."""
        return [call.prompt for call in self.calls]

    def assert_called(self, *, times: int | None = None) -> None:
        """Assert that a call arrived; with ``times``, exactly so many.

        Raises:
            AssertionError: no call arrived, or another number.
        """
        __tracebackhide__ = True
        calls = self.calls
        if times is None and not calls:
            raise AssertionError("expected a call; there was none")
        if times is not None and len(calls) != times:
            raise AssertionError(f"expected {_count(times, 'call')}{self._what_came()}")

    def assert_not_called(self, prompt: Matcher = None) -> None:
        """Assert that no call arrived; with ``prompt``, none with a matching prompt.

        Raises:
            AssertionError: such a call arrived.
        """
        __tracebackhide__ = True
        rule = Rule(prompt)
        found = [call for call in self.calls if rule.matches(call)]
        if found:
            raise AssertionError(f"expected no call for {rule.described}{_listed(found)}")

    def assert_called_with(self, prompt: Matcher = None, *, times: int | None = None, **params: Any) -> None:
        """Assert that a call with a matching prompt and the given parameters arrived.

        A call may have further parameters.

        Args:
            prompt: as for ``when``: a text, token ids, a pattern, a function of the call; any by
                default.
            times: the exact number of such calls; 1 or more by default.
            **params: the request's fields, such as ``max_tokens=8``; ``model``, ``messages`` and
                ``kind`` as well.

        Raises:
            AssertionError: no such call arrived, or another number; the message shows the
                nearest call.
        """
        __tracebackhide__ = True
        rule = Rule(prompt)
        found = [call for call in self.calls if rule.matches(call) and not _differences(call, params)]
        if len(found) == times or (found and times is None):
            return
        if times == 0:
            raise AssertionError(f"expected no call {_wanted(rule, params)}{_listed(found)}")
        wanted = "a call" if times is None else _count(times, "call")
        but = f"; there were {len(found)}" if found else ""
        raise AssertionError(
            f"expected {wanted} {_wanted(rule, params)}{but}{self._nearest(rule, params, found)}{self._what_came()}"
        )

    def assert_batched(self, *prompts: str | list[int], at_most: int | None = None) -> None:
        """Assert that calls shared requests.

        Args:
            *prompts: two or more prompts, which travelled in one request.
            at_most: the largest number of requests. Without ``at_most`` and without prompts, the
                assertion is: fewer requests than calls.

        Raises:
            AssertionError: the calls travelled otherwise.
            ConfigError: only one prompt is given, or ``at_most`` is no number of requests.
        """
        __tracebackhide__ = True
        if len(prompts) == 1:
            raise ConfigError("one prompt alone shares nothing: give two or more", field="prompts")
        if at_most is not None and (type(at_most) is not int or at_most < 1):
            raise ConfigError("at_most is a number of requests, at least 1", field="at_most")
        requests = [request for request in self.requests if request.calls]
        if prompts:
            self._assert_together(prompts, requests)
        if at_most is not None and len(requests) > at_most:
            raise AssertionError(f"expected at most {_count(at_most, 'request')}{self._what_came()}")
        if not requests:
            raise AssertionError("expected calls that share requests; there was none")
        if not prompts and at_most is None and len(requests) >= len(self.calls):
            raise AssertionError(f"expected calls that share requests; each went alone{self._what_came()}")

    def _assert_together(self, prompts: Sequence[str | list[int]], requests: list[MockRequest]) -> None:
        __tracebackhide__ = True
        if any(all(prompt in request.prompts for prompt in prompts) for request in requests):
            return
        lines = [f"expected one request with {_count(len(prompts), 'prompt')}:"]
        for prompt in prompts:
            carriers = [str(request.number) for request in requests if prompt in request.prompts]
            where = (
                f"in request {', '.join(carriers)}" if carriers else f"never sent{nearest_prompt(prompt, self.prompts)}"
            )
            lines.append(f"    {shortened(prompt)}: {where}")
        raise AssertionError("\n".join(lines) + self._what_came())

    def _nearest(self, rule: Rule, params: dict[str, Any], found: list[Call]) -> str:
        calls = self.calls
        if found or not calls:
            return ""
        call = max(calls[-_COMPARED_CALLS:], key=lambda each: _likeness(rule, params, each))
        lines = [f"\n  nearest: call {call.number}, {call.kind} {shortened(call.prompt)}"]
        if not rule.matches(call):
            lines.append(f"\n    prompt: {_prompt_difference(rule.matcher, call.prompt)}")
        lines += [f"\n    {line}" for line in _differences(call, params)]
        return "".join(lines)

    def _what_came(self) -> str:
        calls = self.calls
        if not calls:
            return "\n  there was no call"
        return _listed(calls)


def _listed(calls: list[Call]) -> str:
    requests = len({call.request for call in calls})
    were = "was" if len(calls) == 1 else "were"
    lines = [f"\n  there {were} {_count(len(calls), 'call')} in {_count(requests, 'request')}:"]
    lines += [f"\n    {call.number}. (request {call.request}) {call.described}" for call in calls[:_SHOWN_CALLS]]
    if len(calls) > _SHOWN_CALLS:
        lines.append(f"\n    … and {len(calls) - _SHOWN_CALLS} more")
    return "".join(lines)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def _wanted(rule: Rule, params: dict[str, Any]) -> str:
    given = ", ".join(f"{name}={shortened(value, 40)}" for name, value in params.items())
    return f"for {shortened_description(rule)}" + (f" with {given}" if given else "")


def shortened_description(rule: Rule) -> str:
    """The prompts of a rule, on one line."""
    return shortened(rule.matcher) if isinstance(rule.matcher, str | list) else rule.described


def _differences(call: Call, params: dict[str, Any]) -> list[str]:
    own = {**call.params, "model": call.model, "kind": call.kind}
    if call.messages:
        own["messages"] = call.messages
    lines = []
    for name, value in params.items():
        given = own.get(name, _MISSING)
        # 1 and True are equal in Python and two things in a request.
        if given is _MISSING or given != value or isinstance(given, bool) != isinstance(value, bool):
            was = "was not given" if given is _MISSING else f"was {shortened(given, 40)}"
            lines.append(f"{name}: expected {shortened(value, 40)}, {was}")
    return lines


def _likeness(rule: Rule, params: dict[str, Any], call: Call) -> float:
    shares = 1.0 - len(_differences(call, params)) / len(params) if params else 0.0
    if rule.matches(call):
        return 2.0 + shares
    if isinstance(rule.matcher, str) and isinstance(call.prompt, str):
        ends = rule.matcher[:_COMPARED_CHARACTERS], call.prompt[:_COMPARED_CHARACTERS]
        return SequenceMatcher(None, *ends).ratio() + shares / 2
    return shares / 2


def _prompt_difference(matcher: Matcher, prompt: str | list[int]) -> str:
    if not isinstance(matcher, str) or not isinstance(prompt, str):
        return "it does not match"
    pairs = zip(matcher, prompt, strict=False)
    at = next((place for place, (one, other) in enumerate(pairs) if one != other), min(len(matcher), len(prompt)))
    start = max(0, at - _AROUND)

    def around(text: str) -> str:
        return repr(f"{'…' if start else ''}{text[start : at + _AROUND]}{'…' if len(text) > at + _AROUND else ''}")

    return f"expected {around(matcher)}, was {around(prompt)} (they differ from character {at} on)"


def nearest_prompt(prompt: object, others: Sequence[object]) -> str:
    """A hint at the text that is most like a prompt; empty where no text is."""
    if not isinstance(prompt, str):
        return ""
    texts = {other[:_COMPARED_CHARACTERS]: other for other in others if isinstance(other, str)}
    close = get_close_matches(prompt[:_COMPARED_CHARACTERS], list(texts)[-_COMPARED_CALLS:], n=1)
    return f"; nearest: {shortened(texts[close[0]])}" if close else ""
