"""Servers' own routes for completions, on which each answer of a list has counts of its own.

SGLang, ``/generate`` (SGLang 0.5.23, ``srt/managers/io_struct.py``, ``tokenizer_manager.py``; not
yet seen running):
- It takes lists of texts or of ids, and answers with an array in the same order, or with an object
  for a single prompt. Ids are tokenized and scheduled as one message, texts one by one.
- With ``n`` above 1 SGLang first fills its cache for each prompt in turn. The prompt is repeated
  instead, with seeds as vLLM counts them.
- A streamed text is the whole so far, unless the server was started with
  ``--incremental-streaming-output``. Then ids and text are only the new part, and
  ``completion_tokens`` is more than the number of ids. Only a list's events have an ``index``.
- A model named ``base:adapter`` picks an adapter on ``/v1/completions``; ``/generate`` knows no
  model's name.

llama.cpp, ``/completion`` (``tools/server/README.md``, ``server-context.cpp``; commit 0c1e570, seen
running):
- It takes lists of texts or ids of any length, and answers with an array of results, each with
  ``index``, ``tokens_evaluated`` and ``tokens_predicted``. A single prompt's reply is an object,
  unless it has several choices.
- ``n`` counts prompt by prompt, and a seed still varies the choices.
- ``n_predict`` is endless unless given. It is always given: 16 where a call says nothing, as in
  OpenAI's API. Other defaults are the server's own (temperature 0.8, top_k 40, …), as on
  ``/v1/completions``: the operator may have set them.
- Probabilities come per token, in the form of neither OpenAI API. They are written as
  ``/v1/completions`` has them.
- Fields without a translation go to ``/v1/completions``. The usage there is the first prompt's
  first choice's, so only a lone call with a single choice gets a usage. The logprobs there have
  chat's form.
- A stream's first event is ``data: null``; an event comes per token, and no ``[DONE]``.
- ``echo`` is ignored: such calls are refused here. Names of models are ignored, too.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from batchclient._core.messages import Batch, Failure, Shape
from batchclient.dialects._bodies import Bodies, refuse
from batchclient.dialects._decoder import ReplyDecoder
from batchclient.dialects._fields import canonical
from batchclient.dialects._readers import BAD_FORM, Reader, index_of, unreadable
from batchclient.dialects._routes import Generation, Route, stream_interval
from batchclient.dialects._stream_decoder import decoder_of
from batchclient.transport import WireRequest

__all__ = ["LLAMACPP", "SGLANG", "Native"]

_DEFAULT_MAX_TOKENS = 16
"""OpenAI's default, also of SGLang's ``/v1/completions``; ``/generate`` has 128."""
_Token = tuple[str, float | None, dict[str, float]]
"""A token's text and logprob, and the likeliest tokens with their logprobs."""
_BY_ID = "return_tokens_as_token_ids"
_ASKED: Bodies[dict[str, Any]] = Bodies(
    lambda fields: {name: fields.get(name) for name in ("seed", "logprobs", _BY_ID)}
)


@dataclass(frozen=True)
class Native(Route):
    """A server's own route, where all of a call's fields have a translation; else OpenAI's.

    A lone call's labels go to OpenAI's, too.

    Args:
        path: from the server's root.
        params: fields in the server's names; ``None``: one has no translation.
        write: writes a batch's request of its parameters.
        reader: makes the reader that turns a reply into OpenAI's form.
        openai: the other route.
    """

    path: str
    params: Bodies[dict[str, Any] | None]
    write: Callable[[Batch, dict[str, Any]], bytes]
    reader: Callable[[Batch], Reader]
    openai: Generation

    def encode(self, batch: Batch) -> WireRequest | Failure:
        """Write the batch's request."""
        params = self._params_of(batch)
        if params is None:
            return self.openai.encode(batch)
        return WireRequest("POST", self.path, body=self.write(batch, params), from_root=True)

    def decoder(self, batch: Batch, secrets: tuple[str, ...], content_type: str) -> ReplyDecoder:
        """Return a fresh decoder for the batch's reply."""
        if self._params_of(batch) is None:
            return self.openai.decoder(batch, secrets, content_type)
        return decoder_of(batch, secrets, content_type, self.reader(batch))

    def _params_of(self, batch: Batch) -> dict[str, Any] | None:
        if len(batch.requests) == 1 and batch.requests[0].solo_fields:
            return None
        return self.params.of(batch.shape)


