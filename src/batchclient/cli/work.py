"""``batchclient work``: a worker of a Redis stream, until a signal.

Rules:
- A wrong command is refused before a message is read.
- Options win over the variables of older workers, ``VLLM_URL``, ``BATCH_SIZE`` and
  ``BATCH_TIMEOUT_MS``, which this command alone reads; ``VLLM_URL`` wins over
  ``BATCHCLIENT_BASE_URL``.
- No line holds a prompt, the key, or a password of Redis.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from batchclient import BatchClient
from batchclient.cli._metrics import address_from, serve_metrics
from batchclient.cli._options import (
    ApiKey,
    BaseUrl,
    Concurrency,
    EndpointsShard,
    Guest,
    Headers,
    LogFormat,
    MetricsPort,
    Model,
    Quiet,
    client_arguments,
    server_arguments,
)
from batchclient.cli._redis import (
    GROUP,
    REDIS,
    STREAM,
    DeadStream,
    GroupName,
    RedisUrl,
    StreamName,
    connected,
    shown_redis,
)
from batchclient.cli._refusal import Refusal, in_options
from batchclient.cli._signals import on_signals
from batchclient.cli._words import say
from batchclient.errors import BatchClientError, ConfigError
from batchclient.jobs.statuses import of_signal

if TYPE_CHECKING:
    from batchclient.integrations.redis import Worker

__all__ = ["work"]

_SAID_EVERY_S = 60.0
_LONGEST_WAIT_MS = 3_600_000


def work(
    context: typer.Context,
    *,
    redis: RedisUrl = REDIS,
    stream: StreamName = STREAM,
    group: GroupName = GROUP,
    consumer: Annotated[
        str | None, typer.Option(metavar="NAME", help="This worker's own (default: of host and process).")
    ] = None,
    results: Annotated[
        str, typer.Option(metavar="keys|stream:NAME|none", help="Where results go; keys are result:<id>.")
    ] = "keys",
    result_ttl: Annotated[
        int, typer.Option(min=0, metavar="S", help="Seconds that the key of a result lives; 0: for ever.")
    ] = 86_400,
    dead: DeadStream = None,
    lease: Annotated[
        float, typer.Option(min=10, metavar="S", help="Seconds after which others may take an unrenewed message.")
    ] = 60.0,
    max_deliveries: Annotated[
        int, typer.Option(min=1, metavar="N", help="A message delivered more often is a dead letter.")
    ] = 5,
    grace: Annotated[
        float, typer.Option(min=0, metavar="S", help="Seconds for calls under way to end after a signal.")
    ] = 25.0,
    look_ahead: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Messages held, at most (default: twice the limit).")
    ] = None,
    base_url: BaseUrl = None,
    endpoints_shard: EndpointsShard = None,
    model: Model = None,
    api_key: ApiKey = None,
    header: Headers = None,
    concurrency: Concurrency = None,
    guest: Guest = False,
    max_batch_size: Annotated[
        int,
        typer.Option(min=1, metavar="N", envvar="BATCH_SIZE", show_envvar=False, help="Prompts in a request, at most."),
    ] = 32,
    batch_timeout_ms: Annotated[float, typer.Option(envvar="BATCH_TIMEOUT_MS", hidden=True)] = 100.0,
    timeout: Annotated[
        float | None, typer.Option(metavar="S", help="Seconds for a message, from the beginning of its call.")
    ] = None,
    metrics_port: MetricsPort = None,
    log_format: LogFormat = None,  # noqa: ARG001  # read by the frame
    quiet: Quiet = False,
) -> int:
    """Answer the messages of a Redis stream until Ctrl-C or SIGTERM.

    A signal lets calls under way end for --grace seconds and hands the other messages back. The
    environment may give REDIS_URL, VLLM_URL (URLs separated by commas), BATCH_SIZE (32) and
    BATCH_TIMEOUT_MS (100). Exit status: 2 wrong usage or a refused key, 1 Redis refuses a command,
    129 hangup, 130 Ctrl-C, 143 SIGTERM.
    """
    if not 0 <= batch_timeout_ms <= _LONGEST_WAIT_MS:
        raise Refusal(f"BATCH_TIMEOUT_MS: milliseconds from 0 to {_LONGEST_WAIT_MS:,}, not {batch_timeout_ms:g}")
    source = context.get_parameter_source("base_url")
    older = [] if source is not None and source.name == "COMMANDLINE" else _urls_of_older_workers()
    try:
        server = server_arguments(older or base_url, model, api_key, header, endpoints_shard)
        pace = client_arguments(concurrency, max_batch_size, guest=guest, linger_s=batch_timeout_ms / 1000)
        client = BatchClient(**server, **pace, timeout_s=timeout)
    except ConfigError as error:
        if older and error.field == "base_url":
            raise Refusal(f"VLLM_URL: {error.message.removeprefix('base_url: ')}") from None
        raise
    arguments = {
        "stream": stream,
        "group": group,
        "consumer": consumer,
        "results": results,
        "result_ttl_s": result_ttl,
        "dead": dead,
        "lease_s": lease,
        "max_deliveries": max_deliveries,
        "grace_s": grace,
        "look_ahead": look_ahead,
    }
    address = address_from(metrics_port)

    async def run() -> int:
        tell = _nothing if quiet else say
        async with connected(redis) as connection, client:
            from batchclient.integrations.redis import Worker

            serve_metrics(client, address, tell)
            worker = Worker(client, connection, **arguments)  # type: ignore[arg-type]
            servers = ", ".join(each.base_url for each in client.statistics().endpoints)
            tell(f"working on {stream} at {shown_redis(redis)}, with {servers}")
            return await _until_signal(worker, tell)

    return asyncio.run(run())


def _urls_of_older_workers() -> list[str]:
    """Return the servers of ``VLLM_URL``; ``/v1`` is added where a URL does not end with it."""
    urls = [url.strip() for url in os.environ.get("VLLM_URL", "").split(",") if url.strip()]
    return [url if url.rstrip("/").endswith("/v1") else f"{url.rstrip('/')}/v1" for url in urls]


async def _until_signal(worker: Worker, tell: Callable[..., None]) -> int:
    """Run a worker; return the status of the signal that ended it.

    Raises:
        Refusal: the servers refuse the client.
        ConfigError, RedisError: the worker cannot begin, or Redis refuses.
    """
    loop, signals = asyncio.get_running_loop(), list[int]()

    def stop(number: int) -> None:
        signals.append(number)
        loop.call_soon_threadsafe(worker.stop)

    reporting = asyncio.create_task(_report(worker, tell))
    try:
        with on_signals(stop):
            await worker.run()
    except ConfigError:
        raise
    except BatchClientError as error:
        tell(f"{_counts(worker)}; {worker.statistics().released:,} handed back")
        raise Refusal(in_options(str(error))) from None
    finally:
        reporting.cancel()
    tell(f"{_counts(worker)}; {worker.statistics().released:,} handed back")
    return of_signal(signals[0])


async def _report(worker: Worker, tell: Callable[..., None]) -> None:
    before = ""
    while True:
        await asyncio.sleep(_SAID_EVERY_S)
        done = worker.statistics()
        if (counts := _counts(worker)) != before:
            before = counts
            lag = "" if done.lag is None else f", {done.lag:,} wait"
            tell(f"{counts}, {done.held:,} held{lag}", event="progress")


def _counts(worker: Worker) -> str:
    done = worker.statistics()
    return f"{done.results:,} results, {done.dead:,} dead letter{'' if done.dead == 1 else 's'}"


def _nothing(*_lines: str, **_fields: Any) -> None:
    pass
