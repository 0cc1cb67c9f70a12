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

import functools
import math
import random
from dataclasses import dataclass, field
from typing import Any

__all__ = ["FORBIDDEN", "MANNERS", "OTHER_MODEL", "REFUSED_FOR_GOOD", "Call", "Chain", "Draw", "draw", "tokens_of"]

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
FORBIDDEN = "DROP TABLE rows;"
"""The words that a firewall refuses."""
TOKEN_LENGTH = 4
"""Characters of a prompt's token."""
REFUSED_FOR_GOOD = ("model", "own", "length", "forbidden")
"""Manners that refuse some calls always."""
_NAMES = list(MANNERS)
_WORK = ("at once", "at once", "stream", "conversations", "deadlines")
_FOR_ROWS = ("at once", "stream")
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
    return len(text) // TOKEN_LENGTH


def draw(number: int, only: tuple[str, ...] = ()) -> Draw:
    """Return a draw; ``only``: its manners, instead of drawn ones."""
    dice = _Dice(f"harm/{number}")
    drawn = Draw(
        number=number,
        count=dice.choice([100, 300, 1000, 2000]),
        mean_tokens=dice.choice([1, 4, 16, 64, 200]),
        slots=int(dice.log(16, 512)),
        half=dice.log(32, 512),
        step_s=dice.log(0.005, 0.03),
        api_s=dice.log(0.0003, 0.004),
        prefill_s=dice.log(0.005, 0.1),
        says=dice.random() < 0.5,
        has_page=dice.random() < 0.3,
        work=dice.choice(_WORK),
        as_rows=dice.random() < 0.5,
    )
    block, place = divmod(number, len(_NAMES))
    for name in only or _block(block)[place]:
        drawn.manners[name] = _numbers(name, drawn, dice)
    # A page is a server's own, and such a server runs a list's prompts side by side.
    drawn.has_page = drawn.has_page and "serial" not in drawn.manners
    if "gone" in drawn.manners and drawn.work not in _FOR_ROWS:
        drawn.work = "stream"
    drawn.as_rows = drawn.work in _FOR_ROWS and (drawn.as_rows or "gone" in drawn.manners)
    drawn.chains = _chains(drawn, dice)
    return drawn


@functools.cache
def _block(number: int) -> list[list[str]]:
    """The manners of as many draws as there are manners: each is once the first.

    Each is beside another first once at most.
    """
    dice = _Dice(f"harm/block/{number}")
    others = dice.sample(_NAMES, len(_NAMES))
    drawn = []
    for first in dice.sample(_NAMES, len(_NAMES)):
        more = [name for name in others if name != first][: dice.choice([0, 0, 1, 2])]
        others = [name for name in others if name not in more]
        drawn.append([first, *more])
    return drawn


class _Dice(random.Random):
    def log(self, low: float, high: float) -> float:
        """Between the two, log-uniformly."""
        return math.exp(self.uniform(math.log(low), math.log(high)))


