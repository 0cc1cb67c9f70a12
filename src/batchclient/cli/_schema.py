"""``--schema``: a JSON schema that each answer has to fit.

Rules:
- The schema is demanded of the server, as a ``response_model``'s is. Each answer is checked here,
  too, whatever the server promises.
- A schema that cannot be read, or refers to anything outside its file, is refused. Nothing is
  fetched.
- A complaint about an answer names the keyword of the schema, and shows nothing of the answer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from batchclient.cli._refusal import Refusal
from batchclient.jobs.output import reason_of

if TYPE_CHECKING:
    from pydantic import BaseModel

__all__ = ["model_of", "schema_from"]

_LONGEST_BYTES = 1024 * 1024
_LONGEST_NAME = 64
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9_-]+")
"""OpenAI's servers take no other characters in a schema's name."""
_DATA = frozenset({"const", "default", "enum", "examples"})
"""Keywords whose values are no schemas."""


def schema_from(path: str | None) -> type[BaseModel] | None:
    """Read a schema; return a model whose instances are the answers that fit.

    Raises:
        Refusal: the file cannot be read, or is no JSON schema.
    """
    if path is None:
        return None
    schema = _read(path)
    try:
        # Here, not above: most jobs have no schema.
        from jsonschema import SchemaError
        from referencing import Registry
        from referencing.exceptions import Unresolvable
        from referencing.jsonschema import DRAFT202012
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    checker = _checker_of(schema)
    if checker is None:
        raise Refusal(f"--schema: {path}: its $schema is not known")
    try:
        checker.check_schema(schema)
    except SchemaError as error:
        place = "/".join(map(str, error.absolute_path))
        raise Refusal(f"--schema: {path} is no JSON schema: {place or 'the whole'}: {error.message:.200}") from None
    registry: Registry[Any] = Registry()
    resolver = registry.with_resource("", DRAFT202012.create_resource(schema)).resolver()
    for reference in _references(schema):
        if not reference.startswith("#"):
            raise Refusal(f"--schema: {path}: {reference!r:.80} refers to another file; only #/… is read")
        try:
            resolver.lookup(reference)
        except Unresolvable:
            raise Refusal(f"--schema: {path}: {reference!r:.80} leads nowhere") from None
    return model_of(_name(schema, path), schema)


def _missing(error: ModuleNotFoundError) -> Refusal:
    return Refusal(f"--schema needs {error.name}, which is not installed: pip install 'batchclient[cli]'")


def _checker_of(schema: dict[str, Any]) -> Any:
    """Return the class that checks by the schema's dialect; ``None``: the dialect is not known."""
    from jsonschema.validators import Draft202012Validator, validator_for

    dialect = schema.get("$schema")
    if dialect is None:
        return Draft202012Validator
    return validator_for(schema, None) if isinstance(dialect, str) else None


def _read(path: str) -> dict[str, Any]:
    try:
        with Path(path).open("rb") as file:
            data = file.read(_LONGEST_BYTES + 1)
    except OSError as error:
        raise Refusal(f"--schema: {path}: {reason_of(error)}") from None
    if len(data) > _LONGEST_BYTES:
        raise Refusal(f"--schema: {path} is longer than {_LONGEST_BYTES >> 20} MiB")
    try:
        schema = json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        raise Refusal(f"--schema: {path} is not JSON") from None
    if not isinstance(schema, dict):
        raise Refusal(f'--schema: {path} is no JSON schema: an object, such as {{"type": "object", …}}')
    return schema


def _references(schema: object) -> Iterator[str]:
    """Return the references of a schema, and of the schemas in it."""
    if isinstance(schema, dict):
        for name, value in schema.items():
            if name in ("$ref", "$dynamicRef") and isinstance(value, str):
                yield value
            elif name not in _DATA:
                yield from _references(value)
    elif isinstance(schema, list):
        for each in schema:
            yield from _references(each)


def _name(schema: dict[str, Any], path: str) -> str:
    title = schema.get("title")
    named = title if isinstance(title, str) else Path(path).name.partition(".")[0]
    return _NOT_IN_NAMES.sub("_", named).strip("_")[:_LONGEST_NAME] or "answer"


def model_of(name: str, schema: dict[str, Any]) -> type[BaseModel]:
    """Return a model whose instances are the answers that fit a schema.

    Args:
        name: of the model, and of the schema in a request.
        schema: that ``schema_from`` has let pass.

    Raises:
        Refusal: the package that checks is not installed.
    """
    try:
        from jsonschema.exceptions import best_match
        from referencing import Registry
    except ModuleNotFoundError as error:
        raise _missing(error) from None
    from pydantic import RootModel, model_validator
    from pydantic_core import PydanticCustomError, from_json

    # Nothing is fetched: the registry has no way to.
    validator = _checker_of(schema)(schema, registry=Registry())

    class Answer(RootModel[Any]):
        @classmethod
        def model_json_schema(cls, *_args: Any, **_options: Any) -> dict[str, Any]:
            return schema

        @classmethod
        def model_validate_json(cls, json_data: str | bytes | bytearray, **_options: Any) -> Answer:
            return cls.model_validate(json_data)

        @model_validator(mode="before")
        @classmethod
        def _read_and_check(cls, text: Any) -> Any:
            try:
                value = from_json(text, allow_inf_nan=False)
            except ValueError:
                raise PydanticCustomError("json_invalid", "no JSON") from None
            fault = best_match(validator.iter_errors(value))
            if fault is not None:
                keyword: Any = str(fault.validator)
                raise PydanticCustomError(keyword, "no value that the schema takes")
            return value

    Answer.__name__ = name
    return Answer
