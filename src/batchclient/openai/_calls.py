"""From a request that openai has built to calls of ours; else the reason (``Past``).

A call with a reason goes through untouched.

Rules:
- A call with a query, files or options of its own that the server would see goes through untouched:
  a shared request has one query, and so on.
- So does a call with headers of its own that count (``integrations.header_roles``). Headers that do
  not count are left out of shared requests.
- ``extra_body`` is part of the body.
- A call with anything unknown here goes through: later versions may add options.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from openai import NotGiven, Omit
from openai._models import FinalRequestOptions

from batchclient.integrations.form import WireCalls, read_body
from batchclient.integrations.header_roles import HeaderRole, HeaderRoles
from batchclient.openai._sharing import Past

__all__ = ["RAW", "RESPONSES", "Planned", "are_left_out", "plan"]

RESPONSES = "/responses"
"""The path of openai's newer sort of chats, which are not batched."""

RAW = "x-stainless-raw-response"
"""The header by which openai's own code knows how a caller wants the response."""
_JSON = "application/json"
_BEARER = "Bearer "
_NOT_GIVEN = frozenset({NotGiven, Omit})
_KNOWN_OPTIONS = frozenset(
    {
        *("method", "url", "json_data", "extra_json", "headers", "params", "timeout", "max_retries"),
        *("post_parser", "security", "idempotency_key"),
    }
)


@dataclass(slots=True)
class Planned:
    """A request of openai's that is to be shared.

    Args:
        calls: the calls of the request.
        timeout_s: the whole time for the request, seconds; ``None``: any.
        max_attempts: the most HTTP requests for the calls.
        key: the request's key.
        options: openai's, that the request was built from.
        request: of the HTTP library.
        began: when the request was made, by the performance counter; seconds.
    """

    calls: WireCalls
    timeout_s: float | None
    max_attempts: int
    # Not shown.
    key: str = field(repr=False)
    options: FinalRequestOptions = field(repr=False)
    request: Any = field(repr=False)
    began: float


def plan(owner: Any, options: FinalRequestOptions, request: Any, *, stream: bool) -> Planned | Past:
    """Return the calls of a request; or the reason for sending the request untouched.

    Args:
        owner: the openai client.
        options: that openai's own code has built the request from.
        request: of the HTTP library.
        stream: whether the reply is to be left unread.
    """
    # openai leaves a reply unread for a caller who reads the reply in pieces, too.
    if stream and not owner._should_stream_response_body(request=request):
        return Past.STREAM
    if any(_given(getattr(options, name)) for name in options.model_fields_set - _KNOWN_OPTIONS):
        return Past.OPTIONS
    if options.params:
        return Past.QUERY
    body = options.json_data
    if not isinstance(body, Mapping):
        return Past.BODY
    key = _key_of(request)
    headers = {} if isinstance(options.headers, NotGiven) else options.headers
    if owner._batching.asks_for_key:
        # openai writes the answered key among a call's own headers.
        answered = _BEARER + key
        headers = {
            name: value for name, value in headers.items() if name.lower() != "authorization" or value != answered
        }
    if not are_left_out(owner._batching.header_roles, headers):
        return Past.HEADERS
    extra: Any = options.extra_json
    fields = {**body, **extra} if extra else body
    if not _NOT_GIVEN.isdisjoint(map(type, fields.values())):
        fields = {name: value for name, value in fields.items() if type(value) not in _NOT_GIVEN}
    bounds = owner._batching.bounds(owner.timeout if isinstance(options.timeout, NotGiven) else options.timeout)
    if isinstance(bounds, Past):
        return bounds
    calls = read_body(options.url, fields)
    if calls is None:
        return Past.STREAM if fields.get("stream") else Past.BODY
    attempts = 1 + options.get_max_retries(owner.max_retries)
    return Planned(calls, bounds.whole_s, attempts, key, options, request, time.perf_counter())


def _key_of(request: Any) -> str:
    """Return the key that openai's own code has written into a request; empty: none."""
    value: str = request.headers.get("authorization", "")
    return value.removeprefix(_BEARER) if value.startswith(_BEARER) else ""


def are_left_out(roles: HeaderRoles, headers: Mapping[str, object]) -> bool:
    """Whether a call's own headers do not matter to the choice of calls to share with."""
    for name, value in headers.items():
        role = roles.of(name)
        if not (role is HeaderRole.LEFT_OUT or (role is HeaderRole.LOOKED_AT and value == _JSON)):
            return False
    return True


def _given(value: object) -> bool:
    """Whether an option was given at all; openai has classes for absent arguments."""
    return value is not None and type(value) not in _NOT_GIVEN
