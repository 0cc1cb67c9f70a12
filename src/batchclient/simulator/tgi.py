"""TGI 3.3 (Rust router): ``/v1/completions`` for one text or a few, and nothing of vLLM's.

Rules (``router/src/server.rs``, ``router/src/lib.rs``, ``router/src/validation.rs``):
- Texts only, four a request. ``n``, ``logprobs`` and ``echo`` are ignored like every unknown field.
- Without ``temperature`` TGI samples; ``top_p`` must be below 1. A prompt that does not fit into
  the model is refused, not cut.
- A plain reply's choices come in the order of completion. A text ends with its stop string.
- The last event of a prompt in a stream has the prompt's own usage; the others say
  ``finish_reason: ""``.
- ``model`` is ``"tgi"`` or an adapter's name. 429 at once above ``max_concurrent_requests``
  prompts.
"""

from __future__ import annotations

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
from batchclient.simulator.text import Generation
from batchclient.simulator.validation import CompletionCall, HttpError, Limits

__all__ = ["TGI"]

_VERSION = "3.3.6-dev0"
_MAX_CLIENT_BATCH_SIZE = 4
_MAX_CONCURRENT_REQUESTS = 128
_MAX_STOP_SEQUENCES = 4
_PAYLOAD_LIMIT = 2_000_000
_DEFAULT_MAX_TOKENS = 100
_HEEDED = ("max_tokens", "temperature", "top_p", "stream", "seed", "repetition_penalty", "frequency_penalty", "stop")


def _refusal(status: int, message: str, kind: str = "validation") -> HttpError:
    return HttpError(status, pydantic_core.to_json({"error": message, "error_type": kind}))


def _not_json(message: str) -> HttpError:
    return HttpError(422, f"Failed to deserialize the JSON body into the target type: {message}".encode())


def _parse(body: bytes, limits: Limits) -> CompletionCall:
    fields = read_object(body, lambda _status, message: _not_json(message))
    prompt = fields.get("prompt")
    prompts: list[Any] = prompt if isinstance(prompt, list) else [prompt]
    if not prompts:
        raise _not_json("prompt: Empty array detected. Do not use an empty array for the prompt.")
    if not all(isinstance(each, str) for each in prompts):
        raise _not_json("prompt: data did not match any variant of untagged enum PromptKind")
    if fields.get("suffix") is not None:
        raise _refusal(
            422, "Suffix is not supported and can be achieved by preprocessing the prompt.", "suffix not supported"
        )
    if len(prompts) > _MAX_CLIENT_BATCH_SIZE:
        message = f"Number of prompts exceeds the maximum allowed batch size of {_MAX_CLIENT_BATCH_SIZE}"
        raise _refusal(422, message, "batch size exceeded")
    _check(fields, prompts)
    heeded = {name: fields[name] for name in _HEEDED if fields.get(name) is not None}
    call = CompletionCall(heeded, prompts)
    asked = fields.get("max_tokens") or _DEFAULT_MAX_TOKENS
    longest = limits.max_model_len_tokens
    check_prompts(
        call,
        [asked] * len(prompts),
        longest,
        lambda tokens: _refusal(
            422, f"Input validation error: `inputs` must have less than {longest} tokens. Given: {tokens}"
        ),
    )
    for tokens in call.prompt_tokens:
        if tokens + asked > longest:
            raise _refusal(
                422,
                f"Input validation error: `inputs` tokens + `max_new_tokens` must be <= {longest}."
                f" Given: {tokens} `inputs` tokens and {asked} `max_new_tokens`",
            )
    return call


