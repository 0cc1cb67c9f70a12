"""The errors that calls end with when nothing but time or the client itself ends them."""

from __future__ import annotations

from batchclient._core.messages import Request, RequestState
from batchclient.errors import BatchClientError, DeadlineExceeded

__all__ = ["copy_of", "too_late"]


def too_late(request: Request) -> DeadlineExceeded:
    """The error of a call whose deadline has passed, by where it is."""
    where = {
        RequestState.IN_FLIGHT: "while the server worked on it",
        RequestState.BACKING_OFF: "while waiting to be tried again",
        RequestState.WAITING: "while waiting for a place in the queue",
        RequestState.NEW: "before it was queued",
    }.get(request.state, "in the queue")
    return DeadlineExceeded(f"the call's timeout_s passed {where}", attempt=request.attempts)


def copy_of(error: BatchClientError) -> BatchClientError:
    """An error of its own for one more caller."""
    # Callers never share an exception object: each raise adds to its traceback.
    own = type(error)(error.message)
    own.__dict__.update(error.__dict__)
    own.__cause__ = error.__cause__
    return own
