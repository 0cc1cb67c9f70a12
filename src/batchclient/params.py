"""The parameters of calls: names and types, one ``TypedDict`` per kind of call.

Type checkers and editors read these classes from the signatures (``**params: Unpack[…]``). At run
time their keys are the names that a call takes: any other name is refused, and the error has the
nearest one. ``extra_body`` carries a field that no class here has.

Each class lists its fields by the servers that read them; a server ignores most fields that it does
not know. Every field may be ``None``, which the servers read as absent.

Sources: OpenAI's API reference; vLLM 0.32 ``entrypoints/openai/*/protocol.py``,
``entrypoints/pooling/*/protocol.py`` and ``serve/tokenize/protocol.py``, with the older names
there; SGLang 0.5.23 ``srt/entrypoints/openai/protocol.py``; TGI 3.3 ``router/src/lib.rs``; TEI 1.9
``router/src/http/types.rs``; llama.cpp ``tools/server/README.md``; TensorRT-LLM
``serve/openai_protocol.py``; the API references of Infinity, Cohere, Jina and NVIDIA NIM, whose
forms gateways have.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, TypedDict

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from pydantic import BaseModel

    from batchclient._maps.repair import Repair
    from batchclient.journal import HeldJournal, Journal
    from batchclient.types import MapProgress

__all__ = [
    "ChatMapParams",
    "ChatParams",
    "ChatStreamParams",
    "ClassificationMapParams",
    "ClassificationParams",
    "CompletionMapParams",
    "CompletionParams",
    "CompletionStreamParams",
    "EmbeddingMapParams",
    "EmbeddingParams",
    "LikelihoodParams",
    "ScoreParams",
    "StructuredOutputs",
    "TokenizeParams",
]


class StructuredOutputs(TypedDict, total=False):
    """The form that vLLM gives an answer (``structured_outputs``); exactly one of the first six.

    - ``json``: a JSON schema, as an object or a text.
    - ``regex``: a regular expression.
    - ``choice``: the texts to choose from.
    - ``grammar``: a grammar in EBNF.
    - ``json_object``: any JSON object.
    - ``structural_tag``: a structural tag, as JSON text.
    - ``whitespace_pattern``, ``disable_any_whitespace``, ``disable_additional_properties``:
      options.
    """

    json: str | Mapping[str, Any] | None
    regex: str | None
    choice: Sequence[str] | None
    grammar: str | None
    json_object: bool | None
    structural_tag: str | None
    whitespace_pattern: str | None
    disable_any_whitespace: bool
    disable_additional_properties: bool


class _Common(TypedDict, total=False):
    """The parameters of every call.

    - ``extra_body``: fields that no class here has. Such fields join the body as they are, and the
      coalescing key.
    - ``user``, ``metadata``, ``request_id`` (OpenAI, vLLM): labels of the caller's. A shared
      request has no label; a call that goes alone has its own.
    - ``cache_salt`` (vLLM, SGLang): keeps the call's prefix cache apart from the cache of other
      salts.
    """

    extra_body: Mapping[str, Any] | None
    user: str | None
    metadata: Mapping[str, Any] | None
    request_id: str | None
    cache_salt: str | None


class _Sampling(_Common, total=False):
    """The parameters of completions, chats and likelihoods alike.

    - All servers: ``temperature``, ``top_p``, ``seed``, ``stop``, ``frequency_penalty``.
    - OpenAI, vLLM, SGLang, llama.cpp, trtllm-serve: ``presence_penalty``, ``logit_bias``,
      ``response_format``; ``service_tier`` (OpenAI).
    - vLLM, SGLang, llama.cpp, trtllm-serve: ``top_k``, ``min_p``, ``ignore_eos``.
    - vLLM, SGLang, trtllm-serve: ``stop_token_ids``, ``skip_special_tokens``, ``min_tokens``.
    - vLLM, SGLang, TGI, trtllm-serve: ``repetition_penalty`` (llama.cpp: ``repeat_penalty``).
    - vLLM, trtllm-serve: ``use_beam_search``, ``length_penalty``, ``include_stop_str_in_output``,
      ``spaces_between_special_tokens``, ``truncate_prompt_tokens``; ``truncation_side`` (vLLM).
    - vLLM: ``structured_outputs``; in versions before 0.12 ``guided_json``, ``guided_regex``,
      ``guided_choice``, ``guided_grammar``, ``guided_decoding_backend``,
      ``guided_whitespace_pattern``, ``logits_processors``.
    - vLLM: ``allowed_token_ids``, ``bad_words``, ``logprob_token_ids``, ``mm_payload``,
      ``repetition_detection``, ``return_mm_kwargs``, ``return_token_offsets``,
      ``routed_experts_prompt_start``, ``thinking_token_budget``, ``vllm_xargs``, ``watermarking``;
      ``kv_transfer_params`` and ``ec_transfer_params``, with which a call goes alone.
    - vLLM, SGLang: ``return_token_ids``, ``session_id``, ``add_special_tokens`` (vLLM,
      trtllm-serve).
    - SGLang: ``regex``, ``ebnf``, ``json_schema``, ``stop_regex``, ``no_stop_trim``, ``lora_path``,
      ``rid``, ``extra_key``, ``routing_key``, ``session_params``, ``custom_params``,
      ``custom_logit_processor``, ``custom_labels``, ``return_hidden_states``,
      ``return_routed_experts``, ``return_cached_tokens_details``, ``routed_dp_rank``,
      ``data_parallel_rank``.
    - TGI: ``adapter_id``.
    - llama.cpp: ``repeat_penalty``, ``repeat_last_n``, ``typical_p``, ``tfs_z``, ``top_a``,
      ``dynatemp_range``, ``dynatemp_exponent``, ``xtc_probability``, ``xtc_threshold``,
      ``dry_multiplier``, ``dry_base``, ``dry_allowed_length``, ``dry_penalty_last_n``,
      ``dry_sequence_breakers``, ``mirostat``, ``mirostat_tau``, ``mirostat_eta``, ``samplers``,
      ``min_keep``, ``grammar``, ``json_schema``, ``cache_prompt``, ``id_slot``, ``lora``,
      ``t_max_predict_ms``, ``timings_per_token``, ``post_sampling_probs``, ``return_tokens``.
    - trtllm-serve: ``top_p_min``, ``early_stopping``, ``detokenize``, ``lora_request``,
      ``disaggregated_params``, ``return_context_logits``.
    """

    temperature: float | None
    top_p: float | None
    top_k: int | None
    min_p: float | None
    seed: int | None
    stop: str | Sequence[str] | None
    frequency_penalty: float | None
    presence_penalty: float | None
    repetition_penalty: float | None
    logit_bias: Mapping[str, float] | Mapping[int, float] | None
    response_format: Mapping[str, Any] | None
    service_tier: Literal["auto", "default", "flex", "scale", "priority"] | None
    ignore_eos: bool | None
    min_tokens: int | None
    stop_token_ids: Sequence[int] | None
    skip_special_tokens: bool | None
    spaces_between_special_tokens: bool | None
    include_stop_str_in_output: bool | None
    use_beam_search: bool | None
    length_penalty: float | None
    truncate_prompt_tokens: int | None
    truncation_side: Literal["left", "right"] | None
    add_special_tokens: bool | None
    structured_outputs: StructuredOutputs | None
    guided_json: str | Mapping[str, Any] | None
    guided_regex: str | None
    guided_choice: Sequence[str] | None
    guided_grammar: str | None
    guided_decoding_backend: str | None
    guided_whitespace_pattern: str | None
    allowed_token_ids: Sequence[int] | None
    bad_words: Sequence[str] | None
    logits_processors: Sequence[Any] | None
    logprob_token_ids: Sequence[int] | None
    repetition_detection: Mapping[str, int] | None
    mm_payload: str | None
    return_mm_kwargs: bool | None
    return_token_offsets: bool | None
    routed_experts_prompt_start: int | None
    thinking_token_budget: int | None
    vllm_xargs: Mapping[str, Any] | None
    watermarking: bool | None
    kv_transfer_params: Mapping[str, Any] | None
    ec_transfer_params: Mapping[str, Any] | None
    return_token_ids: bool | None
    session_id: str | None
    regex: str | None
    ebnf: str | None
    json_schema: str | Mapping[str, Any] | None
    stop_regex: str | Sequence[str] | None
    no_stop_trim: bool | None
    lora_path: str | None
    rid: str | None
    extra_key: str | None
    routing_key: str | None
    session_params: Mapping[str, Any] | None
    custom_params: Mapping[str, Any] | None
    custom_logit_processor: str | None
    custom_labels: Mapping[str, str] | None
    return_hidden_states: bool | Literal["last"] | None
    return_routed_experts: bool | None
    return_cached_tokens_details: bool | None
    routed_dp_rank: int | None
    data_parallel_rank: int | None
    adapter_id: str | None
    repeat_penalty: float | None
    repeat_last_n: int | None
    typical_p: float | None
    tfs_z: float | None
    top_a: float | None
    dynatemp_range: float | None
    dynatemp_exponent: float | None
    xtc_probability: float | None
    xtc_threshold: float | None
    dry_multiplier: float | None
    dry_base: float | None
    dry_allowed_length: int | None
    dry_penalty_last_n: int | None
    dry_sequence_breakers: Sequence[str] | None
    mirostat: Literal[0, 1, 2] | None
    mirostat_tau: float | None
    mirostat_eta: float | None
    samplers: Sequence[str] | None
    min_keep: int | None
    grammar: str | None
    cache_prompt: bool | None
    id_slot: int | None
    lora: Sequence[Mapping[str, Any]] | None
    t_max_predict_ms: int | None
    timings_per_token: bool | None
    post_sampling_probs: bool | None
    return_tokens: bool | None
    top_p_min: float | None
    early_stopping: bool | int | None
    detokenize: bool | None
    lora_request: Mapping[str, Any] | None
    disaggregated_params: Mapping[str, Any] | None
    return_context_logits: bool | None


class LikelihoodParams(_Sampling, total=False):
    """The parameters of ``log_likelihood``: those of sampling.

    ``log_likelihood`` itself sets the length, ``n``, ``echo`` and ``logprobs``.
    """


class CompletionParams(LikelihoodParams, total=False):
    """The parameters of ``complete``: those above, and the following ones.

    - All servers: ``max_tokens``; 16 where neither call nor server says another length.
    - OpenAI, vLLM, SGLang, llama.cpp, trtllm-serve: ``n``; ``logprobs``, a number of alternatives;
      ``echo``, ``suffix``, ``best_of``, where the server has them.
    - vLLM: ``prompt_logprobs``, ``return_tokens_as_token_ids``; ``prompt_embeds``, with which a
      call goes alone.
    - llama.cpp: ``n_probs``.
    - None: ``runaway``, the client's own. True: an answer that runs into a loop ends there.
    """

    max_tokens: int | None
    n: int | None
    runaway: bool
    logprobs: int | None
    echo: bool | None
    suffix: str | None
    best_of: int | None
    prompt_logprobs: int | None
    return_tokens_as_token_ids: bool | None
    prompt_embeds: str | Sequence[str] | None
    n_probs: int | None


class ChatParams(_Sampling, total=False):
    """The parameters of ``chat``: those of sampling, and the following ones.

    - All servers: ``max_tokens``, ``logprobs`` (true or false), ``top_logprobs``, ``tools``,
      ``tool_choice``.
    - OpenAI, vLLM, SGLang, llama.cpp, trtllm-serve: ``max_completion_tokens``, ``n``,
      ``parallel_tool_calls``, ``reasoning_effort``; OpenAI: ``functions``, ``function_call``,
      ``modalities``, ``audio``, ``prediction``, ``store``, ``verbosity``, ``web_search_options``,
      ``moderation``, ``prompt_cache_key``, ``prompt_cache_options``, ``prompt_cache_retention``,
      ``safety_identifier``.
    - vLLM, SGLang, trtllm-serve: ``chat_template_kwargs`` (llama.cpp too),
      ``add_generation_prompt``, ``continue_final_message``; ``chat_template``, ``documents`` (vLLM,
      trtllm-serve).
    - vLLM: ``echo`` (the last message before the answer), ``include_reasoning``,
      ``media_io_kwargs``, ``mm_processor_kwargs``, ``prompt_logprobs``, ``return_prompt_text``,
      ``return_tokens_as_token_ids``.
    - SGLang: ``separate_reasoning``, ``stream_reasoning``, ``images_config``,
      ``max_dynamic_patch``, ``min_dynamic_patch``, ``use_audio_in_video``.
    - TGI: ``tool_prompt``, ``guideline``.
    - llama.cpp: ``reasoning_format``, ``thinking_forced_open``, ``parse_tool_calls``, ``n_probs``.
    - None: ``runaway``, as for ``complete``.
    """

    max_tokens: int | None
    max_completion_tokens: int | None
    n: int | None
    runaway: bool
    logprobs: bool | None
    top_logprobs: int | None
    tools: Sequence[Mapping[str, Any]] | None
    tool_choice: Literal["none", "auto", "required"] | Mapping[str, Any] | None
    parallel_tool_calls: bool | None
    functions: Sequence[Mapping[str, Any]] | None
    function_call: Literal["none", "auto"] | Mapping[str, Any] | None
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None
    modalities: Sequence[Literal["text", "audio"]] | None
    audio: Mapping[str, Any] | None
    prediction: Mapping[str, Any] | None
    store: bool | None
    verbosity: Literal["low", "medium", "high"] | None
    web_search_options: Mapping[str, Any] | None
    moderation: Mapping[str, Any] | None
    prompt_cache_key: str | None
    prompt_cache_options: Mapping[str, Any] | None
    prompt_cache_retention: Literal["in_memory", "24h"] | None
    safety_identifier: str | None
    chat_template: str | None
    chat_template_kwargs: Mapping[str, Any] | None
    add_generation_prompt: bool | None
    continue_final_message: bool | None
    documents: Sequence[Mapping[str, str]] | None
    echo: bool | None
    include_reasoning: bool | None
    media_io_kwargs: Mapping[str, Any] | None
    mm_processor_kwargs: Mapping[str, Any] | None
    prompt_logprobs: int | None
    return_prompt_text: bool | None
    return_tokens_as_token_ids: bool | None
    separate_reasoning: bool | None
    stream_reasoning: bool | None
    images_config: Mapping[str, Any] | None
    max_dynamic_patch: int | None
    min_dynamic_patch: int | None
    use_audio_in_video: bool | None
    tool_prompt: str | None
    guideline: str | None
    reasoning_format: Literal["none", "auto", "deepseek", "deepseek-legacy"] | None
    thinking_forced_open: bool | None
    parse_tool_calls: bool | None
    n_probs: int | None


class _Streamed(TypedDict, total=False):
    """The parameter of calls that are streamed to their caller.

    - ``stream_interval`` (vLLM from 0.27, SGLang): tokens per piece, at least 1.
    """

    stream_interval: int | None


class CompletionStreamParams(CompletionParams, _Streamed, total=False):
    """The parameters of ``stream``: those of ``complete``, and ``stream_interval``."""


class ChatStreamParams(ChatParams, _Streamed, total=False):
    """The parameters of ``stream_chat``: those of ``chat``, and ``stream_interval``."""


class _Pooled(_Common, total=False):
    """The parameters of vectors, scores, ranks and classes alike.

    - vLLM: ``truncate_prompt_tokens``, ``truncation_side``, ``padding``, ``add_special_tokens``,
      ``mm_processor_kwargs``, ``media_io_kwargs``, ``additional_data``, ``use_activation`` (older:
      ``activation``, ``softmax``, ``normalize``), ``chat_template``, ``chat_template_kwargs``,
      ``add_generation_prompt``, ``continue_final_message``.
    - SGLang: ``rid``, ``lora_path``, ``routing_key``, ``data_parallel_rank``,
      ``return_hidden_states``.
    - TEI: ``truncate``, ``truncation_direction``, ``prompt_name``, ``normalize``.
    - Infinity: ``modality``; Cohere, NVIDIA NIM: ``truncate``, as a word.
    """

    truncate_prompt_tokens: int | None
    truncation_side: Literal["left", "right"] | None
    padding: Any
    add_special_tokens: bool | None
    mm_processor_kwargs: Mapping[str, Any] | None
    media_io_kwargs: Mapping[str, Any] | None
    additional_data: Any
    use_activation: bool | None
    activation: bool | None
    softmax: bool | None
    normalize: bool | None
    chat_template: str | None
    chat_template_kwargs: Mapping[str, Any] | None
    add_generation_prompt: bool | None
    continue_final_message: bool | None
    rid: str | None
    lora_path: str | None
    routing_key: str | None
    data_parallel_rank: int | None
    return_hidden_states: bool | None
    truncate: bool | Literal["NONE", "START", "END"] | None
    truncation_direction: Literal["left", "right", "Left", "Right"] | None
    prompt_name: str | None
    modality: str | None


class EmbeddingParams(_Pooled, total=False):
    """The parameters of ``embed``: those of pooling, and the following ones.

    - OpenAI, vLLM, SGLang, TEI: ``dimensions``, ``encoding_format``.
    - vLLM: ``embed_dtype``, ``endianness`` and ``prompt_embeds``, with which a call goes alone.
    - llama.cpp: ``embd_normalize``; Jina: ``task``, ``late_chunking``, ``normalized``,
      ``embedding_type``; Cohere, NVIDIA NIM: ``input_type``, ``embedding_types``.
    - Gateways: ``instruction``, ``instruct``.
    """

    dimensions: int | None
    encoding_format: Literal["float", "base64"] | None
    embed_dtype: Literal["float32"] | None
    endianness: Literal["little"] | None
    prompt_embeds: str | Sequence[str] | None
    embd_normalize: int | None
    input_type: str | None
    embedding_types: Sequence[str] | None
    embedding_type: str | Sequence[str] | None
    task: str | None
    late_chunking: bool | None
    normalized: bool | None
    instruction: str | None
    instruct: str | None


class ClassificationParams(_Pooled, total=False):
    """The parameters of ``classify``: those of pooling, and ``raw_scores`` (TEI)."""

    raw_scores: bool | None


class ScoreParams(_Pooled, total=False):
    """The parameters of ``score`` and ``rerank``: those of pooling, and the following ones.

    - vLLM: ``instruction``, ``max_tokens_per_query``; gateways: ``instruct``.
    - SGLang: ``apply_softmax``, ``item_first``, ``label_token_ids``, ``return_documents``,
      ``instruct``.
    - TEI: ``raw_scores``, ``return_text``.
    - Cohere, Jina: ``return_documents``, ``max_tokens_per_doc``, ``max_chunks_per_doc``,
      ``rank_fields``.
    """

    instruction: str | None
    instruct: str | None
    raw_scores: bool | None
    return_documents: bool | None
    return_text: bool | None
    apply_softmax: bool | None
    item_first: bool | None
    label_token_ids: Sequence[int] | None
    max_tokens_per_doc: int | None
    max_tokens_per_query: int | None
    max_chunks_per_doc: int | None
    rank_fields: Sequence[str] | None


class TokenizeParams(_Common, total=False):
    """The parameters of ``tokenize``.

    - vLLM, SGLang, TEI: ``add_special_tokens``; vLLM: ``return_token_strs``, ``chat_template``,
      ``chat_template_kwargs``, ``add_generation_prompt``, ``continue_final_message``,
      ``mm_processor_kwargs``.
    - llama.cpp: ``add_special``, ``parse_special``, ``with_pieces``.
    - TEI: ``prompt_name``.
    """

    add_special_tokens: bool | None
    add_special: bool | None
    parse_special: bool | None
    with_pieces: bool | None
    return_token_strs: bool | None
    chat_template: str | None
    chat_template_kwargs: Mapping[str, Any] | None
    add_generation_prompt: bool | None
    continue_final_message: bool | None
    mm_processor_kwargs: Mapping[str, Any] | None
    prompt_name: str | None


class _MapArguments(TypedDict, total=False):
    """The arguments of every map beside its call's parameters; see ``BatchClient.batch_map``."""

    rows: Literal["template"] | None
    row_params: Literal["take", "ignore"] | None
    model: str | None
    timeout_s: float | None
    priority: int
    tenant: str | None
    look_ahead: int | None
    fail_if: Sequence[str]
    journal: "str | os.PathLike[str] | Journal | HeldJournal | None"
    progress: "Callable[[MapProgress], object] | None"


class _Validated(TypedDict, total=False):
    """The arguments of maps whose answers are texts; see ``BatchClient.batch_map``."""

    response_model: "type[BaseModel] | None"
    repair: "Repair | None"


class CompletionMapParams(_MapArguments, _Validated, CompletionParams, total=False):
    """A map's arguments and the parameters of ``complete``."""


class ChatMapParams(_MapArguments, _Validated, ChatParams, total=False):
    """A map's arguments and the parameters of ``chat``."""


class EmbeddingMapParams(_MapArguments, EmbeddingParams, total=False):
    """A map's arguments and the parameters of ``embed``."""


class ClassificationMapParams(_MapArguments, ClassificationParams, total=False):
    """A map's arguments and the parameters of ``classify``."""
