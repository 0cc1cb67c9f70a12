"""Request bodies as vLLM 0.32 takes them: a model per route, and what no type tells of a call.

Rules:
- A body is read by its model, which names the first wrong field, as in ``body.temperature``. Then
  come the model's name (``read``), values that do not go together, and the prompts. The first
  failure answers.
- A bad prompt fails the whole request, and the message does not name the prompt.
- Unknown fields are ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, TypeVar

from pydantic import AfterValidator, AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from batchclient.simulator.text import Prompt, count_tokens

__all__ = [
    "Body",
    "Call",
    "ChatRequest",
    "ChatsRequest",
    "CompletionRequest",
    "EmbeddingRequest",
    "HttpError",
    "InputRequest",
    "Limits",
    "Prompts",
    "RankRequest",
    "Sampling",
    "ScoreRequest",
    "TokenizeRequest",
    "read",
    "render_messages",
]

# VLLM_MAX_COMPLETION_PROMPTS and VLLM_MAX_N_SEQUENCES.
_MAX_PROMPTS = 1024
_MAX_CHOICES = 16_384
_MAX_STOP_STRINGS = 4
_MAX_LOGPROBS = 20
_MOST_PROBLEMS = 10
_VOCABULARY = 300_000
"""More than any open model's."""
_DEFAULT_MAX_TOKENS = 16


_CONFIG = ConfigDict(strict=True, defer_build=True)
"""Values of other types are refused; a model is made when its route is first asked."""


class HttpError(Exception):
    """A refusal, to be written in a guise's words.

    Args:
        status: of the reply.
        message: what is wrong; empty: the server's usual words for the status.
        param: the field that is wrong; ``"body"``: it is no JSON object.
        kind: the server's name for the sort of error; empty: the usual one of the status.
    """

    def __init__(self, status: int, message: str = "", param: str | None = None, kind: str = "") -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message
        self.param = param
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a request.

    Args:
        model: the served name; ``None``: every name is served.
        max_model_len_tokens: prompt and answer together.
        max_prompts: the longest list of prompts.
        is_strict: whether tools and pictures are refused, as by a vLLM that serves a text model.
        thinking_tokens: what is thought before each answer; 0: the model does not think.
        reasoning_parser: whether the server tells the thinking from the answer.
    """

    model: str | None
    max_model_len_tokens: int
    max_prompts: int = _MAX_PROMPTS
    is_strict: bool = True
    thinking_tokens: int = 0
    reasoning_parser: bool = False

    def tokens_of(self, prompt: Prompt, most: int) -> int:
        """Return the length of a prompt.

        Raises:
            HttpError: the prompt is empty, has more than ``most`` tokens, or a token of no model.
        """
        tokens = count_tokens(prompt)
        if not tokens:
            raise HttpError(400, "The decoder prompt cannot be empty")
        if isinstance(prompt, list) and max(prompt) >= _VOCABULARY:
            raise HttpError(400, f"Token id {max(prompt)} is out of vocabulary")
        if tokens > most:
            longest = self.max_model_len_tokens
            raise HttpError(
                400,
                f"This model's maximum context length is {longest} tokens. However, your prompt contains at least "
                f"{longest + 1} input tokens, which exceeds this limit even without any output tokens. Please reduce "
                f"the length of the input prompt. (parameter=input_tokens, value={longest + 1})",
                "input_tokens",
            )
        return tokens


class Body(BaseModel):
    """A request's fields."""

    model_config: ClassVar[ConfigDict] = _CONFIG

    model: str | None = None

    def call(self, limits: Limits) -> Call:
        """Return what is asked for; refuse with ``HttpError`` what no type tells to be wrong."""
        raise NotImplementedError


_BodyT = TypeVar("_BodyT", bound=Body)


def read(model: type[_BodyT], body: bytes, limits: Limits) -> _BodyT:
    """Return a body as its model.

    Raises:
        HttpError: the body is no JSON object, a field is wrong, or another model is asked for.
    """
    try:
        request = model.model_validate_json(body)
    except ValidationError as error:
        raise _invalid(error) from None
    if request.model and limits.model is not None and request.model != limits.model:
        message = f"The model `{request.model}` does not exist. Valid aliases: {limits.model}."
        raise HttpError(404, message, "model")
    return request


def _invalid(error: ValidationError) -> HttpError:
    found = error.errors(include_url=False, include_context=False, include_input=False)
    # Without pydantic's own names of a field's forms: ``str``, ``list[int]``, ….
    names = [".".join(["body", *(str(x) for x in each["loc"] if x != "str" and "[" not in str(x))]) for each in found]
    lines = [f"\n  {name}: {each['msg']}" for name, each in zip(names, found, strict=True)]
    words = f"{len(found)} validation error{'' if len(found) == 1 else 's'}:{''.join(lines[:_MOST_PROBLEMS])}"
    return HttpError(400, words, names[0], "Bad Request")


