"""``Repair``: what a map does about answers that were cut off, or do not fit."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from batchclient._calls.labels import field_of
from batchclient.errors import ConfigError

__all__ = ["BOUNDS", "Repair", "answers_alike"]

_MOST_RETRIES = 100
_MOST_DOUBLINGS = 16
BOUNDS = ("max_completion_tokens", "max_tokens")
"""Two names of the output tokens that a call asks for at most."""


@dataclass(frozen=True, slots=True)
class Repair:
    """What a map does about bad answers: with ``batch_map(…, repair=Repair(truncated=2))``.

    Args:
        invalid: ask a row again whose answer does not fit ``response_model``, unless it was cut
            off, or is none of ``labels``, up to so many times, 100 at most. Refused with
            ``temperature=0`` or a ``seed``: the answer would be the same.
        truncated: go on with a row's answer that was cut off at its bound, up to so many times, 16
            at most: where it was cut, or anew with twice the bound where the server cannot go on,
            and with structured output, tools, reasoning, logprobs, ``stop`` or penalties. A
            journal's answers that were cut off are gone on with, too. Not after a loop, nor with
            ``n`` above 1. Before the first row the servers are asked which they are.
        max_tokens: output tokens of such a row in all, which the last try may use, no less than the
            call's own ``max_tokens``; by default that, doubled for each try.

    Raises:
        ConfigError: a number is none, or ``max_tokens`` is given without ``truncated``.
    """

    invalid: int = 0
    truncated: int = 0
    max_tokens: int | None = None

    def __post_init__(self) -> None:
        _check_number("repair.invalid", self.invalid, 0, _MOST_RETRIES)
        _check_number("repair.truncated", self.truncated, 0, _MOST_DOUBLINGS)
        if self.max_tokens is not None:
            _check_number("repair.max_tokens", self.max_tokens, 1, 1 << 30)
            if not self.truncated:
                raise ConfigError("repair.max_tokens is for repair.truncated", field="repair.max_tokens")

    def check(self, params: Mapping[str, Any], response_model: object) -> None:
        """Check that the repairs suit the parameters of all calls.

        Raises:
            ConfigError: there is no form to fit; or every answer to a prompt would be the same; or
                the bound is below ``max_tokens``.
        """
        if self.invalid:
            if response_model is None and field_of(params, "labels") is None:
                message = "repair.invalid is for answers that have to fit a response_model, or be one of labels"
                raise ConfigError(message, field="repair.invalid")
            same = answers_alike(params)
            if same:
                message = f"repair.invalid: with {same} every answer to a prompt is the same; leave one of the two out"
                raise ConfigError(message, field="repair.invalid")
        self.check_bound(params)

    def check_bound(self, params: Mapping[str, Any]) -> None:
        """Check the bound beside a call's own.

        Raises:
            ConfigError: it is lower.
        """
        if self.max_tokens is not None:
            given = _with_extra(params)
            first = max((each for name in BOUNDS if type(each := given.get(name)) is int), default=0)
            if first > self.max_tokens:
                raise ConfigError(f"repair.max_tokens is at least max_tokens, {first}", field="repair.max_tokens")


def answers_alike(params: Mapping[str, Any]) -> str:
    """Return the parameter by which every answer to a prompt is the same; empty: none."""
    given = _with_extra(params)
    return "temperature=0" if given.get("temperature") == 0 else "a seed" if given.get("seed") is not None else ""


def _with_extra(params: Mapping[str, Any]) -> Mapping[str, Any]:
    extra = params.get("extra_body")
    return {**extra, **params} if isinstance(extra, Mapping) else params


def _check_number(name: str, value: object, least: int, most: int) -> None:
    if type(value) is not int or not least <= value <= most:
        raise ConfigError(f"{name} is a whole number from {least} to {most}, not {value!r:.40}", field=name)
