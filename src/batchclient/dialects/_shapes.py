"""From a call's parameters to its shape: which calls may share a request, on any server.

Rules:
- A shape is made when the call is made, and the server is chosen later: nothing in a shape belongs
  to one sort of server.
- Equal parameters give the same object, so that groups are found by identity.
- The key begins with the kind of call and of prompt; the shared part of the body follows.
"""

from __future__ import annotations

import marshal
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from batchclient._core.kinds import Kind
from batchclient._core.requests import Shape
from batchclient.dialects._arguments import INPUT_FIELDS, refuse_unknown
from batchclient.dialects._fields import canonical, check_embedding_fields, sort_fields
from batchclient.dialects._kinds import known_fields
from batchclient.dialects._labels import LABELS, PROBABILITIES, demand
from batchclient.dialects._thinking import SWITCHES, room_for
from batchclient.errors import ConfigError

__all__ = ["Shapes"]

_KEYS_REMEMBERED = 4096
_PREFIXES = {
    Kind.COMPLETION: (b"text:", b"ids:"),
    Kind.EMBEDDING: (b"embedding:", b"embedding ids:"),
    Kind.CLASSIFICATION: (b"classification:", b"classification ids:"),
}
_OF_NUMBERS = {"encoding_format", "embedding_type", "embedding_types"}
"""With these, as with fields that are not known, a vector may be of other numbers: packed bits."""
_FEW_TOKENS = 4
"""An answer of so few is a class, not a text."""
_MOST_THINKING = 10_000_000
"""No model has a longer context. With more, a server would refuse ``max_tokens``, which is both."""
_GENERATING = frozenset({Kind.COMPLETION, Kind.CHAT})


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
        method: str | None = None,
    ) -> tuple[Shape, bytes]:
        """Return the shape of a call, and the fields sent only when the call goes alone.

        Args:
            params: the call's.
            model: its name.
            kind: of the call.
            token_ids: whether the prompt is a list of ids.
            alone: why the call goes alone, if the input is the reason.
            to_caller: whether the answer is streamed to the caller.
            verbatim: whether the answer keeps the server's own reply.
            method: the method that was called, where it is another than the call's own.

        Raises:
            ConfigError: a parameter is unknown, or wrong, or not JSON, or not the caller's to set;
                the error names the field.
        """
        known = self._known
        signature: tuple[object, ...] | None = None
        # Writing the key costs 5 µs, and calls come by the thousand with the same few parameters.
        # ``marshal`` writes the parameters in a fraction of that time, and tells apart the values
        # that JSON tells apart: 1, True, 1.0 and "1" differ. Version 2: in later versions the bytes
        # depend on who else holds a value.
        try:
            signature = (kind, model, token_ids, alone, to_caller, verbatim, marshal.dumps(params, 2))  # type: ignore[arg-type]
        except ValueError:  # a type unknown to ``marshal``, or too deep: ``canonical`` decides
            pass
        else:
            shape = known.get(signature)
            if shape is not None:
                return shape, b""
        if not verbatim:
            # A body that another program wrote may hold any field.
            refuse_unknown(kind, params, to_caller=to_caller, method=method)
        joining, solo, reason = sort_fields(params, kind, to_caller=to_caller, method=method)
        guarded = joining.pop("runaway", None)
        if guarded is not None and type(guarded) is not bool:
            raise ConfigError(f"runaway is true or false, not {guarded!r:.40}", field="runaway")
        labels: tuple[str, ...] = ()
        if not verbatim and kind in _GENERATING and (LABELS in joining or PROBABILITIES in joining):
            labels = demand(joining, is_streamed=to_caller)
        reason = "streamed to its caller" if to_caller else reason or alone
        joining.setdefault("model", model)
        if joining.get("return_token_ids", True) in (None, False):
            # The server's default. A plain list asks for token ids on our account, and no field may
            # come twice.
            del joining["return_token_ids"]
        if joining.get("thinking_tokens", 0) is None:
            # The client's own name, which no server is sent.
            del joining["thinking_tokens"]
        body = canonical(joining)
        prefixes = _PREFIXES.get(kind)
        answer_key = (prefixes[token_ids] if prefixes is not None else f"{kind.value}:".encode()) + body
        key = f"{reason}!".encode() + answer_key if alone or to_caller else answer_key
        if verbatim:
            # Such answers hold more than others' do: none may be given another call's.
            answer_key = b"verbatim!" + answer_key
            key = b"verbatim!" + key
        if guarded:
            # The call is the same: a loop is no other answer.
            key = b"guarded!" + key
        shape = self._shapes.get(key)
        if shape is None:
            if len(self._shapes) >= _KEYS_REMEMBERED:
                # Seeds that differ per call make a key per call: forget, rather than grow.
                self._shapes.clear()
                known.clear()
            shape = _make_shape(kind, joining, key, body, reason, labels, counted=token_ids, to_caller=to_caller)
            if key is not answer_key:
                if to_caller and shape.plain_only:
                    raise ConfigError("beam search and prompt_logprobs cannot be streamed", field="stream")
                # A reply that is handed on has the form that its caller asked for.
                packable = shape.packable and not verbatim
                shape = replace(
                    shape,
                    answer_key=answer_key,
                    to_caller=to_caller,
                    verbatim=verbatim,
                    packable=packable,
                    guarded=bool(guarded) and not shape.fixed_length,
                )
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
    labels: tuple[str, ...],
    *,
    counted: bool,
    to_caller: bool = False,
) -> Shape:
    if not isinstance(fields["model"], str) or not fields["model"]:
        raise ConfigError("model is the name the server knows the model by, a string", field="model")
    if kind not in _GENERATING:
        for name in INPUT_FIELDS.intersection(fields):
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
            packable=kind is Kind.EMBEDDING and fields.keys() <= known_fields(kind) - _OF_NUMBERS | {"model"},
        )
    n = _count(fields, "n", 1)
    is_chat = kind is Kind.CHAT
    _count(fields, "seed", -(1 << 63))
    if not is_chat and type(fields.get("logprobs")) is not bool:
        _count(fields, "logprobs", -1)
    max_tokens = _count(fields, "max_tokens", 0)
    if is_chat and _count(fields, "max_completion_tokens", 0) is not None:
        # OpenAI's newer name; it stands before ``max_tokens`` (vLLM 0.32,
        # chat_completion/serving.py).
        max_tokens = fields["max_completion_tokens"]
    if is_chat and alone is None and n != 1 and n is not None:
        alone = "n"
    thinking_tokens = _count(fields, "thinking_tokens", 0)
    if thinking_tokens is not None:
        # A budget goes into these beside what the call has there.
        for name in (SWITCHES, "custom_params"):
            if not isinstance(fields.get(name) or {}, dict):
                raise ConfigError(f"{name} is an object, not {fields[name]!r:.40}", field=name)
    if thinking_tokens is not None and thinking_tokens > _MOST_THINKING:
        message = f"thinking_tokens is at most {_MOST_THINKING:,}: no model has so long a context"
        raise ConfigError(message, field="thinking_tokens")
    if thinking_tokens is not None and max_tokens is None and not is_chat:
        message = "a completion with thinking_tokens needs max_tokens, the bound of the answer: by default it is 16"
        raise ConfigError(message, field="max_tokens")
    if max_tokens is None and kind is Kind.COMPLETION:
        # The server's default, if the call names none (vLLM 0.32, completion/protocol.py).
        max_tokens = 16
    return Shape(
        key=key,
        body=body,
        model=fields["model"],
        weight=n or 1,
        max_output_tokens=max_tokens
        if max_tokens is None or thinking_tokens is None
        else max_tokens + room_for(thinking_tokens),
        alone_reason=alone,
        plain_only=bool(fields.get("use_beam_search"))
        or fields.get("prompt_logprobs") is not None
        # Servers have another parser for streamed tool calls, made for a token at a time; a call
        # that needs no stream is spared that parser.
        or (is_chat and bool(fields.get("tools")) and not to_caller),
        wants_token_ids=_flag(fields, "return_token_ids"),
        # Of a chat, ``echo`` returns the last message only, which counts for nothing here.
        echo=_flag(fields, "echo") and not is_chat,
        greedy=type(fields.get("temperature")) in (int, float) and fields["temperature"] == 0,
        kind=kind,
        lists_plain=is_chat,
        counted=counted,
        labels=labels,
        # A label that is cut off is a label, or none.
        fixed_length=bool(labels)
        or fields.get("ignore_eos") is True
        or (max_tokens is not None and (max_tokens <= _FEW_TOKENS or max_tokens == fields.get("min_tokens"))),
        thinking_tokens=thinking_tokens,
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
