"""The servers' model, where the client was given none: asked for until one tells."""

from __future__ import annotations

import asyncio

from batchclient._shell.log import log
from batchclient._shell.runner import Runner
from batchclient.client import BatchClient
from batchclient.errors import BatchClientError
from batchclient.integrations.redis._patience import Patience
from batchclient.integrations.redis._tasks import end

__all__ = ["know_model"]


async def know_model(
    client: BatchClient, runner: Runner, patience: Patience, stopping: asyncio.Event
) -> BatchClientError | None:
    """Wait until the model is known, or the worker stops; return a refusal of the servers."""
    while client._calls.asks_model and not stopping.is_set():
        asking = asyncio.create_task(client._find_model(runner))
        stopped = asyncio.create_task(stopping.wait())
        await asyncio.wait((asking, stopped), return_when=asyncio.FIRST_COMPLETED)
        await end([asking, stopped])
        if asking.cancelled():
            return None
        error = asking.exception()
        if error is None:
            continue
        if not isinstance(error, BatchClientError):
            raise error
        if not error.retryable:
            return error
        name = type(error).__name__
        log("model_unknown", "the servers cannot be asked for their model (%s); nothing is read", name, reason=name)
        await patience.wait_a_little(stopping)
    return None
