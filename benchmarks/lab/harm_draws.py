"""Servers of strange manners, and work for them, drawn at random by a number.

The same number always gives the same draw. A draw has one to three *manners*: of 26 draws in a row
each has another first manner, so each manner is in as many draws as another. The other numbers of a
server (slots, the speed of a step, an API process that everything passes one after another) are
drawn evenly or, where the code says *log*, log-uniformly.

A *chain* is a list of calls of which each is made once the one before was answered: the turns of a
conversation. Other work has chains of one call. There are four kinds of work: all at once, as a
stream, in conversations, and with deadlines. Some is given as rows of a map: rows, unlike single
calls, wait for a server that has lost its model or its keys (``gone``).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

__all__ = ["MANNERS", "OTHER_MODEL", "REFUSED_FOR_GOOD", "Call", "Chain", "Draw", "draw", "tokens_of"]

MANNERS = {
    "conns": "so many requests at once, more are 503",
    "seqs": "so many sequences, more are 429",
    "queue": "a queue of 4 to 64, more are 503",
    "rate": "requests a second, a bucket",
    "tokens": "tokens a second, a bucket",
    "serial": "a list's prompts are served one after another",
    "listcap": "lists of more than 4, 8 or 32 are 422",
    "dead": "a dead replica behind a router (10 to 50 % 502)",
    "model": "one of two models is always refused (429)",
    "own": "1 to 10 % of the calls have a 429 of their own",
    "stall": "all stands still for 3 to 40 s",
    "restart": "a restart: all is lost, no connection for 2 to 20 s",
    "slowstart": "slow in its first seconds",
    "swing": "steps that swing",
    "hidden": "a hidden queue behind 4 to 64 requests",
    "lose": "1 or 5 % of the connections are lost",
    "errbody": "an error in the body of a 200",
    "date": "requests a second, `Retry-After` as a date",
    "minute": "a quota a minute",
    "maintenance": "a maintenance page for 2 to 20 s",
    "length": "1 to 10 % of the prompts are too long",
    "hundredth": "every 100th connection is closed",
    "replicas": "two replicas of unlike speed",
    "gone": "404 or 401 for 1 to 8 s amid the work",
    "forbidden": "403 by words of the prompt (1 to 10 %)",
    "memory": "memory runs out (500)",
}
OTHER_MODEL = "other"
REFUSED_FOR_GOOD = ("model", "own", "length", "forbidden")
"""Manners that refuse some calls always."""
_NAMES = list(MANNERS)
_WORK = ("at once", "at once", "stream", "conversations", "deadlines")
_MOST_SENT = 64
"""Sequences that are under way beside each other, where a share of what a server can do is drawn."""


@dataclass(slots=True, eq=False)
class Call:
    """One call and, once a client has run, what became of it.

    Args:
        text: its prompt; each is another.
        tokens: of its answer.
        model: ``OTHER_MODEL``, or the usual one.
        always: the manner that always refuses it; empty: none.
        timeout_s: from the moment in which it is made; ``None``: no bound.
        pause_s: before it is made, after the answer to the one before.
        tries: how often it was asked; the first and last time of that.
    """

    text: str
    tokens: int
    model: str
    always: str = ""
    timeout_s: float | None = None
    pause_s: float = 0.0
    ended_at: float | None = None
    answered: bool = False
    why: str = ""
    tries: int = 0
    first_try_at: float = 0.0
    last_try_at: float = 0.0


@dataclass(slots=True, eq=False)
class Chain:
    """Calls of which each waits for the one before; ``at``: when the first is made."""

    at: float
    calls: list[Call]

    @property
    def good(self) -> bool:
        """Whether the server would ever answer all of it."""
        return not any(call.always for call in self.calls)

    @property
    def answered(self) -> bool:
        """Whether all of it was answered."""
        return all(call.answered for call in self.calls)

    @property
    def ended_at(self) -> float | None:
        """When its last call ended; ``None``: it did not come so far."""
        return self.calls[-1].ended_at


@dataclass(slots=True)
class Draw:
    """A server and its work.

    Args:
        number: what it was drawn by.
        count: calls, in all.
        manners: by name, the drawn numbers.
        slots: sequences that run at once.
        half: the number of sequences that doubles a step's time.
        step_s, prefill_s, api_s: of a token, of a prompt, of a request in the API process.
        says: whether refusals have a ``Retry-After``.
        has_page: whether there is a metrics page. Such a server is reached directly, and hands out
            a streamed list's answers as they end; others' replies come whole.
        mean_tokens: of an answer; ``max_tokens``: asked for.
        work: its kind.
        as_rows: whether the work is given as rows of a map.
    """

    number: int
    count: int
    slots: int
    half: float
    step_s: float
    prefill_s: float
    api_s: float
    says: bool
    has_page: bool
    mean_tokens: int
    work: str
    as_rows: bool
    manners: dict[str, Any] = field(default_factory=dict)
    chains: list[Chain] = field(default_factory=list)

    @property
    def max_tokens(self) -> int:
        """What the calls ask for."""
        return 1 if self.mean_tokens == 1 else 4 * self.mean_tokens

    @property
    def lone_s(self) -> float:
        """The time of a call, about."""
        return self.mean_tokens * self.step_s * 2 + self.prefill_s

    @property
    def calls_per_s(self) -> float:
        """What the server can do, about."""
        return min(self.slots, _MOST_SENT) / self.lone_s

    @property
    def at_once_s(self) -> float:
        """How long all takes, if it is made at once, about."""
        return self.count / self.calls_per_s

    def __str__(self) -> str:
        manners = {name: _shown(value) for name, value in self.manners.items()}
        more = [name for name, is_so in (("rows", self.as_rows), ("page", self.has_page)) if is_so]
        work = f"{self.count} calls of {self.mean_tokens} tokens, {', '.join([self.work, *more])}"
        last_at = self.chains[-1].at
        if last_at:
            work += f", to {last_at:.0f} s"
        return f"{manners}, {self.slots} slots, lone {self.lone_s:.2f} s, {work}"


def tokens_of(text: str) -> int:
    """The tokens of a prompt, as such a server counts them."""
    return len(text) // 4


def draw(number: int, only: tuple[str, ...] = ()) -> Draw:
    """Return a draw; ``only``: its manners, instead of drawn ones."""
    rng = random.Random(f"harm/{number}")
    log = _log(rng)
    drawn = Draw(
        number=number,
        count=rng.choice([100, 300, 1000, 2000]),
        mean_tokens=rng.choice([1, 4, 16, 64, 200]),
        slots=int(log(16, 512)),
        half=log(32, 512),
        step_s=log(0.005, 0.03),
        api_s=log(0.0003, 0.004),
        prefill_s=log(0.005, 0.1),
        says=rng.random() < 0.5,
        has_page=rng.random() < 0.3,
        work=rng.choice(_WORK),
        as_rows=rng.random() < 0.5,
    )
    for name in only or _manners_of(number, rng):
        drawn.manners[name] = _RANGES[name](drawn, rng, log)
    # A page is a server's own, and such a server runs a list's prompts side by side.
    drawn.has_page = drawn.has_page and "serial" not in drawn.manners
    if drawn.work == "conversations":
        drawn.as_rows = False
    if "gone" in drawn.manners:
        drawn.as_rows = True
        drawn.work = "stream" if drawn.work == "conversations" else drawn.work
    drawn.chains = _chains(drawn, rng, log)
    return drawn


def _manners_of(number: int, rng: random.Random) -> list[str]:
    block, place = divmod(number, len(_NAMES))
    first = random.Random(f"harm/block/{block}").sample(_NAMES, len(_NAMES))[place]
    others = [name for name in _NAMES if name != first]
    return [first, *rng.sample(others, rng.choice([0, 0, 1, 2]))]


_Log = Callable[[float, float], float]


def _log(rng: random.Random) -> _Log:
    return lambda low, high: math.exp(rng.uniform(math.log(low), math.log(high)))


def _span(low_s: float, high_s: float) -> Callable[[Draw, random.Random, _Log], tuple[float, float]]:
    """From 1 to 10 s on, and in any case amid the work; for so long."""

    def span(drawn: Draw, rng: random.Random, log: _Log) -> tuple[float, float]:
        begins = min(log(1, 10), rng.uniform(0.1, 0.8) * drawn.at_once_s)
        return begins, begins + log(low_s, high_s)

    return span


def _words_of_length(drawn: Draw, rng: random.Random, log: _Log) -> tuple[float, int, str]:
    return rng.choice([0.01, 0.1]), drawn.max_tokens + int(log(64, 1024)), rng.choice(["length", "room", "body"])


_RANGES: dict[str, Callable[[Draw, random.Random, _Log], Any]] = {
    "conns": lambda drawn, rng, log: int(log(4, 64)),
    "seqs": lambda drawn, rng, log: int(log(8, 256)),
    "queue": lambda drawn, rng, log: int(log(4, 64)),
    "rate": lambda drawn, rng, log: log(0.1, 0.8) * drawn.calls_per_s,
    "tokens": lambda drawn, rng, log: max(
        4.0 * drawn.mean_tokens, log(0.2, 0.8) * drawn.calls_per_s * drawn.mean_tokens
    ),
    "serial": lambda drawn, rng, log: 1,
    "listcap": lambda drawn, rng, log: rng.choice([4, 8, 32]),
    "dead": lambda drawn, rng, log: rng.choice([0.1, 0.3, 0.5]),
    "model": lambda drawn, rng, log: rng.choice([0.01, 0.1]),
    "own": lambda drawn, rng, log: rng.choice([0.01, 0.1]),
    "stall": _span(3, 40),
    "restart": _span(2, 20),
    "slowstart": lambda drawn, rng, log: log(5, 30),
    "swing": lambda drawn, rng, log: log(1, 20),
    "hidden": lambda drawn, rng, log: int(log(4, 64)),
    "lose": lambda drawn, rng, log: rng.choice([0.01, 0.05]),
    # By chance, or where there are more sequences than so many.
    "errbody": lambda drawn, rng, log: (rng.choice([0.01, 0.1, 0.0]), int(log(8, 256))),
    "date": lambda drawn, rng, log: log(0.1, 0.8) * drawn.calls_per_s,
    # Calls a minute, and how far the first minute has gone.
    "minute": lambda drawn, rng, log: (int(max(1, log(0.2, 0.8) * drawn.calls_per_s * 60)), rng.uniform(0, 60)),
    # The status: 503, or a page in the place of an answer.
    "maintenance": lambda drawn, rng, log: (*_span(2, 20)(drawn, rng, log), rng.choice([503, 200])),
    # The share of long prompts, the model's length, and how the server says so.
    "length": _words_of_length,
    "hundredth": lambda drawn, rng, log: 100,
    # The slower one's time over the other's.
    "replicas": lambda drawn, rng, log: log(2, 8),
    "gone": lambda drawn, rng, log: (*_span(1, 8)(drawn, rng, log), rng.choice([404, 401])),
    "forbidden": lambda drawn, rng, log: rng.choice([0.01, 0.1]),
    # Tokens that fit, and whether all that run end, or the newcomer alone.
    "memory": lambda drawn, rng, log: (log(8, 128) * drawn.mean_tokens, rng.choice([True, False])),
}
"""By manner: its numbers."""


def _chains(drawn: Draw, rng: random.Random, log: _Log) -> list[Chain]:
    left = drawn.count
    is_stream = drawn.work == "stream" or (drawn.work == "deadlines" and rng.random() < 0.5)
    per_s = log(0.3, 0.8) * drawn.calls_per_s if is_stream else math.inf
    pause_s = rng.choice([0.0, 1.0]) if drawn.work == "conversations" else 0.0
    patience_s = None
    if drawn.work == "deadlines":
        patience_s = 1 + 4 * drawn.lone_s + log(0.3, 1.5) * (10 * drawn.lone_s if is_stream else drawn.at_once_s)
    chains: list[Chain] = []
    at = 0.0
    while left > 0:
        turns = min(left, rng.randint(2, 12)) if drawn.work == "conversations" else 1
        left -= turns
        chain = _chain(drawn, rng, len(chains), turns, patience_s)
        for call in chain.calls[1:]:
            call.pause_s = rng.expovariate(1 / pause_s) if pause_s else 0.0
        chain.at = at
        chains.append(chain)
        if is_stream:
            at += rng.expovariate(per_s)
    return chains


def _chain(drawn: Draw, rng: random.Random, number: int, turns: int, timeout_s: float | None) -> Chain:
    manners, mean = drawn.manners, drawn.mean_tokens
    refused_by = next(
        (name for name in REFUSED_FOR_GOOD if name in manners and rng.random() < _share(manners[name])), ""
    )
    model = OTHER_MODEL if refused_by == "model" else "m"
    calls: list[Call] = []
    text = f"{number}:"
    for turn in range(turns):
        is_last = turn == turns - 1
        always = refused_by if is_last or refused_by == "model" else ""
        text += f" turn {turn}, please."
        if always == "forbidden":
            text += " DROP TABLE rows;"
        if "length" in manners:
            room = manners["length"][1] - drawn.max_tokens
            tokens = room * (
                rng.uniform(1.05, 2) if always == "length" else rng.uniform(0.05, 0.95) * (turn + 1) / turns
            )
            text = text.ljust(4 * int(tokens + 1), ".") if always == "length" else text.ljust(4 * int(tokens), ".")
        answer = mean if mean == 1 else max(1, min(4 * mean, int(rng.lognormvariate(math.log(mean) - 0.18, 0.6))))
        calls.append(Call(text, answer, model, always, timeout_s))
    return Chain(0.0, calls)


def _share(value: Any) -> float:
    return float(value[0] if isinstance(value, tuple) else value)


def _shown(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_shown, value))
    return round(value, 2) if isinstance(value, float) else value
