"""trtllm-serve (TensorRT-LLM): OpenAI's ``/v1/completions``; every unknown field is refused.

Rules (``tensorrt_llm/serve/openai_server.py``, ``openai_protocol.py``,
``postprocess_handlers.py``):
- Lists of texts or ids; the usage is the sum. With ``include_usage`` a stream has a usage event per
  prompt, without the prompt's index.
- Every fault is a flat 400, the server's own as well.
- ``/v1/models`` has names only; ``/metrics`` is a JSON array, emptied by each reader.
"""

from __future__ import annotations

from typing import Any

from pydantic import ConfigDict

from batchclient.simulator.guise import Guise, Reply, Route
from batchclient.simulator.replies import ChatWriter, OpenAIWriter, usage
from batchclient.simulator.requests import Body, Call, ChatRequest, CompletionRequest, HttpError, Limits
from tests.guises.parts import OPENAI_FIELDS, empty, flat_words, json_handler, openai_models, unknown_fields

__all__ = ["TRTLLM"]

_VERSION = "1.2.0"
_BUSY = (
    "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."
)
_MORE_FIELDS = (
    "top_k top_p_min min_p repetition_penalty length_penalty early_stopping stop_token_ids"
    " include_stop_str_in_output ignore_eos min_tokens skip_special_tokens spaces_between_special_tokens"
    " truncate_prompt_tokens use_beam_search return_perf_metrics add_special_tokens response_format messages"
    " max_completion_tokens top_logprobs tools tool_choice detokenize disaggregated_params lora_request"
)
_FIELDS = OPENAI_FIELDS | frozenset(_MORE_FIELDS.split())


def _words(error: HttpError) -> Reply:
    if error.message:
        return flat_words(HttpError(400, error.message))
    return flat_words(HttpError(error.status, _BUSY if error.status == 503 else ""))


def _refuse_unknown(body: Body) -> None:
    unknown = unknown_fields(body, _FIELDS)
    if unknown:
        lines = [
            {"type": "extra_forbidden", "loc": ("body", name), "msg": "Extra inputs are not permitted"}
            for name in unknown
        ]
        raise HttpError(400, str(lines))


class _Completion(CompletionRequest):
    model_config = ConfigDict(extra="allow")

    def call(self, limits: Limits) -> Call:
        _refuse_unknown(self)
        call = super().call(limits)
        call.continuous_usage = False
        return call


class _Chat(ChatRequest):
    model_config = ConfigDict(extra="allow")

    def call(self, limits: Limits) -> Call:
        _refuse_unknown(self)
        call = super().call(limits)
        call.continuous_usage = False
        return call


class _Writer(OpenAIWriter):
    def usage_events(self, completion_tokens: int) -> list[dict[str, Any]]:
        """Return a usage event per prompt; no event names its prompt."""
        each = completion_tokens // len(self.call.prompts)
        return [{"choices": [], "usage": usage(tokens, each)} for tokens in self.call.prompt_tokens]


TRTLLM = Guise(
    "trtllm",
    {
        "/v1/completions": Route(_Completion, _Writer),
        "/v1/chat/completions": Route(_Chat, ChatWriter, "chatcmpl-"),
    },
    _words,
    {
        ("GET", "/v1/models"): openai_models("tensorrt_llm"),
        ("GET", "/health"): empty,
        ("GET", "/health_generate"): empty,
        ("GET", "/version"): json_handler(lambda _: {"version": _VERSION}),
        ("GET", "/server_info"): json_handler(lambda _: {"disaggregated_params": {}}),
        ("GET", "/metrics"): json_handler(lambda _: []),
    },
    any_model=True,
)
