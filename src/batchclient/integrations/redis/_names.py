"""The names of keys, and of consumers.

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

__all__ = ["RELEASED", "STREAM", "Names", "own_consumer"]

STREAM = "inference_queue"
"""The stream, unless another is named."""
RELEASED = "released"
"""The consumer that handed-back messages belong to until a worker takes them."""
_TAG = re.compile(r"\{[^}]+\}")


@dataclass(frozen=True, slots=True)
class Names:
    """The names around one stream.

    Args:
        stream: the stream of messages.
        group: the consumer group of the workers.
        dead: the stream of dead letters.
    """

    stream: str
    group: str
    dead: str

    @classmethod
    def of(cls, stream: str, group: str = "batchclient", dead: str | None = None) -> Names:
        """Check the names.

        Raises:
            ConfigError: a name is empty, or two are equal.
        """
        named = {"stream": stream, "group": group, "dead": f"{stream}:dead" if dead is None else dead}
        for field, name in named.items():
            if not isinstance(name, str) or not name:
                raise ConfigError(f"{field} is a name", field=field)
        if named["dead"] == stream:
            raise ConfigError("dead: dead letters go into another stream than messages", field="dead")
        return cls(**named)

    @property
    def result_prefix(self) -> str:
        """The beginning of the key of a result; the id follows."""
        tag = self._tag
        return f"result:{tag[0]}:" if tag else "result:"

    def check_slots(self, results: str) -> None:
        """Refuse names that a cluster keeps at different nodes.

        Args:
            results: the stream of results, or the stream.

        Raises:
            ConfigError: the names have not the same hash tag.
        """
        for field, name in (("stream", self.stream), ("dead", self.dead), ("results", results)):
            tag = _TAG.search(name)
            if tag is None or self._tag is None or tag[0] != self._tag[0]:
                like = self._tag[0] if self._tag else f"{{{self.stream}}}"
                raise ConfigError(
                    f"{field}: a Redis Cluster keeps a stream's keys together by a hash tag, as in {like!r}",
                    field=field,
                )

    @property
    def _tag(self) -> re.Match[str] | None:
        return _TAG.search(self.stream)


def own_consumer() -> str:
    """Return a name that no other worker has: of the host, of the process, and of chance.

    In containers on the host's network every process may be number 1 of the same host.
    """
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(2)}"
