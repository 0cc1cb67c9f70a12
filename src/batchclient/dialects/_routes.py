"""Where a kind of call goes on a server, and how its request is written: one table row each.

Facts (vLLM 0.32, observed on a running server; replies in ``tests/wire/vllm``):
- With a very large ``stream_interval`` a prompt sends two events: the first token, then the rest
  with ``finish_reason``. With ``continuous_usage_stats`` each event carries its prompt's usage.
- vLLM before 0.27 ignores ``stream_interval`` and sends an event per token; the decoder takes both.
- A plain reply has one usage for the whole list. A plain list therefore asks for token ids, and the
  decoder counts the ids. With token ids, ``echo`` leaves the prompt out of the text: such a list
  does not ask.
- A list of chats goes to ``/v1/chat/completions/batch``. The plain reply has a choice per
  conversation, ``index`` in their order, and a sum as its usage; with token ids it has each
  answer's and no prompt's. Asked to stream, a list sends only each answer's last token, with status
  200; it drops ``tools`` silently. So neither is ever sent with a list.
- ``/score`` takes ``text_1`` and ``text_2``: one against one, one against many, or as many against
  as many. So unrelated callers' pairs share a request. ``/rerank`` takes a query with its
  documents; on servers with nothing else a list is a rerank of pairs with a common query, or no
  list at all.
- Embeddings are asked for as base64 unless the caller chose a form: reading 4,096 numbers takes
  84 µs, and 219 µs from JSON numbers, which take four times the bytes.
- A single input is no list, so that servers without lists can be asked, too. A server that takes
  nothing but lists gets a list of one.

Fields refused by a server are left out (``Batch.wire.without``).

``guided_json`` and its kin are vLLM's names of before 0.12; 0.11 took them and
``structured_outputs``. Later ones ignore them, with status 200 and a text of any form: so they go
as ``structured_outputs``, but to a server that is known to be older.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json, to_json

from batchclient._core.kinds import Kind
from batchclient._core.messages import Batch, Failure, FailureKind, Shape
from batchclient.dialects._bodies import Bodies, in_new_names
from batchclient.dialects._decoder import PlainDecoder, ReplyDecoder
from batchclient.dialects._items import ClassesDecoder, ScoresDecoder, VectorsDecoder
from batchclient.dialects._readers import OpenAIReader, Reader
from batchclient.dialects._stream_decoder import decoder_of
from batchclient.errors import BadRequest
from batchclient.transport import WireRequest

__all__ = ["Generation", "Inputs", "Pairs", "Ranks", "Route", "events_per_choice", "stream_interval"]

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
_PACKED = b'"encoding_format":"base64",'


class Route:
    """A kind of call as a sort of server takes it.

    Attributes:
        list_path: where lists go, if not where single calls go.
    """

    list_path: str | None = None

    def encode(self, batch: Batch) -> WireRequest | Failure:
        """Write the batch's request, or say why the server cannot be asked."""
        raise NotImplementedError

    def decoder(self, batch: Batch, secrets: tuple[str, ...], content_type: str) -> ReplyDecoder:
        """Return a fresh decoder for the batch's reply, which may have an unexpected type."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class Generation(Route):
    """Completions or chats, as OpenAI defined them, with vLLM's additions.

    Args:
        path: below the base URL.
        field: of the prompt or the messages.
        list_path: of lists, if another; ``None``: of completions the same, and of chats none.
        priority_sign: of the field ``priority``: -1 where the server serves lower numbers first, 1
            where higher numbers, 0 where the server lacks the field.
        reader: makes the reader that turns a reply into OpenAI's form.
        bodies: makes or refuses the body from OpenAI's fields, where the server wants others.
        takes_ids: whether a prompt may be token ids.
    """

    path: str
    field: bytes
    list_path: str | None = None
    priority_sign: int = 0
    reader: Callable[[Batch], Reader] = OpenAIReader
    bodies: Bodies[bytes | Failure] | None = None
    takes_ids: bool = True

    def encode(self, batch: Batch) -> WireRequest | Failure:
        """Write the batch's request: the shared body with the prompts spliced in."""
        requests, shape, without = batch.requests, batch.shape, batch.wire.without
        body: bytes | Failure = shape.body if self.bodies is None else self.bodies.of(shape)
        if b'"guided_' in shape.body and not shape.verbatim and "structured_outputs" not in without:
            body = _FORMS.of(shape)
        if isinstance(body, Failure):
            return body
        if not self.takes_ids and requests[0].prompt[:1] == b"[":
            message = "this server takes texts, no token ids; the call was not sent"
            return Failure(FailureKind.UNSUPPORTED, BadRequest, message, begun=False)
        path = self.path
        if len(requests) == 1:
            parts = [b'{"%b":' % self.field, requests[0].prompt, b","]
            if requests[0].solo_fields:
                parts += [requests[0].solo_fields, b","]
        else:
            if shape.lists_plain:
                if self.list_path is None:
                    return Failure(FailureKind.LIST_REFUSED, BadRequest, "the server takes no lists of conversations")
                path = self.list_path
            parts = [b'{"%b":[' % self.field, b",".join([request.prompt for request in requests]), b"],"]
            counts_ids = not shape.wants_token_ids and not shape.echo and "return_token_ids" not in without
            if counts_ids and not batch.streamed:
                parts.append(_COUNT_FIELDS)
        if batch.streamed and path == self.path:
            parts.append(_stream_fields(batch))
        if shape.tells_priority and self.priority_sign and "priority" not in without:
            parts.append(b'"priority":%d,' % (self.priority_sign * shape.priority))
        parts += [_guard_fields(batch), body[1:]]
        return WireRequest("POST", path, body=b"".join(parts))

    def decoder(self, batch: Batch, secrets: tuple[str, ...], content_type: str) -> ReplyDecoder:
        """Return a fresh decoder. Servers and mocks that do not stream answer with an object."""
        return decoder_of(batch, secrets, content_type, self.reader(batch))


