"""The kinds of calls, in one table: their methods and arguments, and the names of their parameters.

A call takes the keys of its class in ``params``, which have types, and the other names that servers
are known to have for such calls. So a row's field of such a name is sent, or the row is refused.

Sources of the names: see ``batchclient.params``.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

from batchclient._core.kinds import Kind

__all__ = ["KINDS", "LIKELIHOOD", "KindOfCall", "known_fields", "typed_fields"]

LIKELIHOOD = "likelihood"
"""The kind of ``log_likelihood()``, which asks for completions."""


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SAMPLING = _names(
    """
    adapter_id add_special_tokens allowed_token_ids bad_words cache_prompt custom_labels custom_logit_processor
    custom_params data_parallel_rank detokenize disaggregated_params dry_allowed_length dry_base dry_multiplier
    dry_penalty_last_n dry_sequence_breakers dynatemp_exponent dynatemp_range early_stopping ebnf
    ec_transfer_params extra_key grammar guided_choice guided_decoding_backend guided_grammar guided_json
    guided_regex guided_whitespace_pattern id_slot include_stop_str_in_output kv_transfer_params length_penalty
    logits_processors logprob_token_ids lora lora_path lora_request min_keep mirostat mirostat_eta mirostat_tau
    mm_payload no_stop_trim post_sampling_probs regex repeat_last_n repeat_penalty repetition_detection
    return_cached_tokens_details return_context_logits return_hidden_states return_mm_kwargs
    return_routed_experts return_token_offsets return_tokens rid routed_dp_rank routed_experts_prompt_start
    routing_key samplers session_params spaces_between_special_tokens stop_regex t_max_predict_ms tfs_z
    thinking_token_budget timings_per_token top_a top_p_min truncate_prompt_tokens truncation_side typical_p
    use_beam_search vllm_xargs watermarking xtc_probability xtc_threshold
    """
)
"""Of texts: one server's own, vLLM's of versions before 0.12 among them."""
_COMPLETION = _SAMPLING | _names(
    """
    n_probs prompt_embeds prompt_logprobs return_tokens_as_token_ids
    """
)
"""Of completions beside these."""
_CHAT = _SAMPLING | _names(
    """
    chat_template documents echo guideline images_config include_reasoning max_dynamic_patch media_io_kwargs
    min_dynamic_patch mm_processor_kwargs n_probs parse_tool_calls prompt_logprobs reasoning_format
    return_prompt_text return_tokens_as_token_ids separate_reasoning stream_reasoning thinking_forced_open
    tool_prompt use_audio_in_video
    """
)
"""Of chats beside those of texts."""
_POOLED = _names(
    """
    activation add_generation_prompt additional_data chat_template chat_template_kwargs continue_final_message
    data_parallel_rank lora_path media_io_kwargs mm_processor_kwargs modality padding prompt_name
    return_hidden_states rid routing_key softmax truncation_direction use_activation
    """
)
"""Of calls that generate nothing."""
_EMBEDDING = _POOLED | _names(
    """
    embd_normalize embed_dtype embedding_type embedding_types endianness input_type late_chunking normalized
    prompt_embeds task
    """
)
"""Of vectors beside these; gateways' among them."""
_SCORE = _POOLED | _names(
    """
    apply_softmax item_first label_token_ids max_chunks_per_doc max_tokens_per_doc max_tokens_per_query
    rank_fields return_text
    """
)
"""Of scores and rankings beside those of pooling."""
_TOKENS = _names(
    """
    add_special chat_template mm_processor_kwargs parse_special prompt_name return_token_strs with_pieces
    """
)
"""Of ``tokenize``."""


class KindOfCall(NamedTuple):
    """What one kind of call has of its own.

    Args:
        method: of ``BatchClient``.
        arguments: that belong to this method alone, the input first.
        params: the class of its parameters.
        others: the names that servers have beside those of the class.
        streaming: the method that hands such an answer out piece by piece, if there is one.
        streamed_params: the class of that method's parameters.
    """

    method: str
    arguments: tuple[str, ...]
    params: str
    others: frozenset[str]
    streaming: str = ""
    streamed_params: str = ""


KINDS: dict[str, KindOfCall] = {
    Kind.COMPLETION: KindOfCall(
        "complete", ("prompt", "response_model"), "CompletionParams", _COMPLETION, "stream", "CompletionStreamParams"
    ),
    Kind.CHAT: KindOfCall(
        "chat", ("messages", "response_model"), "ChatParams", _CHAT, "stream_chat", "ChatStreamParams"
    ),
    Kind.EMBEDDING: KindOfCall("embed", ("text",), "EmbeddingParams", _EMBEDDING),
    Kind.CLASSIFICATION: KindOfCall("classify", ("text",), "ClassificationParams", _POOLED),
    Kind.SCORE: KindOfCall("score", ("query", "document"), "ScoreParams", _SCORE),
    Kind.RERANK: KindOfCall("rerank", ("query", "documents", "top_n"), "ScoreParams", _SCORE),
    Kind.TOKENS: KindOfCall("tokenize", ("text",), "TokenizeParams", _TOKENS),
    LIKELIHOOD: KindOfCall("log_likelihood", ("continuation", "given"), "LikelihoodParams", _SAMPLING),
}
"""By kind, or ``LIKELIHOOD``."""


@cache
def typed_fields(params: str) -> dict[str, object]:
    """Return the annotations of a class of parameters, by field."""
    from batchclient import params as module  # with the first call: an import of batchclient does without

    annotations: dict[str, object] = getattr(module, params).__annotations__
    return annotations


@cache
def known_fields(call: str) -> frozenset[str]:
    """Return the names of the fields that a call takes.

    Args:
        call: its kind, or ``LIKELIHOOD``.
    """
    kind = KINDS[call]
    return kind.others.union(typed_fields(kind.params))
