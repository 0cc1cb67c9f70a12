"""What a runner knows of its servers: the dialect that each endpoint is spoken to in, and what was found out about it.

Rules:
- Until a server is known it is spoken to in the dialect that is taken for granted. Once it is known, its own speaks from the next batch on; what is
  under way goes on as it was encoded.
- A dialect stays while its server is of the same sort: it may have learnt something.
- What a list may mix holds only where servers of one sort say so: a list is bound to an endpoint after its calls have come together.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from batchclient._core.kinds import Kind
from batchclient._core.messages import Batch, Failure
from batchclient._shell.dialect_choice import DialectChoice

if TYPE_CHECKING:
    from batchclient.dialects import OwnFields
    from batchclient.dialects._fingerprints import ServerFacts

__all__ = ["Servers"]

_log = logging.getLogger("batchclient")


class Servers:
    """Of one runner.

    Args:
        choice: which dialect an endpoint is spoken to in.
        count: how many endpoints there are at first; their ids begin at 0.
        on_own_fields: told which fields prompts of one list may have their own values of, as far as every server is known to take them so.
    """

    def __init__(
        self, choice: DialectChoice, count: int, on_own_fields: Callable[[OwnFields | None], None] | None
    ) -> None:
        self._choice = choice
        self._on_own_fields = on_own_fields
        self.dialects = {number: choice.make() for number in range(count)}
        """By endpoint."""
        self._facts: dict[int, ServerFacts] = {}
        self._tell_own_fields()

    def add(self, endpoint: int) -> None:
        """Another is served."""
        self.dialects[endpoint] = self._choice.make()
        self._tell_own_fields()

    def remove(self, endpoint: int) -> None:
        """One is served no more."""
        if self.dialects.pop(endpoint, None) is not None:
            self._tell_own_fields()
        self._facts.pop(endpoint, None)

    def learn(self, endpoint: int, facts: ServerFacts) -> Mapping[Kind, int]:
        """It was found out which server an endpoint is; return the caps that hold there."""
        dialect, caps = self._choice.of(facts)
        before = self._facts.get(endpoint)
        if (before.known if before is not None else None) != facts.known:
            self.dialects[endpoint] = dialect
            self._tell_own_fields()
        if before != facts:
            self._facts[endpoint] = facts
            _log.info("endpoint %d is %s", endpoint, facts)
        return caps

    def hide(self, secrets: tuple[str, ...]) -> None:
        """Cut these out of every server's messages, too."""
        for dialect in self.dialects.values():
            dialect.hide(secrets)

    @property
    def mixes_queries(self) -> bool:
        """Whether every server, as far as it is known, scores pairs with different queries in one request."""
        forms = [getattr(dialect, "forms", {}).get(Kind.SCORE) for dialect in self.dialects.values()]
        return all(getattr(form, "mixes_queries", False) for form in forms)

    def explain(self, batch: Batch, failure: Failure) -> Failure:
        """Say in a 404 which models the server has, where that is known, and in a 401 that no key was given."""
        if failure.status == 401:
            return replace(failure, message=failure.message + self._choice.key_hint)
        from batchclient._shell.model_question import name_models

        return name_models(failure, batch.shape.model, self._facts.get(batch.endpoint), self._choice.secrets)

    def _tell_own_fields(self) -> None:
        """Only what servers of one sort say holds for all: a list is bound to an endpoint after its calls have come together."""
        if self._on_own_fields is not None:
            dialects = list(self.dialects.values())
            alike = len({type(dialect) for dialect in dialects}) == 1
            self._on_own_fields(dialects[0].own_fields if alike else None)