# Generating ----------------------------------------------------------------------------------------------------------


class StreamOptions(BaseModel):
    """``stream_options``."""

    model_config: ClassVar[ConfigDict] = _CONFIG

    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Sampling(Body):
    """What every generating route knows."""

    n: Annotated[int, Field(ge=1, le=_MAX_CHOICES)] | None = None
    max_tokens: int | None = None
    min_tokens: int | None = None
    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    logit_bias: dict[str, Any] | None = None
    stop: str | Annotated[list[str], Field(max_length=_MAX_STOP_STRINGS)] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    stream: bool | None = None
    stream_interval: Annotated[int, Field(ge=1)] | None = None
    stream_options: StreamOptions | None = None
    prompt_logprobs: int | None = None
    return_token_ids: bool | None = None
    logprob_token_ids: list[int] | None = None
    priority: int | None = None
    structured_outputs: dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    thinking_token_budget: Annotated[int, Field(ge=-1)] | None = None

    def thinking_budget(self, limits: Limits) -> int | None:
        """Return the budget that is heeded; refuse one that cannot be (``HttpError``)."""
        if self.thinking_token_budget in (None, -1):
            return None
        if not limits.reasoning_parser:
            message = "thinking_token_budget is set but reasoning_config is not configured. Please set"
            message += " --reasoning-parser and/or --reasoning-config to use thinking_token_budget."
            raise HttpError(400, message)
        return self.thinking_token_budget

    def generating(self, prompts: list[Prompt], limits: Limits, logprobs: int | None, asked: int | None) -> Call:
        """Return a call of these prompts; refuse values that do not go together (``HttpError``).

        ``logprobs`` is their number per token, ``asked`` the most tokens of an answer; ``None`` is
        the rest of the context.
        """
        longest = limits.max_model_len_tokens
        if self.stream_options is not None and not self.stream:
            message = "Stream options can only be defined when `stream=True`. (parameter=stream_options)"
            raise HttpError(400, message, "stream_options")
        if self.stream and self.prompt_logprobs is not None:
            message = "`prompt_logprobs` are not available when `stream=True`. (parameter=prompt_logprobs)"
            raise HttpError(400, message, "prompt_logprobs")
        if self.temperature == 0 and (self.n or 1) > 1:
            raise HttpError(400, f"n must be 1 when using greedy sampling, got {self.n}.")
        if logprobs is not None and logprobs > _MAX_LOGPROBS:
            message = f"Requested sample logprobs of {logprobs}, which is greater than max allowed: {_MAX_LOGPROBS}"
            raise HttpError(400, f"{message} (parameter=logprobs, value={logprobs})", "logprobs")
        if asked is not None and not 1 <= asked <= longest:
            message = f"max_tokens must be at least 1, got {asked}."
            if asked > longest:
                too_many = f"max_tokens ({asked}) cannot be greater than max_model_len={longest}."
                message = f"{too_many} Please request fewer output tokens."
            raise HttpError(400, f"{message} (parameter=max_tokens, value={asked})", "max_tokens")
        tokens = [limits.tokens_of(prompt, longest - 1) for prompt in prompts]
        # vLLM silently cuts to the rest of the context.
        most = [longest - own if asked is None else min(asked, longest - own) for own in tokens]
        return Call(self, prompts, tokens, most, self)


def _as_list(given: object) -> object:
    """Return a text or token ids as a list of one; no text at all as none."""
    if isinstance(given, str):
        return [given] if given else None
    return [given] if isinstance(given, list) and given and type(given[0]) is int else given


Prompts = Annotated[list[str] | list[list[int]] | None, BeforeValidator(_as_list)]
"""A text, token ids, or a list of either."""


class CompletionRequest(Sampling):
    """``/v1/completions``."""

    prompt: Prompts = None
    echo: bool | None = None
    logprobs: int | None = None

    def call(self, limits: Limits) -> Call:
        """See ``Body.call``."""
        if self.prompt is None:
            message = "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)"
            raise HttpError(400, message, "prompt")
        if not self.prompt:
            raise HttpError(400, "You must pass at least one prompt")
        if len(self.prompt) > limits.max_prompts:
            raise HttpError(
                400,
                f"prompt list length {len(self.prompt)} exceeds the maximum allowed count of {limits.max_prompts}. To "
                "increase this limit, set the VLLM_MAX_COMPLETION_PROMPTS environment variable. (parameter=prompt)",
                "prompt",
            )
        asked = _DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens
        # With ``max_tokens=0``, an echo makes a token, which the reply counts and does not show.
        return self.generating([*self.prompt], limits, self.logprobs, asked or 1 if self.echo else asked)


