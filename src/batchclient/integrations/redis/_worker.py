"""``Worker``: takes messages of a stream as there are permits, and ends each by one outcome.

Rules:
- A message is *held* from its delivery until its outcome is stored. At most ``look_ahead`` are
  held: memory does not grow with the queue.
- Reading, renewing and finishing are three tasks. None waits for another's turn, and each bears a
  Redis that is away: work under way goes on, and its outcomes are kept until Redis is back.
- A lease is renewed every third of its time. A message whose lease has run out may be another
  worker's: its call is cancelled once that is seen.
- The calls have no task each: a held message is the waiter of its own request.
- While every server is out of use nothing is read, except one message where none is held: the call
  that finds out whether a server is back. Errors that may pass, in a row, have the same effect.
- Whatever a message does to this code, the message is a dead letter, and the worker goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from typing import Any

from batchclient._metrics.worker import OUTCOMES, counts_of
from batchclient._shell.log import log
from batchclient._shell.runner import Runner
from batchclient.client import BatchClient
from batchclient.errors import ClientClosed, ConfigError, DeadlineExceeded, NotFound
from batchclient.integrations.redis._broker import FOREIGN, Broker, Delivery, Outcome
from batchclient.integrations.redis._draining import Drain
from batchclient.integrations.redis._finishing import Finisher
from batchclient.integrations.redis._keeping import Keeper
from batchclient.integrations.redis._library import Connection, check_connection
from batchclient.integrations.redis._messages import read_message
from batchclient.integrations.redis._model import know_model
from batchclient.integrations.redis._names import STREAM
from batchclient.integrations.redis._outcomes import Judge, ResultForm, TooManyDeliveries, Verdict
from batchclient.integrations.redis._patience import Patience
from batchclient.integrations.redis._reading import Reader, Room
from batchclient.integrations.redis._result_reading import foreign_key
from batchclient.integrations.redis._settings import WorkerStatistics, make_settings
from batchclient.integrations.redis._tasks import LOOK_S, end, to_its_end
from batchclient.integrations.redis._work import Work
from batchclient.types import NOT_GIVEN, NotGiven

__all__ = ["Worker"]


_HELD_BYTES = 64 * 1024 * 1024
"""Bytes of bodies beyond which no further message is read."""
_OUT_OF_USE = ("ejected", "probing", "awaited")


class Worker:
    """Works on the messages of a Redis stream with a client.

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
        grace_s: how long work under way may take to end after ``stop``, seconds.
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
        settings = make_settings(
            stream, group, consumer, results, result_ttl_s, dead, lease_s, renew_s, max_deliveries, grace_s, look_ahead
        )
        self._settings = settings
        self._client = client
        self._broker = Broker(redis, settings)
        self._form = ResultForm(settings.form, settings.names.result_prefix, settings.consumer)
        self._judge = Judge()
        self._patience = Patience(self._broker.reconnect)
        self._changed = asyncio.Event()
        self._stopping = asyncio.Event()
        self._finisher = Finisher(self._broker, self._patience, self._on_finished)
        self._reader = Reader(self._broker, settings.lease_s, self._room, self._take, self._changed, self._stopping)
        self._held: dict[str, Work] = {}
        self._held_bytes = 0
        self._keeper = Keeper(self._broker, self._patience, settings, self._held, self._on_lost, counts_of(client))
        self._error: BaseException | None = None
        self._looked_at = 0.0
        self._is_cut_off = False
        self._runner: Runner
        self._counts = dict.fromkeys(OUTCOMES, 0)
        self._of_client = counts_of(client)
        self._drain = Drain(
            self._broker, self._patience, self._finisher, self._held, self._changed, self._give_up, self._on_released
        )

    def __repr__(self) -> str:
        return f"<Worker of {self._settings.names.stream!r}: {len(self._held)} held>"

    def statistics(self) -> WorkerStatistics:
        """Return a snapshot."""
        return WorkerStatistics(
            held=len(self._held),
            **self._counts,
            renewals=self._keeper.renewals,
            pending=self._keeper.figures.pending,
            lag=self._keeper.figures.lag,
        )

    def _count(self, outcome: str, count: int = 1) -> None:
        """Count messages here, and on the pages about the client."""
        self._counts[outcome] += count
        self._of_client.messages[outcome] += count

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
        self._runner = self._client._start()
        # Nothing but tasks of our own is awaited here: redis-py drops a cancellation that comes
        # while it connects.
        tasks = [asyncio.create_task(self._begin())]
        stopping = asyncio.create_task(self._stopping.wait())
        grace_s = 0.0
        try:
            await asyncio.wait((stopping, *tasks), return_when=asyncio.FIRST_COMPLETED)
            if tasks[0].done() and tasks[0].exception() is None and not self._stopping.is_set():
                tasks += map(asyncio.create_task, (self._take_in(), self._finisher.run(), self._keeper.run()))
                await asyncio.wait((stopping, *tasks[1:]), return_when=asyncio.FIRST_COMPLETED)
                if self._error is None and not any(task.done() for task in tasks[2:]):
                    grace_s = self._settings.grace_s
        finally:
            self.stop()
            asyncio.gather(*tasks, return_exceptions=True)  # takes the errors that are not raised below
            await to_its_end(self._end(tasks, stopping, grace_s))
        for task in tasks:
            if not task.cancelled() and (error := task.exception()) is not None:
                raise error
        if self._error is not None:
            raise self._error

    async def _end(self, tasks: list[asyncio.Task[None]], stopping: asyncio.Task[bool], grace_s: float) -> None:
        """End the tasks of ``run``, and leave the group."""
        await end([stopping, tasks[0]])
        if tasks[1:]:
            _, reading, finishing, keeping = tasks
            try:
                await self._drain.run(reading, finishing, grace_s)
            finally:
                await end([finishing, keeping])
                self._keeper.close()
            await self._drain.leave()

    async def _begin(self) -> None:
        """Check Redis and the keys, and make the group."""
        for warning in await self._patience.bear(self._broker.begin, self._stopping) or ():
            log("redis_advice", "%s", warning, reason=warning)

    # Reading ---------------------------------------------------------------------------------------------------------

    async def _take_in(self) -> None:
        while not self._stopping.is_set():
            refusal = await know_model(self._client, self._runner, self._patience, self._stopping)
            if refusal is not None:
                self._fail(refusal)
            room = await self._reader.wait_for_room()
            if room:
                await self._patience.bear(partial(self._reader.read, room), self._stopping, self._broker)

    def _room(self) -> Room:
        ahead = self._settings.look_ahead or max(2, 2 * self._runner.core.total_limit)
        if self._held_bytes >= _HELD_BYTES:
            return 0, ahead
        now = asyncio.get_running_loop().time()
        if now >= self._looked_at + LOOK_S:
            self._looked_at = now
            self._is_cut_off = all(each.state in _OUT_OF_USE for each in self._client.statistics().endpoints)
        if self._is_cut_off or self._judge.is_ill:
            return (0 if self._held or now < self._judge.rest_until else 1), 1
        return ahead - len(self._held), ahead

    def _take(self, delivery: Delivery) -> None:
        """Begin the work on a message."""
        known = self._held.get(delivery.entry)
        if known is not None:
            # The lease had run out, and nobody else took the message.
            known.deliveries = delivery.count
            return
        fields = delivery.fields or {}
        size = len(fields.get(b"body") or b"")
        work = Work(self, delivery.entry, delivery.count, size, asyncio.get_running_loop().time())
        self._held[delivery.entry] = work
        self._held_bytes += size
        try:
            if delivery.count > self._settings.max_deliveries:
                raise TooManyDeliveries(f"delivered {delivery.count} times without an outcome")
            work.message = read_message(delivery.entry, fields)
            self._open(work)
        except ClientClosed as error:
            work.end()
            self._fail(error)
        except Exception as error:  # else the next worker would end by the same message
            self._end_dead(work, error)

    def _open(self, work: Work) -> None:
        """Submit the call of a message.

        Raises:
            BadMessage, ConfigError: the message cannot be used.
            ClientClosed: the client was closed under the worker.
            DeadlineExceeded: its deadline has passed.
        """
        message = work.message
        timeout_s: float | NotGiven = NOT_GIVEN
        if message.deadline is not None:
            timeout_s = message.deadline - self._broker.now()
            if timeout_s <= 0:
                raise DeadlineExceeded("the message's deadline had passed when it was delivered")
            timeout_s = min(timeout_s, self._client._settings.timeout_s or timeout_s)
        now = self._runner.backend.now()
        work.request = request = self._client._calls.make(
            message.item,
            message.model,
            timeout_s,
            message.params,
            work,
            now,
            message.priority,
            message.tenant,
            message.kind,
        )
        self._runner.submit(request, may_wait=True)

    # Outcomes --------------------------------------------------------------------------------------------------------

    def _on_answer(self, work: Work, answer: Any) -> None:
        """Take in the answer of a held message."""
        try:
            body = answer.as_dict()
        except Exception as error:  # an answer that this code cannot use
            self._end_dead(work, error)
        else:
            self._succeed(work, body, answer.attempts)

    def _on_error(self, work: Work, error: BaseException) -> None:
        """Take in the error of a held message."""
        verdict = self._judge.verdict(error, work.message, self._broker.now())
        is_unknown = isinstance(error, NotFound) and work.message.model is None
        if verdict is Verdict.DEAD and is_unknown and self._client._calls.asks_model:
            # The servers have another model by now: they are asked before the next message.
            verdict = Verdict.BACK
        was_ill = self._judge.is_ill
        self._judge.note_error(error, verdict, asyncio.get_running_loop().time())
        if self._judge.is_ill and not was_ill:
            name = type(error).__name__
            log("servers_ill", "call after call fails (%s): one message at a time is tried", name, reason=name)
        match verdict:
            case Verdict.DEAD:
                self._end_dead(work, error)
            case Verdict.BACK:
                self._end_back(work)
            case Verdict.LEFT:
                self._count("left")
                self._drop(work)
            case Verdict.STOP:  # still held, the message is handed back
                self._fail(error)

    def _succeed(self, work: Work, body: Mapping[str, Any], attempts: int) -> None:
        self._judge.succeed()
        seconds = asyncio.get_running_loop().time() - work.since
        self._finisher.put(
            self._form.result(work.message, body, attempts=attempts, deliveries=work.deliveries, seconds=seconds)
        )

    def _end_dead(self, work: Work, error: BaseException) -> None:
        work.end()
        at = self._broker.now()
        self._finisher.put(self._form.dead(work.entry, error, deliveries=work.deliveries, at=at))

    def _end_back(self, work: Work) -> None:
        """Hand a message back, as if it had not been delivered."""
        work.end()
        self._finisher.put(Outcome(work.entry, "back"))

    def _on_finished(self, outcome: Outcome, ended: int) -> None:
        """Take in that an outcome is stored, or that the message had ended before."""
        if ended == FOREIGN:
            self._end_dead(self._held[outcome.entry], foreign_key(outcome.key))
            return
        if outcome.form == "back":
            self._count("released")
        elif ended:
            self._count("dead" if outcome.form == "dead" else "results")
        else:
            self._count("lost")
        work = self._held.get(outcome.entry)
        if work is not None:
            self._drop(work)

    def _on_released(self, count: int) -> None:
        self._count("released", count)

    def _drop(self, work: Work) -> None:
        """Hold a message no longer; its lease is not renewed any more."""
        work.end()
        if self._held.pop(work.entry, None) is not None:
            self._held_bytes -= work.size
        self._changed.set()

    def _give_up(self, work: Work) -> None:
        """End the work on a message without an outcome."""
        work.end()
        if work.request is not None:
            self._runner.leave(work.request)
        self._drop(work)

    def _fail(self, error: BaseException) -> None:
        self._error = self._error or error
        self.stop()

    def _on_lost(self, entry: str) -> None:
        """Take in that a message is another worker's, or has ended."""
        work = self._held.get(entry)
        # An outcome may be on its way: finishing tells whether it was the first.
        if work is not None and not work.done():
            self._count("lost")
            self._give_up(work)
