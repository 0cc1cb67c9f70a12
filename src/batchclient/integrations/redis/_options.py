"""The names of the keys around a stream, and the arguments and statistics of a worker.

Rules:
- All keys of a stream are in one slot of a Redis Cluster where the stream's name has a hash tag:
  ``{queue}`` has results ``result:{queue}:<id>``. Without a tag the names are those of plain Redis,
  ``result:<id>``.
"""

from __future__ import annotations

import os
import re
import secrets
import socket
from dataclasses import dataclass

from batchclient.errors import ConfigError

__all__ = ["STREAM", "Keys", "WorkerOptions", "WorkerStatistics"]

STREAM = "inference_queue"
"""The stream, unless another is named."""
_TAG = re.compile(r"\{[^}]+\}")
_RENEWALS = 3
"""Renewals in the time of a lease, at least."""
_LONGEST_S = 1e7
_ROUNDING = 1e-9


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys around one stream, checked.

    Args:
        stream: of messages.
        group: the consumer group of the workers.
        dead: the stream of dead letters.
        form: of results: ``key``, ``stream`` or ``none``.
        results: the stream of results, if there is one.
    """

    stream: str
    group: str
    dead: str
    form: str
    results: str | None

    @classmethod
    def of(cls, stream: str, group: str = "batchclient", dead: str | None = None, results: str = "keys") -> Keys:
        """Check the names.

        Raises:
            ConfigError: a name is empty, two are equal, or ``results`` is no place for results.
        """
        dead = f"{stream}:dead" if dead is None else dead
        for field, name in (("stream", stream), ("group", group), ("dead", dead)):
            if not isinstance(name, str) or not name:
                raise ConfigError(f"{field} is a name", field=field)
        if dead == stream:
            raise ConfigError("dead: dead letters go into another stream than messages", field="dead")
        if results in ("keys", "none"):
            return cls(stream, group, dead, results.removesuffix("s"), None)
        kind, _, name = results.partition(":") if isinstance(results, str) else ("", "", "")
        if kind != "stream" or not name:
            raise ConfigError(f"results: keys, stream:NAME or none, not {results!r:.40}", field="results")
        if name in (stream, dead):
            raise ConfigError(f"results: {name!r} has messages or dead letters; name another stream", field="results")
        return cls(stream, group, dead, "stream", name)

    @property
    def result_prefix(self) -> str:
        """The beginning of the key of a result; the id follows."""
        tag = _TAG.search(self.stream)
        return f"result:{tag[0]}:" if tag else "result:"

    @property
    def streams(self) -> dict[str, str]:
        """The names of the streams, by the arguments that name them."""
        return {"stream": self.stream, "dead": self.dead, "results": self.results or self.stream}

    def check_slots(self) -> None:
        """Refuse names that a cluster keeps at different nodes.

        Raises:
            ConfigError: the names have not the same hash tag.
        """
        own = _TAG.search(self.stream)
        for field, name in self.streams.items():
            tag = _TAG.search(name)
            if own is None or tag is None or tag[0] != own[0]:
                like = own[0] if own else f"{{{self.stream}}}"
                raise ConfigError(
                    f"{field}: a Redis Cluster keeps a stream's keys together by a hash tag, as in {like!r}",
                    field=field,
                )


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """A worker's arguments, by the names of ``Worker``, checked.

    Args:
        keys: of the stream.
        consumer: the worker's name; ``None``: of the host, the process and chance. (In containers
            on the host's network every process may be number 1 of the same host.)
        result_ttl_s, lease_s, renew_s, max_deliveries, grace_s, look_ahead: as given.

    Raises:
        ConfigError: an argument is wrong.
    """

    keys: Keys
    consumer: str | None
    result_ttl_s: int
    lease_s: float
    renew_s: float | None
    max_deliveries: int
    grace_s: float
    look_ahead: int | None

    def __post_init__(self) -> None:
        for name in ("lease_s", "renew_s", "grace_s"):
            seconds = getattr(self, name)
            if name == "renew_s" and seconds is None:
                continue
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 <= seconds < _LONGEST_S:
                raise ConfigError(f"{name} is a number of seconds, at least 0, not {seconds!r:.40}", field=name)
        if self.every_s <= 0 or self.lease_s < _RENEWALS * self.every_s * (1 - _ROUNDING):
            raise ConfigError(f"lease_s: at least {_RENEWALS} times renew_s, and above 0", field="lease_s")
        for name, least in (("max_deliveries", 1), ("look_ahead", 1), ("result_ttl_s", 0)):
            count = getattr(self, name)
            if (type(count) is not int or count < least) and not (name == "look_ahead" and count is None):
                raise ConfigError(f"{name} is a whole number of at least {least}, not {count!r:.40}", field=name)
        if self.consumer is not None and (not isinstance(self.consumer, str) or not self.consumer):
            raise ConfigError("consumer is a name", field="consumer")
        for field, name in (("stream", self.keys.stream), ("dead", self.keys.dead)):
            if self.keys.form == "key" and name.startswith(self.keys.result_prefix):
                raise ConfigError(
                    f"{field}: {name!r} may be the key of a result, since it begins with {self.keys.result_prefix!r}",
                    field=field,
                )

    @property
    def every_s(self) -> float:
        """Seconds from one renewal to the next."""
        return self.lease_s / _RENEWALS if self.renew_s is None else self.renew_s

    def consumer_name(self) -> str:
        """Return the worker's name, which no other worker has."""
        return self.consumer or f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"


@dataclass(frozen=True, slots=True)
class WorkerStatistics:
    """What a worker is doing and has done.

    Args:
        held: messages that the worker has now.
        results: messages that ended with a result.
        dead: messages that ended as dead letters.
        left: deliveries after which a message was left to its lease, since its error may pass.
        released: messages handed back; such a delivery does not count.
        lost: messages that another worker took, or ended, after the lease had run out.
        renewals: leases renewed.
        pending: messages that any worker of the group has, when last looked.
        lag: messages that nobody has had, when last looked; ``None`` where Redis cannot tell.
    """

    held: int
    results: int
    dead: int
    left: int
    released: int
    lost: int
    renewals: int
    pending: int
    lag: int | None
