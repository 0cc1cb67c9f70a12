"""The public surface as text: every public name with its signature, bases, members and defaults.

Rules:
- A name is public if a public module has it in ``__all__``. A name of two modules is described
  once; the second module names the first.
- A class has its public bases alone. The members that private bases give it are among its own: how
  a class is put together is no business of its users.
- Annotations are as they are written, without modules of this package. Docstrings are left out:
  they are prose.
- Commands are those of the command line, with each option's type and default. Fixtures are pytest's.
"""

import dataclasses
import enum
import importlib
import inspect
import re
import types
import typing
from functools import cached_property
from textwrap import wrap

from tests.snapshots.text import text_of

__all__ = ["MODULES", "surface"]

MODULES = (
    "batchclient",
    "batchclient.bench",
    "batchclient.options",
    "batchclient.dialects",
    "batchclient.errors",
    "batchclient.integrations.httpx",
    "batchclient.integrations.httpx2",
    "batchclient.integrations.prometheus",
    "batchclient.integrations.ray",
    "batchclient.integrations.redis",
    "batchclient.jobs",
    "batchclient.openai",
    "batchclient.params",
    "batchclient.partition",
    "batchclient.retry",
    "batchclient.rows",
    "batchclient.simulator",
    "batchclient.templates",
    "batchclient.testing",
    "batchclient.transport",
    "batchclient.types",
)
_OWN = ("batchclient", "pytest_batchclient", "batchclient_script")
_PROTOCOLS = (
    "__call__ __enter__ __exit__ __aenter__ __aexit__ __iter__ __next__ __aiter__ __anext__ __await__"
    " __len__ __getitem__ __contains__ __bool__ __str__"
).split()
"""Special methods by which users meet an object."""
_HANDED_OUT = ("Stream", "SyncStream")
"""Classes that users are given and never make: their constructors are not shown."""
_LONGEST_LINE = 100
_MODULE_BEFORE = re.compile(r"\b(?:batchclient(?:\.\w+)*|collections\.abc|typing|types|random)\.(?=[A-Za-z_])")


def surface():
    """Return the lines of the whole surface."""
    lines, described = [], {}
    for name in MODULES:
        module = importlib.import_module(name)
        lines += ["", name] if lines else [name]
        for one in sorted(module.__all__):
            value = getattr(module, one)
            known = described.setdefault(id(value), f"{name}.{one}") if _has_name(value) else None
            if known not in (None, f"{name}.{one}"):
                lines.append(f"  {one} = {known}")
            else:
                lines += [f"  {line}" for line in _described(one, value)]
    return lines + ["", "fixtures", *_fixtures(), "", "commands", *_commands()]


def _has_name(value):
    return inspect.isclass(value) or inspect.isfunction(value)


def _described(name, value):
    if typing.is_typeddict(value):
        # Their types are what tests/typing is about.
        return [f"TypedDict {name}", *(f"  {line}" for line in wrap(", ".join(sorted(value.__annotations__)), 90))]
    if inspect.isclass(value):
        return _class(name, value)
    if inspect.isfunction(value):
        return _function(name, value)
    if name == "__version__":
        return [name]
    if isinstance(value, str | int | float | tuple | frozenset | dict):
        return [f"{name} = {text_of(value)}"]
    return [f"{name} = {_annotation(value)}"]


# Classes -------------------------------------------------------------------------------------------------------------


def _class(name, cls):
    bases = ", ".join(base.__name__ for base in cls.__mro__[1:] if _is_public(base))
    lines = [f"class {name}({bases})"]
    lines += [f"  {line}" for line in _signature_of_class(cls)]
    if issubclass(cls, enum.Enum):
        return lines + [f"  {member.name} = {text_of(member.value)}" for member in cls]
    members = _members(cls)
    return lines + [f"  {line}" for member in sorted(members) for line in _member(member, members[member], cls)]


def _is_public(base):
    if base in (object, typing.Generic) or base.__module__ == "typing":
        return base is typing.Protocol
    if not _is_own(base):
        return True
    modules = map(importlib.import_module, MODULES)
    return any(base.__name__ in module.__all__ and getattr(module, base.__name__) is base for module in modules)


def _is_own(cls):
    return cls.__module__.partition(".")[0] in _OWN


