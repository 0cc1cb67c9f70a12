"""``map --answer-columns``: the properties of answers that fit ``--schema`` are fields of ``OUT``.

Rules:
- The schema tells the names and the types: texts, whole numbers, numbers, booleans, and lists and
  objects of these, where each may be ``null``, too. A reference into the schema is followed.
- What may be of several types, as with ``anyOf``, or of any, is JSON as a text in a table.
- ``completion`` stays the answer as it came: a property that the schema does not name is there.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from batchclient.cli._refusal import Refusal
from batchclient.jobs.forms import OutputForm

if TYPE_CHECKING:
    from pydantic import BaseModel

__all__ = ["Kind", "kinds_in", "values_of"]

Kind = str | list[Any] | dict[str, Any]
"""Arrow's name of a type; a list with the kind of its items; or kinds by name, of an object."""
_JSON = "json"
_KINDS = {"string": "string", "integer": "int64", "number": "float64", "boolean": "bool_"}
_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
_OF_SEVERAL = frozenset({"anyOf", "oneOf", "allOf", "prefixItems", "patternProperties", "$dynamicRef"})


def kinds_in(model: type[BaseModel] | None) -> dict[str, Kind]:
    """Return the types of the properties of answers that fit a schema, by their names.

    Raises:
        Refusal: there is no schema, or its root tells no properties.
    """
    if model is None:
        raise Refusal("--answer-columns goes with --schema, whose properties are the columns")
    schema = model.model_json_schema()
    told, seen = _followed(schema, schema, frozenset())
    properties = told.get("properties")
    if not properties:
        raise Refusal("--answer-columns: the schema has no properties, which would be the columns")
    return {name: _kind_of(each, schema, seen) for name, each in properties.items()}


def _followed(part: Any, root: Mapping[str, Any], seen: frozenset[str]) -> tuple[Mapping[str, Any], frozenset[str]]:
    """Return what a part of a schema says or refers to, and the references until there."""
    while isinstance(part, Mapping) and isinstance(reference := part.get("$ref"), str):
        if reference in seen or not reference.startswith("#/"):
            return {}, seen
        seen, part = seen | {reference}, root
        for name in reference.split("/")[1:]:
            part = part.get(name.replace("~1", "/").replace("~0", "~")) if isinstance(part, Mapping) else None
    return part if isinstance(part, Mapping) else {}, seen


def _kind_of(part: Any, root: Mapping[str, Any], seen: frozenset[str]) -> Kind:
    told, seen = _followed(part, root, seen)
    values = told.get("enum", [told["const"]] if "const" in told else [])
    given = told.get("type", [_TYPES.get(type(value), "") for value in values])
    types = ({given} if isinstance(given, str) else {*given}) - {"null"}
    name = "number" if types == {"integer", "number"} else next(iter(types)) if len(types) == 1 else ""
    if told.keys() & _OF_SEVERAL:
        return _JSON
    if name == "array":
        item = _kind_of(told.get("items"), root, seen)
        return _JSON if item == _JSON else [item]
    if name == "object":
        inner = {key: _kind_of(each, root, seen) for key, each in told.get("properties", {}).items()}
        return _JSON if not inner or _JSON in inner.values() else inner
    return _KINDS.get(name, _JSON)


def values_of(text: str, columns: Mapping[str, tuple[str, Kind]], form: OutputForm) -> dict[str, Any]:
    """Return the values of an answer's properties; what is missing is ``None``.

    Args:
        text: of the answer.
        columns: by their names in the output: each property, and its type.
        form: of the output. In a table a number that is whole is one, also if it is written as 1.0,
            and in CSV a text that might be another value is JSON.
    """
    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        return {}
    if form == "jsonl":
        return {name: answer.get(key) for name, (key, _) in columns.items()}
    return {name: _fitting(answer.get(key), kind, is_csv=form == "csv") for name, (key, kind) in columns.items()}


def _fitting(value: Any, kind: Kind, *, is_csv: bool) -> Any:
    if isinstance(kind, list) and isinstance(value, list):
        return [_fitting(each, kind[0], is_csv=is_csv) for each in value]
    if isinstance(kind, dict) and isinstance(value, dict):
        return {key: _fitting(each, kind.get(key, ""), is_csv=is_csv) for key, each in value.items()}
    if kind == "int64" and isinstance(value, float) and value.is_integer():
        return int(value)
    return json.dumps(value, ensure_ascii=False) if is_csv and kind == _JSON and isinstance(value, str) else value
