"""What a test may ask of the calls that a scripted server was sent, and what it is told where the answer is no.

Rules:
- A failed assertion says what was expected, what came, shortened, and the nearest call with what is different about it.
- Only ``AssertionError`` is raised for what was called; a question that makes no sense is a ``ConfigError``.
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
"""Of a prompt, when the nearest is looked for: comparing costs the square of the length."""
_COMPARED_CALLS = 200
_AROUND = 20
"""Characters shown before and after the place from which two prompts differ."""
_MISSING = object()


class Assertions:
    """The assertions of ``MockLLM``."""

    @property
    def requests(self) -> list[MockRequest]:
        """Every request with prompts that arrived, in order; also those that were answered with a fault."""
        raise NotImplementedError

    @property
    def calls(self) -> list[Call]:
        """Every prompt that arrived, in order; one that was sent again is there again."""
        return [call for request in self.requests for call in request.calls]

    @property
    def prompts(self) -> list[str | list[int]]:
        """Of every call: text or token ids; of a chat the text of its last message."""
        return [call.prompt for call in self.calls]

    def assert_called(self, *, times: int | None = None) -> None:
        """There was a call; with ``times``, so many.

        Raises:
            AssertionError: there was none, or another number.
        """
        calls = self.calls
        if times is None and not calls:
            raise AssertionError("expected a call; there was none")
        if times is not None and len(calls) != times:
            raise AssertionError(f"expected {_count(times, 'call')}{self._what_came()}")

    def assert_not_called(self, prompt: Matcher = None) -> None:
        """There was no call; with ``prompt``, none with such a prompt.

        Raises:
            AssertionError: there was one.
        """
        rule = Rule(prompt)
        found = [call for call in self.calls if rule.matches(call)]
        if found:
            raise AssertionError(f"expected no call for {rule.described}{_listed(found)}")

    def assert_called_with(self, prompt: Matcher = None, *, times: int | None = None, **params: Any) -> None:
        """There was a call with such a prompt and these parameters; others it may have, too.

        Args:
            prompt: as for ``when``: a text, token ids, a pattern, a function of the call; any by default.
            times: how many such calls there were; any number from 1 by default.
            **params: the request's fields, such as ``max_tokens=8``; ``model``, ``messages`` and ``kind`` as well.

        Raises:
            AssertionError: there was none, or another number; it shows the nearest.
        """
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
        """Calls shared requests.

        Args:
            *prompts: these travelled in one request, each of them.
            at_most: there were no more requests than this; without it, and without prompts: fewer requests than calls.

        Raises:
            AssertionError: it was not so.
            ConfigError: there is one prompt only, or ``at_most`` is no number of requests.
        """
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
    lines = [
        f"\n  there {'was' if len(calls) == 1 else 'were'} {_count(len(calls), 'call')} in {_count(requests, 'request')}:"
    ]
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
    """Whom a rule is for, on one line."""
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
    """A hint at the text that is most like a prompt; empty where none is."""
    if not isinstance(prompt, str):
        return ""
    texts = {other[:_COMPARED_CHARACTERS]: other for other in others if isinstance(other, str)}
    close = get_close_matches(prompt[:_COMPARED_CHARACTERS], list(texts)[-_COMPARED_CALLS:], n=1)
    return f"; nearest: {shortened(texts[close[0]])}" if close else ""
