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

__all__ = ["demanded_text"]

_LONGEST_TEXT = 65_536
_MOST_ITEMS = 4096
"""More than an answer has tokens for: it is cut off by its length."""
_DEEPEST = 16


def demanded_text(structured: object, form: object, digest: str) -> str | None:
    """Return a text that fits a demand and has the digest; ``None``: no known demand.

    Args:
        structured: ``structured_outputs``.
        form: ``response_format``.
        digest: of the prompt.
    """
    match structured:
        case {"choice": [*choices]} if choices:
            return str(choices[int(digest, 16) % len(choices)])
        case {"json": schema} if schema is not None:
            return _write(pydantic_core.from_json(schema) if isinstance(schema, str) else schema, digest)
        case {"json_object": wanted} if wanted:
            return "{}"
    match form:
        case {"type": "json_object"}:
            return "{}"
        case {"type": "json_schema", "json_schema": {**named}}:
            return _write(named.get("schema") or {}, digest)
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