def _checked_message(message: dict[str, Any]) -> dict[str, Any]:
    if not isinstance(message.get("role"), str):
        raise ValueError("role: Field required")
    parts = message.get("content")
    for part in parts if isinstance(parts, list) else ():
        if not isinstance(part, dict) or not isinstance(part.get("text", ""), str):
            raise ValueError("content: a part is an object, and its text a text")
    return message


Messages = list[Annotated[dict[str, Any], AfterValidator(_checked_message)]]


class _Chat(Sampling):
    max_completion_tokens: int | None = None
    add_generation_prompt: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None

    def chats(self, conversations: list[Messages], limits: Limits) -> Call:
        """Return a call of these conversations, rendered to texts; refuse with ``HttpError``."""
        if self.top_logprobs and not self.logprobs:
            message = "when using `top_logprobs`, `logprobs` must be set to true. (parameter=top_logprobs)"
            raise HttpError(400, message, "top_logprobs")
        if limits.is_strict and any(_has_pictures(message) for each in conversations for message in each):
            raise HttpError(400, f"{limits.model or 'the model'} is not a multimodal model")
        if not all(conversations):
            raise HttpError(400, "Cannot apply chat template to an empty conversation. Provide at least one message.")
        begins = self.add_generation_prompt is not False
        thinks = (self.chat_template_kwargs or {}).get("enable_thinking") is not False
        end = "<think></think>" if limits.thinking_tokens and begins and not thinks else ""
        prompts: list[Prompt] = [render_messages(each, generation_prompt=begins) + end for each in conversations]
        asked = self.max_tokens if self.max_completion_tokens is None else self.max_completion_tokens
        call = self.generating(prompts, limits, self.top_logprobs, asked)
        call.parts_reasoning = thinks if limits.reasoning_parser else None
        return call


class ChatRequest(_Chat):
    """``/v1/chat/completions``.

    A strict server refuses tools and pictures, as one without tool parser and with a text model
    does. Another one calls a tool once: the named or the first one. To the result of the tool it
    answers with a text. Pictures count as one word.
    """

    messages: Messages
    tools: list[dict[str, Any]] | None = None
    tool_choice: str | dict[str, Any] | None = None

    def call(self, limits: Limits) -> Call:
        """See ``Body.call``."""
        if self.tools and limits.is_strict:
            # A server started without --enable-auto-tool-choice.
            words = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
            raise HttpError(400, words)
        call = self.chats([self.messages], limits)
        if self.tools and self.tool_choice != "none" and self.messages[-1]["role"] != "tool":
            try:
                functions = {each["function"]["name"]: each["function"] for each in self.tools}
                named = self.tool_choice["function"]["name"] if isinstance(self.tool_choice, dict) else None
                call.tool = named or next(iter(functions))
                arguments = functions[call.tool].get("parameters")
            except (KeyError, TypeError):
                raise HttpError(400, "tools or tool_choice name no function", "tools") from None
            # The smallest arguments that fit.
            call.sampling.structured_outputs = {
                "json": arguments if isinstance(arguments, dict) else {"type": "object"}
            }
        return call


class ChatsRequest(_Chat):
    """``/v1/chat/completions/batch``, which drops ``tools``.

    It drops ``stream``, too; there the real server answers with each answer's last token alone.
    """

    messages: Annotated[list[Annotated[Messages, Field(min_length=1)]], Field(min_length=1)]

    def call(self, limits: Limits) -> Call:
        """See ``Body.call``."""
        if (self.n or 1) > 1:
            message = "Batch chat completions do not support `n > 1`. Please set `n` to 1."
            raise HttpError(400, f"{message} (parameter=n, value={self.n})", "n")
        call = self.chats(self.messages, limits)
        call.stream = False
        return call


def _has_pictures(message: dict[str, Any]) -> bool:
    content = message.get("content")
    return isinstance(content, list) and any(part.get("type") != "text" for part in content)


def render_messages(messages: list[dict[str, Any]], *, generation_prompt: bool = True) -> str:
    """Return the prompt made of a conversation; for tests to compare with.

    The template is plain: ``role: content`` per line, and ``assistant:`` at the end. So lengths,
    answers, faults and prefix cache of a chat equal those of a completion with this text.
    """
    lines = [f"{message['role']}: {_content(message)}\n" for message in messages]
    return "".join(lines) + ("assistant:" if generation_prompt else "")


