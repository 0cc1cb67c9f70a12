"""From the arguments of openai's ``post`` to calls of ours; else the reason (``Past``).

A call with a reason goes through untouched.

Rules:
- A call with a query, files or options of its own that the server would see goes through untouched:
  a shared request has one query, and so on.
- So does a call with headers of its own that count (``integrations.header_roles``). Headers that do
  not count are left out of shared requests.
- ``extra_body`` is part of the body.
- A call with anything unknown here goes through: later versions may add arguments.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from openai import NotGiven, Omit
from openai._models import FinalRequestOptions

from batchclient.integrations.form import WireCalls, read_body
from batchclient.integrations.header_roles import HeaderRole
from batchclient.openai._seams import key_of
from batchclient.openai._sharing import Past

__all__ = ["RESPONSES", "Planned", "plan", "post_of"]

RESPONSES = "/responses"
"""The path of openai's newer sort of chats, which are not batched."""

_RAW = "x-stainless-raw-response"
_JSON = "application/json"
_NOT_GIVEN = frozenset({NotGiven, Omit})
_KNOWN_OPTIONS = frozenset(
    {"headers", "params", "extra_json", "timeout", "post_parser", "max_retries", "security", "idempotency_key"}
)
_OF_THE_CALL = frozenset({"method", "url", "json_data"})
_KNOWN_ARGUMENTS = frozenset({"stream_cls"})
"""Arguments of ``post`` about the reading of a reply, without effect on the request."""


@dataclass(slots=True)
class Planned:
    """A request of openai's that is to be shared.

    Args:
        calls: the calls of the request.
        path: below the base URL.
        timeout_s: the whole time for the request, seconds; ``None``: any.
        max_attempts: the most HTTP requests for the calls.
        raw: the form of the response that the caller wants, in openai's own word; ``None``: parsed.
        parser: openai's function for the parsed answer, if any.
        options: openai's, for the response itself.
        body: likewise.
        began: when the request was made, by the performance counter; seconds.
        key: the request's key.
    """

    calls: WireCalls
    path: str
    timeout_s: float | None
    max_attempts: int
    raw: str | None
    parser: Any
    options: Mapping[str, Any]
    body: Any
    began: float = 0.0
    # Not shown.
    key: str = field(default="", repr=False)

    def final_options(self) -> FinalRequestOptions:
        """Openai's description of the request."""
        return FinalRequestOptions.construct(method="post", url=self.path, json_data=self.body, **self.options)


def plan(owner: Any, path: str, body: Any, options: Mapping[str, Any], more: Mapping[str, Any]) -> Planned | Past:
    """Return the calls of a request; or the reason for sending the request untouched.

    Args:
        owner: the openai client.
        path: below the base URL.
        body: the request's, as openai's resources have transformed the body.
        options: openai's request options.
        more: further arguments of ``post``.
    """
    if any(value for name, value in more.items() if name not in _KNOWN_ARGUMENTS):
        return Past.STREAM if more.get("stream") else Past.OPTIONS
    if any(name not in _KNOWN_OPTIONS and _given(value) for name, value in options.items()):
        return Past.OPTIONS
    if options.get("params"):
        return Past.QUERY
    if not isinstance(body, Mapping):
        return Past.BODY
    raw = None
    headers = options.get("headers")
    for name, value in headers.items() if _given(headers) and headers else ():
        if name.lower() == _RAW:
            raw = value
        elif not _is_left_out(owner._batching.header_roles.of(name), value):
            return Past.HEADERS
    extra = options.get("extra_json")
    fields = {**body, **extra} if extra else body
    if not _NOT_GIVEN.isdisjoint(map(type, fields.values())):
        fields = {name: value for name, value in fields.items() if _given(value)}
    timeout = options.get("timeout", owner.timeout)
    bounds = owner._batching.bounds(owner.timeout if isinstance(timeout, NotGiven) else timeout)
    if isinstance(bounds, Past):
        return bounds
    calls = read_body(path, fields)
    if calls is None:
        return Past.STREAM if fields.get("stream") else Past.BODY
    retries = options.get("max_retries")
    parser = options.get("post_parser")
    return Planned(
        calls,
        path,
        bounds.whole_s,
        1 + (owner.max_retries if retries is None or not _given(retries) else retries),
        raw,
        parser if _given(parser) else None,
        options,
        fields,
        time.perf_counter() if raw is not None else 0.0,
    )


def post_of(
    owner: Any, options: FinalRequestOptions, request: Any, *, stream: bool
) -> tuple[str, Any, dict[str, Any], dict[str, Any]]:
    """Return the arguments of ``plan``, for a request that openai's own code has built.

    Args:
        owner: the openai client.
        options: the options that the request was built from.
        request: of the HTTP library.
        stream: whether the reply is to be left unread.
    """
    given = {
        name: value
        for name, value in vars(options).items()
        if name in options.model_fields_set - _OF_THE_CALL and (value is not None or name in _KNOWN_OPTIONS)
    }
    headers = given.get("headers")
    if owner._batching.asks_for_key and headers and _given(headers):
        # openai writes the answered key among a call's own headers.
        answered = f"Bearer {key_of(request)}"
        given["headers"] = {
            name: value
            for name, value in headers.items()
            if not (name.lower() == "authorization" and value == answered)
        }
    # openai leaves a reply unread for a caller who reads the reply in pieces, too.
    is_stream = stream and not owner._should_stream_response_body(request=request)
    return options.url, options.json_data, given, {"stream": is_stream}


def _is_left_out(role: HeaderRole, value: object) -> bool:
    """Whether a call's header does not matter to the choice of calls to share with."""
    return role is HeaderRole.LEFT_OUT or (role is HeaderRole.LOOKED_AT and value == _JSON)


def _given(value: object) -> bool:
    """Whether an argument was given at all; openai has classes for absent arguments."""
    return type(value) not in _NOT_GIVEN
