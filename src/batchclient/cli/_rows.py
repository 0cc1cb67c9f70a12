"""Results to lines of bytes, and the faults of rows. No files here, and no client.

Rules:
- An unusable row fails with its own message. The job goes on; the row of the output is
  ``{"line": N, "error": {…}}``.
- A row of the output has the fields of the input and the fields added by the call (``ADDED_BY``).
  An input with an added field is at fault: two values have one name.
- A field of the answer that a parameter asks for is written where the server sends it
  (``ASKED_FOR``).
- A vector's numbers have the nine digits needed to read a 32-bit float back unchanged.
- The output is JSON by the standard: no NaN, no infinity. Where a server sends one, such as a
  logprob of ``-Infinity``, the row has ``null``.
"""

from __future__ import annotations

import json
import math
import sys
from array import array
from base64 import b64encode
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from batchclient.jobs import BadRow, Row
from batchclient.types import Classification, Completion, Embedding, MapResult, Usage

__all__ = ["ADDED", "ADDED_BY", "added_by", "blame", "message_of", "to_line"]

ADDED = ("completion", "finish_reason", "usage", "error")
"""The fields added, beside ``id``, where each row is completed."""
ADDED_BY: Mapping[str, tuple[str, ...]] = {
    "complete": ADDED,
    "chat": (*ADDED, "message"),
    "embed": ("embedding", "usage", "error"),
    "classify": ("label", "probabilities", "usage", "error"),
}
"""The added fields by call."""
ASKED_FOR: Mapping[str, str] = {
    "logprobs": "logprobs",
    "prompt_logprobs": "prompt_logprobs",
    "return_token_ids": "token_ids",
}
"""The fields that parameters of generating calls add, by the parameters' names."""
_PLAIN_MESSAGE = frozenset({"role", "content"})
"""A chat's message with these fields alone says no more than ``completion``."""


def added_by(call: str, params: Iterable[str] = ()) -> tuple[str, ...]:
    """Return the fields that a call with parameters of these names may add."""
    return (*ADDED_BY[call], *(ASKED_FOR[name] for name in params if name in ASKED_FOR))


def blame(render: Callable[[Any], Any], columns: Collection[str] = ()) -> Callable[[Row], Any]:
    """Wrap a prompt function: faulty rows fail with their own message.

    Args:
        render: from a row to its prompt.
        columns: the fields that a row must have.
    """

    def prompt_of(row: Row) -> Any:
        if row.fault is not None:
            raise BadRow(row.fault)
        for name in columns:
            if name not in row:
                raise BadRow(f"line {row.line} has no field {name!r}")
        return render(row)

    return prompt_of


_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode
_encode_ascii = json.JSONEncoder(ensure_ascii=True, allow_nan=False).encode


def to_line(result: MapResult, *, packed: bool = False, columns: Collection[str] | None = None) -> bytes:
    """Write a result as one line of JSON.

    Args:
        result: of a row.
        packed: write a vector as base64 of 32-bit floats, the lowest byte first.
        columns: the fields to keep beside ``id``; ``None``: all.
    """
    fields = _fields(result, packed, columns)
    try:
        return _encode(fields).encode() + b"\n"
    except UnicodeEncodeError:
        # A lone surrogate in a field outside the prompt: escaped, the field leaves as it came.
        return _encode_ascii(fields).encode() + b"\n"
    except ValueError:
        return _encode_ascii(_without_infinities(fields)).encode() + b"\n"


def _without_infinities(value: Any) -> Any:
    """Return a value of JSON with ``None`` for each number that JSON cannot write."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _without_infinities(each) for name, each in value.items()}
    return [_without_infinities(each) for each in value] if isinstance(value, list) else value


def _fields(result: MapResult, packed: bool, columns: Collection[str] | None) -> dict[str, Any]:  # noqa: FBT001
    row: Row = result.document
    if row.fault is not None:
        return {"line": row.line, "error": {"type": BadRow.__name__, "message": row.fault}}
    fields = dict(row) if columns is None else {name: row[name] for name in row if name in columns or name == "id"}
    if fields.get("id") in (None, ""):
        fields["id"] = result.id
    if result.error is not None:
        fields["error"] = {"type": type(result.error).__name__, "message": message_of(result)}
        return fields
    added = _of_answer(result.answer, packed=packed)
    if isinstance(result.answer, Completion):
        # A row with a field of such a name has failed already, if the field was asked for.
        added |= {name: value for name, value in _asked_for(result.answer).items() if name not in fields}
    return fields | added


def _asked_for(answer: Completion) -> dict[str, Any]:
    """Return the fields of a completion that the server sends where a parameter asks for them."""
    choice = answer.choices[0]
    # The prompt's logprobs are a text's own in a list, and of a chat they stand beside the choices.
    of_prompt = choice.extra.get("prompt_logprobs", answer.extra.get("prompt_logprobs"))
    token_ids = None if choice.token_ids is None else list(choice.token_ids)
    told = {"logprobs": choice.logprobs, "prompt_logprobs": of_prompt, "token_ids": token_ids}
    return {name: value for name, value in told.items() if value is not None}


def _of_answer(answer: Any, *, packed: bool) -> dict[str, Any]:
    """Return the fields added for an answer."""
    usage = _of_usage(answer.usage, generates=isinstance(answer, Completion))
    if isinstance(answer, Embedding):
        vector = _pack(answer.vector) if packed else [float(f"{number:.9g}") for number in answer.vector]
        return {"embedding": vector, "usage": usage}
    if isinstance(answer, Classification):
        return {"label": answer.label, "probabilities": list(answer.probabilities), "usage": usage}
    assert isinstance(answer, Completion), "a map has no other answers"
    added: dict[str, Any] = {"completion": answer.text, "finish_reason": answer.finish_reason}
    message = answer.choices[0].message
    if message is not None and not message.keys() <= _PLAIN_MESSAGE:
        added["message"] = dict(message)
    added["usage"] = usage
    return added


def _of_usage(usage: Usage | None, *, generates: bool) -> dict[str, Any] | None:
    """Return a row's usage; an estimate is marked as one."""
    if usage is None:
        return None
    told: dict[str, Any] = {"prompt_tokens": usage.prompt_tokens}
    if generates:
        told["completion_tokens"] = usage.completion_tokens
    if usage.prompt_tokens_estimated:
        told["prompt_tokens_estimated"] = True
    if generates and usage.completion_tokens_estimated:
        told["completion_tokens_estimated"] = True
    return told


def _pack(vector: array[float]) -> str:
    if sys.byteorder == "big":
        vector = vector[:]
        vector.byteswap()
    return b64encode(vector.tobytes()).decode()


def message_of(result: MapResult) -> str:
    """Return why a row failed. The library counts documents; a reader of the file counts lines."""
    return str(result.error).replace(f"document {result.index}: ", f"line {result.document.line}: ", 1)
