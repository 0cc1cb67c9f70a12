"""A server of strange manners, in the virtual time of an event loop.

It has slots, a queue, and an API process that everything passes one after another; each method
named after a manner is that manner. A step takes longer the more sequences run beside it. What was
taken counts from the taking on, not from its start in a slot; a list that could never fit is taken
by an empty server. Of an abandoned request nothing more is done.
"""

from __future__ import annotations

import asyncio
import json
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime
from typing import Any

from benchmarks.lab.harm_draws import FORBIDDEN, OTHER_MODEL, Call, Draw, tokens_of

__all__ = ["EPOCH_S", "Exchange", "Reply", "Server"]

EPOCH_S = 1_800_000_000.0
"""The date at which every run begins, Unix time."""
_REFUSED_AFTER_S = 0.004
_LOST_AFTER_S = 0.1
_SLOW_START = 5.0
_SWING = 1.2
_PAGE = b"<html><body><h1>We will be back soon</h1></body></html>"


@dataclass(frozen=True, slots=True)
class Reply:
    """How a request ended.

    Args:
        status: 200 is an answer to each call, if there is no ``body``.
        retry_after: the header's value.
        body: what came instead.
        broken: how the connection ended; empty: it did not break.
    """

    status: int = 200
    retry_after: str | None = None
    body: bytes = b""
    broken: str = ""

    @property
    def answers(self) -> bool:
        """Whether the calls are answered."""
        return self.status == 200 and not self.body and not self.broken


ANSWERED = Reply()
_LOST = Reply(broken="lost")
_UNCONNECTED = Reply(broken="unconnected")


@dataclass(slots=True, eq=False)
class Exchange:
    """One request in the server's hands.

    Args:
        members: its calls.
        reply: its end.
        on_answer: told of each member's place, once it is answered.
        engine: the replica that it went to.
        left, left_tokens: sequences that are held for it, and their tokens.
        running: those of them that run, by place.
    """

    members: Sequence[Call]
    reply: asyncio.Future[Reply]
    on_answer: Callable[[int], None] | None
    engine: _Engine
    left: int = 0
    left_tokens: int = 0
    running: dict[int, asyncio.TimerHandle] = field(default_factory=dict)

    @property
    def over(self) -> bool:
        """Whether nothing more is to be done for it."""
        return self.reply.done()

    def end(self, reply: Reply) -> None:
        """It ends, if it has not."""
        if not self.over:
            self.reply.set_result(reply)


class _Engine:
    """Slots, and a queue before them.

    Args:
        slowness: its time over that of the server's usual engine.
    """

    def __init__(self, server: Server, slots: int, slowness: float) -> None:
        self.slowness = slowness
        self.running = 0
        self._server = server
        self._slots = slots
        self._waiting: deque[tuple[Exchange, int]] = deque()

    def put(self, exchange: Exchange, place: int) -> None:
        """Run a sequence, once there is a slot."""
        self._waiting.append((exchange, place))
        self._fill()

    def drop(self, exchange: Exchange) -> None:
        """Let go of a request's sequences."""
        for timer in exchange.running.values():
            timer.cancel()
        self.running -= len(exchange.running)
        exchange.running.clear()
        self._fill()

    def _fill(self) -> None:
        while self._waiting and self.running < self._slots:
            exchange, place = self._waiting.popleft()
            if exchange.over:
                continue
            self.running += 1
            took_s = self._server.time_of(exchange.members[place], self)
            exchange.running[place] = self._server.loop.call_later(took_s, self._end, exchange, place)

    def _end(self, exchange: Exchange, place: int) -> None:
        del exchange.running[place]
        self.running -= 1
        self._server.answer(exchange, place)
        self._fill()


class _Bucket:
    """So much a second, and at most so much at once."""

    def __init__(self, per_s: float, most: float) -> None:
        self._per_s, self._most = per_s, most
        self._level, self._at = most, 0.0

    def take(self, cost: float, now: float) -> float | None:
        """Take it if it is there; else return the seconds until it is."""
        self._level = min(self._most, self._level + (now - self._at) * self._per_s)
        self._at = now
        cost = min(cost, self._most)
        if self._level >= cost:
            self._level -= cost
            return None
        return (cost - self._level) / self._per_s


