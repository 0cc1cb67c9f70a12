"""The keys that a function answers: each request goes with the answer for its own call.

Rules:
- Threads and tasks that call at the same time ask for a key each. openai 2 has a single place for
  all answers, and writes the latest answer into a request.
- A call's answer is known in the caller's own context alone.
- A call asks once, as with openai. A plain call that does not share after all goes openai's own way
  with the answer from before.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from openai import NotGiven, Omit

__all__ = ["asked", "defaults_of", "keep", "prepared", "take_asked", "with_key"]

_answer: ContextVar[str | None] = ContextVar("_answer", default=None)
_asked: ContextVar[tuple[Any, str] | None] = ContextVar("_asked", default=None)
"""(client, key): the answer to the client's next question."""


def keep(owner: Any, key: str) -> str:
    """Keep an answered key, in openai's place and for the present call."""
    owner.api_key = key
    _answer.set(key)
    return key


@contextmanager
def asked(owner: Any, key: str) -> Generator[None]:
    """Let openai send a call that has had its answer."""
    before = _asked.set((owner, key) if owner._batching.asks_for_key else None)
    try:
        yield
    finally:
        _asked.reset(before)


def take_asked(owner: Any) -> str | None:
    """Return, once, the answer that a call has had already."""
    known = _asked.get()
    if known is None or known[0] is not owner:
        return None
    _asked.set(None)
    return known[1]


@contextmanager
def prepared(owner: Any) -> Generator[Any]:
    """Let openai prepare a request meanwhile.

    Yields a function that gives the request's options the key that was answered for the request.
    """
    before = _answer.set(None)

    def finish(options: Any) -> Any:
        key = _answer.get()
        return with_key(owner, options, key) if key else options

    try:
        yield finish
    finally:
        _answer.reset(before)


def with_key(owner: Any, options: Any, key: str) -> Any:
    """Write a key into a request's options, unless other headers take its place."""
    given = {} if isinstance(options.headers, NotGiven) else options.headers
    if not _authorizations(given):
        defaults = _authorizations(defaults_of(owner))
        # Left out on purpose: openai expects the mark of absence on the request, too.
        value = f"Bearer {key}" if not defaults else defaults[0] if isinstance(defaults[0], Omit) else None
        if value is not None:
            # The caller's own mapping stays as it is.
            options.headers = {"Authorization": value, **given}
    return options


def defaults_of(owner: Any) -> Any:
    """The headers of an openai client's every request, without the key's."""
    headers = owner.default_headers
    if not hasattr(owner, "_auth_headers") and "Authorization" not in owner._custom_headers:
        # Until 2.31 openai counts its key among the default headers.
        headers = {name: value for name, value in headers.items() if name != "Authorization"}
    return headers


def _authorizations(headers: Any) -> list[Any]:
    return [value for name, value in headers.items() if name.lower() == "authorization"]
