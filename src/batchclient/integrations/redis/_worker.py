"""``Worker``: takes messages of a stream, makes a call of each, and ends each by one outcome::

    stream → held → result | dead letter
             held → released   handed back; the delivery does not count
             held → left       to its lease, since its error may pass; the delivery counts
             held → lost       another worker has it by now, or has ended it

Rules:
- A message is *held* from its delivery until its outcome is stored. At most ``look_ahead`` are
  held: memory does not grow with the queue.
- No more calls are begun than the client's servers may have in flight. The other messages wait in
  line, so that time limits begin with the sending, and a stop hands those messages back at once.
  Of messages with different parameters twice as many are begun: a request has calls of one kind,
  and a client that sees too few calls at a time makes small requests.
- Reading, storing and renewing are three tasks. None waits for another's turn, and each bears a
  Redis that is away: calls under way go on, and their outcomes are kept until Redis is back.
- A lease is renewed every third of its time. A message that is another worker's by now is given up.
- While every server is out of use, or the servers fail in a row, nothing is read, except one
  message where none is held: the call that finds out whether a server is back.
- Whatever a message does to this code, the message is a dead letter, and the worker goes on.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, deque
from collections.abc import Awaitable, Coroutine
from functools import partial
from typing import Any

from batchclient import BatchClient
from batchclient._common.log import log
from batchclient._metrics.worker import OUTCOMES, Waiting, counts_of
from batchclient.errors import ConfigError, DeadlineExceeded
from batchclient.integrations.redis._connection import Connection, Retrying, check_connection, end
from batchclient.integrations.redis._failures import Action, Failures, TooManyDeliveries
from batchclient.integrations.redis._messages import Message, Outcome, read_message, write_json
from batchclient.integrations.redis._options import STREAM, Keys, WorkerOptions, WorkerStatistics
from batchclient.integrations.redis._results import foreign_key
from batchclient.integrations.redis._scripts import FOREIGN
from batchclient.integrations.redis._stream import Delivery, WorkerStream

__all__ = ["Worker"]

_HELD_BYTES = 64 * 1024 * 1024
"""Bytes of bodies beyond which no further message is read."""
_READ_TOGETHER = 256
_READ_BYTES = 16 * 1024 * 1024
"""Bytes of bodies in a reading, if its messages are as large as those of the reading before."""
_GROWTH = 4
_REST_S = 0.02
"""How long a few free places wait for more: reading one by one costs eight times as much."""
_LOOK_S = 0.25
_CLAIM_S = 1.0
_STATISTICS_S = 0.1
_FIGURES_S = 5.0
_FORGOTTEN_LEASES = 10
"""A consumer without messages that was silent for so many leases is a dead worker's."""
_STORE_TOGETHER = 128
_STORE_BYTES = 1024 * 1024
_OUT_OF_USE = ("ejected", "probing", "awaited")
_READING_ENDS_S = 1.5
"""How long a stopping worker waits for a reading, which takes half a second at most."""
_LAST_TRIES_S = 5.0
"""How long a stopping worker waits for a Redis that is away."""


class _Held:
    """A message that the worker has, from its delivery to its outcome."""

    __slots__ = (
        "began_at",
        "deliveries",
        "entry",
        "is_ended",
        "is_released",
        "kind",
        "message",
        "since",
        "size",
        "task",
    )
    message: Message

    def __init__(self, entry: str, deliveries: int, size: int, since: float) -> None:
        self.entry = entry
        self.deliveries = deliveries
        self.size = size
        """Bytes of its body."""
        self.since = since
        """When it was delivered, by the event loop's clock."""
        self.kind: tuple[str, str | None, str] | None = None
        """What its call has in common with others that may share a request."""
        self.began_at = 0.0
        self.task: asyncio.Task[None] | None = None
        """Its call, once it has begun."""
        self.is_ended = False
        """Whether it has an outcome, or is another worker's."""
        self.is_released = False
        """Whether it is being handed back: a renewal would take it again."""


