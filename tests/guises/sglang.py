"""SGLang 0.5.23: its own ``/generate`` with lists and parameters per prompt, and OpenAI's
``/v1/completions``.

Rules (``sglang/srt``: ``managers/io_struct.py``, ``managers/tokenizer_manager.py``,
``entrypoints/http_server.py``, ``entrypoints/openai``):
- Each prompt has its own sampling parameters, checked one by one. A bad set refuses the list.
- A list's answers come as an array in the order of the prompts, each with ``meta_info``. A single
  prompt's answer is an object.
- A streamed text is cumulative, and so are the ids; only a list's events carry ``index``.
- Errors are ``{"error": {"message"}}`` on ``/generate`` and flat on ``/v1``.
- No model name is checked. There is no ``/version``; ``/server_info`` tells the version.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pydantic_core

from batchclient.simulator.chat import ChatWriter
from batchclient.simulator.exchange import JSON_HEADERS
from batchclient.simulator.guise import Guise, Route, Served
from batchclient.simulator.guise_parts import (
    OpenAIWriter,
    any_chat,
    check_prompts,
    empty_page,
    json_page,
    metrics_page,
    openai_models,
    read_object,
    restated,
    texts_of,
    to_json,
    token_ids,
)
from tests.guises.parts import BareRanks, any_embedding, any_model, any_rerank, flat_error
from batchclient.simulator.pooling import EmbeddingWriter
from batchclient.simulator.text import Generation, Prompt, token_id
from batchclient.simulator.validation import CompletionCall, HttpError, Limits, is_ids

__all__ = ["SGLANG"]

_VERSION = "0.5.23"
_NAMES = {"max_new_tokens": "max_tokens", "min_new_tokens": "min_tokens", "sampling_seed": "seed"}
"""By SGLang's name: OpenAI's name of the field."""
_DEFAULT_MAX_NEW_TOKENS = 128
_LOGPROB = -0.5


def _refusal(status: int, message: str) -> HttpError:
    return HttpError(status, pydantic_core.to_json({"error": {"message": message}}))


class _GenerateCall(CompletionCall):
    """A ``/generate`` request: every prompt has its own parameters."""

    __slots__ = ("is_list", "own", "top_logprobs", "wants_logprobs")

    def __init__(
        self, body: dict[str, Any], prompts: list[Prompt], own: list[dict[str, Any]], *, is_list: bool
    ) -> None:
        super().__init__(own[0] | {"stream": body.get("stream")}, prompts)
        self.is_list = is_list
        self.own = own
        self.wants_logprobs = bool(body.get("return_logprob"))
        self.top_logprobs = int(body.get("top_logprobs_num") or 0)

    def fields_of(self, prompt: int) -> dict[str, Any]:
        return self.own[prompt]

    def stops_of(self, prompt: int) -> list[str]:
        stop = self.own[prompt].get("stop") or []
        return [stop] if isinstance(stop, str) else stop


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


_RANGES: dict[str, tuple[Callable[[Any], bool], str]] = {
    "temperature": (lambda value: _is_number(value) and 0 <= value < math.inf, "a non-negative finite number"),
    "top_p": (lambda value: _is_number(value) and 0 < value <= 1, "in (0, 1]"),
    "min_p": (lambda value: _is_number(value) and 0 <= value <= 1, "in [0, 1]"),
    "top_k": (lambda value: type(value) is int and (value == -1 or value >= 1), "-1 (disable) or at least 1"),
    "frequency_penalty": (lambda value: _is_number(value) and -2 <= value <= 2, "in [-2, 2]"),
    "presence_penalty": (lambda value: _is_number(value) and -2 <= value <= 2, "in [-2, 2]"),
    "repetition_penalty": (lambda value: _is_number(value) and 0 < value <= 2, "in (0, 2] (1.0 = no penalty)"),
    "max_new_tokens": (lambda value: type(value) is int and value >= 0, "at least 0"),
    "min_new_tokens": (lambda value: type(value) is int and value >= 0, "in [0, max_new_tokens]"),
    "n": (lambda value: type(value) is int and value >= 1, "at least 1"),
    "sampling_seed": (lambda value: type(value) is int, "an integer"),
    "stop": (
        lambda value: (
            isinstance(value, str) or (isinstance(value, list) and all(isinstance(each, str) for each in value))
        ),
        "a string or a list of them",
    ),
    "logit_bias": (lambda value: isinstance(value, dict), "an object"),
}
"""By field: the check of ``SamplingParams.verify``, and its words."""
_TAKEN = (
    "stop_token_ids stop_regex json_schema regex ebnf structural_tag ignore_eos skip_special_tokens"
    " spaces_between_special_tokens no_stop_trim custom_params stream_interval"
)
_UNCHECKED = frozenset(_TAKEN.split())
_NO_RANGE: tuple[Callable[[Any], bool], str] = (lambda _: True, "")


def _verified(params: object) -> dict[str, Any]:
    """Return a prompt's sampling parameters, checked, in OpenAI's names."""
    if not isinstance(params, dict):
        raise _refusal(400, "sampling_params is an object, or a list of one per prompt")
    for name, value in params.items():
        if name not in _RANGES and name not in _UNCHECKED:
            raise _refusal(400, f"Unexpected keyword argument '{name}'")
        holds, words = _RANGES.get(name, _NO_RANGE)
        if value is not None and not holds(value):
            raise _refusal(400, f"{name} must be {words}, got {value}.")
    given: dict[str, Any] = params
    return {_NAMES.get(name, name): value for name, value in given.items() if value is not None}


def _parse_generate(body: bytes, limits: Limits) -> CompletionCall:
    fields = read_object(body, _refusal)
    text, ids = fields.get("text"), fields.get("input_ids")
    if (text is None) == (ids is None):
        raise _refusal(400, "Either text, input_ids or input_embeds should be provided.")
    item: Any = ids if text is None else text
    is_list = isinstance(item, list) and (text is not None or (bool(item) and isinstance(item[0], list)))
    prompts: list[Prompt] = item if is_list else [item]
    if not all(is_ids(each) if text is None else isinstance(each, str) for each in prompts):
        raise _refusal(400, "text is a text or a list of them, input_ids token ids or a list of those")
    given = fields.get("sampling_params") or {}
    each = given if isinstance(given, list) else [given] * len(prompts)
    if len(each) != len(prompts):
        raise _refusal(400, "The length of sampling_params should be equal to the batch size.")
    own = [_verified(params) for params in each]
    if len({params.get("n", 1) for params in own}) > 1:
        raise _refusal(400, "The parallel_sample_num should be the same for all samples in sample params.")
    if own[0].get("n", 1) != 1:
        # SGLang has parallel sampling, but the client must not use it: a list with it is prefilled
        # prompt by prompt.
        raise _refusal(400, "parallel sampling is not simulated")
    call = _GenerateCall(fields, prompts, own, is_list=is_list)
    longest = limits.max_model_len_tokens
    asked = [params.get("max_tokens", _DEFAULT_MAX_NEW_TOKENS) for params in own]
    check_prompts(
        call,
        asked,
        longest,
        lambda tokens: _refusal(
            400, f"The input ({tokens} tokens) is longer than the model's context length ({longest} tokens)."
        ),
    )
    for tokens, wanted in zip(call.prompt_tokens, asked, strict=True):
        if not tokens:
            raise _refusal(400, "The input is empty.")
        if tokens + wanted > longest:
            raise _refusal(
                400,
                f"Requested token count exceeds the model's maximum context length of {longest} tokens. You requested a"
                f" total of {tokens + wanted} tokens: {tokens} tokens from the input messages and {wanted} tokens for"
                " the completion.",
            )
    return call


class _GenerateWriter:
    """Writes replies of ``/generate``."""

    def __init__(self, call: CompletionCall, reply_id: str, created_s: int, model: str) -> None:
        assert isinstance(call, _GenerateCall)
        self._call = call
        self.reply_id = reply_id

    def choice(self, index: int, generation: Generation) -> str:
        return to_json(self._item(index, generation, generation.tokens))

    def body(self, choices: list[str], completion_tokens: int) -> bytes:
        if self._call.is_list or len(choices) != 1:
            return f"[{','.join(choices)}]".encode()
        return choices[0].encode()

    def event(self, index: int, generation: Generation, before: int, after: int) -> bytes:
        item = self._item(index, generation, after)
        if self._call.is_list:
            item["index"] = index
        return f"data: {to_json(item)}\n\n".encode()

    def usage_event(self, completion_tokens: int) -> bytes:
        return b""

    def _item(self, index: int, generation: Generation, after: int) -> dict[str, Any]:
        call = self._call
        finish: dict[str, Any] | None = None
        if after >= generation.tokens:
            finish = {"type": generation.finish_reason}
            if generation.finish_reason == "length":
                finish["length"] = generation.tokens
            elif generation.finish_reason == "abort":
                finish |= {"message": "Aborted", "status_code": 503}
            else:
                finish["matched"] = generation.stop_reason or 2
        own = generation.pieces()[:after]
        meta: dict[str, Any] = {
            "id": f"{self.reply_id}_{index}" if call.is_list else self.reply_id,
            "finish_reason": finish,
            "prompt_tokens": call.prompt_tokens[index],
            "weight_version": "default",
            "completion_tokens": len(own),
            "cached_tokens": 0,
        }
        if call.wants_logprobs:
            meta["output_token_logprobs"] = [[_LOGPROB, token_id(piece), piece] for piece in own]
            meta["output_top_logprobs"] = [
                [[_LOGPROB, token_id(piece), piece]]
                + [[_LOGPROB - k, 2 + k, f" alt{k}"] for k in range(1, call.top_logprobs)]
                for piece in own
            ]
        return {
            "text": generation.text_after(after),
            "output_ids": [token_id(piece) for piece in own],
            "meta_info": meta,
        }


class _CompletionsWriter(OpenAIWriter):
    """Writes ``/v1/completions``: ``matched_stop``, and usage per choice if asked for."""

    def piece(self, index: int, generation: Generation, before: int, after: int) -> dict[str, Any]:
        made = super().piece(index, generation, before, after)
        return made | {"matched_stop": generation.stop_reason if made["finish_reason"] else None}

    def event_tail(self, index: int, generation: Generation, after: int) -> str:
        call = self._call
        if not call.continuous_usage:
            return ""
        return f',"usage":{to_json(self.usage(call.prompt_tokens[index // call.n], after))}'


def _tokenize(_server: Served, body: bytes) -> tuple[int, tuple[tuple[str, str], ...], bytes]:
    texts, is_list = texts_of(body, "prompt", flat_error)
    tokens = [token_ids(text) for text in texts]
    reply = {
        "tokens": tokens if is_list else tokens[0],
        "count": [len(ids) for ids in tokens] if is_list else len(tokens[0]),
    }
    return 200, JSON_HEADERS, pydantic_core.to_json(reply)


def _server_info(server: Served) -> dict[str, object]:
    return {
        "model_path": server.model,
        "served_model_name": server.model,
        "context_length": server.limits.max_model_len_tokens,
        "max_running_requests": None,
        "max_queued_requests": server.profile.max_queued,
        "schedule_policy": "fcfs",
        "frontend": "python",
        "status": "ready",
        "max_total_num_tokens": server.profile.kv_tokens,
        "max_req_input_len": server.limits.max_model_len_tokens - 6,
        "internal_states": [{"effective_max_running_requests_per_dp": server.profile.max_num_seqs}],
        "version": _VERSION,
    }


def _loads(server: Served) -> dict[str, object]:
    engine = server.engine
    load = {
        "dp_rank": 0,
        "num_running_reqs": engine.running,
        "num_waiting_reqs": engine.waiting,
        "num_used_tokens": int(engine.kv_usage_ratio * server.profile.kv_tokens),
        "max_total_num_tokens": server.profile.kv_tokens,
        "max_running_requests": server.profile.max_num_seqs,
        "token_usage": engine.kv_usage_ratio,
    }
    return {"version": _VERSION, "dp_rank_count": 1, "loads": [load]}


def _metrics(server: Served) -> dict[str, float]:
    engine, labels = server.engine, f'{{engine_type="unified",model_name="{server.model}",pp_rank="0",tp_rank="0"}}'
    return {
        f"sglang:num_running_reqs{labels}": engine.running,
        f"sglang:num_queue_reqs{labels}": engine.waiting,
        f"sglang:num_used_tokens{labels}": int(engine.kv_usage_ratio * server.profile.kv_tokens),
        f"sglang:max_total_num_tokens{labels}": server.profile.kv_tokens,
        f"sglang:token_usage{labels}": engine.kv_usage_ratio,
        f"sglang:num_retracted_requests_total{labels}": engine.preemptions,
        f"sglang:prompt_tokens_total{labels}": engine.prompt_tokens,
        f"sglang:generation_tokens_total{labels}": engine.generation_tokens,
        f"sglang:cached_tokens_total{labels}": 0,
    }


SGLANG = Guise(
    "sglang",
    {
        "/generate": Route(_parse_generate, _GenerateWriter, id_prefix=""),
        "/v1/completions": Route(restated(any_model, flat_error), _CompletionsWriter, id_prefix=""),
        "/v1/chat/completions": Route(restated(any_chat, flat_error), ChatWriter, id_prefix=""),
        "/v1/embeddings": Route(restated(any_embedding, flat_error), EmbeddingWriter, id_prefix=""),
        "/v1/rerank": Route(restated(any_rerank, flat_error), BareRanks, id_prefix=""),
    },
    {
        ("GET", "/v1/models"): openai_models(
            "sglang",
            root=lambda server: server.model,
            parent=lambda _: None,
            max_model_len=lambda server: server.limits.max_model_len_tokens,
        ),
        ("GET", "/health"): empty_page,
        ("POST", "/v1/tokenize"): _tokenize,
        ("GET", "/server_info"): json_page(_server_info),
        ("GET", "/get_server_info"): json_page(_server_info),
        ("GET", "/model_info"): json_page(
            lambda server: {"model_path": server.model, "tokenizer_path": server.model, "is_generation": True}
        ),
        ("GET", "/v1/loads"): json_page(_loads),
        ("GET", "/metrics"): metrics_page(_metrics),
    },
    busy=_refusal(503, "The request queue is full."),
    version=_VERSION,
    owned_by=None,
    not_found=(404, b'{"detail":"Not Found"}'),
)
