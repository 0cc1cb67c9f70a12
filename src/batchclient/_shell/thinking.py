"""Whether servers keep to ``thinking_tokens``: the reasoning of answers, counted and compared.

A server that is over the budget is named once, in the log and the story, with what helps there.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from batchclient._core.messages import Batch
from batchclient._shell.log import EndpointLog
from batchclient.types import Completion

if TYPE_CHECKING:
    from batchclient.dialects._dialect import Dialect

__all__ = ["ThinkingWatch"]

_ROUNDING = 8
"""Tokens by which estimates, and servers that finish a character, may be over."""


class ThinkingWatch:
    """Counts the reasoning of a runner's calls with a budget for it.

    Args:
        endpoint_log: logs events of endpoints.
        tell: adds a decision to the story, of an endpoint.

    Attributes:
        tokens: of reasoning.
        over: answers whose reasoning was longer than the budget by more than a fifth.
    """

    def __init__(self, endpoint_log: EndpointLog, tell: Callable[[int, str, str], None]) -> None:
        self._log = endpoint_log
        self._tell = tell
        self._told: set[int] = set()
        self.tokens: int = 0
        self.over: int = 0

    def look(self, batch: Batch, answers: list[tuple[int, Completion]], dialect: Dialect) -> None:
        """Count the reasoning of answers, and note it in each one's usage."""
        from batchclient.dialects._thinking import reasoning_tokens  # few calls have a budget

        shape = batch.shape
        budget = shape.thinking_tokens
        assert budget is not None, "others are not looked at"
        most = shape.weight * (1.2 * budget + _ROUNDING)
        for _, answer in answers:
            tokens = reasoning_tokens(answer, shape.opened)
            if tokens is None:
                continue
            if answer.usage is not None:
                answer.usage = replace(answer.usage, reasoning_tokens=tokens)
            self.tokens += tokens
            if tokens > most:
                self.over += 1
                self._tell_once(batch, tokens, dialect)

    def _tell_once(self, batch: Batch, tokens: int, dialect: Dialect) -> None:
        if batch.endpoint in self._told:
            return
        self._told.add(batch.endpoint)
        budget, asked = dialect.budget(batch.shape.kind), batch.shape.thinking_tokens
        advice = "it is of no known sort" if budget is None else budget.advice
        message = "the server ignores thinking_tokens: %d tokens of reasoning, and %d were allowed; %s"
        self._log("thinking_ignored", batch.endpoint, message, tokens, asked, advice, tokens=tokens, allowed=asked)
        self._tell(batch.endpoint, "ignores thinking_tokens", advice)
