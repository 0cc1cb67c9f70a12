"""The constructors' arguments as type checkers see them are those that are taken."""

from inspect import signature
from typing import get_type_hints

import openai
import pytest

from batchclient import options
from batchclient.client import BATCH_CLIENT_ARGUMENTS
from batchclient.integrations._batcher import _NOT_HERE
from batchclient.integrations._transports import TransportArguments
from batchclient.openai._arguments import AsyncArguments, SyncArguments
from batchclient.openai._batching import _SETTINGS
from batchclient.options import SharingArguments


@pytest.mark.parametrize(
    ("theirs", "arguments"), [(openai.AsyncOpenAI, AsyncArguments), (openai.OpenAI, SyncArguments)]
)
def test_the_drop_ins_are_openais_and_ours(theirs, arguments):
    openais = signature(theirs.__init__).parameters.keys() - {"self"}
    typed = arguments.__annotations__.keys()
    assert typed >= openais | _SETTINGS | {"ignored_headers"}
    if openai.VERSION.startswith("3."):
        assert typed == openais | _SETTINGS | {"ignored_headers"}


def test_the_transports_are_ours():
    assert TransportArguments.__annotations__.keys() == BATCH_CLIENT_ARGUMENTS - _NOT_HERE.keys() - {
        "base_url",
        "transport",
    }


def test_the_shared_ones_have_the_clients_types():
    from batchclient.client import BatchClient
    from batchclient.retry import RetryPolicy
    from batchclient.transport import Transport

    named = ("AdaptiveLimit", "Batching", "Http", "Queue", "Server", "Telemetry")
    groups = {name: getattr(options, name) for name in named}
    import httpx

    httpx2 = pytest.importorskip("httpx2")
    names = {"RetryPolicy": RetryPolicy, "Transport": Transport, "httpx": httpx, "httpx2": httpx2} | groups

    clients = get_type_hints(BatchClient.__init__, localns=names)
    for name, kind in get_type_hints(SharingArguments, localns=names).items():
        assert clients[name] in (kind, kind | None), name
