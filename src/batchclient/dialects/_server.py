"""What all dialects are made of: a name, what lists the server takes, and a *form* for each kind of call that it serves.

A form writes one kind of call as one sort of server takes it, and reads the reply. Dialects share forms: most servers write
completions as OpenAI does.

Fields of ours that a server refuses are left out of what its endpoint is sent from then on, for the dialect's life.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from batchclient._core.kinds import Kind
from batchclient._core.messages import Batch, Failure, FailureKind, RateWindow
from batchclient._core.requests import Learnt, Shape
from batchclient.dialects._dialect import Decoder, OwnFields
from batchclient.dialects._rate_limits import read_rate_limits
from batchclient.dialects._replies import error_in, read_retry_after, redact
from batchclient.dialects._status import failure_of
from batchclient.dialects._unknown_fields import OUR_FIELDS, refused_fields
from batchclient.dialects.completions import ANY_NUMBER, events_per_choice
from batchclient.errors import BadRequest, NotFound
from batchclient.transport import WireRequest

__all__ = ["Form", "ServerDialect"]

_NO_ROUTE = (404, 405)


class Form(Protocol):
    """How one sort of server takes one kind of call."""

    def encode(self, batch: Batch) -> WireRequest | Failure:
        """Write the batch's request; or say why this server cannot be asked so."""
        ...

    def decoder(self, batch: Batch, secrets: tuple[str, ...], content_type: str) -> Decoder:
        """Return a fresh decoder for the batch's reply, which may not be of the type that was asked for."""
        ...


class ServerDialect:
    """One sort of server. Subclasses set the class attributes.

    Args:
        secrets: keys to cut out of the server's messages.
        assumed: it is only taken for such a server, until it is known which it is: what it says of usage is believed once it is seen to
            tell the calls of a list apart.
    """

    name: str
    is_known_server: bool = True
    caps: Mapping[Kind, int] = {}
    length_reach: int | None = None
    own_fields: OwnFields | None = None
    forms: Mapping[Kind, Form]
    without: frozenset[str] = frozenset()
    """Fields that vLLM has and this sort of server does not."""
    list_routes: frozenset[Kind] = frozenset()
    """The kinds whose lists have a route of their own, which an older server lacks."""

    def __init__(self, secrets: tuple[str, ...] = (), *, assumed: bool = False) -> None:
        self._secrets = secrets
        self._without = self.without
        self._learnt = Learnt(usage_is_own=not assumed)
        if assumed:
            self.is_known_server = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    def hide(self, secrets: tuple[str, ...]) -> None:
        """Cut these out of messages, too."""
        self._secrets += secrets

    def encode(self, batch: Batch) -> WireRequest | Failure:
        """Write the batch's request."""
        form = self.forms.get(batch.shape.kind)
        if form is None:
            message = f"a {self.name} server has no {batch.shape.kind.value} calls"
            return Failure(FailureKind.UNSUPPORTED, BadRequest, message)
        if batch.shape.is_mixed and self.own_fields is None:
            # Its endpoint joined, or became known, after the list was queued.
            message = f"a {self.name} server takes no parameters per prompt"
            return Failure(FailureKind.MIX_REFUSED, BadRequest, message)
        batch.wire.without, batch.wire.learnt = (
            self._without | OUR_FIELDS if batch.bare else self._without,
            self._learnt,
        )
        batch.wire.to_list_route = len(batch.requests) > 1 and batch.shape.kind in self.list_routes
        return form.encode(batch)

    def decoder(self, batch: Batch, content_type: str = "") -> Decoder:
        """Return a fresh decoder for the batch's reply."""
        return self.forms[batch.shape.kind].decoder(batch, self._secrets, content_type)

    def events_per_choice(self, shape: Shape) -> int:
        """How many events a streamed choice sends at most, where the server heeds how they are asked for."""
        return ANY_NUMBER if "stream_interval" in self._without else events_per_choice(shape)

    def failure(self, batch: Batch, status: int, headers: Mapping[str, str], body: bytes, wall_time: float) -> Failure:
        """Say what an error reply means."""
        message, code = error_in(body)
        prompts = [request.prompt for request in batch.requests]
        clean = redact(message, prompts, self._secrets)
        if status == 404 and clean == "Not Found" and batch.shape.kind is not Kind.COMPLETION:
            clean = f"Not Found; the server has no {batch.shape.kind.value} calls, or base_url does not end in /v1"
        if code is not None:
            code = redact(code, prompts, self._secrets)
        refused = refused_fields(batch, status, clean)
        if refused:
            self._without |= refused
            return Failure(FailureKind.FIELDS_REFUSED, BadRequest, f"{status}: {clean}", status, code=code)
        if status in _NO_ROUTE and len(prompts) > 1 and batch.shape.kind in self.list_routes and "model" not in clean:
            # Were it the model that is missing, each call would hear so again by itself.
            return Failure(FailureKind.LIST_REFUSED, NotFound, f"{status}: {clean}", status, code=code)
        return failure_of(
            status,
            clean,
            code,
            streamed=batch.streamed,
            packed=batch.packed,
            retry_after_s=read_retry_after(headers, wall_time),
        )

    @staticmethod
    def rate_limits(headers: Mapping[str, str]) -> tuple[RateWindow, ...]:
        """Read OpenAI's and the IETF's headers: these servers send none, a gateway before them may."""
        return read_rate_limits(headers)
