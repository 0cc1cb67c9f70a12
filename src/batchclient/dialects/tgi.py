"""TGI (text-generation-inference): ``/v1/completions`` for texts, four a request.

What it rests on (TGI 3.3, ``router/src/server.rs``, ``router/src/lib.rs``; not yet seen running):
- A list may hold ``max_client_batch_size`` texts, 4 unless the server was started with more (``/info`` says so); above it 422 says the number.
- Token ids, ``n`` above 1, ``logprobs``, ``echo`` and ``suffix`` it has none of, and ignores most of them without a word: such calls are refused here,
  before they are sent, rather than answered otherwise than they were meant.
- ``top_p`` must be below 1, and 1 means the same as none: it is left out. Without ``temperature`` it samples, as OpenAI's API does.
- Choices come in the order in which they were finished. Events say ``finish_reason: ""`` until the last, which has the prompt's own usage; it says
  ``eos_token`` or ``stop_sequence`` where OpenAI says ``stop``, and leaves the stop string in the text.
- Its model is called ``tgi``. Any other name is taken for that of a LoRA adapter.
- Above ``max_concurrent_requests`` prompts 429; a failed generation is 424.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from batchclient._core.kinds import Kind
from batchclient._core.messages import Batch, Failure
from batchclient.dialects._bodies import Bodies, refuse
from batchclient.dialects._completions import Completions
from batchclient.dialects._fields import canonical
from batchclient.dialects._server import ServerDialect
from batchclient.dialects.openai import VLLM_ONLY
from batchclient.transport import WireRequest

__all__ = ["TgiDialect"]

_LACKING = {"logprobs": "tells no logprobs of completions", "suffix": "takes no suffix"}
_REASONS = {"eos_token": "stop", "stop_sequence": "stop"}
_STOPS: Bodies[tuple[str, ...]] = Bodies(lambda fields: _stops_of(fields.get("stop")))


def _stops_of(stop: Any) -> tuple[str, ...]:
    stops = [stop] if isinstance(stop, str) else stop
    return tuple(each for each in stops or () if isinstance(each, str) and each)


def _body(fields: dict[str, Any]) -> bytes | Failure:
    """The fields as TGI takes them."""
    for name, what in _LACKING.items():
        if name in fields:
            return refuse("tgi", what)
    if fields.get("echo"):
        return refuse("tgi", "does not echo prompts")
    if fields.get("return_token_ids"):
        return refuse("tgi", "tells no token ids")
    for name in ("n", "best_of"):
        if fields.get(name, 1) != 1:
            return refuse("tgi", f"makes one choice per prompt, and {name} is more")
    top_p = fields.get("top_p")
    return canonical({name: value for name, value in fields.items() if not (name == "top_p" and top_p == 1)})


class _Completions(Completions):
    """The form of completions: texts only."""

    def encode(self, batch: Batch) -> WireRequest | Failure:
        """Write the batch's request."""
        if batch.requests[0].prompt[:1] == b"[":
            return refuse("tgi", "takes texts, no token ids")
        return super().encode(batch)


class _Reader:
    """One reply: its reasons in OpenAI's words, and texts without the stop string that ended them."""

    def __init__(self, batch: Batch) -> None:
        # A plain reply has one usage for all.
        self.counts_each = batch.streamed
        self._stops = _STOPS.of(batch.shape)
        self._held: dict[int, str] = {}

    def reply(self, reply: Any) -> Any:
        """A plain reply."""
        for choice in reply["choices"]:
            self._translate(choice)
        # Of one prompt its usage is its own; the decoder asks for that of each choice only where there is one.
        self.counts_each = False
        return reply

    def event(self, event: Any) -> Any:
        """One event. What may be the beginning of a stop string is held back until it is known."""
        for choice in event["choices"]:
            index = choice["index"]
            if self._stops and type(index) is int:
                choice["text"] = self._held.pop(index, "") + choice["text"]
            self._translate(choice)
            if self._stops and type(index) is int and not choice["finish_reason"]:
                self._hold(index, choice)
        return event

    def _translate(self, choice: dict[str, Any]) -> None:
        reason = choice.get("finish_reason")
        if reason == "stop_sequence":
            ended_by = max((stop for stop in self._stops if choice["text"].endswith(stop)), key=len, default=None)
            if ended_by is not None:
                choice["text"] = choice["text"][: -len(ended_by)]
                choice["stop_reason"] = ended_by
        choice["finish_reason"] = _REASONS.get(str(reason), reason) or None

    def _hold(self, index: int, choice: dict[str, Any]) -> None:
        text = choice["text"]
        longest = max(map(len, self._stops)) - 1
        for size in range(min(longest, len(text)), 0, -1):
            if any(stop.startswith(text[-size:]) for stop in self._stops):
                choice["text"], self._held[index] = text[:-size], text[-size:]
                return


class TgiDialect(ServerDialect):
    """See the top of this file."""

    name = "tgi"
    caps = {Kind.COMPLETION: 4}  # noqa: RUF012
    # Its streams tell the usage unasked.
    without = VLLM_ONLY | {"stream_options"}
    forms = {Kind.COMPLETION: _Completions(priority_sign=0, reader=_Reader, bodies=Bodies(_body))}  # noqa: RUF012

    def failure(self, batch: Batch, status: int, headers: Mapping[str, str], body: bytes, wall_time: float) -> Failure:
        """Say what an error reply means."""
        failure = super().failure(batch, status, headers, body, wall_time)
        if "adapter" in failure.message.lower() and batch.shape.model != "tgi":
            hint = "; a tgi server calls its own model 'tgi', and takes every other name for a LoRA adapter's"
            return replace(failure, message=failure.message + hint)
        return failure
