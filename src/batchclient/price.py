"""``Price``: what tokens and hours cost, in a currency of the user's."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields

from batchclient._checks import refuses_unknown
from batchclient.errors import ConfigError

__all__ = ["Price"]

_HOUR_S = 3600.0
_MILLION = 1e6


@refuses_unknown
@dataclass(frozen=True, slots=True, kw_only=True)
class Price:
    """The price of a server's work. A price that is absent is 0; one at least is given.

    Args:
        input: of a million tokens of prompts.
        output: of a million tokens of answers.
        per_hour: of an hour, for all machines together, busy or not.

    Raises:
        ConfigError: a price is no number of at least 0, or none is given.
    """

    input: float | None = None
    output: float | None = None
    per_hour: float | None = None

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
        of_prompts = (self.input or 0.0) * prompt_tokens / _MILLION
        return of_hours + of_prompts + (self.output or 0.0) * completion_tokens / _MILLION
