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

from batchclient._core.messages import Batch, Failure, FailureKind
from batchclient.dialects._decoder import PlainDecoder
from batchclient.dialects._stream_decoder import StreamDecoder, decoder_of
from batchclient.dialects.completions import guard_fields, stream_fields
from batchclient.errors import BadRequest
from batchclient.transport import WireRequest

__all__ = ["Chat"]

_PATH = "/chat/completions"
_COUNT_FIELDS = b'"return_token_ids":true,'


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
        return decoder_of(batch, secrets, content_type)
