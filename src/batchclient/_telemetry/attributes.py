"""The attributes of spans: numbers and names, never a text of a caller or of an answer."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlsplit

from batchclient._core.messages import Batch, Shape
from batchclient._telemetry import conventions as name

__all__ = ["Attributes", "of_address", "of_answer", "of_batch", "of_row", "of_shape"]

Attributes = dict[str, Any]

_NUMBERS = {"temperature": name.TEMPERATURE, "top_p": name.TOP_P}
_LONGEST_NAME = 256
"""A longer id, model or reason is none, but perhaps a text."""
_GREATEST = 2**63
"""Exporters refuse a span with a greater number."""


def of_shape(shape: Shape) -> tuple[str, Attributes]:
    """Return the name and the attributes that all calls of a shape share."""
    kind = str(shape.kind)
    operation = name.OPERATIONS.get(kind, kind)
    attributes: Attributes = {name.OPERATION: operation}
    # A longer model would be a part of every span's name.
    model = shape.model if len(shape.model) <= _LONGEST_NAME else ""
    if model:
        attributes[name.MODEL] = model
    if shape.max_output_tokens is not None and shape.max_output_tokens < _GREATEST:
        attributes[name.MAX_TOKENS] = shape.max_output_tokens
    body = json.loads(shape.body or b"{}")
    for field, attribute in _NUMBERS.items():
        value = body.get(field)
        if type(value) in (int, float) and abs(value) < _GREATEST:
            attributes[attribute] = float(value)
    seed = body.get("seed")
    if type(seed) is int and -_GREATEST <= seed < _GREATEST:
        attributes[name.SEED] = seed
    if shape.to_caller:
        attributes[name.STREAM] = True
    if 1 != shape.weight < _GREATEST:
        attributes[name.CHOICES] = shape.weight
    if shape.priority:
        attributes[name.PRIORITY] = shape.priority
    return f"{operation} {model}".rstrip(), attributes


def of_address(url: str) -> Attributes:
    """Return a server's address and port; a URL's user, path and query are left out."""
    parts = urlsplit(url)
    port = parts.port if parts.port is not None else 443 if parts.scheme == "https" else 80
    return {name.ADDRESS: parts.hostname or "", name.PORT: port}


def of_batch(batch: Batch) -> Attributes:
    """Return what a request's span and the spans of its calls have of the request."""
    attributes: Attributes = {name.SIZE: len(batch.requests)}
    if batch.streamed:
        attributes[name.STREAMED] = True
    if batch.alone:
        attributes[name.ALONE] = batch.alone
    return attributes


def of_answer(answer: Any, attributes: Attributes) -> None:
    """Add what a server says about an answer: model, id, ends, numbers."""
    if answer.attempts > 1:
        attributes[name.ATTEMPTS] = answer.attempts
    extra = answer.extra
    model, reply_id = extra.get("model"), extra.get("id")
    if type(model) is str and len(model) <= _LONGEST_NAME:
        attributes[name.RESPONSE_MODEL] = model
    if type(reply_id) is str and len(reply_id) <= _LONGEST_NAME:
        attributes[name.RESPONSE_ID] = reply_id
    choices = getattr(answer, "choices", None)
    if choices is not None:
        reasons = [choice.finish_reason for choice in choices]
        if all(type(reason) is str and len(reason) <= _LONGEST_NAME for reason in reasons):
            attributes[name.FINISH_REASONS] = reasons
        if answer.time_to_first_token_s is not None:
            attributes[name.FIRST_CHUNK_S] = answer.time_to_first_token_s
    usage = answer.usage
    if usage is not None:
        _count(attributes, name.INPUT_TOKENS, usage.prompt_tokens)
        _count(attributes, name.OUTPUT_TOKENS, usage.completion_tokens)
    elif choices is not None and answer.output_tokens is not None:
        _count(attributes, name.OUTPUT_TOKENS, answer.output_tokens)


def of_row(row_id: str) -> Attributes:
    """Return what the span of a map's row has of it; a longer id is perhaps the text itself."""
    return {name.ROW_ID: row_id} if len(row_id) <= _LONGEST_NAME else {}


def _count(attributes: Attributes, attribute: str, number: int) -> None:
    if number < _GREATEST:
        attributes[attribute] = number