def _translated(
    fields: Mapping[str, Any], same: frozenset[str], renamed: Mapping[str, str], around: frozenset[str]
) -> dict[str, Any] | None:
    """Return fields in a server's names; ``None``: one has no translation, or comes by both its names.

    Args:
        fields: in OpenAI's names.
        same: names that the server has, too.
        renamed: the server's name by OpenAI's.
        around: names that are written elsewhere in the request.
    """
    if not fields.keys() <= same | renamed.keys() | around:
        return None
    own = fields.keys() - around
    params = {renamed.get(name, name): fields[name] for name in own}
    return params if len(params) == len(own) else None


class _NativeReader:
    """Turns a reply into OpenAI's form, item by item."""

    counts_each = True
    tells_sums = False
    marks = ""
    """The field by which an event is known as an answer's."""

    def __init__(self, batch: Batch) -> None:
        asked = _ASKED.of(batch.shape)
        self._logprobs: int | None = asked["logprobs"]
        self._by_id: bool | None = asked[_BY_ID]
        self._size = len(batch.requests) * batch.shape.weight

    def reply(self, reply: Any) -> Any:
        """Read an object for a single prompt, an array for several."""
        items = reply if isinstance(reply, list) else [reply]
        choices = [self._read(place, item) for place, item in enumerate(items)]
        about = [(choice.pop("id", None), choice.pop("model", None)) for choice in choices]
        model = next((model for _, model in about if model), None)
        return {"choices": choices} | ({} if model is None else {"model": model})

    def event(self, event: Any) -> Any:
        """Read a prompt's event."""
        if self.marks not in event:
            return event
        choice = self._read(None, event)
        about = {name: choice.pop(name, None) for name in ("usage", "id", "model")}
        return {"choices": [choice]} | {name: value for name, value in about.items() if value is not None}

    def _read(self, place: int | None, item: Any) -> dict[str, Any]:
        index = self._index(place, item)
        try:
            return {"index": index, "finish_reason": None, **self._choice(index, item)}
        except BAD_FORM:
            return unreadable(index)

    def _index(self, place: int | None, item: Any) -> Any:
        return index_of(item.get("index"), self._size)

    def _choice(self, index: Any, item: Any) -> dict[str, Any]:
        """Return a choice's fields in OpenAI's names, with its usage, and the reply's id or model."""
        raise NotImplementedError


class _LegacyLogprobs:
    """Writes logprobs as ``/v1/completions`` has them: each token's place in its answer's text."""

    def __init__(self) -> None:
        self._length: dict[Any, int] = {}

    def write(self, index: Any, tokens: list[_Token]) -> dict[str, Any]:
        """Return the logprobs of a choice's next tokens."""
        place, offsets = self._length.get(index, 0), []
        for text, _, _ in tokens:
            offsets.append(place)
            place += len(text)
        self._length[index] = place
        return {
            "text_offset": offsets,
            "token_logprobs": [logprob for _, logprob, _ in tokens],
            "tokens": [text for text, _, _ in tokens],
            "top_logprobs": [top for _, _, top in tokens],
        }


# SGLang --------------------------------------------------------------------------------------------------------------

_SGLANG_SAME = frozenset(
    (
        "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
        "stop", "stop_token_ids", "stop_regex", "ignore_eos", "skip_special_tokens",
        "spaces_between_special_tokens", "no_stop_trim", "regex", "ebnf", "json_schema", "logit_bias",
        "custom_params",
    )
)  # fmt: skip
_SGLANG_RENAMED = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens"}
_SGLANG_AROUND = frozenset({"model", "logprobs", "return_token_ids", "n", "seed", "response_format"})


def _sglang_params(fields: Mapping[str, Any]) -> dict[str, Any] | None:
    params = _translated(fields, _SGLANG_SAME, _SGLANG_RENAMED, _SGLANG_AROUND)
    if params is None or ":" in fields["model"]:
        return None
    params.setdefault("max_new_tokens", _DEFAULT_MAX_TOKENS)
    if fields.get("response_format") is not None:
        schema = _schema_of(fields["response_format"])
        if schema is None or "json_schema" in params:
            return None
        if schema:
            params["json_schema"] = schema
    return params


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


def _write_sglang(batch: Batch, params: dict[str, Any]) -> bytes:
    shape, asked = batch.shape, _ASKED.of(batch.shape)
    prompts = [request.prompt for request in batch.requests for _ in range(shape.weight)]
    field = b"input_ids" if prompts[0][:1] == b"[" else b"text"
    # A single prompt is no list: its reply is an object.
    value = prompts[0] if len(prompts) == 1 else b"[" + b",".join(prompts) + b"]"
    if batch.streamed and not shape.to_caller and "stream_interval" not in batch.wire.without:
        params = params | {"stream_interval": stream_interval(shape)}
    fields: dict[str, Any] = {"sampling_params": _of_choices(shape, params, len(batch.requests), asked["seed"])}
    fields["stream"] = batch.streamed
    if asked["logprobs"] is not None:
        fields |= {"return_logprob": True, "top_logprobs_num": asked["logprobs"], "return_text_in_logprobs": True}
    if shape.tells_priority and "priority" not in batch.wire.without:
        fields["priority"] = shape.priority
    return b'{"%b":%b,%b' % (field, value, canonical(fields)[1:])


