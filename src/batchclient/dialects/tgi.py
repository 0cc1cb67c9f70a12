"""TGI (text-generation-inference): ``/v1/completions`` for texts, four a request.

Facts (TGI 3.3, ``router/src/server.rs``, ``router/src/lib.rs``; not yet seen running):
- A list may hold ``max_client_batch_size`` texts: 4, unless the server was started with more
  (``/info`` tells). Above the cap a 422 tells the number.
- TGI lacks token ids, ``n`` above 1, ``logprobs``, ``echo`` and ``suffix``, and ignores most of the
  fields silently. Calls with such a field are refused before they are sent: the answer would be
  another than asked for.
- ``top_p`` must be below 1; 1 means the same as none, and is left out. Without ``temperature`` TGI
  samples, as OpenAI's API does.
- Choices come in the order in which they finished. Events have ``finish_reason: ""`` until the
  last, which has the prompt's own usage.
- The last event has ``eos_token`` or ``stop_sequence`` for OpenAI's ``stop``. The stop string stays
  in the text.
- The model is called ``tgi``. Any other name is taken for a LoRA adapter's.
- Above ``max_concurrent_requests`` prompts TGI answers 429; a failed generation is a 424.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from batchclient._core.kinds import Kind
from batchclient._core.messages import Batch, Failure
from batchclient.dialects._bodies import Bodies, refuse
from batchclient.dialects._chat import Chat
from batchclient.dialects._fields import canonical
from batchclient.dialects._readers import StopReader
from batchclient.dialects._server import Form, ServerDialect
from batchclient.dialects._tokens import TgiTokens
from batchclient.dialects.completions import Completions
from batchclient.dialects.openai import VLLM_ONLY
from batchclient.transport import WireRequest

__all__ = ["TgiDialect"]

_LACKING = {"logprobs": "tells no logprobs of completions", "suffix": "takes no suffix"}
_REASONS = {"eos_token": "stop", "stop_sequence": "stop"}


def _body(fields: dict[str, Any]) -> bytes | Failure:
    """Return the fields as TGI takes them, or a refusal."""
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


class _Reader(StopReader):
    """Reads a reply: reasons to finish in OpenAI's words, and texts without their stop string."""

    reasons = _REASONS

    def __init__(self, batch: Batch) -> None:
        super().__init__(batch)
        self.counts_each = batch.streamed

    def reply(self, reply: Any) -> Any:
        """Read a plain reply, which has one usage for all prompts."""
        self.counts_each = False
        return super().reply(reply)


class TgiDialect(ServerDialect):
    """The dialect described at the top of the file."""

    name = "tgi"
    caps: Mapping[Kind, int] = {Kind.COMPLETION: 4, Kind.CHAT: 1, Kind.TOKENS: 1}
    without: frozenset[str] = VLLM_ONLY
    forms: Mapping[Kind, Form] = {
        Kind.COMPLETION: _Completions(priority_sign=0, reader=_Reader, bodies=Bodies(_body)),
        Kind.CHAT: Chat(priority_sign=0),
        Kind.TOKENS: TgiTokens(),
    }

    def _judged(self, failure: Failure, words: str, batch: Batch) -> Failure:
        if "adapter" in words.lower() and batch.shape.model != "tgi":
            hint = "; a tgi server calls its own model 'tgi', and takes every other name for a LoRA adapter's"
            return replace(failure, message=failure.message + hint)
        return failure
