"""Prompts from documents: ``{}`` stands for a text document, ``{name}`` for a field of a mapping.

Rules:
- A name is the field's own, whatever it is made of: ``{Review Text}``, ``{x-y}``, ``{a.b}``. If the
  document has no such field, the name is a path: ``{user.name}``, ``{tags[0]}``.
- A colon is part of the name: there are no format specifications. A path through a missing value,
  such as ``None``, leads to that value.
- ``{name!j}`` is the field as JSON, of a dataclass or pydantic's model its fields. Without it texts
  and numbers enter as they stand, ``true`` and ``false`` as JSON has them, and a list or an object
  not at all: Python's own words for one are nobody's prompt.
- A chat whose template is one field sends the conversation that the field holds.
- No other conversions. Literal braces are doubled.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from numbers import Real
from string import Formatter
from typing import Any

from batchclient._calls.inputs import is_conversation
from batchclient._calls.tables import has_words, kind_of, listed, missing, plain
from batchclient.errors import ConfigError, MissingField

__all__ = ["Prompt", "check_given", "fields_of", "make_prompt", "value_of"]

Prompt = str | Sequence[int]
_PATH = re.compile(r"[^.\[\]]+(?:\.[^.\[\]]+|\[[^.\[\]]+\])*")
_STEP = re.compile(r"[^.\[\]]+")
_NO_NAME = re.compile(r'.*["\r\n{}]|\s*($|:)')
"""A name with a quote, a brace or a line end is JSON whose braces were not doubled."""
_DOUBLED = "to write a brace itself, double it: '{{' or '}}'"


def make_prompt(template: str | Callable[[Any], Any], *, is_chat: bool = False) -> Callable[[Any], Any]:
    """Return the function from a document to its prompt.

    Args:
        template: or such a function.
        is_chat: whether a template of one field may give a conversation.

    Raises:
        ConfigError: the template has a single brace, a conversion, or no field.
    """
    if callable(template):
        return template
    if not isinstance(template, str):
        raise ConfigError(f"prompt is a template or a callable, not {type(template).__name__}", field="prompt")
    pieces = _parse(template)
    names = [name for _, name, _ in pieces if name]
    if any(name == "" for _, name, _ in pieces):
        if names:
            raise ConfigError("a template uses either {} or {name}, not both", field="prompt")
        return lambda document: _fill_text(pieces, document)
    if not names:
        raise ConfigError("the template has no field: write {} for a text, {name} for a column", field="prompt")
    if is_chat and template == f"{{{names[0]}}}":
        return lambda document: _conversation_in(document, names[0]) or _fill_fields(pieces, document)
    return lambda document: _fill_fields(pieces, document)


def fields_of(template: str) -> list[str]:
    """Return the names between a template's braces, in order; ``""`` for ``{}``.

    Raises:
        ConfigError: the template has a single brace, or a conversion.
    """
    return [name for _, name, _ in _parse(template) if name is not None]


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


def check_given(value: Any, name: str, called: str = "") -> None:
    """Refuse an empty cell of a table: ``None``, NaN, pandas' ``NA`` and ``NaT``.

    Args:
        value: of the field.
        name: of the field.
        called: how the error calls the field; empty: by its name.

    Raises:
        MissingField: the value is none.
    """
    empty = missing(value)
    if empty is not None:
        raise MissingField(f"{called or repr(name)} is empty{'' if empty == 'null' else f' ({empty})'}", field=name)


_Piece = tuple[str, str | None, bool]
"""A literal, the name of the field after it, and whether the field enters as JSON."""


def _parse(template: str) -> list[_Piece]:
    try:
        parsed = list(Formatter().parse(template))
    except ValueError as error:
        raise ConfigError(f"the template is wrong: {error}; {_DOUBLED}", field="prompt") from None
    pieces: list[_Piece] = []
    for literal, name, specification, conversion in parsed:
        if name is None:
            pieces.append((literal, None, False))
            continue
        whole = name + (f"!{conversion}" if conversion else "") + (f":{specification}" if specification else "")
        is_json = whole.endswith("!j")
        if (conversion and not is_json) or (whole and _NO_NAME.match(whole)):
            raise ConfigError(f"'{{{whole}}}' names no field; {_DOUBLED}", field="prompt")
        pieces.append((literal, whole.removesuffix("!j"), is_json))
    return pieces


def _conversation_in(document: Any, name: str) -> Any:
    """Return a document's field, if it is a conversation."""
    try:
        value = value_of(document, name) if isinstance(document, Mapping) else None
    except KeyError:
        return None
    value = listed(value)
    return value if is_conversation(value) else None


def _fill_text(pieces: list[_Piece], document: Any) -> str:
    if not isinstance(document, str):
        check_given(document, "prompt", "the document")
        hint = "; use {name}" if isinstance(document, Mapping) else ""
        raise ConfigError(
            f"the template's {{}} takes a text, and the document is {kind_of(document)}{hint}", field="prompt"
        )
    whole = [
        literal if name is None else literal + (_as_json(document, "") if is_json else document)
        for literal, name, is_json in pieces
    ]
    return "".join(whole)


def _fill_fields(pieces: list[_Piece], document: Any) -> str:
    if not isinstance(document, Mapping):
        raise ConfigError(
            f"the template names fields, and the document is {kind_of(document)}, not a mapping", field="prompt"
        )
    parts: list[str] = []
    for literal, name, is_json in pieces:
        parts.append(literal)
        if name is None:
            continue
        try:
            value = value_of(document, name)
        except KeyError:
            known = ", ".join(sorted(map(str, document)))[:200] or "none"
            raise MissingField(f"the document has no field {name!r}; it has: {known}", field=name) from None
        if is_json:
            value = _as_json(value, name)
        elif not isinstance(value, str):
            value = _as_text(value, name)
        parts.append(value)
    return "".join(parts)


def _as_text(value: Any, name: str) -> str:
    """Write a field that is no text.

    Raises:
        ConfigError: there are no words for it that anybody would mean; a ``MissingField`` is empty.
    """
    # "None" or "nan" in a prompt is a mistake that nobody sees in a million answers.
    check_given(value, name)
    if isinstance(value, (bytes, bytearray, memoryview)):
        # Columns of files are often binary; "b'…'" would be in every prompt.
        raise ConfigError(f"the document's field {name!r} is {kind_of(value)}: decode it", field=name)
    if isinstance(value, Enum):
        return _as_text(value.value, name) if not isinstance(value.value, str) else value.value
    if isinstance(value, Iterable) or not (isinstance(value, Real) or has_words(value)):
        as_chat = "; a template of that field alone sends it, with call='chat'" if is_conversation(value) else ""
        what = "a conversation" if as_chat else kind_of(value)
        if not _is_json(value):
            raise ConfigError(f"the document's field {name!r} is {what}, which is no text", field=name)
        raise ConfigError(
            f"the document's field {name!r} is {what}: {{{name}!j}} writes it as JSON{as_chat}", field=name
        )
    return str(value).lower() if type(value).__name__ in ("bool", "bool_") else str(value)


def _is_json(value: Any) -> bool:
    try:
        _as_json(value, "")
    except ConfigError:
        return False
    return True


def _as_json(value: Any, name: str) -> str:
    """Write a field as JSON.

    Raises:
        ConfigError: JSON has nothing for it.
    """
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False, default=plain)
    except (TypeError, ValueError, RecursionError):
        raise ConfigError(f"the document's field {name!r} cannot be written as JSON", field=name) from None
