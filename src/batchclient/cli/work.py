"""``batchclient work``: a worker of a Redis stream, until a signal.

Rules:
- A wrong command is refused before a message is read.
- Options win over ``VLLM_URL``, which this command alone reads, and that over
  ``BATCHCLIENT_BASE_URL``. A complaint about a value from the environment names the variable.
- No line holds a prompt, the key, or a password of Redis.
"""

from __future__ import annotations

import asyncio
import math
import os
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from batchclient._client.connections import shown
from batchclient.cli._client_options import (
    ApiKey,
    BaseUrl,
    Concurrency,
    EndpointsShard,
    Headers,
    HttpBackend,
    MaxBatchSize,
    MetricsPort,
    Model,
    Preset,
    client_options,
)
from batchclient.cli._log import LogFormat, LogLevel, LogOptions, log_options, log_to, said_by
from batchclient.cli._metrics import Address, address_from, serve_metrics
from batchclient.cli._redis import (
    DeadStream,
    GroupName,
    RedisUrl,
    StreamName,
    connected,
    group_name,
    redis_url,
    shown_redis,
    stream_name,
    told,
)
from batchclient.cli._refusal import Refusal, headers_from
from batchclient.cli._servers import KEY_HINT, ServerOptions, server_options
from batchclient.cli._signals import on_signals
from batchclient.cli._words import say
from batchclient.client import InnerClient
from batchclient.errors import AuthenticationFailed, BatchClientError, ConfigError
from batchclient.jobs.statuses import Status, of_signal

__all__ = ["work"]

_LEAST_LEASE_S = 10.0
_BATCH_SIZE = 32
_BATCH_TIMEOUT_MS = 100.0
_TOLD_EVERY_S = 60.0
_VARIABLES = {"batching.max_size": "BATCH_SIZE", "batching.linger_s": "BATCH_TIMEOUT_MS"}
"""The variables of arguments of the client."""
_MOST_DIGITS = 9
_LONGEST_WAIT_MS = 3_600_000


@dataclass(frozen=True, slots=True)
class _Options:
    redis: str
    server: ServerOptions
    client: dict[str, Any]
    worker: dict[str, Any]
    metrics: Address | None
    quiet: bool
    log: LogOptions


