"""Small requests to a server: the calls' own bytes, written and read by the server's dialect.

Rules:
- A visit has ``MOST_REQUESTS`` of them, whatever the server does. None is sent again.
- A request is a call of a few tokens, or a list of a few such calls. Prompts differ from their
  first token, so that no cache of prefixes helps.
- Beside the answers, the times of all events are noted, with the prompt that each belongs to.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import anyio
from pydantic_core import from_json

from batchclient._calls.inputs import INPUTS, write_text
from batchclient._core.failures import Failure, FailureKind
from batchclient._core.kinds import Kind
from batchclient._core.messages import Batch
from batchclient._core.requests import Request
from batchclient._doctor.way import BelowV1
from batchclient.dialects import make_dialect
from batchclient.dialects._dialect import Dialect
from batchclient.dialects._shapes import Shapes
from batchclient.dialects._sse import EventStream
from batchclient.errors import BatchClientError, ReadTimedOut
from batchclient.transport import Timeouts, Transport
from batchclient.transport._deadline import deadline

__all__ = ["LIST_SIZE", "MOST_REQUESTS", "TOKENS", "Trial", "Trials"]

MOST_REQUESTS = 3
LIST_SIZE = 8
TOKENS = 24
_FIXED_LENGTH = frozenset({"vllm", "sglang", "llamacpp", "trtllm"})
"""Servers that know ``ignore_eos``."""
_LONGEST_ERROR_BODY = 65_536
_SUBJECTS = ("rivers", "clocks", "bread", "whales", "glass", "maps", "moss", "bridges")


@dataclass(slots=True)
class Trial:
    """A request and its reply.

    Args:
        size: its prompts.
        seconds: from the request to the end of the reply.
        failure: why prompts have no answer; ``None``: each has one.
        answered: prompts with an answer.
        tokens: of all answers; 0: not told.
        events: events with a part of an answer.
        arrivals: of each event, the prompt's number and the seconds since the request.
        is_stream: whether the reply was one.
    """

    size: int
    seconds: float = 0.0
    failure: Failure | None = None
    answered: int = 0
    tokens: int = 0
    events: int = 0
    arrivals: list[tuple[int, float]] = field(default_factory=list)
    is_stream: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether each prompt has an answer."""
        return self.failure is None and self.answered == self.size

    @property
    def came_in_one_piece(self) -> bool | None:
        """Whether all events came in the last fiftieth of the time; ``None``: too few or too soon."""
        if len(self.arrivals) < 2 or self.seconds < 0.3 or self.tokens < self.size * TOKENS // 2:
            return None
        return self.arrivals[-1][1] - self.arrivals[0][1] < self.seconds / 50

    def is_one_by_one(self, alone: Trial) -> bool | None:
        """Whether no prompt began before the one before had ended, at the pace of a lone call.

        ``None``: it cannot be told, as where a prompt has a single event.
        """
        if not self.is_whole or not self.tokens or not alone.tokens:
            return None
        numbers = [number for number, _ in self.arrivals]
        if any(numbers.count(number) < 2 for number in range(self.size)):
            return None
        changes = sum(number != before for before, number in itertools.pairwise(numbers))
        pace = alone.seconds / alone.tokens
        return changes == self.size - 1 and self.seconds >= 0.6 * pace * self.tokens


