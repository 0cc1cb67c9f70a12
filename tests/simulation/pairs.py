"""What can go wrong, in which state it can find a call, its batch, its endpoint or the client, and which pairs cannot be.

A *hit* is one fault that took effect; it is counted once for each state that held at that moment.
"""

from enum import Enum

__all__ = ["LISTS_ONLY", "PLAIN_ONLY", "SERVER_FAULTS", "STREAMED_ONLY", "Fault", "State", "cannot_be"]


class Fault(Enum):
    """What goes wrong. The value is how the table names it."""

    # A server's, or the network's.
    REFUSED = "connection refused"
    RESET = "reset before the response"
    RESET_IN_BODY = "reset in mid-body"
    RESET_IN_STREAM = "reset in mid-stream"
    CUT_BODY = "truncated body"
    CUT_STREAM = "truncated stream"
    SLOW = "slow"
    SILENT = "silent"
    SILENT_IN_STREAM = "silent in mid-stream"
    BAD_PROMPT = "400 for one prompt"
    NO_LISTS = "400: no lists"
    LISTS_FAIL = "500: no lists"
    NO_STREAMS = "400: no streams"
    TOO_LARGE = "413"
    LIST_TOO_LONG = "422: list too long"
    LIMITED = "429"
    LIMITED_FOR = "429, Retry-After"
    BROKEN = "500"
    UNAVAILABLE = "503"
    UNAVAILABLE_FOR = "503, Retry-After"
    WRONG_INDEX = "index wrong, missing"
    INDEX_TWICE = "index twice"
    ERROR_EVENT = "error in mid-stream"
    GENERATION_ABORTED = "finish_reason: abort"
    # A caller's.
    CANCEL = "caller cancels"
    DEADLINE = "deadline passes"
    # The client's user's.
    PAUSE = "pause"
    RESUME = "resume"
    RETUNE = "retune"
    ADD = "endpoint added"
    REMOVE = "endpoint drained"
    REMOVE_NOW = "endpoint removed now"
    ABORT = "abort"
    DRAIN = "drain"
    CLOSE = "close"


class State(Enum):
    """In which state a fault finds what it hits. The value is the table's column."""

    # Of the call; of an event that concerns all calls, of any of them.
    QUEUED = "queued"
    BACKING_OFF = "backing off"
    IN_FLIGHT = "in flight"
    # Of its batch.
    IN_LIST = "list"
    ALONE = "alone"
    FIRST = "first try"
    AGAIN = "again"
    HALF = "half"
    """A part of a list that is being searched for a bad prompt."""
    MATE_GONE = "mate gone"
    """The caller of another call in the batch has gone."""
    # Of its endpoint; of an event that concerns all, of any of them.
    HEALTHY = "healthy"
    EJECTED = "ejected"
    PROBING = "probing"
    RECOVERING = "recovering"
    LEAVING = "leaving"
    # Of the client.
    PAUSED = "paused"
    DRAINING = "draining"


_FAULTS = list(Fault)
SERVER_FAULTS = frozenset(_FAULTS[: _FAULTS.index(Fault.CANCEL)])
STREAMED_ONLY = frozenset(
    {Fault.RESET_IN_STREAM, Fault.CUT_STREAM, Fault.SILENT_IN_STREAM, Fault.NO_STREAMS, Fault.ERROR_EVENT}
)
PLAIN_ONLY = frozenset({Fault.RESET_IN_BODY, Fault.CUT_BODY})
LISTS_ONLY = frozenset({Fault.NO_LISTS, Fault.LISTS_FAIL, Fault.LIST_TOO_LONG})


def cannot_be(fault: Fault, state: State) -> str | None:
    """Why a fault never finds this state; ``None`` if it can."""
    if fault in SERVER_FAULTS and state in (State.QUEUED, State.BACKING_OFF):
        return "a server's fault hits what was sent to it"
    if fault in LISTS_ONLY and state is State.ALONE:
        return "it is about lists"
    if fault in LISTS_ONLY and state is State.PROBING:
        return "a probe is one call"
    if fault is Fault.ADD and state is State.DRAINING:
        return "a draining client takes no endpoint"
    if fault is Fault.DRAIN and state is State.PAUSED:
        return "drain() resumes a paused client first"
    return None