def _content(message: dict[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "\n".join(part.get("text", f"<{part.get('type')}>") for part in content)
    return content if isinstance(content, str) else ""


# Embeddings, scores, ranks, classes ----------------------------------------------------------------------------------


class _Pooled(Body):
    def pooled(self, prompts: list[Prompt], limits: Limits) -> Call:
        """Return a call whose prompts go through the engine as sequences of one output token.

        A server's cost is the prefill, and a sequence ends in the step that computed its last
        prompt token. The output token is neither counted nor shown. A prompt may fill the whole
        context.
        """
        tokens = [limits.tokens_of(prompt, limits.max_model_len_tokens) for prompt in prompts]
        return Call(self, prompts, tokens, [1] * len(prompts))

    def paired(self, pairs: list[tuple[str, str]], limits: Limits) -> Call:
        """Return such a call of pairs; a prompt is both texts in a row."""
        call = self.pooled([f"{query} {document}" for query, document in pairs], limits)
        call.pairs = pairs
        return call


class InputRequest(_Pooled):
    """``/classify``."""

    input: Prompts

    def call(self, limits: Limits) -> Call:
        """See ``Body.call``."""
        if not self.input:
            raise HttpError(400, "You must pass at least one prompt")
        return self.pooled([*self.input], limits)


class EmbeddingRequest(InputRequest):
    """``/v1/embeddings``; vLLM has two more encodings, which are not JSON."""

    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None

    def call(self, limits: Limits) -> Call:
        """See ``Body.call``."""
        if self.dimensions is not None:
            message = "The model does not support Matryoshka embeddings; dimensions must be unset"
            raise HttpError(400, f"{message} (received dimensions={self.dimensions}).")
        return super().call(limits)


Texts = Annotated[list[str], BeforeValidator(lambda given: [given] if isinstance(given, str) else given)]


class ScoreRequest(_Pooled):
    """``/score``: 1 text against 1 or N, or N against N."""

    first: Annotated[Texts, Field(validation_alias=AliasChoices("text_1", "queries", "data_1"))]
    second: Annotated[Texts, Field(validation_alias=AliasChoices("text_2", "documents", "items", "data_2"))]

    def call(self, limits: Limits) -> Call:
        """See ``Body.call``."""
        if not self.first:
            raise HttpError(400, "At least one text element must be given")
        if not self.second:
            raise HttpError(400, "At least one text_pair element must be given")
        first = self.first * len(self.second) if len(self.first) == 1 else self.first
        if len(first) != len(self.second):
            raise HttpError(400, "Input lengths must be either 1:1, 1:N or N:N")
        return self.paired(list(zip(first, self.second, strict=True)), limits)


class RankRequest(_Pooled):
    """``/rerank``."""

    query: str
    documents: Texts
    top_n: Annotated[int, Field(ge=0)] = 0

    def call(self, limits: Limits) -> Call:
        """See ``Body.call``."""
        if not self.documents:
            raise HttpError(400, "At least one text_pair element must be given")
        return self.paired([(self.query, text) for text in self.documents], limits)


class TokenizeRequest(Body):
    """``/tokenize``: of a text, or of a conversation."""

    prompt: str = ""
    messages: Messages | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    return_token_strs: bool | None = None

    @property
    def text(self) -> str:
        """What is tokenized."""
        if self.messages is None:
            return self.prompt
        text = render_messages(self.messages, generation_prompt=self.add_generation_prompt is not False)
        return text.removesuffix("\n") if self.continue_final_message else text


# Calls ---------------------------------------------------------------------------------------------------------------

_GREEDY = Sampling(temperature=0)


class Call:
    """A checked request.

    Args:
        request: the body.
        prompts: what is to be answered.
        prompt_tokens: the length of each prompt.
        max_tokens: for each prompt: the tokens asked for, cut to the rest of the context.
        sampling: how answers are made; of a generating route the body itself.

    Attributes:
        pairs: the texts of each pair, where pairs are scored.
        tool: the name of the tool that the answer calls, if it does; the text is its arguments.
        parts_reasoning: whether a chat's reasoning stands apart from its content; ``None``: the
            server has no parser for it.
    """

    def __init__(
        self,
        request: Body,
        prompts: list[Prompt],
        prompt_tokens: list[int],
        max_tokens: list[int],
        sampling: Sampling = _GREEDY,
    ) -> None:
        self.request: Body = request
        self.prompts: list[Prompt] = prompts
        self.prompt_tokens: list[int] = prompt_tokens
        self.max_tokens: list[int] = max_tokens
        self.sampling: Sampling = sampling
        self.pairs: list[tuple[str, str]] = []
        self.tool: str | None = None
        self.parts_reasoning: bool | None = None
        options = sampling.stream_options
        self.n: int = sampling.n or 1
        self.stream: bool = bool(sampling.stream)
        self.stream_interval: int = sampling.stream_interval or 1
        self.include_usage: bool = options is not None and bool(options.include_usage)
        self.continuous_usage: bool = (
            options is not None and self.include_usage and bool(options.continuous_usage_stats)
        )

    @property
    def sequences(self) -> int:
        """The number of sequences for the engine."""
        return len(self.prompts) * self.n

    def sampling_of(self, prompt: int) -> Sampling:
        """Return what shapes a prompt's answers: here the same for all."""
        return self.sampling
