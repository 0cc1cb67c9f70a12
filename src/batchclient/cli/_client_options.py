"""The options of a client, which several commands have."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from batchclient.cli._refusal import BACKENDS, PRESETS, concurrency_from, one_of
from batchclient.options import Batching, Http

__all__ = [
    "ApiKey",
    "BaseUrl",
    "Concurrency",
    "EndpointsShard",
    "Headers",
    "HttpBackend",
    "MaxBatchSize",
    "MetricsPort",
    "Model",
    "Preset",
    "client_options",
]

BaseUrl = Annotated[
    list[str] | None,
    typer.Option(
        help="The server's root with its /v1; repeatable. Default: BATCHCLIENT_BASE_URL, URLs separated by spaces."
    ),
]
EndpointsShard = Annotated[
    str | None,
    typer.Option(
        metavar="I/N", help="Send to one of N parts of the servers, 0/N to N-1/N: N workers have disjoint parts."
    ),
]
Model = Annotated[
    str | None,
    typer.Option(help="The model's name, needed where the server has several models. Default: BATCHCLIENT_MODEL."),
]
Preset = Annotated[
    str, typer.Option(help="latency, balanced or throughput: how long rows may wait for a larger batch.")
]
Concurrency = Annotated[
    str | None,
    typer.Option(
        metavar="N|auto",
        help="Sequences in flight per server, at most (default: auto, which finds the number).",
    ),
]
MaxBatchSize = Annotated[
    int | None, typer.Option(metavar="N", help="Prompts in a request, at most (default: the preset's).")
]
ApiKey = Annotated[
    str | None,
    typer.Option(
        help="Sent as a bearer token. Default: BATCHCLIENT_API_KEY, which no list of processes shows.",
    ),
]
Headers = Annotated[
    list[str] | None, typer.Option(metavar="'NAME: VALUE'", help="Sent with every request; repeatable.")
]
HttpBackend = Annotated[
    str | None,
    typer.Option(help="httpx, or httpx2 or aiohttp with the extra of the same name."),
]
MetricsPort = Annotated[
    str | None,
    typer.Option(metavar="P", help="Serve /metrics for Prometheus and /statistics at 127.0.0.1:P, or at HOST:P."),
]


def client_options(
    preset: str,
    concurrency: str | None,
    max_batch_size: int | None,
    http_backend: str | None,
    linger_s: float | None = None,
) -> dict[str, Any]:
    """Return arguments of ``BatchClient``.

    Raises:
        Refusal: an option is wrong.
    """
    preset = one_of("--preset", preset, PRESETS)
    backend = None if http_backend is None else one_of("--http-backend", http_backend, BACKENDS)
    return {
        "preset": preset,
        "limit": concurrency_from(concurrency),
        "batching": Batching(max_size=max_batch_size, linger_s=linger_s),
        "http": Http(backend=backend),
    }
