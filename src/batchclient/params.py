"""The parameters of calls: names and types, one ``TypedDict`` per kind of call.

Type checkers and editors read these classes from the signatures (``**params: Unpack[…]``). They
have OpenAI's fields, and those that two of vLLM, SGLang, llama.cpp and TGI (or for vectors and
scores TEI and others) share. A call takes the other names that one server is known to have, too,
without a type. Any name beside these is refused, and the error has the nearest one;
``extra_body`` carries it.

Each class says which servers read its fields; a server ignores most fields that it does not know.
Every field may be ``None``, which the servers read as absent.

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
    """The parameters of completions, chats and likelihoods alike, beside those of every call.

    All servers:

    - ``temperature``: 0 to 2; 0 takes the likeliest token each time.
    - ``top_p``: above 0 to 1; chooses among the likeliest tokens that have this probability
      together.
    - ``seed``: of the random choices.
    - ``stop``: a text or several before which the answer ends.
    - ``frequency_penalty``: -2 to 2; the more often a token has come, the less likely it is.

    OpenAI, vLLM, SGLang, llama.cpp, trtllm-serve:

    - ``presence_penalty``: -2 to 2; a token that has come is less likely.
    - ``logit_bias``: by token id, -100 to 100, added to the token's logit.
    - ``response_format``: the form of the answer, such as a JSON schema.
    - ``service_tier`` (OpenAI alone): which of OpenAI's services answers.

    vLLM, SGLang, llama.cpp, trtllm-serve:

    - ``top_k``: chooses among so many likeliest tokens.
    - ``min_p``: 0 to 1; chooses among tokens with this share of the likeliest one's probability.
    - ``ignore_eos``: true: the answer goes on to ``max_tokens``.
    - ``repetition_penalty`` (TGI too; llama.cpp: ``repeat_penalty``): above 0; 1 is none; above 1
      tokens that have come, also in the prompt, are less likely.

    vLLM, SGLang:

    - ``stop_token_ids``: tokens that end the answer.
    - ``skip_special_tokens``: whether the text leaves out special tokens; the server's default is
      true.
    - ``min_tokens``: the answer does not end before so many tokens.
    - ``return_token_ids``: true: the ids of prompt and answer come with the answer.
    - ``session_id``: the conversation's name, for the server.
    - ``json_schema`` (SGLang, llama.cpp): a schema that the answer fits.
    - ``structured_outputs`` (vLLM): another form of the answer: see ``StructuredOutputs``.
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
    structured_outputs: StructuredOutputs | None
    return_token_ids: bool | None
    session_id: str | None
    json_schema: str | Mapping[str, Any] | None


class LikelihoodParams(_Sampling, total=False):
    """The parameters of ``log_likelihood``: those of sampling (``_Sampling``).

    ``log_likelihood`` itself sets the length, ``n``, ``echo`` and ``logprobs``.
    """


class CompletionParams(LikelihoodParams, total=False):
    """The parameters of ``complete``: those of sampling (``_Sampling``), and the following ones.

    All servers:

    - ``max_tokens``: tokens of the answer, at most; 16 where neither call nor server says another
      length.
    - ``thinking_tokens``, to each by its own name: tokens of the reasoning before the answer, at
      most; ``max_tokens`` bounds the answer alone then, and has to be given.

    OpenAI, vLLM, SGLang, llama.cpp, trtllm-serve, each where the server has it:

    - ``n``: answers to the prompt.
    - ``logprobs``: alternatives for each token that come with their natural logarithms of
      probability.
    - ``echo``: true: the prompt stands before the answer.
    - ``suffix``: the text that will follow the answer.
    - ``best_of``: answers that are generated, of which the best ``n`` come.

    The client's own, which no server is sent:

    - ``runaway``: true: an answer that runs into a loop ends there.
    - ``expected_tokens``: how long the answer will be, tokens. It decides when the call goes, and
      nothing about the answer.
    - ``labels``: the answer is one of these texts, ``answer.label``.
    - ``probabilities``: true: with the probability of each label, of one token: ``max_tokens`` is
      not sent.
    """

    max_tokens: int | None
    thinking_tokens: int | None
    n: int | None
    runaway: bool
    expected_tokens: int | None
    labels: Sequence[str] | None
    probabilities: bool | None
    logprobs: int | None
    echo: bool | None
    suffix: str | None
    best_of: int | None