def work(
    *,
    redis: RedisUrl = None,
    stream: StreamName = None,
    group: GroupName = None,
    consumer: Annotated[str | None, typer.Option(help="This worker's name (default: of host and process).")] = None,
    results: Annotated[
        str, typer.Option(metavar="keys|stream:NAME|none", help="Where results go; keys are result:<id>.")
    ] = "keys",
    result_ttl: Annotated[
        int, typer.Option(min=0, metavar="S", help="Seconds that the key of a result lives; 0: for ever.")
    ] = 86_400,
    dead: DeadStream = None,
    lease: Annotated[
        float, typer.Option(metavar="S", help="Seconds after which another worker may take a message unrenewed.")
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
    preset: Preset = "throughput",
    concurrency: Concurrency = None,
    max_batch_size: MaxBatchSize = None,
    timeout: Annotated[float | None, typer.Option(help="Seconds for a message, from its delivery.")] = None,
    api_key: ApiKey = None,
    header: Headers = None,
    http_backend: HttpBackend = None,
    metrics_port: MetricsPort = None,
    log_format: LogFormat = None,
    log_level: LogLevel = "warning",
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Say nothing but complaints.")] = False,
) -> None:
    """Answer the messages of a Redis stream until Ctrl-C or SIGTERM.

    A signal lets calls under way end for --grace seconds and hands the other messages back. The
    environment may give REDIS_URL, VLLM_URL (URLs separated by commas), BATCH_SIZE (32) and
    BATCH_TIMEOUT_MS (100). Exit status: 2 wrong usage or a refused key, 1 Redis refuses a command,
    129 hangup, 130 Ctrl-C, 143 SIGTERM.
    """
    with ExitStack() as stderr:
        url: str | None = None
        with told():
            log = log_options(log_format, log_level)
            stderr.enter_context(said_by(log))
            url = redis_url(redis)
            if not _LEAST_LEASE_S <= lease < math.inf:
                raise Refusal(f"--lease: at least {_LEAST_LEASE_S:g} seconds, not {lease:g}")
            own_urls = None if base_url else _urls_from_environment()
            options = _Options(
                redis=url,
                server=server_options(
                    base_url or own_urls,
                    model,
                    api_key,
                    headers_from(header or []),
                    endpoints_shard,
                    urls_from="VLLM_URL" if own_urls else "",
                ),
                client=_client_options(preset, concurrency, max_batch_size, http_backend) | {"timeout_s": timeout},
                worker={
                    "stream": stream_name(stream),
                    "group": group_name(group),
                    "consumer": consumer,
                    "results": results,
                    "result_ttl_s": result_ttl,
                    "dead": dead,
                    "lease_s": lease,
                    "max_deliveries": max_deliveries,
                    "grace_s": grace,
                    "look_ahead": look_ahead,
                },
                metrics=address_from(metrics_port),
                quiet=quiet,
                log=log,
            )
        with told(url):
            status = asyncio.run(_run(options))
    raise typer.Exit(status)


def _urls_from_environment() -> list[str] | None:
    """Return the servers of ``VLLM_URL``; ``/v1`` is added where a URL does not end with it."""
    urls = [url.strip() for url in os.environ.get("VLLM_URL", "").split(",") if url.strip()]
    return [url if url.rstrip("/").endswith("/v1") else f"{url.rstrip('/')}/v1" for url in urls] or None


def _client_options(
    preset: str, concurrency: str | None, max_batch_size: int | None, http_backend: str | None
) -> dict[str, Any]:
    """Return arguments of the client.

    Raises:
        Refusal: an option or a variable is wrong.
    """
    size, linger_s = _batching_from_environment()
    try:
        return client_options(
            preset, concurrency, size if max_batch_size is None else max_batch_size, http_backend, linger_s
        )
    except ConfigError as error:
        variable = _VARIABLES.get(error.field or "")
        if variable is None or (variable == "BATCH_SIZE" and max_batch_size is not None):
            raise
        raise Refusal(f"{variable}: {error.message.removeprefix(f'{error.field}: ')}") from None


def _batching_from_environment() -> tuple[int, float]:
    """Return the prompts of a request, at most, and how long they wait for more, seconds.

    Raises:
        Refusal: a variable is no such number.
    """
    size = os.environ.get("BATCH_SIZE", "").strip() or str(_BATCH_SIZE)
    if not (size.isascii() and size.isdigit() and len(size) <= _MOST_DIGITS and int(size) >= 1):
        raise Refusal(f"BATCH_SIZE: a whole number of at least 1, not {size!r:.40}")
    wait = os.environ.get("BATCH_TIMEOUT_MS", "").strip() or str(_BATCH_TIMEOUT_MS)
    try:
        wait_ms = float(wait)
    except ValueError:
        wait_ms = math.nan
    if not 0 <= wait_ms <= _LONGEST_WAIT_MS:
        raise Refusal(f"BATCH_TIMEOUT_MS: milliseconds from 0 to {_LONGEST_WAIT_MS:,}, not {wait!r:.40}")
    return int(size), wait_ms / 1000


async def _run(options: _Options) -> int:
    """Work until a signal; return the exit status.

    Raises:
        Refusal, ConfigError: the worker cannot begin.
        redis.exceptions.RedisError: Redis refuses.
    """
    tell = (lambda _text: None) if options.quiet else say
    async with connected(options.redis) as redis:
        from batchclient.integrations.redis import Worker

        client = _client(options)
        async with client:
            serve_metrics(client, options.metrics, tell)
            worker = Worker(client, redis, **options.worker)
            servers = ", ".join(shown(address) for address in options.server.urls)
            tell(f"working on {options.worker['stream']} at {shown_redis(options.redis)}, with {servers}")
            ended_by = await _until_signal(worker, tell, options.log)
            done = worker.statistics()
            tell(f"{_counts(done.results, done.dead)}; {done.released:,} handed back")
            if isinstance(ended_by, int):
                return of_signal(ended_by)
            key = KEY_HINT if isinstance(ended_by, AuthenticationFailed) and not options.server.has_key else ""
            say(f"Error: {ended_by}{key}")
            return Status.USAGE


def _client(options: _Options) -> InnerClient:
    """Make the client.

    Raises:
        Refusal: an argument is wrong; the message names the option, or the variable.
    """
    try:
        return InnerClient(**options.server.arguments, **options.client)
    except ConfigError as error:
        raise options.server.refusal_of(error) from None


async def _until_signal(worker: Any, tell: Any, log: LogOptions) -> int | BatchClientError:
    """Run a worker; return the signal that ended it, or the error of the servers."""
    loop = asyncio.get_running_loop()
    signals: list[int] = []

    def stop(number: int) -> None:
        signals.append(number)
        loop.call_soon_threadsafe(worker.stop)

    async def report() -> None:
        before = (0, 0)
        while True:
            await asyncio.sleep(_TOLD_EVERY_S)
            done = worker.statistics()
            if (done.results, done.dead) != before:
                before = (done.results, done.dead)
                lag = "" if done.lag is None else f", {done.lag:,} wait"
                tell(f"{_counts(*before)}, {done.held:,} held{lag}")

    reporting = asyncio.create_task(report())
    try:
        with log_to(say, log), on_signals(stop):
            await worker.run()
    except ConfigError:
        raise
    except BatchClientError as error:
        return error
    finally:
        reporting.cancel()
    return signals[0]


def _counts(results: int, dead: int) -> str:
    return f"{results:,} results, {dead:,} dead letter{'' if dead == 1 else 's'}"
