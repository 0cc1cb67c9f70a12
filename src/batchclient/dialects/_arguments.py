"""Argument names of calls whose answer is no text: unknown names are refused.

Rules:
- Most servers ignore unknown fields: ``score("a", "b", instructions=…)`` would bring a wrong
  number. A name is known if any server, of any sort and version, takes the field for the call. The
  error for any other name tells the nearest known name.
- ``extra_body`` passes whatever it holds. So do programs that write whole bodies (the drop-in, the
  transports).
- A new version's fields are added here. Until then ``extra_body`` carries such fields.

Sources: vLLM 0.32 ``entrypoints/pooling/*/protocol.py``, ``serve/tokenize/protocol.py``,
``openai/completion/protocol.py``, and the older names there; SGLang 0.5.23
``srt/entrypoints/openai/protocol.py``; TEI 1.9 ``router/src/http/types.rs``; TGI 3.3
``router/src/lib.rs``; llama.cpp ``tools/server/README.md``; TensorRT-LLM
``serve/openai_protocol.py``; the API references of Infinity, Cohere, Jina and NVIDIA NIM, whose
forms gateways have.
"""

from __future__ import annotations

from collections.abc import Iterable

from batchclient._core.kinds import Kind
from batchclient.dialects._fields import FIELDS
from batchclient.errors import ConfigError

__all__ = ["INPUT_FIELDS", "LIKELIHOOD", "refuse_unknown"]

LIKELIHOOD = "likelihood"
"""The kind of ``log_likelihood()``, which asks for completions."""
INPUT_FIELDS = frozenset(
    [
        "input",
        "inputs",
        "content",
        "text_1",
        "text_2",
        "data_1",
        "data_2",
        "query",
        "queries",
        "documents",
        "texts",
        "items",
    ]
)
"""Servers' names for the input of calls whose answer is no text. The input is an argument, and no
field may come twice.
"""
_ALWAYS = frozenset(FIELDS) | {"extra_body"}
"""Names that another check judges (``sort_fields``)."""
_ARGUMENTS = ("model", "timeout_s", "priority", "tenant", "extra_body")
_POOLED = (
    "truncate_prompt_tokens truncation_side padding mm_processor_kwargs media_io_kwargs cache_salt add_special_tokens additional_data"
    " use_activation activation softmax normalize chat_template chat_template_kwargs add_generation_prompt continue_final_message"
    " truncate truncation_direction prompt_name rid lora_path routing_key data_parallel_rank return_hidden_states modality"
)
_SCORED = (
    f"{_POOLED} instruction instruct raw_scores return_documents return_text apply_softmax item_first label_token_ids max_tokens_per_doc"
    " max_chunks_per_doc rank_fields"
)
_TABLES: dict[str, frozenset[str]] = {
    Kind.EMBEDDING: frozenset(
        f"{_POOLED} dimensions encoding_format embed_dtype endianness embd_normalize input_type embedding_types embedding_type task"
        " late_chunking normalized instruction instruct prompt_embeds".split()
    ),
    Kind.CLASSIFICATION: frozenset(f"{_POOLED} raw_scores".split()),
    Kind.SCORE: frozenset(_SCORED.split()),
    Kind.RERANK: frozenset(_SCORED.split()),
    Kind.TOKENS: frozenset(
        [
            "add_special_tokens",
            "add_special",
            "parse_special",
            "with_pieces",
            "return_token_strs",
            "chat_template",
            "chat_template_kwargs",
            "add_generation_prompt",
            "continue_final_message",
            "mm_processor_kwargs",
            "prompt_name",
        ]
    ),
    LIKELIHOOD: frozenset(
        f"{_POOLED} temperature top_p top_k min_p top_a typical_p tfs_z seed stop stop_token_ids stop_regex min_tokens ignore_eos logit_bias"
        " presence_penalty frequency_penalty repetition_penalty repeat_penalty length_penalty early_stopping skip_special_tokens"
        " spaces_between_special_tokens include_stop_str_in_output no_stop_trim allowed_token_ids bad_words logprob_token_ids use_beam_search"
        " response_format structured_outputs guided_json guided_regex guided_choice guided_grammar guided_decoding_backend regex ebnf json_schema"
        " grammar session_id session_params extra_key custom_params custom_logit_processor vllm_xargs watermarking repetition_detection"
        " thinking_token_budget return_token_ids routed_experts_prompt_start detokenize lora_request disaggregated_params cache_prompt id_slot"
        " samplers mirostat top_p_min adapter_id service_tier".split()
    ),
}
_METHODS: dict[str, tuple[str, tuple[str, ...]]] = {
    Kind.EMBEDDING: ("embed()", ("text",)),
    Kind.CLASSIFICATION: ("classify()", ("text",)),
    Kind.SCORE: ("score()", ("query", "document")),
    Kind.RERANK: ("rerank()", ("query", "documents", "top_n")),
    Kind.TOKENS: ("tokenize()", ("text",)),
    LIKELIHOOD: ("log_likelihood()", ("continuation", "given")),
}
_MEANT: dict[str, dict[str, str]] = {
    LIKELIHOOD: {"context": "given", "prefix": "given", "prompt": "given", "text": "continuation"},
    Kind.RERANK: {"top_k": "top_n"},
}
"""Other libraries' words for an argument, where no likeness shows the meaning."""


def refuse_unknown(call: str, given: Iterable[str]) -> None:
    """Refuse names known neither to the call nor to any server.

    Args:
        call: the kind of call, or ``LIKELIHOOD``.
        given: the names beside the call's own arguments.

    Raises:
        ConfigError: the error tells the first unknown name, and the nearest known name.
    """
    known, meant = _TABLES[call], _MEANT.get(call, {})
    for name in given:
        if name in known or ((name in _ALWAYS or name in INPUT_FIELDS) and name not in meant):
            continue
        from difflib import get_close_matches  # seldom needed, and slow to import

        method, own = _METHODS[call]
        near = get_close_matches(name, [*meant, *own, *_ARGUMENTS, *sorted(known)], 1)
        near = [meant.get(each, each) for each in near]
        hint = f"Did you mean {near[0]}? " if near else ""
        raise ConfigError(
            f"{name:.60} is no argument of {method}, and no server is known that takes such a field. {hint}"
            f"If yours does, give extra_body={{{name[:60]!r}: …}}",
            field=name,
        )
