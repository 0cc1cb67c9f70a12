"""``Price``: what tokens and hours cost, in a currency of the user's."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from batchclient.errors import ConfigError

__all__ = ["Price"]

_HOUR_S = 3600.0
_MILLION = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """The price of a server's work. A price that is absent is 0; one at least is given.

    Args:
        per_hour: of an hour, for all machines together, busy or not.
        per_million_in: of a million tokens of prompts.
        per_million_out: of a million tokens of answers.

    Raises:
        ConfigError: a price is no number of at least 0, or none is given.
    """

    per_hour: float | None = None
    per_million_in: float | None = None
    per_million_out: float | None = None

    def __post_init__(self) -> None:
        given = {field.name: getattr(self, field.name) for field in fields(self)}
        for name, value in given.items():
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
                raise ConfigError(f"{name} is a number of at least 0, not {value!r:.40}", field=name)
        if all(value is None for value in given.values()):
            raise ConfigError(f"a Price has one of {', '.join(given)} at least")

    def cost(self, *, prompt_tokens: int = 0, completion_tokens: int = 0, seconds: float = 0.0) -> float:
        """Return the cost of tokens and of time, in the currency of the prices.

        Args:
            prompt_tokens, completion_tokens: as ``Statistics`` and ``MapProgress`` have them.
            seconds: of work.
        """
        of_hours = (self.per_hour or 0.0) * seconds / _HOUR_S
        of_prompts = (self.per_million_in or 0.0) * prompt_tokens / _MILLION
        return of_hours + of_prompts + (self.per_million_out or 0.0) * completion_tokens / _MILLION
