"""The parts of a guise: generating routes, pages, words of refusal. All guises are in ``guises``.

A page is a function of its server, in the view of ``Served``. So a guise knows no server, and a
server is handed its guise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from batchclient.simulator.engine import Engine
from batchclient.simulator.faults import Fault
from batchclient.simulator.profiles import Profile
from batchclient.simulator.statistics import Counters
from batchclient.simulator.text import Generation
from batchclient.simulator.validation import CompletionCall, HttpError, Limits, error_body

__all__ = ["BUSY", "Guise", "Page", "Route", "Served", "Writer"]

BUSY = "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."
"""vLLM's words."""


class Writer(Protocol):
    """Writes a request's reply; ``wire.ReplyWriter`` tells the meaning of the methods."""

    reply_id: str

    def choice(self, index: int, generation: Generation) -> str: ...

    def body(self, choices: list[str], completion_tokens: int) -> bytes: ...

    def event(self, index: int, generation: Generation, before: int, after: int) -> bytes: ...

    def usage_event(self, completion_tokens: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Route:
    """A path that generates.

    Args:
        parse: reads and checks a body.
        writer: makes the reply's writer of (call, reply id, Unix time, model).
        id_prefix: of reply ids.
        done: the end of a stream; empty where a stream just ends.
        opening: the beginning of a stream, before any answer.
        in_completion_order: whether a plain reply's choices stand in the order of completion.
    """

    parse: Callable[[bytes, Limits], CompletionCall]
    writer: Callable[[CompletionCall, str, int, str], Writer]
    id_prefix: str = "cmpl-"
    done: bytes = b"data: [DONE]\n\n"
    opening: bytes = b""
    in_completion_order: bool = False


class Served(Protocol):
    """A page's view of its server."""

    guise: Guise
    model: str
    profile: Profile
    engine: Engine
    counters: Counters
    limits: Limits
    epoch_s: float
    """Unix time at 0."""
    ids: Random
    """The source of random ids."""
    pieces_by_id: dict[int, str]
    """By id: tokenized pieces of text, for the way back."""

    @property
    def most_outstanding(self) -> int | None: ...

    def statistics(self) -> dict[str, object]: ...

    def set_faults(self, faults: Iterable[str | Fault]) -> None: ...


Page = Callable[[Served, bytes], tuple[int, tuple[tuple[str, str], ...], bytes]]
"""(server, body) to (status, headers, body)."""


@dataclass(frozen=True, slots=True)
class Guise:
    """A sort of server as a client sees it.

    Args:
        name: usually the dialect's name.
        routes: by path; all are POST.
        pages: by (method, path), before the pages of every guise.
        unauthorized: the body of a 401.
        busy: the refusal above ``max_queued``.
        version: as the server tells.
        owned_by: as in vLLM's ``/v1/models``; ``None``: none of vLLM's pages, only its own.
        max_concurrent: sequences above which the server is busy, unless ``max_queued`` is given;
            ``None``: no bound.
        slots: sequences run at once, unless ``max_num_seqs`` is given; ``None``: the profile's.
        not_found: status and body for an unknown path.
        max_body_bytes: the longest body that is read, unless ``SimulatedServer`` is told otherwise.
        too_large: the refusal of a longer body.
    """

    name: str
    routes: Mapping[str, Route]
    pages: Mapping[tuple[str, str], Page] = field(default_factory=dict)
    unauthorized: bytes = b'{"error":"Unauthorized"}'
    busy: HttpError = field(default_factory=lambda: HttpError(503, error_body(BUSY, "Service Unavailable", 503)))
    version: str = "0.32.0"
    owned_by: str | None = "vllm"
    max_concurrent: int | None = None
    slots: int | None = None
    not_found: tuple[int, bytes] = (404, b'{"detail":"Not Found"}')
    max_body_bytes: int = 64 << 20
    too_large: bytes = error_body("The request's body is too large.", "RequestEntityTooLarge", 413)
