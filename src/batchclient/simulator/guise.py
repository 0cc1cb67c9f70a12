"""The parts of a guise: generating routes, handlers of other paths, words of refusal.

A handler is a function of its server, in the view of ``ServerView``. So a guise knows no server,
and a server is handed its guise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import NamedTuple, Protocol

import pydantic_core

from batchclient.simulator.engine import Engine
from batchclient.simulator.faults import Fault
from batchclient.simulator.profiles import Profile
from batchclient.simulator.replies import Writer
from batchclient.simulator.requests import Body, HttpError, Limits
from batchclient.simulator.statistics import Counters

__all__ = [
    "JSON_HEADERS",
    "Guise",
    "Handler",
    "Headers",
    "Reply",
    "Route",
    "ServerView",
    "Words",
    "json_reply",
    "metrics_reply",
]

Headers = tuple[tuple[str, str], ...]
JSON_HEADERS: Headers = (("content-type", "application/json"),)


class Reply(NamedTuple):
    """A whole reply."""

    status: int
    headers: Headers = ()
    body: bytes = b""


class ServerView(Protocol):
    """A handler's view of its server."""

    model: str
    profile: Profile
    engine: Engine
    counters: Counters
    limits: Limits
    epoch_s: float
    """Unix time at 0."""
    ids: Random
    """The source of random ids."""

    @property
    def most_outstanding(self) -> int | None: ...

    def statistics(self) -> dict[str, object]: ...

    def set_faults(self, faults: Iterable[str | Fault]) -> None: ...


Handler = Callable[[ServerView, bytes], Reply]
"""(server, body) to reply."""
Words = Callable[[HttpError], Reply]
"""A refusal in a server's own words."""


def json_reply(value: object, status: int = 200) -> Reply:
    """Return a reply of JSON."""
    return Reply(status, JSON_HEADERS, pydantic_core.to_json(value))


def metrics_reply(samples: Mapping[str, float]) -> Reply:
    """Return gauges and counters by name, labels included, in Prometheus' text format."""
    text = "".join(f"{name} {float(value)}\n" for name, value in samples.items())
    return Reply(200, (("content-type", "text/plain; version=0.0.4; charset=utf-8"),), text.encode())


@dataclass(frozen=True, slots=True)
class Route:
    """A path that generates.

    Args:
        model: of the bodies.
        writer: of the replies.
        id_prefix: of reply ids.
        done: the end of a stream; empty where a stream just ends.
        opening: the beginning of a stream, before any answer.
        in_completion_order: whether a plain reply's choices stand in the order of completion.
        words: of refusals, where they are not the guise's.
    """

    model: type[Body]
    writer: type[Writer]
    id_prefix: str = "cmpl-"
    done: bytes = b"data: [DONE]\n\n"
    opening: bytes = b""
    in_completion_order: bool = False
    words: Words | None = None


@dataclass(frozen=True, slots=True)
class Guise:
    """A sort of server as a client sees it.

    Args:
        name: usually the dialect's name.
        routes: by path; all are POST.
        words: of refusals and faults.
        handlers: by (method, path): what answers everything else.
        unauthorized: the body of a 401.
        not_found: the body of a 404, for an unknown path.
        wrong_method: the body of a 405, for a known path.
        unguarded: routes that ask for no key.
        any_model: whether a call may name any model.
        busy: the status of the refusal above ``max_queued``.
        max_concurrent: sequences above which the server is busy, unless ``max_queued`` is given;
            ``None``: no bound.
        slots: sequences run at once, unless ``max_num_seqs`` is given; ``None``: the profile's.
        max_body_bytes: the longest body that is read, unless ``SimulatedServer`` is told otherwise.
    """

    name: str
    routes: Mapping[str, Route]
    words: Words
    handlers: Mapping[tuple[str, str], Handler] = field(default_factory=dict)
    unauthorized: bytes = b'{"error":"Unauthorized"}'
    not_found: bytes = b'{"detail":"Not Found"}'
    wrong_method: bytes = b'{"detail":"Method Not Allowed"}'
    unguarded: frozenset[str] = frozenset()
    any_model: bool = False
    busy: int = 503
    max_concurrent: int | None = None
    slots: int | None = None
    max_body_bytes: int = 64 << 20
