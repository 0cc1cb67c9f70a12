"""Many small awaits in, few well-shaped requests out: an async client for self-hosted LLM servers.

Users call ``client``. ``_shell.runner`` drives ``_core``, the scheduler without clock or I/O, with
a clock and tasks. ``dialects`` turn batches into a server's bytes and back, ``transport`` moves
bytes.
``simulator`` is a server to test against.
"""

import sys
from typing import TYPE_CHECKING

if sys.argv[:1] == ["-m"]:
    # ``python -m batchclient`` begins here, not in ``__main__``.
    import batchclient_script

    if batchclient_script.is_program(__name__):
        batchclient_script.quit_on_interrupt()

from batchclient._core.histograms import Histogram
from batchclient._core.limits import ServerLoad
from batchclient._core.messages import Adjustment
from batchclient._core.statistics import EndpointStatistics, LaneStatistics, LengthStatistics, Statistics
from batchclient._shell.log import Decision
from batchclient._shell.servers import ServerInfo
from batchclient._version import __version__
from batchclient.client import BatchClient, RowClient
from batchclient.errors import (
    AnswerInvalid,
    AuthenticationFailed,
    BadRequest,
    BatchClientError,
    BatchMapFailed,
    CallAborted,
    CertificateRefused,
    ClientClosed,
    ConfigError,
    ConnectFailed,
    ConnectionLost,
    DeadlineExceeded,
    DemuxError,
    DialectError,
    JournalFailed,
    LocalError,
    MissingField,
    NoServerAnswered,
    NotFound,
    OutOfSockets,
    QueueFull,
    RateLimited,
    ReadTimedOut,
    RemoteError,
    ResponseTooLarge,
    ServerFault,
    TooManyBadRows,
    TransportError,
)
from batchclient.maps import RowStream
from batchclient.retry import Backoff, RetryPolicy, TenacityRetry
from batchclient.stream import Stream
from batchclient.types import (
    Choice,
    Classification,
    Completion,
    Delta,
    Embedding,
    LogLikelihood,
    MapProgress,
    MapResult,
    MapResults,
    RankedDocument,
    Ranking,
    Score,
    TokenLikelihood,
    Usage,
)

if TYPE_CHECKING:
    from batchclient._maps.repair import Repair
    from batchclient.journal import Journal
    from batchclient.options import AdaptiveLimit, Batching, Http, Queue, Server, Telemetry
    from batchclient.price import Price
    from batchclient.rows import RowCall, read_call
    from batchclient.sync import SyncBatchClient, SyncRowStream, SyncStream

_LATER = {
    **dict.fromkeys(("AdaptiveLimit", "Batching", "Http", "Queue", "Server", "Telemetry"), "batchclient.options"),
    "Journal": "batchclient.journal",
    "Price": "batchclient.price",
    "Repair": "batchclient._maps.repair",
    **dict.fromkeys(("RowCall", "read_call"), "batchclient.rows"),
    **dict.fromkeys(("SyncBatchClient", "SyncRowStream", "SyncStream"), "batchclient.sync"),
}
"""Names imported when first asked for: an import of the package takes 7 % less time."""


def __getattr__(name: str) -> object:
    module = _LATER.get(name)
    if module is None:
        from batchclient._old_names import refuse_old

        refuse_old({name} & {"Schedule"})
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value: object = getattr(import_module(module), name)
    globals()[name] = value
    return value


__all__ = [
    "AdaptiveLimit",
    "Adjustment",
    "AnswerInvalid",
    "AuthenticationFailed",
    "Backoff",
    "BadRequest",
    "BatchClient",
    "BatchClientError",
    "BatchMapFailed",
    "Batching",
    "CallAborted",
    "CertificateRefused",
    "Choice",
    "Classification",
    "ClientClosed",
    "Completion",
    "ConfigError",
    "ConnectFailed",
    "ConnectionLost",
    "DeadlineExceeded",
    "Decision",
    "Delta",
    "DemuxError",
    "DialectError",
    "Embedding",
    "EndpointStatistics",
    "Histogram",
    "Http",
    "Journal",
    "JournalFailed",
    "LaneStatistics",
    "LengthStatistics",
    "LocalError",
    "LogLikelihood",
    "MapProgress",
    "MapResult",
    "MapResults",
    "MissingField",
    "NoServerAnswered",
    "NotFound",
    "OutOfSockets",
    "Price",
    "Queue",
    "QueueFull",
    "RankedDocument",
    "Ranking",
    "RateLimited",
    "ReadTimedOut",
    "RemoteError",
    "Repair",
    "ResponseTooLarge",
    "RetryPolicy",
    "RowCall",
    "RowClient",
    "RowStream",
    "Score",
    "Server",
    "ServerFault",
    "ServerInfo",
    "ServerLoad",
    "Statistics",
    "Stream",
    "SyncBatchClient",
    "SyncRowStream",
    "SyncStream",
    "Telemetry",
    "TenacityRetry",
    "TokenLikelihood",
    "TooManyBadRows",
    "TransportError",
    "Usage",
    "__version__",
    "read_call",
]
