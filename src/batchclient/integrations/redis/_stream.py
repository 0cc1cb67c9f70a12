"""One stream and its group as a worker sees them: read, claim, renew, finish, hand back.

Rules:
- Nothing here waits for Redis to come back: each method raises redis-py's error.
- Times are by the clock of Redis, never the worker's.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, NamedTuple

from batchclient.errors import ConfigError
from batchclient.integrations.redis import _scripts as scripts
from batchclient.integrations.redis._connection import Connection, ResponseError, as_text, entries_in
from batchclient.integrations.redis._messages import Outcome
from batchclient.integrations.redis._options import WorkerOptions

__all__ = ["Delivery", "WorkerStream"]

_OLDEST = (7, 0)
_LONGEST_BLOCK_MS = 500
"""How long a reading waits for a message: as long as a stop may wait for a reading."""
_MOST_CLAIMS = 100
_TOGETHER = 500
"""Entries of one script call, at most."""


class Delivery(NamedTuple):
    """An entry that this consumer was given.

    Args:
        entry: its id.
        fields: as Redis has them.
        times: how often the entry was delivered, this time included.
    """

    entry: str
    fields: Mapping[bytes, bytes]
    times: int


class WorkerStream:
    """The commands of one worker.

    Args:
        redis: the connection.
        options: the worker's.
        consumer: the worker's name.
    """

    def __init__(self, redis: Connection, options: WorkerOptions, consumer: str) -> None:
        self._redis = redis
        self._keys = keys = options.keys
        self._consumer = consumer
        self._stream, self._group = keys.stream, keys.group
        self._ttl = str(options.result_ttl_s)
        self._lease_ms = int(options.lease_s * 1000)
        self._finish = redis.register_script(scripts.FINISH)
        self._renew = redis.register_script(scripts.RENEW)
        self._hand_back = redis.register_script(scripts.HAND_BACK)
        self._leave = redis.register_script(scripts.LEAVE)
        pool = getattr(redis, "connection_pool", None)
        timeout_s = None if pool is None else pool.connection_kwargs.get("socket_timeout")
        self._block_ms = min(_LONGEST_BLOCK_MS, max(1, int(500 * timeout_s))) if timeout_s else _LONGEST_BLOCK_MS
        self._clock_offset_s = 0.0
        self._claim_from = "0-0"

    def __repr__(self) -> str:
        return f"<WorkerStream {self._stream!r} for {self._consumer!r}>"

    # Before the first message ----------------------------------------------------------------------------------------

    async def begin(self) -> list[str]:
        """Check the server and the keys, and make the group; return warnings.

        Raises:
            ConfigError: the server is too old, or a key holds something else.
        """
        info = await self._info("server")
        version = str(info.get("redis_version", "7.0"))
        if tuple(int(part) if part.isdigit() else 0 for part in version.split(".")[:2]) < _OLDEST:
            raise ConfigError(
                f"redis: the server is Redis {version}, and 7.0 is the oldest that will do", field="redis"
            )
        if "cluster" in (info.get("redis_mode"), info.get("server_mode")):  # Redis' name, and Valkey's
            self._keys.check_slots()
        await self._check_streams()
        await self.make_group()
        await self.look_at_clock()
        return [warning async for warning in self._warnings()]

    async def _info(self, section: str) -> Mapping[str, Any]:
        try:
            info: Mapping[str, Any] = await self._redis.info(section)
        except ResponseError:  # to Redis INFO is a dangerous command, which the user may not have
            return {}
        # A cluster answers by node.
        nodes = [each for each in info.values() if isinstance(each, Mapping)]
        return nodes[0] if nodes and len(nodes) == len(info) else info

    async def _check_streams(self) -> None:
        for field, name in self._keys.streams.items():
            kind = as_text(await self._redis.type(name))
            if kind not in ("stream", "none"):
                hint = "; enqueue --from-list moves it" if kind == "list" and field == "stream" else ""
                raise ConfigError(f"{field}: the key {name!r} is a {kind}, not a stream{hint}", field=field)

    async def make_group(self) -> None:
        """Make the group, from the stream's beginning, where there is none."""
        try:
            await self._redis.xgroup_create(self._stream, self._group, id="0", mkstream=True)
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise

    async def _warnings(self) -> AsyncIterator[str]:
        if not (await self._info("persistence")).get("aof_enabled", 1):
            try:
                saves = (await self._redis.config_get("save")).get("save")
            except ResponseError:  # a managed Redis does not tell
                saves = "?"
            if not saves:
                yield "Redis keeps nothing on a disk: its restart loses the queue (appendonly yes keeps it)"
        policy = (await self._info("memory")).get("maxmemory_policy", "noeviction")
        if policy != "noeviction":
            yield f"maxmemory-policy is {policy}: a full Redis drops keys, results among them; noeviction drops none"

    async def look_at_clock(self) -> None:
        """Compare the clock of Redis with this machine's."""
        seconds, microseconds = await self._redis.time()
        self._clock_offset_s = seconds + microseconds / 1e6 - time.monotonic()

    def now(self) -> float:
        """Return the time of Redis, Unix seconds."""
        return time.monotonic() + self._clock_offset_s

    # Messages --------------------------------------------------------------------------------------------------------

    async def read(self, count: int) -> list[Delivery]:
        """Read messages that nobody has had; wait for half a second for the first one."""
        reply: Any = await self._redis.xreadgroup(
            self._group, self._consumer, {self._stream: ">"}, count=count, block=self._block_ms
        )
        if isinstance(reply, list):
            reply = reply[0][1] if reply else []
        return [Delivery(entry, fields, 1) for entry, fields in entries_in(reply)]

    async def claim(self, count: int) -> list[Delivery]:
        """Take messages whose lease has run out, or that were handed back."""
        claimed: list[tuple[str, Mapping[bytes, bytes]]] = []
        for _ in range(_MOST_CLAIMS):  # each looks at ten times as many pending messages
            reply = await self._redis.xautoclaim(
                self._stream, self._group, self._consumer, self._lease_ms, self._claim_from, count=count
            )
            self._claim_from = as_text(reply[0])
            claimed = list(entries_in(reply[1]))
            if claimed or self._claim_from == "0-0":
                break
        if not claimed:
            return []
        async with self._redis.pipeline(transaction=False) as pipe:
            for entry, _ in claimed:
                pipe.xpending_range(self._stream, self._group, entry, entry, 1, self._consumer)
            replies = await pipe.execute()
        return [
            Delivery(entry, fields, each[0]["times_delivered"])
            for (entry, fields), each in zip(claimed, replies, strict=True)
            if each
        ]

    async def renew(self, entries: Sequence[str]) -> list[str]:
        """Renew leases; return the entries that are another's by now, or ended."""
        lost: list[str] = []
        for start in range(0, len(entries), _TOGETHER):
            args = [self._group, self._consumer, *entries[start : start + _TOGETHER]]
            lost += map(as_text, await self._renew(keys=[self._stream], args=args))
        return lost

    async def finish(self, outcomes: Sequence[Outcome]) -> list[int]:
        """End messages, or hand them back.

        Returns:
            Of each 1, or 0 if it had been ended before, or ``FOREIGN``.

        Raises:
            ConfigError: the key of dead letters or results holds something else.
        """
        back = [(outcome.entry, int(outcome.texts[0])) for outcome in outcomes if outcome.form == "back"]
        if back:
            await self.hand_back(back)
        keys = list(self._keys.streams.values())
        args: list[bytes | str] = [self._group, self._ttl]
        for entry, form, texts, key in outcomes:
            if form == "key":
                keys.append(key)
                args += (entry, form, texts[0])
            elif form != "back":
                args += (entry, form, str(len(texts)), *texts)
        if len(back) == len(outcomes):
            return [1] * len(back)
        try:
            done = iter(await self._finish(keys=keys, args=args))
        except ResponseError as error:
            if "NOSTREAM" in str(error):
                await self._check_streams()
            raise
        return [1 if outcome.form == "back" else next(done) for outcome in outcomes]

    async def hand_back(self, entries: Sequence[tuple[str, int]]) -> int:
        """Let others take messages of this consumer at once; return how many.

        Args:
            entries: each with its number of deliveries from then on.
        """
        total = 0
        for start in range(0, len(entries), _TOGETHER):
            args: list[str | int] = [self._group, self._consumer, 2 * self._lease_ms]
            for pair in entries[start : start + _TOGETHER]:
                args += pair
            total += int(await self._hand_back(keys=[self._stream], args=args))
        return total

    # The group -------------------------------------------------------------------------------------------------------

    async def leave(self, consumer: str | None = None) -> None:
        """Delete the consumer, or another one, if it has no message."""
        await self._leave(keys=[self._stream], args=[self._group, consumer or self._consumer])

    async def delete_idle(self, idle_ms: int) -> None:
        """Delete consumers without messages that were not heard of for so long: dead workers'."""
        for each in await self._redis.xinfo_consumers(self._stream, self._group):
            name = as_text(each["name"])
            if not each["pending"] and each["idle"] > idle_ms and name != self._consumer:
                await self.leave(name)

    async def waiting(self) -> tuple[int, int | None]:
        """Return how many messages a worker of the group has, and how many no worker has had."""
        for group in await self._redis.xinfo_groups(self._stream):
            if as_text(group["name"]) == self._group:
                return group["pending"], group.get("lag")
        return 0, None