def _signature_of_class(cls):
    """How it is called; nothing where another library or ``object`` says how."""
    if getattr(cls, "_is_protocol", False) or cls.__name__ in _HANDED_OUT:
        return []
    maker = next((base for base in cls.__mro__ if {"__init__", "__new__"} & vars(base).keys()), object)
    return _function("", cls) if _is_own(maker) else []


def _members(cls):
    """By name: the public members that this package gives a class; ``None`` if only annotated."""
    found = {}
    for base in reversed(cls.__mro__):
        if _is_own(base):
            found |= dict.fromkeys(_annotations(base)) | vars(base)
    if dataclasses.is_dataclass(cls):
        # Its signature says what they are.
        found = {name: value for name, value in found.items() if name not in cls.__dataclass_fields__}
    return {name: value for name, value in found.items() if _is_met(name, value)}


def _is_met(name, value):
    """Whether users meet a member."""
    if isinstance(value, types.MemberDescriptorType):
        return False
    return not name.startswith("_") or (name in _PROTOCOLS and inspect.isfunction(value))


def _annotations(base):
    return vars(base).get("__annotations__", {})


def _member(name, value, cls):
    if isinstance(value, property | cached_property):
        read = value.func if isinstance(value, cached_property) else value.fget
        settable = ", settable" if getattr(value, "fset", None) is not None else ""
        return [f"{name}: {_annotation(read.__annotations__.get('return'))} (property{settable})"]
    if isinstance(value, staticmethod | classmethod):
        first, *more = _function(name, value.__func__)
        return [f"{type(value).__name__} {first}", *more]
    if inspect.isfunction(value):
        return _function(name, value)
    if inspect.isclass(value):
        return _class(name, value)
    written = next((_annotations(base)[name] for base in cls.__mro__ if name in _annotations(base)), None)
    told = name if written is None else f"{name}: {_annotation(written)}"
    if hasattr(cls, "model_fields") and name in cls.model_fields:
        field = cls.model_fields[name]
        return [told if field.is_required() else f"{told} = {text_of(field.get_default(call_default_factory=True))}"]
    return [told if value is None else f"{told} = {text_of(value)}"]


# Functions -----------------------------------------------------------------------------------------------------------


def _function(name, function):
    """The lines of its signature."""
    before = "async " if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function) else ""
    signature = inspect.signature(function)
    parts, last = [], None
    for parameter in signature.parameters.values():
        if last is parameter.POSITIONAL_ONLY and parameter.kind is not last:
            parts.append("/")
        if parameter.kind is parameter.KEYWORD_ONLY and last not in (parameter.KEYWORD_ONLY, parameter.VAR_POSITIONAL):
            parts.append("*")
        last = parameter.kind
        parts.append(_parameter(parameter))
    returns = signature.return_annotation
    after = "" if returns is signature.empty or inspect.isclass(function) else f" -> {_annotation(returns)}"
    lines = [f"{before}{name}({', '.join(parts)}){after}"]
    if len(lines[0]) > _LONGEST_LINE:
        # One parameter a line, so that a difference shows which.
        lines = [f"{before}{name}(", *(f"    {part}," for part in parts), f"){after}"]
    return lines


def _parameter(parameter):
    stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
    told = stars + parameter.name
    if parameter.annotation is not parameter.empty:
        told += f": {_annotation(parameter.annotation)}"
    if parameter.default is not parameter.empty:
        is_made = type(parameter.default).__name__ == "_HAS_DEFAULT_FACTORY_CLASS"
        told += " = (made anew)" if is_made else f" = {text_of(parameter.default)}"
    return told


def _annotation(annotation):
    if annotation is None:
        return "None"
    written = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)
    return _MODULE_BEFORE.sub("", written.replace("'", ""))


# Fixtures and commands -----------------------------------------------------------------------------------------------


def _fixtures():
    import pytest_batchclient

    return [f"  {name}" for name in sorted(pytest_batchclient.__all__)]


def _commands():
    import typer

    from batchclient.cli.app import make_app

    app = make_app()
    lines = []
    for info in sorted(app.registered_commands, key=lambda info: info.name):
        lines.append(f"  {info.name}")
        types_of = typing.get_type_hints(info.callback)
        for one in typer.main.get_command(app).commands[info.name].params:
            if getattr(one, "hidden", False):
                # Refused, with the option to give instead.
                continue
            names = " ".join([*one.opts, *one.secondary_opts])
            default = "required" if one.required else text_of(one.default)
            lines.append(f"    {one.param_type_name} {names}: {_annotation(types_of.get(one.name))} = {default}")
    return lines
