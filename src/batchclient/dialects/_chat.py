"""``/v1/chat/completions`` as OpenAI defined it, and vLLM's form for lists of conversations.

Facts (vLLM 0.32, observed on a running server; replies in ``tests/wire/vllm``):
- A list goes to ``/v1/chat/completions/batch``. The plain reply has a choice per conversation,
  ``index`` in their order, and a sum as its usage.
- Asked for token ids, a list's reply has each answer's ids and no prompt's. So a caller's output
  tokens are exact, and the prompt tokens are a share.
- Asked to stream, a list sends only each answer's last token, with status 200. A list drops
  ``tools`` silently. So neither is ever sent with a list.
- A stream opens with an event per choice, with the role and an empty content, and no token.
- A tool call comes in fragments: the first has ``index``, ``id``, ``type`` and ``function.name``;
  the rest are pieces of ``function.arguments`` (``_deltas``).
- Reasoning is called ``reasoning``; older servers and others say ``reasoning_content``. The
  server's name is kept.
"""

from __future__ import annotations

from typing import Any

from batchclient._core.messages import Batch, Failure, FailureKind
from batchclient.dialects._decoder import join_fields, join_logprobs, reason_of
from batchclient.dialects._deltas import join_deltas
from batchclient.dialects._plain_decoder import PlainDecoder
from batchclient.dialects._shares import size_of
from batchclient.dialects._stream_decoder import StreamDecoder, decoder_of
from batchclient.dialects.completions import guard_fields, stream_fields
from batchclient.errors import BadRequest
from batchclient.transport import WireRequest
from batchclient.types import Choice, Completion, Delta

__all__ = ["Chat", "ChatPlainDecoder", "ChatStreamDecoder"]

_PATH = "/chat/completions"
_COUNT_FIELDS = b'"return_token_ids":true,'
_TEXTS = frozenset({"content", "reasoning", "reasoning_content", "refusal"})
"""Fields of a message that are texts; ``content`` may be parts instead."""


class Chat:
    """The form of chats. ``priority_sign`` is as for ``Completions``.

    ``list_path`` is the path for lists of conversations; ``None``: the server takes no such lists.
    """

    def __init__(self, list_path: str | None = None, priority_sign: int = -1) -> None:
        self._list_path = list_path
        self._priority_sign = priority_sign

    def encode(self, batch: Batch) -> WireRequest | Failure:
        """Write the batch's request: the shared body with the conversations spliced in."""
        requests, shape = batch.requests, batch.shape
        path = _PATH
        if len(requests) == 1:
            parts = [b'{"messages":', requests[0].prompt, b","]
            if requests[0].solo_fields:
                parts += [requests[0].solo_fields, b","]
            if batch.streamed:
                parts.append(stream_fields(batch))
        elif self._list_path is None:
            return Failure(FailureKind.LIST_REFUSED, BadRequest, "the server takes no lists of conversations")
        else:
            path = self._list_path
            parts = [b'{"messages":[', b",".join([request.prompt for request in requests]), b"],"]
            if not shape.wants_token_ids and "return_token_ids" not in batch.wire.without:
                parts.append(_COUNT_FIELDS)
        if shape.tells_priority and self._priority_sign and "priority" not in batch.wire.without:
            parts.append(b'"priority":%d,' % (self._priority_sign * shape.priority))
        parts += [guard_fields(batch), shape.body[1:]]
        return WireRequest("POST", path, body=b"".join(parts))

    def decoder(self, batch: Batch, secrets: tuple[str, ...], content_type: str) -> PlainDecoder | StreamDecoder:
        """Return a fresh decoder. Servers and mocks that do not stream answer with an object."""
        decoder = decoder_of(batch, secrets, content_type, forms=(ChatPlainDecoder, ChatStreamDecoder))
        if len(batch.requests) > 1:
            # A streamed list holds only the last token of each answer.
            decoder.other = None
        return decoder


_OWN_FIELDS = frozenset({"index", "message", "delta", "finish_reason", "logprobs", "token_ids"})


