"""``/v1/completions`` as OpenAI defined it: requests for lists of prompts, plain or streamed.

Facts (vLLM 0.32, observed on a running server; replies in ``tests/wire/vllm``):
- With a very large ``stream_interval`` a prompt sends two events: the first token, then the rest
  with ``finish_reason``. With ``continuous_usage_stats`` each event carries its prompt's usage.
- vLLM before 0.27 ignores ``stream_interval`` and sends an event per token; the decoder takes both.
- A plain reply has one usage for the whole list. A plain list therefore asks for token ids, and the
  decoder counts the ids.
- A list with ``echo`` does not ask: with token ids, vLLM leaves the prompt out of the text. Such a
  list is streamed if possible; else the usages are shares (``_shares``).

Readers: ``_plain_decoder``, ``_stream_decoder``, and ``_reader`` for other servers. Fields unknown
to a server are left out (``Batch.wire.without``).
"""

from __future__ import annotations

from collections.abc import Callable

from batchclient._core.messages import Batch, Failure, Shape
from batchclient.dialects._bodies import Bodies
from batchclient.dialects._decoder import PlainDecoder
from batchclient.dialects._readers import OpenAIReader, Reader
from batchclient.dialects._stream_decoder import StreamDecoder, decoder_of
from batchclient.transport import WireRequest

__all__ = ["ANY_NUMBER", "Completions", "events_per_choice", "guard_fields", "stream_fields", "stream_interval"]

_PATH = "/completions"
_STREAM = b'"stream":true,'
_INTERVAL = b'"stream_interval":%d,'
_OPTIONS = b'"stream_options":{"include_usage":true},'
_OPTIONS_EACH = b'"stream_options":{"include_usage":true,"continuous_usage_stats":true},'
_TWO_EVENTS = 100_000
_TOKENS_PER_EVENT = 256
"""Of longer answers, and of answers without a bound. At 2 tokens a second a server is then never
silent for much over two minutes, however long the answer.
"""
ANY_NUMBER = 1 << 30
_COUNT_FIELDS = b'"return_token_ids":true,'
_GUARD = b'"repetition_detection":{"max_pattern_size":32,"min_count":32},'
"""The same up to 32 tokens, 32 times. It looks at each length for each token: longer ones cost."""


class Completions:
    """The form of completions, with vLLM's additions.

    Args:
        priority_sign: of the field ``priority``: -1 where the server serves lower numbers first, 1
            where higher numbers, 0 where the server lacks the field.
        reader: makes the reader that turns a reply into OpenAI's form.
        bodies: makes or refuses the body from OpenAI's fields, where the server wants others.
    """

    def __init__(
        self,
        priority_sign: int = -1,
        reader: Callable[[Batch], Reader] = OpenAIReader,
        bodies: Bodies[bytes | Failure] | None = None,
    ) -> None:
        self._priority_sign = priority_sign
        self._reader = reader
        self._bodies = bodies

    def encode(self, batch: Batch) -> WireRequest | Failure:
        """Write the batch's request: the shared body with the prompts spliced in."""
        requests, shape, without = batch.requests, batch.shape, batch.wire.without
        body: bytes | Failure = shape.body if self._bodies is None else self._bodies.of(shape)
        if isinstance(body, Failure):
            return body
        parts = [b"{"]
        if len(requests) == 1:
            parts += [b'"prompt":', requests[0].prompt, b","]
            if requests[0].solo_fields:
                parts += [requests[0].solo_fields, b","]
        else:
            parts += [b'"prompt":[', b",".join([request.prompt for request in requests]), b"],"]
        if batch.streamed:
            parts.append(stream_fields(batch))
        elif len(requests) > 1 and not shape.wants_token_ids and not shape.echo and "return_token_ids" not in without:
            parts.append(_COUNT_FIELDS)
        if shape.tells_priority and self._priority_sign and "priority" not in without:
            parts.append(b'"priority":%d,' % (self._priority_sign * shape.priority))
        parts += [guard_fields(batch), body[1:]]
        return WireRequest("POST", _PATH, body=b"".join(parts))

    def decoder(self, batch: Batch, secrets: tuple[str, ...], content_type: str) -> PlainDecoder | StreamDecoder:
        """Return a fresh decoder. Servers and mocks that do not stream answer with an object."""
        return decoder_of(batch, secrets, content_type, self._reader(batch))


def stream_fields(batch: Batch) -> bytes:
    """Return the members that ask for a stream, without those refused by the server.

    A stream has few events, or one per token where a caller waits for each.
    """
    fields = _STREAM
    if not batch.shape.to_caller and "stream_interval" not in batch.wire.without:
        fields += _INTERVAL % stream_interval(batch.shape)
    if "stream_options" not in batch.wire.without:
        fields += _OPTIONS if "continuous_usage_stats" in batch.wire.without else _OPTIONS_EACH
    return fields


def guard_fields(batch: Batch) -> bytes:
    """Return the member by which vLLM, from 0.17 on, ends an answer that runs into a loop.

    A caller's own stands before it, and a server that refuses it gets it no more.
    """
    shape = batch.shape
    is_asked = shape.guarded and "repetition_detection" not in batch.wire.without
    return _GUARD if is_asked and b'"repetition_detection":' not in shape.body else b""


def stream_interval(shape: Shape) -> int:
    """Return the tokens per event after the first."""
    return _TWO_EVENTS if events_per_choice(shape) == 2 else _TOKENS_PER_EVENT


def events_per_choice(shape: Shape) -> int:
    """Return the most events of a choice: two if the answer is short, any number without a bound.

    A longer answer has another for every 256 tokens, so that silence means something.
    """
    most = shape.max_output_tokens
    return ANY_NUMBER if most is None else 2 + most // (_TOKENS_PER_EVENT + 1)
