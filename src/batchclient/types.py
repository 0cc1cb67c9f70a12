"""What a caller gets back: typed, and free of any HTTP or server class.

These are made once per call, so they are slotted but not frozen: freezing costs 2 µs a call. No two callers share one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Choice", "Completion", "MapResult", "Usage"]


@dataclass(slots=True)
class Usage:
    """Tokens of one call, not of the batch it travelled in."""

    prompt_tokens: int
    completion_tokens: int

    @property
    def total_tokens(self) -> int:
        """Prompt and completion tokens together."""
        return self.prompt_tokens + self.completion_tokens


@dataclass(slots=True)
class Choice:
    """One of the ``n`` texts of a call.

    Args:
        index: 0 to ``n - 1``, within this call.
        text: the generated text.
        finish_reason: ``"stop"``, ``"length"`` or what else the server says; never ``"abort"``.
        logprobs: the server's own object (lists of one entry per token), joined over all events.
        token_ids: the generated ids, if ``return_token_ids`` was asked for.
        extra: the choice's other fields, as the server sent them.
    """

    index: int
    text: str
    finish_reason: str | None = None
    logprobs: Mapping[str, Any] | None = None
    token_ids: tuple[int, ...] | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)


@dataclass(slots=True)
class Completion:
    """The answer to one call.

    Args:
        choices: ``n`` choices in index order.
        usage: this call's tokens; ``None`` if the server did not say.
        attempts: requests sent that contained this call; 1 when all went well.
        time_to_first_token_s: from sending the answering request to its first token; ``None`` for plain replies.
        extra: the reply's other fields (``id``, ``model``, ``created``, …), equal for all calls of a batch.
    """

    choices: tuple[Choice, ...]
    usage: Usage | None = None
    attempts: int = 1
    time_to_first_token_s: float | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The first choice's text."""
        return self.choices[0].text

    @property
    def finish_reason(self) -> str | None:
        """The first choice's reason to stop."""
        return self.choices[0].finish_reason


@dataclass(slots=True)
class MapResult:
    """One row of a map.

    Args:
        id: the document's own ``id``, else a hash of its prompt and parameters with an occurrence number.
        index: the document's place in the input, from 0.
        document: the document itself.
        completion: the answer, or ``None`` if the row failed.
        error: why the row failed, or ``None``.
    """

    id: str
    index: int
    document: Any = field(repr=False)
    completion: Completion | None = None
    error: Exception | None = None
