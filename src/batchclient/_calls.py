"""From a caller's arguments to a request: every check that can be made before anything is queued.

Rules:
- What is wrong is refused here, with a ``ConfigError`` that names the argument.
- A prompt becomes JSON bytes here, once: bad text is found where it is given, and retries and splits need not write it again.
- A model's length is known from the settings, or learnt from the server's first complaint about that model.
"""

from __future__ import annotations

from array import array
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from json import dumps
from json.encoder import encode_basestring
from typing import Any

from batchclient._backend import Waiter
from batchclient._core.messages import Batch, Request, Shape
from batchclient.config import Settings
from batchclient.dialects import Dialect
from batchclient.errors import BadRequest, BatchClientError, ConfigError
from batchclient.templates import Prompt

__all__ = ["CallMaker"]

_FORGET_AFTER_S = 300.0
_LONGEST_TIMEOUT_S = 1e9
_HIGHEST_PRIORITY = 100
"""Classes are few: each has its own bound in the queue."""
_LONGEST_TENANT = 256
_SHAPES_REMEMBERED = 4096
_BYTES_PER_TOKEN = 4
"""A rough mean for English text; only length groups rest on it."""


class CallMaker:
    """Makes requests for one client.

    Args:
        settings: the client's.
        dialect: the server's language.
    """

    def __init__(self, settings: Settings, dialect: Dialect) -> None:
        self._settings = settings
        self._dialect = dialect
        self._learnt_len: dict[str, tuple[int, float]] = {}
        self._of_lanes: dict[tuple[Shape, int, str | None], Shape] = {}

    def make(
        self,
        prompt: Prompt,
        model: str | None,
        timeout_s: float | None,
        params: Mapping[str, Any],
        waiter: Waiter,
        now: float,
        priority: int = 0,
        tenant: str | None = None,
    ) -> Request:
        """Return the request of one call.

        Raises:
            ConfigError: an argument is wrong.
        """
        name = self.model(model)
        if isinstance(prompt, str):
            wire = self._check_text(prompt, name, now)
            tokens = len(wire) // _BYTES_PER_TOKEN + 1
            shape, solo = self._dialect.shape(params, name, token_ids=False)
        else:
            wire, tokens = self._check_ids(prompt, name, now)
            shape, solo = self._dialect.shape(params, name, token_ids=True)
        if priority or type(priority) is not int or tenant is not None:
            shape = self._in_lane(shape, priority, tenant)
        deadline = self.deadline(timeout_s, now)
        return Request(shape, wire, prompt_tokens=tokens, deadline=deadline, solo_fields=solo, waiter=waiter)

    def check(
        self,
        model: str | None,
        timeout_s: float | None,
        params: Mapping[str, Any],
        priority: int = 0,
        tenant: str | None = None,
    ) -> None:
        """Check what all calls of a map share.

        Raises:
            ConfigError: an argument is wrong.
        """
        shape, _ = self._dialect.shape(params, self.model(model), token_ids=False)
        self._in_lane(shape, priority, tenant)
        self.deadline(timeout_s, 0.0)

    def model(self, model: str | None) -> str:
        """Return the model's name: the call's, or the client's."""
        name = model if model is not None else self._settings.model
        if name is not None and not isinstance(name, str):
            raise ConfigError(f"model is a name, not a {type(name).__name__}", field="model")
        if not name:
            message = "no model: give it to the client, BatchClient(…, model=…), or to the call"
            raise ConfigError(message, field="model")
        return name

    def deadline(self, timeout_s: float | None, now: float) -> float | None:
        """Return the absolute deadline, or ``None``."""
        seconds = timeout_s if timeout_s is not None else self._settings.timeout_s
        if seconds is None:
            return None
        if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 < seconds < _LONGEST_TIMEOUT_S:
            raise ConfigError(f"timeout_s is a positive number of seconds, not {seconds!r:.40}", field="timeout_s")
        return now + seconds

    def _in_lane(self, shape: Shape, priority: int, tenant: str | None) -> Shape:
        """Return the shape of the same calls made with a priority or for a tenant: another key, so that they never mix."""
        if type(priority) is not int or abs(priority) > _HIGHEST_PRIORITY:
            message = (
                f"priority is a whole number from -{_HIGHEST_PRIORITY} to {_HIGHEST_PRIORITY}, not {priority!r:.40}"
            )
            raise ConfigError(message, field="priority")
        if tenant is not None and not (isinstance(tenant, str) and 0 < len(tenant) <= _LONGEST_TENANT):
            message = f"tenant is a name of 1 to {_LONGEST_TENANT} characters, not a {type(tenant).__name__} like this"
            raise ConfigError(message, field="tenant")
        if priority == 0 and tenant is None:
            return shape
        known = self._of_lanes.get((shape, priority, tenant))
        if known is not None:
            return known
        body = shape.body
        if priority and self._settings.send_priority:
            body = body[:-1] + b"," + self._dialect.priority_field(priority) + b"}"
        lane = dumps([priority, tenant]).encode()
        made = replace(
            shape,
            key=lane + shape.key,
            body=body,
            priority=priority,
            tenant=tenant,
            answer_key=shape.key,
        )
        if len(self._of_lanes) >= _SHAPES_REMEMBERED:
            self._of_lanes.clear()
        self._of_lanes[shape, priority, tenant] = made
        return made

    def learn(self, batch: Batch, error: BatchClientError) -> None:
        """Learn a model's length from the server's complaint."""
        if isinstance(error, BadRequest):
            length = self._dialect.max_model_len(error.message)
            if length is not None:
                self._learnt_len[batch.shape.model] = (length, batch.sent_at)

    def _check_text(self, prompt: str, model: str, now: float) -> bytes:
        wire: bytes | None = None
        with suppress(UnicodeEncodeError):
            wire = encode_basestring(prompt).encode()
        if wire is None:
            # Not raised while that error is handled: it holds the prompt, counts JSON's escapes, and would be our error's context.
            place = next(i for i, character in enumerate(prompt) if "\ud800" <= character <= "\udfff")
            message = f"the prompt holds a lone surrogate at character {place}, which no UTF-8 can carry"
            raise ConfigError(message, field="prompt")
        count = self._settings.count_tokens
        if count is not None:
            longest = self._longest(model, now)
            # A token is at least a byte, so that short texts need no counting.
            if longest is not None and len(wire) > longest:
                _check_length(count(prompt), longest)
        return wire

    def _check_ids(self, prompt: Any, model: str, now: float) -> tuple[bytes, int]:
        if isinstance(prompt, (bytes, bytearray, memoryview, Mapping)) or not isinstance(prompt, (Sequence, array)):
            kind = type(prompt).__name__
            raise ConfigError(f"a prompt is a text or a sequence of token ids, not a {kind}", field="prompt")
        if not prompt:
            raise ConfigError("the prompt is an empty sequence of token ids", field="prompt")
        kinds = set(map(type, prompt))
        if not kinds.isdisjoint((str, list, tuple, dict)):
            message = "complete() takes one prompt; for several, call it several times at once or use batch_map"
            raise ConfigError(message, field="prompt")
        try:
            if bool in kinds:
                raise TypeError("a bool is none")
            ids = array("Q", prompt).tolist()
        except (TypeError, OverflowError) as error:
            raise ConfigError(f"token ids are whole numbers of at least 0: {error}", field="prompt") from None
        longest = self._longest(model, now)
        if longest is not None:
            _check_length(len(ids), longest)
        return str(ids).replace(" ", "").encode(), len(ids)

    def _longest(self, model: str, now: float) -> int | None:
        if self._settings.max_model_len is not None:
            return self._settings.max_model_len
        length, learnt_at = self._learnt_len.get(model, (None, 0.0))
        # Forgotten after a while, like all that was learnt: the server may have been started anew with another length.
        return length if now < learnt_at + _FORGET_AFTER_S else None


def _check_length(tokens: int, longest: int) -> None:
    if tokens >= longest:
        message = (
            f"the prompt has {tokens} tokens, and the model's length is {longest} with at least one for the answer"
        )
        raise ConfigError(message, field="prompt")
