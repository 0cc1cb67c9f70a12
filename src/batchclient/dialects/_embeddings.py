"""``/v1/embeddings`` as OpenAI defined it: lists of texts or of token ids.

Facts (vLLM 0.32, ``entrypoints/pooling/embed``, observed on a running server; ``openai`` asks for
base64 in the same way):
- Lists have no cap. ``data[i].index`` names a vector's input; ``usage`` is the list's total.
- With ``encoding_format: "base64"`` a vector is the base64 of its 32-bit floats, the lowest byte
  first. Reading 4,096 numbers takes 84 µs, and 219 µs from JSON numbers, which take four times the
  bytes. So base64 is asked for unless the caller chose a form.
- A vector is read in either form: many servers ignore the field (Ollama, SGLang). A server that
  refuses the field is asked without it.
- A single input is no list, so that servers without lists can be asked, too. A server that takes
  nothing but lists gets a list of one.
"""

from __future__ import annotations

import math
import sys
from array import array
from binascii import a2b_base64
from typing import Any

from batchclient._core.messages import Batch, Failure
from batchclient.dialects._items import Answers, ItemsDecoder, input_of
from batchclient.dialects._replies import malformed
from batchclient.dialects._verbatim import own_body
from batchclient.transport import WireRequest
from batchclient.types import Embedding, Reply, Usage

__all__ = ["Embeddings", "read_vector"]

_PACKED = b'"encoding_format":"base64",'


class Embeddings:
    """The form of embeddings."""

    def encode(self, batch: Batch) -> WireRequest | Failure:
        """Write the batch's request."""
        parts = [b"{", input_of(batch)]
        if batch.packed:
            parts.append(_PACKED)
        parts.append(batch.shape.body[1:])
        return WireRequest("POST", "/embeddings", b"".join(parts))

    def decoder(self, batch: Batch, secrets: tuple[str, ...], content_type: str) -> _Vectors:
        """Return a fresh decoder for the batch's reply."""
        return _Vectors(batch, secrets, content_type)


class _Vectors(ItemsDecoder):
    def _answers(self, reply: Any) -> tuple[Answers, Failure | None]:
        answers, failure = super()._answers(reply)
        wire = self._batch.wire
        wire.learnt.takes_lists = len(self._batch.requests) > 1 or wire.lone_as_list
        if len({len(embedding.vector) for _, embedding in answers}) > 1:
            # At least one vector is another than asked for, and nothing says which.
            return [], malformed("the reply's vectors have different lengths", once=True)
        if self._batch.shape.verbatim and isinstance(reply, dict):
            items = self._placed
            for position, embedding in answers:
                body = own_body(self._batch, reply, "data", [items[position]], embedding.usage)
                embedding.reply = Reply(body, source=(self._batch.id, len(items)), alone=self._batch.alone)
        return answers, failure

    def _answer(self, item: Any, usage: Usage | None, attempts: int, extra: dict[str, Any]) -> Embedding:
        return Embedding(read_vector(item["embedding"]), usage, attempts, extra)


def read_vector(given: object) -> array[float]:
    """Return a vector that came as base64 of 32-bit floats or as numbers.

    Raises:
        TypeError: the vector came as something else.
        ValueError: the vector is empty, cut off, or not finite.
    """
    if isinstance(given, str):
        vector = array("f")
        vector.frombytes(a2b_base64(given))
        if sys.byteorder == "big":
            vector.byteswap()
    elif isinstance(given, list):
        try:
            vector = array("f", given)
        except OverflowError:
            raise ValueError("a vector holds a number that is too large") from None
    else:
        raise TypeError("a vector is neither text nor a list")
    if not vector:
        raise ValueError("a vector is empty")
    # The sum is finite only if every number is: 32-bit floats cannot overflow a 64-bit sum.
    if not math.isfinite(sum(vector)):
        raise ValueError("a vector holds NaN or infinity")
    return vector
