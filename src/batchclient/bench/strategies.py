"""The clients that are measured: this one in several settings, and ``AsyncOpenAI``.

``adaptive``: ``BatchClient`` as it is. ``fixed``: with a fixed limit. ``lists``: with a fixed limit
and lists of a given size. ``singles``: with a fixed limit, every call by itself. ``async-openai``:
that client without retries, behind a semaphore where there is a limit, in a process of its own.

Rules:
- Each measurement has a client of its own, closed at its end: none learns from another.
- The client is made and called as a user would: ``options_of`` is what a user gives to it.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from batchclient import BatchClient, BatchClientError, Batching, Http
from batchclient.bench.calls import Calls
from batchclient.bench.generator import Call
from batchclient.bench.measurement import Setting
from batchclient.bench.workload import Workload
from batchclient.transport import Transport

__all__ = ["BASELINE", "STRATEGIES", "Target", "callers_of", "has_first_tokens", "is_bad", "open_client", "options_of"]

STRATEGIES = ("adaptive", "fixed", "lists", "singles", "async-openai")
BASELINE = "async-openai"
_ANY_LENGTH = 1_000_000
_READ_TIMEOUT_S = 3600.0


@dataclass(frozen=True, slots=True)
class Target:
    """The server that is measured.

    Args:
        base_url, model, api_key, headers: as for ``BatchClient``.
        fields: sent with every call, such as ``ignore_eos``.
        transport: in place of HTTP, as ``BatchClient(http=…)`` takes it.
    """

    base_url: str
    model: str | None = None
    api_key: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    fields: Mapping[str, Any] = field(default_factory=dict)
    transport: Callable[[str, Mapping[str, str]], Transport] | None = field(default=None, repr=False)

    def client(self, options: Mapping[str, Any] | None = None) -> BatchClient:
        """Return a client of the server.

        Args:
            options: further arguments.
        """
        return BatchClient(
            self.base_url,
            model=self.model,
            api_key=self.api_key,
            headers=dict(self.headers),
            http=self.transport or Http(read_timeout_s=_READ_TIMEOUT_S),
            from_environment=False,
            **(options or {}),
        )


def options_of(setting: Setting) -> dict[str, Any]:
    """Return what a strategy gives to ``BatchClient``, beside the server; empty: the defaults."""
    if setting.strategy == "adaptive":
        return {}
    options: dict[str, Any] = {} if setting.concurrency is None else {"limit": setting.concurrency}
    if setting.strategy == "singles":
        options["batching"] = Batching(max_size=1)
    elif setting.strategy == "lists":
        # Permits come free one by one, and a list needs several.
        options["preset"] = "throughput"
        options["batching"] = Batching(max_size=setting.size, list_tokens=_ANY_LENGTH, chat_list_tokens=_ANY_LENGTH)
    return options


def callers_of(setting: Setting) -> int:
    """Return the callers of a closed load.

    A list forms where as many calls wait behind those in flight.
    """
    assert setting.concurrency is not None
    return setting.concurrency + (setting.size or 0)


def has_first_tokens(strategy: str, call: str) -> bool:
    """Whether a strategy's answers tell when their first token came."""
    return call != "embed" and strategy != BASELINE


def is_bad(answer: object) -> bool:
    """Whether an answer is none: it is empty, or the server held it back.

    An answer that ends at its bound is what a measurement asks for.
    """
    return getattr(answer, "health", "ok") in ("empty", "filtered")


@asynccontextmanager
async def open_client(setting: Setting, target: Target, workload: Workload) -> AsyncGenerator[tuple[BatchClient, Call]]:
    """Make the client of a measurement, and what makes a call with it; close it at the end.

    Args:
        setting: of the measurement; not ``BASELINE``.
        target: the server.
        workload: the calls.

    Raises:
        ConfigError: an argument is wrong.
    """
    client, loop = target.client(options_of(setting)), asyncio.get_running_loop()
    make = caller_of(client, target, workload)

    async def call(prompt: str, calls: Calls, place: int) -> None:
        try:
            answer = await make(prompt)
        except BatchClientError as error:
            calls.failed(place, loop.time(), error)
            return
        calls.sent[place] = sent = calls.begun[place] + (answer.queued_s or 0.0)
        if (first_s := getattr(answer, "time_to_first_token_s", None)) is not None:
            calls.first[place] = sent + first_s
        calls.attempts[place] = answer.attempts
        usage = answer.usage
        tokens = (0, 0) if usage is None else (usage.prompt_tokens, usage.completion_tokens)
        calls.answered(place, loop.time(), *tokens, is_bad=is_bad(answer))

    try:
        yield client, call
    finally:
        client.abort()
        await client.aclose()


def caller_of(client: BatchClient, target: Target, workload: Workload) -> Callable[[str], Any]:
    """Return what makes a call of the workload with a prompt, and returns its answer."""
    params: dict[str, Any] = {"max_tokens": workload.output_tokens, **target.fields}
    if workload.call == "embed":
        return client.embed
    if workload.call == "chat":
        return lambda prompt: client.chat([{"role": "user", "content": prompt}], **params)
    return lambda prompt: client.complete(prompt, **params)