def _numbers(name: str, drawn: Draw, dice: _Dice) -> Any:
    """A manner's numbers."""
    match name:
        case "conns" | "queue" | "hidden":
            return int(dice.log(4, 64))
        case "seqs":
            return int(dice.log(8, 256))
        case "rate" | "date":
            return dice.log(0.1, 0.8) * drawn.calls_per_s
        case "tokens":
            return max(4.0 * drawn.mean_tokens, dice.log(0.2, 0.8) * drawn.calls_per_s * drawn.mean_tokens)
        case "minute":
            # So many calls, and how far the first minute has gone.
            return int(max(1, dice.log(0.2, 0.8) * drawn.calls_per_s * 60)), dice.uniform(0, 60)
        case "serial":
            return True
        case "listcap":
            return dice.choice([4, 8, 32])
        case "dead":
            return dice.choice([0.1, 0.3, 0.5])
        case "model" | "own" | "forbidden":
            return dice.choice([0.01, 0.1])
        case "length":
            # The share of long prompts, the model's length, and what the server says of it.
            length = drawn.max_tokens + int(dice.log(64, 1024))
            return dice.choice([0.01, 0.1]), length, dice.choice(["length", "room", "body"])
        case "lose":
            return dice.choice([0.01, 0.05])
        case "hundredth":
            return 100
        case "errbody":
            # By chance; or, if that is 0, where there are more sequences than so many.
            return dice.choice([0.01, 0.1, 0.0]), int(dice.log(8, 256))
        case "memory":
            # So many tokens fit; whether all that run end, or the newcomer alone.
            return dice.log(8, 128) * drawn.mean_tokens, dice.choice([True, False])
        case "slowstart":
            return dice.log(5, 30)
        case "swing":
            return dice.log(1, 20)
        case "replicas":
            # The slower one's time over the other's.
            return dice.log(2, 8)
        case "stall":
            return _span(drawn, dice, 3, 40)
        case "restart":
            return _span(drawn, dice, 2, 20)
        case "maintenance":
            # With 200 the page stands in an answer's place.
            return *_span(drawn, dice, 2, 20), dice.choice([503, 200])
        case "gone":
            begins, ends = _span(drawn, dice, 1, 8)
            # What has never answered is no model and no key that has gone.
            later = max(0.0, 2 * drawn.lone_s - begins)
            return begins + later, ends + later, dice.choice([404, 401])
    raise AssertionError(name)


def _span(drawn: Draw, dice: _Dice, low_s: float, high_s: float) -> tuple[float, float]:
    """From 1 to 10 s on, and in any case amid the work; for so long."""
    begins = min(dice.log(1, 10), dice.uniform(0.1, 0.8) * drawn.at_once_s)
    return begins, begins + dice.log(low_s, high_s)


def _chains(drawn: Draw, dice: _Dice) -> list[Chain]:
    left = drawn.count
    is_stream = drawn.work == "stream" or (drawn.work == "deadlines" and dice.random() < 0.5)
    per_s = dice.log(0.3, 0.8) * drawn.calls_per_s
    pause_s = dice.choice([0.0, 1.0])
    timeout_s = None
    if drawn.work == "deadlines":
        timeout_s = 1 + 4 * drawn.lone_s + dice.log(0.3, 1.5) * (10 * drawn.lone_s if is_stream else drawn.at_once_s)
    chains: list[Chain] = []
    at = 0.0
    while left:
        turns = min(left, dice.randint(2, 12)) if drawn.work == "conversations" else 1
        left -= turns
        calls = _calls(drawn, dice, f"{len(chains)}:", turns)
        for call in calls:
            call.timeout_s = timeout_s
        for call in calls[1:]:
            call.pause_s = dice.expovariate(1 / pause_s) if pause_s else 0.0
        chains.append(Chain(at, calls))
        if is_stream:
            at += dice.expovariate(per_s)
    return chains


def _calls(drawn: Draw, dice: _Dice, text: str, turns: int) -> list[Call]:
    """The calls of a chain; each prompt begins with the one before, the first with ``text``."""
    manners, mean = drawn.manners, drawn.mean_tokens
    refused_by = ""
    for name in REFUSED_FOR_GOOD:
        share = manners.get(name, 0.0)
        if not refused_by and dice.random() < (share[0] if isinstance(share, tuple) else share):
            refused_by = name
    calls: list[Call] = []
    for turn in range(1, turns + 1):
        # Of a conversation for the other model all is refused; else its last turn.
        always = refused_by if turn == turns or refused_by == "model" else ""
        text += f" turn {turn}, please."
        if always == "forbidden":
            text += f" {FORBIDDEN}"
        if "length" in manners:
            share = dice.uniform(1.05, 2) if always == "length" else dice.uniform(0.05, 0.95) * turn / turns
            room = manners["length"][1] - drawn.max_tokens
            text = text.ljust(TOKEN_LENGTH * math.ceil(room * share), ".")
        tokens = 1 if mean == 1 else max(1, min(4 * mean, int(dice.lognormvariate(math.log(mean) - 0.18, 0.6))))
        calls.append(Call(text, tokens, OTHER_MODEL if refused_by == "model" else "m", always))
    return calls


def _shown(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_shown, value))
    return round(value, 2) if isinstance(value, float) else value
