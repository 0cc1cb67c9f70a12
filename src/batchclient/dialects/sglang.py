"""SGLang: its own ``/generate``, where each answer of a list has its own usage; else
``/v1/completions``.

Facts (SGLang 0.5.23, ``srt/managers/io_struct.py``, ``srt/managers/tokenizer_manager.py``,
``srt/entrypoints``; not yet seen running):
- ``/generate`` takes lists of texts or of ids. It answers with an array in the same order, or with
  an object for a single prompt. Ids are tokenized and scheduled as one message, texts one by one.
- The sampling parameters may be a list with an object per prompt. So calls share a request that
  differ in seed, temperature, stop strings and the like (``own_fields``). ``max_tokens`` is the
  same for all: it decides how long a list is and whether the list is streamed.
- With ``n`` above 1 SGLang first fills its cache for each prompt in turn. The prompt is repeated
  instead, with seeds as vLLM counts them.
- A streamed text is the whole so far, unless the server was started with
  ``--incremental-streaming-output``. Then ids and text are only the new part, and
  ``completion_tokens`` is more than the number of ids. Only a list's events have an ``index``.
- Parameters have SGLang's own names. Calls with a field without a translation here, such as
  ``echo``, go to ``/v1/completions``, lists too.
- A model named ``base:adapter`` picks an adapter on ``/v1/completions``; ``/generate`` knows no
  model's name.
- Higher priorities go first (``--enable-priority-scheduling``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from batchclient._core.kinds import Kind
from batchclient._core.messages import Batch, Failure
from batchclient._core.requests import Shape
from batchclient.dialects._bodies import Bodies
from batchclient.dialects._chat import Chat
from batchclient.dialects._dialect import Decoder, OwnFields
from batchclient.dialects._embeddings import Embeddings
from batchclient.dialects._fields import canonical
from batchclient.dialects._readers import BAD_FORM, index_of, legacy_logprobs, unreadable
from batchclient.dialects._scores import RerankScores
from batchclient.dialects._server import Form, ServerDialect
from batchclient.dialects._stream_decoder import decoder_of
from batchclient.dialects._tokens import SglangTokens
from batchclient.dialects.completions import Completions, stream_interval
from batchclient.transport import WireRequest

__all__ = ["SglangDialect"]

_PATH = "/generate"
_SAME_NAME = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "stop",
        "stop_token_ids",
        "stop_regex",
        "ignore_eos",
        "skip_special_tokens",
        "spaces_between_special_tokens",
        "no_stop_trim",
        "regex",
        "ebnf",
        "json_schema",
        "logit_bias",
        "custom_params",
    }
)
_RENAMED = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens"}
_AROUND = frozenset({"model", "logprobs", "return_token_ids", "n", "seed", "response_format"})
"""Fields outside the sampling parameters, or in another form there."""
_OWN = frozenset(
    {
        "seed",
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "stop",
        "stop_token_ids",
        "logit_bias",
    }
)
"""Fields that may differ between the prompts of a list: none decides the path of a call, or how its
reply is read.
"""
_DEFAULT_MAX_TOKENS = 16
"""OpenAI's default, also of SGLang's ``/v1/completions``; ``/generate`` has 128."""


def _sampling_params(fields: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the sampling parameters in SGLang's names; ``None``: a field has no translation."""
    if ":" in fields["model"] or not fields.keys() <= (_SAME_NAME | _RENAMED.keys() | _AROUND):
        return None
    params = {_RENAMED.get(name, name): value for name, value in fields.items() if name not in _AROUND}
    params.setdefault("max_new_tokens", _DEFAULT_MAX_TOKENS)
    format_ = fields.get("response_format")
    if format_ is not None:
        schema = _schema_of(format_)
        if schema is None or "json_schema" in params:
            return None
        if schema:
            params["json_schema"] = schema
    return params


def _own_fields(fields: Mapping[str, Any]) -> frozenset[str]:
    """Return the fields that may differ within a list: none for calls to ``/v1/completions``."""
    return frozenset() if _sampling_params(fields) is None else _OWN


