"""TGI 3.3 (Rust router): ``/v1/completions`` for one text or a few, and nothing of vLLM's.

Rules (``router/src/server.rs``, ``router/src/lib.rs``, ``router/src/validation.rs``):
- Texts only, four a request. ``n``, ``logprobs`` and ``echo`` are ignored like every unknown field.
- Without ``temperature`` TGI samples; ``top_p`` must be below 1. A prompt that does not fit into
  the model is refused, not cut.
- A plain reply's choices come in the order of completion. A text ends with its stop string.
- The last event of a prompt in a stream has the prompt's own usage; the others say
  ``finish_reason: ""``. There is an event per token.
- ``model`` is ``"tgi"`` or an adapter's name. 429 at once above ``max_concurrent_requests``
  prompts.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from batchclient.simulator.guise import Guise, Reply, Route, ServerView, json_reply, metrics_reply
from batchclient.simulator.replies import ChatWriter, OpenAIWriter
from batchclient.simulator.requests import Body, Call, ChatRequest, HttpError, Limits, Sampling, Texts, read
from batchclient.simulator.text import Generation, count_tokens, token_ids

__all__ = ["TGI"]

_VERSION = "3.3.6-dev0"
_MAX_CLIENT_BATCH_SIZE = 4
_MAX_CONCURRENT_REQUESTS = 128
_MAX_STOP_SEQUENCES = 4
_PAYLOAD_LIMIT = 2_000_000
_DEFAULT_MAX_TOKENS = 100
_USUAL = {
    413: ("Failed to buffer the request body: length limit exceeded", "payload too large"),
    422: ("The request failed by order.", "validation"),
    429: ("Model is overloaded", "overloaded"),
}


def _words(error: HttpError) -> Reply:
    """Write a refusal as TGI does: what is no JSON, or has a field of a wrong type, gets a text."""
    if error.kind == "Bad Request":
        text = f"Failed to deserialize the JSON body into the target type: {error.message}"
        return Reply(422, (("content-type", "text/plain; charset=utf-8"),), text.encode())
    status = 422 if error.status == 400 else error.status
    usual, kind = _USUAL.get(status, ("Request failed during generation: it failed by order.", "generation"))
    return json_reply({"error": error.message or usual, "error_type": error.kind or kind}, status)


class _CompletionRequest(Body):
    prompt: Annotated[Texts, Field(min_length=1)]
    suffix: str | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    stream: bool | None = None
    seed: int | None = None
    repetition_penalty: float | None = None
    frequency_penalty: float | None = None
    stop: Texts | None = None

    def call(self, limits: Limits) -> Call:
        """See ``Body.call``."""
        if self.suffix is not None:
            message = "Suffix is not supported and can be achieved by preprocessing the prompt."
            raise HttpError(422, message, kind="suffix not supported")
        if len(self.prompt) > _MAX_CLIENT_BATCH_SIZE:
            message = f"Number of prompts exceeds the maximum allowed batch size of {_MAX_CLIENT_BATCH_SIZE}"
            raise HttpError(422, message, kind="batch size exceeded")
        asked = self.max_tokens or _DEFAULT_MAX_TOKENS
        tokens = [count_tokens(prompt) for prompt in self.prompt]
        problem = self._problem(tokens, asked, limits.max_model_len_tokens)
        if problem is not None:
            raise HttpError(422, f"Input validation error: {problem}")
        heeded = {name: value for name, value in self if name in Sampling.model_fields}
        return Call(self, [*self.prompt], tokens, [asked] * len(tokens), Sampling(**heeded))

    def _problem(self, tokens: list[int], asked: int, longest: int) -> str | None:
        """Return what TGI would say to be wrong."""
        if self.top_p is not None and not 0 < self.top_p < 1:
            return "`top_p` must be > 0.0 and < 1.0"
        if self.temperature is not None and self.temperature < 0:
            return "`temperature` must be strictly positive"
        if len(self.stop or ()) > _MAX_STOP_SEQUENCES:
            return f"`stop` supports up to {_MAX_STOP_SEQUENCES} stop sequences. Given: {len(self.stop or ())}"
        if not all(self.prompt):
            return "`inputs` cannot be empty"
        if self.model not in (None, "", "tgi"):
            return f"adapter {self.model} is not loaded"
        if max(tokens) >= longest:
            return f"`inputs` must have less than {longest} tokens. Given: {max(tokens)}"
        if max(tokens) + asked > longest:
            given = f"Given: {max(tokens)} `inputs` tokens and {asked} `max_new_tokens`"
            return f"`inputs` tokens + `max_new_tokens` must be <= {longest}. {given}"
        return None


class _ChatRequest(ChatRequest):
    def thinking_budget(self, limits: Limits) -> None:
        """Heed none."""


class _TokenizeRequest(Body):
    inputs: str


class _Writer(OpenAIWriter):
    def piece(self, index: int, generation: Generation, before: int, after: int) -> dict[str, Any]:
        made = super().piece(index, generation, before, after)
        ends = made["finish_reason"] is not None
        if ends and generation.stop_reason is not None:
            return made | {"text": made["text"] + generation.stop_reason, "finish_reason": "stop_sequence"}
        eos = "eos_token" if self.call.stream else "stop"
        return made | {"finish_reason": {"stop": eos, None: ""}.get(made["finish_reason"], made["finish_reason"])}

    def events(self, index: int, generation: Generation, before: int, after: int) -> list[dict[str, Any]]:
        (event,) = super().events(index, generation, before, after)
        return [event | {"usage": self.own_usage(index, after)} if after >= generation.tokens else event]


def _info(server: ServerView, _body: bytes) -> Reply:
    longest = server.limits.max_model_len_tokens
    return json_reply(
        {
            "model_id": server.model,
            "model_pipeline_tag": "text-generation",
            "max_concurrent_requests": server.most_outstanding,
            "max_stop_sequences": _MAX_STOP_SEQUENCES,
            "max_input_tokens": longest - 1,
            "max_total_tokens": longest,
            "max_client_batch_size": _MAX_CLIENT_BATCH_SIZE,
            "router": "text-generation-router",
            "version": _VERSION,
        }
    )


def _models(server: ServerView, _body: bytes) -> Reply:
    model = {"id": server.model, "object": "model", "created": 0, "owned_by": server.model}
    return json_reply({"object": "list", "data": [model]})


def _tokenize(server: ServerView, body: bytes) -> Reply:
    text = read(_TokenizeRequest, body, server.limits).inputs
    return json_reply([{"id": each, "text": ""} for each in token_ids(text)])


def _metrics(server: ServerView, _body: bytes) -> Reply:
    engine = server.engine
    return metrics_reply(
        {
            "tgi_queue_size": engine.waiting,
            "tgi_batch_current_size": engine.running,
            "tgi_batch_current_max_tokens": int(engine.kv_usage_ratio * server.profile.kv_tokens),
            "tgi_request_generated_tokens_sum": engine.generation_tokens,
        }
    )


TGI = Guise(
    "tgi",
    {
        "/v1/completions": Route(_CompletionRequest, _Writer, id_prefix="", in_completion_order=True),
        "/v1/chat/completions": Route(_ChatRequest, ChatWriter, id_prefix=""),
    },
    _words,
    {
        ("GET", "/info"): _info,
        ("GET", "/health"): lambda _server, _body: Reply(200),
        ("GET", "/ping"): lambda _server, _body: Reply(200),
        ("POST", "/tokenize"): _tokenize,
        ("GET", "/v1/models"): _models,
        ("GET", "/metrics"): _metrics,
    },
    not_found=b"",
    wrong_method=b"",
    any_model=True,
    busy=429,
    max_concurrent=_MAX_CONCURRENT_REQUESTS,
    max_body_bytes=_PAYLOAD_LIMIT,
)
