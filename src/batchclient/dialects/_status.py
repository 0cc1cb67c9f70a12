"""The meaning of an HTTP status for the calls of a batch, where servers agree."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

from batchclient._core.messages import Failure, FailureKind
from batchclient.errors import (
    AuthenticationFailed,
    BadRequest,
    BatchClientError,
    DialectError,
    NotFound,
    RateLimited,
    ServerFault,
)

__all__ = ["failure_of", "moved"]

_LONGEST_PLACE = 200

_LIST_REFUSED = re.compile(
    # "prompt must be a string." (transformers serve); "batched prompts are not supported" (several
    # proxies); "Input should be a valid string" (pydantic, where the field is a plain ``str``);
    # "prompt_list_unsupported".
    r"(prompt|input) must be a str|batched prompts|lists? of prompts (is|are) not|prompt_list_unsupported"
    r"|(prompt|input): Input should be a valid string",
    re.IGNORECASE,
)
_LIST_TOO_LONG = re.compile(r"maximum allowed count|batch size", re.IGNORECASE)
_STATED_CAP = re.compile(r"maximum allowed (?:count of|batch size(?: of)?) ([1-9][0-9]{0,8})\b", re.IGNORECASE)
_NO_MODEL = re.compile(r"\bmodel\b[^.;]{0,256}(not found|does not exist|is sleeping)", re.IGNORECASE)
"""Words of routers that say 400 where others say 404: "Model m not found or vLLM engine is
sleeping" (production-stack), "The model `m` does not exist".
"""
_NOT_JSON = re.compile(r"out of range float values", re.IGNORECASE)
"""Words of a server that cannot write an answer's NaN (vLLM #19661, SGLang #5984): the other calls
of the list can be answered without the call.
"""
_OUT_OF_MEMORY = re.compile(
    r"out of memory|OutOfMemory|Context size has been exceeded|Invalid input batch"
    r"|input prompt is too big compared to KV size",
    re.IGNORECASE,
)
"""PyTorch's words ("CUDA out of memory. Tried to allocate …"), and its exception's name, as servers
pass them on with a 500. llama.cpp's and its offspring's: where the cache that the slots share is
full, all that run end with them.
"""
_FULL = re.compile(r"overloaded|queue (?:is )?full|503 Service Unavailable", re.IGNORECASE)
"""Words of a full server, or its own name for the error, with another 5xx: Anthropic's
"overloaded_error", TGI's "Model is overloaded"; KServe and TorchServe (KServe #4247).
"""
_STREAM_REFUSED = re.compile(r"\bstream", re.IGNORECASE)
_PACKING_REFUSED = re.compile(r"encoding_format|base64", re.IGNORECASE)


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

    Sources: RFC 9110 for the statuses; section 2 of ``servers.md`` in the project's notes for the
    servers' use. vLLM says 503 when its queue is full, TGI 429, Dynamo 529. TGI says 422 for a list
    that is too long, and 424 for a failed generation. llama.cpp says 501 for a feature that was not
    turned on: no repetition helps, and so the error is a ``BadRequest``.
    """
    shown = words if shown is None else shown
    if status == 404 and shown == "Not Found":
        shown = "Not Found; does base_url end in /v1, and in nothing more?"
    kind, error, cap = _classify(status, words, streamed=streamed)
    if kind is FailureKind.MAYBE_PROCESSED and status >= 500 and _FULL.search(f"{code} {words}"):
        kind = FailureKind.REJECTED
    if packed and kind is FailureKind.BAD_CALL and _PACKING_REFUSED.search(words):
        kind = FailureKind.PACKING_REFUSED
    once = (kind is FailureKind.BAD_CALL and error is ServerFault) or error is DialectError
    full = kind is FailureKind.LIST_TOO_LONG and error is ServerFault
    if full and not listed:
        kind = FailureKind.REJECTED
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


def _classify(status: int, message: str, *, streamed: bool) -> tuple[FailureKind, type[BatchClientError], int | None]:
    if status in (401, 403):
        return FailureKind.REFUSED, AuthenticationFailed, None
    if status == 404:
        return FailureKind.REFUSED, NotFound, None
    if status == 429:
        return FailureKind.REJECTED, RateLimited, None
    if status in (503, 529):
        return FailureKind.REJECTED, ServerFault, None
    if status in (408, 409, 424, 425):
        return FailureKind.MAYBE_PROCESSED, ServerFault, None
    if status == 413:
        return FailureKind.LIST_TOO_LONG, BadRequest, None
    if status == 400 and _NO_MODEL.search(message):
        return FailureKind.REFUSED, NotFound, None
    if status in (400, 422, 501):
        if _LIST_REFUSED.search(message):
            return FailureKind.LIST_REFUSED, BadRequest, None
        if _LIST_TOO_LONG.search(message):
            stated = _STATED_CAP.search(message)
            return FailureKind.LIST_TOO_LONG, BadRequest, int(stated[1]) if stated else None
        if streamed and _STREAM_REFUSED.search(message):
            return FailureKind.STREAM_REFUSED, BadRequest, None
        return FailureKind.BAD_CALL, BadRequest, None
    if status >= 500 and _NOT_JSON.search(message):
        return FailureKind.BAD_CALL, ServerFault, None
    if status >= 500 and _OUT_OF_MEMORY.search(message):
        return FailureKind.LIST_TOO_LONG, ServerFault, None
    if status >= 500:
        return FailureKind.MAYBE_PROCESSED, ServerFault, None
    if status >= 400:
        return FailureKind.REFUSED, BadRequest, None
    if 200 <= status < 300:
        # A success without an answer.
        return FailureKind.MAYBE_PROCESSED, DialectError, None
    # A redirect: there is no such server at the base URL.
    return FailureKind.REFUSED, DialectError, None