def _schema_of(response_format: Any) -> str | None:
    """Return a response format's JSON schema as text; empty: any text; ``None``: no translation."""
    if not isinstance(response_format, Mapping):
        return None
    match response_format.get("type"):
        case "text":
            return ""
        case "json_object":
            return '{"type":"object"}'
        case "json_schema":
            given = response_format.get("json_schema")
            schema = given.get("schema") if isinstance(given, Mapping) else None
            return json.dumps(schema, ensure_ascii=False) if isinstance(schema, Mapping) else None
    return None


class _Generate:
    """The form of completions: ``/generate`` where all fields have a translation."""

    def __init__(self) -> None:
        self._params = Bodies(_sampling_params)
        self._openai = Completions(priority_sign=1)

    def encode(self, batch: Batch) -> WireRequest | Failure:
        """Write the batch's request."""
        shape = batch.shape
        if self._params_of(batch) is None:
            return self._openai.encode(batch)
        n = shape.weight
        prompts = [request.prompt for request in batch.requests for _ in range(n)]
        field = b"input_ids" if prompts[0][:1] == b"[" else b"text"
        # A single prompt is no list: its reply is an object.
        value = prompts[0] if len(prompts) == 1 else b"[" + b",".join(prompts) + b"]"
        fields = self._around(batch)
        return WireRequest("POST", _PATH, b'{"%b":%b,%b' % (field, value, canonical(fields)[1:]), from_root=True)

    def _params_of(self, batch: Batch) -> dict[str, Any] | None:
        """Return the sampling parameters for ``/generate``, or ``None`` for ``/v1/completions``,
        which also takes a lone call's labels.
        """
        if len(batch.requests) == 1 and batch.requests[0].solo_fields:
            return None
        return self._params.of(batch.shape)

    def _around(self, batch: Batch) -> dict[str, Any]:
        """Return all members but the prompts."""
        shape = batch.shape
        sets_interval = batch.streamed and not shape.to_caller and "stream_interval" not in batch.wire.without
        of_stream = {"stream_interval": stream_interval(shape)} if sets_interval else {}
        if shape.is_mixed:
            each = [own for request in batch.requests for own in self._of_prompt(request.shape, of_stream)]
        else:
            each = self._of_prompt(shape, of_stream)
            if len(each) > 1 and each[0] != each[1]:
                each *= len(batch.requests)
            else:
                each = each[:1]
        fields: dict[str, Any] = {"sampling_params": each if len(each) > 1 else each[0], "stream": batch.streamed}
        logprobs = _asked(shape)["logprobs"]
        if logprobs is not None:
            fields |= {"return_logprob": True, "top_logprobs_num": logprobs, "return_text_in_logprobs": True}
        if shape.tells_priority and "priority" not in batch.wire.without:
            fields["priority"] = shape.priority
        return fields

    def _of_prompt(self, shape: Shape, of_stream: dict[str, Any]) -> list[dict[str, Any]]:
        """Return the sampling parameters of each choice of a prompt."""
        params, seed = self._params.of(shape), _asked(shape)["seed"]
        assert params is not None, "a call without a translation goes to /v1/completions"
        params = params | of_stream
        return [params if seed is None else params | {"sampling_seed": seed + k} for k in range(shape.weight)]

    def decoder(self, batch: Batch, secrets: tuple[str, ...], content_type: str) -> Decoder:
        """Return a fresh decoder for the batch's reply."""
        if self._params_of(batch) is None:
            return self._openai.decoder(batch, secrets, content_type)
        return decoder_of(batch, secrets, content_type, _GenerateReader(batch))


_ASKED: Bodies[dict[str, Any]] = Bodies(lambda fields: {name: fields.get(name) for name in ("seed", "logprobs")})


def _asked(shape: Shape) -> dict[str, Any]:
    return _ASKED.of(shape)


