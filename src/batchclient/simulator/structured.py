"""Answers in a form demanded by the request: one of some choices, or JSON that fits a schema.

Rules:
- The demand is in ``structured_outputs`` (``choice``, ``json``, ``json_object``) or
  ``response_format`` (``json_schema``, ``json_object``). Other demands (a regex, a grammar) are not
  understood and change nothing.
- The answer is the smallest that fits. Every free text holds the prompt's digest, which still
  proves whose answer it is.
- The answer ends by itself. Where ``max_tokens`` is too small, it breaks off like a real answer.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pydantic_core

from batchclient.simulator.text import END_OF_TEXT, Generation, pieces

__all__ = ["WrittenGeneration", "demanded_text"]

_LONGEST_TEXT = 65_536
_MOST_ITEMS = 4096
"""More than an answer has tokens for: it is cut off by its length."""
_DEEPEST = 16


class WrittenGeneration(Generation):
    """An answer with a given text, cut at ``max_tokens``."""

    __slots__ = ()

    def __init__(self, text: str, max_tokens: int) -> None:
        own = pieces(text)
        ends = len(own) < max_tokens
        super().__init__("", 0, 1, "stop" if ends else "length")
        self._pieces = [*own, END_OF_TEXT] if ends else own[:max_tokens]
        self.tokens: int = len(self._pieces)
        self._whole = "".join(self._pieces)
        self.text: str = self._whole

    def cut_short(self) -> None:
        """End the answer half-way."""
        self.tokens = max(1, self.tokens // 2)
        self.finish_reason: str = "abort"
        self.stop_reason: str | None = None
        self._ends = False
        self.text = "".join(self.pieces()[: self.tokens])

    def text_after(self, tokens: int) -> str:
        """Return the text that a stream has sent once ``tokens`` are there."""
        if tokens >= self.tokens:
            return self.text
        length = len("".join(self.pieces()[:tokens])) - self._held_back
        return self.text[: max(0, length)]

    def pieces(self) -> list[str]:
        """Return the tokens themselves."""
        assert self._pieces is not None, "made with them"
        return self._pieces[: self.tokens]

    def _tokens_up_to(self, characters: int) -> int:
        length = 0
        for count, piece in enumerate(self.pieces(), 1):
            length += len(piece)
            if length >= characters:
                return count
        return self.tokens


def demanded_text(fields: Mapping[str, Any], digest: str) -> str | None:
    """Return a text that fits a request's demand and has the digest; ``None``: no known demand."""
    demand = fields.get("structured_outputs")
    if isinstance(demand, dict):
        choice = demand.get("choice")
        if isinstance(choice, list) and choice:
            return str(choice[int(digest, 16) % len(choice)])
        if demand.get("json") is not None:
            schema = demand["json"]
            return _write(pydantic_core.from_json(schema) if isinstance(schema, str) else schema, digest)
        if demand.get("json_object"):
            return "{}"
    demand = fields.get("response_format")
    if isinstance(demand, dict):
        if demand.get("type") == "json_object":
            return "{}"
        if demand.get("type") == "json_schema" and isinstance(demand.get("json_schema"), dict):
            return _write(demand["json_schema"].get("schema") or {}, digest)
    return None


def _write(schema: Any, digest: str) -> str:
    definitions = schema.get("$defs") or {} if isinstance(schema, dict) else {}
    return pydantic_core.to_json(_instance(schema, definitions, digest, 0)).decode()


def _instance(schema: Any, definitions: Mapping[str, Any], digest: str, depth: int) -> Any:
    """Return the smallest value that fits; ``None`` deep in a schema that refers to itself."""
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return None
    if "$ref" in schema:
        return _instance(definitions.get(schema["$ref"].rpartition("/")[2]), definitions, digest, depth + 1)
    if "const" in schema:
        return schema["const"]
    if schema.get("enum"):
        return schema["enum"][int(digest, 16) % len(schema["enum"])]
    for several in ("anyOf", "oneOf", "allOf"):
        if schema.get(several):
            return _instance(schema[several][0], definitions, digest, depth + 1)
    kind = schema.get("type")
    match kind[0] if isinstance(kind, list) else kind:
        case "object":
            required = schema.get("required") or ()
            properties = schema.get("properties") or {}
            return {name: _instance(properties.get(name), definitions, digest, depth + 1) for name in required}
        case "array":
            own = _instance(schema.get("items"), definitions, digest, depth + 1)
            return [own] * min(max(1, schema.get("minItems", 1)), _MOST_ITEMS)
        case "string":
            text = digest.ljust(min(schema.get("minLength", 0), _LONGEST_TEXT), "x")
            return text[: schema["maxLength"]] if "maxLength" in schema else text
        case "integer":
            return schema.get("minimum", schema.get("exclusiveMinimum", -1) + 1)
        case "number":
            return float(schema.get("minimum", schema.get("exclusiveMinimum", -1.0) + 1.0))
        case "boolean":
            return int(digest, 16) % 2 == 0
    return None
