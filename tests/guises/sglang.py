"""SGLang 0.5.23: its own ``/generate`` with lists and parameters per prompt, and OpenAI's
``/v1/completions``.

Rules (``sglang/srt``: ``managers/io_struct.py``, ``managers/tokenizer_manager.py``,
``entrypoints/http_server.py``, ``entrypoints/openai``):
- Each prompt has its own sampling parameters, checked one by one. A bad set refuses the list.
- A list's answers come as an array in the order of the prompts, each with ``meta_info``. A single
  prompt's answer is an object.
- A streamed text is cumulative, and so are the ids; only a list's events carry ``index``.
- Errors are ``{"error": {"message"}}`` on ``/generate`` and flat on ``/v1``.
- Thinking is held to ``custom_params.thinking_budget`` in chats alone, with ``--enable-strict-thinking``.
  A ``<think>`` that the model writes counts, too.
- No model name is checked. There is no ``/version``; ``/server_info`` tells the version.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import ConfigDict, Field

from batchclient.simulator.guise import Guise, Reply, Route, ServerView, json_reply
from batchclient.simulator.replies import ChatWriter, EmbeddingWriter, OpenAIWriter, Writer
from batchclient.simulator.requests import (
    Body,
    Call,
    ChatRequest,
    CompletionRequest,
    EmbeddingRequest,
    HttpError,
    Limits,
    RankRequest,
    Sampling,
    read,
)
from batchclient.simulator.text import Generation, Prompt, token_id, token_ids
from tests.guises.parts import (
    BareRanks,
    empty,
    fitted,
    flat_words,
    json_handler,
    metrics_handler,
    openai_models,
)

__all__ = ["SGLANG"]

_VERSION = "0.5.23"
_DEFAULT_MAX_NEW_TOKENS = 128
_LOGPROB = -0.5


def _words(error: HttpError) -> Reply:
    usual = "The request queue is full." if error.status == 503 else "The request failed by order."
    return json_reply({"error": {"message": error.message or usual}}, error.status)


def _flat(error: HttpError) -> Reply:
    return _words(error) if error.status == 503 else flat_words(error)


_Penalty = Annotated[float, Field(ge=-2, le=2)] | None
_Count = Annotated[int, Field(ge=0)] | None


class _Params(Sampling):
    """A prompt's sampling parameters, with the ranges of ``SamplingParams.verify``."""

    model_config = ConfigDict(extra="forbid")

    n: Annotated[int, Field(ge=1)] | None = None
    max_tokens: Annotated[_Count, Field(alias="max_new_tokens")] = None
    min_tokens: Annotated[_Count, Field(alias="min_new_tokens")] = None
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    frequency_penalty: _Penalty = None
    presence_penalty: _Penalty = None
    repetition_penalty: Annotated[float, Field(gt=0, le=2)] | None = None
    seed: Annotated[int | None, Field(alias="sampling_seed")] = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    stop_regex: str | list[str] | None = None
    json_schema: str | None = None
    regex: str | None = None
    ebnf: str | None = None
    structural_tag: str | None = None
    skip_special_tokens: bool | None = None
    spaces_between_special_tokens: bool | None = None
    no_stop_trim: bool | None = None
    custom_params: dict[str, Any] | None = None
    thinking_token_budget: None = None

    def thinking_budget(self, limits: Limits) -> None:
        """No budget is heeded."""


class _GenerateCall(Call):
    """A ``/generate`` request: every prompt has its own parameters."""

    own: list[_Params]

    def sampling_of(self, prompt: int) -> Sampling:
        return self.own[prompt]


class _Generate(Body):
    text: str | list[str] | None = None
    input_ids: list[int] | list[list[int]] | None = None
    sampling_params: _Params | list[_Params] | None = None
    stream: bool | None = None
    return_logprob: bool | None = None
    top_logprobs_num: int | None = None

    @property
    def is_list(self) -> bool:
        """Whether the answers are an array."""
        item: Any = self.input_ids if self.text is None else self.text
        return isinstance(item, list) and (self.text is not None or (bool(item) and isinstance(item[0], list)))

    def call(self, limits: Limits) -> Call:
        if (self.text is None) == (self.input_ids is None):
            raise HttpError(400, "Either text, input_ids or input_embeds should be provided.")
        item: Any = self.input_ids if self.text is None else self.text
        prompts: list[Prompt] = item if self.is_list else [item]
        given = self.sampling_params or _Params()
        own = given if isinstance(given, list) else [given] * len(prompts)
        if len(own) != len(prompts):
            raise HttpError(400, "The length of sampling_params should be equal to the batch size.")
        if len({params.n or 1 for params in own}) > 1:
            message = "The parallel_sample_num should be the same for all samples in sample params."
            raise HttpError(400, message)
        if not own or (own[0].n or 1) != 1:
            # SGLang has parallel sampling, but the client must not use it: a list with it is
            # prefilled prompt by prompt.
            raise HttpError(400, "parallel sampling is not simulated")
        asked = [_DEFAULT_MAX_NEW_TOKENS if params.max_tokens is None else params.max_tokens for params in own]
        longest = limits.max_model_len_tokens

        def words(tokens: int) -> str:
            return f"The input ({tokens} tokens) is longer than the model's context length ({longest} tokens)."

        sampling = own[0].model_copy(update={"stream": self.stream})
        call = fitted(self, prompts, asked, longest, words, sampling, _GenerateCall)
        assert isinstance(call, _GenerateCall)
        call.own = own
        for tokens, wanted in zip(call.prompt_tokens, asked, strict=True):
            if not tokens:
                raise HttpError(400, "The input is empty.")
            if tokens + wanted > longest:
                raise HttpError(
                    400,
                    f"Requested token count exceeds the model's maximum context length of {longest} tokens. You requested"
                    f" a total of {tokens + wanted} tokens: {tokens} tokens from the input messages and {wanted} tokens"
                    " for the completion.",
                )
        return call


