"""Where others have a say in openai's calls, and so must be asked: subclasses that override its hooks, tracers and mocks that replace its methods.

Rules:
- A subclass that overrides what builds, sends or reads requests shares none: a shared request is
  neither built nor sent there. Nor does one that overrides who asks (keys, headers, the query) or
  whom: each of its calls may have another answer to that.
- A ``create`` that is not openai's own (a tracer wraps it, a mock stands for it) is called, always.
- So are ``post`` and ``request``. Such a call takes openai's whole way down to ``_send_request``, and shares its request only there: whoever watches
  sees the call and its answer.
- Who watches may also change a call, repeat it or ask something else first. So the request that
  openai has built carries the options that it was built from, and is sent by those, once.
- A method is openai's own if it is a plain function whose code was defined in openai's package. Names, ``__wrapped__`` and ``__code__`` prove nothing:
  ``functools.wraps`` copies the first, and wrapt's proxies hand out all that the function has. It does not matter who was imported first.
"""

from __future__ import annotations

import logging
from types import FunctionType
from typing import Any

from batchclient._openai_form import PATHS

__all__ = ["is_openais", "is_watched", "key_of", "mark", "seams", "take_options"]

_HOOKS = (
    "request",
    "_prepare_options",
    "_prepare_request",
    "_build_request",
    "_build_headers",
    "_send_request",
    "_process_response",
    "_process_response_data",
    *("auth_headers", "_auth_headers", "_bearer_auth", "_validate_headers", "_refresh_api_key"),
    *("custom_auth", "_custom_auth", "default_headers", "default_query", "_auth_query", "qs"),
    *("base_url", "_prepare_url"),
)
"""What builds, sends and reads a request, and what says who asks whom."""

_HOME = "openai."
_log = logging.getLogger("batchclient")

_MARK = "batchclient.options"
"""Of the options among a request's extensions, which no HTTP library looks at."""
_BEARER = "Bearer "


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


def mark(request: Any, options: Any) -> None:
    """Let a request that may share one carry the options that openai has built it from."""
    if options.method.lower() == "post" and options.url in PATHS:
        request.extensions[_MARK] = options


def take_options(request: Any) -> Any:
    """Return, once, the options of a request that may share one; ``None`` if it is to be sent as it is."""
    return request.extensions.pop(_MARK, None)


def key_of(request: Any) -> str:
    """Return the key that openai's own code has written into a request; empty: none."""
    value: str = request.headers.get("authorization", "")
    return value.removeprefix(_BEARER) if value.startswith(_BEARER) else ""


def is_openais(function: Any) -> bool:
    """Whether a function is openai's own, as it came with the package."""
    return type(function) is FunctionType and function.__globals__.get("__name__", "").startswith(_HOME)


def _member(kind: type, name: str) -> Any:
    """What a class has under a name, as it was put there: looked up, a wrapper is another object each time."""
    return next((vars(each)[name] for each in kind.__mro__ if name in vars(each)), None)
