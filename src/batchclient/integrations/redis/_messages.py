"""Messages of a stream: from an entry's fields to a call, and from an answer to a result. No Redis.

Rules:
- A message that no worker could ever use is refused here with a ``BadMessage``, which names the
  field. The message then becomes a dead letter.
- A body is a request, whose parameters the client checks as those of every call; or a row with
  ``params``, or a line of an OpenAI Batch file, which are read as a map reads them.
- No error shows a prompt.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from batchclient import RowCall, read_call
from batchclient.errors import ConfigError
from batchclient.rows import check_call
from batchclient.types import NOT_GIVEN

__all__ = ["BadMessage", "Message", "Outcome", "identity_in", "read_message", "write_json", "write_message"]

_LARGEST_BODY_BYTES = 16 * 1024 * 1024
"""A row of a file has the same bound."""
_LONGEST_ID = 1024
_INPUTS = {"complete": "prompt", "chat": "messages", "embed": "input", "classify": "input"}
"""The calls of messages, each with the field of the body that is its input."""
_CALLS_SAID = f"one of {', '.join(_INPUTS)}"
_BESIDE = ("id", "call", "deadline", "priority", "tenant", "session")
"""The fields of a message beside its body."""
_OWN_ARGUMENTS = frozenset({"self", "text", "prompt", "timeout_s", "priority", "tenant", "session", "response_model"})
"""Arguments of the client's calls that are no parameters of a request."""
_encode = json.JSONEncoder(ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode


class BadMessage(ValueError):
    """A message that no worker can use."""


@dataclass(slots=True)  # frozen would cost a microsecond or two a message
class Message:
    """A message of a stream.

    Args:
        id: whose result it is: the message's own id, else the entry's.
        call: ``complete``, ``chat``, ``embed`` or ``classify``.
        item: the call's input.
        model: the model's name, if the message gives one.
        params: the call's other fields.
        deadline: Unix seconds by the clock of Redis, if there is a deadline.
        priority, tenant, session: of the call.
    """

    id: str
    call: str
    item: Any
    model: str | None
    params: Mapping[str, Any]
    deadline: float | None = None
    priority: int = 0
    tenant: str | None = None
    session: str | None = None


class Outcome(NamedTuple):
    """How a message ends.

    Args:
        entry: its entry in the stream.
        form: ``key``, ``stream``, ``none`` or ``dead``: where the texts go; ``back``: the message
            is handed back.
        texts: a key's value; or names and values of fields.
        key: the key of the value.
    """

    entry: str
    form: str
    texts: tuple[bytes | str, ...] = ()
    key: str = ""


def read_message(entry: str, fields: Mapping[bytes, bytes]) -> Message:
    """Read an entry's fields.

    Args:
        entry: the entry's id.
        fields: as Redis has them.

    Raises:
        BadMessage: the message cannot be used.
        ConfigError: the body has a field that is the client's and no request's.
    """
    body = _body(fields.get(b"body"))
    own_id = body.pop("id", None)
    call, priority = _text(fields, b"call"), _priority(fields)
    made: RowCall | None = None
    if "url" in body and isinstance(body.get("body"), dict):
        own_id = body.get("custom_id", own_id)
        made = _read_row(body, call, "batch")
    elif "params" in body:
        made = _read_row(body, call)
    if made is not None:
        call, priority = made.call, priority or made.priority or 0
    identity = _identity(_text(fields, b"id"), own_id, entry)
    deadline = _deadline(fields)
    if not call:
        call = "chat" if "messages" in body else "complete" if "prompt" in body else ""
        if not call:
            raise BadMessage(f"call is missing: {_CALLS_SAID}")
    field = _INPUTS.get(call)
    if field is None:
        raise BadMessage(f"call is {_CALLS_SAID}, not {call!r:.40}")
    if made is None:
        if field not in body:
            raise BadMessage(f"body has no field {field!r}, which call={call!r} needs")
        made = RowCall(call, body.pop(field), body, body.pop("model", None))
        if not _OWN_ARGUMENTS.isdisjoint(body):
            name = min(_OWN_ARGUMENTS & body.keys())
            raise ConfigError(f"{name} is no field of a message's body", field=name)
    tenant, session = (_text(fields, name) or None for name in (b"tenant", b"session"))
    return Message(
        identity, call, made.item, made.model, made.params, deadline, priority, tenant, session or made.session
    )


def write_message(message: Mapping[str, Any]) -> dict[str, bytes]:
    """Return the fields of a message.

    Args:
        message: a call's fields, such as ``prompt`` and ``max_tokens``, and beside them ``id``,
            ``call``, ``deadline``, ``priority``, ``tenant`` or ``session``; or a line of an OpenAI
            Batch file.

    Raises:
        BadMessage, ConfigError: no worker could use the message.
    """
    if not isinstance(message, Mapping):
        raise BadMessage(f"a message is a mapping, not a {type(message).__name__}")
    fields = {
        name: str(value).encode(errors="surrogatepass")
        for name in _BESIDE
        if (value := message.get(name)) is not None and value != ""
    }
    body = {name: value for name, value in message.items() if name not in _BESIDE}
    try:
        fields["body"] = _encode(body).encode()
    except (TypeError, ValueError, RecursionError):
        raise BadMessage("the message cannot be written as JSON") from None
    read = read_message("0-0", {name.encode(): value for name, value in fields.items()})
    # What the worker's client would refuse is refused here.
    made = RowCall(read.call, read.item, read.params, read.model, priority=read.priority, session=read.session)
    check_call(made, tenant=read.tenant)
    return fields


def identity_in(fields: Mapping[bytes, bytes], entry: str) -> str:
    """Return whose result a message would have been, also of an unusable message."""
    named = fields.get(b"id", b"").decode(errors="replace")
    if named:
        return named
    try:
        body = _body(fields.get(b"body"))
        return _identity("", body.get("custom_id") if "url" in body else body.get("id"), entry)
    except BadMessage:
        return entry


_write = json.JSONEncoder(ensure_ascii=False, allow_nan=False).encode


def write_json(fields: dict[str, Any]) -> bytes:
    """Write fields as JSON: ``null`` for numbers that JSON has not, half a surrogate pair escaped."""
    try:
        return _write(fields).encode()
    except UnicodeEncodeError:
        return json.dumps(fields).encode()
    except ValueError:
        return json.dumps(json.loads(json.dumps(fields), parse_constant=lambda _: None)).encode()


def _body(raw: bytes | None) -> dict[str, Any]:
    if raw is None:
        raise BadMessage("the message has no field 'body'")
    if len(raw) > _LARGEST_BODY_BYTES:
        raise BadMessage(f"body has {len(raw):,} bytes; {_LARGEST_BODY_BYTES >> 20} MiB is the most")
    try:
        body = json.loads(raw)
    except UnicodeDecodeError as error:
        raise BadMessage(f"body is not UTF-8 (byte {error.start + 1} of it)") from None
    except json.JSONDecodeError as error:
        raise BadMessage(f"body is not JSON: {error.msg} (character {error.pos + 1} of it)") from None
    except (ValueError, RecursionError) as error:
        raise BadMessage(f"body is not JSON: {error}") from None
    if type(body) is not dict:
        raise BadMessage("body is no JSON object")
    return body


def _read_row(row: dict[str, Any], call: str, form: Literal["batch"] | None = None) -> RowCall:
    """Return the call that a map makes of a row."""
    try:
        made = read_call(row, form, call=call or "complete")  # type: ignore[arg-type]  # it is checked there
    except ConfigError as error:
        raise BadMessage(error.message) from None
    if call not in ("", made.call):
        raise BadMessage(f"call is {call!r:.40}, and the body asks for {made.call!r}")
    if made.timeout_s is not NOT_GIVEN:
        raise BadMessage("timeout_s: a message has a deadline instead")
    return made


def _identity(field: str, own: object, entry: str) -> str:
    identity = field or (str(own) if type(own) in (str, int) else "") or entry
    if len(identity) > _LONGEST_ID:
        raise BadMessage(f"id has {len(identity)} characters; {_LONGEST_ID} is the most")
    if not identity.isascii():
        try:
            identity.encode()
        except UnicodeEncodeError:
            raise BadMessage("id has half of a surrogate pair, which no key can have") from None
    return identity


def _text(fields: Mapping[bytes, bytes], name: bytes) -> str:
    value = fields.get(name)
    if not value:
        return ""
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise BadMessage(f"{name.decode()} is not UTF-8") from None


def _deadline(fields: Mapping[bytes, bytes]) -> float | None:
    text = _text(fields, b"deadline")
    if not text:
        return None
    try:
        deadline = float(text)
    except ValueError:
        deadline = math.nan
    if not math.isfinite(deadline):
        raise BadMessage(f"deadline is a time in Unix seconds, not {text!r:.40}")
    return deadline


def _priority(fields: Mapping[bytes, bytes]) -> int:
    text = _text(fields, b"priority")
    if not text:
        return 0
    number = text.removeprefix("-")
    if not (number.isascii() and number.isdigit() and len(number) <= 3):
        raise BadMessage(f"priority is a whole number from -100 to 100, not {text!r:.40}")
    return int(text)
