"""The clients that stand beside each other at a server of strange manners, in virtual time.

*Naive* is what people write: a semaphore; every call a request of its own; five tries; a pause of
``Retry-After`` + 0.5 s doubling to 8 s. Only 400, 413 and 422 are not tried again.

*Ours* is ``BatchClient(url)`` as it is: nothing of it is replaced but the connections, the source
of jitter and the date. To the client the server is a stranger with real connections: it is asked
which it is, and says nothing.
"""

from __future__ import annotations

import asyncio
import json
import logging
import random
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

from benchmarks.lab.harm_draws import Call, Chain, Draw
from benchmarks.lab.harm_server import EPOCH_S, Exchange, Reply, Server
from tests.seams import connected, wall_time, with_jitter

from batchclient import BatchClient, BatchClientError
from batchclient.errors import ConnectFailed, ConnectionLost, ReadTimedOut
from batchclient.testing import VirtualLoop
from batchclient.transport import Timeouts, WireRequest

__all__ = ["HORIZON_S", "Run", "run_naive", "run_ours"]

HORIZON_S = 3000.0
"""What has no end so long after the last chain began is lost."""
_TRIES = 5
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.5, 8.0
_NOT_AGAIN = (400, 413, 422)
_FEWEST_TRIES, _SHORTEST_TRYING_S = 5, 15.0
_TRIED_AGAIN = ("model", "own")
"""Manners that refuse calls always, in words that promise better."""
_PROMISING = "429"


@dataclass(frozen=True, slots=True)
class Run:
    """What became of a draw's work under one client; only chains that the server would answer count.

    Args:
        last_s: the last answer.
        mean_s, p95_s: from a chain's first call to its last answer.
        lost: chains that were not answered.
        met: the share that was answered; with deadlines, in time.
        hasty: calls that the server always refuses, given up before they had five tries over 15 s.
        requests, refused: all of them; those with another status than 200, or an error in it.
        acted: manners that have refused, slowed or lost something.
        why: the error of the first chain that was lost.
        limit: where it ended, of ours.
    """

    last_s: float
    mean_s: float
    p95_s: float
    lost: int
    met: float
    hasty: int
    requests: int
    refused: int
    acted: frozenset[str]
    why: str
    limit: int | None = None


def run_naive(drawn: Draw, at_once: int) -> Run:
    """The naive client with so many calls at once."""

    async def main() -> Run:
        server = Server(drawn)
        places = asyncio.Semaphore(at_once)
        rng = random.Random(f"harm/naive/{drawn.number}")

        async def ask(call: Call) -> str:
            async with places:
                return await _ask_naively(server, call, rng)

        await _within_horizon(drawn, _all_chains(drawn, ask))
        return _run(drawn, server)

    return _in_virtual_time(main)


def run_ours(drawn: Draw) -> Run:
    """The default client."""

    async def main() -> Run:
        server = Server(drawn)
        calls = {call.text: call for chain in drawn.chains for call in chain.calls}
        client = connected(
            "http://server/v1",
            calls=lambda _: _Calls(server, calls, streams=drawn.has_page),
            metrics=lambda _: _Page(server if drawn.has_page else None),
            detection=lambda _: _Page(None),
            asks_first=True,
            trusts_lists=False,
            model="m",
        )
        async with client:
            await _within_horizon(drawn, _as_rows(drawn, client) if drawn.as_rows else _singly(drawn, client))
            limit = client.statistics().endpoints[0].limit
        return _run(drawn, server, limit)

    with with_jitter(random.Random(f"harm/ours/{drawn.number}")):
        return _in_virtual_time(main)


def _in_virtual_time(main: Callable[[], Awaitable[Run]]) -> Run:
    log = logging.getLogger("batchclient")
    level = log.level
    log.setLevel(logging.CRITICAL)
    try:
        with asyncio.Runner(loop_factory=VirtualLoop) as runner:
            loop = runner.get_loop()
            began = loop.time()
            with wall_time(lambda: EPOCH_S + loop.time() - began):
                return runner.run(main())  # type: ignore[arg-type]
    finally:
        log.setLevel(level)


async def _within_horizon(drawn: Draw, work: Awaitable[None]) -> None:
    try:
        async with asyncio.timeout(drawn.chains[-1].at + HORIZON_S):
            await work
    except TimeoutError:
        pass


async def _all_chains(drawn: Draw, ask: Callable[[Call], Awaitable[str]]) -> None:
    """Make all calls; ``ask`` says why one was not answered, or nothing."""
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def one_chain(chain: Chain) -> None:
        await asyncio.sleep(chain.at)
        for call in chain.calls:
            if call.pause_s:
                await asyncio.sleep(call.pause_s)
            try:
                async with asyncio.timeout(call.timeout_s):
                    call.why = await ask(call)
            except TimeoutError:
                call.why = "its deadline has passed"
            call.ended_at, call.answered = loop.time() - began, not call.why
            if call.why:
                return

    async with asyncio.TaskGroup() as group:
        for chain in drawn.chains:
            group.create_task(one_chain(chain))