def _of_choices(shape: Shape, params: dict[str, Any], prompts: int, seed: int | None) -> Any:
    """Return the sampling parameters: one set, or one for each choice, whose seeds differ."""
    if seed is None:
        return params
    each = [params | {"sampling_seed": seed + k} for k in range(shape.weight)]
    return each[0] if len(each) == 1 else each * prompts


class _Progress:
    """A prompt's answer so far in a stream."""

    __slots__ = ("ids", "logprobs", "text")

    def __init__(self) -> None:
        self.text = ""
        self.ids = 0
        self.logprobs = 0


class _SglangReader(_NativeReader):
    """Reads a reply of ``/generate``."""

    marks = "meta_info"

    def __init__(self, batch: Batch) -> None:
        super().__init__(batch)
        self._progress: dict[int, _Progress] = {}
        self._writer = _LegacyLogprobs()

    def _index(self, place: int | None, item: Any) -> Any:
        # An array has the prompts' order.
        return super()._index(place, item) if place is None else place

    def _choice(self, index: Any, item: Any) -> dict[str, Any]:
        meta, text, ids = item["meta_info"], item["text"], item.get("output_ids")
        before = self._progress.setdefault(index, _Progress()) if type(index) is int else _Progress()
        tokens = _sglang_tokens(meta)
        # Ids tell whether an event holds the whole answer so far; without ids, the text tells.
        whole = len(ids) >= tokens if isinstance(ids, list) and tokens else text.startswith(before.text)
        choice: dict[str, Any] = {"text": text[len(before.text) :] if whole else text}
        if isinstance(ids, list):
            choice["token_ids"] = ids[before.ids :] if whole else ids
            before.ids += len(choice["token_ids"])
        if self._logprobs is not None:
            told = _sglang_logprobs(meta, before.logprobs)
            before.logprobs += len(told)
            choice["logprobs"] = self._writer.write(index, told)
        before.text = text if whole else before.text + text
        finish = meta.get("finish_reason")
        if finish is not None:
            choice["finish_reason"] = finish["type"]
            if finish.get("matched") is not None:
                choice["stop_reason"] = finish["matched"]
            if finish["type"] == "abort":
                choice |= {"status_code": finish.get("status_code"), "abort_message": finish.get("message")}
        usage = {name: meta.get(name) for name in ("prompt_tokens", "completion_tokens", "reasoning_tokens")}
        return choice | {"usage": usage, "id": meta.get("id")}


def _sglang_logprobs(meta: Mapping[str, Any], known: int) -> list[_Token]:
    """Return an event's new tokens: the first ``known`` were told before, where it repeats them all."""
    own = meta["output_token_logprobs"]
    tops = meta.get("output_top_logprobs") or [None] * len(own)
    if len(own) >= _sglang_tokens(meta):
        own, tops = own[known:], tops[known:]
    return [
        (text, logprob, {text: logprob} | {other: value for value, _, other in top or ()})
        for (logprob, _, text), top in zip(own, tops, strict=True)
    ]


def _sglang_tokens(meta: Mapping[str, Any]) -> int:
    """Return the number of the answer's tokens so far; 0: not told."""
    tokens = meta.get("completion_tokens")
    return tokens if type(tokens) is int else 0


SGLANG = Native(
    "/generate",
    Bodies(_sglang_params),
    _write_sglang,
    _SglangReader,
    Generation(path="/completions", field=b"prompt", priority_sign=1),
)


# llama.cpp -----------------------------------------------------------------------------------------------------------

_LLAMACPP_SAME = frozenset(
    (
        "temperature", "top_p", "top_k", "min_p", "typical_p", "presence_penalty", "frequency_penalty",
        "repeat_penalty", "repeat_last_n", "stop", "seed", "ignore_eos", "grammar", "json_schema", "cache_prompt",
        "id_slot", "mirostat", "samplers", "n_predict", "n", "reasoning_budget_tokens", "reasoning_budget_start_tag",
        "reasoning_budget_end_tags", "reasoning_budget_message", "generation_prompt",
    )
)  # fmt: skip
_LLAMACPP_RENAMED = {"max_tokens": "n_predict", "repetition_penalty": "repeat_penalty"}
_LLAMACPP_AROUND = frozenset({"model", "logprobs", "return_token_ids", "echo", _BY_ID})
_LLAMACPP_REASONS = {"limit": "length", "eos": "stop", "word": "stop"}


