"""From our replies and errors to openai's types, responses and exceptions.

Rules:
- A plain call's answer equals the result of openai's own parsing of the same body. pydantic's
  validation is tried first, in a tenth of the time. openai's lenient construction takes the bodies
  that validation refuses.
- An error with a status is the exception that openai raises for the response; the response has the
  server's own status, headers and body.
- Timeouts of any sort are ``APITimeoutError``, the network's other failures ``APIConnectionError``;
  our error is the cause.
"""

from __future__ import annotations

import json
import time
from datetime import timedelta
from importlib import import_module
from typing import Any

import openai
from pydantic import ValidationError
from pydantic_core import to_json

from batchclient.errors import (
    BadRequest,
    BatchClientError,
    ConfigError,
    DeadlineExceeded,
    DemuxError,
    DialectError,
    NotFound,
    ReadTimedOut,
)
from batchclient.transport._libraries import is_of
from batchclient.types import Reply

__all__ = ["RETRIES", "error_of", "numbered", "response_of", "validated"]

RETRIES = "batchclient.retries"
"""Of the number of our retries among a response's extensions."""

_OF_THE_WIRE = frozenset({"content-length", "content-encoding", "transfer-encoding"})
"""Headers about the body's way through the network, which ends here."""


def _library_of(request: Any) -> Any:
    """The HTTP library of a built request: a user's own client may be of the other library."""
    names = [base.__module__.partition(".")[0] for base in type(request).__mro__]
    return import_module("httpx2" if "httpx2" in names else "httpx")


def validated(cast_to: Any, reply: Reply) -> Any:
    """Return the answer as an instance of openai's type; ``None``: pydantic refuses the body."""
    try:
        answer = cast_to.__pydantic_validator__.validate_python(reply.body)
    except ValidationError:
        return None
    return numbered(answer, reply)


def numbered(answer: Any, reply: Reply) -> Any:
    """Give an answer its request's number, as openai does."""
    # Past pydantic's own way, which takes longer than all else here.
    object.__setattr__(answer, "_request_id", reply.headers.get("x-request-id"))
    return answer


def response_of(reply: Reply, request: Any, began: float | None = None) -> Any:
    """The response that a request alone would have had.

    Args:
        reply: ours.
        request: as openai builds it.
        began: when the request was made, by the performance counter; seconds.
    """
    body = reply.body if isinstance(reply.body, bytes) else to_json(reply.body)
    headers = {name: value for name, value in reply.headers.items() if name.lower() not in _OF_THE_WIRE}
    headers.setdefault("content-type", "application/json")
    library = _library_of(request)
    # A caller who reads piece by piece gets the response unread.
    is_read_in_pieces = request.headers.get("x-stainless-raw-response") == "stream"
    content = {"stream": library.ByteStream(body)} if is_read_in_pieces else {"content": body}
    extensions = {RETRIES: reply.attempts - 1}
    response = library.Response(reply.status, headers=headers, request=request, extensions=extensions, **content)
    if began is not None:
        response.elapsed = timedelta(seconds=time.perf_counter() - began)
    return response


def error_of(owner: Any, error: BatchClientError, request: Any) -> openai.OpenAIError:
    """Return openai's exception for an error.

    Args:
        owner: the openai client.
        error: ours.
        request: as openai builds it.
    """
    if isinstance(error, (DeadlineExceeded, ReadTimedOut)) or is_of(type(error.__cause__), "TimeoutException"):
        return openai.APITimeoutError(request=request)
    # What is refused before it is sent would be the server's 400.
    status = error.status
    if status is None and isinstance(error, (BadRequest, ConfigError)):
        status = 404 if isinstance(error, NotFound) else 400
    if status is not None and status >= 400:
        reply = error.reply or Reply(None, {}, status)
        body = reply.body or _error_body(error, status)
        response = response_of(Reply(body, reply.headers, status), request)
        made: openai.OpenAIError = owner._make_status_error_from_response(response)
        return made
    if isinstance(error, (DialectError, DemuxError)):
        response = response_of(Reply({}, {}, error.status or 200), request)
        return openai.APIResponseValidationError(response=response, body=None, message=error.message)
    return openai.APIConnectionError(message=error.message, request=request)


def _error_body(error: BatchClientError, status: int) -> bytes:
    """An error in OpenAI's form, where the server's own body concerned other calls as well."""
    message = error.message.removeprefix(f"{status}: ")
    return json.dumps({"error": {"message": message, "type": error.code, "param": None, "code": status}}).encode()
