"""Answers that do not fit ``response_model``: their calls go again, by ``retry_invalid``.

Rules:
- An answer that was cut off is final: another one would be cut off, too.
- A call that goes again is a new request of its row: the row's time goes on.
- The answers are counted, the last one of a row included, and their tokens are wasted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from batchclient.errors import AnswerInvalid, ConfigError

if TYPE_CHECKING:
    from batchclient._core.messages import Request
    from batchclient._maps.row import Row

__all__ = ["Invalid", "check_retries", "tokens_of"]

_MOST_RETRIES = 100


def check_retries(retry_invalid: object, response_model: object, params: Mapping[str, Any]) -> int:
    """Check how often a map asks again.

    Raises:
        ConfigError: the number is none; or there is no form to fit; or every answer to a prompt
            would be the same.
    """
    if type(retry_invalid) is not int or not 0 <= retry_invalid <= _MOST_RETRIES:
        message = f"retry_invalid is a whole number from 0 to {_MOST_RETRIES}, not {retry_invalid!r:.40}"
        raise ConfigError(message, field="retry_invalid")
    if not retry_invalid:
        return 0
    if response_model is None:
        raise ConfigError("retry_invalid is for answers that have to fit a response_model", field="retry_invalid")
    extra = params.get("extra_body")
    given = {**extra, **params} if isinstance(extra, Mapping) else params
    same = "temperature=0" if given.get("temperature") == 0 else "seed" if given.get("seed") is not None else None
    if same is not None:
        raise ConfigError(
            f"retry_invalid: with {same} every answer to a prompt is the same; leave one of the two out",
            field="retry_invalid",
        )
    return retry_invalid


class Invalid:
    """The answers of one map that do not fit.

    Args:
        retries: how often a row is asked again, at most.

    Attributes:
        count: of the answers.
    """

    __slots__ = ("_retries", "count")

    def __init__(self, retries: int) -> None:
        self._retries = retries
        self.count: int = 0

    def again(self, row: Row, error: AnswerInvalid) -> Request | None:
        """Count an answer; return the request that asks anew, if the row may be asked again."""
        self.count += 1
        if row.retries >= self._retries or not error.retryable or row.request is None:
            return None
        row.retries += 1
        return row.request.anew()


def tokens_of(error: AnswerInvalid) -> int:
    """Return the prompt and output tokens of the answer, by the server's count."""
    answer = error.completion
    return answer.usage.total_tokens if answer.usage is not None else answer.counted_tokens or 0
