"""The meaning of an error reply for the calls of a batch, where servers agree: of its status and
words, and of a refusal of fields that only batchclient sent.

Rules of such fields:
- Before a server is known, and to vLLM, batchclient sends fields that other servers may not know.
  Most servers ignore such fields. A strict server refuses the request, which is no caller's fault.
  The fields are left out from then on, and the refused calls are sent again.
- A field given by the caller is the caller's, even if batchclient would have sent it.
- If a refusal names no field at all, all of batchclient's fields are left out.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from urllib.parse import urlsplit

from pydantic_core import from_json

from batchclient._core.kinds import Kind
from batchclient._core.messages import Batch, Failure, FailureKind
from batchclient.errors import (
    AuthenticationFailed,
    BadRequest,
    BatchClientError,
    DialectError,
    NotFound,
    RateLimited,
    ServerFault,
)

__all__ = ["OUR_FIELDS", "failure_of", "moved", "refused_fields"]

_LONGEST_PLACE = 200


def _words(*words: str) -> re.Pattern[str]:
    return re.compile("|".join(words), re.IGNORECASE)


_STATED_CAP = _words(r"maximum allowed (?:count of|batch size(?: of)?) ([1-9][0-9]{0,8})\b")
_STREAM = _words(r"\bstream")
_PACKING = _words("encoding_format", "base64")
_UNKNOWN_FIELD = _words(
    # FastAPI's pydantic, trtllm-serve.
    "extra_forbidden", "extra (?:inputs|fields?) (?:are |is )?not (?:permitted|allowed)",
    # transformers serve: "Unexpected fields in the request".
    "unexpected (?:fields?|keyword|parameter)",
    # OpenAI: "Unrecognized request argument supplied", "Unknown parameter"; serde, in Rust servers.
    "unrecogni[sz]ed (?:request )?(?:arguments?|fields?|parameters?|keys?)",
    "(?:unknown|unsupported) (?:fields?|parameters?|arguments?|keys?)",
    "additional propert(?:y|ies)",
)  # fmt: skip
_UNSUPPORTED = _words("not (?:supported|allowed|permitted|recogni[sz]ed|available)")
"""Words about many things: a match counts only if the message names a field of batchclient's."""
_NAME = re.compile(r"[a-z_]+")
OUR_FIELDS = frozenset(
    {
        "stream_interval", "continuous_usage_stats", "stream_options", "return_token_ids", "priority",
        "repetition_detection",
    }
)  # fmt: skip
"""Fields that a dialect may add to the callers' own."""
_GENERATING = frozenset({Kind.COMPLETION, Kind.CHAT})
_STREAMED_ONLY = frozenset({"stream_interval", "continuous_usage_stats", "stream_options"})
_CALLS = (400, 422, 501)
_FAULTS = range(500, 600)
_Row = tuple[Collection[int], re.Pattern[str] | None, FailureKind, type[BatchClientError]]
_MEANINGS: tuple[_Row, ...] = (
    ((401, 403), None, FailureKind.REFUSED, AuthenticationFailed),
    ((404,), None, FailureKind.REFUSED, NotFound),
    ((429,), None, FailureKind.REJECTED, RateLimited),
    # vLLM's full queue is a 503, TGI's a 429, Dynamo's a 529.
    ((503, 529), None, FailureKind.REJECTED, ServerFault),
    # TGI's 424 is a failed generation.
    ((408, 409, 424, 425), None, FailureKind.MAYBE_PROCESSED, ServerFault),
    ((413,), None, FailureKind.LIST_TOO_LONG, BadRequest),
    # Routers say "Model m not found or vLLM engine is sleeping" (production-stack), "The model `m`
    # does not exist".
    (
        (400,), _words(r"\bmodel\b[^.;]{0,256}(not found|does not exist|is sleeping)"),
        FailureKind.REFUSED, NotFound,
    ),
    # "prompt must be a string." (transformers serve); "batched prompts are not supported" (several
    # proxies); pydantic's words where the field is a plain ``str``.
    (
        _CALLS,
        _words(
            "(prompt|input) must be a str", "batched prompts", "lists? of prompts (is|are) not",
            "prompt_list_unsupported", "(prompt|input): Input should be a valid string",
        ),
        FailureKind.LIST_REFUSED, BadRequest,
    ),
    (_CALLS, _words("maximum allowed count", "batch size"), FailureKind.LIST_TOO_LONG, BadRequest),
    (_CALLS, _STREAM, FailureKind.STREAM_REFUSED, BadRequest),
    (_CALLS, _PACKING, FailureKind.PACKING_REFUSED, BadRequest),
    # llama.cpp says 501 for a feature that was not turned on: no repetition helps.
    (_CALLS, None, FailureKind.BAD_CALL, BadRequest),
    # A server that cannot write an answer's NaN (vLLM #19661, SGLang #5984): the other calls of the
    # list can be answered without the call.
    (_FAULTS, _words("out of range float values"), FailureKind.BAD_CALL, ServerFault),
    # PyTorch's words ("CUDA out of memory. Tried to allocate …"), and its exception's name, as
    # servers pass them on. llama.cpp's and its offspring's: where the cache that the slots share is
    # full, all that run end with them.
    (
        _FAULTS,
        _words(
            "out of memory", "OutOfMemory", "Context size has been exceeded", "Invalid input batch",
            "input prompt is too big compared to KV size",
        ),
        FailureKind.LIST_TOO_LONG, ServerFault,
    ),
    # Anthropic's "overloaded_error", TGI's "Model is overloaded"; KServe and TorchServe
    # (KServe #4247).
    (_FAULTS, _words("overloaded", "queue (?:is )?full", "503 Service Unavailable"), FailureKind.REJECTED, ServerFault),
    (_FAULTS, None, FailureKind.MAYBE_PROCESSED, ServerFault),
    (range(400, 500), None, FailureKind.REFUSED, BadRequest),
    # A success without an answer.
    (range(200, 300), None, FailureKind.MAYBE_PROCESSED, DialectError),
)  # fmt: skip
"""Statuses, words in the message or code (``None``: any), and what they mean; the first row counts.

Sources: RFC 9110 for the statuses; section 2 of ``servers.md`` in the project's notes for the
servers' use.
"""
_REDIRECT = (FailureKind.REFUSED, DialectError)
"""There is no such server at the base URL."""