class ChatParams(_Sampling, total=False):
    """The parameters of ``chat``: those of sampling (``_Sampling``), and the following ones.

    All servers:

    - ``max_tokens``: tokens of the answer, at most.
    - ``thinking_tokens``: as for ``complete``; ``max_tokens`` may be left out.
    - ``logprobs``: true: each token comes with the natural logarithm of its probability.
    - ``top_logprobs``: alternatives for each token that come likewise.
    - ``tools``: functions that the model may ask for.
    - ``tool_choice``: whether it may, must or must not, or which one it must.

    OpenAI, vLLM, SGLang, llama.cpp, trtllm-serve:

    - ``max_completion_tokens``: as ``max_tokens``, and before it.
    - ``n``: answers to the conversation.
    - ``parallel_tool_calls``: whether an answer may ask for several tools.
    - ``reasoning_effort``: how much the model thinks, in a word.

    OpenAI:

    - ``functions``, ``function_call``: older forms of ``tools`` and ``tool_choice``.
    - ``modalities``, ``audio``: text or speech, and the speech's voice and format.
    - ``prediction``: a text that the answer will mostly repeat.
    - ``verbosity``: how long the answer is, in a word.
    - ``web_search_options``, ``moderation``: of its search, and of its checks.
    - ``store``: whether OpenAI keeps the answer.
    - ``prompt_cache_key``, ``prompt_cache_options``, ``prompt_cache_retention``: which cache the
      prompt's beginning is in, and for how long.
    - ``safety_identifier``: a lasting name of the user, such as a hash.

    vLLM, SGLang, trtllm-serve:

    - ``chat_template_kwargs`` (llama.cpp too): variables of the model's template.
    - ``add_generation_prompt``: whether the template begins an answer after the messages.
    - ``continue_final_message``: true: the answer goes on with the last message.

    The client's own: ``runaway``, ``expected_tokens``, ``labels`` and ``probabilities``, as for
    ``complete``.
    """

    max_tokens: int | None
    max_completion_tokens: int | None
    thinking_tokens: int | None
    n: int | None
    runaway: bool
    expected_tokens: int | None
    labels: Sequence[str] | None
    probabilities: bool | None
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
    chat_template_kwargs: Mapping[str, Any] | None
    add_generation_prompt: bool | None
    continue_final_message: bool | None


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
    """The parameters of vectors, scores, ranks and classes alike, beside those of every call.

    - ``truncate_prompt_tokens`` (vLLM): tokens that are kept of a longer text; -1: as many as the
      model takes.
    - ``truncation_side`` (vLLM): the end at which a longer text is cut.
    - ``add_special_tokens`` (vLLM): whether the tokenizer adds the model's special tokens.
    - ``truncate`` (TEI; Cohere, NVIDIA NIM: as a word): whether a text that is too long is cut,
      instead of being refused.
    - ``normalize`` (vLLM before 0.11, TEI): whether vectors have the length 1.
    """

    truncate_prompt_tokens: int | None
    truncation_side: Literal["left", "right"] | None
    add_special_tokens: bool | None
    normalize: bool | None
    truncate: bool | Literal["NONE", "START", "END"] | None


class EmbeddingParams(_Pooled, total=False):
    """The parameters of ``embed``: those of pooling (``_Pooled``), and the following ones.

    - ``dimensions`` (OpenAI, vLLM, SGLang, TEI): numbers of a vector.
    - ``encoding_format`` (the same): how a vector travels; by default the client chooses.
    - ``instruction``, ``instruct`` (gateways): what the vectors are for.
    """

    dimensions: int | None
    encoding_format: Literal["float", "base64"] | None
    instruction: str | None
    instruct: str | None


class ClassificationParams(_Pooled, total=False):
    """The parameters of ``classify``: those of pooling (``_Pooled``), and the following one.

    - ``raw_scores`` (TEI): true: logits in place of probabilities.
    """

    raw_scores: bool | None


class ScoreParams(_Pooled, total=False):
    """The parameters of ``score`` and ``rerank``: those of pooling (``_Pooled``), and these.

    - ``instruction`` (vLLM), ``instruct`` (SGLang, gateways): what a fitting document is.
    - ``raw_scores`` (TEI): true: logits in place of probabilities.
    - ``return_documents`` (SGLang, Cohere, Jina): whether the server sends the documents back.
    """

    instruction: str | None
    instruct: str | None
    raw_scores: bool | None
    return_documents: bool | None


class TokenizeParams(_Common, total=False):
    """The parameters of ``tokenize``.

    - ``add_special_tokens`` (vLLM, SGLang, TEI): whether the model's special tokens are among the
      ids.
    - ``chat_template_kwargs``, ``add_generation_prompt``, ``continue_final_message`` (vLLM): as for
      ``chat``.
    """

    add_special_tokens: bool | None
    chat_template_kwargs: Mapping[str, Any] | None
    add_generation_prompt: bool | None
    continue_final_message: bool | None


class _MapArguments(TypedDict, total=False):
    """The arguments of every map beside its call's parameters; see ``BatchClient.batch_map``."""

    rows: Literal["template"] | None
    row_params: Literal["take", "ignore"] | None
    model: str | None
    timeout_s: float | None
    priority: int
    tenant: str | None
    session: str | None
    look_ahead: int | None
    max_cost: float | None
    fail_if: Sequence[str]
    journal: "str | os.PathLike[str] | Journal | HeldJournal | None"
    progress: "Callable[[MapProgress], object] | None"
    finish_by_s: float | None


class _Validated(TypedDict, total=False):
    """The arguments of maps whose answers are texts; see ``BatchClient.batch_map``."""

    order: Literal["longest_first"] | None
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