# Naive --------------------------------------------------------------------------------------------


async def _ask_naively(server: Server, call: Call, rng: random.Random) -> str:
    for failures in range(1, _TRIES + 1):
        exchange = server.ask([call])
        try:
            reply = await exchange.reply
        finally:
            server.abandon(exchange)
        if reply.answers:
            return ""
        if reply.status in _NOT_AGAIN or failures == _TRIES:
            return reply.broken or f"{reply.status}: {reply.body!r:.60}"
        pause_s = min(_LONGEST_PAUSE_S, _FIRST_PAUSE_S * 2 ** (failures - 1)) * rng.uniform(0.75, 1)
        await asyncio.sleep(_seconds_in(reply.retry_after, server.now) + pause_s)
    raise AssertionError


def _seconds_in(retry_after: str | None, now: float) -> float:
    if retry_after is None:
        return 0.0
    try:
        return float(retry_after)
    except ValueError:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - EPOCH_S - now)


# Ours ---------------------------------------------------------------------------------------------


async def _singly(drawn: Draw, client: BatchClient) -> None:
    async def ask(call: Call) -> str:
        try:
            await client.complete(call.text, max_tokens=drawn.max_tokens, model=call.model, timeout_s=call.timeout_s)
        except BatchClientError as error:
            return f"{type(error).__name__}: {error}"
        return ""

    await _all_chains(drawn, ask)


async def _as_rows(drawn: Draw, client: BatchClient) -> None:
    """One map per model: each chain, of one call, is a row."""
    loop = asyncio.get_running_loop()
    began = loop.time()

    async def arriving(chains: Sequence[Chain]) -> AsyncIterator[Call]:
        for chain in chains:
            wait_s = began + chain.at - loop.time()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            yield chain.calls[0]

    async def one_map(model: str, chains: Sequence[Chain]) -> None:
        rows = client.stream_map(
            arriving(chains),
            lambda call: call.text,
            model=model,
            max_tokens=drawn.max_tokens,
            timeout_s=chains[0].calls[0].timeout_s,
        )
        async with rows:
            async for row in rows:
                call: Call = row.document
                call.ended_at, call.answered = loop.time() - began, row.error is None
                call.why = "" if row.error is None else f"{type(row.error).__name__}: {row.error}"

    by_model: dict[str, list[Chain]] = {}
    for chain in drawn.chains:
        by_model.setdefault(chain.calls[0].model, []).append(chain)
    async with asyncio.TaskGroup() as group:
        for model, chains in by_model.items():
            group.create_task(one_map(model, chains))


class _Calls:
    """The connections of the calls.

    Args:
        streams: whether a streamed list's answers are handed out as they end.
    """

    def __init__(self, server: Server, calls: Mapping[str, Call], *, streams: bool) -> None:
        self._server = server
        self._calls = calls
        self._streams = streams

    async def send(self, request: WireRequest, timeouts: Timeouts) -> _Response:
        body = json.loads(request.body)
        prompt = body["prompt"]
        members = [self._calls[text] for text in ([prompt] if isinstance(prompt, str) else prompt)]
        streamed = bool(body.get("stream"))
        ended: asyncio.Queue[int | None] = asyncio.Queue()
        passes_on = streamed and self._streams
        exchange = self._server.ask(members, ended.put_nowait if passes_on else None)
        exchange.reply.add_done_callback(lambda _: ended.put_nowait(None))
        response = _Response(self._server, exchange, ended, timeouts, streamed=streamed)
        try:
            await response.begin()
        except BaseException:
            self._server.abandon(exchange)
            raise
        return response

    async def aclose(self) -> None:
        pass


