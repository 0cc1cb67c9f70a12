"""One stream and its group as a worker sees them: read, claim, renew, finish, hand back.

Rules:
- Nothing here waits for Redis to come back: each method raises redis-py's error.
- Times are by the clock of Redis, never the worker's.
- Only commands that Redis 6.2 and Valkey share.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from batchclient.errors import ConfigError
from batchclient.integrations.redis import _scripts as scripts
from batchclient.integrations.redis._library import Connection, RedisError, ResponseError, as_text, entries_in
from batchclient.integrations.redis._names import RELEASED
from batchclient.integrations.redis._settings import WorkerSettings

__all__ = ["FOREIGN", "Broker", "Delivery", "GroupFigures", "Outcome"]

_OLDEST = (6, 2)
_LONGEST_BLOCK_MS = 60_000
_MOST_LOOKED_AT = 10_000
FOREIGN = 2
"""What the key of a result holds is no worker's."""
_TOGETHER = 500
"""Entries of one script call, at most."""


@dataclass(slots=True)  # frozen would cost a microsecond or two a message
class Delivery:
    """An entry that this consumer was given.

    Args:
        entry: its id.
        fields: ``None`` where somebody has deleted the entry.
        count: how often the entry was delivered, this time included.
    """

    entry: str
    fields: Mapping[bytes, bytes] | None
    count: int


@dataclass(slots=True)  # frozen would cost a microsecond or two a message
class Outcome:
    """How a message ends.

    Args:
        entry: its id.
        form: ``key``, ``stream``, ``none`` or ``dead``: where the texts go; ``back``: the message
            is handed back.
        texts: a key's value; or names and values of fields.
        key: the key of the value.
    """

    entry: str
    form: str
    texts: tuple[bytes | str, ...] = ()
    key: str = ""

    @property
    def size(self) -> int:
        """About how many bytes are sent."""
        return sum(map(len, self.texts))


@dataclass(frozen=True, slots=True)
class GroupFigures:
    """Numbers of a group.

    Args:
        pending: messages that a worker has.
        lag: messages that no worker has; ``None`` where Redis cannot tell.
    """

    pending: int
    lag: int | None


