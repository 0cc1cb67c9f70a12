"""The clients that are compared: this one in several settings, and ``AsyncOpenAI``.

``adaptive``: this client as it is. ``fixed``: the same with a fixed limit. ``lists``: plain lists
of a given size under a fixed limit. ``streamed``: the same lists, streamed. ``singles``: every call
by itself under a fixed limit. ``async-openai``: that client without retries, behind a semaphore
where there is a limit.

Rules:
- Each cell has a client of its own, closed at its end, so that no cell learns from another.
- The calls go the way of a user's: ``complete``, ``chat``, ``embed``. When a call was sent, and how
  often, is read from the scheduler's commands.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from batchclient._calls.make import CallMaker
from batchclient._client.engine import Engine
from batchclient._core.requests import Batch, Request
from batchclient._core.scheduler import Scheduler
from batchclient._settings import sending_of
from batchclient._shell.pages import Page
from batchclient.bench.calls import Calls
from batchclient.bench.cell import Setting
from batchclient.bench.generator import Call
from batchclient.bench.workload import Workload
from batchclient.client import BatchClient
from batchclient.errors import BatchClientError
from batchclient.options import Batching
from batchclient.transport import Transport

if TYPE_CHECKING:
    from openai import AsyncOpenAI

    from batchclient._core.statistics import Statistics
    from batchclient._settings import Settings

__all__ = [
    "LISTS",
    "RIVAL",
    "STRATEGIES",
    "Opened",
    "Target",
    "batching_of",
    "callers_of",
    "has_first_tokens",
    "open_strategy",
    "preset_of",
    "rival_of",
]

STRATEGIES = ("adaptive", "fixed", "lists", "streamed", "singles", "async-openai")
RIVAL = "async-openai"
LISTS = ("lists", "streamed")
"""The strategies that have a size."""
_ANY_LENGTH, _ANY_NUMBER = 1_000_000, 1 << 30


@dataclass(frozen=True, slots=True)
class Target:
    """The server that is measured.

    Args:
        base_url, model, api_key, headers: as for ``BatchClient``; the model is named.
        fields: sent with every call, such as ``ignore_eos``.
        transport: in place of HTTP, as for ``BatchClient``.
    """

    base_url: str
    model: str
    api_key: str | None = field(default=None, repr=False)
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    fields: Mapping[str, Any] = field(default_factory=dict)
    transport: Callable[[str, Mapping[str, str]], Transport] | None = field(default=None, repr=False)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments for a client."""
        return {
            "base_url": self.base_url,
            "model": self.model,
            "api_key": self.api_key,
            "headers": dict(self.headers),
            "http": sending_of(self.transport, read_timeout_s=3600.0),
        }


@dataclass(slots=True)
class Opened:
    """A strategy's client, ready for calls.

    Args:
        call: makes a call.
        list_sizes: how many requests have carried how many prompts so far.
        limit_changes: returns the changes of the limit: seconds on the loop's clock, and the limit
            from then on. Before the first change stands the limit at the opening.
    """

    call: Call
    list_sizes: Callable[[], dict[int, int]]
    limit_changes: Callable[[], list[tuple[float, int]]] = list


def has_first_tokens(strategy: str, call: str) -> bool:
    """Whether a strategy's answers tell when their first token came."""
    return call != "embed" and strategy in ("adaptive", "fixed", "streamed", "singles")


@asynccontextmanager
async def open_strategy(setting: Setting, target: Target, workload: Workload) -> AsyncGenerator[Opened]:
    """Make the client of a cell, and close it at the end.

    Args:
        setting: of the cell.
        target: the server.
        workload: the calls.

    Raises:
        ConfigError: an argument is wrong.
        ImportError: the strategy needs a package that is missing.
    """
    if setting.strategy == RIVAL:
        async with _open_rival(setting, target, workload) as opened:
            yield opened
        return
    client = _MeasuredClient(setting.strategy, _arguments(setting, target))
    try:
        yield Opened(client.caller(workload, target.fields), client.list_sizes, client.limit_changes)
    finally:
        client.abort()
        await client.aclose()


