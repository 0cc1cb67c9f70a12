"""The places where other code has a say in openai's calls, and so must be asked.

Such code is a subclass that overrides openai's hooks, or a tracer or mock that replaces methods.

Rules:
- A subclass that overrides the building, sending or reading of requests shares none: a shared
  request is neither built nor sent there. Nor does a subclass share that overrides who asks (keys,
  headers, the query) or whom: each call may give another answer.
- A ``create`` other than openai's own (a tracer's wrapper, a mock) is called, always.
- So are ``post`` and ``request``. Such a call takes openai's whole way down to ``_send_request``,
  and shares its request only there: the watcher sees the call and its answer.
- A watcher may also change a call, repeat the call or ask something else first. So the request that
  openai has built carries the options of its building, and is sent by those options, once.
- A replaced method that prepares, builds, sends or reads a request may change the request itself.
  So the method sees every call, as a subclass's does: openai's own code sends each call.
- Before 2.31 openai has no ``_send_request``. A watched call shares no requests there.
- A method is openai's own if the method is a plain function whose code was defined in openai's
  package. Names, ``__wrapped__`` and ``__code__`` prove nothing: ``functools.wraps`` copies the
  first, and wrapt's proxies hand out all attributes of the function. The order of imports does not
  matter.
"""

from __future__ import annotations

import operator
from types import FunctionType
from typing import Any

from openai._base_client import AsyncAPIClient

from batchclient._shell.log import log
from batchclient.integrations.form import PATHS

__all__ = [
    "is_openais",
    "is_ours",
    "is_replaced",
    "is_untouched",
    "is_watched",
    "key_of",
    "mark",
    "seams",
    "take_options",
]

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
"""Methods that build, send and read a request, and methods that say who asks whom."""

_SENDS_APART = hasattr(AsyncAPIClient, "_send_request")
"""Whether openai has a method that sends and does nothing else: from 2.31 on."""
_OF_REQUESTS = (
    *("_prepare_options", "_build_request", "_prepare_request", "_process_response"),
    *(("_send_request",) if _SENDS_APART else ("request", "post")),
)
"""Methods past which a shared request goes: of preparing, building, sending and reading."""
_methods = operator.attrgetter(*_OF_REQUESTS)
_untouched: dict[Any, tuple[Any, ...]] = {}
"""By openai's class: the methods of the drop-in's class, openai's and openai's base class.

Kept once none was found replaced.
"""
_NOT_SEEN = (None,)

_EVERY = frozenset(("post", "request", *_OF_REQUESTS))
"""Methods by which somebody may have a say in a call."""
_every = operator.attrgetter(*_EVERY)
_seen_untouched: dict[tuple[type, type], tuple[Any, ...]] = {}
"""By the client's class and the resource: the methods, kept once nobody had a say in the calls.

By class: a subclass has methods of its own. Compared by identity: a proxy may equal its function.
"""

_HOME = "openai."
_OUR_HOME = "batchclient.openai"

_MARK = "batchclient.options"
"""Of the options among a request's extensions; no HTTP library reads the name."""
_BEARER = "Bearer "


def seams(kind: type, ours: Any) -> tuple[bool, bool]:
    """Whether a subclass's requests may be shared, and whether resources may skip ``post``.

    Args:
        kind: the subclass.
        ours: the drop-in.
    """
    own = [name for name in _HOOKS if _member(kind, name) is not _member(ours, name)]
    if own:
        message = "%s overrides %s: its calls are sent by openai's own code, and share no requests"
        log("shares_nothing", message, kind.__name__, own[0], reason=f"an override of {own[0]}")
    member: Any = kind
    return not own, not own and member.share is ours.share


def is_watched(client: Any, openais: Any) -> bool:
    """Whether somebody has replaced openai's ``post`` or ``request``.

    The watcher then sees calls share where openai sends requests.

    Args:
        client: the drop-in's.
        openais: openai's own class.
    """
    own = vars(client)
    kind: Any = type(client)
    return _SENDS_APART and (
        "request" in own or "post" in own or not is_openais(openais.post) or not is_openais(kind.request)
    )


def is_replaced(client: Any, openais: Any) -> bool:
    """Whether somebody has replaced a method past which a shared request goes.

    The method may be of a class or of the client alone.

    Args:
        client: the drop-in's.
        openais: openai's own class.
    """
    if not vars(client).keys().isdisjoint(_OF_REQUESTS):
        return True
    methods = (*_methods(type(client)), *_methods(openais), *_methods(openais.__base__))
    # A comparison by identity takes a fifth of the time.
    if not all(map(operator.is_, methods, _untouched.get(openais, _NOT_SEEN))):
        if not all(_comes_from((_HOME, _OUR_HOME), method) for method in methods):
            return True
        _untouched[openais] = methods
    return False


def is_untouched(client: Any, resource: Any) -> bool:
    """Whether a call of a resource may go from ``create`` straight to the scheduler.

    So it may where nobody has a say in it: no subclass, and nobody who has replaced a method.

    Args:
        client: the drop-in's.
        resource: openai's class of the resource.
    """
    if not client._may_skip or not _EVERY.isdisjoint(vars(client)):
        return False
    kind = type(client)
    openais = kind._openais
    methods = (resource.create, *_every(kind), *_every(openais), *_every(openais.__base__))
    if all(map(operator.is_, methods, _seen_untouched.get((kind, resource), _NOT_SEEN))):
        return True
    if (
        is_ours(kind.post)
        and is_openais(resource.create)
        and not client.is_watched
        and not is_replaced(client, openais)
    ):
        _seen_untouched[kind, resource] = methods
        return True
    return False


def mark(request: Any, options: Any) -> None:
    """Let a request that may be shared carry the options of its building."""
    if options.method.lower() == "post" and options.url in PATHS:
        request.extensions[_MARK] = options


def take_options(request: Any) -> Any:
    """Return, once, the options of a request that may be shared; ``None``: send it as it is."""
    return request.extensions.pop(_MARK, None)


def key_of(request: Any) -> str:
    """Return the key that openai's own code has written into a request; empty: none."""
    value: str = request.headers.get("authorization", "")
    return value.removeprefix(_BEARER) if value.startswith(_BEARER) else ""


def is_openais(function: Any) -> bool:
    """Whether a function is openai's own, as in openai's package."""
    return _comes_from(_HOME, function)


def is_ours(function: Any) -> bool:
    """Whether a function is the drop-in's own."""
    return _comes_from(_OUR_HOME, function)


def _comes_from(home: str | tuple[str, ...], function: Any) -> bool:
    return type(function) is FunctionType and function.__globals__.get("__name__", "").startswith(home)


def _member(kind: type, name: str) -> Any:
    """The attribute of a class as it was defined: a look-up makes a new object of a wrapper."""
    return next((vars(each)[name] for each in kind.__mro__ if name in vars(each)), None)