class _Line:
    """Messages whose calls have not begun: the highest priority first, tenants in turn."""

    def __init__(self) -> None:
        self._waiting: dict[int, dict[str | None, deque[_Held]]] = {}

    def __repr__(self) -> str:
        return f"<_Line of {sum(len(line) for tenants in self._waiting.values() for line in tenants.values())}>"

    def put(self, held: _Held) -> None:
        priority, tenant = held.message.priority, held.message.tenant
        if priority not in self._waiting:
            self._waiting[priority] = {}
        tenants = self._waiting[priority]
        if tenant not in tenants:
            tenants[tenant] = deque()
        tenants[tenant].append(held)

    def take(self) -> _Held | None:
        """Return the next message that has not ended meanwhile; ``None``: nobody waits."""
        while self._waiting:
            priority = max(self._waiting)
            tenants = self._waiting[priority]
            tenant = next(iter(tenants))
            line = tenants[tenant]
            held = line.popleft()
            if len(tenants) > 1:
                # The tenant's next turn comes after the others'.
                del tenants[tenant]
                if line:
                    tenants[tenant] = line
            elif not line:
                del self._waiting[priority]
            if not held.is_ended:
                return held
        return None


class Worker:
    """Works on the messages of a Redis stream with a client.

    For example::

        worker = Worker(client, redis, "inference_queue")
        await worker.run()

    Args:
        client: made and closed by the caller, for this event loop.
        redis: a ``redis.asyncio.Redis`` or ``RedisCluster`` without ``decode_responses``; the
            caller closes it.
        stream: the stream of messages.
        group: the consumer group; it is made where there is none.
        consumer: this worker's own name; by default of the host and the process.
        results: ``"keys"`` for a key ``result:<id>`` each, ``"stream:NAME"``, or ``"none"``.
        result_ttl_s: how long the key of a result lives, seconds; 0: for ever.
        dead: the stream of dead letters, by default the stream's name with ``:dead``.
        lease_s: how long a message is this worker's without a renewal, seconds.
        renew_s: seconds from one renewal to the next; by default a third of the lease.
        max_deliveries: a message delivered more often without an outcome is a dead letter.
        grace_s: how long calls under way may take to end after ``stop``, seconds.
        look_ahead: messages held, at most; by default twice the limits of all servers.

    Raises:
        ConfigError: an argument is wrong.
    """

    def __init__(
        self,
        client: BatchClient,
        redis: Connection,
        stream: str = STREAM,
        *,
        group: str = "batchclient",
        consumer: str | None = None,
        results: str = "keys",
        result_ttl_s: int = 86_400,
        dead: str | None = None,
        lease_s: float = 60.0,
        renew_s: float | None = None,
        max_deliveries: int = 5,
        grace_s: float = 25.0,
        look_ahead: int | None = None,
    ) -> None:
        if not isinstance(client, BatchClient):
            raise ConfigError(f"client is a BatchClient, not a {type(client).__name__}", field="client")
        check_connection(redis)
        self._keys = Keys.of(stream, group, dead, results)
        self._options = WorkerOptions(
            self._keys, consumer, result_ttl_s, lease_s, renew_s, max_deliveries, grace_s, look_ahead
        )
        self._consumer = self._options.consumer_name()
        self._client = client
        self._stream = WorkerStream(redis, self._options, self._consumer)
        self._retrying = Retrying(redis, self._stream.make_group)
        self._failures = Failures()
        self._held: dict[str, _Held] = {}
        self._held_bytes = 0
        self._line = _Line()
        self._kinds: Counter[tuple[str, str | None, str]] = Counter()
        """The messages held, by kind."""
        self._calls = 0
        """Calls under way."""
        self._limit = 1
        self._is_cut_off = False
        """Whether every server is out of use."""
        self._looked_at = 0.0
        self._together = 1
        """Messages of the next reading, at most."""
        self._claim_at = 0.0
        self._has_claimed = False
        self._outcomes: deque[Outcome] = deque()
        self._changed, self._begun, self._stopping = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._has_outcomes, self._has_none = asyncio.Event(), asyncio.Event()
        self._error: BaseException | None = None
        self._counts = dict.fromkeys(OUTCOMES, 0)
        self._renewals = 0
        self._waiting = Waiting(0, None)
        self._of_client = counts_of(client)

    def __repr__(self) -> str:
        return f"<Worker of {self._keys.stream!r}: {len(self._held)} held>"

    def statistics(self) -> WorkerStatistics:
        """Return a snapshot."""
        return WorkerStatistics(
            held=len(self._held), **self._counts, renewals=self._renewals, **self._waiting._asdict()
        )

    def stop(self) -> None:
        """Read no further message; ``run`` then returns, within ``grace_s`` and some seconds.

        Calls under way may end. What is held then is handed back, for another worker to take.
        The seconds are for a Redis that does not answer: seven at most.
        """
        self._stopping.set()
        self._changed.set()

    async def run(self) -> None:
        """Work until ``stop``. A worker runs once.

        Raises:
            RuntimeError: the worker was stopped, or has run.
            ConfigError: the server is too old, or a key holds no stream.
            BatchClientError: the servers refuse the client, such as for its key. Messages are
                handed back.
            redis.exceptions.RedisError: Redis refuses the user or a command.

        Cancellation: hands everything back at once.
        """
        if self._stopping.is_set():
            raise RuntimeError("the worker was stopped: make another one")
        # Nothing but tasks of our own is awaited here: redis-py drops a cancellation that comes
        # while it connects.
        reading, storing, keeping = tasks = [
            asyncio.create_task(each()) for each in (self._read, self._store, self._keep)
        ]
        stopping = asyncio.create_task(self._stopping.wait())
        grace_s = 0.0
        try:
            await asyncio.wait((stopping, *tasks), return_when=asyncio.FIRST_COMPLETED)
            if self._error is None and not storing.done() and not keeping.done():
                grace_s = self._options.grace_s
        finally:
            self.stop()
            asyncio.gather(*tasks, return_exceptions=True)  # takes the errors that are not raised below
            await _to_its_end(self._end(reading, storing, keeping, grace_s))
            await end([stopping])
        for task in tasks:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
        if self._error is not None:
            raise self._error

    async def _end(
        self, reading: asyncio.Task[None], storing: asyncio.Task[None], keeping: asyncio.Task[None], grace_s: float
    ) -> None:
        """Hand back what waits, let calls under way end, store the outcomes, and leave the group."""
        until = asyncio.get_running_loop().time() + grace_s
        await asyncio.wait((reading,), timeout=_READING_ENDS_S)
        # Redis does not answer. A message of this reading comes back after its lease.
        await end([reading])
        calls = [held.task for held in self._held.values() if held.task is not None and not held.task.done()]
        if grace_s:
            in_line = [held for held in self._held.values() if held.task is None and not held.is_ended]
            await self._hand_back(min(grace_s, _LAST_TRIES_S), in_line)
        if calls:
            ended = asyncio.create_task(_all_done(calls))
            left_s = max(0.0, until - asyncio.get_running_loop().time())
            await asyncio.wait((ended, storing), timeout=left_s, return_when=asyncio.FIRST_COMPLETED)
            await end([ended, *calls])
        last_s = asyncio.get_running_loop().time() + _LAST_TRIES_S
        if self._outcomes:
            stored = asyncio.create_task(self._has_none.wait())
            await asyncio.wait((storing, stored), timeout=_LAST_TRIES_S, return_when=asyncio.FIRST_COMPLETED)
            await end([stored])
        await end([storing, keeping])
        self._of_client.waiting.pop((self._keys.stream, self._keys.group), None)
        left_s = max(1.0, last_s - asyncio.get_running_loop().time())
        if self._begun.is_set() and not await self._hand_back(left_s, list(self._held.values()), and_leave=True):
            log(
                "messages_left",
                "Redis is away: the messages that this worker holds come back once their leases have run out",
            )

    async def _hand_back(self, seconds: float, messages: list[_Held], *, and_leave: bool = False) -> bool:
        """Let others take messages that have no outcome; return whether Redis did it in time."""

        async def hand_back() -> None:
            if messages:
                for held in messages:
                    held.is_released = True
                before = [(held.entry, held.deliveries - 1) for held in messages]
                self._count("released", await self._stream.hand_back(before))
            if and_leave:
                await self._stream.leave()

        task = asyncio.create_task(self._retrying.until_done(hand_back))
        await asyncio.wait((task,), timeout=seconds)
        await end([task])
        if task.cancelled():
            return False
        task.result()
        for held in messages:
            self._drop(held)
        return True

    # Reading ---------------------------------------------------------------------------------------------------------

    async def _read(self) -> None:
        for warning in await self._retrying.until_done(self._stream.begin):
            log("redis_advice", "%s", warning, reason=warning)
        self._begun.set()
        while not self._stopping.is_set():
            room = await self._wait_for_room()
            if room:
                await self._retrying.until_done(partial(self._read_once, room))

    async def _wait_for_room(self) -> int:
        """Return how many messages may be read; 0: the worker stops."""
        loop = asyncio.get_running_loop()
        since: float | None = None
        while not self._stopping.is_set():
            self._begin_calls()
            free, places = self._room()
            rest_s = _LOOK_S
            if free > 0:
                since = loop.time() if since is None else since
                rest_s = since + _REST_S - loop.time()
                if free >= places // 4 or rest_s <= 0:
                    return free
            else:
                since = None
            self._changed.clear()
            try:
                async with asyncio.timeout(rest_s):
                    await self._changed.wait()
            except TimeoutError:
                continue
        return 0

    def _room(self) -> tuple[int, int]:
        """Return the places for further messages, and all places."""
        self._look()
        places = self._options.look_ahead or max(2, 2 * self._limit)
        if self._held_bytes >= _HELD_BYTES:
            return 0, places
        if self._is_cut_off or self._failures.are_all:
            is_resting = asyncio.get_running_loop().time() < self._failures.rest_until
            return 0 if self._held or is_resting else 1, 1
        return places - len(self._held), places

    def _look(self) -> None:
        """Find out which servers are in use, and what they may have in flight: ten times a second."""
        now = asyncio.get_running_loop().time()
        if now >= self._looked_at + _STATISTICS_S:
            self._looked_at = now
            limits = [each.limit for each in self._client.statistics().endpoints if each.state not in _OUT_OF_USE]
            self._is_cut_off = not limits
            self._limit = max(1, sum(limits))

    async def _read_once(self, room: int) -> None:
        """Take messages, at most so many: those that come back once a second, else new ones."""
        count, now = min(room, self._together), asyncio.get_running_loop().time()
        # Between two claims others are read: those that come back may be those that always fail.
        if now >= self._claim_at and not self._has_claimed:
            deliveries = await self._stream.claim(count)
            self._has_claimed = bool(deliveries)
            self._claim_at = now if deliveries else now + _CLAIM_S
        else:
            self._has_claimed = False
            deliveries = await self._stream.read(count)
        for delivery in deliveries:
            self._take(delivery)
        if deliveries:
            size = sum(len(each.fields.get(b"body") or b"") for each in deliveries)
            most = min(_READ_TOGETHER, _READ_BYTES * len(deliveries) // max(1, size))
            self._together = max(1, min(self._together * _GROWTH, most))

    def _take(self, delivery: Delivery) -> None:
        """Put a message into the line."""
        entry, fields, times = delivery
        known = self._held.get(entry)
        if known is not None:
            # The lease had run out, and nobody else took the message.
            known.deliveries = times
            return
        size = len(fields.get(b"body") or b"")
        self._held[entry] = held = _Held(entry, times, size, asyncio.get_running_loop().time())
        self._held_bytes += size
        try:
            if times > self._options.max_deliveries:
                raise TooManyDeliveries(f"delivered {times} times without an outcome")
            held.message = message = read_message(entry, fields)
        except Exception as error:  # else the next worker would end by the same message
            self._end_dead(held, error)
        else:
            held.kind = message.call, message.model, repr(message.params)
            self._kinds[held.kind] += 1
            self._line.put(held)

    # Calls -----------------------------------------------------------------------------------------------------------

    def _begin_calls(self) -> None:
        """Begin the calls of messages in line, as far as the servers' limits allow."""
        if self._stopping.is_set():
            return
        self._look()
        loop = asyncio.get_running_loop()
        most = self._limit if len(self._kinds) < 2 else 2 * self._limit
        while self._calls < most and (held := self._line.take()) is not None:
            self._calls += 1
            held.began_at = loop.time()
            held.task = loop.create_task(self._answer(held))

    async def _answer(self, held: _Held) -> None:
        """Make the call of a message."""
        message, loop = held.message, asyncio.get_running_loop()
        try:
            call = getattr(self._client, message.call)(
                message.item,
                model=message.model,
                priority=message.priority,
                tenant=message.tenant,
                session=message.session,
                **message.params,
            )
            answer = await (call if message.deadline is None else self._in_time(call, message.deadline))
            body, now = answer.as_dict(), loop.time()
            self._put(held, self._result_of(held, body, answer.attempts, now - held.since))
        except Exception as error:
            self._take_error(held, error)
        else:
            self._failures.take_answer(message.model, now)
        finally:
            self._calls -= 1
            self._begin_calls()

    async def _in_time(self, call: Coroutine[Any, Any, Any], deadline: float) -> Any:
        """Await a call until the message's deadline, by the clock of Redis.

        Raises:
            DeadlineExceeded: which is not retryable.
        """
        left_s = deadline - self._stream.now()
        try:
            if left_s > 0:
                async with asyncio.timeout(left_s) as limit:
                    return await call
        except TimeoutError:
            if not limit.expired():  # the client's own
                raise
        call.close()
        passed = "while its call was under way" if left_s > 0 else "when its call was to begin"
        error = DeadlineExceeded(f"the message's deadline had passed {passed}")
        error.retryable = False
        raise error

    def _take_error(self, held: _Held, error: Exception) -> None:
        """Take in the error of a call."""
        message = held.message
        were_failing = self._failures.are_all
        action = self._failures.take_error(error, message.model, held.began_at, asyncio.get_running_loop().time())
        if self._failures.are_all and not were_failing:
            name = type(error).__name__
            log("servers_ill", "call after call fails (%s): one message at a time is tried", name, reason=name)
            # Another worker may have better servers.
            while (waiting := self._line.take()) is not None:
                self._put_back(waiting)
        match action:
            case Action.DEAD_LETTER:
                self._end_dead(held, error)
            case Action.RELEASE:
                self._put_back(held)
            case Action.LEAVE:
                self._count("left")
                self._drop(held)
            case Action.STOP:  # still held, the message is handed back
                self._error = self._error or error
                self.stop()

    # Outcomes --------------------------------------------------------------------------------------------------------

    def _result_of(self, held: _Held, body: dict[str, Any], attempts: int, seconds: float) -> Outcome:
        if self._keys.form == "none":
            return Outcome(held.entry, "none")
        fields: dict[str, Any] = {
            "id": held.message.id,
            "message": held.entry,
            "status": "ok",
            "body": body,
            "attempts": attempts,
            "deliveries": held.deliveries,
            "worker": self._consumer,
            "seconds": round(seconds, 6),
        }
        if self._keys.form == "key":
            return Outcome(held.entry, "key", (write_json(fields),), self._keys.result_prefix + held.message.id)
        texts = {name: write_json(value) if name == "body" else str(value) for name, value in fields.items()}
        return Outcome(held.entry, "stream", tuple(text for pair in texts.items() for text in pair))

    def _end_dead(self, held: _Held, error: BaseException) -> None:
        fields = {"type": type(error).__name__, "message": str(error)}
        texts = (
            *("message", held.entry, "error", json.dumps(fields, ensure_ascii=False).encode(errors="replace")),
            *("deliveries", str(held.deliveries), "worker", self._consumer, "at", f"{self._stream.now():.3f}"),
        )
        self._put(held, Outcome(held.entry, "dead", texts))

    def _put(self, held: _Held, outcome: Outcome) -> None:
        """Have an outcome stored."""
        held.is_ended = True
        self._outcomes.append(outcome)
        self._has_outcomes.set()
        self._has_none.clear()

    def _put_back(self, held: _Held) -> None:
        held.is_released = True
        self._put(held, Outcome(held.entry, "back", (str(held.deliveries - 1),)))

    async def _store(self) -> None:
        """Store outcomes in groups: what has come while the group before was stored."""
        while True:
            await self._has_outcomes.wait()
            group: list[Outcome] = []
            size = 0
            for outcome in self._outcomes:
                size += sum(map(len, outcome.texts))
                if len(group) == _STORE_TOGETHER or (group and size > _STORE_BYTES):
                    break
                group.append(outcome)
            done = await self._retrying.until_done(partial(self._stream.finish, group))
            for outcome, ended in zip(group, done, strict=True):
                self._outcomes.popleft()
                self._take_stored(self._held[outcome.entry], outcome, ended)
            if not self._outcomes:
                self._has_outcomes.clear()
                self._has_none.set()

    def _take_stored(self, held: _Held, outcome: Outcome, ended: int) -> None:
        """Take in that an outcome is stored, or that the message had ended before."""
        if ended == FOREIGN:
            self._end_dead(held, foreign_key(outcome.key))
            return
        if outcome.form == "back":
            self._count("released")
        elif ended:
            name = "dead" if outcome.form == "dead" else "results"
            self._count(name)
            self._of_client.durations[name].observe(asyncio.get_running_loop().time() - held.since)
        else:
            self._count("lost")
        self._drop(held)

    def _drop(self, held: _Held) -> None:
        """Hold a message no longer; its lease is not renewed any more."""
        held.is_ended = True
        if self._held.pop(held.entry, None) is not None:
            self._held_bytes -= held.size
            if held.kind is not None:
                self._kinds[held.kind] -= 1
                if not self._kinds[held.kind]:
                    del self._kinds[held.kind]
        self._changed.set()

    def _count(self, outcome: str, count: int = 1) -> None:
        """Count messages here, and on the pages about the client."""
        self._counts[outcome] += count
        self._of_client.messages[outcome] += count

    # Leases ----------------------------------------------------------------------------------------------------------

    async def _keep(self) -> None:
        """Renew the leases, look at the group's numbers, and delete the consumers of dead workers."""
        await self._begun.wait()
        loop, options = asyncio.get_running_loop(), self._options
        delete_idle = partial(self._stream.delete_idle, int(_FORGOTTEN_LEASES * options.lease_s * 1000))
        renew_at, figures_at, tidy_at = loop.time() + options.every_s, 0.0, loop.time() + options.lease_s
        while True:
            now = loop.time()
            if now >= renew_at:
                renew_at = now + options.every_s
                await self._retrying.until_done(self._renew)
            if now >= figures_at:
                figures_at = now + _FIGURES_S
                await self._retrying.until_done(self._look_at_group)
            if now >= tidy_at:
                tidy_at = now + options.lease_s
                await self._retrying.until_done(delete_idle)
            await asyncio.sleep(max(0.0, min(renew_at, figures_at, tidy_at) - loop.time()))

    async def _renew(self) -> None:
        entries = [entry for entry, held in self._held.items() if not held.is_released]
        lost = await self._stream.renew(entries) if entries else []
        self._renewals += len(entries) - len(lost)
        self._of_client.renewals += len(entries) - len(lost)
        for entry in lost:
            held = self._held.get(entry)
            # An outcome may be on its way: storing it tells whether it was the first.
            if held is not None and not held.is_ended:
                self._count("lost")
                self._drop(held)
                if held.task is not None:
                    held.task.cancel()

    async def _look_at_group(self) -> None:
        await self._stream.look_at_clock()
        self._waiting = self._of_client.waiting[self._keys.stream, self._keys.group] = Waiting(
            *await self._stream.waiting()
        )


async def _all_done(tasks: list[asyncio.Task[None]]) -> None:
    await asyncio.wait(tasks)


async def _to_its_end(work: Awaitable[None]) -> None:
    """Await something also through cancellations, which are raised afterwards."""
    task = asyncio.ensure_future(work)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            cancelled = error
    task.result()
    if cancelled is not None:
        raise cancelled