def failure_of(
    status: int,
    words: str,
    code: str | None,
    *,
    shown: str | None = None,
    streamed: bool,
    retry_after_s: float | None,
    packed: bool = False,
    listed: bool = False,
) -> Failure:
    """Return the meaning of a status.

    ``words``, the server's, are judged; ``shown`` is free of prompts and keys (``None``: the same).
    ``listed``: whether the request held several calls. Where memory ran out it was too long, then;
    a single call was refused for the load beside it.
    """
    shown = words if shown is None else shown
    if status == 404 and shown == "Not Found":
        shown = "Not Found; does base_url end in /v1, and in nothing more?"
    said = f"{code} {words}" if status >= 500 else words
    means_nothing = {_STREAM: not streamed, _PACKING: not packed}
    kind, error = next(
        (
            (kind, error)
            for statuses, pattern, kind, error in _MEANINGS
            if status in statuses
            and (pattern is None or (not means_nothing.get(pattern, False) and pattern.search(said)))
        ),
        _REDIRECT,
    )
    stated = _STATED_CAP.search(words) if kind is FailureKind.LIST_TOO_LONG and status in _CALLS else None
    once = (kind is FailureKind.BAD_CALL and error is ServerFault) or error is DialectError
    full = kind is FailureKind.LIST_TOO_LONG and error is ServerFault
    if full and not listed:
        kind = FailureKind.REJECTED
    cap = int(stated[1]) if stated else None
    return Failure(kind, error, f"{status}: {shown}", status, retry_after_s, code, cap, once=once, out_of_memory=full)


def moved(location: str, message: str) -> str:
    """Say where a redirect leads, without what may be a key in its query."""
    url = urlsplit(location)
    place = (
        f"{url.scheme}://{url.hostname or ''}{f':{url.port}' if url.port else ''}{url.path}" if url.netloc else url.path
    )
    told = "" if message == "no message" else f"{message}; "
    # The query may hold a key.
    return f"{told}it leads to {place[:_LONGEST_PLACE]}, and no redirect is followed: give base_url as it is there"


def refused_fields(batch: Batch, status: int, message: str) -> frozenset[str]:
    """Return the fields of batchclient's refused by a reply; empty if the reply is about others.

    ``message`` is the server's, free of prompts.
    """
    unknown = status in (400, 422) and _UNKNOWN_FIELD.search(message) is not None
    if not unknown and not (status in _CALLS and _UNSUPPORTED.search(message)):
        return frozenset()
    callers = _callers_fields(batch)
    ours = _added(batch) - callers
    words = frozenset(_NAME.findall(message.lower()))
    named = words & ours
    if "continuous_usage_stats" in named:
        # The field is named by its path: ``stream_options`` itself may be welcome.
        named -= {"stream_options"}
    if named or not unknown or words & callers or "stream" in words:
        return named
    return ours


def _added(batch: Batch) -> frozenset[str]:
    """Return the fields of batchclient's in the batch's request.

    Where nothing is generated there is only base64, whose refusal has a kind of its own.
    """
    if batch.shape.kind not in _GENERATING:
        return frozenset()
    added = _STREAMED_ONLY if batch.streamed else frozenset({"return_token_ids"} if len(batch.requests) > 1 else ())
    if batch.shape.tells_priority:
        added |= {"priority"}
    if batch.shape.guarded:
        added |= {"repetition_detection"}
    if "stream_options" in batch.wire.without:
        added -= {"continuous_usage_stats"}
    return added - batch.wire.without


def _callers_fields(batch: Batch) -> frozenset[str]:
    fields = frozenset(from_json(batch.shape.body)) - {"model"}
    solo = batch.requests[0].solo_fields if len(batch.requests) == 1 else b""
    return fields | frozenset(from_json(b"{" + solo + b"}")) if solo else fields
