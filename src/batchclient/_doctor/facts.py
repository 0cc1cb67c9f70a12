"""The facts about a server: each is ``None`` where it is not known."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

__all__ = ["Facts", "Finding", "Queue", "Weight"]

_MANY = 100
"""Requests from which lengths may be judged."""


class Weight(IntEnum):
    """How much a finding matters; the heaviest come first."""

    MINOR = 1
    COSTLY = 2
    BROKEN = 3
    """Calls fail."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A fault of a server, or of the connection to it.

    Args:
        id: a short name, for programs.
        weight: how much the finding matters.
        sentence: the fault.
        setting: the setting to change.
        seen: on which the finding rests.
        of_server: whether the setting is the server's: its owner would change it.
    """

    id: str
    weight: Weight
    sentence: str
    setting: str
    seen: str
    of_server: bool = True


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue at a server, as its metrics page shows it.

    Args:
        running: sequences that run.
        waiting: sequences that wait for room.
        kv_usage: the share of the KV cache in use.
    """

    running: int
    waiting: int
    kv_usage: float


@dataclass(slots=True)
class Facts:
    """The facts about a server.

    Args:
        url: as it may be shown.
        kind: the client's name of the server; ``"openai"``: any other server with OpenAI's API.
        server: name and version; ``None``: no known server.
        models: the names of what is served.
        model: the model of the calls.
        fault: why calls fail; ``None``: they do not.
        proxies: names of headers that proxies add, with their values where these say no more.
        lacks_v1: whether the URL lacks the ``/v1`` at which the server was found.
        needs_model: whether calls must name a model, and none was given.
        max_len: the model's length, prompt and answer together, tokens.
        slots: sequences run at once.
        kv_tokens: the size of the KV cache.
        kv_share: the share of the GPU's memory that the server may use.
        prefix_caching: whether the beginnings of prompts are cached.
        tells_load: whether the metrics page tells the load.
        served: requests finished so far.
        longest: tokens which no request so far has exceeded, prompt and answer together.
        mean_len: tokens of a request on the mean.
        preempted: sequences that lost their place in the KV cache so far.
        queue: a queue of equal numbers on two pages.
        others: sequences of others that ran or waited when the examination began.
        calls: what the server answers: ``"completion"``, ``"chat"`` or ``"embedding"``.
        event_per_token: whether a streamed answer had an event per token, though fewer were asked
            for.
        list_cap: prompts per request.
        refusal: why no list is answered; empty: lists are.
        serial: how often a list was seen to be served one prompt after the other.
    """

    url: str
    kind: str | None = None
    server: str | None = None
    models: tuple[str, ...] = ()
    model: str | None = None
    fault: Finding | None = None
    proxies: tuple[str, ...] = ()
    lacks_v1: bool = False
    needs_model: bool = False
    max_len: int | None = None
    slots: int | None = None
    kv_tokens: int | None = None
    kv_share: float | None = None
    prefix_caching: bool | None = None
    tells_load: bool | None = None
    served: int | None = None
    longest: int | None = None
    mean_len: float | None = None
    preempted: int | None = None
    queue: Queue | None = None
    others: int | None = None
    calls: str | None = None
    event_per_token: bool | None = None
    list_cap: int | None = None
    refusal: str | None = None
    serial: int | None = None

    @property
    def longest_of_many(self) -> int | None:
        """The longest request, where there were enough of them; ``None``: not known."""
        return self.longest if (self.served or 0) >= _MANY else None

    @property
    def held(self) -> int | None:
        """How many sequences of the lengths so far the KV cache holds; ``None``: not known.

        Twice the mean length counts: lengths vary, and a full cache is worse than a free slot.
        llama-server tells the longest sequence in place of the mean.
        """
        if (self.served or 0) < _MANY:
            return None
        if self.kind == "llamacpp" and self.longest and self.slots and self.max_len:
            return self.slots * self.max_len // self.longest
        return int(self.kv_tokens / (2 * self.mean_len)) if self.mean_len and self.kv_tokens else None
