"""From a call's parameters to its shape: what it may share a request with, whatever server it goes to.

Rules:
- A shape is made when the call is, and its server is chosen later: nothing in it belongs to one sort of server.
- Equal parameters give the same object, so that groups are found by identity.
- The key begins with the kind of call and of prompt; then comes the shared part of the body.
"""

from __future__ import annotations

import marshal
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from batchclient._core.kinds import Kind
from batchclient._core.requests import Shape
from batchclient.dialects._fields import canonical, check_embedding_fields, sort_fields
from batchclient.errors import ConfigError

__all__ = ["Shapes"]

_KEYS_REMEMBERED = 4096
_PREFIXES = {
    Kind.COMPLETION: (b"text:", b"ids:"),
    Kind.EMBEDDING: (b"embedding:", b"embedding ids:"),
    Kind.CLASSIFICATION: (b"classification:", b"classification ids:"),
}
_GENERATING = frozenset({Kind.COMPLETION, Kind.CHAT})
_INPUT_FIELDS = frozenset(
    {
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
    }
)
"""What servers call what such a call is about: it is an argument, and no field may come twice."""


class Shapes:
    """The shapes of one client's calls."""

    def __init__(self) -> None:
        self._shapes: dict[bytes, Shape] = {}
        self._known: dict[tuple[object, ...], Shape] = {}

    def shape(
        self,
        params: Mapping[str, Any],
        model: str,
        *,
        kind: Kind = Kind.COMPLETION,
        token_ids: bool = False,
        alone: str | None = None,
        to_caller: bool = False,
        verbatim: bool = False,
    ) -> tuple[Shape, bytes]:
        """Return what calls with these parameters may share, and the fields sent only when one goes alone.

        Args:
            params: the call's.
            model: its name.
            kind: of the call.
            token_ids: whether the prompt is one of ids.
            alone: why the call goes alone, if its input is the reason.
            to_caller: whether it is streamed to its caller.
            verbatim: whether its answer keeps the server's own reply.

        Raises:
            ConfigError: a parameter is wrong, or not JSON, or not the caller's to set; it names the field.
        """
        known = self._known
        signature: tuple[object, ...] | None = None
        # Writing the key costs 5 µs, and calls come by the thousand with the same few parameters. ``marshal`` writes them in a
        # fraction of that, and tells apart what JSON does: 1, True, 1.0 and "1" differ. Version 2: later ones depend on who else holds a value.
        try:
            signature = (kind, model, token_ids, alone, to_caller, verbatim, marshal.dumps(params, 2))  # type: ignore[arg-type]
        except ValueError:  # of a type that it does not know, or too deep: ``canonical`` decides
            pass
        else:
            shape = known.get(signature)
            if shape is not None:
                return shape, b""
        joining, solo, reason = sort_fields(params, kind, to_caller=to_caller)
        reason = "streamed to its caller" if to_caller else reason or alone
        joining.setdefault("model", model)
        if joining.get("return_token_ids", True) in (None, False):
            # The server's default. A plain list asks for them on our account, and no field may come twice.
            del joining["return_token_ids"]
        body = canonical(joining)
        prefixes = _PREFIXES.get(kind)
        answer_key = (prefixes[token_ids] if prefixes is not None else f"{kind.value}:".encode()) + body
        key = f"{reason}!".encode() + answer_key if alone or to_caller else answer_key
        if verbatim:
            key = b"verbatim!" + key
        shape = self._shapes.get(key)
        if shape is None:
            if len(self._shapes) >= _KEYS_REMEMBERED:
                # Seeds that differ per call make a key per call: forget, rather than grow.
                self._shapes.clear()
                known.clear()
            shape = _make_shape(kind, joining, key, body, reason, counted=token_ids, to_caller=to_caller)
            if key is not answer_key:
                if to_caller and shape.plain_only:
                    raise ConfigError("beam search and prompt_logprobs cannot be streamed", field="stream")
                # A reply that is handed on is in the form that its caller asked for.
                packable = shape.packable and not verbatim
                shape = replace(shape, answer_key=answer_key, to_caller=to_caller, verbatim=verbatim, packable=packable)
            self._shapes[key] = shape
        if solo:
            return shape, canonical(solo)[1:-1]
        if signature is not None:
            if len(known) >= _KEYS_REMEMBERED:
                known.clear()
            known[signature] = shape
        return shape, b""


def _make_shape(
    kind: Kind,
    fields: Mapping[str, Any],
    key: bytes,
    body: bytes,
    alone: str | None,
    *,
    counted: bool,
    to_caller: bool = False,
) -> Shape:
    if not isinstance(fields["model"], str) or not fields["model"]:
        raise ConfigError("model is the name the server knows the model by, a string", field="model")
    if kind not in _GENERATING:
        for name in _INPUT_FIELDS.intersection(fields):
            raise ConfigError(f"{name} is not a parameter: the first argument is what the call is about", field=name)
        if kind is Kind.EMBEDDING:
            check_embedding_fields(fields)
        return Shape(
            key=key,
            body=body,
            model=fields["model"],
            max_output_tokens=0,
            alone_reason=alone,
            plain_only=True,
            kind=kind,
            counted=counted,
            packable=kind is Kind.EMBEDDING and "encoding_format" not in fields,
        )
    n = _count(fields, "n", 1)
    is_chat = kind is Kind.CHAT
    max_tokens = _count(fields, "max_tokens", 0)
    if is_chat and _count(fields, "max_completion_tokens", 0) is not None:
        # OpenAI's newer name; it stands before the other (vLLM 0.32, chat_completion/serving.py).
        max_tokens = fields["max_completion_tokens"]
    if is_chat and alone is None and n != 1 and n is not None:
        alone = "n"
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
        plain_only=bool(fields.get("use_beam_search"))
        or fields.get("prompt_logprobs") is not None
        # Servers have another parser for streamed tool calls, made for a token at a time; whoever needs no stream is spared it.
        or (is_chat and bool(fields.get("tools")) and not to_caller),
        wants_token_ids=_flag(fields, "return_token_ids"),
        # Of a chat it gives back the last message only, which counts for nothing here.
        echo=_flag(fields, "echo") and not is_chat,
        greedy=type(fields.get("temperature")) in (int, float) and fields["temperature"] == 0,
        kind=kind,
        lists_plain=is_chat,
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
