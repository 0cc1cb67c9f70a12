"""Work from Redis Streams: messages in, results and dead letters out (extra ``redis``).

``Worker`` reads messages as there are permits and sends their calls through a ``BatchClient``;
``enqueue`` puts messages into a stream, and ``results`` reads what became of them. ``move_list``
empties an older queue, a Redis list, into the stream.
"""

from __future__ import annotations

from batchclient.integrations.redis._dead import dead_letters, drop_dead, retry_dead
from batchclient.integrations.redis._enqueue import enqueue, move_list
from batchclient.integrations.redis._failures import TooManyDeliveries
from batchclient.integrations.redis._messages import BadMessage
from batchclient.integrations.redis._options import WorkerStatistics
from batchclient.integrations.redis._results import Result, results
from batchclient.integrations.redis._worker import Worker

__all__ = [
    "BadMessage",
    "Result",
    "TooManyDeliveries",
    "Worker",
    "WorkerStatistics",
    "dead_letters",
    "drop_dead",
    "enqueue",
    "move_list",
    "results",
    "retry_dead",
]