def _arguments(setting: Setting, target: Target) -> dict[str, Any]:
    arguments = target.arguments()
    if setting.strategy == "adaptive":
        return arguments
    if setting.concurrency is not None:
        arguments["limit"] = setting.concurrency
    arguments |= {"batching": batching_of(setting), "preset": preset_of(setting)}
    return arguments


def batching_of(setting: Setting) -> Batching:
    """Return how the client of a strategy makes batches."""
    if setting.strategy == "singles":
        return Batching(max_size=1)
    if setting.strategy not in LISTS:
        return Batching()
    # Lists are what is to be measured, also of long answers.
    return Batching(max_size=setting.size, list_tokens=_ANY_LENGTH, chat_list_tokens=_ANY_LENGTH)


def preset_of(setting: Setting) -> str:
    """Return the preset of a strategy: permits come free one by one, and lists need several."""
    return "throughput" if setting.strategy in LISTS else "balanced"


def callers_of(setting: Setting) -> int:
    """Return the callers of a closed load.

    A list forms where as many calls wait behind those in flight.
    """
    assert setting.concurrency is not None
    return setting.concurrency + (setting.size or 0 if setting.strategy in LISTS else 0)


@dataclass(slots=True)
class _Place:
    """Where a call that is being made is noted."""

    calls: Calls
    place: int
    request: Request | None = None
    sent_at: float = math.nan
    """Of the last request with the call."""


class _NotingMaker(CallMaker):
    """Makes requests, and tells of each."""

    def __init__(self, settings: Settings, note: Callable[[Request], None]) -> None:
        super().__init__(settings)
        self._note = note

    def make(self, call: Any, waiter: Any, now: float, *, from_grant: bool = False) -> Request:
        request = super().make(call, waiter, now, from_grant=from_grant)
        self._note(request)
        return request


