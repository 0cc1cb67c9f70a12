"""Names of parameters that no call has: refused, since most servers ignore an unknown field.

Rules:
- ``temprature=0`` would bring an answer, and another than the caller asked for. So a call takes the
  names of its kind (``_kinds``) and no other; the error has the nearest right name.
- A kind has a name if any server, of any sort and version, takes the field for such a call.
- ``extra_body`` passes any field. So do programs that write bodies themselves: the drop-in and the
  transports.
- A new version's fields are added there. Until then they go by ``extra_body``.
- A name that the tables of ``_fields`` give to batchclient keeps the refusal that stands there.
- An argument of ``BatchClient`` is named as such.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from batchclient._core.kinds import Kind
from batchclient.dialects._fields import FIELDS, FIELDS_OF_KIND, Role
from batchclient.dialects._kinds import KINDS, LIKELIHOOD, known_fields
from batchclient.errors import ConfigError

__all__ = ["INPUT_FIELDS", "refuse_unknown"]

INPUT_FIELDS = frozenset(
    [
        "input",
        "inputs",
        "content",
        "text_1",
        "text_2",
        "data_1",
        "data_2",
        "query",
        "queries",
        "documents",
        "texts",
        "items",
    ]
)
"""The servers' names of the input of a call that generates nothing.

The input is an argument here, and no field may come twice.
"""
_GENERATING = frozenset((Kind.COMPLETION, Kind.CHAT))
_ARGUMENTS = ("model", "timeout_s", "priority", "tenant", "session", "extra_body")
_OF_MAPS = {
    "batch_map": ("docs", "rows", "row_params", "call", "look_ahead", "order", "max_cost", "return_exceptions"),
    "stream_map": ("docs", "rows", "row_params", "call", "look_ahead", "order", "max_cost", "ordered"),
}
_OF_CLIENT = frozenset(
    (
        "base_url", "api_key", "headers", "retry", "limit", "preset", "batching", "queue", "http", "dialect", "probe",
        "wait_for_server_s", "outage_patience_s", "telemetry",
    )
)  # fmt: skip
"""The arguments of ``BatchClient`` that no call has."""
_TEXTS = {
    "max_new_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "n_predict": "max_tokens",
    "num_predict": "max_tokens",
    "num_return_sequences": "n",
    "random_seed": "seed",
    "stop_sequences": "stop",
    "response_schema": "response_model",
}
_MEANT: dict[str, dict[str, str]] = {
    Kind.COMPLETION: _TEXTS,
    Kind.CHAT: _TEXTS,
    LIKELIHOOD: {"context": "given", "prefix": "given", "prompt": "given", "text": "continuation"},
    Kind.RERANK: {"top_k": "top_n"},
}
"""The meaning of another library's word, where no likeness shows the meaning."""


@cache
def _passed(call: str) -> frozenset[str]:
    """Return the names that are not refused here: fields, and names whose refusal stands elsewhere."""
    of_kind = FIELDS_OF_KIND.get(Kind(call), {}) if call != LIKELIHOOD else {}
    ours = {name for name, (role, _) in {**FIELDS, **of_kind}.items() if role is Role.OURS}
    elsewhere = ours if call in _GENERATING else ours | INPUT_FIELDS
    return known_fields(call) | (elsewhere - _MEANT.get(call, {}).keys())


def refuse_unknown(call: str, given: Iterable[str], *, to_caller: bool = False, method: str | None = None) -> None:
    """Refuse names that the call does not have and no server knows.

    Args:
        call: its kind, or ``LIKELIHOOD``.
        given: the names beside the arguments that it has.
        to_caller: whether the call is streamed to its caller.
        method: the method that was called, where it is another than the call's own.

    Raises:
        ConfigError: the error tells the first unknown name, and the nearest known name.
    """
    passed = _passed(call)
    if passed.issuperset(given):
        return
    name = next(each for each in given if each not in passed)
    kind = KINDS[call]
    own = kind.arguments
    if method is not None:
        own += _OF_MAPS.get(method.partition("(")[0], ())
    called = method or f"{kind.streaming if to_caller else kind.method}()"
    if not isinstance(name, str):
        raise ConfigError(f"a parameter of {called} has a name that is a {type(name).__name__}")
    _refuse_clients(name, called)
    raise ConfigError(
        f"{name:.60} is no argument of {called}, and no server is known that takes such a field. "
        f"{_hint(call, name, own)}If yours does, give extra_body={{{name[:60]!r}: …}}",
        field=name,
    )


def _refuse_clients(name: str, called: str) -> None:
    """Refuse a name that is the client's.

    Args:
        name: of the argument.
        called: the method that was given the argument.

    Raises:
        ConfigError: the error tells how the client is given the argument.
    """
    if name in _OF_CLIENT:
        message = f"{name} is an argument of BatchClient, not of {called}: BatchClient(…, {name}=…)"
        raise ConfigError(message, field=name)


def _hint(call: str, name: str, own: tuple[str, ...]) -> str:
    """Say which name was meant, as far as one is near."""
    if call == Kind.COMPLETION and name in known_fields(Kind.CHAT):
        return 'It is a field of chats: chat(), or call="chat" of a map, takes it. '
    if name in ("system", "system_prompt"):
        return "It is the first message of a conversation: {'role': 'system', 'content': …}. "
    from difflib import get_close_matches  # seldom needed, and slow to import

    meant = _MEANT.get(call, {})
    near = get_close_matches(name, [*meant, *own, *_ARGUMENTS, *sorted(known_fields(call))], 1)
    return f"Did you mean {meant.get(near[0], near[0])}? " if near else ""
