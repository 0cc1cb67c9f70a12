"""From our replies and errors to openai's types, responses and exceptions.

Rules:
- A parsed answer equals the result of openai's own parsing of the same body. pydantic's validation
  is tried first, in a tenth of the time. openai's lenient construction takes the bodies that
  validation refuses.
- An error with a status is the exception that openai raises for the response; the response has the
  server's own status, headers and body.
- Timeouts of any sort are ``APITimeoutError``, the network's other failures ``APIConnectionError``;
  our error is the cause.
"""

from __future__ import annotations

import json
import time
from datetime import timedelta
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any

import openai
from pydantic import BaseModel, ValidationError
from pydantic_core import to_json

from batchclient.errors import BatchClientError, DeadlineExceeded, DemuxError, DialectError, ReadTimedOut
from batchclient.openai._keys import with_key
from batchclient.transport._libraries import is_of
from batchclient.types import Reply

if TYPE_CHECKING:
    from batchclient.openai._calls import Planned

__all__ = ["error_of", "http_library", "parse", "response_of", "to_process", "validated"]

_OF_THE_WIRE = frozenset({"content-length", "content-encoding", "transfer-encoding"})
"""Headers about the body's way through the network, which ends here."""


@cache
def http_library() -> Any:
    """The HTTP library of the installed openai: from openai's third major on httpx's fork."""
    return import_module("httpx2" if int(openai.__version__.split(".")[0]) >= 3 else "httpx")


def _library_of(request: Any) -> Any:
    """The HTTP library of a built request: a user's own client may be of the other library."""
    names = [base.__module__.partition(".")[0] for base in type(request).__mro__]
    return import_module("httpx2" if "httpx2" in names else "httpx")


def validated(cast_to: Any, reply: Reply) -> Any:
    """Return the answer as an instance of openai's type; ``None``: pydantic refuses the body."""
    try:
        return _numbered(cast_to.__pydantic_validator__.validate_python(reply.body), reply)
    except ValidationError:
        return None


def _numbered(answer: Any, reply: Reply) -> Any:
    """Give an answer its request's number, as openai does."""
    # Past pydantic's own way, which takes longer than all else here.
    object.__setattr__(answer, "_request_id", reply.headers.get("x-request-id"))
    return answer


def parse(owner: Any, planned: Planned, reply: Reply, cast_to: Any) -> Any:
    """Return the answer as an instance of openai's type."""
    is_model = isinstance(cast_to, type) and issubclass(cast_to, BaseModel)
    answer = validated(cast_to, reply) if is_model and not owner._strict_response_validation else None
    if answer is None:
        answer = owner._process_response_data(
            data=reply.body, cast_to=cast_to, response=response_of(owner, planned, reply)
        )
        answer = _numbered(answer, reply) if isinstance(answer, BaseModel) else answer
    return answer if planned.parser is None else planned.parser(answer)


def request_of(owner: Any, planned: Planned, retries_taken: int = 0) -> Any:
    """The request that the call alone would have been, as openai builds requests."""
    options = with_key(owner, planned.final_options(), planned.key)
    return owner._build_request(options, retries_taken=retries_taken)


def response_of(owner: Any, planned: Planned, reply: Reply, request: Any = None) -> Any:
    """The response that a call alone would have had; to ``request``, if openai has built it."""
    body = reply.body if isinstance(reply.body, bytes) else to_json(reply.body)
    headers = {name: value for name, value in reply.headers.items() if name.lower() not in _OF_THE_WIRE}
    headers.setdefault("content-type", "application/json")
    request = request_of(owner, planned, reply.attempts - 1) if request is None else request
    library = _library_of(request)
    # A caller who reads piece by piece gets the response unread.
    content = {"stream": library.ByteStream(body)} if planned.raw == "stream" else {"content": body}
    response = library.Response(reply.status, headers=headers, request=request, **content)
    if planned.began:
        response.elapsed = timedelta(seconds=time.perf_counter() - planned.began)
    return response


def to_process(owner: Any, planned: Planned, reply: Reply, cast_to: Any) -> dict[str, Any]:
    """The arguments of openai's own ``_process_response``.

    For a caller who wants more than the answer.
    """
    return {
        "cast_to": cast_to,
        "options": planned.final_options(),
        "response": response_of(owner, planned, reply),
        "stream": False,
        "stream_cls": None,
        "retries_taken": reply.attempts - 1,
    }


def error_of(owner: Any, planned: Planned, error: BatchClientError, request: Any = None) -> openai.OpenAIError:
    """Return openai's exception for an error; to ``request``, if openai has built it."""
    request = request_of(owner, planned, max(0, error.attempt - 1)) if request is None else request
    if isinstance(error, (DeadlineExceeded, ReadTimedOut)) or is_of(type(error.__cause__), "TimeoutException"):
        return openai.APITimeoutError(request=request)
    if error.status is not None and error.status >= 400:
        reply = error.reply or Reply(None, {}, error.status)
        body = reply.body or _error_body(error)
        response = response_of(owner, planned, Reply(body, reply.headers, error.status), request)
        made: openai.OpenAIError = owner._make_status_error_from_response(response)
        return made
    if isinstance(error, (DialectError, DemuxError)):
        response = response_of(owner, planned, Reply({}, {}, error.status or 200), request)
        return openai.APIResponseValidationError(response=response, body=None, message=error.message)
    return openai.APIConnectionError(message=error.message, request=request)


def _error_body(error: BatchClientError) -> bytes:
    """An error in OpenAI's form, where the server's own body concerned other calls as well."""
    message = error.message.removeprefix(f"{error.status}: ")
    return json.dumps({"error": {"message": message, "type": error.code, "param": None, "code": error.status}}).encode()
