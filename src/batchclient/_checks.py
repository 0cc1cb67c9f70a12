"""Checks of single values that a user gives; each names the argument, and none shows the value."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Collection, Iterable
from dataclasses import fields
from difflib import get_close_matches
from functools import wraps
from typing import Any, TypeVar

from batchclient._old_names import refuse_old
from batchclient.errors import ConfigError

__all__ = [
    "check_choice",
    "check_count",
    "check_flag",
    "check_number",
    "checked",
    "refuse_unknown",
    "refused",
    "refuses_unknown",
]

_T = TypeVar("_T")


def refused(field: str, why: str) -> ConfigError:
    """Return the error for an argument, to be raised."""
    return ConfigError(f"{field}: {why}", field=field)


def checked(field: str, check: Callable[[], _T]) -> _T:
    """Return what a check returns; name the argument where it raises ``ValueError``.

    Raises:
        ConfigError: the value is wrong.
    """
    try:
        return check()
    except ValueError as error:
        why = str(error)
    # Not raised while that error is handled, which would be its context, with the value in it.
    raise refused(field, why)


def check_number(field: str, value: object, *, above: float | None = None, endless: bool = False) -> None:
    """Refuse what is no number of at least 0.

    Args:
        field, value: the argument.
        above: the number that it must be greater than.
        endless: whether infinity is taken.

    Raises:
        ConfigError: the value is wrong.
    """
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        is_enough = value >= 0 if above is None else value > above
        # A whole number may be too large to be a float.
        if is_enough and ((endless and value == math.inf) or value <= sys.float_info.max):
            return
    raise refused(field, "a number of at least 0" if above is None else f"a number above {above:g}")


def check_count(field: str, value: object) -> None:
    """Refuse what is no whole number of at least 1.

    Raises:
        ConfigError: the value is wrong.
    """
    if type(value) is not int or value < 1:
        raise refused(field, "a whole number of at least 1")


def check_flag(field: str, value: object) -> None:
    """Refuse what is neither true nor false.

    Raises:
        ConfigError: the value is wrong.
    """
    if type(value) is not bool:
        raise refused(field, "True or False")


def check_choice(field: str, value: object, choices: Collection[str]) -> None:
    """Refuse what is none of some words.

    Raises:
        ConfigError: the value is wrong.
    """
    if not isinstance(value, str) or value not in choices:
        raise refused(field, f"one of {', '.join(choices)}")


def refuses_unknown(kind: type[_T]) -> type[_T]:
    """Let a dataclass refuse arguments that it does not have, with the right names in the error."""
    make: Callable[..., None] = kind.__init__
    known = {each.name for each in fields(kind)}  # type: ignore[arg-type]

    @wraps(make)
    def refusing(self: Any, *values: Any, **given: Any) -> None:
        refuse_unknown(given.keys() - known, known)
        make(self, *values, **given)

    kind.__init__ = refusing  # type: ignore[method-assign]
    return kind


def refuse_unknown(arguments: Iterable[str], known: Iterable[str]) -> None:
    """Refuse arguments that do not exist; the error has the right name.

    Args:
        arguments: names without a parameter.
        known: the parameters.

    Raises:
        ConfigError: there is such an argument.
    """
    refuse_old(arguments)
    for name in arguments:
        names = sorted(known)
        near = get_close_matches(name, names, 1) or [one for one in names if name in one]
        hint = f"did you mean {near[0]}?" if near else f"there are: {', '.join(names)}"
        raise ConfigError(f"there is no argument {name}; {hint}", field=name)
