"""Prompts from documents: ``{}`` stands for a text document, ``{name}`` for a field of a mapping.

Rules:
- A name is the field's own, whatever it is made of: ``{Review Text}``, ``{x-y}``, ``{a.b}``. If the
  document has no such field, the name is a path: ``{user.name}``, ``{tags[0]}``.
- A colon is part of the name: there are no format specifications, and no conversions. Literal
  braces are doubled. A path through a missing value, such as ``None``, leads to that value.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from string import Formatter
from typing import Any

from batchclient._calls.tables import kind_of, missing
from batchclient.errors import ConfigError

__all__ = ["Prompt", "fields_of", "make_prompt", "value_of"]

Prompt = str | Sequence[int]
_PATH = re.compile(r"[^.\[\]]+(?:\.[^.\[\]]+|\[[^.\[\]]+\])*")
_STEP = re.compile(r"[^.\[\]]+")
_NO_NAME = re.compile(r'.*["\r\n{}]|\s*($|:)')
"""A name with a quote, a brace or a line end is JSON whose braces were not doubled."""
_DOUBLED = "to write a brace itself, double it: '{{' or '}}'"


def make_prompt(template: str | Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return the function from a document to its prompt.

    Raises:
        ConfigError: the template has a single brace, a conversion, or no field.
    """
    if callable(template):
        return template
    if not isinstance(template, str):
        raise ConfigError(f"prompt is a template or a callable, not {type(template).__name__}", field="prompt")
    pieces = _parse(template)
    names = [name for _, name in pieces if name]
    if any(name == "" for _, name in pieces):
        if names:
            raise ConfigError("a template uses either {} or {name}, not both", field="prompt")
        return lambda document: _fill_text(pieces, document)
    if not names:
        raise ConfigError("the template has no field: write {} for a text, {name} for a column", field="prompt")
    return lambda document: _fill_fields(pieces, document)


def fields_of(template: str) -> list[str]:
    """Return the names between a template's braces, in order; ``""`` for ``{}``.

    Raises:
        ConfigError: the template has a single brace, or a conversion.
    """
    return [name for _, name in _parse(template) if name is not None]


def value_of(document: Mapping[str, Any], name: str) -> Any:
    """Return the field of this very name, or else what the name leads to as a path.

    Raises:
        KeyError: the document has neither.
    """
    try:
        return document[name]
    except KeyError:
        if _PATH.fullmatch(name) is None:
            raise
    value: Any = document
    for step in _STEP.findall(name):
        if isinstance(value, Mapping):
            value = value[step]
        elif isinstance(value, (list, tuple)) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        elif missing(value) is not None:
            return value
        else:
            raise KeyError(name)
    return value


def _parse(template: str) -> list[tuple[str, str | None]]:
    try:
        parsed = list(Formatter().parse(template))
    except ValueError as error:
        raise ConfigError(f"the template is wrong: {error}; {_DOUBLED}", field="prompt") from None
    pieces: list[tuple[str, str | None]] = []
    for literal, name, specification, conversion in parsed:
        if name is not None:
            name += (f"!{conversion}" if conversion else "") + (f":{specification}" if specification else "")  # noqa: PLW2901
            if conversion or (name and _NO_NAME.match(name)):
                raise ConfigError(f"'{{{name}}}' names no field; {_DOUBLED}", field="prompt")
        pieces.append((literal, name))
    return pieces


def _fill_text(pieces: list[tuple[str, str | None]], document: Any) -> str:
    if not isinstance(document, str):
        hint = "; use {name}" if isinstance(document, Mapping) else ""
        raise ConfigError(
            f"the template's {{}} takes a text, and the document is {kind_of(document)}{hint}", field="prompt"
        )
    return "".join([literal if name is None else literal + document for literal, name in pieces])


def _fill_fields(pieces: list[tuple[str, str | None]], document: Any) -> str:
    if not isinstance(document, Mapping):
        raise ConfigError(
            f"the template names fields, and the document is {kind_of(document)}, not a mapping", field="prompt"
        )
    parts: list[str] = []
    for literal, name in pieces:
        parts.append(literal)
        if name is None:
            continue
        try:
            value = value_of(document, name)
        except KeyError:
            known = ", ".join(sorted(map(str, document)))[:200] or "none"
            raise ConfigError(f"the document has no field {name!r}; it has: {known}", field=name) from None
        if not isinstance(value, str):
            called = missing(value)
            if called is not None:
                # "None" or "nan" in a prompt is a mistake that nobody sees in a million answers.
                raise ConfigError(f"the document's field {name!r} is {called}", field=name)
            if isinstance(value, (bytes, bytearray, memoryview)):
                # Columns of files are often binary; "b'…'" would be in every prompt.
                raise ConfigError(f"the document's field {name!r} is {kind_of(value)}: decode it", field=name)
            value = str(value)
        parts.append(value)
    return "".join(parts)