class ChatPlainDecoder(PlainDecoder):
    """A chat's reply that is a JSON object."""

    def _choice(self, pieces: list[dict[str, Any]], index: int) -> Choice:
        (piece,) = pieces
        message = _without_nulls(piece["message"])
        ids = piece.get("token_ids") if self._keep_ids else None
        extra = {name: value for name, value in piece.items() if value is not None and name not in _OWN_FIELDS}
        token_ids = None if ids is None else tuple(ids)
        return Choice(index, _text(message), reason_of(piece), piece.get("logprobs"), token_ids, extra, message)

    @staticmethod
    def _size_of(choice: dict[str, Any]) -> int:
        message = choice.get("message")
        return sum(size_of(message.get(name)) for name in _TEXTS) if isinstance(message, dict) else 0


class ChatStreamDecoder(StreamDecoder):
    """A chat's reply that is a stream of events, mixed from all choices."""

    # Tokens without a text may have gone into tool calls or reasoning, by the server's parser.
    _needs_text = False

    def _choice(self, pieces: list[dict[str, Any]], index: int) -> Choice:
        message = _join([piece.get("delta") or {} for piece in pieces])
        ids: tuple[int, ...] | None = None
        if self._keep_ids:
            ids = tuple([i for piece in pieces for i in piece.get("token_ids") or ()])
        extra = join_fields(pieces, _OWN_FIELDS)
        logprobs = join_logprobs(pieces)
        return Choice(index, _text(message), reason_of(pieces[-1]), logprobs, ids, extra, message)

    @staticmethod
    def _text_in(piece: dict[str, Any]) -> Any:
        return (piece.get("delta") or {}).get("content")

    @staticmethod
    def _brings(piece: dict[str, Any]) -> dict[str, Any]:
        brings = {name: value for name, value in (piece.get("delta") or {}).items() if value and name != "role"}
        return brings | {"token_ids": piece["token_ids"]} if piece.get("token_ids") else brings

    @staticmethod
    def _verbatim_choice(pieces: list[dict[str, Any]], choice: Choice) -> dict[str, Any]:
        fields = join_fields(pieces, _OWN_FIELDS)
        return {"message": choice.message, "finish_reason": choice.finish_reason, "logprobs": choice.logprobs, **fields}

    def _completion(self, position: int) -> Completion:
        made = super()._completion(position)
        if made.reply is not None:
            made.reply.body["object"] = "chat.completion"
        return made

    def _delta(self, piece: dict[str, Any], index: int) -> Delta:
        message = {name: value for name, value in (piece.get("delta") or {}).items() if value is not None}
        ids = piece.get("token_ids") if self._keep_ids else None
        return Delta(
            _text(message),
            index,
            piece.get("finish_reason"),
            piece.get("logprobs"),
            None if ids is None else tuple(ids),
            message,
        )


def _without_nulls(message: dict[str, Any]) -> dict[str, Any]:
    """Return a message without nulls and empty ``tool_calls``; ``content`` stays, even null."""
    kept = {name: value for name, value in message.items() if value is not None or name == "content"}
    kept.setdefault("content", None)
    if kept.get("tool_calls") == []:
        del kept["tool_calls"]
    return kept


def _text(message: dict[str, Any]) -> str:
    content = message.get("content")
    if content is None:
        return ""
    if type(content) is list:
        # Parts: Mistral's reasoning models, gateways. What is no text stays in the message alone.
        return "".join([part["text"] for part in content if part["type"] == "text"])
    if type(content) is not str:
        raise TypeError("a message's content is no string")
    return content


def _parts(content: Any) -> Any:
    """Return content as parts; ``None``: it says nothing."""
    return [{"type": "text", "text": content}] if content and type(content) is str else content or None


def _join(deltas: list[dict[str, Any]]) -> dict[str, Any]:
    """Join the pieces of a message into a plain reply's message."""
    texts = _TEXTS
    if any(type(delta.get("content")) is list for delta in deltas):
        texts = _TEXTS - {"content"}
        deltas = [{**delta, "content": _parts(delta.get("content"))} for delta in deltas]
    message = {"role": "assistant", "content": None, **join_deltas(deltas, texts)}
    calls = message.get("tool_calls")
    if calls or message.get("reasoning") or message.get("reasoning_content"):
        # The opening event's empty content says nothing: if no other came, a plain reply has null.
        message = {name: value for name, value in message.items() if value != "" or name not in _TEXTS}
        message.setdefault("content", None)
    if calls == []:
        del message["tool_calls"]
    for call in calls or ():
        call.pop("index", None)
    return message