class _MeasuredEngine(Engine):
    """An engine that notes when each call was sent."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.calls = _NotingMaker(self.settings, self._made)
        self.strategy: str = ""
        self.present: _Place | None = None
        """The call that is being made, until it is a request."""
        self.under_way: dict[Request, _Place] = {}

    def make_core(self) -> Scheduler:
        settings = self.settings.scheduler(self.dialects.at_first, self.callbacks, self._trusts_lists)
        settings = replace(settings, streams_lists=self.strategy != "lists")
        names = [url for url, _ in self.endpoints]
        asks_first = self.connections.asks_first if Page.SERVER in self.connections.pages else None
        return _NotingScheduler(self._sent, settings, [self.make_limit() for _ in names], names, asks_first)

    def _made(self, request: Request) -> None:
        present, self.present = self.present, None
        if present is not None:
            present.request = request
            self.under_way[request] = present

    def _trusts_lists(self) -> bool:
        # Lists of a given size are what is measured.
        return self.strategy in LISTS or self.connections.trusts_lists()

    def _sent(self, batch: Batch) -> None:
        for request in batch.requests:
            noted = self.under_way.get(request)
            if noted is not None:
                noted.sent_at = batch.sent_at
                noted.calls.note_request(noted.place, batch.sent_at)


class _MeasuredClient(BatchClient):
    """A client that notes when each call was sent."""

    _make_engine = _MeasuredEngine
    _engine: _MeasuredEngine

    def __init__(self, strategy: str, arguments: Mapping[str, Any]) -> None:
        super().__init__(**arguments, from_environment=False)
        self._engine.strategy = strategy
        self._opened_at = asyncio.get_running_loop().time()

    def list_sizes(self) -> dict[int, int]:
        statistics: Statistics = self.statistics()
        return dict(statistics.list_sizes)

    def limit_changes(self) -> list[tuple[float, int]]:
        changes = [each for each in self.statistics().adjustments if each.setting == "limit"]
        first = [(self._opened_at, changes[0].old)] if changes else []
        return [*first, *((each.at, each.new) for each in changes)]

    def caller(self, workload: Workload, fields: Mapping[str, Any]) -> Call:
        """Return what makes a call of the workload."""
        loop = asyncio.get_running_loop()
        params = {**fields} if workload.call == "embed" else {"max_tokens": workload.output_tokens, **fields}
        make: Any = {"complete": self.complete, "chat": self.chat, "embed": self.embed}[workload.call]
        is_chat = workload.call == "chat"
        tells_first = has_first_tokens(self._engine.strategy, workload.call)

        async def call(prompt: str, calls: Calls, place: int) -> None:
            item: Any = [{"role": "user", "content": prompt}] if is_chat else prompt
            self._engine.present = noted = _Place(calls, place)
            try:
                answer = await make(item, **params)
            except BatchClientError as error:
                calls.failed(place, loop.time(), error)
                return
            finally:
                if noted.request is not None:
                    self._engine.under_way.pop(noted.request, None)
            first_s = answer.time_to_first_token_s
            if tells_first and first_s is not None:
                # It runs from the request that was answered, which is the last one.
                calls.first[place] = noted.sent_at + first_s
            usage = answer.usage
            prompt_tokens, output_tokens = (0, 0) if usage is None else (usage.prompt_tokens, usage.completion_tokens)
            calls.answered(place, loop.time(), prompt_tokens, output_tokens)

        return call


class _NotingScheduler(Scheduler):
    """A scheduler that tells of the batches that it sends."""

    def __init__(self, note: Callable[[Batch], None], *arguments: Any) -> None:
        self._note = note
        super().__init__(*arguments)

    def _send(self, batch: Batch) -> None:
        self._note(batch)
        super()._send(batch)


def rival_of(base_url: str, api_key: str | None, headers: Mapping[str, str]) -> AsyncOpenAI:
    """Make the rival's client. As this one it follows no redirect, and takes no proxy unasked.

    Retries would be uncounted requests.
    """
    import openai

    http = openai.DefaultAsyncHttpxClient(follow_redirects=False, trust_env=False, timeout=3600)
    return openai.AsyncOpenAI(
        base_url=base_url, api_key=api_key or "none", default_headers=dict(headers), max_retries=0, http_client=http
    )


@asynccontextmanager
async def _open_rival(setting: Setting, target: Target, workload: Workload) -> AsyncGenerator[Opened]:
    loop = asyncio.get_running_loop()
    free = asyncio.Semaphore(setting.concurrency or _ANY_NUMBER)
    sent = 0
    client = rival_of(target.base_url, target.api_key, target.headers)
    length: dict[str, Any] = {} if workload.call == "embed" else {"max_tokens": workload.output_tokens}
    shared: dict[str, Any] = {"model": target.model, **length, "extra_body": dict(target.fields)}

    async def ask(prompt: str) -> Any:
        if workload.call == "chat":
            return await client.chat.completions.create(messages=[{"role": "user", "content": prompt}], **shared)
        if workload.call == "embed":
            return await client.embeddings.create(input=prompt, **shared)
        return await client.completions.create(prompt=prompt, **shared)

    async def call(prompt: str, calls: Calls, place: int) -> None:
        nonlocal sent
        async with free:
            calls.note_request(place, loop.time())
            sent += 1
            try:
                usage = (await ask(prompt)).usage
            except Exception as error:
                # Not only its own errors: a page in place of JSON raises what it happens to raise.
                calls.failed(place, loop.time(), error)
                return
        prompt_tokens = getattr(usage, "prompt_tokens", None) or 0
        calls.answered(place, loop.time(), prompt_tokens, getattr(usage, "completion_tokens", None) or 0)

    async with client:
        yield Opened(call, lambda: {1: sent} if sent else {})