class Broker:
    """The commands of one worker.

    Args:
        redis: the connection.
        settings: the worker's.
    """

    def __init__(self, redis: Connection, settings: WorkerSettings) -> None:
        self._redis = redis
        self._names = names = settings.names
        self._consumer = settings.consumer
        self._results = settings.results or names.stream
        self._ttl = str(settings.result_ttl_s)
        self._lease_ms = int(settings.lease_s * 1000)
        self._finish = redis.register_script(scripts.FINISH)
        self._renew = redis.register_script(scripts.RENEW)
        self._hand_back = redis.register_script(scripts.HAND_BACK)
        self._leave = redis.register_script(scripts.LEAVE)
        self._forget_deleted = redis.register_script(scripts.FORGET_DELETED)
        self._most_block_ms = _most_block_ms(redis)
        self._clock_offset_s = 0.0
        self._claim_from = "0-0"

    def __repr__(self) -> str:
        return f"<Broker of {self._names.stream!r} for {self._consumer!r}>"

    # Before the first message ----------------------------------------------------------------------------------------

    async def begin(self) -> list[str]:
        """Check the server and the keys, and make the group; return warnings.

        Raises:
            ConfigError: the server is too old, or a key holds something else.
        """
        info: Mapping[str, Any] = await self._info("server")
        version = str(info.get("redis_version", "6.2"))
        if tuple(int(part) if part.isdigit() else 0 for part in version.split(".")[:2]) < _OLDEST:
            raise ConfigError(
                f"redis: the server is Redis {version}, and 6.2 is the oldest that will do", field="redis"
            )
        if "cluster" in (info.get("redis_mode"), info.get("server_mode")):  # Redis' name, and Valkey's
            self._names.check_slots(self._results)
        await self.check_streams()
        await self.make_group()
        await self.look_at_clock()
        return [warning async for warning in self._warnings()]

    async def _info(self, section: str) -> Mapping[str, Any]:
        try:
            info = await self._redis.info(section)
        except ResponseError:  # to Redis INFO is a dangerous command, which the user may not have
            return {}
        # A cluster answers by node.
        nodes = [each for each in info.values() if isinstance(each, Mapping)]
        return nodes[0] if nodes and len(nodes) == len(info) else info

    async def check_streams(self) -> None:
        """Refuse keys of other types.

        Raises:
            ConfigError: a key is no stream.
        """
        for field, name in (("stream", self._names.stream), ("dead", self._names.dead), ("results", self._results)):
            kind = as_text(await self._redis.type(name))
            if kind not in ("stream", "none"):
                hint = "; enqueue --from-list moves it" if kind == "list" and field == "stream" else ""
                raise ConfigError(f"{field}: the key {name!r} is a {kind}, not a stream{hint}", field=field)

    async def make_group(self) -> None:
        """Make the group, from the stream's beginning, where there is none."""
        try:
            await self._redis.xgroup_create(self._names.stream, self._names.group, id="0", mkstream=True)
        except ResponseError as error:
            if not str(error).startswith("BUSYGROUP"):
                raise

    async def _warnings(self) -> Any:
        persistence = await self._info("persistence")
        if not persistence.get("aof_enabled", 1):
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

    async def reconnect(self) -> None:
        """Close the connections that are not in use, so that the next commands make new ones."""
        pool = getattr(self._redis, "connection_pool", None)  # a cluster's client finds its master by itself
        if pool is not None:
            with contextlib.suppress(RedisError, OSError):
                await pool.disconnect(inuse_connections=False)

    # Messages --------------------------------------------------------------------------------------------------------

    async def read(self, count: int, block_ms: int) -> list[Delivery]:
        """Read messages that nobody has had; wait for the first one."""
        stream = self._names.stream
        reply = await self._redis.xreadgroup(
            self._names.group, self._consumer, {stream: ">"}, count=count, block=min(block_ms, self._most_block_ms)
        )
        if isinstance(reply, list):
            reply = reply[0][1] if reply else []
        return [Delivery(entry, fields, 1) for entry, fields in entries_in(reply)]

    async def claim(self, count: int) -> tuple[list[Delivery], bool]:
        """Take messages whose lease has run out; return whether there may be more of them."""
        names = self._names
        reply = await self._redis.xautoclaim(
            names.stream, names.group, self._consumer, self._lease_ms, self._claim_from, count=count
        )
        self._claim_from = as_text(reply[0])
        return await self._counted(reply[1]), self._claim_from != "0-0"

    async def claim_released(self, count: int) -> list[Delivery]:
        """Take messages that another worker has handed back."""
        names = self._names
        pending = await self._redis.xpending_range(names.stream, names.group, "-", "+", count, RELEASED)
        if not pending:
            return []
        entries: list[Any] = [each["message_id"] for each in pending]
        reply = await self._redis.xclaim(names.stream, names.group, self._consumer, self._lease_ms, entries)
        return await self._counted(reply)

    async def _counted(self, reply: Sequence[Any]) -> list[Delivery]:
        """Find out how often claimed messages were delivered."""
        claimed = list(entries_in(reply))
        if len(claimed) < len(reply):
            # Redis 6.2 claims messages that somebody has deleted, and does not say which.
            args = [self._names.group, self._consumer, str(_MOST_LOOKED_AT)]
            await self._forget_deleted(keys=[self._names.stream], args=args)
        if not claimed:
            return []
        names = self._names
        async with self._redis.pipeline(transaction=False) as pipe:
            for entry, _ in claimed:
                pipe.xpending_range(names.stream, names.group, entry, entry, 1, self._consumer)
            replies = await pipe.execute()
        return [
            Delivery(entry, fields, reply[0]["times_delivered"])
            for (entry, fields), reply in zip(claimed, replies, strict=True)
            if reply
        ]

    async def renew(self, entries: Sequence[str]) -> list[str]:
        """Renew leases; return the entries that are another's by now, or ended."""
        lost: list[str] = []
        for start in range(0, len(entries), _TOGETHER):
            args = [self._names.group, self._consumer, *entries[start : start + _TOGETHER]]
            lost += map(as_text, await self._renew(keys=[self._names.stream], args=args))
        return lost

    async def finish(self, outcomes: Sequence[Outcome]) -> list[int]:
        """End messages, or hand them back.

        Returns:
            Of each 1, or 0 if it had been ended before, or ``FOREIGN``.

        Raises:
            ConfigError: the key of dead letters or results holds something else.
        """
        back = [outcome.entry for outcome in outcomes if outcome.form == "back"]
        if back:
            await self.hand_back(back)
        ended = await self._end([outcome for outcome in outcomes if outcome.form != "back"])
        return [1 if outcome.form == "back" else next(ended) for outcome in outcomes]

    async def _end(self, outcomes: Sequence[Outcome]) -> Iterator[int]:
        keys = [self._names.stream, self._names.dead, self._results]
        args: list[bytes | str] = [self._names.group, self._ttl]
        if not outcomes:
            return iter(())
        for outcome in outcomes:
            if outcome.form == "key":
                keys.append(outcome.key)
                args += (outcome.entry, "key", outcome.texts[0])
            else:
                args += (outcome.entry, outcome.form, str(len(outcome.texts)), *outcome.texts)
        try:
            done: list[int] = await self._finish(keys=keys, args=args)
        except ResponseError as error:
            if "NOSTREAM" in str(error):
                await self.check_streams()
            raise
        return iter(done)

    async def forget(self, entries: Iterable[str]) -> None:
        """Acknowledge entries that somebody has deleted."""
        await self._redis.xack(self._names.stream, self._names.group, *entries)

    # The end, and the others -----------------------------------------------------------------------------------------

    async def hand_back(self, entries: Sequence[str]) -> int:
        """Give messages of this consumer back; return how many."""
        names, total = self._names, 0
        args = [names.group, self._consumer, RELEASED, str(2 * self._lease_ms)]
        for start in range(0, len(entries), _TOGETHER):
            some = [*args, *entries[start : start + _TOGETHER]]
            total += int(await self._hand_back(keys=[names.stream], args=some))
        return total

    async def leave(self) -> None:
        """Delete the consumer, if it has no message."""
        await self._delete(self._consumer)

    async def delete_idle(self, idle_ms: int) -> None:
        """Delete consumers without messages that were not heard of for so long: dead workers'."""
        names = self._names
        for each in await self._redis.xinfo_consumers(names.stream, names.group):
            name = as_text(each["name"])
            if not each["pending"] and each["idle"] > idle_ms and name not in (RELEASED, self._consumer):
                await self._delete(name)

    async def _delete(self, consumer: str) -> None:
        await self._leave(keys=[self._names.stream], args=[self._names.group, consumer])

    async def figures(self) -> GroupFigures:
        """Return the group's numbers."""
        for group in await self._redis.xinfo_groups(self._names.stream):
            if as_text(group["name"]) == self._names.group:
                return GroupFigures(group["pending"], group.get("lag"))
        return GroupFigures(0, None)


def _most_block_ms(redis: Connection) -> int:
    """Return how long a reading may wait at most: half of the time in which Redis must answer."""
    pool = getattr(redis, "connection_pool", None)
    timeout_s = None if pool is None else pool.connection_kwargs.get("socket_timeout")
    return max(1, int(500 * timeout_s)) if timeout_s else _LONGEST_BLOCK_MS
