"""From a call's parameters to its shape: what it may share a request with, whatever server it goes to.

Rules:
- A shape is made when the call is, and its server is chosen later: nothing in it belongs to one sort of server.
- Equal parameters give the same object, so that groups are found by identity.
- The key begins with the kind of call and of prompt; then comes the shared part of the body.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from batchclient._core.kinds import Kind
from batchclient._core.requests import Shape
from batchclient.dialects._fields import canonical, sort_fields
from batchclient.errors import ConfigError

__all__ = ["Shapes"]

_SCALARS = frozenset({str, int, float, bool, type(None)})
_KEYS_REMEMBERED = 4096
_PREFIXES = {Kind.COMPLETION: (b"text:", b"ids:"), Kind.EMBEDDING: (b"embedding:", b"embedding ids:")}
_GENERATING = frozenset({Kind.COMPLETION, Kind.CHAT})


class Shapes:
    """The shapes of one client's calls."""

    def __init__(self) -> None:
        self._shapes: dict[bytes, Shape] = {}
        self._known: dict[tuple[object, ...], Shape] = {}

    def shape(
        self, params: Mapping[str, Any], model: str, *, kind: Kind = Kind.COMPLETION, token_ids: bool = False
    ) -> tuple[Shape, bytes]:
        """Return what calls with these parameters may share, and the fields sent only when one goes alone.

        Raises:
            ConfigError: a parameter is wrong, or not JSON, or not the caller's to set; it names the field.
        """
        known = self._known
        signature: tuple[object, ...] | None = None
        if _SCALARS.issuperset(map(type, params.values())):
            # Writing the key costs 5 µs, and calls come by the thousand with the same few scalars. ``repr`` tells them
            # apart as JSON does: 1, True, 1.0 and "1" differ.
            try:
                signature = (kind, model, token_ids, *params, *map(repr, params.values()))
            except ValueError:  # a number too long to be written, as ``canonical`` will say
                signature = None
            shape = known.get(signature) if signature is not None else None
            if shape is not None:
                return shape, b""
        joining, solo, alone = sort_fields(params)
        joining.setdefault("model", model)
        if joining.get("return_token_ids", True) in (None, False):
            # The server's default. A plain list asks for them on our account, and no field may come twice.
            del joining["return_token_ids"]
        body = canonical(joining)
        prefixes = _PREFIXES.get(kind)
        key = (prefixes[token_ids] if prefixes is not None else f"{kind.value}:".encode()) + body
        shape = self._shapes.get(key)
        if shape is None:
            if len(self._shapes) >= _KEYS_REMEMBERED:
                # Seeds that differ per call make a key per call: forget, rather than grow.
                self._shapes.clear()
                known.clear()
            self._shapes[key] = shape = _make_shape(kind, joining, key, body, alone, counted=token_ids)
        if solo:
            return shape, canonical(solo)[1:-1]
        if signature is not None:
            if len(known) >= _KEYS_REMEMBERED:
                known.clear()
            known[signature] = shape
        return shape, b""


def _make_shape(
    kind: Kind, fields: Mapping[str, Any], key: bytes, body: bytes, alone: str | None, *, counted: bool
) -> Shape:
    if not isinstance(fields["model"], str) or not fields["model"]:
        raise ConfigError("model is the name the server knows the model by, a string", field="model")
    if kind not in _GENERATING:
        return Shape(
            key=key,
            body=body,
            model=fields["model"],
            max_output_tokens=0,
            alone_reason=alone,
            plain_only=True,
            kind=kind,
            counted=counted,
        )
    n = _count(fields, "n", 1)
    max_tokens = fields.get("max_tokens")
    if max_tokens is not None:
        _count(fields, "max_tokens", 0)
    if max_tokens is None and kind is Kind.COMPLETION:
        # The server's default, should the call name none (vLLM 0.32, completion/protocol.py).
        max_tokens = 16
    return Shape(
        key=key,
        body=body,
        model=fields["model"],
        weight=n or 1,
        max_output_tokens=max_tokens,
        alone_reason=alone,
        plain_only=bool(fields.get("use_beam_search")) or fields.get("prompt_logprobs") is not None,
        wants_token_ids=_flag(fields, "return_token_ids"),
        echo=_flag(fields, "echo"),
        greedy=type(fields.get("temperature")) in (int, float) and fields["temperature"] == 0,
        kind=kind,
        lists_plain=kind is Kind.CHAT,
        counted=counted,
    )


def _count(fields: Mapping[str, Any], name: str, least: int) -> int | None:
    value = fields.get(name)
    if value is None:
        return None
    if type(value) is not int or value < least:
        raise ConfigError(f"{name} is a whole number of at least {least}, not {value!r:.40}", field=name)
    return value


def _flag(fields: Mapping[str, Any], name: str) -> bool:
    value = fields.get(name)
    if value is not None and type(value) is not bool:
        raise ConfigError(f"{name} is true or false, not {value!r:.40}", field=name)
    return value is True
