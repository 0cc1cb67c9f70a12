"""Where others have a say in openai's calls, and so must be asked: subclasses that override its hooks, tracers and mocks that replace its methods.

Rules:
- A subclass that overrides what builds, sends or reads requests shares none: a shared request is neither built nor sent there.
- A ``create`` that is not openai's own (a tracer wraps it, a mock stands for it) is called, always.
- So are ``post`` and ``request``. Such a call takes openai's whole way down to ``_send_request``, and shares its request only there: whoever watches
  sees the call and its answer.
- A method is openai's own if it is a plain function whose code was defined in openai's package. Names, ``__wrapped__`` and ``__code__`` prove nothing:
  ``functools.wraps`` copies the first, and wrapt's proxies hand out all that the function has. It does not matter who was imported first.
"""

from __future__ import annotations

import logging
from contextvars import ContextVar
from types import FunctionType
from typing import Any

__all__ = ["WATCHED", "is_openais", "is_watched", "key_of", "seams", "take_watched"]

_HOOKS = (
    "request",
    "_prepare_options",
    "_prepare_request",
    "_build_request",
    "_build_headers",
    "_send_request",
    "_process_response",
    "_process_response_data",
)
_HOME = "openai."
_log = logging.getLogger("batchclient")

WATCHED: ContextVar[Any] = ContextVar("WATCHED", default=None)
"""(client, planned): a call on its way through openai's own code, which is to share its request where that code would send it."""


def seams(kind: type, ours: Any) -> tuple[bool, bool]:
    """Whether a subclass's requests may be shared, and whether its resources may skip ``post``.

    Args:
        kind: the subclass.
        ours: the drop-in.
    """
    own = [name for name in _HOOKS if _member(kind, name) is not _member(ours, name)]
    if own:
        _log.warning(
            "%s overrides %s: its calls are sent by openai's own code, and share no requests", kind.__name__, own[0]
        )
    member: Any = kind
    return not own, not own and member.post is ours.post and member.share is ours.share


def is_watched(client: Any, openais: Any) -> bool:
    """Whether somebody has replaced openai's ``post`` or ``request``, of the class or of this client.

    Args:
        client: the drop-in's.
        openais: openai's own class.
    """
    own = vars(client)
    kind: Any = type(client)
    return "request" in own or "post" in own or not is_openais(openais.post) or not is_openais(kind.request)


def take_watched(client: Any) -> Any:
    """Return, once, what the call asks for that is on its way through a client; ``None`` if it is to be sent as it is."""
    watched = WATCHED.get()
    if watched is None or watched[0] is not client:
        return None
    WATCHED.set(None)
    return watched[1]


def key_of(request: Any) -> str:
    """Return the key that openai's own code has written into a request."""
    key: str = request.headers.get("authorization", "").removeprefix("Bearer ")
    return key


def is_openais(function: Any) -> bool:
    """Whether a function is openai's own, as it came with the package."""
    return type(function) is FunctionType and function.__globals__.get("__name__", "").startswith(_HOME)


def _member(kind: type, name: str) -> Any:
    """What a class has under a name, as it was put there: looked up, a wrapper is another object each time."""
    return next((vars(each)[name] for each in kind.__mro__ if name in vars(each)), None)
