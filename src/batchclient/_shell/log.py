"""The log of a client's endpoints, and what the client decides by itself about them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from batchclient._common.log import EVENTS, LEFT_OUT, Recent, is_written, log

__all__ = ["Decision", "EndpointLog"]


class EndpointLog:
    """Logs events of endpoints; repeated ones now and then.

    Args:
        now: the time, seconds.
        url_of: returns an endpoint's base URL as it may be shown.
    """

    __slots__ = ("_now", "_recent", "_url_of")

    def __init__(self, now: Callable[[], float], url_of: Callable[[int], str]) -> None:
        self._now = now
        self._url_of = url_of
        self._recent = Recent()

    def __call__(self, name: str, endpoint: int, message: str, *args: object, **fields: Any) -> None:
        """Write a record, if its turn has come; ``fields``: without the endpoint."""
        event = EVENTS[name]
        if not is_written(name):
            return
        if event.repeats:
            left_out = self._recent.left_out(name, endpoint, self._now())
            if left_out is None:
                return
            if left_out:
                message, args = f"{message} (%d more like it in the time before)", (*args, left_out)
                fields[LEFT_OUT] = left_out
        log(name, message, *args, endpoint=self._url_of(endpoint), **fields)


class Decision(NamedTuple):
    """Something that the client decided by itself about a server.

    Args:
        at_s: seconds since the client's first call.
        server: its base URL, without a query.
        what: such as ``"limit 256 → 128"``, ``"batch_size_cap 64 → 32"`` or the server's new state.
        why: in the client's own words and numbers; nothing that a server or a prompt says.
    """

    at_s: float
    server: str
    what: str
    why: str