def _llamacpp_params(fields: dict[str, Any]) -> dict[str, Any] | None:
    params = _translated(fields, _LLAMACPP_SAME, _LLAMACPP_RENAMED, _LLAMACPP_AROUND)
    if params is None or fields.get("echo"):
        return None
    params.setdefault("n_predict", _DEFAULT_MAX_TOKENS)
    if fields.get("logprobs") is not None:
        # 0 asks for none at all there, and for the chosen token's alone in OpenAI's API.
        params["n_probs"] = max(1, fields["logprobs"])
    if fields.get("return_token_ids"):
        params["return_tokens"] = True
    return params


def _llamacpp_openai(fields: dict[str, Any]) -> bytes | Failure:
    """Return the fields for ``/v1/completions``, whose default is endless as well."""
    if fields.get("echo"):
        return refuse("llamacpp", "does not echo prompts")
    return canonical({"max_tokens": _DEFAULT_MAX_TOKENS} | fields if "n_predict" not in fields else fields)


def _write_llamacpp(batch: Batch, params: dict[str, Any]) -> bytes:
    prompts = [request.prompt for request in batch.requests]
    prompt = prompts[0] if len(prompts) == 1 else b"[" + b",".join(prompts) + b"]"
    return b'{"prompt":%b,%b' % (prompt, canonical(params | {"stream": batch.streamed})[1:])


def _llamacpp_tokens(entries: list[dict[str, Any]], wanted: int, by_id: bool | None) -> list[_Token]:  # noqa: FBT001
    def named(entry: dict[str, Any]) -> str:
        return f"token_id:{entry['id']}" if by_id else entry["token"]

    return [
        (
            named(entry),
            entry["logprob"],
            {named(top): top["logprob"] for top in (entry.get("top_logprobs") or [])[:wanted]},
        )
        for entry in entries
    ]


class _LlamacppReader(_NativeReader):
    """Reads a reply of ``/completion``."""

    marks = "content"

    def __init__(self, batch: Batch) -> None:
        super().__init__(batch)
        self._writer = _LegacyLogprobs()

    def _choice(self, index: Any, item: Any) -> dict[str, Any]:
        choice: dict[str, Any] = {"text": item["content"], "token_ids": item.get("tokens")}
        if item["stop"]:
            # Neither the limit, nor the end, nor a stop string: the generation was interrupted.
            choice["finish_reason"] = _LLAMACPP_REASONS.get(item["stop_type"], "abort")
            choice["stop_reason"] = item.get("stopping_word") or None
        entries = item.get("completion_probabilities")
        if self._logprobs is not None and entries:
            choice["logprobs"] = self._writer.write(index, _llamacpp_tokens(entries, self._logprobs, self._by_id))
        counts = {"prompt_tokens": item.get("tokens_evaluated"), "completion_tokens": item.get("tokens_predicted")}
        return choice | {"usage": counts, "model": item.get("model")}


class _LlamacppOpenAIReader:
    """Reads a reply of llama.cpp's ``/v1/completions``."""

    counts_each = False
    tells_sums = False

    def __init__(self, batch: Batch) -> None:
        asked = _ASKED.of(batch.shape)
        self._logprobs: int | None = asked["logprobs"]
        self._by_id: bool | None = asked[_BY_ID]
        self._usage_is_whole = len(batch.requests) * batch.shape.weight == 1
        self._writer = _LegacyLogprobs()

    def reply(self, reply: Any) -> Any:
        """Read a plain reply."""
        return self.event(reply)

    def event(self, event: Any) -> Any:
        """Read an event, or a whole reply."""
        for choice in event.get("choices") or ():
            logprobs, index = choice.get("logprobs"), choice.get("index")
            if self._logprobs is not None and isinstance(logprobs, dict) and "content" in logprobs:
                try:
                    tokens = _llamacpp_tokens(logprobs["content"] or [], self._logprobs, self._by_id)
                    choice["logprobs"] = self._writer.write(index, tokens)
                except BAD_FORM:
                    choice.update(unreadable(index))
        if not self._usage_is_whole:
            event["usage"] = None
        return event


LLAMACPP = Native(
    "/completion",
    Bodies(_llamacpp_params),
    _write_llamacpp,
    _LlamacppReader,
    Generation(path="/completions", field=b"prompt", reader=_LlamacppOpenAIReader, bodies=Bodies(_llamacpp_openai)),
)