class _GenerateReader:
    """Reads a reply of ``/generate``."""

    counts_each = True
    tells_sums = False

    def __init__(self, batch: Batch) -> None:
        self._wants_logprobs = _asked(batch.shape)["logprobs"]
        self._size = len(batch.requests) * batch.shape.weight
        self._whole: dict[int, _Progress] = {}

    def reply(self, reply: Any) -> Any:
        """Read an object for a single prompt, an array for several."""
        items = reply if isinstance(reply, list) else [reply]
        return {"choices": [self._of_item(index, item) for index, item in enumerate(items)]}

    def _of_item(self, index: int, item: Any) -> dict[str, Any]:
        try:
            meta = item["meta_info"]
            return self._choice(index, item["text"], meta) | {
                "token_ids": item.get("output_ids"),
                "logprobs": self._logprobs(meta, 0, 0),
                "usage": _usage_in(meta),
            }
        except BAD_FORM:
            return unreadable(index)

    def event(self, event: Any) -> Any:
        """Read the new part of a prompt's event."""
        if "meta_info" not in event:
            return event
        index = index_of(event.get("index"), self._size)
        try:
            return self._of_event(index, event)
        except BAD_FORM:
            return {"choices": [unreadable(index)]}

    def _of_event(self, index: Any, event: Any) -> dict[str, Any]:
        meta, text, ids = event["meta_info"], event["text"], event.get("output_ids")
        before = self._whole.setdefault(index, _Progress()) if type(index) is int else _Progress()
        tokens = _tokens_in(meta)
        # Ids tell whether an event holds the whole answer so far; without ids, the text tells.
        whole = len(ids) >= tokens if isinstance(ids, list) and tokens else text.startswith(before.text)
        new_text = text[len(before.text) :] if whole else text
        choice = self._choice(index, new_text, meta)
        if isinstance(ids, list):
            choice["token_ids"] = ids[before.ids :] if whole else ids
            before.ids += len(choice["token_ids"])
        choice["logprobs"] = self._logprobs(meta, before.logprobs, len(before.text))
        if choice["logprobs"] is not None:
            before.logprobs += len(choice["logprobs"]["tokens"])
        before.text = text if whole else before.text + text
        return {"choices": [choice], "usage": _usage_in(meta), "id": meta.get("id")}

    @staticmethod
    def _choice(index: Any, text: Any, meta: Mapping[str, Any]) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": index, "text": text, "finish_reason": None}
        finish = meta.get("finish_reason")
        if finish is None:
            return choice
        choice["finish_reason"] = finish["type"]
        if finish.get("matched") is not None:
            choice["stop_reason"] = finish["matched"]
        if finish["type"] == "abort":
            choice |= {"status_code": finish.get("status_code"), "abort_message": finish.get("message")}
        return choice

    def _logprobs(self, meta: Mapping[str, Any], known: int, start: int) -> dict[str, Any] | None:
        """Return the logprobs of an event's new tokens, from character ``start`` of the answer on.

        The first ``known`` tokens were told before, where the server repeats them all.
        """
        if self._wants_logprobs is None:
            return None
        own = meta["output_token_logprobs"]
        tops = meta.get("output_top_logprobs") or [None] * len(own)
        if len(own) >= _tokens_in(meta):
            own, tops = own[known:], tops[known:]
        tokens = []
        for (logprob, _, text), top in zip(own, tops, strict=True):
            likeliest = {text: logprob} | {other: value for value, _, other in top or ()}
            tokens.append((text, logprob, likeliest))
        return legacy_logprobs(tokens, start)


class _Progress:
    """A prompt's answer so far in a stream."""

    __slots__ = ("ids", "logprobs", "text")

    def __init__(self) -> None:
        self.text = ""
        self.ids = 0
        self.logprobs = 0


def _tokens_in(meta: Mapping[str, Any]) -> int:
    """Return the number of the answer's tokens so far; 0: not told."""
    tokens = meta.get("completion_tokens")
    return tokens if type(tokens) is int else 0


def _usage_in(meta: Mapping[str, Any]) -> dict[str, Any]:
    return {name: meta.get(name) for name in ("prompt_tokens", "completion_tokens")}


class SglangDialect(ServerDialect):
    """The dialect described at the top of the file."""

    name = "sglang"
    # For ``/v1/completions``, which gives no ids as vLLM does.
    without: frozenset[str] = frozenset({"return_token_ids", "repetition_detection"})
    caps: Mapping[Kind, int] = {Kind.CHAT: 1}
    continues_chats = True
    own_fields: OwnFields | None = staticmethod(_own_fields)
    forms: Mapping[Kind, Form] = {
        Kind.COMPLETION: _Generate(),
        Kind.CHAT: Chat(priority_sign=1),
        Kind.EMBEDDING: Embeddings(),
        Kind.SCORE: RerankScores(),
        Kind.RERANK: RerankScores(),
        Kind.TOKENS: SglangTokens(),
    }
