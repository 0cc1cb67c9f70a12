"""``MockLLM``: a scripted server in the test's own process, without a socket.

Rules:
- ``receive`` takes a request and returns its whole reply. Every way to a ``MockLLM``
  (batchclient's own transport, httpx, httpx2, respx) is a thin shell around ``receive``, and the
  shells do the waiting.
- Any number of threads and event loops may ask; one lock guards rules and records.
- The URL leads nowhere. While a ``MockLLM`` is open, httpx and httpx2 hand over the requests to the
  URL, and no others.
- Closing reports the faults inside: a function that raised, or a prompt without an answer where
  ``strict``. The code under test may have swallowed the reply about the fault.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from batchclient.errors import ConfigError
from batchclient.simulator.requests import HttpError
from batchclient.simulator.server import SimulatedServer
from batchclient.testing._answers import Answer, Fault, Matcher, Rule, Step, answer_from
from batchclient.testing._assertions import Assertions, nearest_prompt
from batchclient.testing._calls import Call, MockRequest, params_of
from batchclient.testing._speech import Reply, Spoken, error_reply, fault_reply, refusal, understand, unscripted, write

if TYPE_CHECKING:
    from batchclient.client import BatchClient
    from batchclient.testing._transport import MockTransport

__all__ = ["MockLLM"]

_numbers = itertools.count(1)
_SCRIPTED_KINDS = frozenset(("completion", "chat", "embedding"))
_SHOWN = 5
_Outcome = TypeVar("_Outcome", Answer, Fault)


class MockLLM(Assertions):
    """A scripted server that speaks vLLM's language, lists and streams included.

    The fixture is ``mock_llm``. For example::

        with MockLLM() as mock_llm:
            mock_llm.when("How are you?").answer(" fine")
            async with mock_llm.client() as client:
                answer = await client.complete("How are you?", max_tokens=4)
            mock_llm.assert_called_with("How are you?", max_tokens=4)

    A prompt without a rule is answered ``"mock answer to: "`` and the prompt. An embedding, score
    or class without a rule has the embedded server's answer.

    Args:
        model: the name in ``/v1/models``; calls may name any.
        strict: a prompt without a rule is refused with a 400, and closing raises
            ``AssertionError``.

    Attributes:
        base_url: the URL that any client built upon httpx or httpx2 reaches while the server is
            open.
        model: as given.
        strict: as given; may be changed at any time.
    """

    def __init__(self, *, model: str = "mock", strict: bool = False) -> None:
        if not isinstance(model, str) or not model:
            raise ConfigError("model is a name", field="model")
        self.model = model
        self.strict = strict
        self.host: str = f"mock-llm-{next(_numbers)}.test"
        self.base_url: str = f"http://{self.host}/v1"
        self._lock = threading.RLock()
        self._opened = 0
        self._pages = SimulatedServer("instant", model=model, epoch_s=time.time())
        self._forget()

    def __repr__(self) -> str:
        state = "open" if self._opened else "closed"
        return f"<MockLLM {self.base_url} {state}, {len(self._rules)} rules, {len(self._requests)} requests>"

    def _forget(self) -> None:
        self._rules: list[Rule] = []
        self._requests: list[MockRequest] = []
        self._calls = 0
        self._unscripted: list[Call] = []
        self._errors: list[Exception] = []

    # The script ------------------------------------------------------------------------------------------------------

    def when(self, prompt: Matcher = None) -> Rule:
        """Open a rule for prompts, whose methods make the script: ``when("Hi").answer("Hello")``.

        Args:
            prompt: a text or a list of token ids, for an equal prompt; a compiled pattern to be
                searched for; a function of the ``Call`` that returns whether the call matches; any
                prompt by default. A chat's prompt is the text of its last message.

        Raises:
            ConfigError: ``prompt`` has none of these forms.
        """
        rule = Rule(prompt)
        with self._lock:
            # The most specific rule first, and among equals the newest.
            self._rules.insert(0, rule)
            self._rules.sort(key=lambda each: -each.rank)
        return rule

    def reset(self) -> None:
        """Forget rules, records and faults."""
        with self._lock:
            self._forget()

    # The records -----------------------------------------------------------------------------------------------------

    @property
    def requests(self) -> list[MockRequest]:
        """Every arrived request with prompts, in order; requests answered with a fault, too."""
        with self._lock:
            return list(self._requests)

    @property
    def unscripted(self) -> list[Call]:
        """The first call of each prompt without a rule."""
        with self._lock:
            return list(self._unscripted)

    # Ways to it ------------------------------------------------------------------------------------------------------

    def client(self, **settings: Any) -> BatchClient:
        """Return a ``BatchClient`` wired to the scripted server.

        Args:
            **settings: of ``BatchClient``.

        Raises:
            ConfigError: a setting is wrong.
        """
        from batchclient._settings import sending_of
        from batchclient.client import BatchClient
        from batchclient.options import Http

        http = settings.get("http")
        if http is None or isinstance(http, Http):
            settings["http"] = sending_of(http, transport=self.transport)
        settings = {"model": self.model, **settings}
        return BatchClient(settings.pop("base_url", self.base_url), from_environment=False, **settings)

    def transport(self, base_url: str = "", headers: Mapping[str, str] | None = None) -> MockTransport:
        """Return a transport: ``BatchClient(…, http=mock_llm.transport)``."""
        from batchclient.testing._transport import MockTransport

        del base_url
        return MockTransport(self, headers or {})

    def httpx_transport(self) -> Any:
        """Return a transport for ``httpx.Client`` and ``httpx.AsyncClient``, whatever their URL."""
        from batchclient.testing._httpx import library

        return library("httpx").transport(self)

    def httpx2_transport(self) -> Any:
        """Return a transport for ``httpx2.Client`` and ``httpx2.AsyncClient``.

        openai's clients take an httpx2 client from openai's version 3 on.

        Raises:
            ImportError: httpx2 is missing.
        """
        from batchclient.testing._httpx import library

        return library("httpx2").transport(self)

    def respond(self, request: Any) -> Any:
        """Answer a request of httpx or httpx2 with a response of the same library.

        The method is a side effect for respx, a callback for pytest-httpx and a handler for
        ``httpx.MockTransport``. In an event loop, an answer that takes time is an awaitable, which
        all three await.

        Raises:
            httpx.TransportError: a fault's error; of httpx2 for a request of httpx2.
        """
        from batchclient.testing._httpx import library

        return library(type(request).__module__.partition(".")[0]).respond(self, request)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
        if error is None:
            self.check()

    def open(self) -> None:
        """Have httpx and httpx2 hand over the requests to ``base_url``."""
        from batchclient.testing._httpx import intercept

        self._opened += 1
        if self._opened == 1:
            intercept(self)

    def close(self) -> None:
        """Let httpx and httpx2 send as before."""
        from batchclient.testing._httpx import let_go

        self._opened = max(0, self._opened - 1)
        if not self._opened:
            let_go(self)

    def check(self) -> None:
        """Raise the faults inside; closing does so, too.

        Raises:
            AssertionError: a prompt had no rule, where ``strict``.
            Exception: an error of a rule's function.
        """
        with self._lock:
            errors, lacking = self._errors, self._unscripted if self.strict else []
            rules = [rule.matcher for rule in self._rules]
        if errors:
            raise errors[0]
        if lacking:
            lines = [f"\n  {call.described}{nearest_prompt(call.prompt, rules)}" for call in lacking[:_SHOWN]]
            more = f"\n  … and {len(lacking) - _SHOWN} more" if len(lacking) > _SHOWN else ""
            raise AssertionError(f"no rule was for {len(lacking)} of the prompts:{''.join(lines)}{more}")

    # The shells' entry -----------------------------------------------------------------------------------------------

    def receive(self, method: str, path: str, headers: Mapping[str, str], body: bytes) -> Reply:
        """Take a request, record the request, and decide its reply.

        Args:
            method: upper case.
            path: without the query; the part before ``/v1`` does not matter.
            headers: of the request.
            body: of the request.
        """
        at = path.find("/v1/")
        path = path[at:] if at >= 0 else f"/{path.rpartition('/')[2]}"
        with self._lock:
            try:
                spoken = understand(path, body) if method == "POST" else None
            except HttpError as error:
                return refusal(error)
            if spoken is None:
                return self._page(method, path, body)
            request = self._record(path, headers, spoken)
            reply = self._decide(request, spoken)
            request.status = reply.status or None
            return reply

    def _record(self, path: str, headers: Mapping[str, str], spoken: Spoken) -> MockRequest:
        lower = {name.lower(): value for name, value in headers.items()}
        request = MockRequest(len(self._requests) + 1, path, spoken.body, lower)
        model = spoken.body.get("model") or self.model
        params = params_of(spoken.body)
        for place, prompt in enumerate(spoken.prompts):
            self._calls += 1
            messages = spoken.conversations[place] if spoken.conversations else []
            request.calls.append(Call(spoken.kind, prompt, params, messages, model, self._calls, request.number))
        self._requests.append(request)
        return request

    def _decide(self, request: MockRequest, spoken: Spoken) -> Reply:
        """The reply; a fault takes back the steps that answers of the same request had used up."""
        used: list[tuple[Rule, Step]] = []
        answers: list[Answer] = []
        for call in request.calls:
            try:
                outcome = self._outcome(call, used)
            except Exception as error:  # a user's function
                self._errors.append(error)
                _take_back(used)
                return error_reply("a function of the test's script failed")
            if isinstance(outcome, Fault):
                fault_step = used.pop()
                _take_back(used)
                fault_step[0].use(fault_step[1])
                whole = (
                    self._write(request, spoken, [Answer("x")] * len(request.calls)) if outcome.kind == "cut" else None
                )
                return fault_reply(outcome, whole)
            if outcome is None:
                outcome = unscripted(call.prompt, spoken.body)
                if call.kind in _SCRIPTED_KINDS:
                    self._note_unscripted(call)
                    if self.strict:
                        _take_back(used)
                        return error_reply("no rule of the test is for this prompt")
                if call.kind == "embedding":
                    outcome = Answer()
            answers.append(outcome)
        return self._write(request, spoken, answers)

    def _outcome(self, call: Call, used: list[tuple[Rule, Step]]) -> Answer | Fault | None:
        """The scripted outcome of a call.

        Its step is appended to ``used``, and counted if the outcome is an answer.
        """
        for rule in self._rules:
            step = rule.step_for(call)
            if step is None or not rule.matches(call):
                continue
            outcome = step.outcome
            if isinstance(outcome, Fault):
                used.append((rule, step))
                return _delayed(outcome, step)
            if not isinstance(outcome, Answer):
                said = outcome(call)
                if said is None:
                    continue
                outcome = answer_from(said)
                if call.kind not in outcome.kinds:
                    raise ConfigError(
                        f"the function of the rule for {rule.described} returned no answer to a {call.kind}"
                    )
            if call.kind not in _SCRIPTED_KINDS:
                continue
            used.append((rule, step))
            rule.use(step)
            return _delayed(outcome, step)
        return None

    def _note_unscripted(self, call: Call) -> None:
        if not any(each.prompt == call.prompt and each.kind == call.kind for each in self._unscripted):
            self._unscripted.append(call)

    def _write(self, request: MockRequest, spoken: Spoken, answers: list[Answer]) -> Reply:
        return write(spoken, answers, request.number, int(time.time()), self.model)

    def _page(self, method: str, path: str, body: bytes) -> Reply:
        """The embedded server's reply to a question about the server."""
        self._pages.receive(0, method, path, body, 0.0)
        parts = self._pages.poll(0.0)
        return Reply(parts[0].status, parts[0].headers, [part.body for part in parts])


def _delayed(outcome: _Outcome, step: Step) -> _Outcome:
    return replace(outcome, delay_s=outcome.delay_s + step.delay_s) if step.delay_s else outcome


def _take_back(used: list[tuple[Rule, Step]]) -> None:
    for rule, step in reversed(used):
        step.left += 1
        if step not in rule.steps:
            rule.steps.insert(0, step)