@dataclass(frozen=True)
class Inputs(Route):
    """A call about a text or token ids that generates nothing.

    Args:
        path: below the base URL, or the server's root.
        reply: reads the answers.
        field: of the input.
        from_root: whether the path begins at the root.
        chat_field: of a conversation, where the server takes one.
        chat_path: where a conversation is written as a text, if not tokenized at once.
    """

    path: str
    reply: type[PlainDecoder]
    field: bytes = b"input"
    from_root: bool = True
    chat_field: bytes = b""
    chat_path: str = ""

    def encode(self, batch: Batch) -> WireRequest | Failure:
        """Write the batch's request: a single prompt as itself, several as a list."""
        prompts = b",".join([request.prompt for request in batch.requests])
        field, path = self.field, self.path
        if batch.shape.kind is Kind.TOKENS and prompts[:1] == b"[":
            if not self.chat_field:
                message = "this server's tokenizer takes texts, no conversations; the call was not sent"
                return Failure(FailureKind.UNSUPPORTED, BadRequest, message, begun=False)
            field, path = self.chat_field, self.chat_path or path
        if len(batch.requests) > 1 or batch.wire.lone_as_list:
            prompts = b"[%b]" % prompts
        packed = _PACKED if batch.packed else b""
        body = b'{"%b":%b,%b%b%b' % (field, prompts, _solo(batch), packed, batch.shape.body[1:])
        return WireRequest("POST", path, body, from_root=self.from_root)

    def decoder(self, batch: Batch, secrets: tuple[str, ...], content_type: str) -> PlainDecoder:
        """Return a fresh decoder for the batch's reply."""
        return self.reply(batch, secrets, content_type)


class Pairs(Route):
    """Scores of any number of pairs, at the server's root."""

    mixes_queries = True

    def encode(self, batch: Batch) -> WireRequest | Failure:
        """Write the batch's request: the query once if all pairs share it."""
        pairs = [from_json(request.prompt) for request in batch.requests]
        queries = [query for query, _ in pairs]
        first: Any = queries[0] if queries.count(queries[0]) == len(queries) else queries
        documents = to_json([document for _, document in pairs])
        body = b'{"text_1":%b,"text_2":%b,%b' % (to_json(first), documents, _solo(batch)) + batch.shape.body[1:]
        return WireRequest("POST", "/score", body, from_root=True)

    def decoder(self, batch: Batch, secrets: tuple[str, ...], content_type: str) -> PlainDecoder:
        """Return a fresh decoder for the batch's reply."""
        return ScoresDecoder(batch, secrets, content_type)


@dataclass(frozen=True)
class Ranks(Pairs):
    """Scores of documents for a single query.

    Args:
        field: of the documents.
        from_root: whether the path begins at the server's root.
    """

    field: bytes = b"documents"
    from_root: bool = False
    mixes_queries = False

    def encode(self, batch: Batch) -> WireRequest | Failure:
        """Write the batch's request, or refuse a list of pairs with different queries."""
        pairs = [from_json(request.prompt) for request in batch.requests]
        query = pairs[0][0]
        if any(other != query for other, _ in pairs):
            return Failure(FailureKind.LIST_REFUSED, BadRequest, "this server ranks documents for one query at a time")
        documents = to_json([document for _, document in pairs])
        start = b'{"query":%b,"%b":%b,%b' % (to_json(query), self.field, documents, _solo(batch))
        return WireRequest("POST", "/rerank", start + batch.shape.body[1:], from_root=self.from_root)


CLASSES = Inputs("/classify", ClassesDecoder)
"""vLLM's classes: an input's likeliest label, and each class's probability in the model's order."""
VECTORS = Inputs("/embeddings", VectorsDecoder, from_root=False)
"""Embeddings, as OpenAI defined them."""


_FORMS = Bodies(in_new_names)


def _solo(batch: Batch) -> bytes:
    """Return a lone caller's own fields, with a comma."""
    requests = batch.requests
    return requests[0].solo_fields + b"," if len(requests) == 1 and requests[0].solo_fields else b""


def _stream_fields(batch: Batch) -> bytes:
    """Return the members that ask for a stream: few events, or one per token where a caller waits."""
    fields, without = _STREAM, batch.wire.without
    if not batch.shape.to_caller and "stream_interval" not in without:
        fields += _INTERVAL % stream_interval(batch.shape)
    if "stream_options" not in without:
        fields += _OPTIONS if "continuous_usage_stats" in without else _OPTIONS_EACH
    return fields


def _guard_fields(batch: Batch) -> bytes:
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
