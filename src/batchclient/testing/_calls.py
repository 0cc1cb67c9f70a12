"""The records of a scripted server: requests as they came, and the calls in each request.

Rules:
- A request is one POST with prompts. A call is one prompt of a request. A question about the server
  (models, metrics) is neither.
- Requests and calls are kept in order of arrival, also after an answer with a fault.
- A chat's prompt is the text of its last message; the whole conversation is in ``messages``.
- No repr shows a header, since headers hold keys. A repr shows prompts, shortened: prompts are
  the test's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Call", "MockRequest", "params_of", "shortened"]

_SHOWN_CHARACTERS = 70
_OF_THE_REQUEST = frozenset(
    (
        "model",
        "prompt",
        "messages",
        "input",
        "stream",
        "stream_options",
        "stream_interval",
        "return_token_ids",
        "encoding_format",
    )
)
"""A body's fields beside the call's parameters: content, and the way of the reply."""


def shortened(value: object, longest: int = _SHOWN_CHARACTERS) -> str:
    """A value as a message shows it."""
    shown = repr(value)
    return shown if len(shown) <= longest else f"{shown[: longest - 2]}…{shown[-1]}"


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One prompt that arrived.

    Attributes:
        kind: ``"completion"``, ``"chat"``, ``"embedding"``, ``"score"``, ``"rerank"`` or
            ``"classify"``.
        prompt: the text or the token ids; of a chat the text of its last message; of a score or
            rerank query and document in a row.
        params: the request's other fields, such as ``max_tokens``.
        messages: a chat's conversation; else empty.
        model: the model's name in the request.
        number: the call's place among all calls, from 1.
        request: the number of the call's request, from 1; calls of one request travelled together.
    """

    kind: str
    prompt: str | list[int]
    params: Mapping[str, Any]
    messages: list[dict[str, Any]]
    model: str
    number: int
    request: int

    def __repr__(self) -> str:
        return f"<Call {self.number} in request {self.request}: {self.described}>"

    @property
    def described(self) -> str:
        """In one line: kind, prompt, parameters."""
        params = ", ".join(f"{name}={shortened(value, 40)}" for name, value in self.params.items())
        return f"{self.kind} {shortened(self.prompt)}" + (f" with {params}" if params else "")


@dataclass(slots=True, eq=False)
class MockRequest:
    """One request that arrived.

    Attributes:
        number: the request's place among all requests, from 1.
        path: such as ``/v1/completions``.
        body: the JSON of the body.
        headers: by lower-case name.
        calls: one per prompt.
        status: HTTP status of the reply; ``None``: a fault left the request without a reply.
    """

    number: int
    path: str
    body: dict[str, Any]
    headers: Mapping[str, str]
    calls: list[Call] = field(default_factory=list)
    status: int | None = None

    @property
    def prompts(self) -> list[str | list[int]]:
        """The prompts of the request's calls."""
        return [call.prompt for call in self.calls]

    @property
    def streamed(self) -> bool:
        """Whether the request asked for a stream."""
        return bool(self.body.get("stream"))

    def __repr__(self) -> str:
        return f"<MockRequest {self.number} {self.path} with {len(self.calls)} calls: {self.status}>"


def params_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """A body's parameters."""
    return {name: value for name, value in body.items() if name not in _OF_THE_REQUEST}
