"""The facts that a visit brings: each is ``None`` where nobody has told or seen it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

__all__ = ["Facts", "Fault", "Lists", "Queue", "Weight"]

_MANY = 100
"""Requests from which lengths may be judged."""


class Weight(IntEnum):
    """How much a finding matters; the heaviest come first."""

    MINOR = 1
    COSTLY = 2
    BROKEN = 3
    """Calls fail."""


class Lists(IntEnum):
    """How a server takes a list of prompts."""

    REFUSED = 0
    SOME_ANSWERED = 1
    """Some prompts of a list have no answer."""
    OVER_BOUND = 2
    """The server's queue takes fewer prompts than the list has: 429 or 503, also when idle."""
    PLAIN = 3
    """A list is answered, but not as a stream."""
    TAKEN = 4
    UNTRIED = 5
    """Such a server takes none, and a list may kill it."""


@dataclass(frozen=True, slots=True)
class Fault:
    """Why calls fail.

    Args:
        id: a short name, for programs.
        sentence: the reason.
        setting: the way out.
        seen: on which the fault rests.
    """

    id: str
    sentence: str
    setting: str
    seen: str


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


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts about a server.

    Args:
        url: as it may be shown.
        kind: the name of the server's dialect; ``"openai"``: any other server with OpenAI's API.
        server: name and version; ``None``: no known server.
        models: the names of the base models.
        model: the model of the trials.
        fault: why calls fail; ``None``: they do not.
        lacks_v1: whether the URL lacks the ``/v1`` at which the server was found.
        lacks_own_route: whether the server's own route for completions is missing, and OpenAI's is
            there.
        max_len: the model's length, prompt and answer together, tokens.
        slots: sequences run at once.
        kv_tokens: the size of the KV cache.
        kv_share: the share of the GPU's memory that the server may use.
        prefix_caching: whether the beginnings of prompts are cached.
        list_cap: prompts per request.
        tells_load: whether the metrics page tells the load.
        served: requests finished so far.
        longest: tokens which no request so far has exceeded, prompt and answer together.
        mean_len: tokens of a request on the mean.
        preempted: sequences that lost their place in the KV cache so far.
        queue: a queue of equal numbers on two pages.
        others: sequences of others that ran or waited when the visit began.
        is_crowded: whether a small call had no answer in time while others used the server.
        proxies: names of headers that proxies add, with their values where these say no more.
        tls_inside: whether the way to a private address is encrypted.
        streams: whether a streamed call was answered as a stream.
        events: events of the streamed call.
        tokens: tokens of the streamed call.
        lists: how a list of prompts was taken.
        list_size: prompts in the list.
        refusal: the server's words about the list, or why none was tried.
        serial: how often a list was seen to be served one prompt after the other.
        held_back: whether streams came in one piece at their end.
        without_completions: the kind of call that the server has instead of completions.
        core_share: the share of a core that this process gets.
    """

    url: str
    kind: str | None = None
    server: str | None = None
    models: tuple[str, ...] = ()
    model: str | None = None
    fault: Fault | None = None
    lacks_v1: bool = False
    lacks_own_route: bool = False
    max_len: int | None = None
    slots: int | None = None
    kv_tokens: int | None = None
    kv_share: float | None = None
    prefix_caching: bool | None = None
    list_cap: int | None = None
    tells_load: bool | None = None
    served: int | None = None
    longest: int | None = None
    mean_len: float | None = None
    preempted: int | None = None
    queue: Queue | None = None
    others: int | None = None
    is_crowded: bool = False
    proxies: tuple[str, ...] = ()
    tls_inside: bool | None = None
    streams: bool | None = None
    events: int | None = None
    tokens: int | None = None
    lists: Lists | None = None
    list_size: int | None = None
    refusal: str = ""
    serial: int | None = None
    held_back: bool | None = None
    without_completions: str | None = None
    core_share: float | None = None

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
