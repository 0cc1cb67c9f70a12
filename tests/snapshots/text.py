"""A value as text that is the same in every process, and after any move of modules.

Rules:
- A class is its name without its module. A function is its name. An object without public content
  is its class's name.
- A dataclass is its class's name and its public fields, sorted by name: their order in the source
  says nothing.
- An exception is its class's name, its message and its public attributes.
- Mappings and sets are sorted by their text. A list, a tuple and an array are written alike.
- A float has nine significant digits, so that a sum in another order is the same number.
- Ids, addresses, hashes and names that begin with an underscore are left out.
"""

import enum
import types
from array import array
from collections.abc import Mapping, Set
from dataclasses import fields, is_dataclass

__all__ = ["text_of"]

_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)
_OF_ERRORS = ("retryable",)
"""Attributes that an exception may have from its class."""


def text_of(value, known=lambda value: None):
    """Return a value's text.

    Args:
        value: anything.
        known: returns the text of a value that has a name of its own, such as ``call 3``; else
            ``None``.
    """

    def write(value):
        named = known(value)
        if named is not None:
            return named
        if value is None or isinstance(value, bool | int) and not isinstance(value, enum.Enum):
            return str(value)
        if isinstance(value, float):
            return format(value, ".9g")
        if isinstance(value, enum.Enum):
            return f"{type(value).__name__}.{value.name}"
        if isinstance(value, str):
            # What ``repr`` escapes depends on the interpreter's Unicode tables.
            return ascii(value)
        if isinstance(value, bytes | bytearray):
            return ascii(bytes(value))
        if isinstance(value, Mapping):
            return "{" + ", ".join(sorted(f"{write(key)}: {write(each)}" for key, each in value.items())) + "}"
        if isinstance(value, Set):
            return "{" + ", ".join(sorted(map(write, value))) + "}"
        if isinstance(value, list | tuple | array):
            return "[" + ", ".join(map(write, value)) + "]"
        if isinstance(value, type):
            return value.__name__
        if isinstance(value, BaseException):
            return _with(value, _of_an_error(value), write)
        if is_dataclass(value):
            return _with(value, {field.name: getattr(value, field.name) for field in fields(value)}, write)
        if isinstance(value, _FUNCTIONS):
            return f"function {value.__name__}"
        return type(value).__name__

    return write(value)


def _with(value, content, write):
    told = ", ".join(f"{name}={write(content[name])}" for name in sorted(content) if not name.startswith("_"))
    return f"{type(value).__name__}({told})"


def _of_an_error(error):
    shared = {name: getattr(error, name) for name in _OF_ERRORS if hasattr(error, name)}
    return shared | vars(error) | {"text": str(error), "cause": error.__cause__}
