"""``--schema``: a JSON schema that each answer has to fit.

Rules:
- The schema is demanded of the server, as a ``response_model``'s is. Each answer is checked here,
  too, whatever the server promises.
- Numbers are compared as they are written: 4.02 is a multiple of 0.01, and 1.0 is an integer.
- A schema that cannot be read, demands nothing, or refers to anything outside its file, is refused.
  Nothing is fetched.
- A complaint about an answer names the keyword of the schema, and shows nothing of the answer.
"""

from __future__ import annotations

import json
import math
import re
from fractions import Fraction
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchclient.cli._refusal import Refusal
from batchclient.jobs.output import reason_of

if TYPE_CHECKING:
    from pydantic import BaseModel

__all__ = ["schema_from"]

_LONGEST_BYTES = 1024 * 1024
_LONGEST_NAME = 64
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")
"""OpenAI's servers take no other characters in a schema's name."""
_WRAPPER = {"type", "name", "description", "strict", "schema"}
"""What OpenAI's ``json_schema`` has, with the schema in it."""


def schema_from(path: str | None) -> type[BaseModel] | None:
    """Read a schema; return a model whose instances are the answers that fit.

    Raises:
        Refusal: the file cannot be read, or is no JSON schema; or the package that checks is not
            installed.
    """
    if path is None:
        return None
    try:
        # Here, not above: most jobs have no schema.
        import jsonschema
        import referencing.jsonschema
    except ModuleNotFoundError as error:
        raise Refusal(f"--schema needs {error.name}, of the extra batchclient[cli]") from None
    registry: Any = referencing.Registry()
    try:
        with Path(path).open("rb") as file:
            text = file.read(_LONGEST_BYTES).decode("utf-8-sig")
        name, schema = _unwrapped(json.loads(text), path)
        _, exact = _unwrapped(_exactly(text), path)
        dialect = schema.get("$schema", jsonschema.Draft202012Validator.META_SCHEMA["$schema"])
        checker: Any = jsonschema.validators.validator_for({"$schema": str(dialect)}, None)
        if checker is None:
            raise Refusal(f"--schema: {path}: its $schema is not known")
        checker.check_schema(schema)
        if not checker.VALIDATORS.keys() & schema.keys():
            raise Refusal(f"--schema: {path} is no JSON schema: it demands nothing of an answer")
        whole: Any = referencing.Resource.from_contents(schema, referencing.jsonschema.DRAFT202012)
        _follow(whole, registry.resolver_with_root(whole))
    except OSError as error:
        raise Refusal(f"--schema: {path}: {reason_of(error)}") from None
    except (ValueError, RecursionError):
        raise Refusal(f"--schema: {path} is not JSON of at most 1 MiB, or nested too deeply") from None
    except jsonschema.SchemaError as error:
        place = "/".join(map(str, error.absolute_path))
        raise Refusal(f"--schema: {path} is no JSON schema: {place or 'the whole'}: {error.message:.200}") from None
    except referencing.exceptions.Unresolvable as error:
        raise Refusal(f"--schema: {path}: {error.ref!r:.80} leads nowhere; no other file is read") from None
    # Nothing is fetched: the registry has no way to.
    return _model(name, schema, checker(exact, registry=registry))


def _unwrapped(value: Any, path: str) -> tuple[str, dict[str, Any]]:
    """Return name and schema of a file that has a schema, bare or as OpenAI's servers take one."""
    given = value
    if isinstance(given, dict) and given.get("type") == "json_schema":
        given = given.get("json_schema", given)
    named = Path(path).name.partition(".")[0]
    if isinstance(given, dict) and "schema" in given and given.keys() <= _WRAPPER:
        named, given = given.get("name", named), given["schema"]
    elif isinstance(given, dict):
        named = given.get("title", named)
    if not isinstance(given, dict):
        raise Refusal(f'--schema: {path} is no JSON schema: an object, such as {{"type": "object", …}}')
    return _NOT_IN_NAMES.sub("_", str(named)).strip("_")[:_LONGEST_NAME] or "answer", given


def _follow(part: Any, resolver: Any) -> None:
    """Look up the references of a schema, and of the schemas in it."""
    if isinstance(part.contents, dict):
        for reference in {"$ref", "$dynamicRef"} & part.contents.keys():
            resolver.lookup(str(part.contents[reference]))
    for each in part.subresources():
        _follow(each, resolver.in_subresource(each))


def _exactly(text: str) -> Any:
    return json.loads(text, parse_float=_number, parse_constant=_number)


def _number(text: str) -> int | Fraction:
    """Return a number as it is written; ``Fraction`` is exact with every operator of Python.

    Raises:
        ValueError: it is none, or beyond what a float holds.
    """
    near = float(text)
    if not math.isfinite(near):
        raise ValueError(text)
    exact = Fraction(text) if near else Fraction(0)
    return exact.numerator if exact.denominator == 1 else exact


def _model(name: str, schema: dict[str, Any], validator: Any) -> type[BaseModel]:
    from jsonschema.exceptions import best_match
    from pydantic import RootModel, ValidationError
    from pydantic_core import PydanticCustomError

    class Answer(RootModel[Any]):
        @classmethod
        def model_json_schema(cls, *_args: Any, **_options: Any) -> dict[str, Any]:
            return schema

        @classmethod
        def model_validate_json(cls, json_data: Any, **_options: Any) -> Answer:
            try:
                value = _exactly(json_data)
                fault = best_match(validator.iter_errors(value))
                kind: Any = None if fault is None else str(fault.validator)
            except (ValueError, RecursionError):
                kind = "json_invalid"
            if kind is not None:
                complaint = PydanticCustomError(kind, "no value that the schema takes")
                raise ValidationError.from_exception_data(name, [{"type": complaint, "input": None}])
            return cls.model_construct(value)

    Answer.__name__ = name
    return Answer