def _check(fields: dict[str, Any], prompts: list[Any]) -> None:
    top_p, temperature = fields.get("top_p"), fields.get("temperature")
    if top_p is not None and not 0 < top_p < 1:
        raise _refusal(422, "Input validation error: `top_p` must be > 0.0 and < 1.0")
    if temperature is not None and temperature < 0:
        raise _refusal(422, "Input validation error: `temperature` must be strictly positive")
    stop = fields.get("stop") or []
    if isinstance(stop, list) and len(stop) > _MAX_STOP_SEQUENCES:
        raise _refusal(
            422,
            f"Input validation error: `stop` supports up to {_MAX_STOP_SEQUENCES} stop sequences. Given: {len(stop)}",
        )
    if any(not prompt for prompt in prompts):
        raise _refusal(422, "Input validation error: `inputs` cannot be empty")
    model = fields.get("model")
    if model not in (None, "", "tgi"):
        raise _refusal(422, f"Input validation error: adapter {model} is not loaded")


class _Writer(OpenAIWriter):
    def piece(self, index: int, generation: Generation, before: int, after: int) -> dict[str, Any]:
        made = super().piece(index, generation, before, after)
        streamed = self._call.stream
        reason = {"stop": "eos_token" if streamed else "stop", None: ""}.get(
            made["finish_reason"], made["finish_reason"]
        )
        if generation.stop_reason is not None and made["finish_reason"] is not None:
            made["text"] += generation.stop_reason
            reason = "stop_sequence"
        return made | {"finish_reason": reason}

    def event_tail(self, index: int, generation: Generation, after: int) -> str:
        if after < generation.tokens:
            return ""
        return f',"usage":{to_json(self.usage(self._call.prompt_tokens[index], generation.tokens))}'


def _info(server: Served) -> dict[str, object]:
    longest = server.limits.max_model_len_tokens
    return {
        "model_id": server.model,
        "model_sha": None,
        "model_pipeline_tag": "text-generation",
        "max_concurrent_requests": server.most_outstanding,
        "max_best_of": 2,
        "max_stop_sequences": _MAX_STOP_SEQUENCES,
        "max_input_tokens": longest - 1,
        "max_total_tokens": longest,
        "validation_workers": 2,
        "max_client_batch_size": _MAX_CLIENT_BATCH_SIZE,
        "router": "text-generation-router",
        "version": _VERSION,
        "sha": None,
        "docker_label": None,
    }


def _chat_words(_status: int, message: str) -> HttpError:
    return _refusal(422, f"Input validation error: {message}")


def _tokenize(_server: Served, body: bytes) -> tuple[int, tuple[tuple[str, str], ...], bytes]:
    (text, *_), _ = texts_of(body, "inputs", _chat_words)
    return 200, JSON_HEADERS, pydantic_core.to_json([{"id": each, "text": ""} for each in token_ids(text)])


def _metrics(server: Served) -> dict[str, float]:
    engine = server.engine
    return {
        "tgi_queue_size": engine.waiting,
        "tgi_batch_current_size": engine.running,
        "tgi_batch_current_max_tokens": int(engine.kv_usage_ratio * server.profile.kv_tokens),
        "tgi_request_generated_tokens_sum": engine.generation_tokens,
    }


def _parse_stepwise(body: bytes, limits: Limits) -> CompletionCall:
    call = _parse(body, limits)
    # TGI knows no ``stream_interval``: an event per token.
    call.stream_interval = 1
    return call


TGI = Guise(
    "tgi",
    {
        "/v1/completions": Route(_parse_stepwise, _Writer, id_prefix="", in_completion_order=True),
        "/v1/chat/completions": Route(restated(any_chat, _chat_words), ChatWriter, id_prefix=""),
    },
    {
        ("GET", "/info"): json_page(_info),
        ("GET", "/health"): empty_page,
        ("GET", "/ping"): empty_page,
        ("POST", "/tokenize"): _tokenize,
        ("GET", "/v1/models"): lambda server, body: openai_models(server.model)(server, body),
        ("GET", "/metrics"): metrics_page(_metrics),
    },
    max_body_bytes=_PAYLOAD_LIMIT,
    too_large=_refusal(413, "Failed to buffer the request body: length limit exceeded", "payload too large").body,
    busy=_refusal(429, "Model is overloaded", "overloaded"),
    version=_VERSION,
    owned_by=None,
    max_concurrent=_MAX_CONCURRENT_REQUESTS,
    not_found=(404, b""),
)
