"""trtllm-serve (TensorRT-LLM): OpenAI's ``/v1/completions``; every unknown field is refused.

Rules (``tensorrt_llm/serve/openai_server.py``, ``openai_protocol.py``,
``postprocess_handlers.py``):
- Lists of texts or ids; the usage is the sum. With ``include_usage`` a stream has a usage event per
  prompt, without the prompt's index.
- Every fault is a flat 400, the server's own as well.
- ``/v1/models`` has names only; ``/metrics`` is a JSON array, emptied by each reader.
"""

from __future__ import annotations

from functools import partial

from batchclient.simulator.chat import ChatWriter
from batchclient.simulator.guise import BUSY, Guise, Route
from batchclient.simulator.guise_parts import (
    OpenAIWriter,
    Parse,
    any_chat,
    empty_page,
    json_page,
    openai_models,
    read_object,
    restated,
    to_json,
)
from tests.guises.parts import OPENAI_FIELDS, any_model, flat_error
from batchclient.simulator.validation import CompletionCall, HttpError, Limits

__all__ = ["TRTLLM"]

_VERSION = "1.2.0"
_MORE_FIELDS = (
    "top_k top_p_min min_p repetition_penalty length_penalty early_stopping stop_token_ids"
    " include_stop_str_in_output ignore_eos min_tokens skip_special_tokens spaces_between_special_tokens"
    " truncate_prompt_tokens use_beam_search return_perf_metrics add_special_tokens response_format messages"
    " max_completion_tokens top_logprobs tools tool_choice detokenize disaggregated_params lora_request"
)
_FIELDS = OPENAI_FIELDS | frozenset(_MORE_FIELDS.split())
_STREAM_OPTIONS = frozenset(("include_usage", "continuous_usage_stats"))


def _words(_status: int, message: str) -> HttpError:
    return flat_error(400, message)


def _parse(body: bytes, limits: Limits, parse: Parse = any_model) -> CompletionCall:
    fields = read_object(body, _words)
    unknown: list[tuple[str, ...]] = [("body", name) for name in fields if name not in _FIELDS]
    unknown += [
        ("body", "stream_options", name) for name in fields.get("stream_options") or () if name not in _STREAM_OPTIONS
    ]
    if unknown:
        lines = [{"type": "extra_forbidden", "loc": loc, "msg": "Extra inputs are not permitted"} for loc in unknown]
        raise flat_error(400, str(lines))
    call = restated(parse, _words)(body, limits)
    call.continuous_usage = False
    return call


class _Writer(OpenAIWriter):
    def usage_event(self, completion_tokens: int) -> bytes:
        """Return a usage event per prompt; no event names its prompt."""
        call = self._call
        each = completion_tokens // len(call.prompts)
        events = [
            f'data: {self._head}],"usage":{to_json(self.usage(tokens, each))}}}\n\n' for tokens in call.prompt_tokens
        ]
        return "".join(events).encode()


TRTLLM = Guise(
    "trtllm",
    {
        "/v1/completions": Route(_parse, _Writer),
        "/v1/chat/completions": Route(partial(_parse, parse=any_chat), ChatWriter, "chatcmpl-"),
    },
    {
        ("GET", "/v1/models"): openai_models("tensorrt_llm"),
        ("GET", "/health"): empty_page,
        ("GET", "/health_generate"): empty_page,
        ("GET", "/version"): json_page(lambda _: {"version": _VERSION}),
        ("GET", "/server_info"): json_page(lambda _: {"disaggregated_params": {}}),
        ("GET", "/metrics"): json_page(lambda _: []),
    },
    busy=HttpError(503, flat_error(503, BUSY).body),
    version=_VERSION,
    owned_by=None,
    not_found=(404, b'{"detail":"Not Found"}'),
)
