"""One call, as its caller gave it: the one record of it on the way to a request."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from batchclient._core.kinds import Kind
from batchclient._core.requests import Budget
from batchclient._core.settings import BatchingNumbers
from batchclient.types import NOT_GIVEN, NotGiven

if TYPE_CHECKING:
    from pydantic import BaseModel

__all__ = ["PLAIN", "STREAMED", "Call", "Manner", "Messages"]

Messages = Sequence[Mapping[str, Any]]
"""A conversation: messages with a ``role`` and most often a ``content`` each, as OpenAI's API has.
"""


class Manner(NamedTuple):
    """How a call is sent and answered, where it is not a plain call.

    Args:
        to_caller: whether the answer is streamed to the caller.
        verbatim: whether the answer keeps the server's own reply.
        max_attempts: requests that may be sent for the call; ``None``: the retry policy alone
            decides.
        own_label: whether a label of the caller's, such as ``user``, is this call's own: it then
            goes alone with it.
        tells_priority: whether the server is told the priority, whatever the client's settings.
        home: the endpoint of the call's session, where nothing else is known of the session.
        budget: of the call's job.
        numbers: of the call's view: how its calls become batches.
    """

    to_caller: bool = False
    verbatim: bool = False
    max_attempts: int | None = None
    own_label: bool = False
    tells_priority: bool = False
    home: int | None = None
    budget: Budget | None = None
    numbers: BatchingNumbers | None = None


PLAIN = Manner()
STREAMED = Manner(to_caller=True)


class Call(NamedTuple):
    """What one call asks for.

    Args:
        kind: of the answer.
        item: the input: a text or token ids; a conversation; of a score the query and the document;
            of a ranking the query, the documents, and how many are wanted (``None``: all).
        params: the server's fields.
        model: another model than the client's.
        timeout_s: the call's time, seconds; ``None``: no bound.
        priority: its class.
        tenant: whom it is for.
        session: the conversation that it belongs to.
        response_model: what the answer is to be.
        manner: how it is sent and answered.
    """

    kind: Kind
    item: Any
    params: Mapping[str, Any]
    model: str | None = None
    timeout_s: float | NotGiven | None = NOT_GIVEN
    priority: int = 0
    tenant: str | None = None
    session: str | None = None
    response_model: type[BaseModel] | None = None
    manner: Manner = PLAIN

    def __repr__(self) -> str:
        # Tracebacks with values show it: no prompt, and no field of the caller's.
        return f"<Call {self.kind.value}>"