class Server:
    """The server of a draw; made within a running loop.

    Attributes:
        hits, refused: requests so far.
        tokens: generated so far.
        acted: manners that have refused, slowed or lost something.
    """

    def __init__(self, drawn: Draw) -> None:
        self.loop = asyncio.get_running_loop()
        self.hits = self.refused = self.tokens = 0
        self.acted: set[str] = set()
        self._began = self.loop.time()
        self._drawn = drawn
        self._manners = manners = drawn.manners
        self._rng = random.Random(f"harm/server/{drawn.number}")
        self._taken = 0
        self._open: dict[Exchange, None] = {}
        self._held = self._held_tokens = 0
        self._api_free_at = 0.0
        self._gate: deque[Exchange] = deque()
        """Of ``hidden``: those that were taken and have not begun."""
        self._this_minute, self._in_minute = 0.0, 0
        self._rates = {name: _Bucket(manners[name], max(1.0, manners[name])) for name in manners.keys() & _BY_RATE}
        if "tokens" in manners:
            self._rates["tokens"] = _Bucket(manners["tokens"], 2 * manners["tokens"])
        self._engines = [_Engine(self, drawn.slots, 1.0)]
        if "replicas" in manners:
            half = drawn.slots // 2
            self._engines = [_Engine(self, half, 1.0), _Engine(self, half, manners["replicas"])]
        if "restart" in manners:
            self.loop.call_later(manners["restart"][0], self._end_all, _LOST, "restart")

    @property
    def now(self) -> float:
        """Seconds since the run began."""
        return self.loop.time() - self._began

    @property
    def load(self) -> tuple[int, int]:
        """Sequences that run, and that wait."""
        running = sum(engine.running for engine in self._engines)
        return running, self._held - running

    def ask(self, members: Sequence[Call], on_answer: Callable[[int], None] | None = None) -> Exchange:
        """A request comes; its calls are ``members``."""
        now = self.now
        self.hits += 1
        engine = self._engines[self._taken % len(self._engines)]
        exchange = Exchange(members, self.loop.create_future(), on_answer, engine)
        for call in members:
            call.tries += 1
            call.last_try_at = now
            if call.tries == 1:
                call.first_try_at = now
        for name, gate in _GATES.items():
            value = self._manners.get(name)
            reply = None if value is None else gate(self, value, members)
            if reply is None:
                continue
            self.acted.add(name)
            self.refused += not reply.broken
            after_s = _LOST_AFTER_S if reply is _LOST else _REFUSED_AFTER_S
            self.loop.call_later(after_s, exchange.end, reply)
            return exchange
        self._take(exchange)
        return exchange

    def abandon(self, exchange: Exchange) -> None:
        """A request's client has gone."""
        if not exchange.over:
            exchange.reply.cancel()
            self._let_go(exchange)

    # Of a request that was taken ------------------------------------------------------------------

    def _take(self, exchange: Exchange) -> None:
        self._taken += 1
        self._open[exchange] = None
        exchange.left = len(exchange.members)
        exchange.left_tokens = sum(call.tokens for call in exchange.members)
        self._held += exchange.left
        self._held_tokens += exchange.left_tokens
        if exchange.engine.slowness > 1:
            self.acted.add("replicas")
        if len(self._open) > self._manners.get("hidden", math.inf):
            self.acted.add("hidden")
            self._gate.append(exchange)
        else:
            self._begin(exchange)

    def _begin(self, exchange: Exchange) -> None:
        now, api_s = self.now, self._drawn.api_s
        self._api_free_at = max(self._api_free_at, now) + api_s + api_s * 0.1 * len(exchange.members)
        self.loop.call_later(self._api_free_at - now, self._enter, exchange)

    def _enter(self, exchange: Exchange) -> None:
        if exchange.over:
            return
        if "serial" not in self._manners:
            for place in range(len(exchange.members)):
                exchange.engine.put(exchange, place)
            return
        if len(exchange.members) > 1:
            self.acted.add("serial")
        exchange.engine.put(exchange, 0)

    def time_of(self, call: Call, engine: _Engine) -> float:
        """How long a sequence takes that starts now."""
        drawn, manners, now = self._drawn, self._manners, self.now
        took_s = drawn.prefill_s + call.tokens * drawn.step_s * (1 + engine.running / drawn.half)
        took_s *= engine.slowness
        if "swing" in manners:
            self.acted.add("swing")
            took_s *= math.exp(_SWING * math.sin(now / manners["swing"]))
        if now < manners.get("slowstart", 0.0):
            self.acted.add("slowstart")
            took_s *= _SLOW_START
        begins, ends = manners.get("stall", (math.inf, 0.0))
        if now < ends and now + took_s > begins:
            self.acted.add("stall")
            return max(took_s, ends - now + took_s)
        return took_s

    def answer(self, exchange: Exchange, place: int) -> None:
        """A sequence has ended."""
        call = exchange.members[place]
        exchange.left -= 1
        exchange.left_tokens -= call.tokens
        self._held -= 1
        self._held_tokens -= call.tokens
        self.tokens += call.tokens
        if exchange.on_answer is not None:
            exchange.on_answer(place)
        if not exchange.left:
            exchange.end(ANSWERED)
            self._let_go(exchange)
        elif "serial" in self._manners:
            exchange.engine.put(exchange, place + 1)

    def _let_go(self, exchange: Exchange) -> None:
        """A request that is over leaves its place to others."""
        if exchange not in self._open:
            return
        del self._open[exchange]
        self._held -= exchange.left
        self._held_tokens -= exchange.left_tokens
        exchange.engine.drop(exchange)
        while self._gate:
            following = self._gate.popleft()
            if not following.over:
                self._begin(following)
                return

    def _end_all(self, reply: Reply, manner: str) -> None:
        """All that was taken ends so."""
        ending = list(self._open)
        if ending:
            self.acted.add(manner)
        for exchange in ending:
            exchange.end(reply)
        for exchange in ending:
            self._let_go(exchange)

    # Gates: whether a request is taken; ``None``: it is -------------------------------------------

    def _refuse(self, status: int, message: str, wait_s: float | None = None, *, always_says: bool = False) -> Reply:
        says = wait_s is not None and (always_says or self._drawn.says)
        return Reply(status, f"{wait_s:.3f}" if says else None, _error(status, message))

    def _restart(self, value: tuple[float, float], members: Sequence[Call]) -> Reply | None:
        return _UNCONNECTED if value[0] <= self.now < value[1] else None

    def _maintenance(self, value: tuple[float, float, int], members: Sequence[Call]) -> Reply | None:
        begins, ends, status = value
        return Reply(status, None, _PAGE) if begins <= self.now < ends else None

    def _gone(self, value: tuple[float, float, int], members: Sequence[Call]) -> Reply | None:
        begins, ends, status = value
        if not begins <= self.now < ends:
            return None
        return self._refuse(status, "The model `m` does not exist" if status == 404 else "invalid key")

    def _dead(self, share: float, members: Sequence[Call]) -> Reply | None:
        return self._refuse(502, "Bad Gateway") if self._rng.random() < share else None

    def _lose(self, share: float, members: Sequence[Call]) -> Reply | None:
        return _LOST if self._rng.random() < share else None

    def _hundredth(self, nth: int, members: Sequence[Call]) -> Reply | None:
        return _LOST if self.hits % nth == 0 else None

    def _errbody(self, value: tuple[float, int], members: Sequence[Call]) -> Reply | None:
        share, most = value
        if share:
            return Reply(200, None, _error(500, "Internal server error")) if self._rng.random() < share else None
        full = self._held and self._held + len(members) > most
        return Reply(200, None, _error(429, "Rate limit exceeded")) if full else None

    def _model(self, share: float, members: Sequence[Call]) -> Reply | None:
        refused = any(call.model == OTHER_MODEL for call in members)
        return self._refuse(429, "busy", 5.0) if refused else None

    def _own(self, share: float, members: Sequence[Call]) -> Reply | None:
        refused = any(call.always == "own" for call in members)
        return self._refuse(429, "Request too large for this organisation on tokens per min", 1.0) if refused else None

    def _forbidden(self, share: float, members: Sequence[Call]) -> Reply | None:
        refused = any(FORBIDDEN in call.text for call in members)
        return Reply(403, None, b"<html><body>Request blocked</body></html>") if refused else None

    def _length(self, value: tuple[float, int, str], members: Sequence[Call]) -> Reply | None:
        _, length, said = value
        asked_for = self._drawn.max_tokens
        longest = max(tokens_of(call.text) for call in members)
        if longest + asked_for <= length:
            return None
        if said == "body":
            return Reply(413, None, b"<html><body>413 Request Entity Too Large</body></html>")
        told = length if said == "length" else length - asked_for
        message = (
            f"This model's maximum context length is {told} tokens. However, you requested {longest + asked_for} tokens"
            f" ({longest} in the messages, {asked_for} in the completion)."
        )
        return self._refuse(400, message)

    def _listcap(self, most: int, members: Sequence[Call]) -> Reply | None:
        if len(members) <= most:
            return None
        return self._refuse(422, f"batch size {len(members)} > maximum allowed batch size {most}")

    def _rate(self, per_s: float, members: Sequence[Call]) -> Reply | None:
        wait_s = self._rates["rate"].take(1, self.now)
        return None if wait_s is None else self._refuse(429, "busy", max(1.0, wait_s))

    def _date(self, per_s: float, members: Sequence[Call]) -> Reply | None:
        wait_s = self._rates["date"].take(1, self.now)
        if wait_s is None:
            return None
        date = datetime.fromtimestamp(math.ceil(EPOCH_S + self.now + wait_s), UTC)
        return Reply(429, format_datetime(date, usegmt=True), _error(429, "busy"))

    def _minute(self, value: tuple[int, float], members: Sequence[Call]) -> Reply | None:
        most, gone_s = value
        minute, second = divmod(self.now + gone_s, 60)
        if minute != self._this_minute:
            self._this_minute, self._in_minute = minute, 0
        if self._in_minute >= most:
            return self._refuse(429, "quota of this minute", 60 - second)
        self._in_minute += 1
        return None

    def _tokens(self, per_s: float, members: Sequence[Call]) -> Reply | None:
        wait_s = self._rates["tokens"].take(sum(call.tokens for call in members), self.now)
        return None if wait_s is None else self._refuse(429, "busy", wait_s)

    def _conns(self, most: int, members: Sequence[Call]) -> Reply | None:
        return self._refuse(503, "busy", 2.0) if len(self._open) >= most else None

    def _seqs(self, most: int, members: Sequence[Call]) -> Reply | None:
        full = self._held and self._held + len(members) > most
        return self._refuse(429, "busy", 1.0) if full else None

    def _queue(self, most: int, members: Sequence[Call]) -> Reply | None:
        full = self._held and self._held - self._drawn.slots + len(members) > most
        return self._refuse(503, "busy", 1.0) if full else None

    def _memory(self, value: tuple[float, bool], members: Sequence[Call]) -> Reply | None:
        most, ends_all = value
        if not self._held or self._held_tokens + sum(call.tokens for call in members) <= most:
            return None
        if not ends_all:
            return self._refuse(500, "CUDA out of memory. Tried to allocate 2.00 GiB.")
        reply = self._refuse(500, "Context size has been exceeded.")
        self._end_all(reply, "memory")
        return reply


_BY_RATE = {"rate", "date"}
_GATES: dict[str, Callable[[Server, Any, Sequence[Call]], Reply | None]] = {
    "restart": Server._restart,
    "maintenance": Server._maintenance,
    "dead": Server._dead,
    "lose": Server._lose,
    "hundredth": Server._hundredth,
    "forbidden": Server._forbidden,
    "gone": Server._gone,
    "errbody": Server._errbody,
    "model": Server._model,
    "own": Server._own,
    "listcap": Server._listcap,
    "length": Server._length,
    "rate": Server._rate,
    "date": Server._date,
    "minute": Server._minute,
    "tokens": Server._tokens,
    "conns": Server._conns,
    "seqs": Server._seqs,
    "queue": Server._queue,
    "memory": Server._memory,
}
"""Manners that refuse, in the order in which a request meets them."""


def _error(status: int, message: str) -> bytes:
    return json.dumps({"error": {"message": message, "type": "Error", "code": status}}).encode()
