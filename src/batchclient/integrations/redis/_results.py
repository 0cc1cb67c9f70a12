"""``results``: what became of messages, as the outcomes come."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from batchclient.errors import ConfigError, DeadlineExceeded
from batchclient.integrations.redis._connection import Connection, as_text, check_connection, entries_in
from batchclient.integrations.redis._dead import letter_of
from batchclient.integrations.redis._options import STREAM, Keys

__all__ = ["Result", "results"]

_TOGETHER = 500
_FIRST_WAIT_S = 0.01
_LONGEST_WAIT_S = 0.5


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a message.

    Args:
        id: the message's.
        message: its entry in the stream.
        status: ``"ok"``, or ``"error"`` where the message is a dead letter.
        body: the answer's fields, as a row of ``batchclient map`` has them.
        error: of a dead letter, the error's ``type`` and ``message``.
        attempts: requests sent for the message, by the worker that had the answer.
        deliveries: how often the message was delivered.
        worker: the worker.
        seconds: from the delivery to the answer.
    """

    id: str
    message: str
    status: str
    body: Mapping[str, Any] = field(default_factory=dict, repr=False)
    error: Mapping[str, str] | None = None
    attempts: int = 0
    deliveries: int = 0
    worker: str = ""
    seconds: float = 0.0


async def results(
    redis: Connection,
    ids: Iterable[str] | None = None,
    *,
    stream: str = STREAM,
    results: str = "keys",
    dead: str | None = None,
    timeout_s: float | None = None,
) -> AsyncIterator[Result]:
    """Yield the results of messages as they come; a dead letter is a result with an ``error``.

    Nothing is deleted: the keys of results have the worker's ``result_ttl_s``, and a stream of
    results is its reader's to trim.

    Args:
        redis: a ``redis.asyncio.Redis`` or ``RedisCluster`` without ``decode_responses``.
        ids: the messages' ids, as ``enqueue`` returned them; a plain text takes any outcome of its
            id. ``None``, for a stream of results: whatever comes, without an end.
        stream: the stream of messages.
        results: ``"keys"`` or ``"stream:NAME"``, as the worker has it.
        dead: the stream of dead letters, by default the stream's name with ``:dead``.
        timeout_s: seconds until all results must have come; ``None``: any time.

    Raises:
        ConfigError: an argument is wrong; or something else than a worker has stored what lies at
            the keys of all the results that have not come.
        DeadlineExceeded: ``timeout_s`` passed.
        redis.exceptions.RedisError: Redis refuses, or is away.
    """
    check_connection(redis)
    keys = Keys.of(stream, dead=dead, results=results)
    if keys.form == "none" or (ids is None and keys.form == "key"):
        raise ConfigError("ids: which results? Without ids a stream of results is read", field="ids")
    waiting = None if ids is None else {one: _place(getattr(one, "entry", "")) for one in ids}
    streams = ({keys.results: "0-0"} if keys.results else {}) | {keys.dead: "0-0"}
    until = None if timeout_s is None else time.monotonic() + timeout_s
    wait_s = _FIRST_WAIT_S
    while waiting is None or waiting:
        began = time.monotonic()
        foreign: dict[str, ConfigError] = {}
        async for result in _found(redis, streams, keys, waiting if keys.form == "key" else None, foreign):
            # An older message of the same id has outcomes, too.
            if waiting is None or (result.id in waiting and _place(result.message) >= waiting[result.id]):
                if waiting is not None:
                    del waiting[result.id]
                wait_s = _FIRST_WAIT_S
                yield result
        if waiting is not None and not waiting:
            return
        if waiting is not None and foreign.keys() >= waiting.keys():
            raise next(iter(foreign.values()))
        if until is not None and time.monotonic() >= until:
            left = "" if waiting is None else f"; {len(waiting)} are missing"
            raise DeadlineExceeded(f"timeout_s passed while results were waited for{left}")
        # A look at many keys takes long: Redis has time for others in between.
        await asyncio.sleep(max(wait_s, min(_LONGEST_WAIT_S, time.monotonic() - began)))
        wait_s = min(2 * wait_s, _LONGEST_WAIT_S)


async def _found(
    redis: Connection,
    streams: dict[str, str],
    keys: Keys,
    ids: Mapping[str, object] | None,
    foreign: dict[str, ConfigError],
) -> AsyncIterator[Result]:
    """Yield what has come since the last look, page by page; dead letters last: they stay for long.

    Errors of keys that no worker has stored are put into ``foreign``.
    """
    if ids:
        async for result in _from_keys(redis, keys.result_prefix, list(ids), foreign):
            yield result
    async for result in _from_streams(redis, streams, keys.dead):
        yield result


async def _from_keys(
    redis: Connection, prefix: str, ids: list[str], foreign: dict[str, ConfigError]
) -> AsyncIterator[Result]:
    for start in range(0, len(ids), _TOGETHER):
        some = ids[start : start + _TOGETHER]
        async with redis.pipeline(transaction=False) as pipe:
            for one in some:
                pipe.get(prefix + one)
            values = await pipe.execute(raise_on_error=False)
        for one, value in zip(some, values, strict=True):
            if isinstance(value, Exception) and "WRONGTYPE" not in str(value):
                raise value
            try:
                if isinstance(value, Exception):
                    raise foreign_key(prefix + one)
                if value is not None:
                    yield _result_of(one, value)
            except ConfigError as error:
                foreign[one] = error


async def _from_streams(redis: Connection, streams: dict[str, str], dead: str) -> AsyncIterator[Result]:
    """Yield the outcomes behind the places noted in ``streams``, and note the new places."""
    for name in list(streams):
        while page := list(entries_in(await redis.xrange(name, min=f"({streams[name]}", count=_TOGETHER))):
            streams[name] = page[-1][0]
            for entry, fields in page:
                sent = fields or {}
                if name == dead:
                    letter = letter_of(entry, sent)
                    yield Result(
                        letter.id,
                        letter.message,
                        "error",
                        error=letter.error,
                        deliveries=letter.deliveries,
                        worker=letter.worker,
                    )
                else:
                    texts = {as_text(key): as_text(value) for key, value in sent.items()}
                    yield _result_of(texts.get("id", entry), texts)


def foreign_key(key: str) -> ConfigError:
    """Return the error of a result's key that holds something else than a text."""
    return ConfigError(f"results: the key {key!r:.80} holds no result, and is left as it is", field="results")


def _place(entry: object) -> list[str]:
    """Return an entry's place in its stream, to be compared."""
    return [number.rjust(20) for number in str(entry).split("-")]


def _result_of(identity: str, stored: bytes | dict[str, Any]) -> Result:
    """Read a stored result.

    Raises:
        ConfigError: something else is stored there.
    """
    try:
        fields = json.loads(stored) if isinstance(stored, bytes) else stored | {"body": json.loads(stored["body"])}
        return Result(
            identity,
            fields["message"],
            fields["status"],
            fields["body"],
            None,
            int(fields["attempts"]),
            int(fields["deliveries"]),
            fields["worker"],
            float(fields["seconds"]),
        )
    except (KeyError, TypeError, ValueError, RecursionError):
        message = f"results: the result of {identity!r:.80} was stored by something else than a worker"
        raise ConfigError(message, field="results") from None