class Trials:
    """The requests of one visit.

    Args:
        transport: to the server's base URL.
        kind: the name of the server's dialect; ``None``: not known.
        model: the model's name.
        secrets: to cut out of the server's messages.
        timeout_s: the most time for a request.
    """

    def __init__(
        self, transport: Transport, kind: str | None, model: str, secrets: tuple[str, ...], timeout_s: float
    ) -> None:
        self._transport: Transport = transport
        self._secrets = secrets
        self.dialect: Dialect = make_dialect(kind, secrets)
        self._model = model
        self._timeout_s = timeout_s
        self._params: dict[str, Any] = {"max_tokens": TOKENS, "temperature": 0}
        if kind in _FIXED_LENGTH:
            self._params["ignore_eos"] = True
        self._shapes = Shapes()
        self._numbers = iter(range(1, 1 + MOST_REQUESTS * LIST_SIZE))
        self.sent: int = 0

    def speak(self, kind: str) -> None:
        """Go on in another dialect."""
        self.dialect = make_dialect(kind, self._secrets)

    async def send(self, kind: Kind, size: int = 1, *, streamed: bool, below: bool = False) -> Trial | None:
        """Send a request; ``None``: the visit has had all of its requests.

        ``below``: from now on to ``/v1``, which the URL lacks.
        """
        if self.sent >= MOST_REQUESTS:
            return None
        if below:
            self._transport = BelowV1(self._transport)
        self.sent += 1
        params = self._params if kind in (Kind.COMPLETION, Kind.CHAT) else {}
        shape, _ = self._shapes.shape(params, self._model, kind=kind)
        now = anyio.current_time
        prompts = [Request(shape, _prompt(kind, next(self._numbers))) for _ in range(size)]
        began = now()
        batch = Batch(self.sent, 0, shape, prompts, streamed, 0, began)
        trial = Trial(size)
        try:
            async with deadline(self._timeout_s):
                await self._exchange(batch, trial, began)
        except TimeoutError:
            message = f"no whole answer within {self._timeout_s:g} s"
            trial.failure = Failure(FailureKind.MAYBE_PROCESSED, ReadTimedOut, message)
        except BatchClientError as error:
            trial.failure = Failure(FailureKind.MAYBE_PROCESSED, type(error), error.message)
        trial.seconds = now() - began
        return trial

    async def _exchange(self, batch: Batch, trial: Trial, began: float) -> None:
        request = self.dialect.encode(batch)
        if isinstance(request, Failure):
            trial.failure = request
            return
        response = await self._transport.send(request, Timeouts(read_s=self._timeout_s))
        try:
            async with aclosing(response.chunks()) as chunks:
                if not 200 <= response.status < 300:
                    body = await _read_some(chunks)
                    trial.failure = self.dialect.failure(batch, response.status, response.headers, body, time.time())
                    return
                content_type = response.headers.get("content-type", "")
                trial.is_stream = batch.streamed and "event-stream" in content_type
                decoder, events = self.dialect.decoder(batch, content_type), EventStream()
                answers = []
                async for chunk in chunks:
                    at = anyio.current_time()
                    answers += decoder.feed(chunk, at)
                    if trial.is_stream:
                        indices = map(_index_in, events.feed(chunk))
                        trial.arrivals += [(index, at - began) for index in indices if index is not None]
                    if decoder.failed:
                        break
                rest, trial.failure = decoder.end(anyio.current_time())
        finally:
            await response.aclose()
        answers += rest
        trial.answered, trial.events = len(answers), decoder.events
        usages = [answer.usage for _, answer in answers]
        trial.tokens = sum(usage.completion_tokens for usage in usages if usage is not None)


async def _read_some(chunks: AsyncGenerator[bytes]) -> bytes:
    body = b""
    async for chunk in chunks:
        body += chunk
        if len(body) > _LONGEST_ERROR_BODY:
            break
    return body


def _prompt(kind: Kind, number: int) -> bytes:
    text = f"{number} things that are true of {_SUBJECTS[number % len(_SUBJECTS)]}, each in a sentence:"
    if kind is Kind.CHAT:
        return INPUTS[kind]([{"role": "user", "content": text}])[0]
    return write_text(text, "prompt")


def _index_in(payload: bytes) -> int | None:
    """Return the number of an event's prompt; ``None``: the event has no part of an answer."""
    try:
        event = from_json(payload)
    except ValueError:
        return None
    if not isinstance(event, dict):
        return None
    choices: Sequence[Any] | None = event.get("choices")
    if isinstance(choices, list):
        event = choices[0] if choices and isinstance(choices[0], dict) else {}
    elif "content" not in event and "meta_info" not in event:
        return None
    index = event.get("index", 0) if event else None
    return index if type(index) is int else None