class _Response:
    """A reply, from its first byte on."""

    status = 200

    def __init__(
        self,
        server: Server,
        exchange: Exchange,
        ended: asyncio.Queue[int | None],
        timeouts: Timeouts,
        *,
        streamed: bool,
    ) -> None:
        self.headers: dict[str, str] = {"content-type": "text/event-stream" if streamed else "application/json"}
        self._server = server
        self._exchange = exchange
        self._ended = ended
        self._timeouts = timeouts
        self._streamed = streamed
        self._first: int | None = None

    async def begin(self) -> None:
        """Wait for the first byte."""
        self._first = await self._next()
        if self._first is not None:
            return
        reply = self._reply()
        self.status = reply.status
        if reply.body:
            kind = "text/html" if reply.body.startswith(b"<") else "application/json"
            self.headers = {"content-type": kind}
            if reply.retry_after is not None:
                self.headers["retry-after"] = reply.retry_after

    async def chunks(self) -> AsyncGenerator[bytes]:
        members = self._exchange.members
        place, told = self._first, 0
        while place is not None:
            yield _events([place], members)
            told += 1
            place = await self._next()
        body = self._reply().body
        if body or not self._streamed:
            yield body or _whole(members)
            return
        yield (b"" if told else _events(range(len(members)), members)) + _last_events(members)

    async def aclose(self) -> None:
        self._server.abandon(self._exchange)

    async def _next(self) -> int | None:
        """The place of the next answer; ``None``: the exchange is over."""
        try:
            async with asyncio.timeout(self._timeouts.read_s):
                return await self._ended.get()
        except TimeoutError:
            raise ReadTimedOut("the server was silent") from None

    def _reply(self) -> Reply:
        reply = self._exchange.reply.result()
        if reply.broken == "unconnected":
            raise ConnectFailed("the connection was refused")
        if reply.broken:
            raise ConnectionLost("the connection was lost")
        return reply


def _choice(place: int) -> dict[str, Any]:
    return {"index": place, "text": "x", "finish_reason": "stop"}


def _usage(calls: Sequence[Call]) -> dict[str, int]:
    tokens = sum(call.tokens for call in calls)
    return {"prompt_tokens": 8 * len(calls), "completion_tokens": tokens, "total_tokens": 8 * len(calls) + tokens}


def _whole(members: Sequence[Call]) -> bytes:
    choices = [_choice(place) for place in range(len(members))]
    return json.dumps({"id": "c", "model": "m", "choices": choices, "usage": _usage(members)}).encode()


def _events(places: Sequence[int], members: Sequence[Call]) -> bytes:
    events = [
        json.dumps({"id": "c", "model": "m", "choices": [_choice(place)], "usage": _usage([members[place]])})
        for place in places
    ]
    return "".join(f"data: {event}\n\n" for event in events).encode()


def _last_events(members: Sequence[Call]) -> bytes:
    usage = json.dumps({"id": "c", "model": "m", "choices": [], "usage": _usage(members)})
    return f"data: {usage}\n\ndata: [DONE]\n\n".encode()


class _Page:
    """The connections of a question beside the calls; ``server``: whose load is told, ``None``: there is no page."""

    def __init__(self, server: Server | None) -> None:
        self._server = server

    async def send(self, request: WireRequest, timeouts: Timeouts) -> _PageResponse:
        await asyncio.sleep(0.005)
        if self._server is None:
            return _PageResponse(404, b"Not Found")
        running, waiting = self._server.load
        page = (
            f"vllm:num_requests_running {running}\nvllm:num_requests_waiting {waiting}\n"
            f"vllm:num_preemptions_total 0\nvllm:generation_tokens_total {self._server.tokens}\n"
        )
        return _PageResponse(200, page.encode())

    async def aclose(self) -> None:
        pass


@dataclass(slots=True)
class _PageResponse:
    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=lambda: {"content-type": "text/plain"})

    async def chunks(self) -> AsyncGenerator[bytes]:
        yield self.body

    async def aclose(self) -> None:
        pass


# What became of the work --------------------------------------------------------------------------


def _run(drawn: Draw, server: Server, limit: int | None = None) -> Run:
    good = [chain for chain in drawn.chains if chain.good]
    answered = [chain for chain in good if chain.answered]
    ends = [chain.ended_at for chain in answered if chain.ended_at is not None]
    latencies = sorted(end - chain.at for chain, end in zip(answered, ends, strict=True))
    whys = (call.why for chain in good for call in chain.calls if call.why)
    return Run(
        last_s=max(ends, default=HORIZON_S),
        mean_s=sum(latencies) / len(latencies) if latencies else HORIZON_S,
        p95_s=latencies[int(0.95 * len(latencies))] if latencies else HORIZON_S,
        lost=len(good) - len(answered),
        met=len(answered) / len(good) if good else 1.0,
        hasty=sum(_is_hasty(call) for chain in drawn.chains for call in chain.calls),
        requests=server.hits,
        refused=server.refused,
        acted=frozenset(server.acted),
        why=next(whys, ""),
        limit=limit,
    )


def _is_hasty(call: Call) -> bool:
    """Whether a call that is always refused, and may not know it, was given up too early."""
    if call.always not in _TRIED_AGAIN or call.timeout_s is not None or call.ended_at is None or not call.tries:
        return False
    if _PROMISING not in call.why:
        # It ended with another error, such as 404 for a model that has never answered.
        return False
    return call.tries < _FEWEST_TRIES or call.ended_at - call.first_try_at < _SHORTEST_TRYING_S