class _Completion(CompletionRequest):
    def thinking_budget(self, limits: Limits) -> None:
        """No budget is heeded."""


class _Chat(ChatRequest):
    custom_params: dict[str, Any] | None = None

    def thinking_budget(self, limits: Limits) -> int | None:
        budget = (self.custom_params or {}).get("thinking_budget")
        return max(0, budget - 1) if type(budget) is int and limits.reasoning_parser else None


class _ChatWriter(ChatWriter):
    REASONING = "reasoning_content"

    def reasoning_usage(self, tokens: int) -> dict[str, Any]:
        return {"reasoning_tokens": tokens}


class _GenerateWriter(Writer):
    """Writes replies of ``/generate``."""

    def choice(self, index: int, generation: Generation) -> dict[str, Any]:
        return self._item(index, generation, generation.tokens)

    def body(self, choices: list[dict[str, Any]], completion_tokens: int) -> object:
        return choices if self._request.is_list or len(choices) != 1 else choices[0]

    def events(self, index: int, generation: Generation, before: int, after: int) -> list[dict[str, Any]]:
        item = self._item(index, generation, after)
        return [item | {"index": index} if self._request.is_list else item]

    @property
    def _request(self) -> _Generate:
        assert isinstance(self.call.request, _Generate)
        return self.call.request

    def _item(self, index: int, generation: Generation, after: int) -> dict[str, Any]:
        request = self._request
        finish: dict[str, Any] | None = None
        if after >= generation.tokens:
            finish = {"type": generation.finish_reason}
            if generation.finish_reason == "length":
                finish["length"] = generation.tokens
            elif generation.finish_reason == "abort":
                finish |= {"message": "Aborted", "status_code": 503}
            else:
                finish["matched"] = generation.stop_reason or 2
        own = generation.pieces[:after]
        meta: dict[str, Any] = {
            "id": f"{self.reply_id}_{index}" if request.is_list else self.reply_id,
            "finish_reason": finish,
            "prompt_tokens": self.call.prompt_tokens[index],
            "weight_version": "default",
            "completion_tokens": len(own),
            "cached_tokens": 0,
        }
        if request.return_logprob:
            others = [[_LOGPROB - k, 2 + k, f" alt{k}"] for k in range(1, request.top_logprobs_num or 0)]
            logprobs = [[_LOGPROB, token_id(piece), piece] for piece in own]
            meta["output_token_logprobs"] = logprobs
            meta["output_top_logprobs"] = [[each, *others] for each in logprobs]
        return {
            "text": generation.text_between(0, after),
            "output_ids": [token_id(piece) for piece in own],
            "meta_info": meta,
        }


class _CompletionsWriter(OpenAIWriter):
    """Writes ``/v1/completions``: ``matched_stop``, and usage per choice if asked for."""

    def piece(self, index: int, generation: Generation, before: int, after: int) -> dict[str, Any]:
        made = super().piece(index, generation, before, after)
        return made | {"matched_stop": generation.stop_reason if made["finish_reason"] else None}

    def events(self, index: int, generation: Generation, before: int, after: int) -> list[dict[str, Any]]:
        (event,) = super().events(index, generation, before, after)
        return [event | {"usage": self.own_usage(index, after)} if self.call.continuous_usage else event]


class _Tokenize(Body):
    prompt: str | list[str]


def _tokenize(server: ServerView, body: bytes) -> Reply:
    given = read(_Tokenize, body, server.limits).prompt
    if isinstance(given, str):
        return json_reply({"tokens": token_ids(given), "count": len(token_ids(given))})
    tokens = [token_ids(text) for text in given]
    return json_reply({"tokens": tokens, "count": [len(ids) for ids in tokens]})


def _server_info(server: ServerView) -> dict[str, object]:
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
        "reasoning_parser": "qwen3" if server.limits.reasoning_parser else None,
        "enable_strict_thinking": server.limits.reasoning_parser,
        "internal_states": [{"effective_max_running_requests_per_dp": server.profile.max_num_seqs}],
        "version": _VERSION,
    }


def _loads(server: ServerView) -> dict[str, object]:
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


def _metrics(server: ServerView) -> dict[str, float]:
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
        "/generate": Route(_Generate, _GenerateWriter, id_prefix="", words=_words),
        "/v1/completions": Route(_Completion, _CompletionsWriter, id_prefix=""),
        "/v1/chat/completions": Route(_Chat, _ChatWriter, id_prefix=""),
        "/v1/embeddings": Route(EmbeddingRequest, EmbeddingWriter, id_prefix=""),
        "/v1/rerank": Route(RankRequest, BareRanks, id_prefix=""),
    },
    _flat,
    {
        ("GET", "/v1/models"): openai_models(
            "sglang",
            root=lambda server: server.model,
            parent=lambda _: None,
            max_model_len=lambda server: server.limits.max_model_len_tokens,
        ),
        ("GET", "/health"): empty,
        ("POST", "/v1/tokenize"): _tokenize,
        ("GET", "/server_info"): json_handler(_server_info),
        ("GET", "/get_server_info"): json_handler(_server_info),
        ("GET", "/model_info"): json_handler(
            lambda server: {"model_path": server.model, "tokenizer_path": server.model, "is_generation": True}
        ),
        ("GET", "/v1/loads"): json_handler(_loads),
        ("GET", "/metrics"): metrics_handler(_metrics),
    },
    any_model=True,
)
