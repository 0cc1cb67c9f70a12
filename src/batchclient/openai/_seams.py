"""The places where other code has a say in openai's calls, and so must be asked.

Such code is a subclass that overrides openai's hooks, or a tracer or mock that replaces methods.

Rules:
- A subclass that overrides the building, sending or reading of requests shares none: a shared
  request is neither built nor sent there. Nor does a subclass share that overrides who asks (keys,
  headers, the query) or whom: each call may give another answer.
- A ``create``, ``post`` or ``request`` other than openai's own (a tracer's wrapper, a mock) is
  called, always. Such a call takes openai's whole way down to ``_send_request``, and shares its
  request there.
- A replaced method that prepares, builds, sends or reads a request may change the request itself.
  So the method sees every call, as a subclass's does: openai's own code sends each call.
- A method is openai's own if the method is a plain function whose code was defined in openai's
  package. Names, ``__wrapped__`` and ``__code__`` prove nothing: ``functools.wraps`` copies the
  first, and wrapt's proxies hand out all attributes of the function. The order of imports does not
  matter.
"""

from __future__ import annotations

import operator
from types import FunctionType
from typing import Any

from batchclient._common.log import log

__all__ = ["is_replaced", "is_untouched", "may_share"]

_HOOKS = (
    "request",
    "_prepare_options",
    "_prepare_request",
    "_build_request",
    "_build_headers",
    *("_send_request", "_send_with_auth_retry", "_should_retry"),
    *("_process_response", "_process_response_data"),
    *("auth_headers", "_auth_headers", "_bearer_auth", "_validate_headers", "_refresh_api_key"),
    *("custom_auth", "_custom_auth", "default_headers", "default_query", "_auth_query", "qs"),
    *("base_url", "_prepare_url"),
)
"""Methods that build, send and read a request, and methods that say who asks whom."""

_OF_REQUESTS = ("_prepare_options", "_build_request", "_prepare_request", "_send_request", "_process_response")
"""Methods past which a shared request goes: of preparing, building, sending and reading."""
_methods = operator.attrgetter(*_OF_REQUESTS)
_EVERY = frozenset(("post", "request", *_OF_REQUESTS))
"""Methods by which somebody may have a say in a call."""
_every = operator.attrgetter(*_EVERY)
_OF_A_CLIENT = frozenset(
    ("_build_headers", "_validate_headers", "_prepare_url", "_should_retry", "_process_response_data", *_OF_REQUESTS)
)
"""Methods that somebody may have replaced on one client."""
_OF_A_CALL = _EVERY | _OF_A_CLIENT
_untouched: dict[tuple[type, type], tuple[Any, ...]] = {}
"""By the client's class and the resource: the methods, kept once nobody had a say in the calls.

By class: a subclass has methods of its own. Compared by identity, in a fifth of the time of another
look: a proxy may equal its function.
"""
_NOT_SEEN = (None,)

_OPENAIS = ("openai.", "batchclient.openai")


def may_share(kind: type, ours: type) -> bool:
    """Whether a subclass's requests may be shared.

    Args:
        kind: the subclass.
        ours: the drop-in.
    """
    own = [name for name in _HOOKS if _member(kind, name) is not _member(ours, name)]
    if own:
        message = "%s overrides %s: its calls are sent by openai's own code, and share no requests"
        log("shares_nothing", message, kind.__name__, own[0], reason=f"an override of {own[0]}")
    return not own


def is_replaced(client: Any) -> bool:
    """Whether somebody has replaced a method past which a shared request goes.

    The method may be of a class or of the client alone.

    Args:
        client: the drop-in's.
    """
    openais = client._openais
    methods = (*_methods(type(client)), *_methods(openais), *_methods(openais.__base__))
    return not vars(client).keys().isdisjoint(_OF_A_CLIENT) or not all(map(_is_openais, methods))


def is_untouched(client: Any, resource: Any, post: Any) -> bool:
    """Whether a call of a resource may go from ``create`` straight to the scheduler.

    So it may where nobody has a say in it: no subclass, and nobody who has replaced a method.

    Args:
        client: the drop-in's.
        resource: openai's class of the resource.
        post: by which this resource sends requests: the client's, unless somebody has replaced it.
    """
    kind, openais = type(client), client._openais
    if not client._may_share or not _OF_A_CALL.isdisjoint(vars(client)):
        return False
    if getattr(post, "__func__", None) is not kind.post:
        return False
    methods = (resource.create, *_every(kind), *_every(openais), *_every(openais.__base__))
    if all(map(operator.is_, methods, _untouched.get((kind, resource), _NOT_SEEN))):
        return True
    if not all(map(_is_openais, methods)):
        return False
    _untouched[kind, resource] = methods
    return True


def _is_openais(method: Any) -> bool:
    """Whether a method is openai's own or the drop-in's."""
    return type(method) is FunctionType and method.__globals__.get("__name__", "").startswith(_OPENAIS)


def _member(kind: type, name: str) -> Any:
    """The attribute of a class as it was defined: a look-up makes a new object of a wrapper."""
    return next((vars(each)[name] for each in kind.__mro__ if name in vars(each)), None)
